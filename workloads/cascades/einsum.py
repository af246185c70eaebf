"""Cascades of extended Einsums as data.

An extended Einsum (Odemuyiwa et al., "The EDGE Language: Extended General Einsums for Graph Algorithms", 2024) names
what every point of an iteration space computes and how points that share an output coordinate are reduced; a cascade
is a list of them over tensors that earlier ones made (Nayak et al., "FuseMax", MICRO 2024, section III). Nothing here
says in which order, where or with how much memory: that is derived (`siliconloom.workloads.cascades.passes`,
`siliconloom.workloads.cascades.traffic`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property

from msgspec import Struct

REDUCTIONS = ("sum", "max", "min")
"""How points that share an output coordinate are joined."""
OPERATORS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
UNARY = ("exp", "log", "log2", "sqrt", "rsqrt", "sigmoid", "silu", "negative")
BINARY = ("max", "min")
FUNCTIONS = (*UNARY, *BINARY)
"""Functions that an Einsum's text may call; operators are functions, too."""


class Coordinate(Struct, frozen=True):
    """One coordinate of an access.

    Parameters
    ----------
    variable
        The rank variable that it follows; empty where it is fixed.
    offset
        What is added to the variable, or the fixed coordinate itself.
    rank
        Where it is fixed: the rank whose extent is added to ``offset``, which names what comes after the last step of
        an iterative rank; empty otherwise.
    """

    variable: str = ""
    offset: int = 0
    rank: str = ""

    def at(self, point: Mapping[str, int], extents: Mapping[str, int]) -> int:
        """The coordinate at a point of the iteration space."""
        return self.offset + (point[self.variable] if self.variable else extents[self.rank] if self.rank else 0)

    def __str__(self) -> str:
        base = self.variable or self.rank
        if not base:
            return str(self.offset)
        return base if not self.offset else f"{base}{self.offset:+d}"


class TensorAccess(Struct, frozen=True):
    """A tensor at coordinates, such as ``RM[m1+1, p]``; of a scalar there are none."""

    tensor: str
    coordinates: tuple[Coordinate, ...] = ()

    @property
    def variables(self) -> tuple[str, ...]:
        """Variables of its coordinates, in order, without fixed ones."""
        return tuple(c.variable for c in self.coordinates if c.variable)

    def __str__(self) -> str:
        return f"{self.tensor}[{', '.join(map(str, self.coordinates))}]" if self.coordinates else self.tensor


class EinsumNumber(Struct, frozen=True):
    """A number in an Einsum's expression; infinities are what running maxima begin with."""

    value: float


class EinsumCall(Struct, frozen=True):
    """A function, or an operator by its name, of one or two expressions."""

    function: str
    arguments: tuple[Expression, ...]


Expression = TensorAccess | EinsumNumber | EinsumCall


class Precedes(Struct, frozen=True):
    """A condition on the points of an iteration space: ``left < right``, or ``left <= right`` unless ``strict``."""

    left: str
    right: str
    strict: bool

    def holds(self, point: Mapping[str, int]) -> bool:
        """Tell whether a point is computed."""
        return point[self.left] < point[self.right] + (not self.strict)


class ExtendedEinsum(Struct, frozen=True, dict=True):
    """One extended Einsum: ``output = expression``, joined by ``reduction`` over variables that the output lacks."""

    output: TensorAccess
    expression: Expression
    reduction: str = "sum"
    conditions: tuple[Precedes, ...] = ()
    text: str = ""

    @property
    def name(self) -> str:
        """The tensor that it makes."""
        return self.output.tensor

    @cached_property
    def inputs(self) -> tuple[TensorAccess, ...]:
        """Accesses that it reads, each once, in the order of the text."""
        return tuple(dict.fromkeys(_accesses(self.expression)))

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """Variables of the iteration space, the output's first."""
        return tuple(dict.fromkeys(v for access in (self.output, *self.inputs) for v in access.variables))

    @property
    def reduced(self) -> tuple[str, ...]:
        """Variables that the output lacks."""
        return tuple(v for v in self.variables if v not in self.output.variables)

    def operations(self) -> Counter[str]:
        """Functions applied at each point, the reduction among them: a product that is summed is one ``mac``."""
        counts = Counter(_calls(self.expression))
        if self.reduced:
            top = self.expression
            if self.reduction == "sum" and isinstance(top, EinsumCall) and top.function == "multiply":
                counts["multiply"] -= 1
                counts["mac"] += 1
            else:
                counts["add" if self.reduction == "sum" else self.reduction] += 1
        return +counts


class Cascade(Struct, frozen=True, dict=True):
    """Extended Einsums over named ranks.

    Parameters
    ----------
    name, description, source
        What it is, and where it was published.
    extents
        Elements along each rank.
    ranks
        The rank of every variable.
    einsums
        In an order in which each reads what an earlier one made, or an iterative rank's step before.
    stream
        The rank along which operands pass by, unless another is asked for.
    outer
        Variables of which a block is worked on at a time.
    grain
        Points of an outer rank that are worked on at once; blocks are multiples of it.
    instances
        How many times the whole cascade is done on other data (sequences times heads).
    """

    name: str
    description: str
    source: str
    extents: dict[str, int]
    ranks: dict[str, str]
    einsums: tuple[ExtendedEinsum, ...]
    stream: str
    outer: tuple[str, ...] = ()
    grain: dict[str, int] = {}
    instances: int = 1

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Tensors that are read and never made."""
        made = {e.name for e in self.einsums}
        return tuple(dict.fromkeys(a.tensor for e in self.einsums for a in e.inputs if a.tensor not in made))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Tensors that are made and never read by another."""
        read = {a.tensor for e in self.einsums for a in e.inputs}
        return tuple(dict.fromkeys(e.name for e in self.einsums if e.name not in read))

    @cached_property
    def intermediates(self) -> tuple[str, ...]:
        """Tensors that are made and read."""
        return tuple(dict.fromkeys(e.name for e in self.einsums if e.name not in self.outputs))

    @property
    def tensors(self) -> tuple[str, ...]:
        """All tensors: inputs, intermediates, outputs."""
        return (*self.inputs, *self.intermediates, *self.outputs)

    def extent(self, variable: str) -> int:
        """Elements along the rank of a variable."""
        return self.extents[self.ranks[variable]]

    def ranks_of(self, tensor: str) -> tuple[str, ...]:
        """Ranks that a tensor's elements lie along; a coordinate that is fixed wherever it stands is none."""
        return self._tensor_ranks[tensor]

    @cached_property
    def _tensor_ranks(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for access in self.accesses():
            known = found.setdefault(access.tensor, [""] * len(access.coordinates))
            for place, coordinate in enumerate(access.coordinates):
                if coordinate.variable:
                    known[place] = self.ranks[coordinate.variable]
                elif coordinate.rank and not known[place]:
                    known[place] = coordinate.rank
        return {tensor: tuple(rank for rank in known if rank) for tensor, known in found.items()}

    def accesses(self) -> Iterator[TensorAccess]:
        """Every access of every Einsum, outputs first."""
        for einsum in self.einsums:
            yield einsum.output
            yield from einsum.inputs

    def size(self, tensor: str) -> int:
        """Elements of a tensor; of one that an iterative rank makes step by step, those of all steps."""
        return math.prod(self.extents[rank] for rank in self.ranks_of(tensor))

    def points(self, einsum: ExtendedEinsum) -> int:
        """Points of an Einsum's iteration space, those that its conditions leave out not counted."""
        total = math.prod(self.extent(v) for v in einsum.variables)
        for condition in einsum.conditions:
            left, right = self.extent(condition.left), self.extent(condition.right)
            more = 0 if condition.strict else 1
            rising = min(right, max(0, left - more))  # coordinates of which not all of the left ones come before
            kept = rising * (rising - 1) // 2 + rising * more + (right - rising) * left
            total = total * kept // (left * right)
        return total

    def operations(self) -> Counter[str]:
        """Functions applied in one instance, all Einsums together."""
        counts: Counter[str] = Counter()
        for einsum in self.einsums:
            for function, times in einsum.operations().items():
                counts[function] += times * self.points(einsum)
        return counts

    def einsum(self, tensor: str) -> ExtendedEinsum:
        """The last Einsum that makes a tensor, which is the step of one with an initial value."""
        return next(e for e in reversed(self.einsums) if e.name == tensor)


def _accesses(expression: Expression) -> Iterator[TensorAccess]:
    if isinstance(expression, TensorAccess):
        yield expression
    elif isinstance(expression, EinsumCall):
        for argument in expression.arguments:
            yield from _accesses(argument)


def _calls(expression: Expression) -> Iterator[str]:
    if isinstance(expression, EinsumCall):
        yield expression.function
        for argument in expression.arguments:
            yield from _calls(argument)


__all__ = [
    "FUNCTIONS",
    "OPERATORS",
    "REDUCTIONS",
    "Cascade",
    "Coordinate",
    "EinsumCall",
    "EinsumNumber",
    "Expression",
    "ExtendedEinsum",
    "Precedes",
    "TensorAccess",
]
