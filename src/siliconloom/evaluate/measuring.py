"""``loom measure``: times the GPU at hand and writes a baseline file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from siliconloom import __version__
from siliconloom.arch.errors import LoomError
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.baselines.jobs import load_jobs, parse_dtypes
from siliconloom.baselines.measure import QUICK, Backend, Measurement, Settings, measure, to_table
from siliconloom.baselines.roofline import compulsory_bytes, flops
from siliconloom.baselines.tables import Table, write_table
from siliconloom.baselines.torch_backend import open_backend

SCHEMA = "siliconloom.measurement/1"


def measure_gpu(
    output: Path,
    shapes: list[str],
    dtypes: str,
    *,
    quick: bool,
    burst: bool = False,
    limit_seconds: float = math.inf,
    watcher: Watcher = NOBODY,
    backend: Backend | None = None,
) -> tuple[dict[str, Any], Table]:
    """Time everything, write the baseline file with its provenance, and say what was done, under a versioned schema.

    Nothing is written before all of it was timed, or ``limit_seconds`` are over. ``quick`` is a few shapes in short
    bursts, ``burst`` all of them. ``backend`` is the GPU at hand when left out.
    """
    if not output.name.endswith((".csv", ".csv.gz")):
        raise LoomError(f"{output}: a baseline file is named .csv or .csv.gz")
    wanted = parse_dtypes(dtypes)
    load_jobs(shapes, wanted, quick=quick)  # what is wrong with them is said before what is wrong with the machine
    machine = open_backend() if backend is None else backend
    jobs = load_jobs(shapes, wanted, quick=quick, gpus=machine.gpus)
    settings = QUICK if quick or burst else Settings()
    with watcher.share(f"measuring {machine.device}") as advance:
        found = measure(jobs, machine, settings, advance, limit_seconds=limit_seconds)
    name = output.name.removesuffix(".gz").removesuffix(".csv")
    made = to_table(name, found, machine, settings)
    write_table(made, output)
    return measurement_result(found, made, machine, output), made


def measurement_result(found: Measurement, made: Table, machine: Backend, output: Path) -> dict[str, Any]:
    """What was measured, as plain data."""
    work, moved = flops(made.operations).tolist(), compulsory_bytes(made.operations).tolist()
    return {
        "schema": SCHEMA,
        "version": __version__,
        "device": machine.device,
        "gpu": machine.gpu,
        "software": list(made.provenance.software),
        "method": str(made.provenance.method),
        "file": str(output),
        "rows": [
            {
                **made.operations.row(index),
                "text": made.operations.describe(index),
                "flops": work[index],
                "bytes_moved": moved[index],
                "input_tokens": int(made.input_tokens[index]),
                "model": row.job.model or None,
                "time_us": row.seconds * 1e6,
                "spread": row.spread,
                "error": row.error,
                "power_w": row.power_w,
                "clock_mhz": row.clock_mhz,
                "software": row.software,
            }
            for index, row in enumerate(found.rows)
        ],
        "skipped": [{"operation": str(job), "reason": reason} for job, reason in found.skipped],
    }


__all__ = ["measure_gpu", "measurement_result"]
