"""Functions of one element, or of one element of each of two operands."""

import numpy as np

from siliconloom.arch.vector import VectorFunction
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.vector import Integers, Operands, golden


@golden(VectorFunction.COPY, VectorFunction.KV_APPEND, VectorFunction.TRANSPOSE)
def same(o: Operands) -> Integers:
    """The operand; what is transposed is so where it is written."""
    return o.first


@golden(VectorFunction.RELU)
def relu(o: Operands) -> Integers:
    """Nothing below zero."""
    return o.first * (o.first > 0)


@golden(VectorFunction.ADD)
def add(o: Operands) -> Integers:
    """Two operands, each by its multiplier."""
    first, second, shift = o.scalars
    return functions.scaled_sum(o.first, o.second, (first, second), shift)


@golden(VectorFunction.MULTIPLY)
def multiply(o: Operands) -> Integers:
    """Two operands and a multiplier."""
    first, _, shift = o.scalars
    return functions.scaled_product(o.first, o.second, first, shift)


@golden(VectorFunction.REQUANTIZE)
def requantize(o: Operands) -> Integers:
    """Sums, each by its column's multiplier."""
    return functions.requantize(o.first, *o.columns)


@golden(VectorFunction.GELU, VectorFunction.SILU, VectorFunction.TANH)
def look_up(o: Operands) -> Integers:
    """What the table has."""
    return np.asarray(o.table[o.first & 255])


@golden(VectorFunction.GATED_GELU, VectorFunction.GATED_SILU)
def gate(o: Operands) -> Integers:
    """What the table has, by the second operand and a multiplier."""
    first, _, shift = o.scalars
    return functions.scaled_product(look_up(o), o.second, first, shift)


@golden(VectorFunction.ROPE)
def rope(o: Operands) -> Integers:
    """Neighbours turned by angles."""
    return functions.rotate(o.first, o.wide_second)
