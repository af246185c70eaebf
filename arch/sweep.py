"""A sweep: which keys of which machine and workload take which values, how points are chosen, and what is wanted.

``loom sweep FILE.yaml`` reads one (``kind: sweep``, ``loom schema sweep``). Every key of chip, system, workload and
plan that ``--set`` knows may be swept; `siliconloom.sweeps` evaluates the points.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from siliconloom.arch.document import Description, Document, Name, rule_at
from siliconloom.arch.quantity import BANDWIDTH, BYTES, DURATION, ENERGY, FREQUENCY

MOST_LEVELS = 10_000
"""Most values of one key."""
MOST_POINTS = 1_000_000
"""Most points of one sweep."""
Scalar = bool | int | float | str


def _is_given(value: object) -> object:
    if value is None:
        raise PydanticCustomError("given", "must be a value; null, or nothing, is none")
    return value


Value = Annotated[Scalar | list[Any] | dict[str, Any], BeforeValidator(_is_given)]
"""What a key may be set to: whatever YAML writes but null."""
_PATH = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")
_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z][\w/]*)?\s*")

_INTEGER = re.compile(r"\s*[+-]?\d[\d_]*\s*")

BARE: Mapping[str, Decimal] = {}
"""Units of bare numbers."""


class SweepMethod(StrEnum):
    """How the points of a sweep are chosen."""

    GRID = "grid"
    RANDOM = "random"
    LATIN_HYPERCUBE = "latin_hypercube"
    SALTELLI = "saltelli"
    MORRIS = "morris"
    NSGA2 = "nsga2"
    TPE = "tpe"


SEARCHES = (SweepMethod.NSGA2, SweepMethod.TPE)
"""Methods that choose points by what earlier ones came to."""


class Amount(Struct, frozen=True):
    """A number with the unit that it was written with, which may be none."""

    number: Decimal
    unit: str

    @property
    def base(self) -> Decimal:
        """The number in the base unit of its kind."""
        return self.number * self.kind.get(self.unit, Decimal(1))

    @property
    def kind(self) -> Mapping[str, Decimal]:
        """Units of the same kind of quantity; none of a bare number."""
        kinds = (BYTES, BANDWIDTH, FREQUENCY, DURATION, ENERGY)
        return next((units for units in kinds if self.unit in units), BARE)

    def written(self, base: Decimal) -> str:
        """A value of the base unit, in the unit that this one was written with."""
        number = format((base / self.kind.get(self.unit, Decimal(1))).normalize(), "f")
        return f"{number} {self.unit}" if self.unit else number


def amount_of(value: object) -> Amount | None:
    """What a value is as a number with a unit; nothing where it is neither a number nor a quantity."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    found = Amount(Decimal(match[1].replace("_", "")), match[2] or "")
    return found if not found.unit or found.kind is not BARE else None


def typed_levels(levels: Sequence[str]) -> dict[str, bool | int | float | str]:
    """Of each value of a key what tables have: numbers in base units (bytes, bytes/s, Hz, s, J), truth values, or text.

    Values of one key are of one type: numbers where all are numbers, or quantities of one kind. Bytes, bytes a second
    and hertz are whole, as descriptions have them.
    """
    if set(levels) <= {"true", "false"}:
        return {level: level == "true" for level in levels}
    found = {level: amount for level in levels if (amount := amount_of(level)) is not None}
    kinds = [amount.kind for amount in found.values()]
    if len(found) < len(set(levels)) or any(kind is not kinds[0] for kind in kinds):
        return {level: level for level in levels}
    try:
        bases = {level: amount.base for level, amount in found.items()}
        if kinds[0] is DURATION:
            bases = {level: base / DURATION["s"] for level, base in bases.items()}
        whole = kinds[0] in (BYTES, BANDWIDTH, FREQUENCY) or all(_INTEGER.fullmatch(level) for level in levels)
        numbers = {level: round(base) if whole else float(base) for level, base in bases.items()}
    except ArithmeticError:
        return {level: level for level in levels}
    if not all(abs(number) < 2**63 if whole else isfinite(number) for number in numbers.values()):
        return {level: level for level in levels}
    return dict(numbers)


def text_of(value: Value) -> str:
    """A value as ``--set`` takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _amount(value: object, key: str) -> Amount:
    found = amount_of(value)
    if found is None:
        raise rule_at(key, "must be a number or a quantity such as '64 KiB'", value)
    return found


class SweepKey(Description):
    """Values that a key takes: ``values``, or a range ``from``, ``to`` with a ``step`` or a ``factor`` between them.

    A bare list stands for ``values``. Keys named in ``with`` move together with this one: a list of keys that take the
    same value, or of each its own values, as many as this one has.
    """

    values: list[Value] | None = Field(default=None, min_length=1, max_length=MOST_LEVELS)
    start: Scalar | None = Field(default=None, alias="from", description="first value of a range")
    to: Scalar | None = Field(default=None, description="a range ends at the last value that is not beyond this one")
    step: Scalar | None = Field(default=None, description="added from one value to the next")
    factor: float | None = Field(default=None, gt=1, le=1e6, description="from one value to the next")
    linked: list[str] | dict[str, list[Value]] = Field(
        default_factory=list, alias="with", description="keys that move together with this one"
    )

    @model_validator(mode="before")
    @classmethod
    def _bare_list(cls, data: Any) -> Any:
        return {"values": data} if isinstance(data, list) else data

    @model_validator(mode="after")
    def _one_way(self) -> SweepKey:
        if isinstance(self.linked, list) and len(set(self.linked)) < len(self.linked):
            raise rule_at("with", "a key stands twice")
        ranged = {"from": self.start, "to": self.to, "step": self.step, "factor": self.factor}
        given = [name for name, value in ranged.items() if value is not None]
        if self.values is not None and given:
            raise rule_at(given[0], "give values or a range, not both")
        if self.values is None:
            if not given:
                raise ValueError("must be a list of values, or a range with from, to, and step or factor")
            for name in ("from", "to"):
                if ranged[name] is None:
                    raise ValueError(f"the range has no '{name}'")
            if (self.step is None) == (self.factor is None):
                raise ValueError("a range has a step or a factor")
        levels = self.levels
        if len(set(levels)) < len(levels):
            twice = next(level for level in levels if levels.count(level) > 1)
            raise rule_at("values", "a value stands twice", twice)
        others = self.linked.items() if isinstance(self.linked, dict) else []
        for path, values in others:
            if len(values) != len(levels):
                rule = f"'{path}' has {len(values)} values, and the key that it moves with {len(levels)}"
                raise rule_at("with", rule)
        return self

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """The values in order, as ``--set`` takes them."""
        if self.values is not None:
            return tuple(map(text_of, self.values))
        first, last = _amount(self.start, "from"), _amount(self.to, "to")
        self._check_kind(first, last, "to", self.to)
        here, step, factor = first.base, Decimal(0), Decimal(1)
        if self.step is not None:
            added = _amount(self.step, "step")
            self._check_kind(first, added, "step", self.step)
            step = added.base
            if step <= 0:
                raise rule_at("step", "must be greater than zero", self.step)
        else:
            factor = Decimal(str(self.factor))
            if here <= 0:
                raise rule_at("from", "must be greater than zero, as each value is a factor times the one before")
        if here > last.base:
            raise rule_at("to", "is below the range's first value", self.to)
        found = list[str]()
        try:
            while here <= last.base:
                found.append(first.written(here))
                here = here * factor + step
                if len(found) > MOST_LEVELS:
                    raise rule_at("to", f"the range has more than {MOST_LEVELS:,} values", self.to)
        except ArithmeticError:
            raise rule_at("to", "the range has numbers that are too large or too small", self.to) from None
        return tuple(found)

    @staticmethod
    def _check_kind(first: Amount, other: Amount, key: str, value: object) -> None:
        if first.kind is not other.kind:
            raise rule_at(key, "must have a unit of the same kind as 'from'", value)

    def linked_levels(self) -> dict[str, tuple[str, ...]]:
        """The values of the keys that move together with this one, by key."""
        if isinstance(self.linked, dict):
            return {path: tuple(map(text_of, values)) for path, values in self.linked.items()}
        return dict.fromkeys(self.linked, self.levels)


class SweepConstraint(Description):
    """A metric that a point must keep at or below, or at or above, a value; others are in no front."""

    metric: str
    at_most: int | float | str | None = Field(default=None, description="a number in base units, or with a unit: 5 W")
    at_least: int | float | str | None = Field(default=None, description="a number in base units, or with a unit")

    @model_validator(mode="after")
    def _one_side(self) -> SweepConstraint:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("a constraint has at_most or at_least")
        return self


class SweepMapping(Description):
    """How the mapper looks for the mapping of each point; the options of ``loom sim``."""

    search: bool = Field(default=False, description="as --search of loom sim")
    seed: int | None = Field(default=None, ge=0, description="as --seed of loom sim, of a search")
    objective: Literal["time", "energy", "edp", "traffic"] = Field(default="time", description="as --objective")
    placement: Literal["heuristic", "exact", "best"] | None = Field(default=None, description="as --placement")

    @model_validator(mode="after")
    def _of_a_search(self) -> SweepMapping:
        if self.seed is not None and not self.search:
            raise rule_at("seed", "is of a search, and search is false", self.seed)
        return self


class Sweep(Description):
    """A design-space exploration."""

    kind: Literal["sweep"] = "sweep"
    name: Name | None = Field(default=None, description="that of the file where nothing is said")
    description: str = ""
    machine: str = Field(min_length=1, description="chip, GPU or system: a file or a library name")
    workload: str = Field(min_length=1, description="a file or a library name")
    trace: str | None = Field(default=None, min_length=1, description="requests that are served, as in loom serve")
    slo: str | None = Field(default=None, min_length=1, description="as --slo of loom serve, of a trace")
    stack: str | None = Field(default=None, min_length=1, description="as --stack of loom serve, of a trace")
    set: dict[str, Value] = Field(default_factory=dict, description="keys that have one value in all points")
    keys: dict[str, SweepKey] = Field(min_length=1, description="key paths, as --set takes them, and their values")
    method: SweepMethod = SweepMethod.GRID
    points: int | None = Field(default=None, ge=1, le=MOST_POINTS, description="how many, of every method but a grid")
    population: int | None = Field(default=None, ge=2, le=10_000, description="points asked at once of a search")
    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    objectives: list[str] = Field(default_factory=lambda: ["time"], min_length=1, max_length=4)
    constraints: list[SweepConstraint] = Field(default_factory=list)
    mapping: SweepMapping = Field(default_factory=SweepMapping)

    @field_validator("set", "keys", mode="after")
    @classmethod
    def _are_paths(cls, value: dict[str, Any]) -> dict[str, Any]:
        for path in value:
            if not _PATH.fullmatch(path):
                raise PydanticCustomError("path", "'{path}' is no key path such as tile.array.rows", {"path": path})
        return value

    @model_validator(mode="after")
    def _one_meaning(self) -> Sweep:
        if self.method is SweepMethod.GRID:
            for name in ("points", "seed"):
                if name in self.model_fields_set:
                    raise rule_at(name, "changes nothing: a grid has every combination of the keys' values")
        elif self.points is None:
            raise ValueError(f"the key 'points' is missing; method {self.method.value} takes so many")
        if self.population is not None and self.method not in SEARCHES:
            raise rule_at("population", f"is of a search ({', '.join(SEARCHES)})", self.population)
        if self.trace is None:
            for name in ("slo", "stack"):
                if getattr(self, name) is not None:
                    raise rule_at(name, "is of a service, and there is no trace", getattr(self, name))
        elif "mapping" in self.model_fields_set:
            raise rule_at("mapping", "is of single steps, and a trace is served")
        if len(set(self.objectives)) < len(self.objectives):
            raise rule_at("objectives", "an objective stands twice")
        known = list(self.set)
        for path, key in self.keys.items():
            known += [path, *key.linked_levels()]
        swept = known[len(self.set) :]
        for path in swept:
            above = next((other for other in swept if path.startswith(f"{other}.")), None)
            if above is not None:
                raise rule_at("keys", f"the key {path} is a part of {above}, which has values of its own", path)
        for path in known:
            if known.count(path) > 1:
                where = "set" if path in self.set else "keys"
                raise rule_at(where, f"the key path {path} stands twice in set and keys")
        return self


def load_sweep(path: str | Path | Document) -> tuple[Sweep, Document]:
    """A sweep from a YAML file or what was read of it, and its document, which knows where each key stands.

    Raises
    ------
    LoomError
        When there is no such file, or the description breaks a rule.
    """
    document = path if isinstance(path, Document) else Document.load(path)
    document.expect_kind(["sweep"])
    return document.validate(Sweep), document


__all__ = [
    "MOST_POINTS",
    "SEARCHES",
    "Amount",
    "Sweep",
    "SweepConstraint",
    "SweepKey",
    "SweepMapping",
    "SweepMethod",
    "amount_of",
    "load_sweep",
    "text_of",
    "typed_levels",
]
