"""``loom gpu``: predicted times of operations on a GPU, and what the GPU is."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom import __version__
from siliconloom.arch.budget import require_memory
from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.arch.gpu import Gpu
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.baselines.model import measured_note
from siliconloom.baselines.operations import OPS, Operations
from siliconloom.baselines.predict import Prediction, predict
from siliconloom.baselines.residuals import packaged, unaligned

SCHEMA = "siliconloom.gpu/1"
ROW_BYTES = 800
"""That an operation takes from its prediction to its line of JSON."""
OTHER = "other"
"""Software that nobody measured: the default's kernels, with bars of how far programs are apart."""
DIGITS = 7
"""Significant digits of times and energies in the JSON."""


def gpu_result(
    gpu: Gpu, operations: Operations, *, sustained: bool = False, cache_write: bool = True, software: str = ""
) -> dict[str, Any]:
    """Predicted rows under their versioned schema; times in microseconds.

    Raises
    ------
    LoomError
        For ``software`` whose kernels nobody measured, unless it is `OTHER`.
    """
    known = packaged().software
    if software not in ("", OTHER, *known):
        near = nearest_name(software, [*known, OTHER])
        hint = f"did you mean '{near}'?" if near else f"measured are {', '.join(known)}; any else is '{OTHER}'"
        raise LoomError(f"--software: kernels of '{software}' are in no table; {hint}")
    require_memory(f"{len(operations):,} operations", len(operations) * ROW_BYTES, "fewer of them need less")
    found = predict(gpu, operations, sustained=sustained, cache_write=cache_write, software=software)
    columns = zip(
        _digits(found.seconds * 1e6),
        found.bound,
        _digits(found.roofline * 1e6),
        _digits(found.joules),
        np.expm1(found.error).tolist(),
        np.expm1(found.error_90).tolist(),
        found.nearby.tolist(),
        strict=True,
    )
    return {
        "schema": SCHEMA,
        "version": __version__,
        "gpu": gpu.name,
        "basis": load_efficiency(gpu.architecture).basis,
        "clock": "sustained" if sustained else "burst",
        **({"software": software} if software else {}),
        "measured": measured_note(gpu, *_nearby(operations, found), software) + _unaligned_note(operations),
        "rows": [
            {
                "time_us": time,
                "bound": bound,
                "roofline_us": floor,
                "energy_j": joules,
                "error": error,
                "error_90": error_90,
                "nearby": nearby,
            }
            for time, bound, floor, joules, error, error_90, nearby in columns
        ],
    }


def _nearby(operations: Operations, found: Prediction) -> tuple[float, list[str]]:
    """Share of the time that is of kernels measured near by, and the kinds of the others, sorted."""
    kinds = sorted({str(OPS[code]) for code in np.unique(operations.op[~found.nearby]).tolist()})
    return float(found.seconds[found.nearby].sum() / found.seconds.sum()), kinds


def _unaligned_note(operations: Operations) -> str:
    """What is said of products whose rows do not begin at 16 bytes; nothing where there are none."""
    count = int(unaligned(operations).sum())
    if not count:
        return ""
    rows = "a product's rows begin" if count == 1 else f"rows of {count} products begin"
    return f"; {rows} off 16 bytes: as if padded, and 3 to 8 times as long where a library does not"


def gpu_json(result: dict[str, Any]) -> str:
    """The result as JSON, one line a row: lists of 100,000 operations are read and written often."""
    head = json.dumps({**result, "rows": []}, indent=2, allow_nan=False)
    lines = [
        f'    {{"time_us": {row["time_us"]!r}, "bound": "{row["bound"]}", "roofline_us": {row["roofline_us"]!r}, '
        f'"energy_j": {row["energy_j"]!r}, "error": {row["error"]!r}, '
        f'"error_90": {row["error_90"]!r}, "nearby": {"true" if row["nearby"] else "false"}}}'
        for row in result["rows"]
    ]
    return head.replace('"rows": []', '"rows": [\n' + ",\n".join(lines) + "\n  ]") + "\n"


def _digits(values: NDArray[np.float64]) -> list[float]:
    """Rounded to `DIGITS` significant ones: shorter to write, and more than a prediction has."""
    scale = 10.0 ** (DIGITS - 1 - np.floor(np.log10(np.maximum(np.abs(values), 1e-300))))
    found: list[float] = (np.round(values * scale) / scale).tolist()
    return found


def gpu_summary(gpu: Gpu) -> dict[str, Any]:
    """What the description says, with the rates multiplied out."""
    return {
        "schema": "siliconloom.evaluate.gpu-description/1",
        "name": gpu.name,
        "product": gpu.product,
        "source": gpu.source,
        "architecture": gpu.architecture,
        "measured": load_efficiency(gpu.architecture).measured,
        "basis": load_efficiency(gpu.architecture).basis,
        "peak_flops": {p: gpu.peak_flops(p) for p in gpu.rates},
        "memory_bandwidth": gpu.memory_bandwidth,
        "memory_bytes": gpu.memory.capacity,
        "l2_bytes": gpu.l2.capacity,
        "link_bandwidth": gpu.link_bandwidth,
        "gpus_per_node": gpu.link.per_node,
        "adding_switch": gpu.link.in_switch,
        "network_bandwidth": float(gpu.link.network),
        "network_latency_s": gpu.link.network_latency * 1e-12,
        "exponentials_per_second": float(gpu.exponentials * gpu.multiprocessors * gpu.clock),
        "vector_flops": {p: float(rate * gpu.multiprocessors * gpu.clock) for p, rate in gpu.vector.items()},
        **({"integer_per_second": float(gpu.integer * gpu.multiprocessors * gpu.clock)} if gpu.integer else {}),
        **({"sparse_rate": gpu.sparse} if gpu.sparse else {}),
        "power_w": gpu.power,
        "idle_power_w": gpu.idle_power,
        **({"power_cap_w": gpu.power_cap} if gpu.power_cap is not None else {}),
        **({"locked_clock_hz": gpu.locked_clock} if gpu.locked_clock is not None else {}),
        "recorded": recorded(gpu),
    }


def recorded(gpu: Gpu) -> dict[str, Any]:
    """Facts of the description that no prediction uses; a system's topology says what switches its links."""
    return {
        "memory.kind": gpu.memory.kind,
        "link.kind": gpu.link.kind,
        "link.switched": gpu.link.switched,
        "latencies": {
            "first_level": gpu.first_level.model_dump(exclude_none=True),
            "l2": gpu.l2.model_dump(exclude={"capacity"}, exclude_none=True),
            "memory": gpu.memory.latency_cycles,
        },
    }
