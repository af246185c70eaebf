"""How far predictions are from measurements that nothing of them has seen: bars that hold half of those, and 90 %.

A bar is a quantile of the absolute logarithm of measured over predicted time, found by leaving rows out
(`python -m benchmarks.gpu_residuals`): families of shapes, single rows and regions of them where the GPU was measured
(by time and by distance from the nearest measured row), a whole GPU, a whole architecture, or a laboratory elsewhere.
A time is said to be within e^-bar and e^bar times the predicted one; results have `relative` bars.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.baselines.operations import ATTENTION, COLLECTIVES, ELEMENTWISE, PRODUCTS, Float, Op, Operations
from siliconloom.baselines.residuals import FOLDER, NEARBY, SIXTEEN_BITS, Fields, program_of, row_formats

FILE = FOLDER / "bars.json"
DECADES = np.array([1e-5, 1e-4, 1e-3])
"""Seconds of a predicted time that part its sizes."""
OCTAVES = np.array([0.1, 0.3, 0.6, 1.0, 1.5, 2.5])
"""Distances from the nearest measured row that part rows."""
COVERED = (0.5, 0.9)
"""Shares of left-out rows inside the two bars."""


class Relation(IntEnum):
    """What a prediction rests on, from near to far."""

    MEASURED = 0  # rows of this GPU, kernel, format and program
    FITTED = 1  # constants of this architecture, fitted to this kernel
    CHIP = 2  # rows, or constants, of another GPU of the same architecture
    LABORATORY = 3  # another program's kernels, or links that nobody measured
    BORROWED = 4  # constants of another architecture, or of another kernel


class Bars(Struct, frozen=True, eq=False):
    """Bars of 50 and of 90 %.

    Parameters
    ----------
    fields
        Of rows where the GPU was measured, by name of the field: sizes of time x distances x 2.
    kinds
        Of all others, by relation and kind of kernel: sizes of time x 2.
    runs
        Of whole models, beside their kernels' bars: pairs by the name of what runs (`run_name`).
    """

    fields: Mapping[str, NDArray[np.float64]]
    kinds: Mapping[tuple[Relation, str], NDArray[np.float64]]
    runs: Mapping[str, tuple[float, float]] = {}


def kind_of(op: Op, format: str) -> str:
    """Kernels that are calibrated together."""
    if op is Op.GEMM:
        return "gemm" if format == SIXTEEN_BITS else "gemm in other formats"
    if op in (Op.GROUPED_GEMM, *ATTENTION, Op.ATTENTION_BACKWARD, *ELEMENTWISE):
        return str(op)
    return "collective" if op in COLLECTIVES else "elementwise"


KINDS = (
    "gemm",
    "gemm in other formats",
    "grouped_gemm",
    *map(str, ATTENTION),
    "attention_backward",
    "collective",
    "elementwise",
    *map(str, ELEMENTWISE),
)
"""Kinds of kernels; ``elementwise`` is all of these together, for those of which no row says anything by itself."""


def field_name(gpu: str, op: Op, format: str, software: str) -> str:
    """Under which a field's bars are kept."""
    return "/".join((gpu, op, format, software))


def row_kinds(o: Operations) -> NDArray[np.str_]:
    """Kind of kernel of every row."""
    kinds = np.full(len(o), "elementwise", dtype="U32")
    for op in (*PRODUCTS, *ATTENTION, Op.ATTENTION_BACKWARD, *COLLECTIVES, *ELEMENTWISE):
        kinds[o.among(op)] = kind_of(op, SIXTEEN_BITS)
    kinds[o.among(Op.GEMM) & (row_formats(o) != SIXTEEN_BITS)] = kind_of(Op.GEMM, "")
    return kinds


def row_bars(
    bars: Bars,
    fields: Fields,
    gpu: str,
    operations: Operations,
    seconds: Float,
    octaves: Float,
    relation: NDArray[np.int64],
    software: str = "",
) -> Float:
    """Bars of every row, rows x 2; ``relation`` says what each prediction rests on, ``octaves`` how near."""
    found = np.zeros((len(operations), 2))
    size = np.searchsorted(DECADES, seconds, side="right")
    near = np.searchsorted(OCTAVES, octaves, side="right")
    kinds, formats = row_kinds(operations), row_formats(operations)
    for step in Relation:
        of_step = relation == step
        if step is Relation.MEASURED or not of_step.any():
            continue
        for kind in np.unique(kinds[of_step]).tolist():
            rows = of_step & (kinds == kind)
            found[rows] = bars.kinds[step, kind][size[rows]]
    own = relation == Relation.MEASURED
    for code in np.unique(operations.op[own]).tolist():
        op = list(Op)[code]
        for format in np.unique(formats[own & (operations.op == code)]).tolist():
            rows = own & (operations.op == code) & (formats == format)
            program = program_of(op, software) or fields.reference[gpu, op, format]
            found[rows] = bars.fields[field_name(gpu, op, format, program)][size[rows], near[rows]]
            far = rows & (octaves > NEARBY)  # the mechanism alone, as nothing was left out so far beyond the tables
            found[far] = np.maximum(found[far], bars.kinds[Relation.FITTED, kind_of(op, format)][size[far]])
    return found


def run_name(prompts: bool, hosted: bool) -> str:
    """What runs, of whole models: prompts or tokens, by kernels alone or with what serving software adds."""
    return f"{'prompts' if prompts else 'tokens'}, {'with a stack' if hosted else 'kernels alone'}"


def run_bars(bars: Bars, name: str, kernels: tuple[float, float]) -> tuple[float, float]:
    """Bars of a whole step whose kernels have the bars ``kernels`` together, all one way.

    Whole runs are farther off than their kernels: what the bars of measured runs have beyond those of their kernels is
    independent of them, and the squares add.
    """
    beyond = bars.runs[name]
    return float(np.hypot(kernels[0], beyond[0])), float(np.hypot(kernels[1], beyond[1]))


def relative(bar: float) -> float:
    """A bar as results have it: the time is at most 1 + it times the predicted one, and at least that part of it."""
    return math.expm1(bar)


def quantiles(errors: Float, weights: Float | None = None) -> Float:
    """The two bars of absolute logarithms, of rows that count as much as their weights say."""
    order = np.argsort(errors)
    shares = np.cumsum(np.ones(len(errors)) if weights is None else weights[order])
    places = np.searchsorted(shares / shares[-1], COVERED)
    return np.asarray(errors[order][np.minimum(places, len(errors) - 1)], np.float64)


@cache
def packaged_bars() -> Bars:
    """The bars of the package."""
    return read_bars(FILE)


def read_bars(path: Path) -> Bars:
    """Bars that `write_bars` wrote."""
    data = json.loads(path.read_text())
    return Bars(
        {name: np.array(cells) for name, cells in data["fields"].items()},
        {
            (Relation[step], kind): np.array(cells)
            for step, kinds in data["kinds"].items()
            for kind, cells in kinds.items()
        },
        {name: (pair[0], pair[1]) for name, pair in data["runs"].items()},
    )


def write_bars(bars: Bars, path: Path) -> None:
    """Write bars as JSON with four digits."""
    kinds: dict[str, dict[str, list[list[float]]]] = {}
    for (step, kind), cells in sorted(bars.kinds.items()):
        kinds.setdefault(step.name, {})[kind] = np.round(cells, 4).tolist()
    data = {
        "fields": {name: np.round(cells, 4).tolist() for name, cells in sorted(bars.fields.items())},
        "kinds": kinds,
        "runs": {name: [round(v, 4) for v in pair] for name, pair in sorted(bars.runs.items())},
    }
    path.write_text(json.dumps(data, separators=(",", ":")).replace('],"', '],\n"').replace('},"', '},\n"') + "\n")


__all__ = [
    "Bars",
    "COVERED",
    "DECADES",
    "KINDS",
    "OCTAVES",
    "Relation",
    "field_name",
    "kind_of",
    "packaged_bars",
    "quantiles",
    "read_bars",
    "row_bars",
    "row_kinds",
    "relative",
    "run_bars",
    "run_name",
    "write_bars",
]
