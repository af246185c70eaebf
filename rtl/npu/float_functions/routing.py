"""Functions of a mixture of experts, and of logits: what is chosen, and what is added up, is the unit's business."""

from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.npu.float_ways import FloatWay, assigns, register_float_circuit, register_float_way

register_float_way(
    FloatWay(
        name="values",
        order=-10,  # before the functions of sums, with which a softmax shares its hook
        multiply=assigns(factor=lambda stage: stage.m0),
    )
)
register_float_circuit(VectorFunction.TOP_K, "values", "softmax", "divided")
register_float_circuit(VectorFunction.COMBINE, "product")
register_float_circuit(VectorFunction.ARGMAX)
