"""What ``loom run`` has found, as plain data, and its tensors as a file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import asdict

from siliconloom.arch.errors import LoomError
from siliconloom.arch.files import write_file
from siliconloom.arch.tile import NpuTile
from siliconloom.execution.run import ModelRun

SCHEMA = "siliconloom.values/1"
SCALES = "static, one to a result: the largest magnitude that float64 has seen is 127; weights by column of results"
NO_SCALES = "none: numbers keep their size; weights of one byte have a power of two by column of results"


def run_record(
    made: ModelRun, *, weights: str, base: float, epsilon: float, rtl: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A run under its versioned schema; ``weights`` says where they are from, ``rtl`` what the RTL has shown."""
    mapped, graph = made.mapped, made.mapped.graph
    integers = not isinstance(mapped.chip.tile, NpuTile) or mapped.chip.tile.circuit_format.is_integer
    return {
        "schema": SCHEMA,
        "chip": mapped.chip.name,
        "chip_digest": mapped.chip.digest,
        "workload": graph.name,
        "phase": graph.phase.value,
        "batch": graph.batch,
        "tokens": made.tokens.tolist(),
        "weights": weights,
        "scales": SCALES if integers else NO_SCALES,
        "rotary_base": base,
        "epsilon": epsilon,
        "notes": [*graph.notes, *mapped.notes],
        "operators": [asdict(row) for row in made.rows],
        "differing": made.differing,
        "next_tokens": made.next_tokens,
        "float64_next_tokens": made.real_tokens,
        "seconds": made.seconds,
        "rtl": None if rtl is None else dict(rtl),
    }


def write_tensors(path: str, made: ModelRun) -> None:
    """Write every result as a NumPy archive: ``golden/OPERATOR/EXECUTION`` and ``float64/...``, in real values.

    Raises
    ------
    LoomError
        When it cannot be written.
    """
    file = io.BytesIO()
    try:
        np.savez(file, tokens=made.tokens, **made.tensors)  # type: ignore[arg-type]
    except MemoryError:
        raise LoomError(f"{path}: there is not enough memory for so many tensors") from None
    write_file(path, file.getvalue())


__all__ = ["SCHEMA", "run_record", "write_tensors"]
