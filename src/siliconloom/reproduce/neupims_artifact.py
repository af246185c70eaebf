"""The simulator that was released with NeuPIMs, as closed forms: what it charges each operator of a layer with.

Read from its source (github.com/casys-kaist/NeuPIMs, branches ``main``, ``npu+pim`` and ``npu-only``), then held
against runs of it, `RUNS`: 7B, tensor parallel 4, one layer, lengths of `neupims.contexts`. Attention in memory comes
out within 4 %, attention on the arrays within 1 %, the arrays at 90 to 95 % (memory is charged at its pins).
The figures that follow from it are the card's rows "with the released accounting".

What it charges, and a bank, a channel or an array need not:

- **Refresh.** Ranks in turn, so twice every tREFI; a row of computation begins only if an estimate of it ends before
  the next refresh. The estimate counts 32 precharges of 6 cycles one after the other, so the channel waits for about
  260 cycles, and refreshes for 260: a quarter of all time.
- **Precharges** of a row of computation go bank by bank, 32 commands.
- **Multiplications** of 16 elements take two cycles, half of what 16 lanes could do at the bus's clock.
- **With dual row buffers** a command stands for the multiplications of a head, and the row closes 5 cycles after it
  was *sent*: the values' multiplications, up to 64 cycles a row, are not waited for. This is most of what dual row
  buffers gain in the channels there while arrays and memory take turns; the rest is the next point.
- **Instructions.** In ``npu+pim`` the core hands out one instruction a cycle for all 32 channels, one of them for every
  16 multiplications of a bank: 37 a row of scores. In ``main`` it hands out all in one cycle, a tenth as many.
- **Arrays** hold 128 sequences and stream the weights past them; the next 128 begin when those have ended, and loading
  them is not hidden. ``npu-only`` has another timing: each load waits for the array to drain.
- **Attention on the arrays** takes one array pass of 271 cycles for every 128 tokens of every head, in order, while
  its bytes would need a seventh of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from msgspec import Struct

from siliconloom.mapper.pim.offload import balance

CHANNELS, RANKS, BANKS, ROW, HEAD = 32, 2, 32, 512, 128
"""Of a channel all banks, a row and a head in elements."""
LANES, ARRAY, ARRAYS, PINS = 16, 128, 8, 1024
"""Multipliers of a bank, an array's side, arrays, bytes per cycle of all channels."""
tRCD, tFAW, tREFI, tRFC, tRTP, SHUT = 14, 30, 3900, 260, 6, 5
"""Of the memory; ``SHUT``: from the last command of a row to its first precharge."""
GWRITE = 96
"""Cycles of a vector into the global buffer: 32 bursts at tCCD_S + tCCD_L."""
OPEN = 1 + (BANKS // 4 // RANKS - 1) * tFAW + 1 + tRCD + BANKS + SHUT
"""A row of computation without its multiplications: header, groups of four banks, precharges, one each cycle."""


class Shape(Struct, frozen=True):
    """A layer on one chip."""

    width: int
    tensor: int
    heads: int

    @property
    def weights(self) -> tuple[tuple[int, int], ...]:
        """Of the four products: queries with keys and values, output, up, down."""
        part = self.width // self.tensor
        return (self.width, 3 * part), (part, self.width), (self.width, 4 * part), (4 * part, self.width)


RUNS = {
    ("dual", "greedy", 64): 41_467,
    ("dual", "greedy", 128): 78_699,
    ("dual", "greedy", 256): 129_921,
    ("dual", "greedy", 512): 241_622,
    ("dual", "round_robin", 64): 53_350,
    ("dual", "round_robin", 128): 118_489,
    ("dual", "round_robin", 256): 172_442,
    ("dual", "round_robin", 512): 301_807,
    ("blocked", "round_robin", 64): 65_547,
    ("blocked", "round_robin", 256): 200_516,
    ("blocked", "round_robin", 512): 359_231,
    ("blocked", "greedy", 256): 151_091,
}
"""Cycles of attention in memory, by row buffers, balance and batch (7B, ShareGPT's lengths), all of branch ``main``."""
RUN_NAIVE = {64: 155_374, 128: 289_707, 256: 567_084}
"""Attention in memory of branch ``npu+pim``, the published baseline, by batch."""
SINGLE = {("dual", 512): 16_013, ("blocked", 512): 19_186, ("dual", 1024): 31_620, ("blocked", 1024): 38_693}
"""The same of one sequence of so many tokens, alone in a channel."""
RUN_ARRAYS = {64: 30_456 + 85_140, 256: 48_589 + 154_263, 512: 87_251 + 261_361}
"""Cycles of a layer's arrays, before and after attention, by batch."""
RUN_OPERATORS = {
    64: {"qkv": 29_401, "output": 9_199, "up": 35_760, "down": 35_264},
    256: {"qkv": 44_771, "output": 14_891, "up": 60_029, "down": 59_901},
    512: {"qkv": 79_124, "output": 24_499, "up": 102_360, "down": 102_585},
}
"""The products among them."""
RUN_HALVES = {256: 139_267 + 151_597, 512: 224_373 + 237_095}
"""Two half batches in turn at arrays and memory: its stages C and D, a layer's worth."""
RUN_ON_ARRAYS = {64: 744_713, 256: 2_970_849}
"""Attention on the arrays (branch ``npu-only``)."""


def row_cycles(multiplications: int, segments: int, dual: bool) -> int:
    """From one row of computation to the next: ``segments`` results of so many commands each."""
    if dual:  # the last one's are not waited for
        return OPEN + (segments - 1) * 2 * (max(multiplications, 6) + 1)
    return OPEN + segments * 2 * (multiplications + 1) - 2


def refresh_share(row: int, multiplications: int) -> float:
    """Part of the time that a channel computes nothing: a refresh of a rank, and the wait before it."""
    estimate = BANKS * tRTP + (BANKS // 4 // 2 - 1) * tFAW + tRCD + 2 * max(multiplications, 6)
    return (tRFC + estimate - row / 2) / (tREFI / RANKS)


def in_memory(contexts: Sequence[int], shape: Shape, dual: bool, how: str, sent: bool = False) -> float:
    """Attention of some sequences: scores of all, then values of all.

    ``sent``: the array core hands out one instruction a cycle, channel after channel, so a channel begins when those
    before it have theirs.
    """
    dealt = balance(list(contexts), CHANNELS, "greedy" if how == "greedy" else "round_robin")
    scores, values = 0.0, 0.0  # when all channels are done
    ahead, behind = 0, 0  # instructions for the channels before, of scores and of values
    together = ROW // HEAD
    row = row_cycles(HEAD // LANES, together, dual)
    for part in dealt:
        score = value = 0.0
        for context in (contexts[n] for n in part):
            groups = ceil(shape.heads / together)
            score += groups * (ceil(context / BANKS) * row + GWRITE) / (1 - refresh_share(row, ROW // LANES))
            for start in range(0, context, ROW):
                needed = ceil(min(ROW, context - start) / LANES)
                rounded = 1 << (needed - 1).bit_length()  # up to a power of two
                one = row_cycles(rounded, 1, dual)
                value += shape.heads * (HEAD // BANKS * one + GWRITE) / (1 - refresh_share(one, rounded))
        scores, values = max(scores, ahead + score), max(values, behind + value)
        if sent:
            for_scores, for_values = instructions([contexts[n] for n in part], shape)
            ahead, behind = ahead + for_scores, behind + for_values
            scores, values = max(scores, float(ahead)), max(values, float(behind))
    return scores + values


def instructions(contexts: Sequence[int], shape: Shape) -> tuple[int, int]:
    """What a core hands out for scores and for values when every 16 multiplications of a bank are an instruction."""
    scores = values = 0
    for context in contexts:
        rows, together = ceil(context / BANKS), ROW // HEAD
        scores += ceil(shape.heads / together) * (1 + rows * (1 + together * (HEAD // LANES + 1)))
        for start in range(0, context, ROW):
            values += shape.heads * (1 + HEAD // BANKS * (ceil(min(ROW, context - start) / LANES) + 2))
    return scores, values


def block_cycles(k: int, n: int, alone: bool = False) -> int:
    """Of 128 sequences and weights of k by n, all in the scratchpad."""
    load = 2 * ARRAY + ARRAY // ARRAYS - 1 if alone else ARRAY
    return ceil(k / ARRAY) * (load + ARRAY // ARRAYS * (ceil(n / ARRAY) - 1))


def product(sequences: int, k: int, n: int, alone: bool) -> float:
    """A product with weights of k by n: blocks of 128 sequences in turn, the first at the pace of the weights."""
    block = block_cycles(k, n, alone)
    return max(2 * k * n / PINS, block) + (ceil(sequences / ARRAY) - 1) * block


def on_arrays(sequences: int, shape: Shape, alone: bool = False) -> float:
    """A layer without attention: four products, and the vector operations between them, each through memory."""
    part = shape.width // shape.tensor
    moved = 2 * sequences * (2 * shape.width + 2 * shape.width + 2 * 3 * shape.width + 2 * 4 * part)
    return sum(product(sequences, k, n, alone) for k, n in shape.weights) + moved / PINS


def attention_on_arrays(contexts: Sequence[int], shape: Shape) -> float:
    """Attention without memory that computes, of branch ``npu-only``: every head's passes one after the other."""
    total = 0
    for context in contexts:
        passes = ceil((context + ARRAY - 1) / ARRAY) * (2 * ARRAY - 1 + ARRAY // ARRAYS)
        total += 2 * ARRAY - 1 + context // ARRAYS + _softmax(context) + passes
    return float(total * shape.heads)


def _softmax(context: int) -> int:
    """Two trees and three passes on 128 lanes."""
    left, tree = context, 1
    while left > ARRAY:
        left = ceil(left / ARRAY)
        tree += left
    return 2 * tree + 3 * ceil(context / ARRAY)


def holding(sequences: int, shape: Shape) -> float:
    """Cycles in which the arrays hold something: what the released simulator counts as their use."""
    return float(ceil(sequences / ARRAY) * sum(block_cycles(k, n) for k, n in shape.weights))


class Charged(Struct, frozen=True):
    """A layer's cycles in each of the published systems."""

    npu_only: float
    naive: float
    dual: float
    balanced: float
    interleaved: float
    holding: float
    """Cycles in which the arrays hold something, with the whole batch."""
    holding_halves: float
    """The same of two half batches."""

    @property
    def use(self) -> float:
        """Of the arrays, in the naive system."""
        return self.holding / self.naive

    @property
    def use_interleaved(self) -> float:
        """Of the arrays, with interleaved halves."""
        return self.holding_halves / self.interleaved

    @property
    def neupims(self) -> float:
        return min(self.balanced, self.interleaved)


def charged(contexts: Sequence[int], shape: Shape) -> Charged:
    """A layer with the released accounting; interleaved halves do not disturb each other (in its runs by 6 to 17 %)."""
    arrays = on_arrays(len(contexts), shape)
    longest = sorted(contexts, reverse=True)
    halves = [longest[0::2], longest[1::2]]
    return Charged(
        on_arrays(len(contexts), shape, alone=True) + attention_on_arrays(contexts, shape),
        arrays + in_memory(contexts, shape, False, "round_robin", sent=True),
        arrays + in_memory(contexts, shape, True, "round_robin"),
        arrays + in_memory(contexts, shape, True, "greedy"),
        sum(
            max(on_arrays(len(mine), shape), in_memory(other, shape, True, "greedy"))
            for mine, other in (halves, halves[::-1])
        ),
        holding(len(contexts), shape),
        sum(holding(len(half), shape) for half in halves),
    )
