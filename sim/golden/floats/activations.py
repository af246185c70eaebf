"""Activations in floating point."""

from siliconloom.arch.floats import Words, float_product
from siliconloom.arch.vector import VectorFunction
from siliconloom.sim.golden import float_functions
from siliconloom.sim.golden.floating import FloatOperands, in_floats


@in_floats(VectorFunction.SILU)
def silu(o: FloatOperands) -> Words:
    """X by its sigmoid."""
    return float_functions.activation(o.first, cubic=False)


@in_floats(VectorFunction.GELU)
def gelu(o: FloatOperands) -> Words:
    """X by the sigmoid of a polynomial of it."""
    return float_functions.activation(o.first, cubic=True)


@in_floats(VectorFunction.TANH)
def tanh(o: FloatOperands) -> Words:
    """Twice a sigmoid, less one."""
    return float_functions.tanh(o.first)


def _gate(o: FloatOperands, activated: Words) -> Words:
    return float_product(activated, float_product(o.second, o.scalars[0]))


@in_floats(VectorFunction.GATED_SILU)
def gated_silu(o: FloatOperands) -> Words:
    """`silu`, by the second operand and a multiplier."""
    return _gate(o, silu(o))


@in_floats(VectorFunction.GATED_GELU)
def gated_gelu(o: FloatOperands) -> Words:
    """`gelu`, by the second operand and a multiplier."""
    return _gate(o, gelu(o))
