"""Communication programs: what each rank of a system sends, receives, computes and joins, in order.

A program is a list of entries; an entry gives an ordered list of steps to the ranks it names. A rank does the entries
that name it in the order in which they are written, stream by stream: streams of a rank run side by side. What a
step's peers must do for it to end is said in `siliconloom.mapper.network.rendezvous`.
"""

from __future__ import annotations

import csv
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from siliconloom.arch.document import Description, Document, Name
from siliconloom.arch.errors import LoomError
from siliconloom.arch.inputs import read_table
from siliconloom.arch.network import Algorithm
from siliconloom.arch.quantity import BYTES, Bandwidth, Duration, parse

CALLS_MOST = 2_000_000
RANKS_MOST = 2**20
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier")

_RANGE = re.compile(r"^\s*(\d+)\s*(?:-\s*(\d+)\s*(?::\s*(\d+)\s*)?)?$")
_SHIFT = re.compile(r"^\s*rank\s*([+-])\s*(\d+)\s*$")
_BYTES_HELP = "a number of bytes, or a quantity such as '64 MiB'"


def read_size(value: object) -> float:
    """Bytes from a number or a quantity; none is allowed."""
    plain = isinstance(value, str) and re.fullmatch(r"\s*[\d.]+(?:[eE][+-]?\d+)?\s*", value)
    if plain or (isinstance(value, int | float) and not isinstance(value, bool)):
        found = float(value)  # type: ignore[arg-type]
    else:
        found = float(parse(value, BYTES, "64 MiB"))
    if not 0 <= found <= 2**60:
        raise PydanticCustomError("size", "must be a number of bytes, not negative and at most 2^60", {})
    return found


def _read_ranks(value: object) -> tuple[int, ...] | None:
    """Ranks in the order given; ``None`` for all."""
    if value is None or value == "all":
        return None
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    found: list[int] = []
    for part in parts:
        match = None if isinstance(part, bool | float) else _RANGE.match(str(part))
        if match is None:
            raise PydanticCustomError(
                "ranks", "must be 'all', ranks such as [0, 3], or ranges such as '0-7' or '0-6:2'"
            )
        low = int(match[1])
        high, step = int(match[2] or low), int(match[3] or 1)
        if high < low or step < 1 or high >= RANKS_MOST:
            raise PydanticCustomError("ranks", "a range must rise, by at least 1, and stay under 2^20")
        found += range(low, high + 1, step)
    if not found or len(set(found)) < len(found):
        raise PydanticCustomError("ranks", "must name at least one rank, and none twice")
    return tuple(found)


def _read_peer(value: object) -> tuple[bool, int]:
    """(relative to the rank, number)."""
    if isinstance(value, tuple):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return False, value
    match = _SHIFT.match(str(value))
    if match is None:
        raise PydanticCustomError("peer", "must be a rank, or relative to it such as 'rank+1' or 'rank-1'")
    return True, int(match[1] + match[2])


def _read_exchange(value: object) -> float | str | tuple[tuple[float, ...], ...]:
    """Bytes, a square of bytes from each member to each, or the name of a CSV file of one."""
    if isinstance(value, list | tuple):
        if not all(isinstance(row, list | tuple) and len(row) == len(value) for row in value):
            raise PydanticCustomError("matrix", "must be square: a row for each member, with bytes to each member")
        return tuple(tuple(read_size(cell) for cell in row) for row in value)
    if isinstance(value, str) and value.lower().endswith(".csv"):
        return value
    return read_size(value)


def _described(text: str) -> WithJsonSchema:
    return WithJsonSchema({"type": ["string", "number", "array"], "description": text})


Size = Annotated[float, BeforeValidator(read_size), _described(_BYTES_HELP)]
Ranks = Annotated[tuple[int, ...] | None, BeforeValidator(_read_ranks), _described("all, [0, 3], '0-7' or '0-6:2'")]
Peer = Annotated[tuple[bool, int], BeforeValidator(_read_peer), _described("a rank, or 'rank+1', modulo the ranks")]
Exchange = Annotated[
    float | str | tuple[tuple[float, ...], ...],
    BeforeValidator(_read_exchange),
    _described(f"{_BYTES_HELP}; a square of bytes from each member to each; or a CSV file of one"),
]


class Send(Description):
    """A message to a rank that must receive it."""

    to: Peer
    bytes: Size
    tag: int = Field(default=0, ge=0)


class Receive(Description):
    """The message of that tag that a rank sends; its bytes must agree where given."""

    source: Peer = Field(alias="from")
    bytes: Size | None = None
    tag: int = Field(default=0, ge=0)


class Compute(Description):
    """Work of the rank's own chip."""

    time: Duration


class CollectiveStep(Description):
    """A collective of a group, with nccl-tests' bytes: of a member's whole buffer."""

    group: str = Field(default="all", description="a name of `groups` or `splits`, or all")
    bytes: Size
    algorithm: Algorithm = "auto"


class AllToAll(CollectiveStep):
    """All-to-all of equal parts, or of any sizes."""

    bytes: Exchange  # type: ignore[assignment]


class Broadcast(CollectiveStep):
    """A broadcast from one member."""

    root: int | None = Field(default=None, ge=0, description="a rank of the group; its first one when absent")


class Barrier(Description):
    """Nobody goes on before all members are here."""

    group: str = Field(default="all", description="a name of `groups` or `splits`, or all")


class Single(Description):
    """One operator: exactly one of its keys is given."""

    send: Send | None = None
    receive: Receive | None = None
    compute: Compute | None = None
    all_reduce: CollectiveStep | None = None
    all_gather: CollectiveStep | None = None
    reduce_scatter: CollectiveStep | None = None
    all_to_all: AllToAll | None = None
    broadcast: Broadcast | None = None
    barrier: Barrier | None = None

    @model_validator(mode="after")
    def _one(self) -> Single:
        if len(self.model_fields_set) != 1 or self.chosen is None:
            raise ValueError(f"must have exactly one of {', '.join(type(self).model_fields)}")
        return self

    @property
    def chosen(self) -> Any:
        """What stands under the one key."""
        return getattr(self, next(iter(self.model_fields_set)))


class ProgramStep(Single):
    """One operator, or several that start together and are done when all of them are."""

    together: tuple[Single, ...] | None = Field(default=None, min_length=1)


class Entry(Description):
    """What some ranks do, in order."""

    ranks: Ranks = None
    stream: str = Field(default="main", min_length=1, description="streams of a rank run side by side")
    repeat: int = Field(default=1, ge=1, le=CALLS_MOST)
    do: tuple[ProgramStep, ...] = Field(min_length=1)


class GroupSplit(Description):
    """All ranks in groups of ``size``, ``stride`` apart: 1 for tensor groups, their size for data groups."""

    size: int = Field(ge=1, le=RANKS_MOST)
    stride: int = Field(default=1, ge=1, le=RANKS_MOST)


class Event(Description):
    """A change at a time: a slower chip; a link with other bandwidth, or out of order, until a later event."""

    at: Duration = Field(default=0, description="from the start when absent")
    chip: int | None = Field(default=None, ge=0)
    factor: float | None = Field(
        default=None, gt=0, le=1e6, description="what the chip does takes so many times as long"
    )
    between: tuple[int, int] | None = Field(default=None, description="the two nodes that a link joins")
    bandwidth: Bandwidth | None = None
    failed: bool | None = None

    @model_validator(mode="after")
    def _whole(self) -> Event:
        if (self.chip is None) == (self.between is None):
            raise ValueError("must have either chip, with factor, or between, with bandwidth or failed")
        if self.chip is not None and (self.factor is None or self.bandwidth is not None or self.failed is not None):
            raise ValueError("a chip's event has factor, and neither bandwidth nor failed")
        if self.between is not None and (self.factor is not None or (self.bandwidth is None) == (self.failed is None)):
            raise ValueError("a link's event has either bandwidth or failed, and no factor")
        return self


class Communication(Description):
    """A communication program."""

    kind: Literal["communication"]
    name: Name
    description: str = ""
    groups: dict[Name, Ranks] = Field(default={}, description="ranks by name, in the order of their rings")
    splits: dict[Name, GroupSplit] = Field(default={}, description="partitions of all ranks by name")
    program: tuple[Entry, ...] = Field(min_length=1)
    events: tuple[Event, ...] = ()
    timeout: Duration = Field(default=10_000_000, description="from the loss of a message to when it is sent again")


def load_communication(
    path: str | Path, overrides: list[tuple[str, str]] | None = None
) -> tuple[Communication, Document]:
    """Read a communication program, and where everything in it was written."""
    document = Document.load(path)
    document.override(overrides or [])
    document.expect_kind(["communication"])
    return document.validate(Communication), document


@lru_cache(maxsize=16)
def read_matrix(path: Path) -> tuple[tuple[float, ...], ...]:
    """Square of bytes from each row's rank to each column's, from a CSV file without a header.

    Raises
    ------
    LoomError
        When the file cannot be read, is not square, or holds something else than bytes.
    """
    try:
        rows = [row for row in csv.reader(read_table(path).splitlines()) if row]
    except csv.Error as error:
        raise LoomError(f"{path}: cannot be read: {error}") from None
    found = []
    for line, row in enumerate(rows, 1):
        if len(row) != len(rows):
            raise LoomError(f"{path}:{line}: must have {len(rows)} values, as many as there are rows (got {len(row)})")
        try:
            found.append(tuple(read_size(cell) for cell in row))
        except (PydanticCustomError, ValueError) as error:
            raise LoomError(f"{path}:{line}: {error}") from None
    if not found:
        raise LoomError(f"{path}: the file is empty")
    return tuple(found)
