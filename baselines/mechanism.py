"""Times of kernels by the mechanism and its constants alone: what each kind of operation waits for on a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch.errors import NotSupported
from siliconloom.arch.gpu import Gpu
from siliconloom.baselines import attention, collective, gemm, grouped, one_shot
from siliconloom.baselines.attention_backward import backward_times
from siliconloom.baselines.dequantization import expansion_cycles, unpacking_cycles
from siliconloom.baselines.efficiency import Efficiency, load_efficiency
from siliconloom.baselines.elementwise import elementwise_times
from siliconloom.baselines.held import Hold, as_held, free, hold
from siliconloom.baselines.operations import (
    CACHES,
    COLLECTIVES,
    ELEMENTWISE,
    KEPT,
    KERNELS,
    OPS,
    PRECISIONS,
    Bool,
    CacheStored,
    Float,
    Op,
    Operations,
    Precision,
)
from siliconloom.baselines.residuals import program_of
from siliconloom.baselines.roofline import compulsory_bytes, flops, least_seconds

BLOCKS = {
    "flash-attention-2": (((64, 128, 128), (128, 128, 64), (256, 64, 64)), (64.0, 128.0, 2.0, 0.0), False),
    "flash-attention-3": (((96, 192, 128), (128, 128, 128), (256, 128, 80)), (64.0, 128.0, 1.0, 1.0), True),
}
"""Of each kernel library: queries and keys of a block by head size at most (head, rows, columns); in decode rows and
keys of a block, blocks resident on a multiprocessor, whether ungrouped heads are split; whether heads are packed."""
MOST_HEAD = 256
ROUNDED = ("torch",)
"""Programs whose 8-bit products were timed on activations that are rounded already."""
WRITERS = 512.0
"""Threads of a block that writes a token's keys and values."""
RESULT_BYTES = 2.0
"""Results of 8-bit and 4-bit products are 16-bit."""


IN_FP8 = ("flash-attention-3",)
"""Kernel libraries that multiply keys and values of eight bits as they are, with queries rounded to as many (Shah et
al., 2024, section 3.3)."""


class Mechanism(Struct, frozen=True):
    """Times by the constants alone; ``share`` of a row's time is that of the kernel that tables are about.

    Of a GPU that is held below what it could do, ``held`` says what that makes of each row.
    """

    seconds: Float
    roofline: Float
    bound: list[str]
    share: Float
    held: Hold | None = None


def mechanism(
    gpu: Gpu,
    operations: Operations,
    *,
    sustained: bool = False,
    cache_write: bool = True,
    quantized: bool = False,
    software: str = "",
) -> Mechanism:
    """Predict every row by the mechanism and its constants alone; see `predict`."""
    for code in np.unique(operations.dtype[~operations.among(*COLLECTIVES, *ELEMENTWISE)]).tolist():
        gpu.rate(str(PRECISIONS[code]))
    if not operations.among(*KERNELS).all():
        row = int(np.argmin(operations.among(*KERNELS)))
        raise NotSupported(f"{OPS[operations.op[row]]} is no kernel; see `loom compare` for whole models")
    efficiency = load_efficiency(gpu.architecture).by_program(software)
    gpu = as_held(gpu, limited=sustained or efficiency.limited)
    share = np.ones(len(operations))
    rounded = program_of(Op.GEMM, software) in ROUNDED
    more = (cache_write, not (quantized or rounded))
    seconds, bound = _kernels(free(gpu), efficiency, operations, software, *more)
    if quantized and not rounded:  # a measured time holds more than the product, which is not in this one
        products = operations.among(Op.GEMM)
        alone = seconds[products]
        share[products] = alone / (alone + _scaling(gpu, efficiency, operations.select(products)))
    floor = least_seconds(operations, gpu)
    seconds = _limited(gpu, efficiency, operations, np.maximum(seconds, floor), sustained)
    held = None
    if gpu.locked_clock is not None or gpu.power_cap is not None:

        def at_clock(other: Gpu) -> Float:
            found: Float = np.maximum(_kernels(other, efficiency, operations, software, *more)[0], floor)
            return found

        held = hold(gpu, at_clock, seconds, _work(efficiency, operations), limited=sustained or efficiency.limited)
        seconds = seconds * held.slower
    return Mechanism(seconds, floor, bound, share, held)


def _kernels(
    gpu: Gpu, efficiency: Efficiency, operations: Operations, software: str, cache_write: bool, scales: bool
) -> tuple[Float, list[str]]:
    """Seconds and bound of every row under no limit of power; ``scales``: 8-bit products scale what they take."""
    seconds, bound = np.zeros(len(operations)), np.full(len(operations), "", dtype=object)
    parts: tuple[tuple[Bool, Any, bool], ...] = (
        (operations.among(Op.GEMM), _gemm, scales),
        (operations.among(Op.GROUPED_GEMM), _grouped, False),
        (operations.among(Op.ATTENTION_PREFILL), _prefill, cache_write),
        (operations.among(Op.ATTENTION_DECODE), _decode, False),
        (operations.among(Op.ATTENTION_BACKWARD), _backward, False),
        (operations.among(*COLLECTIVES), partial(_collective, program=software), False),
        (operations.among(*ELEMENTWISE), _elementwise, False),
    )
    for mask, model, more in parts:
        if mask.any():
            seconds[mask], bound[mask] = model(gpu, efficiency, operations.select(mask), more)
    return seconds, bound.tolist()


def is_power(sizes: NDArray[np.int64]) -> Bool:
    """Which sizes are powers of two."""
    found: Bool = (sizes & (sizes - 1)) == 0
    return found


LAUNCH_ALONE = 3e-6
"""Seconds between kernels that the host launches one by one and keeps ahead of (CUDA driver, stream order)."""


def predict_with(
    gpu: Gpu, efficiency: Efficiency, products: Operations, *, sustained: bool = False
) -> tuple[Float, Float]:
    """Seconds and joules of matrix products with constants of one's own, for fitting them."""
    seconds = _limited(gpu, efficiency, products, _gemm(gpu, efficiency, products, True)[0], sustained)
    return seconds, joules_of(gpu, efficiency, products, seconds)


def _machine(gpu: Gpu) -> Float:
    return np.array([gpu.multiprocessors, gpu.clock, gpu.memory_bandwidth, gpu.l2_bytes])


def _rates(gpu: Gpu, operations: Operations) -> Float:
    found: Float = np.array([float(gpu.rates.get(str(p), 0)) for p in PRECISIONS])[operations.dtype]
    return found


def _sparse_rates(gpu: Gpu, products: Operations) -> Float:
    """How many times the dense rate sparse weights have, by the datasheet; one of dense ones."""
    sparse = products.sparse()
    if sparse.any() and gpu.sparse is None:
        raise NotSupported(f"sparse weights on {gpu.name}, whose description has no rate of them (sparse)")
    return np.where(sparse, float(gpu.sparse or 1), 1.0)


def _columns(operations: Operations, *names: str) -> tuple[Float, ...]:
    return tuple(getattr(operations, name).astype(np.float64) for name in names)


def _gemm(gpu: Gpu, efficiency: Efficiency, o: Operations, rounds: bool) -> tuple[Float, list[str]]:
    time, bound = np.empty(len(o)), np.empty(len(o), np.int64)
    element = o.element_bytes()
    fitted = efficiency.gemm
    m, n, k, batch = _columns(o, "m", "n", "k", "batch")
    narrow = element < RESULT_BYTES  # activations come in 16 bits and are scaled and rounded first
    gemm.gemm_times(
        m,
        n,
        k,
        batch,
        element,
        o.weight_bytes() / (batch * n * k),
        unpacking_cycles(gpu, o) * np.where(o.sparse(), KEPT, 1.0),
        _rates(gpu, o) * np.where(narrow, fitted.narrow, 1.0) * _sparse_rates(gpu, o),
        np.maximum(element, RESULT_BYTES),
        gemm.TILES[efficiency.kernels],
        gemm.SPLITS,
        _machine(gpu),
        fitted.vector(),
        time,
        bound,
    )
    time *= 1.0 + fitted.slow * time / (time + fitted.tau)
    return time + _scaling(gpu, efficiency, o) * rounds, [gemm.BOUNDS[b] for b in bound.tolist()]


def _grouped(gpu: Gpu, efficiency: Efficiency, o: Operations, rounds: bool) -> tuple[Float, list[str]]:
    """Products of experts; in a batch of the mean number of rows where no grouped kernel of the architecture is known.

    Activations in 8 bits come rounded (``rounds`` is false): so were those of the kernels that were timed.
    """
    fitted, active = efficiency.grouped, o.products()
    if fitted is None:
        each, many = np.ceil(o.m / active).astype(np.int64), np.maximum(np.round(active), 1).astype(np.int64)
        plain = np.full(len(o), OPS.index(Op.GEMM), np.int8)
        return _gemm(gpu, efficiency, replace(o, op=plain, m=each, batch=many), rounds)
    time, bound = np.empty(len(o)), np.empty(len(o), np.int64)
    element = o.element_bytes()
    m, n, k, batch = _columns(o, "m", "n", "k", "batch")
    grouped.grouped_times(
        m,
        n,
        k,
        batch,
        active,
        o.by_chance(),
        np.maximum(o.top_k, 1).astype(np.float64),
        element,
        o.weight_bytes() / (active * n * k),
        unpacking_cycles(gpu, o) * np.where(o.sparse(), KEPT, 1.0),
        _rates(gpu, o) * np.where(element < RESULT_BYTES, fitted.narrow, 1.0) * _sparse_rates(gpu, o),
        np.maximum(element, RESULT_BYTES),
        _machine(gpu),
        fitted.vector(),
        time,
        bound,
    )
    time *= 1.0 + efficiency.gemm.slow * time / (time + efficiency.gemm.tau)
    return time + _scaling(gpu, efficiency, o) * rounds, [gemm.BOUNDS[b] for b in bound.tolist()]


def _scaling(gpu: Gpu, efficiency: Efficiency, o: Operations) -> Float:
    """Seconds in which activations of 8-bit products are scaled and rounded; none for wider ones."""
    element, fitted = o.element_bytes(), efficiency.gemm
    moved = np.where(o.among(Op.GROUPED_GEMM), 1, o.batch) * o.m * o.k * (RESULT_BYTES + element)
    seconds = fitted.quantize + moved / (gpu.memory_bandwidth * fitted.stream)
    return np.where(element < RESULT_BYTES, seconds, 0.0)


def _block_sizes(efficiency: Efficiency, head: Float) -> tuple[Float, Float]:
    sizes = np.array(BLOCKS[efficiency.attention][0], np.float64)
    at = np.searchsorted(sizes[:, 0], head)
    if (at == len(sizes)).any():
        raise NotSupported(f"attention with heads of {int(head.max())}; kernels go to {MOST_HEAD}")
    return sizes[at, 1], sizes[at, 2]


def _as_kept(efficiency: Efficiency, o: Operations) -> Bool:
    """Mask of the attention that multiplies the keys and values of a cache without making other operands of them."""
    found: Bool = o.reads_cache() & (o.cache == CACHES.index(CacheStored.FP8)) & (efficiency.attention in IN_FP8)
    return found


def _kept_operands(gpu: Gpu, efficiency: Efficiency, o: Operations) -> tuple[Float, Float]:
    """Of attention, operations per cycle by what is multiplied, and cycles in which a kept element becomes that."""
    as_kept, rates = _as_kept(efficiency, o), _rates(gpu, o)
    if as_kept.any():
        rates = np.where(as_kept, float(gpu.rates[Precision.FP8]), rates)
    return rates, expansion_cycles(gpu, o, as_kept)


def _attention_machine(gpu: Gpu) -> Float:
    return np.array([gpu.multiprocessors, gpu.clock, gpu.memory_bandwidth, gpu.exponentials], np.float64)


def _prefill(gpu: Gpu, efficiency: Efficiency, o: Operations, cache_write: bool) -> tuple[Float, list[str]]:
    time, bound = np.empty(len(o)), np.empty(len(o), np.int64)
    batch, queries, keys, heads, kv_heads, head = _columns(
        o, "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"
    )
    rows, columns = _block_sizes(efficiency, head)
    packs = np.full(len(o), 1.0 if BLOCKS[efficiency.attention][2] else 0.0)
    rates, expand = _kept_operands(gpu, efficiency, o)
    least = np.where(o.causal, np.minimum(keys, keys - queries + rows), keys)
    shortest, longest = np.ceil(least / columns), np.ceil(keys / columns)
    steps, mean = attention.blocks_seen(shortest, longest, attention.window_blocks(o, rows, columns))
    parts, keys = np.ones(len(o)), o.seen_keys()
    if efficiency.splits:
        parts = _prompt_splits(gpu, o)
        cut = parts > 1
        rows = np.where(cut, attention.SPLIT_ROWS, rows)
        most = o.reach() + rows - 1.0
        (known,) = _columns(o, "kv_len")
        seen = attention.blocks_seen(known - np.where(o.causal, queries, 0.0), known, most)[1]  # of each query
        batch, keys = batch * parts, np.where(cut, np.maximum(seen / parts, 1.0), keys)
        steps, mean = (np.where(cut, np.ceil(keys / columns), each) for each in (steps, mean))
    asked = attention.Prefills(
        batch,
        queries,
        keys,
        steps,
        mean,
        heads,
        kv_heads,
        head,
        o.element_bytes(),
        rates,
        rows,
        columns,
        packs,
        o.kept_bytes(),
        o.read_bytes(),
        expand,
        np.full(len(o), WRITERS if cache_write else 0.0),
    )
    attention.prefill_times(asked, _attention_machine(gpu), efficiency.prefill.vector(), time, bound)
    time += np.where(parts > 1, efficiency.decode.join + efficiency.decode.join_each * parts, 0.0)
    time *= 1.0 + efficiency.gemm.slow * time / (time + efficiency.gemm.tau)
    return time, [attention.BOUNDS[b] for b in bound.tolist()]


def _prompt_splits(gpu: Gpu, o: Operations) -> Float:
    """In how many parts the keys of every prompt are split."""
    sizes = np.array(attention.SPLIT_KEYS)
    columns = sizes[np.searchsorted(sizes[:, 0], o.head_dim), 1]
    blocks = o.batch * o.heads * np.ceil(o.q_len / attention.SPLIT_ROWS)
    parts = np.empty(len(o))
    slots = attention.SPLIT_RESIDENT * gpu.multiprocessors
    attention.prompt_splits(blocks, np.ceil(o.kv_len / columns), slots, parts)
    return parts


def _decode(gpu: Gpu, efficiency: Efficiency, o: Operations, _: bool) -> tuple[Float, list[str]]:
    time, bound = np.empty(len(o)), np.empty(len(o), np.int64)
    batch, queries, keys, heads, kv_heads, head = _columns(
        o, "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"
    )
    _block_sizes(efficiency, head)
    rates, expand = _kept_operands(gpu, efficiency, o)
    attention.decode_times(
        batch,
        queries,
        keys,
        heads,
        kv_heads,
        head,
        o.kept_bytes(),
        expand,
        rates,
        _attention_machine(gpu),
        np.array(BLOCKS[efficiency.attention][1]),
        efficiency.decode.vector(),
        time,
        bound,
    )
    return time, [attention.BOUNDS[b] for b in bound.tolist()]


def _backward(gpu: Gpu, efficiency: Efficiency, o: Operations, _: bool) -> tuple[Float, list[str]]:
    return backward_times(gpu, efficiency, o)


def _collective(
    gpu: Gpu, efficiency: Efficiency, o: Operations, _: bool, *, program: str = ""
) -> tuple[Float, list[str]]:
    """Messages, by NCCL where ``program`` has no all-reduce of its own for them."""
    time, bound = np.empty(len(o)), np.empty(len(o), np.int64)
    code = np.zeros(len(OPS), np.int64)
    for position, op in enumerate(COLLECTIVES):
        code[OPS.index(op)] = position
    link = gpu.link
    machine = np.array(
        [
            link.bandwidth,
            link.network,
            link.network_latency * 1e-12,
            link.per_node,
            link.in_switch,
            gpu.memory_bandwidth,
            collective.LL_MOST.get(gpu.architecture, collective.LL_MOST_ELSE),
            *collective.LL_MOST_NODES,
        ],
        np.float64,
    )
    gpus, size = _columns(o, "gpus", "bytes")
    collective.collective_times(
        code[o.op], gpus, size, machine, collective.TUNER, efficiency.collective.vector(), time, bound
    )
    if (own := efficiency.one_shot_by.get(program)) is not None:
        way = np.where(o.among(Op.ALL_REDUCE), one_shot.ways(gpu, program, own, o.gpus, o.bytes), one_shot.NCCL)
        theirs = way != one_shot.NCCL
        for values, found in zip((time, bound), one_shot.one_shot_times(gpu, own, way, gpus, size), strict=True):
            values[theirs] = found[theirs]
    return time, [collective.BOUNDS[b] for b in bound.tolist()]


def _elementwise(gpu: Gpu, efficiency: Efficiency, o: Operations, _: bool) -> tuple[Float, list[str]]:
    return elementwise_times(gpu, efficiency.elementwise, o)


def _limited(gpu: Gpu, efficiency: Efficiency, o: Operations, seconds: Float, sustained: bool) -> Float:
    """Seconds under the board's power limit.

    Dynamic energy goes with the square of the voltage, which falls about as the clock does: at a share f of the clock
    the dynamic power is f^3 of what it was, and the time 1/f where the clock is what limits the work. A burst is over
    before the limit acts.
    """
    if not (sustained or efficiency.limited):
        return seconds
    room = gpu.power - gpu.idle_power
    dynamic = np.maximum(_dynamic(efficiency, o), 1e-30)
    slowed: Float = seconds / np.minimum(1.0, np.cbrt(room * seconds / dynamic))
    return slowed


def joules_of(gpu: Gpu, efficiency: Efficiency, o: Operations, seconds: Float, held: Hold | None = None) -> Float:
    """Joules of one GPU: idle power, and what the work takes, as far as the board lets it."""
    (flop_j, byte_j), room = _work(efficiency, o), gpu.power - gpu.idle_power
    if held is None:
        return np.asarray(gpu.idle_power * seconds + np.minimum(flop_j + byte_j, room * seconds), np.float64)
    usual_s, room = seconds / held.slower, held.watts - gpu.idle_power
    saved = (flop_j * held.clock**2 + byte_j) / np.maximum(flop_j * held.usual**2 + byte_j, 1e-30)
    found: Float = gpu.idle_power * seconds + np.minimum(flop_j + byte_j, room * usual_s) * saved
    return found


def _dynamic(efficiency: Efficiency, o: Operations) -> Float:
    """Joules of matrix work by width, and of DRAM traffic, at full clock."""
    flop_j, byte_j = _work(efficiency, o)
    return flop_j + byte_j


def _work(efficiency: Efficiency, o: Operations) -> tuple[Float, Float]:
    """The same, one by one."""
    widths = np.where(_as_kept(efficiency, o), Precision.FP8.size, o.element_bytes()) / RESULT_BYTES
    flop_j: Float = flops(o) * efficiency.power.flop * widths
    byte_j: Float = compulsory_bytes(o) * efficiency.power.byte
    return flop_j, byte_j
