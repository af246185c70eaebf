"""Functions of one element, or of one element of each of two operands."""

from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.cells.arithmetic import Integers
from siliconloom.rtl.npu.functions.hooks import by_scalar
from siliconloom.rtl.npu.ways import Way, register_circuit, register_way, when

BYTE = Integers(8)

register_circuit(VectorFunction.COPY)
register_circuit(VectorFunction.KV_APPEND)
register_circuit(VectorFunction.TRANSPOSE)

register_way(
    Way(
        name="add",
        order=40,
        multiply=when(factor=lambda stage: stage.m0.as_signed(), other=lambda stage: BYTE.mul(stage.b, stage.m1)),
        places=by_scalar,
    )
)
register_circuit(VectorFunction.ADD, "add")

register_way(
    Way(
        name="product",
        order=50,
        multiply=when(factor=lambda stage: stage.b.as_signed()),
        scale=when(scale=lambda stage: stage.m0.as_signed()),
        late=when(late=lambda stage: stage.shift),
    )
)
register_circuit(VectorFunction.MULTIPLY, "product")

register_way(Way(name="lookup", order=60, operand=when(value=lambda stage: stage.looked_up)))
for _function in (VectorFunction.GELU, VectorFunction.SILU, VectorFunction.TANH):
    register_circuit(_function, "lookup")
for _function in (VectorFunction.GATED_GELU, VectorFunction.GATED_SILU):
    register_circuit(_function, "product", "lookup")

register_way(Way(name="relu", order=70, operand=lambda stage, holds: [(holds & stage.a[-1], {"value": 0})]))
register_circuit(VectorFunction.RELU, "relu")
