"""Activations: the operand by a sigmoid, 1 / (1 + 2^w), of which the first sum is the exponent w; or that sigmoid."""

from amaranth import Cat, Const, Module, Mux
from amaranth.hdl import Value

from siliconloom.arch.numerics import GELU_CUBE, GELU_SLOPE, SILU_SLOPE, TANH_LEAST, TANH_SLOPE
from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.cells.floating import float_multiply, float_sum
from siliconloom.rtl.npu.float_ways import (
    UNIT,
    FloatStage,
    FloatWay,
    assigns,
    register_float_circuit,
    register_float_way,
)

TWO, MINUS_UNIT = Const(0x40000000, 32), Const(0xBF800000, 32)


def by_sigmoid(m: Module, stage: FloatStage) -> dict[str, Value]:
    """The operand by the sigmoid; an infinity times nothing is nothing."""
    a, sigmoid = stage.a, stage.more["sigmoid"]
    left = Mux(a[23:31].all() & ~sigmoid[:-1].any(), Cat(Const(0, 31), a[-1]), a)
    return {"x": stage.held(left), "factor": stage.held(sigmoid)}


def cubic(m: Module, stage: FloatStage) -> dict[str, Value]:
    """The square by a multiple of the operand; beside it what a gate multiplies by."""
    return {
        "x": float_multiply(m, "square", stage.a, stage.a, stage.cut),
        "factor": float_multiply(m, "cube", stage.a, Const(GELU_CUBE, 32), stage.cut),
        "scale": stage.held(stage.m0),
    }


def with_slope(m: Module, stage: FloatStage) -> dict[str, Value]:
    """A multiple of the operand."""
    return {"addend": float_multiply(m, "slope", stage.a, Const(GELU_SLOPE, 32), stage.cut)}


def gated(m: Module, stage: FloatStage) -> dict[str, Value]:
    """What has passed by the second product of the beginning."""
    return {"closed": float_multiply(m, "gated", stage.value, stage.more["gate"], stage.cut)}


def is_small(operand: Value) -> Value:
    """Whether a number is its own tanh."""
    return operand[23:31] < TANH_LEAST


def twice(m: Module, stage: FloatStage) -> dict[str, Value]:
    """The sigmoid by two; a small operand as it is."""
    small = is_small(stage.a)
    x, factor = Mux(small, stage.a, stage.more["sigmoid"]), Mux(small, UNIT, TWO)
    return {"x": stage.held(x), "factor": stage.held(factor)}


def less_one(m: Module, stage: FloatStage) -> dict[str, Value]:
    """What has passed, less one; a small operand as it is."""
    less = float_sum(m, "less_one", stage.value, MINUS_UNIT, stage.cut)
    return {"closed": Mux(stage.held(is_small(stage.a)), stage.held(stage.value), less)}


register_float_way(
    FloatWay(
        name="silu",
        order=80,
        multiply=assigns(factor=lambda stage: Const(SILU_SLOPE, 32), scale=lambda stage: stage.m0),
        late=by_sigmoid,
    )
)
register_float_way(FloatWay(name="gelu", order=85, multiply=cubic, add=with_slope, late=by_sigmoid))
register_float_way(FloatWay(name="gated", order=90, close=gated))
register_float_way(
    FloatWay(
        name="tanh", order=95, multiply=assigns(factor=lambda stage: Const(TANH_SLOPE, 32)), late=twice, close=less_one
    )
)
register_float_circuit(VectorFunction.SILU, "silu")
register_float_circuit(VectorFunction.GELU, "gelu")
register_float_circuit(VectorFunction.TANH, "tanh")
register_float_circuit(VectorFunction.GATED_SILU, "silu", "gated")
register_float_circuit(VectorFunction.GATED_GELU, "gelu", "gated")
