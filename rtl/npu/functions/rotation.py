"""Rotation of neighbours."""

from siliconloom.arch.numerics import ROPE_BITS
from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.npu.ways import Way, register_circuit, register_way, when

register_way(
    Way(
        name="rope",
        order=30,
        multiply=when(
            factor=lambda stage: stage.more["cosine"].as_signed(), other=lambda stage: stage.more["neighbour"]
        ),
        places=when(by=lambda stage: ROPE_BITS),
    )
)
register_circuit(VectorFunction.ROPE, "rope")
