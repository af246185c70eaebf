"""What measured rows say beyond the mechanism: a field of residuals for each GPU, kernel, number format and software.

A residual is the logarithm of a measured time over the mechanism's. The coordinates are the base-2 logarithms of an
operation's sizes, so that distances are in octaves. A prediction is the mechanism's time, times the mean residual of
the nearest measured rows, weighted by their distance. It fades to the mechanism alone away from them. Kernels that no
row is like (products in batches, weights and caches in another format, chunks of prompts) have no residual.

`python -m benchmarks.gpu_residuals` makes the fields of the package from its tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch.kernels import kernel
from siliconloom.baselines.operations import ATTENTION, ELEMENTWISE, PRECISIONS, Bool, Float, Op, Operations, Precision

FOLDER = Path(__file__).parent / "data" / "residuals"
INDEX = "index.json"
"""Lists the fields of a folder."""
SIXTEEN_BITS = "16 bit"
OCTAVE = 512
"""Steps of a stored coordinate in an octave."""
STEP = 1e-4
"""Unit of a stored residual, a natural logarithm; beyond `MOST` it is cut."""
MOST = 3.0
NEARBY = 1.0
"""Octaves from a measured row, a doubling of one size, up to which a row is said to be near it."""
NEAREST = 8
"""Measured rows that a prediction takes the mean of."""
ALIGNED = 16
DEEPEST = 64
"""Of a walk through a tree of at most 2**63 rows."""
FIELD_OPS = (Op.GEMM, Op.ATTENTION_PREFILL, Op.ATTENTION_DECODE, *ELEMENTWISE)
SIZES: dict[Op, tuple[str, ...]] = {
    Op.GEMM: ("m", "n", "k"),
    Op.ATTENTION_PREFILL: ("q_len", "batch", "heads", "kv_heads", "head_dim"),
    Op.ATTENTION_DECODE: ("kv_len", "batch", "heads", "kv_heads", "head_dim"),
    **dict.fromkeys(ELEMENTWISE, ("m", "n")),
}
"""Sizes whose logarithms are the coordinates of a kernel."""

PROGRAMS = {"torch-flash": "torch", "torch-cudnn": "torch"}
"""Programs that have attention kernels of their own, and by what name their other kernels stand."""

Key = tuple[str, Op, str]


def program_of(op: Op, software: str) -> str:
    """Under what name the kernels of a program stand that do an operation."""
    return software if op in ATTENTION else PROGRAMS.get(software, software)


class ResidualField(Struct, frozen=True, eq=False):
    """Residuals of one kernel, in one format, by one program, on one GPU.

    Parameters
    ----------
    points, residuals
        Coordinates (rows x sizes) in octaves and natural logarithms, in the order of a k-d tree: the middle row of a
        range parts the others by its coordinate ``axis``.
    scale
        Octaves between a row and the nearest one at which it weighs exp(-1/2) of it.
    reach
        Octaves from the nearest row at which exp(-1) of the correction is left.
    software
        Program whose kernels were timed; the one of a default prediction where ``reference``.
    """

    gpu: str
    op: Op
    format: str
    software: str
    reference: bool
    points: NDArray[np.float32]
    residuals: NDArray[np.float32]
    axis: NDArray[np.int8]
    scale: float
    reach: float

    def __len__(self) -> int:
        return len(self.residuals)

    def at(self, points: Float) -> tuple[Float, Float]:
        """Logarithm of the correction at each point (rows x sizes), and octaves to the nearest measured row."""
        mean, nearest = np.empty(len(points)), np.empty(len(points))
        nearest_mean(points, self.points, self.residuals, self.axis, self.scale, mean, nearest)
        return mean * np.exp(-((nearest / self.reach) ** 2)), nearest


class Fields(Struct, frozen=True, eq=False):
    """Fields by GPU, kernel, format and software, each read when it is first asked for.

    Parameters
    ----------
    found
        What gives each field.
    reference
        Software of default predictions, by GPU, kernel and format.
    relatives
        GPUs of the same chip as a measured one, which take its fields of the kernels ``transferred``.
    alone
        What was measured and is nearer to the mechanism alone than to its neighbours.
    """

    found: Mapping[tuple[str, Op, str, str], Callable[[], ResidualField]]
    reference: Mapping[Key, str]
    relatives: Mapping[str, str] = {}
    transferred: tuple[Op, ...] = ()
    alone: frozenset[Key] = frozenset()

    def of(self, gpu: str, op: Op, format: str, software: str = "") -> tuple[ResidualField | None, bool]:
        """The field of a kernel, and whether its rows are of the GPU itself."""
        names = [gpu]
        if op in self.transferred and gpu in self.relatives:
            names.append(self.relatives[gpu])
        for name in names:
            program = program_of(op, software) or self.reference.get((name, op, format), "")
            if (name, op, format, program) in self.found:
                return self.found[name, op, format, program](), name == gpu
        return None, False

    @property
    def software(self) -> list[str]:
        """Programs that can be asked for, sorted."""
        names = {name for *_, name in self.found}
        return sorted(names | {program for program, others in PROGRAMS.items() if others in names})


def collect(
    fields: Iterable[ResidualField],
    relatives: Mapping[str, str] | None = None,
    transferred: tuple[Op, ...] = (),
    alone: frozenset[Key] = frozenset(),
) -> Fields:
    """Index fields by what they are of."""
    listed = list(fields)
    found = {(f.gpu, f.op, f.format, f.software): partial(_same, f) for f in listed}
    reference = {(f.gpu, f.op, f.format): f.software for f in listed if f.reference}
    return Fields(found, reference, relatives or {}, transferred, alone)


def _same(field: ResidualField) -> ResidualField:
    return field


NO_FIELDS = collect(())
"""The mechanism alone."""


class Correction(Struct, frozen=True):
    """What measured rows add to the mechanism, row by row.

    Parameters
    ----------
    log
        Natural logarithm of the factor.
    octaves
        Distance to the nearest measured row; infinite where none is like it.
    near
        Rows within `NEARBY` of a measured one.
    own
        Rows for which the GPU's own were looked at.
    """

    log: Float
    octaves: Float
    near: Bool
    own: Bool


def corrections(fields: Fields, gpu: str, operations: Operations, software: str = "") -> Correction:
    """The correction of every row on the GPU of that library name.

    Prompts with a window, which no row is like, have that of the prompt without: the kernel walks fewer blocks.
    """
    log, octaves = np.zeros(len(operations)), np.full(len(operations), np.inf)
    own, near = np.zeros(len(operations), bool), np.zeros(len(operations), bool)
    unbounded = replace(operations, window=np.zeros_like(operations.window))
    usual = measured_kind(unbounded)
    formats = row_formats(operations)
    for op in FIELD_OPS:
        of_op = usual & operations.among(op)
        if not of_op.any():
            continue
        for format in np.unique(formats[of_op]).tolist():
            field, is_own = fields.of(gpu, op, format, software)
            if field is None:
                continue
            mask = of_op & (formats == format)
            log[mask], octaves[mask] = field.at(coordinates(operations.select(mask), op))
            own[mask], near[mask] = is_own, octaves[mask] <= NEARBY
    bounded = operations.window > 0
    octaves[bounded], own[bounded], near[bounded] = np.inf, False, False
    return Correction(log, octaves, near, own)


def measured_kind(o: Operations) -> Bool:
    """Rows whose kernel is one that the tables have: plain products, whole prompts, one token for each sequence."""
    product = o.among(Op.GEMM) & (o.batch == 1) & ~o.packed() & ~o.sparse()
    whole = o.causal & (o.q_len == o.kv_len) & (o.window == 0)  # its cache is only written
    prompt = o.among(Op.ATTENTION_PREFILL) & whole
    token = o.among(Op.ATTENTION_DECODE) & (o.q_len == 1) & ~o.cached()
    found: Bool = product | prompt | token | o.among(*ELEMENTWISE)
    return found


def unaligned(o: Operations) -> Bool:
    """Products with a row of weights or of the result that does not begin at 16 bytes.

    Libraries have other kernels for them, three to eight times slower on an H100; serving software pads such sizes.
    """
    odd = (o.n * o.element_bytes() % ALIGNED != 0) | (o.k * o.element_bytes() % ALIGNED != 0)
    found: Bool = o.among(Op.GEMM) & odd
    return found


def row_formats(o: Operations) -> NDArray[np.str_]:
    """Format of every row's operands; bf16 and fp16 take the same time."""
    alike = {Precision.BF16: SIXTEEN_BITS, Precision.FP16: SIXTEEN_BITS}
    return np.array([alike.get(p, str(p)) for p in PRECISIONS])[o.dtype]


def coordinates(o: Operations, op: Op) -> Float:
    """Rows x sizes in octaves, of operations of one kind."""
    return np.stack([np.log2(getattr(o, name).astype(np.float64)) for name in SIZES[op]], axis=1)


@kernel(error_model="numpy")
def nearest_mean(
    asked: Any, points: Any, residuals: Any, axis: Any, scale: float, mean: Any, nearest: Any
) -> None:  # pragma: no cover - compiled
    """For each of ``asked`` the mean residual of the `NEAREST` rows, weighted by distance, and that of the nearest.

    Weights are exp(-(d^2 - d0^2) / (2 scale^2)), d0 the distance of the nearest row: they never vanish all at once.
    """
    rows, sizes = points.shape
    wanted = min(NEAREST, rows)
    best, which = np.empty(wanted), np.empty(wanted, np.int64)
    low, high, least = np.empty(DEEPEST, np.int64), np.empty(DEEPEST, np.int64), np.empty(DEEPEST)
    for at in range(asked.shape[0]):
        best[:] = np.inf
        which[:] = 0
        low[0], high[0], least[0] = 0, rows, 0.0
        top = 1
        while top > 0:
            top -= 1
            start, end = low[top], high[top]
            if start >= end or least[top] >= best[wanted - 1]:
                continue
            middle = (start + end) // 2
            distance = 0.0
            for size in range(sizes):
                step = asked[at, size] - points[middle, size]
                distance += step * step
            place = wanted - 1
            if distance < best[place]:
                while place > 0 and best[place - 1] > distance:
                    best[place], which[place] = best[place - 1], which[place - 1]
                    place -= 1
                best[place], which[place] = distance, middle
            across = asked[at, axis[middle]] - points[middle, axis[middle]]
            near_low, near_high, far_low, far_high = start, middle, middle + 1, end
            if across > 0:
                near_low, near_high, far_low, far_high = middle + 1, end, start, middle
            low[top], high[top], least[top] = far_low, far_high, max(least[top], across * across)
            low[top + 1], high[top + 1], least[top + 1] = near_low, near_high, 0.0
            top += 2
        total, weighted = 0.0, 0.0
        for place in range(wanted):
            weight = np.exp(-(best[place] - best[0]) / (2.0 * scale * scale))
            total += weight
            weighted += weight * residuals[which[place]]
        mean[at], nearest[at] = weighted / total, np.sqrt(best[0])


def make_field(
    gpu: str,
    op: Op,
    format: str,
    software: str,
    points: Float,
    residuals: Float,
    *,
    reference: bool = False,
    scale: float,
    reach: float,
) -> ResidualField:
    """A field of rows in any order; coordinates and residuals are rounded to what its file holds."""
    kept = np.round(points * OCTAVE) / OCTAVE
    logs = np.round(np.clip(residuals, -MOST, MOST) / STEP) * STEP
    order, axis = tree_order(kept)
    tree = kept[order].astype(np.float32), logs[order].astype(np.float32), axis
    return ResidualField(gpu, op, format, software, reference, *tree, scale, reach)


def tree_order(points: Float) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """Order of the rows in which every range's middle one parts it, and the coordinate by which it does."""
    order, axis = np.arange(len(points)), np.zeros(len(points), np.int8)
    ranges = [(0, len(points))]
    while ranges:
        start, end = ranges.pop()
        if end - start < 2:
            continue
        rows = order[start:end]
        widest = int(np.argmax(np.ptp(points[rows], axis=0)))
        middle = (start + end) // 2
        order[start:end] = rows[np.argsort(points[rows, widest], kind="stable")]
        axis[middle] = widest
        ranges += [(start, middle), (middle + 1, end)]
    return order, axis


@cache
def packaged() -> Fields:
    """The fields of the package, read as they are needed."""
    return read_fields(FOLDER)


def read_fields(folder: Path) -> Fields:
    """Fields of a folder that `write_fields` wrote."""
    index = json.loads((folder / INDEX).read_text())
    entries = {(e["gpu"], Op(e["op"]), e["format"], e["software"]): e for e in index["fields"]}
    found = {key: partial(_read, folder / entry["file"]) for key, entry in entries.items()}
    reference = {key[:3]: key[3] for key, entry in entries.items() if entry["reference"]}
    alone = frozenset((gpu, Op(op), format) for gpu, op, format in index["alone"])
    return Fields(found, reference, index["relatives"], tuple(Op(name) for name in index["transferred"]), alone)


@cache
def _read(path: Path) -> ResidualField:
    entry = next(e for e in json.loads((path.parent / INDEX).read_text())["fields"] if e["file"] == path.name)
    with np.load(path) as file:
        points = file["points"].astype(np.float32) / np.float32(OCTAVE)
        residuals = file["residuals"].astype(np.float32) * np.float32(STEP)
        axis = file["axis"]
    names = (entry["gpu"], Op(entry["op"]), entry["format"], entry["software"], entry["reference"])
    return ResidualField(*names, points, residuals, axis, entry["scale"], entry["reach"])


def write_fields(fields: Fields, folder: Path) -> None:
    """Write every field as a compressed file, and the index."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.npz"):
        old.unlink()
    entries = []
    for key in sorted(fields.found):
        field = fields.found[key]()
        name = "-".join((field.gpu, field.op, field.format, field.software)).replace(" ", "") + ".npz"
        np.savez_compressed(
            folder / name,
            points=np.round(field.points * OCTAVE).astype(np.uint16),
            residuals=np.round(field.residuals / STEP).astype(np.int16),
            axis=field.axis,
        )
        entries.append(
            {
                "file": name,
                "gpu": field.gpu,
                "op": str(field.op),
                "format": field.format,
                "software": field.software,
                "reference": field.reference,
                "rows": len(field),
                "scale": field.scale,
                "reach": field.reach,
            }
        )
    index = {
        "fields": entries,
        "relatives": fields.relatives,
        "transferred": [str(op) for op in fields.transferred],
        "alone": sorted([gpu, str(op), format] for gpu, op, format in fields.alone),
    }
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n")


__all__ = [
    "Correction",
    "FIELD_OPS",
    "FOLDER",
    "ResidualField",
    "Fields",
    "NO_FIELDS",
    "collect",
    "coordinates",
    "corrections",
    "make_field",
    "measured_kind",
    "packaged",
    "read_fields",
    "row_formats",
    "unaligned",
    "write_fields",
]
