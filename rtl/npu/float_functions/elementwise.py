"""Functions of one element, or of one element of each of two operands, and the rotation of neighbours."""

from amaranth import Module, Mux
from amaranth.hdl import Value

from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.cells.float_functions import is_nan
from siliconloom.rtl.npu.float_ways import FloatStage, FloatWay, assigns, register_float_circuit, register_float_way


def second_product(m: Module, stage: FloatStage) -> dict[str, Value]:
    """What the second multiplier has made."""
    return {"addend": stage.value}


for _function in (VectorFunction.COPY, VectorFunction.KV_APPEND, VectorFunction.TRANSPOSE):
    register_float_circuit(_function)

register_float_way(FloatWay(name="add", order=40, multiply=assigns(factor=lambda stage: stage.m0), add=second_product))
register_float_circuit(VectorFunction.ADD, "add")

register_float_way(
    FloatWay(
        name="product",
        order=50,
        multiply=assigns(factor=lambda stage: stage.b),
        late=assigns(factor=lambda stage: stage.m0),
    )
)
register_float_circuit(VectorFunction.MULTIPLY, "product")

register_float_way(
    FloatWay(name="relu", order=70, multiply=assigns(x=lambda stage: Mux(stage.a[-1] & ~is_nan(stage.a), 0, stage.a)))
)
register_float_circuit(VectorFunction.RELU, "relu")

register_float_way(
    FloatWay(
        name="rope",
        order=30,
        multiply=assigns(
            factor=lambda stage: stage.more["cosine"],
            other=lambda stage: stage.more["neighbour"],
            scale=lambda stage: stage.more["sine"],
        ),
        add=second_product,
    )
)
register_float_circuit(VectorFunction.ROPE, "rope")
