"""Make the fields of residuals and the bars of the package from its tables, by leaving rows out.

    python -m benchmarks.gpu_residuals            writes baselines/data/residuals
    python -m benchmarks.gpu_residuals --check    says how far what is there is from what would be written

Three ways of leaving rows out say how far a prediction is off, and how that goes with the distance from the nearest
row that is left: families (every row with one of some widths or numbers of heads), single rows, and regions three
octaves wide. They choose the field's ``scale`` and ``reach``, they decide whether it is used at all, and their errors
are the bars. A GPU or a laboratory is left out whole: the bars of those that nobody measured are the errors of
constants on GPUs that they were not fitted to, and of kernels of other programs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from siliconloom.arch.gpu import Gpu, load_gpu
from siliconloom.baselines import tables
from siliconloom.baselines.attention_backward import backward_times
from siliconloom.baselines.bars import (
    DECADES,
    FILE,
    KINDS,
    OCTAVES,
    Bars,
    Relation,
    field_name,
    kind_of,
    quantiles,
    read_bars,
    write_bars,
)
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.baselines.families import split
from siliconloom.baselines.mechanism import LAUNCH_ALONE, mechanism
from siliconloom.baselines.operations import ATTENTION, COLLECTIVES, ELEMENTWISE, Bool, Float, Op
from siliconloom.baselines.residuals import (
    FOLDER,
    SIXTEEN_BITS,
    SIZES,
    Fields,
    ResidualField,
    collect,
    coordinates,
    make_field,
    measured_kind,
    read_fields,
    row_formats,
    unaligned,
    write_fields,
)
from siliconloom.baselines.tables import Table

SCALES, REACHES = (0.2, 0.3, 0.5), (1.0, 2.0, 4.0)
FOLDS = 5
REGION = 3.0
"""Octaves of a region that is left out."""
SINGLE = 10
"""One row of so many is left out by itself."""
FEWEST_OF_KIND = 20
"""Rows of one kind of element-wise kernel that has bars of its own."""
FEWEST = 60
"""Rows of a field, and of a cell of bars that stands by itself."""
BETTER, WORSE = 0.95, 1.1
"""A field is used where it brings the median to at most this share of the mechanism's, and the 90 % quantile of left-out
families to at most that one."""
RELATIVES = {"h200": "h100", "h800": "h100", "a100-40gb": "a100"}
"""GPUs of one chip with another memory or other links, and the measured one of that chip."""


@dataclass(frozen=True)
class Source:
    """Rows of one program on one GPU, and how they are predicted."""

    table: str
    card: str
    gpu: str
    ops: tuple[Op, ...]
    prefix: str
    software: str
    reference: bool = False
    sustained: bool = False
    alone: bool = False
    contains: str = ""
    without: str = " eager"  # PyTorch's RMS norm, where serving software has a compiled one

    def rows(self) -> Table:
        """Rows of the kernels that fields are of."""
        table = tables.load(self.table)
        keep = (table.gpu == self.card) & table.operations.among(*self.ops) & measured_kind(table.operations)
        named = table.software.astype(str)
        keep &= np.char.startswith(named, self.prefix) & (np.char.find(named, self.contains) >= 0)
        keep &= ~np.char.endswith(named, self.without)
        if self.prefix == "torch":  # their kernels are others
            keep &= ~unaligned(table.operations)
        return table.select(keep)


BURST = "aiconfigurator-"
SOURCES = (
    *(
        Source(f"{BURST}gemm-{g}", g, g, (Op.GEMM,), prefix, software, prefix == "trtllm")
        for g in ("a100", "h100")
        for prefix, software in (("trtllm", "tensorrt-llm"), ("sglang", "sglang"))
    ),
    *(
        Source(f"{BURST}attention-{g}", g, g, ATTENTION, prefix, software, prefix == "vllm")
        for g in ("a100", "h100")
        for prefix, software in (("vllm", "vllm"), ("sglang", "sglang"), ("trtllm", "tensorrt-llm"))
        if (g, prefix) != ("a100", "trtllm")
    ),
    Source(f"{BURST}gemm-h200-vllm", "h200", "h200", (Op.GEMM,), "vllm", "vllm", True, sustained=True),
    Source(f"{BURST}attention-h200", "h200", "h200", ATTENTION, "vllm", "vllm", True, sustained=True),
    *(
        Source(f"torch-{g}", g, g, ops, "torch", software, contains=contains)
        for g in ("h100", "h200")
        for ops, software, contains in (
            ((Op.GEMM,), "torch", ""),
            (ATTENTION, "torch-flash", "sdpa flash"),
            (ATTENTION, "torch-cudnn", "sdpa cudnn"),
        )
    ),
    Source("torch-h100-int8", "h100", "h100", (Op.GEMM,), "torch", "torch"),
    *(Source(f"torch-{g}", g, g, ELEMENTWISE, "torch", "torch", True) for g in ("h100", "h200")),
    Source("vidur-elementwise-a100", "a100-80gb", "a100", ELEMENTWISE, "", "vidur", True),
    Source("neusight-elementwise", "a100-pcie-40gb", "a100-40gb", ELEMENTWISE, "torch", "torch", True),
    Source("deepbench-gemm", "v100", "v100", (Op.GEMM,), "cuBLAS", "cublas", True, alone=True),
)


@dataclass(frozen=True)
class Rows:
    """Measured rows of one field: coordinates, residuals of the mechanism, and its seconds."""

    gpu: str
    op: Op
    format: str
    software: str
    reference: bool
    points: Float
    residuals: Float
    seconds: Float
    withheld: Bool

    def part(self, mask: Bool) -> Rows:
        """Rows of a mask."""
        arrays = (a[mask] for a in (self.points, self.residuals, self.seconds, self.withheld))
        return Rows(self.gpu, self.op, self.format, self.software, self.reference, *arrays)

    def field(self, scale: float, reach: float) -> ResidualField:
        """The field of all of them."""
        names = (self.gpu, self.op, self.format, self.software)
        made = {"reference": self.reference, "scale": scale, "reach": reach}
        return make_field(*names, self.points, self.residuals, **made)


@cache
def all_rows() -> tuple[Rows, ...]:
    """Rows of every source, by kernel and format."""
    return tuple(rows for source in SOURCES for rows in source_rows(source))


def source_rows(source: Source) -> Iterator[Rows]:
    """Rows of a source with their residuals."""
    table = source.rows()
    seconds = seconds_of(table, source)
    residuals, withheld = np.log(table.time_us * 1e-6 / seconds), split(table)[1]
    formats = row_formats(table.operations)
    for op in source.ops:
        for format in np.unique(formats[table.operations.among(op)]).tolist():
            mask = table.operations.among(op) & (formats == format)
            if mask.sum() >= FEWEST:
                points = coordinates(table.operations.select(mask), op)
                names = (source.gpu, op, format, source.software, source.reference)
                yield Rows(*names, points, residuals[mask], seconds[mask], withheld[mask])


def seconds_of(table: Table, source: Source, *, like: str = "") -> Float:
    """The mechanism's seconds of a source's rows, with the constants of the architecture ``like``.

    PyTorch's attention writes no cache.
    """
    found = mechanism(
        _with_constants(source.gpu, like),
        table.operations,
        sustained=source.sustained,
        cache_write=not source.software.startswith("torch-"),
        software=source.software,
    )
    return found.seconds + LAUNCH_ALONE * source.alone


def plain_seconds(table: Table, gpu: str, like: str = "") -> Float:
    """The mechanism's seconds of a table's rows on a GPU, in bursts, with the constants of the architecture ``like``."""
    return mechanism(_with_constants(gpu, like), table.operations).seconds


def _with_constants(gpu: str, like: str) -> Gpu:
    described = load_gpu(gpu)
    return described.model_copy(update={"architecture": like}) if like else described


def family_folds(rows: Rows) -> Iterator[Bool]:
    """Masks of rows to leave out: all that have one of some values of a size that is not the number of tokens.

    Of products these are n and k, of attention the query heads, of element-wise operations the columns, as in
    `siliconloom.baselines.families`.
    """
    names = {Op.GEMM: ("n", "k"), **dict.fromkeys(ATTENTION, ("heads",))}.get(rows.op, ("n",))
    groups = []
    for name in names:
        values = rows.points[:, SIZES[rows.op].index(name)]
        groups.append(np.searchsorted(np.unique(values), values) * 7 % 11 % FOLDS)
    for fold in range(FOLDS):
        yield np.logical_or.reduce([group == fold for group in groups])


def single_folds(rows: Rows) -> Iterator[Bool]:
    """Masks of a tenth of the rows, three times."""
    draw = np.random.default_rng(1)
    fold = draw.integers(0, SINGLE, len(rows.residuals))
    for left_out in range(3):
        yield fold == left_out


def region_folds(rows: Rows) -> Iterator[Bool]:
    """Masks of cubes of `REGION` octaves, a fifth of them each time."""
    cells = np.floor((rows.points + REGION / 3) / REGION).astype(np.int64)
    group = (cells * (7 ** np.arange(cells.shape[1]))).sum(axis=1) % 13 % FOLDS
    for fold in range(FOLDS):
        yield group == fold


FoldsOf = Callable[[Rows], Iterator[Bool]]


def left_out(rows: Rows, folds: FoldsOf, scale: float, reach: float) -> tuple[Float, Float, Float, Float]:
    """Residuals of rows that were left out, before and after correction, their distances, and predicted seconds."""
    found: list[tuple[Float, Float, Float, Float]] = []
    for mask in folds(rows):
        if 0 < mask.sum() < len(mask):
            asked = rows.part(mask)
            log, octaves = rows.part(~mask).field(scale, reach).at(asked.points)
            found.append((asked.residuals, asked.residuals - log, octaves, asked.seconds * np.exp(log)))
    before, after, octaves, seconds = (np.concatenate(column) for column in zip(*found, strict=True))
    return before, after, octaves, seconds


def chosen(rows: Rows) -> tuple[float, float, bool]:
    """Scale, reach and whether the correction is better than the mechanism on families that were left out."""

    def off(folds: FoldsOf, scale: float, reach: float) -> float:
        return float(np.abs(left_out(rows, folds, scale, reach)[1]).mean())

    scale = min(SCALES, key=lambda s: off(family_folds, s, REACHES[1]) + off(single_folds, s, REACHES[1]))
    reach = min(REACHES, key=lambda r: off(region_folds, scale, r))
    before, after, _, _ = left_out(rows, family_folds, scale, reach)
    medians = np.median(np.abs(after)), np.median(np.abs(before))
    tails = np.quantile(np.abs(after), 0.9), np.quantile(np.abs(before), 0.9)
    return scale, reach, bool(medians[0] <= BETTER * medians[1] and tails[0] <= WORSE * tails[1])


def field_bars(rows: Rows, scale: float, reach: float) -> Float:
    """Bars by size of time and distance: those of a farther row are at least a nearer one's."""
    parts = [left_out(rows, folds, scale, reach) for folds in (family_folds, single_folds, region_folds)]
    _, after, octaves, seconds = (np.concatenate(column) for column in zip(*parts, strict=True))
    size, near = np.searchsorted(DECADES, seconds, side="right"), np.searchsorted(OCTAVES, octaves, side="right")
    found = np.empty((len(DECADES) + 1, len(OCTAVES) + 1, 2))
    for place in range(found.shape[1]):
        here = near == place
        while here.sum() < FEWEST:  # too few at this distance: those of the nearest one that has them
            here = np.abs(near - place) <= np.sort(np.abs(near - place))[FEWEST]
        for decade in range(found.shape[0]):
            cell = here & (size == decade)
            found[decade, place] = quantiles(np.abs(after[cell if cell.sum() >= FEWEST else here]))
    return np.maximum.accumulate(found, axis=1)


def make_fields(rows: Iterable[Rows]) -> tuple[Fields, dict[str, Float], list[str]]:
    """Fields that help, the bars of each by name, and a line about every one."""
    fields, bars, told, alone = [], {}, [], []
    for part in rows:
        scale, reach, helps = chosen(part)
        before, after, _, _ = left_out(part, family_folds, scale, reach)
        name = field_name(part.gpu, part.op, part.format, part.software)
        medians = f"{np.median(np.abs(before)):6.1%} -> {np.median(np.abs(after)):6.1%}"
        tails = f"{np.quantile(np.abs(before), 0.9):6.1%} -> {np.quantile(np.abs(after), 0.9):6.1%}"
        verdict = "" if helps else "  not used"
        told.append(f"{name:50s} {len(part.residuals):6d} {scale:4.1f} {reach:4.1f}  {medians}  {tails}{verdict}")
        if helps:
            fields.append(part.field(scale, reach))
            bars[name] = field_bars(part, scale, reach)
        else:
            alone.append((part.gpu, part.op, part.format))
    return collect(fields, RELATIVES, transferred_kinds(fields), frozenset(alone)), bars, told


def transferred_kinds(fields: Iterable[ResidualField]) -> tuple[Op, ...]:
    """Kernels whose field serves another GPU of the chip: where the H100's brings the H200's rows nearer."""
    found = []
    for field in fields:
        theirs = next((r for r in all_rows() if (r.gpu, r.op, r.format) == ("h200", field.op, field.format)), None)
        if field.gpu == "h100" and field.reference and theirs is not None:
            log, _ = field.at(theirs.points)
            before, after = np.abs(theirs.residuals), np.abs(theirs.residuals - log)
            if np.median(after) <= BETTER * np.median(before) and np.quantile(after, 0.9) <= np.quantile(before, 0.9):
                found.append(field.op)
    return tuple(found)


@dataclass(frozen=True)
class Seen:
    """Rows that something was not fitted to: absolute logarithms of their errors, and predicted seconds."""

    name: str
    relation: Relation
    kind: str
    errors: Float
    seconds: Float


LIKE = {"a100": "hopper", "h100": "ampere", "h200": "ampere"}
"""GPUs that are predicted with the constants of an architecture that is not theirs."""


def unseen(fields: Fields) -> list[Seen]:
    """Whole GPUs and laboratories that were left out."""
    others = [*other_architectures(), *other_gpus(fields), *other_programs(fields)]
    return [*others, *collectives(), *elementwise(), *backward(), *experts()]


def _card(table: str, gpu: str, ops: tuple[Op, ...], prefix: str = "") -> Table:
    whole = tables.load(table)
    mask = (whole.gpu == gpu) & whole.operations.among(*ops)
    return whole.select(mask & np.char.startswith(whole.software.astype(str), prefix))


def _off(table: Table, seconds: Float) -> Float:
    return np.asarray(np.abs(np.log(table.time_us * 1e-6 / seconds)), np.float64)


def other_architectures() -> Iterator[Seen]:
    """Every measured GPU by the constants of another architecture, and those that have none of their own."""
    for source in SOURCES:
        if not source.reference or not set(source.ops) & {Op.GEMM, *ATTENTION}:
            continue
        table = _card(source.table, source.card, source.ops, source.prefix)
        like = LIKE.get(source.gpu, "")
        seconds = seconds_of(table, source, like=like)
        off, formats = _off(table, seconds), row_formats(table.operations)
        for op in source.ops:
            for format in np.unique(formats).tolist():
                mask = table.operations.among(op) & (formats == format)
                if mask.any():
                    name = f"{source.gpu} by {like or 'ampere'}"
                    yield Seen(name, Relation.BORROWED, kind_of(op, format), off[mask], seconds[mask])


def other_gpus(fields: Fields) -> Iterator[Seen]:
    """The H200 by what is known of the H100."""
    for rows in all_rows():
        if rows.gpu == "h200":
            program = fields.reference.get(("h100", rows.op, rows.format), "")
            log = np.zeros(len(rows.residuals))
            if program and rows.op in fields.transferred:
                log, _ = fields.found["h100", rows.op, rows.format, program]().at(rows.points)
            off = np.abs(rows.residuals - log)
            kind = kind_of(rows.op, rows.format)
            yield Seen("h200 by h100", Relation.CHIP, kind, off, rows.seconds * np.exp(log))


def other_programs(fields: Fields) -> Iterator[Seen]:
    """Kernels of other programs by what is known of the default's; tables that nothing may be fitted to, too."""
    for rows in all_rows():
        usual = fields.reference.get((rows.gpu, rows.op, rows.format))
        if not rows.reference and usual is not None:
            log, _ = fields.found[rows.gpu, rows.op, rows.format, usual]().at(rows.points)
            off, kind = np.abs(rows.residuals - log), kind_of(rows.op, rows.format)
            yield Seen(f"{rows.software} on {rows.gpu}", Relation.LABORATORY, kind, off, rows.seconds * np.exp(log))
    others = ((f"{BURST}gemm-a100-vllm", "a100", "a100"), (f"{BURST}gemm-h100-vllm", "h100", "h100"))
    for name, card, gpu in (*others, ("vidur-gemm-a100", "a100-80gb", "a100")):
        table = _card(name, card, (Op.GEMM,))
        seconds = plain_seconds(table, gpu)
        usual = fields.reference.get((gpu, Op.GEMM, SIXTEEN_BITS), "")
        if usual:
            log, _ = fields.found[gpu, Op.GEMM, SIXTEEN_BITS, usual]().at(coordinates(table.operations, Op.GEMM))
            seconds = seconds * np.exp(log)
        yield Seen(name, Relation.LABORATORY, "gemm", _off(table, seconds), seconds)


def collectives() -> Iterator[Seen]:
    """NCCL's groups that the fit did not see, the same by other constants, and other programs' all-reduces."""
    for gpu in ("a100", "h100"):
        table = _card(f"{BURST}collectives", gpu, COLLECTIVES)
        nccl = np.char.startswith(table.software.astype(str), "NCCL")
        theirs, other = table.select(nccl & split(table)[1]), table.select(~nccl)
        for name, relation, rows, like in (
            ("groups withheld", Relation.FITTED, theirs, ""),
            ("groups withheld", Relation.CHIP, theirs, ""),
            (f"by {LIKE[gpu]}", Relation.BORROWED, table.select(nccl), LIKE[gpu]),
            ("not NCCL", Relation.LABORATORY, other, ""),
        ):
            seconds = plain_seconds(rows, gpu, like)
            yield Seen(f"{gpu} {name}", relation, "collective", _off(rows, seconds), seconds)
    table = tables.load("vidur-allreduce-a100")
    seconds = plain_seconds(table, "a100")
    yield Seen("a100 in a running model", Relation.LABORATORY, "collective", _off(table, seconds), seconds)


def elementwise() -> Iterator[Seen]:
    """Element-wise kernels of GPUs and laboratories that nothing was fitted to."""
    slower = [("clock", "1380 MHz"), ("power", "250")]
    for table, card, gpu, sets, like, relation in (
        ("vidur-elementwise-a100", "a100-80gb", "a100", [], "", Relation.FITTED),
        ("neusight-elementwise", "a100-pcie-40gb", "a100-40gb", [], "", Relation.CHIP),
        ("neusight-elementwise", "a100-pcie-40gb", "a100-40gb", [], "", Relation.LABORATORY),
        ("neusight-elementwise", "v100-pcie-32gb", "v100", slower, "ampere", Relation.BORROWED),
        ("neusight-elementwise", "a100-pcie-40gb", "a100-40gb", [], "hopper", Relation.BORROWED),
        ("vidur-elementwise-a100", "a100-80gb", "a100", [], "hopper", Relation.BORROWED),
        ("torch-h200", "h200", "h200", [], "", Relation.FITTED),  # of the H100 most kinds have few withheld columns
        ("torch-h200", "h200", "h200", [], "", Relation.CHIP),
        ("torch-h100", "h100", "h100", [], "ampere", Relation.BORROWED),
    ):
        rows = _card(table, card, ELEMENTWISE)
        rows = rows.select(~np.char.endswith(rows.software.astype(str), " eager"))
        if relation is Relation.FITTED and gpu == "a100":
            rows = rows.select(split(rows)[1])
        described = load_gpu(gpu, sets)
        described = described.model_copy(update={"architecture": like or described.architecture})
        seconds = mechanism(described, rows.operations).seconds
        name, off = f"{gpu} by {like or 'its own'}", _off(rows, seconds)
        yield Seen(name, relation, "elementwise", off, seconds)
        for op in ELEMENTWISE:
            mask = rows.operations.among(op)
            if mask.sum() >= FEWEST_OF_KIND:
                yield Seen(name, relation, kind_of(op, ""), off[mask], seconds[mask])


def experts() -> Iterator[Seen]:
    """Grouped products that the fit did not see, and all of them as products in a batch by another architecture."""
    for gpu in ("h100", "h200"):
        table = tables.load(f"torch-{gpu}-grouped")
        unseen = table.select(split(table)[1])
        for name, relation, rows, like in (
            ("experts withheld", Relation.FITTED, unseen, ""),
            ("experts by ampere", Relation.BORROWED, table, "ampere"),
        ):
            seconds = mechanism(_with_constants(gpu, like), rows.operations, software="torch").seconds
            yield Seen(f"{gpu} {name}", relation, kind_of(Op.GROUPED_GEMM, ""), _off(rows, seconds), seconds)


def backward() -> Iterator[Seen]:
    """Attention's backward pass: the H200's by the H100's constants, and FlashAttention-2's as derived."""
    for gpu, program, relation, derived in (
        ("h200", "torch-cudnn", Relation.CHIP, False),
        ("h200", "torch-flash", Relation.CHIP, False),
        ("h100", "torch-cudnn", Relation.LABORATORY, True),
        ("h100", "torch-flash", Relation.BORROWED, True),
    ):
        rows = _card(f"torch-{gpu}", gpu, (Op.ATTENTION_BACKWARD,))
        rows = rows.select(np.char.find(rows.software.astype(str), program.replace("torch-", "sdpa ")) >= 0)
        described = load_gpu(gpu)
        efficiency = load_efficiency(described.architecture).by_program("torch-flash" if derived else program)
        if derived:
            efficiency = efficiency.model_copy(update={"backward": None})
        seconds = backward_times(described, efficiency, rows.operations)[0]
        yield Seen(f"{gpu} backward {program}", relation, "attention_backward", _off(rows, seconds), seconds)


def kind_bars(seen: Iterable[Seen]) -> dict[tuple[Relation, str], Float]:
    """Bars of each relation and kind by size of time; every source counts as much, however many rows it has.

    What has no rows takes the farther relation's, products in other formats those of 16 bits, and attention's backward
    pass, of which no farther one is measured, the forward one's.
    """
    listed = list(seen)
    found: dict[tuple[Relation, str], Float] = {}
    for relation in sorted(Relation, reverse=True):
        for kind in KINDS:
            parts = [s for s in listed if (s.relation, s.kind) == (relation, kind)]
            if parts:
                found[relation, kind] = _sized_bars(parts)
            elif kind in ELEMENTWISE and relation is Relation.BORROWED:
                found[relation, kind] = found[relation, "elementwise"]
            elif relation is Relation.BORROWED and kind == "attention_backward":
                found[relation, kind] = found[relation, "attention_prefill"]
            elif relation is not Relation.BORROWED and relation is not Relation.MEASURED:
                like = (relation, "gemm") if kind.startswith("gemm in") else (Relation(relation + 1), kind)
                like = (relation, "elementwise") if kind in ELEMENTWISE else like
                found[relation, kind] = found[like]
    return found


def _sized_bars(parts: list[Seen]) -> Float:
    errors = np.concatenate([p.errors for p in parts])
    weights = np.concatenate([np.full(len(p.errors), 1.0 / len(p.errors)) for p in parts])
    size = np.concatenate([np.searchsorted(DECADES, p.seconds, side="right") for p in parts])
    found = np.empty((len(DECADES) + 1, 2))
    for decade in range(len(found)):
        cell = size == decade
        cell = cell if cell.sum() >= FEWEST else np.ones(len(size), bool)
        found[decade] = quantiles(errors[cell], weights[cell])
    return found


def training() -> tuple[Rows, ...]:
    """Rows of the families that a model may be fitted to."""
    seen = (rows.part(~rows.withheld) for rows in all_rows())
    return tuple(rows for rows in seen if len(rows.residuals) >= FEWEST)


def build(rows: Iterable[Rows] | None = None) -> tuple[Fields, Bars, list[str]]:
    """Fields and bars from rows, by default all, and what is to be said of them."""
    fields, bars, told = make_fields(all_rows() if rows is None else rows)
    return fields, Bars(bars, kind_bars(unseen(fields))), told


def main(arguments: list[str] | None = None) -> int:
    """Build, then write or compare."""
    parser = argparse.ArgumentParser(description="residual fields and bars of GPUs")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args(arguments)
    fields, bars, told = build()
    print(f"{'field':50s} {'rows':>6s} scale reach  left-out families: median, 90 % quantile")
    print("\n".join(told))
    print("transferred to relatives:", *fields.transferred)
    if asked.check:
        same, kept = same_fields(fields, read_fields(FOLDER)), read_bars(FILE)
        near = all(np.allclose(cells, kept.kinds[key], atol=1e-3) for key, cells in bars.kinds.items())
        print("as written" if same and near else "not as written: python -m benchmarks.gpu_residuals")
        return 0 if same and near else 1
    write_fields(fields, FOLDER)
    runs = read_bars(FILE).runs if FILE.exists() else {}
    write_bars(Bars(bars.fields, bars.kinds, runs), FILE)
    return 0


def same_fields(made: Fields, kept: Fields) -> bool:
    """Whether both have the same rows, to a thousandth."""
    if set(made.found) != set(kept.found):
        return False
    pairs = [(made.found[key](), kept.found[key]()) for key in made.found]
    return all(len(a) == len(b) and np.allclose(a.residuals, b.residuals, atol=1e-3) for a, b in pairs)


if __name__ == "__main__":
    sys.exit(main())
