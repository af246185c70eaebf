"""Measured times of exactly the operations asked for."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.baselines import tables
from siliconloom.baselines.operations import KERNELS, Operations
from siliconloom.baselines.tables import Method, Table

LEAST_SPREAD = 0.02
"""Two laboratories never agree better than this; half the spread of several is taken, or this."""

Key = tuple[float, ...]


class MeasuredTime(Struct, frozen=True):
    """Median time of an operation over those who measured it, and how far they lie apart, relative."""

    seconds: float
    spread: float
    sources: tuple[str, ...]


def measured(gpu: str, operations: Operations) -> list[MeasuredTime | None]:
    """What the package's tables have of every row on the GPU of that library name; bursts only."""
    asked = _keys(operations)
    wanted = set(asked)
    times: defaultdict[Key, dict[str, float]] = defaultdict(dict)
    for table in _tables(gpu):
        table = table.select(_possible(table.operations, operations))
        for key, time, software in zip(
            _keys(table.operations), table.time_us.tolist(), table.software.tolist(), strict=True
        ):
            if key in wanted:
                times[key][f"{table.name}: {software}" if software else table.name] = time * 1e-6
    found = {key: _agreed(by) for key, by in times.items()}
    return [found.get(key) for key in asked]


def _agreed(by: dict[str, float]) -> MeasuredTime:
    values = sorted(by.values())
    spread = (values[-1] - values[0]) / (values[-1] + values[0])
    return MeasuredTime(median(values), max(spread, LEAST_SPREAD), tuple(sorted(by)))


@cache
def _tables(gpu: str) -> list[Table]:
    found = (t for t in tables.all_tables(gpu=gpu, fit=True) if t.provenance.method is Method.SHORT_BURST)
    return [table.select(table.operations.among(*KERNELS) & _served(table.software)) for table in found]


NOT_SERVED = (" eager", " sdpa flash", " sdpa cudnn")
"""How the software of PyTorch's own norms and attention ends: serving software has other kernels for them."""


def _served(software: NDArray[np.str_]) -> NDArray[np.bool_]:
    """Rows by kernels as serving software runs them."""
    names = software.astype(str)
    found: NDArray[np.bool_] = ~np.logical_or.reduce([np.char.endswith(names, end) for end in NOT_SERVED])
    return found


def _possible(rows: Operations, asked: Operations) -> NDArray[np.bool_]:
    """Rows each of whose numbers occurs somewhere in what is asked: few, and all that are asked among them."""
    mask = np.ones(len(rows), bool)
    for mine, theirs in zip(_columns(rows), _columns(asked), strict=True):
        mask &= np.isin(mine, theirs)
    return mask


def _columns(o: Operations) -> list[NDArray[Any]]:
    columns: list[NDArray[Any]] = [o.op, o.m, o.n, o.k, o.batch, o.q_len, o.kv_len, o.heads, o.kv_heads, o.head_dim]
    columns += [o.causal, o.element_bytes(), o.gpus, o.bytes, o.weights, o.group, o.sparsity, o.cache, o.dealt]
    return [*columns, o.top_k, o.window]


def _keys(o: Operations) -> list[Key]:
    """Equal for equal work: 16-bit formats take the same time."""
    return list(zip(*(c.tolist() for c in _columns(o)), strict=True))
