"""Functions of sums and of whole rows. What they keep of a row, and powers of two, are the lane's and the unit's."""

from amaranth import Cat, Module, Mux
from amaranth.hdl import Value

from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.cells.floating import float_sum
from siliconloom.rtl.npu.float_ways import (
    MINUS_ZERO,
    FloatStage,
    FloatWay,
    assigns,
    register_float_circuit,
    register_float_way,
)


def with_bias(m: Module, stage: FloatStage) -> dict[str, Value]:
    """The last product with its column's bias."""
    return {"closed": float_sum(m, "biased", stage.value, stage.bias, stage.cut)}


def less_offset(stage: FloatStage) -> Value:
    """In the second pass the row's offset is taken away; the first one adds nothing to a square."""
    offset = stage.more["offset"]
    return Mux(stage.more["reduce"], MINUS_ZERO, Cat(offset[:-1], ~offset[-1]))


late_columns = assigns(factor=lambda stage: stage.multiplier)
"""The last product is by the column's multiplier."""

register_float_way(
    FloatWay(
        name="requantize",
        order=0,
        multiply=assigns(x=lambda stage: stage.value, factor=lambda stage: stage.multiplier),
        add=assigns(addend=lambda stage: stage.bias),
    )
)
register_float_circuit(VectorFunction.REQUANTIZE, "requantize")

register_float_way(
    FloatWay(
        name="softmax",
        order=10,
        multiply=assigns(x=lambda stage: stage.value, factor=lambda stage: stage.m0),
        late=assigns(x=lambda stage: stage.more["power"]),
    )
)
register_float_way(
    FloatWay(
        name="divided",
        order=5,  # before softmax, which leaves powers as they are
        late=assigns(x=lambda stage: stage.more["power"], factor=lambda stage: stage.more["row_scale"]),
    )
)
register_float_way(
    FloatWay(
        name="elements",
        order=8,  # before softmax, which takes sums
        multiply=assigns(x=lambda stage: stage.a, factor=lambda stage: stage.m0),
    )
)
register_float_circuit(VectorFunction.SOFTMAX, "softmax", "divided")
register_float_circuit(VectorFunction.SOFTMAX_ROWS, "elements", "softmax", "divided")
register_float_circuit(VectorFunction.SOFTMAX_ONLINE, "softmax")

register_float_way(
    FloatWay(
        name="norm",
        order=20,
        multiply=assigns(factor=lambda stage: Mux(stage.more["reduce"], stage.a, stage.more["row_scale"])),
        add=assigns(addend=less_offset),
        late=late_columns,
        close=with_bias,
    )
)
register_float_way(FloatWay(name="centred", order=22))
register_float_circuit(VectorFunction.LAYER_NORM, "norm", "centred")
register_float_circuit(VectorFunction.RMS_NORM, "norm")

register_float_way(
    FloatWay(
        name="closing",
        order=25,
        multiply=assigns(x=lambda stage: stage.value, factor=lambda stage: stage.more["row_scale"]),
        late=late_columns,
        close=with_bias,
    )
)
register_float_circuit(VectorFunction.REQUANTIZE_ROWS, "closing")
