"""Values of a cascade, element by element: slow, exact to its text, and without a schedule.

An element is computed when it is asked for, from the Einsum whose output coordinates match it; nothing is said of
loops or order. It is what a cascade means, for tests and for small ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.workloads.cascades.einsum import (
    Cascade,
    EinsumCall,
    EinsumNumber,
    Expression,
    ExtendedEinsum,
    TensorAccess,
)

Element = tuple[str, tuple[int, ...]]
FUNCTION: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "negative": lambda a: -a,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: 1 / math.sqrt(a),
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)),
    "silu": lambda a: a / (1 + math.exp(-a)),
    "max": max,
    "min": min,
}
"""What each function of an Einsum's text computes, in float64."""
START = {"sum": 0.0, "max": -math.inf, "min": math.inf}


class CascadeValues:
    """Elements of a cascade's tensors for given inputs."""

    def __init__(self, cascade: Cascade, inputs: Mapping[str, NDArray[np.float64]]) -> None:
        self.cascade, self.inputs = cascade, inputs
        self.known: dict[Element, float] = {}
        missing = [name for name in cascade.inputs if name not in inputs]
        if missing:
            raise LoomError(f"{cascade.name}: no values for its input {missing[0]}")

    def tensor(self, name: str) -> NDArray[np.float64]:
        """All elements of a tensor that lies along its ranks."""
        shape = [self.cascade.extents[rank] for rank in self.cascade.ranks_of(name)]
        found = np.empty(shape)
        for place in itertools.product(*map(range, shape)):
            found[place] = self.element(name, place)
        return found

    def element(self, name: str, place: tuple[int, ...]) -> float:
        """One element."""
        if name in self.inputs:
            return float(self.inputs[name][place])
        key = (name, place)
        if key not in self.known:
            einsum, point = self.producer(name, place)
            self.known[key] = self._reduce(einsum, point)
        return self.known[key]

    def producer(self, name: str, place: tuple[int, ...]) -> tuple[ExtendedEinsum, dict[str, int]]:
        """The Einsum that makes an element, with the output variables' values there."""
        for einsum in self.cascade.einsums:
            point = self._matched(einsum, place) if einsum.name == name else None
            if point is not None:
                return einsum, point
        raise LoomError(f"{self.cascade.name}: no Einsum makes {name}{list(place)}")

    def points(self, einsum: ExtendedEinsum, fixed: Mapping[str, int]) -> list[dict[str, int]]:
        """Points of an iteration space that agree with ``fixed`` and that its conditions keep."""
        free = [v for v in einsum.variables if v not in fixed]
        spaces = itertools.product(*(range(self.cascade.extent(v)) for v in free))
        made = [{**fixed, **dict(zip(free, values, strict=True))} for values in spaces]
        return [point for point in made if all(c.holds(point) for c in einsum.conditions)]

    def coordinates(self, access: TensorAccess, point: Mapping[str, int]) -> tuple[int, ...]:
        """Where an access reads at a point."""
        return tuple(c.at(point, self.cascade.extents) for c in access.coordinates)

    def _matched(self, einsum: ExtendedEinsum, place: tuple[int, ...]) -> dict[str, int] | None:
        point: dict[str, int] = {}
        for coordinate, value in zip(einsum.output.coordinates, place, strict=True):
            if coordinate.variable:
                point[coordinate.variable] = value - coordinate.offset
                if not 0 <= point[coordinate.variable] < self.cascade.extent(coordinate.variable):
                    return None
            elif coordinate.at({}, self.cascade.extents) != value:
                return None
        return point

    def _reduce(self, einsum: ExtendedEinsum, fixed: Mapping[str, int]) -> float:
        values = [self._value(einsum.expression, point) for point in self.points(einsum, fixed)]
        if not einsum.reduced:
            return values[0] if values else 0.0
        if einsum.reduction == "sum":
            return math.fsum(values)
        return FUNCTION[einsum.reduction](START[einsum.reduction], *values)

    def _value(self, expression: Expression, point: Mapping[str, int]) -> float:
        if isinstance(expression, EinsumNumber):
            return expression.value
        if isinstance(expression, EinsumCall):
            return FUNCTION[expression.function](*(self._value(a, point) for a in expression.arguments))
        return self.element(expression.tensor, self.coordinates(expression, point))


__all__ = ["FUNCTION", "CascadeValues"]
