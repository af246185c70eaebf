"""Cascades as YAML: ``loom cascade NAME``.

``ranks`` are extents; a rank may be a quotient or a product of others (``M1: M / M0``). Every rank has a variable, its
name in lower case; ``variables`` adds further ones (``j: I``). ``stream`` is the rank along which operands pass by,
``outer`` the ranks of which a block is worked on at a time, ``grain`` what a block is a multiple of, ``repeat`` the
ranks over which the whole cascade is repeated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from siliconloom.arch.document import Description, Document, Name
from siliconloom.arch.errors import DescriptionError, Position, nearest_name
from siliconloom.workloads.cascades.einsum import Cascade, ExtendedEinsum
from siliconloom.workloads.cascades.names import LIBRARY, cascade_names
from siliconloom.workloads.cascades.text import EinsumTextError, parse_einsum

Rank = Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]*$", max_length=20)]
Variable = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*$", max_length=20)]
Extent = Annotated[int, Field(ge=1, le=1 << 40)]
Derived = Annotated[str, Field(max_length=60)]
DERIVED = re.compile(r"\s*(\w+)\s*([*/])\s*(\w+)\s*")
MOST_EINSUMS = 100


class CascadeDescription(Description):
    """A cascade's file."""

    kind: Literal["cascade"]
    name: Name
    description: str = ""
    source: str = ""
    ranks: Annotated[dict[Rank, Extent | Derived], Field(min_length=1, max_length=40)]
    variables: dict[Variable, Rank] = Field(default={}, max_length=40)
    stream: Rank
    outer: list[Rank] = Field(default=[], max_length=3)
    grain: dict[Rank, Rank | Extent] = Field(default={}, max_length=40)
    repeat: list[Rank] = Field(default=[], max_length=40)
    einsums: Annotated[list[str], Field(min_length=1, max_length=MOST_EINSUMS)]


def load_cascade(name: str, sets: Sequence[tuple[str, str]] = ()) -> Cascade:
    """Read a cascade from a file or the library.

    ``sets`` are overrides; a rank may be named alone (``M=65536``), of a whole cascade any key by its path.
    """
    names = cascade_names()
    path = LIBRARY / f"{name}.yaml" if name in names else Path(name)
    if name not in names and not path.exists():
        near = nearest_name(name, names)
        hint = f"did you mean '{near}'?" if near else f"known: {', '.join(names)}"
        raise DescriptionError(f"no such file, and no cascade of the library; {hint}", position=Position(name))
    document = Document.load(path)
    document.expect_kind(("cascade",))
    ranks = document.data.get("ranks")
    known = list(map(str, ranks)) if isinstance(ranks, dict) else []
    for key, value in sets:
        alone = key[:1].isupper() and "." not in key
        document.override([(f"ranks.{key}" if alone else key, value)])
        rank = key if alone else key.removeprefix("ranks.") if key.startswith("ranks.") else ""
        if rank and rank not in known:
            rule = f"{name} has no rank {rank}; ranks: {', '.join(known)}"
            raise document.error(rule, ("ranks", rank), nearest=nearest_name(rank, known))
    return build_cascade(document)


def build_cascade(document: Document) -> Cascade:
    """The cascade of a document; raises `DescriptionError` with file, line and column."""
    read = document.validate(CascadeDescription)
    extents = _extents(read, document)
    for key in ("outer", "repeat"):
        for place, rank in enumerate(getattr(read, key)):
            _known(rank, extents, document, (key, place))
    _known(read.stream, extents, document, ("stream",))
    variables = {rank.lower(): rank for rank in extents}
    for variable, rank in read.variables.items():
        _known(rank, extents, document, ("variables", variable))
        if variable in variables:
            raise document.error(f"{variable} is the variable of rank {variables[variable]}", ("variables", variable))
        variables[variable] = rank
    grain = {}
    for rank, value in read.grain.items():
        _known(rank, extents, document, ("grain", rank))
        grain[rank] = _known(value, extents, document, ("grain", rank)) if isinstance(value, str) else value
    einsums = [_einsum(text, place, variables, document) for place, text in enumerate(read.einsums)]
    walked = {variables[variable] for einsum in einsums for variable in einsum.variables}
    for place, rank in enumerate(read.repeat):
        if rank in walked or rank == read.stream:
            raise document.error(
                "is walked by the cascade, which is repeated as a whole", ("repeat", place), value=rank
            )
    if read.stream in read.outer:
        rule = "tiles of the rank that is streamed are no blocks around it"
        raise document.error(rule, ("outer", read.outer.index(read.stream)), value=read.stream)
    made = Cascade(
        read.name,
        read.description,
        read.source,
        extents,
        variables,
        tuple(einsums),
        read.stream,
        tuple(rank.lower() for rank in read.outer),
        grain,
        math.prod(extents[rank] for rank in read.repeat),
    )
    _check_tensors(made, document)
    return made


def _known(rank: str, extents: dict[str, int], document: Document, path: tuple[str | int, ...]) -> int:
    if rank not in extents:
        rule = f"no rank of that name; ranks: {', '.join(extents)}"
        raise document.error(rule, path, value=rank, nearest=nearest_name(rank, extents))
    return extents[rank]


def _extents(read: CascadeDescription, document: Document) -> dict[str, int]:
    """Extents of all ranks, those that are quotients or products of others among them."""
    found = {rank: value for rank, value in read.ranks.items() if isinstance(value, int)}
    waiting = {rank: value for rank, value in read.ranks.items() if isinstance(value, str)}
    while waiting:
        ready = 0
        for rank, text in list(waiting.items()):
            match = DERIVED.fullmatch(text)
            if not match:
                raise document.error("must be a number, A / B or A * B of other ranks", ("ranks", rank), value=text)
            sides = [int(word) if word.isdigit() else found.get(word) for word in match.group(1, 3)]
            for word in match.group(1, 3):
                if not word.isdigit() and word not in read.ranks:
                    near = nearest_name(word, read.ranks)
                    raise document.error(f"no rank {word}", ("ranks", rank), value=text, nearest=near)
            left, right = sides
            if left is None or right is None:
                continue
            if match[2] == "/" and (not right or left % right):
                raise document.error(f"{left} is not a multiple of {right}", ("ranks", rank), value=text)
            found[rank] = left // right if match[2] == "/" else left * right
            del waiting[rank]
            ready += 1
        if not ready:
            rank = next(iter(waiting))
            raise document.error("ranks are made of one another in a circle", ("ranks", rank), value=waiting[rank])
    return {rank: found[rank] for rank in read.ranks}


def _einsum(text: str, place: int, variables: dict[str, str], document: Document) -> ExtendedEinsum:
    try:
        return parse_einsum(text, variables)
    except EinsumTextError as error:
        where = document.position(("einsums", place))
        if where.column is not None:
            where = Position(where.source, where.line, where.column + error.place)
        raise DescriptionError(
            error.rule, position=where, path=f"einsums.{place}", value=text, nearest=error.nearest
        ) from None


def _check_tensors(cascade: Cascade, document: Document) -> None:
    """Every tensor has one number of coordinates, one rank for each, and is made before it is read."""
    shapes: dict[str, list[str]] = {}
    made, will = set[str](), {e.name for e in cascade.einsums}
    places = set[str]()
    for place, einsum in enumerate(cascade.einsums):
        if str(einsum.output) in places:
            raise document.error(f"{einsum.output} is made twice", ("einsums", place), value=einsum.text)
        places.add(str(einsum.output))
        for access in (*einsum.inputs, einsum.output):
            known = shapes.setdefault(access.tensor, [""] * len(access.coordinates))
            if len(known) != len(access.coordinates):
                rule = f"{access.tensor} has {len(known)} coordinates elsewhere"
                raise document.error(rule, ("einsums", place), value=str(access))
            for at, coordinate in enumerate(access.coordinates):
                rank = cascade.ranks[coordinate.variable] if coordinate.variable else coordinate.rank
                if rank and known[at] and rank != known[at]:
                    rule = f"coordinate {at + 1} of {access.tensor} is along {known[at]} elsewhere, not {rank}"
                    raise document.error(rule, ("einsums", place), value=str(access))
                known[at] = known[at] or rank
        before = [e for e in cascade.einsums[:place] if e.name == einsum.name]
        if any(a.tensor == einsum.name for a in einsum.inputs) and not before:
            raise document.error(f"{einsum.name} has no value to begin with", ("einsums", place), value=einsum.text)
        later = [a for a in einsum.inputs if a.tensor in will and a.tensor not in made and a.tensor != einsum.name]
        if later:
            raise document.error(f"{later[0].tensor} is read before it is made", ("einsums", place), value=einsum.text)
        made.add(einsum.name)


__all__ = ["CascadeDescription", "build_cascade", "load_cascade"]
