"""Which vector function an instruction in front of the unit has, as conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import Any

from amaranth import Cat, Const
from amaranth.hdl import Value

from siliconloom.arch.vector import FunctionSpec, VectorFunction, functions_with


def built(condition: Callable[[FunctionSpec], bool]) -> set[VectorFunction]:
    """Functions with a circuit whose spec meets a condition."""
    return set(functions_with(lambda spec: spec.circuit and condition(spec)))


def any_of(functions: Iterable[VectorFunction], fields: Any) -> Value:
    """Whether an instruction's function is one of these."""
    return Cat(*(fields.function == function.code for function in sorted(functions))).any()


def one_of(functions: Iterable[VectorFunction], fields: Any) -> Value:
    """As `any_of`, of few functions: no more than a comparison for one."""
    return joined([fields.function == function.code for function in sorted(functions)])


def joined(conditions: list[Value]) -> Value:
    """Whether any of these holds."""
    return reduce(or_, conditions) if conditions else Const(0, 1)


__all__ = ["any_of", "built", "joined", "one_of"]
