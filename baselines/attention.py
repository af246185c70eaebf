"""Time of attention on a GPU: blocks of queries over the multiprocessors, keys and values streamed past them.

FlashAttention (Dao et al., 2022; 2023) gives each multiprocessor a block of queries of one head and walks the keys in
blocks: two products on the tensor cores, and one exponential for every score on the special-function units. Causal
masks leave out the blocks behind the diagonal, and windows those before the first key that a query of the block sees
(FlashAttention-2's ``local`` kernels, ``n_block_min``). In decode there is one query a sequence; the query heads that
share a key head fill a block's rows, and the keys are split over several blocks whose results are joined (Flash-
Decoding, Dao et al., 2023). FlashAttention-2's call for sequences of unequal length splits only for grouped queries, so
that its decode with one query head a key head runs on as many multiprocessors as there are heads; FlashAttention-3
splits always. In prompts of few blocks FlashAttention-2's call for sequences of equal length splits the keys by the
same rule.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from siliconloom.arch.kernels import kernel
from siliconloom.baselines.operations import Float, Operations

COMPUTE, EXPONENT, DRAM, LAUNCH, EXPANSION = 0, 1, 2, 3, 4
BOUNDS = ("compute", "exponentials", "memory", "launch", "dequantization")

SPLITS_MOST = 128
"""Most parts that keys are split into."""
PACKED = 0.9
"""Heads are packed where unpacked blocks are less than this share as full."""
THREADS = 2048.0
"""Threads that a multiprocessor holds."""
GOOD = 0.85
"""A split is taken once its waves are as full as this share of the best one's."""


class Prefills(NamedTuple):
    """Columns of attention operators of many queries."""

    batch: Any
    queries: Any
    """Tokens of each sequence, and those that they attend to."""
    keys: Any
    """Those that some query sees."""
    steps: Any
    """Blocks of keys that a block of queries walks: the most of a sequence, and the mean of its blocks."""
    mean_steps: Any
    heads: Any
    kv_heads: Any
    width: Any
    """Size of a head."""
    element: Any
    """Bytes of an element of new keys and values, which a prompt writes to the cache."""
    rate: Any
    """Floating-point operations per cycle of one multiprocessor's tensor cores."""
    rows_most: Any
    """Queries and keys of a block."""
    columns_of: Any
    packs: Any
    """Whether the queries of the heads that share a key head may fill a block together (FlashAttention-3)."""
    kept: Any
    """Bytes of an element of keys and values in the cache."""
    read: Any
    """Bytes of an element of keys and values as they are read: as they are kept behind earlier tokens."""
    expand: Any
    """Cycles of one multiprocessor in which such an element becomes an operand."""
    written: Any
    """Threads of a block that writes one token's keys and values to the cache, at most; 0 when they are not written."""


def blocks_seen(shortest: Float, longest: Float, most: Float) -> tuple[Float, Float]:
    """Blocks that are walked, last and mean: they grow evenly from ``shortest`` to ``longest`` and stop at ``most``."""
    first, last = np.minimum(shortest, most), np.minimum(longest, most)
    growing = (last - first) / np.maximum(longest - shortest, 1e-30)  # share of the walks that are below the last
    return last, last - growing * (last - first) / 2.0


def window_blocks(o: Operations, own: Float, block: Float) -> Float:
    """Blocks of ``block`` positions that ``own`` neighbouring ones see of a window; no limit without one."""
    return np.asarray(np.ceil((o.reach() + own - 1.0) / block), np.float64)


@kernel(error_model="numpy")
def prefill_times(asked: Prefills, machine: Any, fitted: Any, time: Any, bound: Any) -> None:
    """Fill ``time`` with seconds and ``bound`` with what limits each row of many queries.

    Parameters
    ----------
    asked
        What is computed.
    machine
        Multiprocessors, clock in Hz, DRAM bytes/s, exponentials per cycle of a multiprocessor.
    fitted
        `siliconloom.baselines.efficiency.Prefill`, in its order.
    """
    batch, queries, keys, steps, mean_steps, heads, kv_heads, width = asked[:8]
    element, rate, rows_most, columns_of, packs, kept, read, expand, written = asked[8:]
    sms, clock, dram, exponentials = machine[0], machine[1], machine[2], machine[3]
    launch, mainloop, overlap, block, item, tail, stream, norm, store = fitted[:9]
    for i in range(batch.size):
        d, columns, rows = width[i], columns_of[i], rows_most[i]
        moved = read[i] * batch[i] * keys[i] * kv_heads[i] * d * 2.0 + 4.0 * batch[i] * heads[i] * queries[i] * d
        mma = 4.0 * rows * columns * d / (rate[i] * mainloop)
        exponent = rows * columns / exponentials
        expansion = 2.0 * columns * d * expand[i]
        step = mma + (1.0 - overlap) * exponent + block + expansion
        group = heads[i] / kv_heads[i]
        packed = packs[i] > 0.0 and queries[i] / (math.ceil(queries[i] / rows) * rows) < PACKED * (
            queries[i] * group / (math.ceil(queries[i] * group / rows) * rows)
        )
        blocks = math.ceil(queries[i] * group / rows) / group if packed else math.ceil(queries[i] / rows) + 0.0
        longest, middle = steps[i], mean_steps[i]
        items = batch[i] * heads[i] * blocks
        starts = math.ceil(items / sms)
        even = items * middle / sms
        walk = longest
        if items > sms:  # longest first; what is left over at the end is filled by the short ones
            walk = max(longest, even + tail * (starts * middle - even))
        compute = (walk * step + max(1.0, items / sms) * item) / clock
        memory = moved / (dram * stream)
        busy = (compute**norm + memory**norm) ** (1.0 / norm)
        if written[i] > 0.0:  # one block of threads a token; a kernel of its own, before the attention
            tokens = batch[i] * queries[i]
            rounds = tokens * min(written[i], kv_heads[i] * d) / (THREADS * sms)
            busy += max(rounds * store, 2.0 * tokens * kv_heads[i] * d * (element[i] + kept[i]) / dram)
        time[i] = launch + busy
        bound[i] = DRAM if memory >= compute else (COMPUTE if mma > (1.0 - overlap) * exponent else EXPONENT)
        if memory < compute and expansion > max(mma, (1.0 - overlap) * exponent):
            bound[i] = EXPANSION
        if launch > busy:
            bound[i] = LAUNCH


@kernel(error_model="numpy")
def splits_of(items: float, slots: float, steps: int) -> int:
    """In how many parts Flash-Decoding splits ``steps`` key blocks: the fewest that fill the waves well."""
    if items >= 0.8 * slots:
        return 1
    best = 0.0
    most = min(SPLITS_MOST, steps)
    for s in range(1, most + 1):
        waves = items * s / slots
        if s == 1 or math.ceil(steps / s) != math.ceil(steps / (s - 1)):
            best = max(best, waves / math.ceil(waves))
    for s in range(1, most + 1):
        waves = items * s / slots
        if (s == 1 or math.ceil(steps / s) != math.ceil(steps / (s - 1))) and waves / math.ceil(waves) >= GOOD * best:
            return s
    return 1


SPLIT_ROWS, SPLIT_RESIDENT = 64.0, 2.0
"""Queries of a block, and blocks on a multiprocessor, of FlashAttention-2's kernel that splits keys."""
SPLIT_KEYS = ((64, 256.0), (128, 128.0), (256, 64.0))
"""Its keys of a block by head size at most."""


@kernel(error_model="numpy")
def prompt_splits(blocks: Any, steps: Any, slots: float, parts: Any) -> None:
    """Fill ``parts`` with how many parts the keys of prompts are split into, by blocks of queries and keys."""
    for i in range(blocks.size):
        parts[i] = splits_of(blocks[i], slots, int(steps[i]))


@kernel(error_model="numpy")
def decode_times(
    batch: Any,
    queries: Any,
    keys: Any,
    heads: Any,
    kv_heads: Any,
    width: Any,
    element: Any,
    expand: Any,
    rate: Any,
    machine: Any,
    kernel: Any,
    fitted: Any,
    time: Any,
    bound: Any,
) -> None:
    """Fill ``time`` and ``bound`` as `prefill_times` does, for rows of one or a few queries a sequence.

    Parameters
    ----------
    element
        Bytes of an element of keys and values as they are kept.
    expand
        Cycles of one multiprocessor in which such an element becomes an operand.
    kernel
        Rows and keys of a block, blocks that are resident at once on a multiprocessor, whether ungrouped heads split.
    fitted
        `siliconloom.baselines.efficiency.Decode`, in its order.
    """
    sms, clock, dram, exponentials = machine[0], machine[1], machine[2], machine[3]
    rows, columns, resident, split_all = kernel[0], kernel[1], kernel[2], kernel[3]
    launch, mainloop, latency, item, tail, stream, join, join_each, norm = fitted[:9]
    for i in range(batch.size):
        d = width[i]
        group = heads[i] / kv_heads[i]
        moved = element[i] * batch[i] * keys[i] * kv_heads[i] * d * 2.0 + 4.0 * batch[i] * heads[i] * queries[i] * d
        items = batch[i] * kv_heads[i] * math.ceil(group * queries[i] / rows)
        steps = math.ceil(keys[i] / columns)
        splits = 1
        if split_all > 0.0 or group > 1.0:
            splits = splits_of(items, sms * resident, steps)
        mma = 4.0 * rows * columns * d / (rate[i] * mainloop)
        exponent = rows * columns / exponentials
        expansion = 2.0 * columns * d * expand[i]
        step = mma + exponent + expansion
        all_items = items * splits
        each = math.ceil(steps / splits)
        # Blocks on one multiprocessor share its units; one alone waits for its own loads.
        per_sm = all_items / sms
        if per_sm > 1.0:
            per_sm += tail * (math.ceil(per_sm) - per_sm)
        shared = max(1.0, per_sm) * each * step
        alone = max(1.0, per_sm / resident) * each * latency
        compute = (max(shared, alone) + max(1.0, per_sm) * item) / clock
        memory = moved / (dram * stream)
        busy = (compute**norm + memory**norm) ** (1.0 / norm)
        if splits > 1:
            busy += join + join_each * splits
        time[i] = launch + busy
        bound[i] = DRAM if memory >= compute else (COMPUTE if mma > exponent else EXPONENT)
        if memory < compute and expansion > max(mma, exponent):
            bound[i] = EXPANSION
        if launch > busy:
            bound[i] = LAUNCH
