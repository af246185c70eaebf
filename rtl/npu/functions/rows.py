"""Functions of sums and of whole rows. What they keep of a row, and powers of two, are the lane's and the unit's."""

from amaranth import Mux
from amaranth.hdl import Value

from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.npu.functions.hooks import by_scalar
from siliconloom.rtl.npu.ways import Branch, Stage, Way, register_circuit, register_way, when


def from_sums(stage: Stage, holds: Value) -> list[Branch]:
    """The sum with its bias, by the column's multiplier; softmax has none of either, and a scalar."""
    factor = Mux(stage.more["softmax"], stage.m0.as_signed(), stage.multiplier)
    return [(holds, {"total": stage.more["word"].as_signed() + stage.more["biased"], "factor": factor})]


def of_row(stage: Stage, holds: Value) -> list[Branch]:
    """Second pass: the row's factor by the value. First: x * (x + 2^15), the square below, the value above."""
    value = stage.value.as_signed()
    return [
        (stage.more["scales"], {"total": stage.more["row_scale"], "factor": value}),
        (holds, {"factor": value + (1 << 15)}),
    ]


register_way(Way(name="requantize", order=0, multiply=from_sums, places=when(by=lambda stage: stage.column_shift)))
register_circuit(VectorFunction.REQUANTIZE, "requantize")

register_way(
    Way(
        name="softmax",
        order=10,
        multiply=from_sums,
        places=by_scalar,
        scale=when(scale=lambda stage: stage.more["late_scale"]),
        late=when(late=lambda stage: stage.more["late_places"]),
    )
)
register_circuit(VectorFunction.SOFTMAX, "softmax")

register_way(
    Way(
        name="norm",
        order=20,
        multiply=of_row,
        scale=when(scale=lambda stage: stage.multiplier, addend=lambda stage: stage.bias),
        late=when(late=lambda stage: stage.column_shift),
    )
)
register_circuit(VectorFunction.LAYER_NORM, "norm", centred=True)
register_circuit(VectorFunction.RMS_NORM, "norm")
