"""Functions of sums and of whole rows. What they keep of a row, and powers of two, are the lane's and the unit's."""

from amaranth import Const, Mux
from amaranth.hdl import Value

from siliconloom.arch.numerics import CLOSING_BITS, EXP2_ONE, ONE
from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.npu.functions.hooks import by_scalar
from siliconloom.rtl.npu.ways import FACTOR_BITS, Branch, Stage, Way, register_circuit, register_way, when


def from_sums(stage: Stage, holds: Value) -> list[Branch]:
    """The sum with its bias, by the column's multiplier; softmax has none of either, and a scalar."""
    factor = Mux(stage.more["softmax"], stage.m0.as_signed(), stage.multiplier)
    return [(holds, {"total": stage.more["word"].as_signed() + stage.more["biased"], "factor": factor})]


def finer(shift: Value) -> Value:
    """The places of a value that has `CLOSING_BITS` more; those of a shift that leaves nothing stay as they are."""
    return Mux(shift[3:].all(), shift, shift + CLOSING_BITS)


def of_row(stage: Stage, holds: Value) -> list[Branch]:
    """Second pass: the row's factor by the value. First: x * (x + 2^15), the square below, the value above."""
    value = stage.value.as_signed()
    return [
        (stage.more["scales"], {"total": stage.more["row_scale"], "factor": value}),
        (holds, {"factor": value + (1 << 15)}),
    ]


def of_total(stage: Stage, holds: Value) -> list[Branch]:
    """The sum by the reciprocal of its row's total."""
    return [(holds, {"total": stage.more["word"].as_signed(), "factor": stage.more["row_scale"][: FACTOR_BITS - 1]})]


late_columns = when(scale=lambda stage: stage.multiplier, addend=lambda stage: stage.bias)
"""The second product is by the column's multiplier, and has its bias."""

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
        name="elements",
        order=-8,  # as of those that are chosen, before the functions of sums: a softmax shares their hook
        multiply=when(total=lambda stage: stage.value.as_signed(), factor=lambda stage: stage.m0.as_signed()),
    )
)
register_circuit(VectorFunction.SOFTMAX_ROWS, "elements", "softmax")

register_way(
    Way(
        name="online",
        order=-5,  # before softmax, whose powers it takes as they are
        scale=when(scale=lambda stage: Const(ONE)),
        late=when(late=lambda stage: Const(EXP2_ONE)),
    )
)
register_circuit(VectorFunction.SOFTMAX_ONLINE, "online", "softmax")

register_way(
    Way(
        name="closing",
        order=25,
        multiply=of_total,
        places=when(by=lambda stage: stage.more["row_places"]),
        scale=late_columns,
        late=when(late=lambda stage: finer(stage.column_shift)),
    )
)
register_circuit(VectorFunction.REQUANTIZE_ROWS, "closing")

register_way(
    Way(name="norm", order=20, multiply=of_row, scale=late_columns, late=when(late=lambda stage: stage.column_shift))
)
register_circuit(VectorFunction.LAYER_NORM, "norm", centred=True)
register_circuit(VectorFunction.RMS_NORM, "norm")
