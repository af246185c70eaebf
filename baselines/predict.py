"""Predicted time and energy of operations on a GPU, row by row: a mechanism, and what measured rows say beside it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.gpu import Gpu, load_gpu
from siliconloom.baselines import attention, collective, gemm
from siliconloom.baselines.attention_backward import backward_times
from siliconloom.baselines.bars import Bars, Relation, packaged_bars, row_bars
from siliconloom.baselines.dequantization import expansion_cycles, unpacking_cycles
from siliconloom.baselines.efficiency import Efficiency, load_efficiency
from siliconloom.baselines.elementwise import elementwise_times
from siliconloom.baselines.operations import (
    ATTENTION,
    CACHES,
    COLLECTIVES,
    ELEMENTWISE,
    KEPT,
    KERNELS,
    OPS,
    PRECISIONS,
    CacheStored,
    Op,
    Operations,
    Precision,
)
from siliconloom.baselines.residuals import (
    Correction,
    Fields,
    corrections,
    measured_kind,
    packaged,
    program_of,
    row_formats,
    unaligned,
)
from siliconloom.baselines.roofline import compulsory_bytes, flops, least_seconds

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

BLOCKS = {
    "flash-attention-2": (((64, 128, 128), (128, 128, 64), (256, 64, 64)), (64.0, 128.0, 2.0, 0.0), False),
    "flash-attention-3": (((96, 192, 128), (128, 128, 128), (256, 128, 80)), (64.0, 128.0, 1.0, 1.0), True),
}
"""Of each kernel library: queries and keys of a block by head size at most (head, rows, columns); in decode rows and
keys of a block, blocks resident on a multiprocessor, whether ungrouped heads are split; whether heads are packed."""
IN_FP8 = ("flash-attention-3",)
"""Kernel libraries that multiply keys and values of eight bits as they are, with queries rounded to as many (Shah et
al., 2024, section 3.3)."""
MOST_HEAD = 256
ROUNDED = ("torch",)
"""Programs whose 8-bit products were timed on activations that are rounded already."""
WRITERS = 512.0
"""Threads of a block that writes a token's keys and values."""
PACKED_ERROR = {"mma": 0.2, "wgmma": 0.6}
"""Of products with packed or sparse weights, and of decode with a cache in fewer bits, by kernel library; no such
kernel is among the measured tables. On Hopper the largest that the card ``marlin`` has: ours are 24 to 56 % above the
speedups of six rows of one machine. On others a guess, three times the error of dense products; the two rows of the
card are within 2 %."""
RESULT_BYTES = 2.0
"""Results of 8-bit and 4-bit products are 16-bit."""


class Prediction(Struct, frozen=True):
    """Columns as long as the operations.

    Parameters
    ----------
    seconds, roofline
        Predicted time, and the time below which the machine cannot be.
    joules
        Of one GPU, its idle power included.
    bound
        What limits each row: compute, l2, memory, exponentials, launch, latency, link, network.
    error, error_90
        Relative bars that hold half, and 90 %, of measurements that nothing of the prediction has seen.
    nearby
        Rows whose kernel was measured on this GPU at sizes near by; of others the mechanism says the time alone.
    """

    seconds: Float
    roofline: Float
    joules: Float
    bound: list[str]
    error: Float
    error_90: Float
    nearby: Bool


def predict(
    gpu: Gpu,
    operations: Operations,
    *,
    sustained: bool = False,
    cache_write: bool = True,
    graph: bool = True,
    quantized: bool = False,
    software: str = "",
    fields: Fields | None = None,
    bars: Bars | None = None,
) -> Prediction:
    """Predict every row: the mechanism's time, times what rows that were measured near by are off it.

    Parameters
    ----------
    sustained
        As in a run of seconds, where the board's power limit holds the clock down; otherwise as in a burst of
        milliseconds, as micro-benchmarks measure.
    cache_write
        Prefill's attention writes its keys and values to the cache, as in serving.
    graph
        Kernels are launched from a captured graph; otherwise each is launched by itself.
    quantized
        Activations of 8-bit products come scaled and rounded from the kernel before, as in serving; otherwise the
        product's time has that in it, as micro-benchmarks measure.
    software
        Program whose kernels run; by default the one that the constants were fitted to.
    fields, bars
        Residuals and bars of one's own in place of the package's; `NO_FIELDS` is the mechanism alone.

    Raises
    ------
    LoomError
        For a precision that the GPU has no units for, or heads larger than the kernels'.
    """
    efficiency = load_efficiency(gpu.architecture)
    fields, bars = fields or packaged(), bars or packaged_bars()
    asked = {"sustained": sustained, "cache_write": cache_write, "quantized": quantized}
    found = mechanism(gpu, operations, **asked, software=software)
    known, seconds = _corrected(fields, gpu, operations, found, software)
    joules = _joules(gpu, efficiency, operations, seconds)
    relation = _relations(gpu, efficiency, operations, known, software, fields)
    wide = row_bars(bars, fields, gpu.name, operations, seconds, known.octaves, relation, software)
    between = known.near & operations.among(Op.ATTENTION_DECODE) & ~is_power(operations.batch)
    if between.any():
        apart = _off_straight(gpu, operations.select(between), seconds[between], fields, software, sustained=sustained)
        wide[between] = np.maximum(wide[between], apart[:, np.newaxis] * np.array([0.5, 1.0]))
    error, error_90 = _widened(efficiency, operations, wide)
    if not graph:
        seconds = seconds + LAUNCH_ALONE
    nearby = known.near & (relation == Relation.MEASURED)
    return Prediction(seconds, found.roofline, joules, found.bound, error, error_90, nearby)


def predict_times(
    gpu: Gpu, operations: Operations, *, sustained: bool = False, cache_write: bool = True
) -> tuple[Float, Float]:
    """Seconds and joules as `predict` has them of kernels of inference (``quantized``), without their bars."""
    found = mechanism(gpu, operations, sustained=sustained, cache_write=cache_write, quantized=True)
    seconds = _corrected(packaged(), gpu, operations, found)[1]
    return seconds, _joules(gpu, load_efficiency(gpu.architecture), operations, seconds)


def _corrected(
    fields: Fields, gpu: Gpu, operations: Operations, found: Mechanism, software: str = ""
) -> tuple[Correction, Float]:
    """What measured rows near by are off the mechanism, and seconds with that."""
    known = corrections(fields, gpu.name if _comparable(gpu) else "", operations, software)
    return known, np.maximum(found.seconds * np.exp(known.log * found.share), found.roofline)


class Mechanism(Struct, frozen=True):
    """Times by the constants alone; ``share`` of a row's time is that of the kernel that tables are about."""

    seconds: Float
    roofline: Float
    bound: list[str]
    share: Float


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
    seconds, bound = np.zeros(len(operations)), np.full(len(operations), "", dtype=object)
    share = np.ones(len(operations))
    rounded = program_of(Op.GEMM, software) in ROUNDED
    parts: tuple[tuple[Bool, Any, bool], ...] = (
        (operations.among(Op.GEMM), _gemm, not (quantized or rounded)),
        (operations.among(Op.ATTENTION_PREFILL), _prefill, cache_write),
        (operations.among(Op.ATTENTION_DECODE), _decode, False),
        (operations.among(Op.ATTENTION_BACKWARD), _backward, False),
        (operations.among(*COLLECTIVES), _collective, False),
        (operations.among(*ELEMENTWISE), _elementwise, False),
    )
    for mask, model, more in parts:
        if mask.any():
            seconds[mask], bound[mask] = model(gpu, efficiency, operations.select(mask), more)
    if quantized and not rounded:  # a measured time holds more than the product, which is not in this one
        products = operations.among(Op.GEMM)
        alone = seconds[products]
        share[products] = alone / (alone + _scaling(gpu, efficiency, operations.select(products)))
    floor = least_seconds(operations, gpu)
    seconds = _limited(gpu, efficiency, operations, np.maximum(seconds, floor), sustained)
    return Mechanism(seconds, floor, bound.tolist(), share)


def _relations(
    gpu: Gpu, efficiency: Efficiency, o: Operations, known: Correction, software: str, fields: Fields
) -> NDArray[np.int64]:
    """What the prediction of every row rests on, a `Relation`."""
    fitted = Relation.FITTED if efficiency.measured else Relation.BORROWED
    if not _comparable(gpu):
        return np.full(len(o), Relation.BORROWED, np.int64)
    found = np.full(len(o), fitted, np.int64)
    usual = o.among(*COLLECTIVES) | measured_kind(o)
    measured = np.isfinite(known.octaves)
    if efficiency.measured:
        found[~usual & ~_fitted_kind(efficiency, o, software)] = Relation.BORROWED  # nobody measured a kernel like it
        others = usual & ~measured & ~o.among(*COLLECTIVES)
        formats = row_formats(o)
        for op, format in {
            (OPS[c], str(f)) for c, f in zip(o.op[others].tolist(), formats[others].tolist(), strict=True)
        }:
            rows = others & o.among(op) & (formats == format)
            if op in ELEMENTWISE and efficiency.elementwise.kept:
                found[rows] = Relation.CHIP if gpu.name in fields.relatives else Relation.FITTED
            else:
                found[rows] = _unmeasured(gpu, op, format, software, fields)
        found[o.among(*COLLECTIVES) & (o.gpus > gpu.link.per_node)] = Relation.LABORATORY
    measured &= ~(unaligned(o) & (efficiency.kernels == "wgmma"))  # other kernels, which no field is of
    found[unaligned(o) & (efficiency.kernels == "wgmma")] = Relation.BORROWED
    found[measured] = np.where(known.own[measured], Relation.MEASURED, Relation.CHIP)
    if _described(gpu.name) != _timed(gpu):  # another name's, too
        found[found < Relation.CHIP] = Relation.CHIP
    return found


def _fitted_kind(efficiency: Efficiency, o: Operations, software: str) -> Bool:
    """Attention without residuals of its own to whose kernels constants were fitted: every mask, and backward."""
    by_program = software in efficiency.attention_by
    back = o.among(Op.ATTENTION_BACKWARD) & (efficiency.backward is not None)
    return back | (o.among(*ATTENTION) & by_program & ~o.cached())


def _unmeasured(gpu: Gpu, op: Op, format: str, software: str, fields: Fields) -> Relation:
    """What the prediction of a kernel rests on that has no rows of this GPU by this software."""
    if software and (gpu.name, op, format) in fields.reference:
        return Relation.LABORATORY
    if (gpu.name, op, format) in fields.alone:
        return Relation.FITTED
    theirs = (fields.relatives.get(gpu.name, ""), op, format)
    return Relation.CHIP if theirs in fields.reference or theirs in fields.alone else Relation.BORROWED


def is_power(sizes: NDArray[np.int64]) -> Bool:
    """Which sizes are powers of two."""
    found: Bool = (sizes & (sizes - 1)) == 0
    return found


def _off_straight(gpu: Gpu, o: Operations, seconds: Float, fields: Fields, software: str, *, sustained: bool) -> Float:
    """How far next tokens' attention is from a straight line between the batches that tables have, in logarithms.

    Tables have powers of two only. Between them waves of blocks are the mechanism's word alone, and no row that was
    left out tests it: a bar is at least as wide as the two ways to read between them are apart, and half of that.
    """
    low = 2 ** np.floor(np.log2(o.batch)).astype(np.int64)
    ends = []
    for batch in (low, 2 * low):
        there = replace(o, batch=batch)
        found = mechanism(gpu, there, sustained=sustained, software=software)
        ends.append(np.log(_corrected(fields, gpu, there, found, software)[1]))
    share = np.log2(o.batch / low)
    straight: Float = np.abs(np.log(seconds) - (ends[0] * (1 - share) + ends[1] * share))
    return straight


ALIKE = 2.0
"""Times a rate of the library's GPU up to which a changed description is like another GPU of that architecture."""


def _comparable(gpu: Gpu) -> bool:
    """Whether rows of the library's GPU of that name say anything of this description, which may have been changed."""
    theirs = _library(gpu.name)
    if theirs is None:
        return True  # there are no rows under that name
    if theirs.architecture != gpu.architecture:
        return False
    pairs = [
        (theirs.multiprocessors, gpu.multiprocessors),
        (theirs.clock, gpu.clock),
        (theirs.memory_bandwidth, gpu.memory_bandwidth),
        *((rate, gpu.rates[name]) for name, rate in theirs.rates.items() if name in gpu.rates),
    ]
    return all(1 / ALIKE <= mine / library <= ALIKE for library, mine in pairs)


def _timed(gpu: Gpu) -> dict[str, Any]:
    """Parts of a description that the times of one GPU's kernels depend on."""
    whole = gpu.model_dump(exclude={"source", "product", "link", "memory"})
    return whole | {"bandwidth": gpu.memory_bandwidth}


def is_changed(gpu: Gpu) -> bool:
    """Whether a description under the name of one of the library says something else than that one."""
    return _library(gpu.name) is not None and _described(gpu.name) != _timed(gpu)


@cache
def _library(name: str) -> Gpu | None:
    """The library's GPU of that name, where there is one."""
    try:
        return load_gpu(name)
    except LoomError:
        return None


@cache
def _described(name: str) -> dict[str, Any] | None:
    """What `_timed` says of the library's GPU of that name."""
    theirs = _library(name)
    return None if theirs is None else _timed(theirs)


def _widened(efficiency: Efficiency, o: Operations, bars: Float) -> tuple[Float, Float]:
    """Bars of 50 and 90 %; those of kernels that no table has are at least a stated guess, as wide in proportion."""
    stored = o.packed() | o.sparse() | o.reads_cache()
    least = np.where(stored, PACKED_ERROR[efficiency.kernels], 0.0)
    wider = np.maximum(1.0, least / bars[:, 0])
    return bars[:, 0] * wider, bars[:, 1] * wider


def predict_with(
    gpu: Gpu, efficiency: Efficiency, products: Operations, *, sustained: bool = False
) -> tuple[Float, Float]:
    """Seconds and joules of matrix products with constants of one's own, for fitting them."""
    seconds = _limited(gpu, efficiency, products, _gemm(gpu, efficiency, products, True)[0], sustained)
    return seconds, _joules(gpu, efficiency, products, seconds)


LAUNCH_ALONE = 3e-6
"""Seconds between kernels that the host launches one by one and keeps ahead of (CUDA driver, stream order)."""


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


def _scaling(gpu: Gpu, efficiency: Efficiency, o: Operations) -> Float:
    """Seconds in which activations of 8-bit products are scaled and rounded; none for wider ones."""
    element, fitted = o.element_bytes(), efficiency.gemm
    moved = o.batch * o.m * o.k * (RESULT_BYTES + element)
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
    parts, causal = np.ones(len(o)), o.causal
    if efficiency.splits:
        parts = _prompt_splits(gpu, o)
        cut = parts > 1
        seen = keys - np.where(causal, queries / 2, 0.0)  # of each query, in the mean
        batch, keys, causal = batch * parts, np.where(cut, np.maximum(seen / parts, 1.0), keys), causal & ~cut
        rows = np.where(cut, attention.SPLIT_ROWS, rows)
    asked = attention.Prefills(
        batch,
        queries,
        keys,
        heads,
        kv_heads,
        head,
        causal,
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
    return backward_times(gpu, efficiency, o), ["compute"] * len(o)


def _collective(gpu: Gpu, efficiency: Efficiency, o: Operations, _: bool) -> tuple[Float, list[str]]:
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


def _joules(gpu: Gpu, efficiency: Efficiency, o: Operations, seconds: Float) -> Float:
    """Joules of one GPU: idle power, and what the work takes, as far as the board lets it."""
    room = gpu.power - gpu.idle_power
    found: Float = gpu.idle_power * seconds + np.minimum(_dynamic(efficiency, o), room * seconds)
    return found


def _dynamic(efficiency: Efficiency, o: Operations) -> Float:
    """Joules of matrix work by width, and of DRAM traffic, at full clock."""
    widths = np.where(_as_kept(efficiency, o), Precision.FP8.size, o.element_bytes()) / RESULT_BYTES
    found: Float = flops(o) * efficiency.power.flop * widths + compulsory_bytes(o) * efficiency.power.byte
    return found
