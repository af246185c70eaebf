"""Predicted time and energy of operations on a GPU, row by row: the mechanism, and what measured rows say beside it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch.gpu import Gpu
from siliconloom.baselines.bars import Bars, Relation, packaged_bars, row_bars
from siliconloom.baselines.efficiency import Efficiency, load_efficiency
from siliconloom.baselines.held import library_gpu
from siliconloom.baselines.mechanism import LAUNCH_ALONE, Mechanism, is_power, joules_of, mechanism
from siliconloom.baselines.operations import (
    ATTENTION,
    COLLECTIVES,
    ELEMENTWISE,
    OPS,
    PRECISIONS,
    Bool,
    Float,
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

PACKED_ERROR = {"mma": 0.2, "wgmma": 0.6}
"""Of products with packed or sparse weights, and of decode with a cache in fewer bits, by kernel library; no such
kernel is among the measured tables. On Hopper the largest that the card ``marlin`` has: ours are 24 to 56 % above the
speedups of six rows of one machine. On others a guess, three times the error of dense products; the two rows of the
card are within 2 %."""


GROUPED_BY = "torch"
"""Program whose grouped products were measured."""


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
    joules = joules_of(gpu, efficiency, operations, seconds, found.held)
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
    return seconds, joules_of(gpu, load_efficiency(gpu.architecture), operations, seconds, found.held)


def _corrected(
    fields: Fields, gpu: Gpu, operations: Operations, found: Mechanism, software: str = ""
) -> tuple[Correction, Float]:
    """What measured rows near by are off the mechanism, and seconds with that.

    A changed description keeps them, however far it is changed: two of one name differ by the mechanism alone, and more
    bandwidth is never slower.
    """
    known = corrections(fields, gpu.name if _same_kernels(gpu) else "", operations, software)
    return known, np.maximum(found.seconds * np.exp(known.log * found.share), found.roofline)


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
    """Kernels without residuals of their own that constants were fitted to: experts, backward, attention by program."""
    by_program = software in efficiency.attention_by
    back = o.among(Op.ATTENTION_BACKWARD) & (efficiency.backward is not None)
    theirs = program_of(Op.GROUPED_GEMM, software) in ("", GROUPED_BY)
    experts = o.among(Op.GROUPED_GEMM) & (efficiency.grouped is not None) & theirs
    return back | experts | (o.among(*ATTENTION) & by_program & ~o.cached())


def _unmeasured(gpu: Gpu, op: Op, format: str, software: str, fields: Fields) -> Relation:
    """What the prediction of a kernel rests on that has no rows of this GPU by this software."""
    if software and (gpu.name, op, format) in fields.reference:
        return Relation.LABORATORY
    if (gpu.name, op, format) in fields.alone:
        return Relation.FITTED
    theirs = (fields.relatives.get(gpu.name, ""), op, format)
    return Relation.CHIP if theirs in fields.reference or theirs in fields.alone else Relation.BORROWED


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


def _same_kernels(gpu: Gpu) -> bool:
    """Whether the library's GPU of that name, if there is one, has the kernels of this description."""
    theirs = library_gpu(gpu.name)
    return theirs is None or theirs.architecture == gpu.architecture


def _comparable(gpu: Gpu) -> bool:
    """Whether bars of changed descriptions hold for this one: its rates are like those of the GPU of its name."""
    theirs = library_gpu(gpu.name)
    if theirs is None:
        return True  # there are no rows under that name
    if not _same_kernels(gpu):
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
    return library_gpu(gpu.name) is not None and _described(gpu.name) != _timed(gpu)


@cache
def _described(name: str) -> dict[str, Any] | None:
    """What `_timed` says of the library's GPU of that name."""
    theirs = library_gpu(name)
    return None if theirs is None else _timed(theirs)


def _widened(efficiency: Efficiency, o: Operations, bars: Float) -> tuple[Float, Float]:
    """Bars of 50 and 90 %; those of kernels that no table has are at least a stated guess, as wide in proportion."""
    whole = o.dtype == PRECISIONS.index(Precision.INT4)  # units for it are measured in no table
    stored = o.packed() | o.sparse() | o.reads_cache() | whole
    least = np.where(stored, PACKED_ERROR[efficiency.kernels], 0.0)
    wider = np.maximum(1.0, least / bars[:, 0])
    return bars[:, 0] * wider, bars[:, 1] * wider
