"""NCCL's collectives where they were measured: between the measured sizes of exactly one GPU, operation and group.

Straight lines between neighbouring sizes in the logarithms of size and time, through the median of those who measured a
size; nothing beyond the measured sizes. Bursts (nccl-tests) are taken where there are any, calls in a running model
where there are none, as those have the launch in them. What does not add does not know its elements' format, so rows
of every format count; sums are those of 16-bit elements. The serving frameworks' own kernels are not NCCL's.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.baselines import tables
from siliconloom.baselines.operations import COLLECTIVES, Op
from siliconloom.baselines.tables import Method, Table

Float = NDArray[np.float64]
ADDS = (Op.ALL_REDUCE, Op.REDUCE_SCATTER)
METHODS = (Method.SHORT_BURST, Method.PROFILER)
"""In the order in which they are preferred."""


class Curve(Struct, frozen=True):
    """Measured sizes of one collective, ascending, and what they took.

    Parameters
    ----------
    size, seconds
        nccl-tests' bytes, and the median over all who measured that size.
    spread
        Of the times of one size, half the range over the middle, in the median over the sizes measured more than once;
        0 where none was.
    sources
        Tables, with the software where they say it.
    """

    size: Float
    seconds: Float
    spread: float
    sources: tuple[str, ...]

    def at(self, size: float) -> float | None:
        """Seconds of ``size`` bytes; None beyond what was measured."""
        if not self.size[0] <= size <= self.size[-1]:
            return None
        return float(np.exp(np.interp(np.log(size), np.log(self.size), np.log(self.seconds))))

    def left_out(self) -> Float:
        """Error of each inner size, relative, when it is interpolated from the others alone."""
        found = np.empty(max(len(self.size) - 2, 0))
        for i in range(1, len(self.size) - 1):
            others = Curve(np.delete(self.size, i), np.delete(self.seconds, i), 0.0, ())
            between = others.at(float(self.size[i]))
            assert between is not None
            found[i - 1] = between / self.seconds[i] - 1.0
        return found


def curve(gpu: str, operation: Op | str, gpus: int) -> Curve | None:
    """What was measured of an operation on ``gpus`` of the GPU of that library name; None where nothing was."""
    return _curves(gpu).get((Op(operation), gpus))


@cache
def _curves(gpu: str) -> dict[tuple[Op, int], Curve]:
    times: defaultdict[tuple[Op, int, Method], defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    sources: defaultdict[tuple[Op, int, Method], set[str]] = defaultdict(set)
    for table in tables.all_tables(gpu=gpu, fit=True):
        if table.provenance.method not in METHODS:
            continue
        rows = _nccl(table)
        o = rows.operations
        for op in COLLECTIVES:
            chosen = rows.select(o.among(op) & ((o.element_bytes() == 2) | (op not in ADDS)))
            for gpus, size, time, software in zip(
                chosen.operations.gpus.tolist(),
                chosen.operations.bytes.tolist(),
                chosen.time_us.tolist(),
                chosen.software.tolist(),
                strict=True,
            ):
                key = op, gpus, table.provenance.method
                times[key][size].append(time * 1e-6)
                sources[key].add(f"{table.name} ({software})" if software else table.name)
    found: dict[tuple[Op, int], Curve] = {}
    for method in METHODS:
        for (op, gpus, how), by in times.items():
            if how is method and (op, gpus) not in found and len(by) > 1:
                found[op, gpus] = _joined(by, sources[op, gpus, how])
    return found


def _nccl(table: Table) -> Table:
    software = table.software.astype(str)
    return table.select(
        table.operations.among(*COLLECTIVES) & (np.char.startswith(software, "NCCL") | (software == ""))
    )


def _joined(by: dict[int, list[float]], sources: set[str]) -> Curve:
    sizes = sorted(by)
    apart = [(max(by[s]) - min(by[s])) / (max(by[s]) + min(by[s])) for s in sizes if len(by[s]) > 1]
    seconds = np.array([np.median(by[s]) for s in sizes])
    return Curve(np.array(sizes, float), seconds, float(np.median(apart)) if apart else 0.0, tuple(sorted(sources)))


__all__ = ["Curve", "curve"]
