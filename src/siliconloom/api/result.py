"""A result of any kind as an object: attributes of its schema, data frames, pages and plots."""

from __future__ import annotations

import copy
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from pydantic import BaseModel

from siliconloom.arch.compared import COMPARE_SCHEMA, ComparedOperator
from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.arch.kept_result import SCHEMAS
from siliconloom.arch.quantity import format_si
from siliconloom.arch.served import SERVING_SCHEMA
from siliconloom.arch.swept import SWEEP_SCHEMA, typed_values

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from matplotlib.axes import Axes


OWN_TIMES = frozenset({"simulator", "wall_s", "map_s"})
"""Keys of what the machine that answered took for it."""


class NoSuchPart(LoomError, AttributeError):
    """A result has no part of that name; the text says which it has."""


class NoSuchKey(LoomError, KeyError):
    """A result has no key of that name; the text says which is meant."""

    __str__ = Exception.__str__  # a `KeyError` shows its key as Python writes it


class Unchangeable(LoomError, AttributeError):
    """A result is what was found: its keys take no other values."""


class Result:
    """The answer to one question: of `simulate`, `plan`, `compare`, `serve`, `verify`, `sweep` or `generate_rtl`.

    Every key of its schema (``loom schema result``) is an attribute, and so are the keys of its parts:
    ``result.seconds``, ``result.bound.achieved``. ``result["seconds"]`` is the same as plain data.

    No key takes another value: `to_dict` is a copy to change. Two results are equal where all that was asked and found
    is, whatever time this machine took for it (``simulator``, ``wall_s``).

    Parameters
    ----------
    data
        Plain data, as the command writes it with ``--json``.
    source
        The object that the data was made from: a `Simulation`, a `Bundle` of RTL, a record of a verification.
    """

    def __init__(self, data: dict[str, Any], source: object = None) -> None:
        self._data, self._source = data, source
        self._tables: dict[str, pyarrow.Table] = {}
        self._typed: BaseModel | None = source if isinstance(source, BaseModel) else None

    @property
    def source(self) -> Any:
        """The Python object beneath, where there is one."""
        return self._source

    @property
    def operators(self) -> pandas.DataFrame:
        """Operators as a data frame: of a step a row each, of a comparison a row for each of them and each machine."""
        return self.frame("operators")

    def frame(self, part: str = "operators") -> pandas.DataFrame:
        """A part of the result as a data frame: ``operators``, ``units``, ``alternatives``, ``machines``, ``cases``.

        A service has ``requests`` (a row for each of them), ``timeline`` and ``replicas``.

        Raises
        ------
        LoomError
            When there is no such part, or pandas or pyarrow are not installed.
        """
        from siliconloom.api.frames import data_frame

        found: pandas.DataFrame = data_frame(self.to_arrow(part))
        return found

    def to_arrow(self, part: str = "operators") -> pyarrow.Table:
        """A part of the result as an Arrow table, the same one every time; `frame` is over its memory.

        Raises
        ------
        LoomError
            When there is no such part, or pyarrow is not installed.
        """
        from siliconloom.api.frames import arrow_table, column_table, ends_first

        if part not in self._tables:
            if self._served() and part in ("requests", "timeline"):
                self._tables[part] = column_table(self._columns(part))
            else:
                rows, model = self._rows(part)
                self._tables[part] = ends_first(arrow_table(rows, model))
        return self._tables[part]

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The operators, of a service its requests, for what reads Arrow's C stream: ``polars.DataFrame(result)``."""
        return self.to_arrow("requests" if self._served() else "operators").__arrow_c_stream__(requested_schema)

    def to_dict(self) -> dict[str, Any]:
        """Plain data under the keys of the schema, a copy."""
        return copy.deepcopy(self._data)

    def to_json(self, path: str | PathLike[str]) -> None:
        """Write the data as JSON, as the command does with ``--json``; the file is replaced in one step."""
        from siliconloom.render.output import write_json

        write_json(fspath(path), self._data)

    def plot_operators(self, axes: Axes | None = None, most: int = 12) -> Axes:
        """Draw bars of the seconds that the longest operators take; needs matplotlib.

        Parameters
        ----------
        axes
            Where to draw; new axes if not given.
        most
            How many operators.
        """
        from siliconloom.api.frames import require_extra

        require_extra(("matplotlib",), "plots", "a plot")
        from siliconloom.render.plots import plot_operators

        self._rows("operators")
        return plot_operators(self._data, axes, most)

    def plot_roofline(self, axes: Axes | None = None) -> Axes:
        """Draw operators under the roofs of arithmetic and main memory, of a step on one of our chips.

        Raises
        ------
        LoomError
            Of other results, which have no traffic by operator, and without matplotlib.
        """
        from siliconloom.api.frames import require_extra

        require_extra(("matplotlib",), "plots", "a plot")
        from siliconloom.render.plots import plot_roofline

        return plot_roofline(self._data, axes)

    def plot_energy(self, axes: Axes | None = None) -> Axes:
        """Draw bars of a step's energy by component, of a comparison's by machine; needs matplotlib.

        Raises
        ------
        LoomError
            Of plans, which have no energies, and without matplotlib.
        """
        from siliconloom.api.frames import require_extra

        require_extra(("matplotlib",), "plots", "a plot")
        from siliconloom.render.plots import plot_energy

        return plot_energy(self._data, axes)

    def plot_latency(self, axes: Axes | None = None) -> Axes:
        """Draw percentiles of a service's times: the share of requests or tokens that waited no longer.

        Raises
        ------
        LoomError
            Of other results, and without matplotlib.
        """
        from siliconloom.api.frames import require_extra

        require_extra(("matplotlib",), "plots", "a plot")
        from siliconloom.render.plots import plot_latency

        return plot_latency(self._data, axes)

    def plot_timeline(self, axes: Axes | None = None) -> Axes:
        """Draw a service over time: tokens of answers a second, and requests that run and wait.

        Raises
        ------
        LoomError
            Of other results, and without matplotlib.
        """
        from siliconloom.api.frames import require_extra

        require_extra(("matplotlib",), "plots", "a plot")
        from siliconloom.render.plots import plot_timeline

        return plot_timeline(self._data, axes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name == "operators":  # the property found none
            self._no(name, "rows")
        if name not in self._keys():
            self._no(name)
        return getattr(self._model(), "schema_" if name == "schema" else name)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            raise Unchangeable(f"{name}: a result cannot be changed; to_dict() is a copy that can")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if not name.startswith("_"):
            raise Unchangeable(f"{name}: a result cannot be changed; to_dict() is a copy that can")
        super().__delattr__(name)

    def __eq__(self, other: object) -> bool:
        return _found(self._data) == _found(other._data) if isinstance(other, Result) else NotImplemented

    def __hash__(self) -> int:
        asked = self._data.get("asked")
        return hash((self._data.get("schema"), repr(asked), self._data.get("seconds")))

    def __getitem__(self, key: str) -> Any:
        if key not in self._data:
            raise NoSuchKey(self._missing(key, "key"))
        return self._data[key]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._keys()]

    def __repr__(self) -> str:
        named = self._data.get("chip") or self._data.get("system") or self._data.get("asked", {}).get("machine")
        seconds = self._data.get("seconds", self._data.get("step_s", self._data.get("duration_s")))
        workload = self._data.get("workload") or (self._data["asked"]["workload"] if self._served() else None)
        parts = [self._data.get("schema", "rtl"), workload, named]
        if seconds is not None:
            parts.append(format_si(seconds, "s"))
        return f"<Result {', '.join(str(part) for part in parts if part)}>"

    def __str__(self) -> str:
        from siliconloom.render.notebook import result_text

        return result_text(self._data, self._source)

    def _repr_html_(self) -> str:
        from siliconloom.render.notebook import result_html

        return result_html(self._data, self._source)

    def _served(self) -> bool:
        """Whether it is of a service."""
        return self._data.get("schema") == SERVING_SCHEMA

    def _columns(self, part: str) -> dict[str, Any]:
        """Columns of a part of a service: those of its requests come from the run itself."""
        if part == "timeline":
            return dict(self._data["timeline"])
        from siliconloom.evaluate.served import request_table

        if self._source is None:
            self._no(part, "rows")
        return request_table(self.source)

    def _keys(self) -> list[str]:
        model = SCHEMAS.get(self._data.get("schema", ""))
        if model is None:
            return list(self._data)
        return [field.alias or name for name, field in model.model_fields.items()]

    def _model(self) -> Any:
        """The data as objects of its schema; as plain data where it has none in Python."""
        if self._typed is None:
            model = SCHEMAS.get(self._data.get("schema", ""))
            if model is None:
                return _Plain(self._data)
            self._typed = model.model_validate(self._data)
        return self._typed

    def _rows(self, part: str) -> tuple[list[dict[str, Any]], type[BaseModel] | None]:
        """Rows of a part, and the schema of each."""
        found = self._data.get(part)
        if part == "operators" and self._data.get("schema") == COMPARE_SCHEMA:
            rows = [
                {"name": row["name"], "machine": machine, **{k: v for k, v in cells.items() if k != "kernels"}}
                for row in self._data[part]
                for machine, cells in row["machines"].items()
                if cells is not None
            ]
            return rows, None if not rows else _compared_model()
        if isinstance(found, dict) and found and all(isinstance(each, dict) for each in found.values()):
            return [{"name": name, **each} for name, each in found.items()], None
        if isinstance(found, list) and found and all(isinstance(each, dict) for each in found):
            model = SCHEMAS.get(self._data.get("schema", ""))
            if part == "points" and self._data.get("schema") == SWEEP_SCHEMA:
                values = typed_values(self._data["asked"], found)
                return [{**row, "values": typed} for row, typed in zip(found, values, strict=True)], None
            return found, None if model is None else _row_model(model, part)
        self._no(part, "rows")

    def _no(self, name: str, what: str = "part") -> NoReturn:
        raise NoSuchPart(self._missing(name, what))

    def _missing(self, name: str, what: str) -> str:
        near = nearest_name(str(name), self._keys())
        hint = f"; did you mean '{near}'?" if near and near != name else ""
        return f"a result of {self._data.get('schema', 'rtl')} has no {what} of the name '{name}'{hint}"


def _found(data: Any) -> Any:
    """The data without what this machine took to find them."""
    if isinstance(data, dict):
        return {key: _found(value) for key, value in data.items() if key not in OWN_TIMES}
    return [_found(each) for each in data] if isinstance(data, list) else data


class _Plain:
    """Attributes of plain data."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.__dict__.update(data)


def _row_model(model: type[BaseModel], part: str) -> type[BaseModel] | None:
    """Schema of the rows of a part that is a list."""
    field = model.model_fields.get(part)
    inner = get_args(field.annotation) if field is not None else ()
    return inner[0] if inner and isinstance(inner[0], type) and issubclass(inner[0], BaseModel) else None


def _compared_model() -> type[BaseModel]:
    from pydantic import create_model

    fields: Any = {name: (f.annotation, None) for name, f in ComparedOperator.model_fields.items() if name != "kernels"}
    return create_model("ComparedCells", name=(str, ...), machine=(str, ...), **fields)


__all__ = ["NoSuchKey", "NoSuchPart", "Result"]
