"""Parts of results as Arrow tables, and as pandas data frames over the same memory."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from siliconloom.arch.errors import LoomError


class MissingExtra(LoomError, ImportError):
    """A library that a function of the API needs is not installed; the text says which extra brings it."""


def require_extra(modules: Sequence[str], extra: str, what: str) -> None:
    """Raise `MissingExtra` unless all ``modules`` can be imported."""
    from importlib.util import find_spec

    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise MissingExtra(f"{what} needs {' and '.join(missing)}: pip install 'siliconloom[{extra}]'")


def arrow_table(rows: Sequence[Mapping[str, Any]], model: type[BaseModel] | None = None) -> Any:
    """Rows as a `pyarrow.Table`.

    Columns are those of ``model`` in its order, whatever the rows lack, then others; a mapping inside a row becomes a
    column ``name.key`` for each of its keys that has a value in any row. Columns of the model have its types, so that
    they are the same in all tables.

    Parameters
    ----------
    rows
        Plain data, one mapping a row.
    model
        Schema of a row.

    Raises
    ------
    MissingExtra
        Without pyarrow.
    """
    require_extra(("pyarrow",), "frames", "an Arrow table")
    import pyarrow

    declared = {} if model is None else {f.alias or name: f.annotation for name, f in model.model_fields.items()}
    flat = [dict(_flattened(row)) for row in rows]
    nested = [key for key in declared if _mapping(declared[key])]
    names = [key for key in declared if key not in nested]
    names += dict.fromkeys(k for row in flat for k, value in row.items() if k not in names and value is not None)
    columns = {
        name: _column(pyarrow, [row.get(name) for row in flat], _type(pyarrow, declared.get(name))) for name in names
    }
    return pyarrow.table(columns)


def column_table(columns: Mapping[str, Any]) -> Any:
    """Columns of numbers as a `pyarrow.Table`, in their order; NaN is a value that is not there."""
    require_extra(("pyarrow",), "frames", "an Arrow table")
    import pyarrow

    return pyarrow.table({name: pyarrow.array(values, from_pandas=True) for name, values in columns.items()})


FIRST, LAST = ("name", "machine", "repeat", "seconds"), ("utilization", "bound", "energy_j")
"""Columns that are told before and behind all others, as what is printed of a wide table are its ends."""


def ends_first(table: Any) -> Any:
    """The same columns, with those first and last that are asked for most."""
    names = table.column_names
    between = [name for name in names if name not in FIRST and name not in LAST]
    order = [*(name for name in FIRST if name in names), *between, *(name for name in LAST if name in names)]
    return table.select(order)


def data_frame(table: Any) -> Any:
    """The table as a `pandas.DataFrame` whose columns are the table's own buffers: nothing is copied."""
    require_extra(("pandas",), "frames", "a data frame")
    import pandas

    return table.to_pandas(types_mapper=pandas.ArrowDtype)


def _flattened(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _column(pyarrow: Any, values: list[Any], kind: Any) -> Any:
    try:
        return pyarrow.array(values, kind)
    except (OverflowError, pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):  # counts over 2**63, and mixtures
        pass
    if all(value is None or isinstance(value, int | float) for value in values):
        return pyarrow.array([None if value is None else float(value) for value in values])
    return pyarrow.array([None if value is None else str(value) for value in values])


def _members(annotation: Any) -> list[Any]:
    """What a value may be besides none."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [each for each in get_args(annotation) if each is not type(None)]
    return [annotation]


def _mapping(annotation: Any) -> bool:
    return any(
        get_origin(each) is dict or (isinstance(each, type) and issubclass(each, BaseModel))
        for each in _members(annotation)
    )


def _type(pyarrow: Any, annotation: Any) -> Any:
    members = _members(annotation)
    if len(members) != 1:
        return None
    member = members[0]
    if get_origin(member) is Literal:
        return pyarrow.string()
    known = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string(), bool: pyarrow.bool_()}
    return known.get(member)


__all__ = ["MissingExtra", "arrow_table", "column_table", "data_frame", "require_extra"]
