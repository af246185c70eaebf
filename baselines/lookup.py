"""Measured times of exactly the operations asked for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.baselines import tables
from siliconloom.baselines.operations import KERNELS, Operations
from siliconloom.baselines.tables import Method

LEAST_SPREAD = 0.02
"""Two laboratories never agree better than this; half the spread of several is taken, or this."""

Key = tuple[float, ...]


@dataclass(frozen=True)
class Measured:
    """Median time of an operation over those who measured it, and how far they lie apart, relative."""

    seconds: float
    spread: float
    sources: tuple[str, ...]


def measured(gpu: str, operations: Operations) -> list[Measured | None]:
    """What the package's tables have of every row on the GPU of that library name; bursts only."""
    known = _index(gpu)
    return [known.get(key) for key in _keys(operations)]


@cache
def _index(gpu: str) -> dict[Key, Measured]:
    times: defaultdict[Key, dict[str, float]] = defaultdict(dict)
    for table in tables.all_tables(gpu=gpu, fit=True):
        if table.provenance.method is not Method.SHORT_BURST:
            continue
        table = table.select(table.operations.among(*KERNELS))
        for key, time, software in zip(
            _keys(table.operations), table.time_us.tolist(), table.software.tolist(), strict=True
        ):
            times[key][f"{table.name}: {software}" if software else table.name] = time * 1e-6
    found = {}
    for key, by in times.items():
        values = sorted(by.values())
        spread = (values[-1] - values[0]) / (values[-1] + values[0])
        found[key] = Measured(float(np.median(values)), max(spread, LEAST_SPREAD), tuple(sorted(by)))
    return found


def _keys(o: Operations) -> list[Key]:
    """Equal for equal work: 16-bit formats take the same time."""
    columns: list[NDArray[Any]] = [o.op, o.m, o.n, o.k, o.batch, o.q_len, o.kv_len, o.heads, o.kv_heads, o.head_dim]
    columns += [o.causal, o.element_bytes(), o.gpus, o.bytes]
    return list(zip(*(c.tolist() for c in columns), strict=True))
