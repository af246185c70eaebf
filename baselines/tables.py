"""Tables of measured times: what was run, on which GPU, how long it took, and where the figures come from.

A table is two files: ``NAME.csv.gz`` (or ``.csv``) with the rows, ``NAME.yaml`` with their `Provenance`. The rows have
the columns of `operations` and those of `MEASURED`; columns that are empty throughout are left out.
"""

from __future__ import annotations

import gzip
import hashlib
import io
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from siliconloom.arch.document import Description, Document
from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.arch.files import write_file
from siliconloom.baselines.cells import Cells, parse_cells, read_text
from siliconloom.baselines.operation_rows import operations_from_cells
from siliconloom.baselines.operations import (
    CACHES,
    COLUMNS,
    DEALS,
    MASKED,
    MODELS,
    OPS,
    PATTERNS,
    SIZES,
    WEIGHT_FORMATS,
    Float,
    Int,
    Op,
    Operations,
)

Text = NDArray[np.str_]

SCHEMA = 1
"""Version of the rows and of their provenance; files of another one are refused."""
DATA = Path(__file__).parent / "data"
MEASURED = ("model", "input_tokens", "output_tokens", "gpu", "time_us", "power_w", "clock_mhz", "software")
"""Columns beside those of `operations`.

model, input_tokens, output_tokens: of whole models and layers, tokens per sequence (of a ``decode`` row a
token looks at the input and, on average, half the output). gpu: a library name, or another for a GPU that the
library lacks. time_us: microseconds. power_w, clock_mhz: mean while it ran, empty when not known. software: what ran.
"""
ALL_COLUMNS = ("op", "gpu", *(c for c in COLUMNS if c != "op"), *(c for c in MEASURED if c != "gpu"))
SUFFIXES = (".csv.gz", ".csv", ".yaml")


class Method(StrEnum):
    """How the times were taken. Figures of different methods differ by more than their noise."""

    SHORT_BURST = "short burst"  # a few milliseconds of launches: clocks near their highest, no power cap in sight
    SUSTAINED = "sustained"  # long enough that the power cap has set the clocks
    WALL_CLOCK = "wall clock"  # around one call and a synchronisation: launch overhead included
    PROFILER = "profiler"  # events or profiler records around each call of a running model
    SERVING = "serving"  # a server's own times
    UNKNOWN = "not recorded"


class Dropped(Description):
    """Rows of the source that are not in the table, and why."""

    what: str
    rows: Annotated[int, Field(ge=0)] | None = None
    why: str


class Provenance(Description):
    """Where a table comes from and what was done to it."""

    title: str
    gpus: tuple[str, ...] = Field(min_length=1)
    source: str = Field(description="repository or machine, with the paths in it")
    commit: str = ""
    licence: str
    licence_file: str | None = None
    method: Method
    details: str = ""
    software: tuple[str, ...] = ()
    changes: tuple[str, ...] = Field((), description="what was converted on the way")
    dropped: tuple[Dropped, ...] = ()
    caveats: tuple[str, ...] = ()
    fit: bool = Field(True, description="whether a model may be fitted to it, or only be compared with it")
    rows: int | None = None
    sha256: str | None = Field(None, description="of the CSV text, to refuse a file that is not the one described")


class Table(Struct, frozen=True, eq=False):
    """Measured rows with their provenance; all columns are of one length.

    Numbers that are not known are NaN (power, clock) or 0 (tokens); ``line`` is a row's line in its file.
    """

    name: str
    source: str
    provenance: Provenance
    operations: Operations
    gpu: Text
    time_us: Float
    power_w: Float
    clock_mhz: Float
    software: Text
    model: Text
    input_tokens: Int
    output_tokens: Int
    line: Int

    def __len__(self) -> int:
        return len(self.time_us)

    def select(self, rows: ArrayLike) -> Table:
        """Rows of a mask, or of a list of indices."""
        chosen = np.asarray(rows)
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        return Table(self.name, self.source, self.provenance, self.operations.select(chosen), **columns)

    def at(self, row: int) -> str:
        """Where a row stands: file and line."""
        return f"{self.source}:{self.line[row]}"


_COLUMNS = ("gpu", "time_us", "power_w", "clock_mhz", "software", "model", "input_tokens", "output_tokens", "line")


def names() -> list[str]:
    """Names of the tables that come with the package, sorted."""
    return sorted(path.name.removesuffix(".csv.gz") for path in DATA.glob("*.csv.gz"))


@lru_cache(maxsize=64)
def load(name: str) -> Table:
    """One table of the package, by name."""
    known = names()
    if name not in known:
        near = nearest_name(name, known)
        raise LoomError(f"{name}: no baseline table of that name; {f'did you mean {near!r}?' if near else known}")
    return load_file(DATA / f"{name}.csv.gz")


def all_tables(operation: Op | str | None = None, gpu: str | None = None, *, fit: bool = False) -> Iterator[Table]:
    """The package's tables, cut down to the rows of one operation and one GPU; tables without any are left out.

    ``fit`` leaves out the tables that a model must not be fitted to.
    """
    for name in names():
        described = read_provenance(DATA / f"{name}.yaml")
        if (gpu is not None and gpu not in described.gpus) or (fit and not described.fit):
            continue
        table = load(name)
        mask = np.ones(len(table), dtype=bool)
        if operation is not None:
            mask &= table.operations.among(Op(operation))
        if gpu is not None:
            mask &= table.gpu == gpu
        if mask.any():
            yield table if mask.all() else table.select(mask)


def load_file(path: Path | str) -> Table:
    """A table from its CSV or its YAML file; the other must lie beside it.

    Raises
    ------
    LoomError
        With file, line and column, for a cell that breaks a rule; for another schema version; for a CSV that is not the
        one the YAML describes.
    """
    path = Path(path)
    suffix = next((s for s in SUFFIXES if path.name.endswith(s)), None)
    if suffix is None:
        raise LoomError(f"{path}: a baseline file is named .csv, .csv.gz or .yaml")
    stem = path.name.removesuffix(suffix)
    rows = path if suffix != ".yaml" else path.with_name(f"{stem}.csv.gz")
    if not rows.exists() and suffix == ".yaml":
        rows = path.with_name(f"{stem}.csv")
    described = path.with_name(f"{stem}.yaml")
    for needed, what in ((rows, "the rows"), (described, "their provenance")):
        if not needed.exists():
            raise LoomError(f"{needed}: no such file; a baseline is NAME.csv or NAME.csv.gz with NAME.yaml, {what}")
    provenance = read_provenance(described)
    source, text = read_text(rows)
    found = parse_table(stem, source, text, provenance)
    if provenance.rows not in (None, len(found)):
        raise LoomError(f"{source}: has {len(found)} rows, {described.name} describes a table of {provenance.rows}")
    if provenance.sha256 not in (None, _digest(text)):
        raise LoomError(f"{source}: is not the table that {described.name} describes: its sha256 differs")
    return found


def read_provenance(path: Path | str) -> Provenance:
    """The YAML file beside a table."""
    document = Document.load(path)
    if "schema" not in document.data:
        raise document.error(f"the key 'schema' is missing; this version reads schema {SCHEMA}")
    if document.data["schema"] != SCHEMA:
        rule = f"a baseline of another schema version; this version reads {SCHEMA}"
        raise document.error(rule, ("schema",), value=document.data["schema"])
    del document.data["schema"]
    return document.validate(Provenance)


def parse_table(name: str, source: str, text: str, provenance: Provenance) -> Table:
    """A table from CSV text; see `load_file`."""
    cells = parse_cells(source, text, ALL_COLUMNS, ("op", "gpu", "time_us"))
    operations = operations_from_cells(cells, OPS)
    model = _names(cells, "model", operations.among(*MODELS), "whole models and layers need it")
    gpu = _names(cells, "gpu", np.ones(len(cells), bool), "must be the name of a GPU")
    for row in np.flatnonzero(~np.isin(gpu, provenance.gpus))[:1].tolist():
        rule = f"must be one of the GPUs of the table: {', '.join(provenance.gpus)}"
        raise cells.error(rule, row, "gpu", value=str(gpu[row]), nearest=nearest_name(str(gpu[row]), provenance.gpus))
    return Table(
        name=name,
        source=source,
        provenance=provenance,
        operations=operations,
        gpu=gpu,
        model=model,
        time_us=cells.reals("time_us", _positive, np.nan) if "" not in cells.columns["time_us"] else _untimed(cells),
        power_w=cells.reals("power_w", _positive, np.nan),
        clock_mhz=cells.reals("clock_mhz", _positive, np.nan),
        software=np.array(cells.columns.get("software", ("",) * len(cells))),
        input_tokens=cells.integers("input_tokens", _tokens, 0),
        output_tokens=cells.integers("output_tokens", _tokens, 0),
        line=np.array(cells.lines, dtype=np.int64),
    )


def table_text(table: Table) -> str:
    """A table's rows as CSV; numbers that a column does not mean are empty, columns without any are left out."""
    o = table.operations
    columns: dict[str, list[str]] = {
        "op": [str(op) for op in o.ops()],
        "dtype": [str(p) for p in o.dtypes()],
        "causal": [
            str(c).lower() if p else "" for c, p in zip(o.causal.tolist(), o.among(*MASKED).tolist(), strict=True)
        ],
        **{name: [str(v or "") for v in getattr(o, name).tolist()] for name in (*SIZES, "group", "top_k", "window")},
        "weights": [str(WEIGHT_FORMATS[v]) if v else "" for v in o.weights.tolist()],
        "sparsity": [str(PATTERNS[v]) if v else "" for v in o.sparsity.tolist()],
        "cache": [str(CACHES[v]) if v else "" for v in o.cache.tolist()],
        "dealt": [str(DEALS[v]) if v else "" for v in o.dealt.tolist()],
        **{name: [str(v or "") for v in getattr(table, name).tolist()] for name in ("input_tokens", "output_tokens")},
        **{name: [str(v) for v in getattr(table, name).tolist()] for name in ("gpu", "software", "model")},
        **{name: [_digits(v) for v in getattr(table, name).tolist()] for name in ("time_us", "power_w", "clock_mhz")},
    }
    order = [name for name in ALL_COLUMNS if name in ("op", "gpu", "time_us") or any(columns[name])]
    for name in ("gpu", "software", "model"):
        if bad := next((v for v in columns[name] if set(v) & set(',"\n')), None):
            raise ValueError(f"{name} {bad!r} has a comma, a quote or a line break")
    lines = [",".join(order), *map(",".join, zip(*(columns[name] for name in order), strict=True))]
    return "\n".join(lines) + "\n"


def write_table(table: Table, path: Path | str) -> None:
    """Write a table as ``NAME.csv`` or ``NAME.csv.gz`` with ``NAME.yaml``, each in one step; the same bytes every time.

    An interruption between the two leaves a pair that `load_file` refuses, never one that reads wrongly.
    """
    path = Path(path)
    suffix = next((s for s in SUFFIXES[:2] if path.name.endswith(s)), None)
    if suffix is None:
        raise LoomError(f"{path}: a baseline file is named .csv or .csv.gz")
    text = table_text(table)
    provenance = table.provenance.model_copy(update={"rows": len(table), "sha256": _digest(text)})
    data = {"schema": SCHEMA, **provenance.model_dump(mode="json", exclude_defaults=True)}
    dumped = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)
    raw = text.encode()
    if suffix == ".csv.gz":
        packed = io.BytesIO()
        with gzip.GzipFile("", "wb", 9, packed, mtime=0) as file:
            file.write(raw)
        raw = packed.getvalue()
    write_file(path, raw)
    write_file(path.with_name(path.name.removesuffix(suffix) + ".yaml"), dumped.encode())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digits(value: float) -> str:
    return "" if value != value else repr(value).removesuffix(".0")


def _names(cells: Cells, column: str, needed: NDArray[np.bool_], rule: str) -> Text:
    found = np.array(cells.columns.get(column, ("",) * len(cells)))
    for row in np.flatnonzero(needed & (found == ""))[:1].tolist():
        raise cells.error(rule, row, column)
    return found


def _untimed(cells: Cells) -> Any:
    raise cells.error("must be a time in microseconds", cells.columns["time_us"].index(""), "time_us")


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if not 0 < value < float("inf"):
        raise ValueError("must be a positive number")
    return value


def _tokens(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None
    if not 0 <= value < 2**31:
        raise ValueError("must be a number of tokens")
    return value


def build(
    name: str,
    provenance: Provenance,
    operations: Operations,
    *,
    gpu: Sequence[str] | str,
    time_us: ArrayLike,
    software: Sequence[str] | str = "",
    power_w: ArrayLike = np.nan,
    clock_mhz: ArrayLike = np.nan,
    model: Sequence[str] | str = "",
    input_tokens: ArrayLike = 0,
    output_tokens: ArrayLike = 0,
) -> Table:
    """Make a table from columns; a single value stands in every row."""
    size = len(operations)

    def column(value: ArrayLike, kind: Any) -> Any:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(value, dtype=kind), (size,)))

    return Table(
        name=name,
        source=name,
        provenance=provenance,
        operations=operations,
        gpu=column(gpu, str),
        time_us=column(time_us, np.float64),
        power_w=column(power_w, np.float64),
        clock_mhz=column(clock_mhz, np.float64),
        software=column(software, str),
        model=column(model, str),
        input_tokens=column(input_tokens, np.int64),
        output_tokens=column(output_tokens, np.int64),
        line=np.arange(2, size + 2),
    )


__all__ = [
    "ALL_COLUMNS",
    "DATA",
    "Dropped",
    "MEASURED",
    "Method",
    "Provenance",
    "SCHEMA",
    "Table",
    "all_tables",
    "build",
    "load",
    "load_file",
    "names",
    "parse_table",
    "read_provenance",
    "table_text",
    "write_table",
]
