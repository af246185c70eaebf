"""How many measured rows that were left out lie inside the bars of 50 and 90 %, and what simpler models say of them.

Families of shapes are left out of the fields and of the bars (`gpu_residuals.training`), and every prediction goes
through `siliconloom.baselines.predict.predict`. Then a whole GPU is left out: it is predicted with the constants of
another architecture, and the bars are those of the others. Two models stand beside: the time of the nearest row of the
table (in the logarithms of its sizes), and the roofline at a constant efficiency, that of the training rows' median.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from benchmarks.gpu_residuals import FEWEST, LIKE, SOURCES, Source, kind_bars, make_fields, training, unseen
from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines.bars import Bars
from siliconloom.baselines.families import split
from siliconloom.baselines.mechanism import mechanism
from siliconloom.baselines.operations import Float, Op
from siliconloom.baselines.predict import Prediction, predict
from siliconloom.baselines.residuals import NO_FIELDS, Fields, coordinates, row_formats
from siliconloom.baselines.tables import Table


@cache
def trained() -> tuple[Fields, Bars]:
    """Fields and bars that have not seen the withheld families."""
    fields, bars, _ = make_fields(training())
    return fields, Bars(bars, kind_bars(unseen(fields)))


def withheld(fields: Fields, bars: Bars) -> Iterator[dict[str, Any]]:
    """Every source's withheld families by kernel and format."""
    for source in SOURCES:
        table = source.rows()
        seen, test = split(table)
        for op in source.ops:
            for format in np.unique(row_formats(table.operations)).tolist():
                mask = table.operations.among(op) & (row_formats(table.operations) == format)
                if min((mask & test).sum(), (mask & seen).sum()) >= FEWEST:
                    yield judged(source, op, format, table.select(mask & seen), table.select(mask & test), fields, bars)


def judged(source: Source, op: Op, format: str, seen: Table, test: Table, fields: Fields, bars: Bars) -> dict[str, Any]:
    """Errors and coverage of one kernel's rows."""
    options = {"sustained": source.sustained, "graph": not source.alone}
    gpu = load_gpu(source.gpu)
    found = predict(gpu, test.operations, software=source.software, fields=fields, bars=bars, **options)
    alone = predict(gpu, test.operations, fields=NO_FIELDS, bars=bars, **options)
    floor = mechanism(gpu, seen.operations).roofline
    efficiency = float(np.median(seen.time_us * 1e-6 / np.maximum(floor, 1e-9)))  # what stays in a cache has no floor
    nearest = coordinates(seen.operations, op)
    asked = coordinates(test.operations, op)
    index = np.array(
        [int(np.argmin(((nearest - point) ** 2).sum(axis=1))) for point in asked[:: max(len(asked) // 1000, 1)]]
    )
    every = test.time_us[:: max(len(asked) // 1000, 1)]
    return {
        "gpu": source.gpu,
        "software": source.software,
        "reference": source.reference,
        "operation": str(op),
        "format": format,
        "rows": len(test),
        "error": _median(found.seconds, test.time_us),
        "mechanism": _median(alone.seconds, test.time_us),
        "nearest_row": float(np.median(np.abs(seen.time_us[index] / every - 1.0))),
        "constant_efficiency": _median(found.roofline * efficiency, test.time_us),
        "q90": float(np.quantile(np.abs(found.seconds * 1e6 / test.time_us - 1.0), 0.9)),
        **covered(found, test.time_us),
    }


def other_gpus(fields: Fields) -> Iterator[dict[str, Any]]:
    """Every measured GPU by another architecture's constants, under bars that come from the other GPUs."""
    listed = unseen(fields)
    for source in SOURCES:
        like = LIKE.get(source.gpu)
        if (
            not source.reference
            or like is None
            or not set(source.ops) <= {Op.GEMM, Op.ATTENTION_PREFILL, Op.ATTENTION_DECODE}
        ):
            continue
        bars = Bars({}, kind_bars(s for s in listed if not s.name.startswith(source.gpu)))
        update = {"architecture": like, "name": "unseen"}
        table = source.rows()
        for op in source.ops:
            rows = table.select(table.operations.among(op) & (row_formats(table.operations) == "16 bit"))
            gpu = load_gpu(source.gpu).model_copy(update=update)
            found = predict(gpu, rows.operations, sustained=source.sustained, bars=bars)
            error = {"error": _median(found.seconds, rows.time_us), "rows": len(rows)}
            yield {"gpu": source.gpu, "like": like, "operation": str(op), **error, **covered(found, rows.time_us)}


def covered(found: Prediction, time_us: Float) -> dict[str, float]:
    """Shares of rows inside both bars."""
    off = np.abs(np.log(time_us * 1e-6 / found.seconds))
    inside = {"inside_50": float((off <= found.error).mean()), "inside_90": float((off <= found.error_90).mean())}
    return inside | {"bar_50": float(np.median(found.error)), "bar_90": float(np.median(found.error_90))}


def _median(seconds: Float, time_us: Float) -> float:
    return float(np.median(np.abs(seconds * 1e6 / time_us - 1.0)))


def print_withheld(rows: list[dict[str, Any]]) -> None:
    """A line for each kernel, and the shares over all rows and over kernels."""
    print(
        f"\n{'left-out families':52s}{'rows':>6s} {'ours':>6s} {'q90':>6s} {'mech.':>6s} {'near':>6s} {'const':>6s}"
        f" {'+-50':>6s} {'+-90':>6s}  in 50  in 90"
    )
    for row in rows:
        name = f"{row['gpu']} {row['operation']} {row['format']} {row['software']}{'' if row['reference'] else ' *'}"
        errors = (row["error"], row["q90"], row["mechanism"], row["nearest_row"], row["constant_efficiency"])
        bars = (row["bar_50"], row["bar_90"])
        print(
            f"{name:52s}{row['rows']:6d} "
            + " ".join(f"{v:6.1%}" for v in (*errors, *bars))
            + f" {row['inside_50']:6.0%} {row['inside_90']:6.0%}"
        )
    weights = np.array([row["rows"] for row in rows])
    for name, by in (("all rows", weights), ("kernels alike", np.ones(len(rows)))):
        inside = [float(np.average([row[key] for row in rows], weights=by)) for key in ("inside_50", "inside_90")]
        print(f"{name:101s} {inside[0]:6.0%} {inside[1]:6.0%}")


def print_gpus(rows: list[dict[str, Any]]) -> None:
    """A line for each kernel of a GPU that was left out."""
    print(
        f"\n{'GPUs left out: constants and bars of others':52s}{'rows':>6s} {'error':>6s} "
        f"{'+-50':>6s} {'+-90':>6s}  in 50  in 90"
    )
    for row in rows:
        name = f"{row['gpu']} {row['operation']}, constants of {row['like']}"
        print(
            f"{name:52s}{row['rows']:6d} {row['error']:6.1%} {row['bar_50']:6.1%} {row['bar_90']:6.1%} "
            f"{row['inside_50']:6.0%} {row['inside_90']:6.0%}"
        )


if __name__ == "__main__":
    found_fields, found_bars = trained()
    print_withheld(list(withheld(found_fields, found_bars)))
    print_gpus(list(other_gpus(found_fields)))
