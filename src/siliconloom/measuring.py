"""``loom measure``: times the GPU at hand and writes a baseline file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from siliconloom import __version__
from siliconloom.arch.errors import LoomError
from siliconloom.arch.quantity import format_count, format_si
from siliconloom.baselines.jobs import load_jobs, parse_dtypes
from siliconloom.baselines.measure import QUICK, Backend, Measurement, Settings, measure, to_table
from siliconloom.baselines.roofline import compulsory_bytes, flops
from siliconloom.baselines.tables import Table, write_table
from siliconloom.baselines.torch_backend import open_backend
from siliconloom.output import check_writable
from siliconloom.tables import bold, progress_bar, table

SCHEMA = "siliconloom.measurement/1"
SHOWN_SKIPPED = 5


def measure_gpu(
    output: Path, shapes: list[str], dtypes: str, *, quick: bool, progress: bool, backend: Backend | None = None
) -> tuple[dict[str, Any], Table]:
    """Time everything, write the baseline file with its provenance, and say what was done, under a versioned schema.

    Nothing is written unless all of it was timed. ``backend`` is the GPU at hand when left out.
    """
    if not output.name.endswith((".csv", ".csv.gz")):
        raise LoomError(f"{output}: a baseline file is named .csv or .csv.gz")
    check_writable(output)
    wanted = parse_dtypes(dtypes)
    load_jobs(shapes, wanted, quick=quick)  # what is wrong with them is said before what is wrong with the machine
    machine = open_backend() if backend is None else backend
    jobs = load_jobs(shapes, wanted, quick=quick, gpus=machine.gpus)
    settings = QUICK if quick else Settings()
    with progress_bar(progress, f"measuring {machine.device}") as advance:
        found = measure(jobs, machine, settings, advance)
    name = output.name.removesuffix(".gz").removesuffix(".csv")
    made = to_table(name, found, machine, settings)
    write_table(made, output)
    return measurement_result(found, made, machine, output), made


def measurement_result(found: Measurement, made: Table, machine: Backend, output: Path) -> dict[str, Any]:
    """What was measured, as plain data."""
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
                **made.operations.row(index), "model": row.job.model or None, "time_us": row.seconds * 1e6,
                "spread": row.spread, "error": row.error, "power_w": row.power_w, "clock_mhz": row.clock_mhz,
                "software": row.software,
            }
            for index, row in enumerate(found.rows)
        ],
        "skipped": [{"operation": str(job), "reason": reason} for job, reason in found.skipped],
    }  # fmt: skip


def measurement_tables(result: dict[str, Any], made: Table, out: Console) -> None:
    """Print the times, with the rates that they come to."""
    out.print(f"{bold(result['device'])} ({result['gpu']}), {', '.join(result['software'])}; {result['method']}")
    work, moved = flops(made.operations).tolist(), compulsory_bytes(made.operations).tolist()
    rows = []
    for index, row in enumerate(result["rows"]):
        seconds = row["time_us"] / 1e6
        model = f" {row['model']}, {made.input_tokens[index]} tokens" if row["model"] else ""
        rows.append((
            made.operations.describe(index) + model, format_si(seconds, "s"),
            format_si(work[index] / seconds, "FLOP/s") if work[index] else "",
            format_si(moved[index] / seconds, "B/s") if moved[index] else "",
            "" if row["power_w"] is None else f"{row['power_w']:.0f} W", row["software"],
        ))  # fmt: skip
    heads = [("operation", "left"), ("time", "right"), ("rate", "right"), ("memory", "right"), ("power", "right")]
    out.print(table("measured", [*heads, ("software", "left")], rows))
    skipped = result["skipped"]
    for entry in skipped[:SHOWN_SKIPPED]:
        out.print(f"left out: {entry['operation']}: {entry['reason']}", style="yellow")
    if len(skipped) > SHOWN_SKIPPED:
        out.print(f"and {format_count(len(skipped) - SHOWN_SKIPPED, 'more operation')} (all in --json)", style="yellow")
    out.print(f"written: {result['file']}, {format_count(len(rows), 'row')}, with its provenance beside it")


__all__ = ["measure_gpu", "measurement_result", "measurement_tables"]
