"""Functions of a mixture of experts, and of logits: what is chosen, and what is added up, is the unit's business.

While elements are chosen no way holds, and a value goes through a lane as it is.
"""

from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.npu.ways import Way, register_circuit, register_way, when

register_way(
    Way(
        name="values",
        order=-10,  # before the functions of sums, with which a softmax shares its hook
        multiply=when(total=lambda stage: stage.value.as_signed(), factor=lambda stage: stage.m0.as_signed()),
    )
)
register_circuit(VectorFunction.TOP_K, "values", "softmax")
register_circuit(VectorFunction.COMBINE, "product")
register_circuit(VectorFunction.ARGMAX)
