"""What a serving engine's step takes where memory computes the attention of next tokens (NeuPIMs, Heo et al., 2024).

A step of next tokens alone is the evaluator's own step of as many sequences: arrays and memory in the order that is the
fastest (`evaluate.pim_layers`), so what attention is said to take is all that such a step takes beyond its products.
In a step with prompts, whose operators the arrays do, attention in memory comes behind them and nothing overlaps it.

Sequences lie in channels, and the fullest one is waited for: where lengths differ, next tokens attend to the length at
which as many equal sequences would fill the fullest channel as much.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from siliconloom.arch.errors import NotSupported
from siliconloom.arch.pim import PimTile
from siliconloom.arch.system import Policy
from siliconloom.evaluate.chip_part import ChipPart
from siliconloom.evaluate.pim_machine import PimMachine
from siliconloom.evaluate.predicted_attention import next_tokens
from siliconloom.evaluate.step_costs import Float, ReplicaCosts, StepParts, StepTerms
from siliconloom.evaluate.steps import PlannedStep
from siliconloom.mapper.pim.offload import Head, balance, load_of, shape_of, shared
from siliconloom.mapper.system.plan import Plan
from siliconloom.sim.service.costs import COUNTS, Chunk, RequestLengths
from siliconloom.workloads import Attention, Graph

POWERS = tuple(sorted({1, *(2**k + more for k in range(6, 26) for more in (0, 1))}))
"""Lengths that are asked for: behind a power of two fewer heads' values share a row."""
FEW = 16
"""Up to so many requests every number is asked for: of a few, products with weights may be in memory, too."""
MIXED, ORDER = "beside", "order"
"""Of terms: attention that comes behind the operators of prompts; and, for seconds and joules, whether halves of the
sequences swap places and whether memory does anything at all."""


PLAIN = Plan().as_dict()
"""Keys of plans that say nothing."""


class PimCosts(ReplicaCosts):
    """`ReplicaCosts` of chips whose memory computes; parameters are those."""

    def __init__(self, *parts: Any, longest: int = POWERS[-1], **more: Any) -> None:
        super().__init__(*parts, longest=longest, **more)
        self._grid = [*(n for n in POWERS if n < longest), longest]
        self._alone: dict[int, StepTerms] = {}
        part = self._part(self.ask(next_tokens(1, 1, 0)))
        self._attention = next(o for o in part.operators() if isinstance(o, Attention))

    @property
    def machine(self) -> PimMachine:
        """One of the replica's chips."""
        machine = self.cluster.machine
        assert isinstance(machine, PimMachine)
        return machine

    @property
    def in_memory(self) -> bool:
        """Whether memory may compute attention."""
        return self.machine.policy.attention != "npu"

    def _step_parts(
        self, chunks: Sequence[Chunk], ended: int, count: int, contexts: Float, lengths: RequestLengths
    ) -> StepParts:
        if not (chunks and count):
            return super()._step_parts(chunks, ended, count, contexts, lengths)
        # products of all new tokens, with those that are next ones; and attention of these behind what prompts take
        rest = super()._step_parts([*chunks, *[(1, 0)] * count], ended + count, 0, contexts, lengths)
        lone = self._chunk_attention(1, 0, count)
        seconds, joules = self._attended(MIXED, count, contexts, lengths)
        return replace(rest, attention=(rest.attention[0] - lone[0] + seconds, rest.attention[1] - lone[1] + joules))

    def _token_attention(
        self, count: int, contexts: Float, lengths: RequestLengths
    ) -> tuple[Float, Float, float | Float]:
        return *self._attended("decode", count, contexts, lengths), 0.0

    def _attended(self, kind: str, count: int, contexts: Float, lengths: RequestLengths) -> tuple[Float, Float]:
        """Seconds and joules of the attention of next tokens: energy goes with what all have, time with the fullest."""
        place = bisect_left(COUNTS, count)
        high = COUNTS[place] if count > FEW and place < len(COUNTS) else count
        low = high if high == count else COUNTS[place - 1]
        share = (count - low) / (high - low) if low < high else 1.0
        mean = float(contexts[0])
        own = [at + lengths.step + 1 for at, many in lengths.offsets.items() for _ in range(many)]
        own = sorted(own, reverse=True) or [max(round(mean), 1)] * count
        seconds, joules = np.zeros(len(contexts)), np.zeros(len(contexts))
        for some, part in ((low, 1.0 - share), (high, share)):
            if part:
                crowding = self._crowding(some, mean, own)
                seconds += part * self._along(kind, some, contexts * crowding)[0]
                joules += part * self._along(kind, some, contexts)[1]
        return seconds, joules

    def _along(self, kind: str, count: int, contexts: Float) -> tuple[Float, Float]:
        """Attention of a number of sequences that is asked for, straight between such lengths and behind the last."""
        last = len(self._grid) - 1
        first = min(max(bisect_right(self._grid, contexts[0]) - 1, 0), max(last - 1, 0))
        places = self._grid[first : min(bisect_left(self._grid, contexts[-1]), last) + 1]
        terms = np.array([self._term(kind, count, length, ()).attention for length in places])
        found = []
        for each in terms.T:
            slope = (each[-1] - each[-2]) / (places[-1] - places[-2]) if len(places) > 1 else 0.0
            found.append(np.interp(contexts, places, each) + slope * np.maximum(contexts - places[-1], 0.0))
        return found[0], found[1]

    def _blend(self, number: int, of: Callable[[int], tuple[float, float]]) -> tuple[float, float]:
        return of(number) if number <= FEW else super()._blend(number, of)

    def _decode(self, count: int, length: int) -> StepTerms:
        return self._term("decode", count, length, ())

    def _term(self, kind: str, a: int, b: int, sets: Sequence[tuple[str, str]]) -> StepTerms:
        if kind not in ("decode", MIXED, ORDER):
            return super()._term(kind, a, b, sets)
        found = self._found.get((kind, a, b))
        if found is None:
            self._ask_both(a, b)
            found = self._found[kind, a, b]
        return found

    def _ask_both(self, count: int, length: int) -> None:
        """Terms of a step of next tokens alone, and those of their attention behind the operators of prompts."""
        first = self._arrays(count)
        whole_s, whole_j, alone, halved = self._whole_step(count, length)
        joules = whole_j - first.body[1] - first.head[1]
        beyond = whole_s - first.body[0] - first.head[0]
        self._found["decode", count, length] = replace(first, attention=(beyond, joules))
        behind = beyond if alone is None else alone
        self._found[MIXED, count, length] = replace(first, attention=(behind, max(joules, 0.0)))
        self._found[ORDER, count, length] = replace(first, attention=(float(halved), float(alone is not None)))
        self._asked += 1

    def _arrays(self, count: int) -> StepTerms:
        """Terms of a step of next tokens of which the arrays do everything; its attention is none that anybody has."""
        known = self._found.get(("decode", count, self._grid[0])) or self._alone.get(count)
        if known is None:
            known = self._alone[count] = self._terms(self.ask(next_tokens(count, self._grid[0], 0)))
        return known

    def _whole_step(
        self, count: int, length: int, contexts: Sequence[int] = ()
    ) -> tuple[float, float, float | None, bool]:
        """Seconds and joules above standing of a step of next tokens, and seconds of its attention in memory, if any.

        The last says whether halves of the sequences swap places. ``length`` is that of all, or the mean of
        ``contexts``.
        """
        machine = dataclasses.replace(self.machine, contexts=tuple(contexts)) if contexts else self.machine
        cluster = replace(self.cluster, kinds=((machine, self.cluster.chips),))
        graph = machine.fitted(self.ask(next_tokens(count, length, 0)))
        fixed = {key: value for key, value in self.plan.as_dict().items() if value != PLAIN[key]}
        fixed |= {"tensor": self.plan.tensor, "pipeline": 1, "data": 1}
        steps = PlannedStep(cluster, Policy(tensor=self.plan.tensor), graph, fixed, fits=False)
        part = ChipPart.of(machine, steps)
        alone, halved = None, False
        if part.row is not None:
            attention = next(o for o in part.graph.operators() if isinstance(o, Attention))
            alone = part.row.times[attention.name] * attention.repeat
            halved = part.row.interleaved
        return steps.seconds, sum(part.energy.values()) * self.plan.chips, alone, halved

    def _part(self, graph: Graph) -> Graph:
        return super()._part(self.machine.fitted(graph))

    def whole(self, chunks: Sequence[Chunk], contexts: Sequence[int]) -> float:
        """Seconds of the kernels of a true step, asked in full: every request with its own length."""
        if not contexts:
            return super().whole(chunks, ())
        count, mean = len(contexts), max(round(sum(contexts) / len(contexts)), 1)
        seconds, _, alone, _ = self._whole_step(count, mean, contexts)
        if not chunks:
            return seconds
        arrays = self._arrays(count)
        attention = seconds - arrays.body[0] - arrays.head[0] if alone is None else alone
        prompts = [f"{{new: {new}, context: {known}}}" for new, known in chunks]
        every = [*prompts, f"{{new: 1, context: 0, count: {count}}}"]
        own, both = (self._terms(self.ask([("requests", f"[{', '.join(some)}]")])) for some in (prompts, every))
        return both.body[0] + both.head[0] + own.attention[0] + attention

    def _crowding(self, count: int, mean: float, own: Sequence[int]) -> float:
        """How much longer than the mean so many equal sequences would be that fill the fullest channel as these do.

        ``own`` are in falling order. Which of them came first is not known: where they are dealt to channels in turn,
        an order is drawn.
        """
        if not self.in_memory:
            return 1.0
        length = self._grid[max(bisect_right(self._grid, mean) - 1, 0)]
        halved, in_memory = self._term(ORDER, count, length, ()).attention
        if not in_memory:
            return 1.0
        turns = 2 if halved else 1
        if turns == 1 and self.machine.policy.balance == "round_robin":
            own = np.random.default_rng(len(own)).permutation(own).tolist()
        equal = [max(round(mean), 1)] * count
        fullest, others = (sum(self._fullest(each[n::turns]) for n in range(turns)) for each in (own, equal))
        return fullest / others

    def _fullest(self, contexts: Sequence[int]) -> int:
        """Activations of all banks of the fullest channel, as `PimLayers` deals sequences to channels."""
        if not contexts:
            return 0
        head, split = shared(self._pim, Head.of(self._attention, self.machine.policy.values), len(contexts))
        loads = {context: load_of(self._pim, head, context) for context in set(contexts)}
        shares = [loads[context] for context in contexts for _ in range(split)]
        dealt = balance(shares, self._pim.channels, self.machine.policy.balance)
        return max(sum(shares[n] for n in part) for part in dealt)

    @property
    def _pim(self) -> PimTile:
        pim = self.machine.chip.pim
        assert pim is not None
        return pim


def bytes_in_rows(machine: PimMachine, part: Graph, lengths: tuple[int, int], block: int, left: float) -> float | None:
    """Bytes of a token's keys and values on a chip where memory may compute with them: its share of whole rows.

    It is that of the worst of a request's lengths, which are of whole blocks, as memory is handed out, from that of the
    first of two numbers of tokens to that of the second. Of fewer requests than channels the heads lie in several
    channels, in more rows: that counts where so few requests could fill the bytes that are ``left`` for them.
    None where keys and values lie as the arrays read them.
    """
    pim, (shortest, longest) = machine.chip.pim, lengths
    attention = [o for o in part.operators() if isinstance(o, Attention)]
    if pim is None or machine.policy.attention == "npu" or len(attention) > 1:
        return None
    try:
        head = Head.of(attention[0], machine.policy.values)
        shape_of(pim, head, longest)
    except NotSupported:
        return None
    row = pim.dram.organization.row_bytes * pim.banks * attention[0].repeat
    rooms = {-(-length // block) * block for length in range(shortest, longest + block, block)}
    found = 0.0
    for sequences in range(1, pim.channels + 1):
        share, split = shared(pim, head, sequences)
        each = max(split * shape_of(pim, share, room).rows / room for room in rooms) * row
        if split == 1 or sequences * max(rooms) * each > left:
            found = max(found, each)
        if split == 1:
            break
    return found


__all__ = ["PimCosts", "bytes_in_rows"]
