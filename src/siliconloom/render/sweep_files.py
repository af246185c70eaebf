"""The points of a sweep as CSV and as Parquet: a row a point, values of keys and figures in base units."""

from __future__ import annotations

import csv
import io
from typing import Any

from siliconloom.arch.errors import LoomError
from siliconloom.arch.swept import SweepResult, typed_values


def point_columns(result: SweepResult) -> list[str]:
    """Names of the columns: what a point is, the values of its keys, its figures."""
    keys = [path for key in result.asked.keys for path in (key.path, *key.linked)]
    metrics = dict.fromkeys(name for point in result.points for name in point.metrics)
    return ["point", "state", "why", "front", "feasible", "asked", "bound", *keys, *metrics]


def point_records(result: SweepResult) -> list[dict[str, Any]]:
    """A record a point; what a point does not have is ``None``."""
    front = set(result.front)
    empty = dict.fromkeys(point_columns(result))
    plain = result.as_dict()
    values = typed_values(plain["asked"], plain["points"])
    return [
        {
            **empty,
            "point": point.number,
            "state": point.state,
            "why": point.why,
            "front": point.number in front,
            "feasible": point.feasible,
            "asked": point.asked,
            "bound": point.bound,
            **values[number],
            **point.metrics,
        }
        for number, point in enumerate(result.points)
    ]


def sweep_csv(result: SweepResult) -> str:
    """One header line, plain numbers in base units, nothing where a point has no figure."""
    text = io.StringIO()
    writer = csv.DictWriter(text, point_columns(result), lineterminator="\n")
    writer.writeheader()
    writer.writerows(point_records(result))
    return text.getvalue()


def require_parquet() -> None:
    """Refuse Parquet before any work is done for it; raises `LoomError` where its library is absent."""
    try:
        import pyarrow
    except ModuleNotFoundError:
        raise LoomError("--parquet needs pyarrow: pip install siliconloom[sweeps]") from None
    del pyarrow


def sweep_parquet(result: SweepResult) -> bytes:
    """The same records as Parquet, figures as float64, with the question as metadata ``siliconloom.sweep``."""
    require_parquet()
    import msgspec
    import pyarrow
    from pyarrow import parquet

    columns = point_columns(result)
    kinds: dict[str, Any] = {"point": pyarrow.int64(), "asked": pyarrow.int64()}
    kinds |= {"front": pyarrow.bool_(), "feasible": pyarrow.bool_()}
    metrics = {name for point in result.points for name in point.metrics}
    records = point_records(result)
    names = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    for key in result.asked.keys:
        for path in (key.path, *key.linked):
            kinds[path] = names.get(type(next((r[path] for r in records), "")), pyarrow.string())
    schema = pyarrow.schema(
        [(n, kinds.get(n, pyarrow.float64() if n in metrics else pyarrow.string())) for n in columns],
        metadata={"siliconloom.sweep": msgspec.json.encode(result.asked)},
    )
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(records, schema=schema), file)
    return file.getvalue()


__all__ = ["point_columns", "point_records", "require_parquet", "sweep_csv", "sweep_parquet"]
