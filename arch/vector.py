"""Functions of the vector unit and what each costs in passes over its operand.

Rows are cut into blocks of as many columns as there are lanes; a slot is one block of one row. A row function (softmax,
a norm) makes ``passes`` over its slots and waits ``reductions`` times for a value reduced over the whole row before the
next pass can begin. An element function streams all slots once, ``passes`` cycles each. Parameters that differ from
column to column are read ahead of each block, ``setup`` lines of them. The counts are those of the
unit's own micro-program:

======================  ======  ==========  =====================================================
function                passes  reductions  micro-program
======================  ======  ==========  =====================================================
softmax                 3       2           row maximum; exponential and sum; scale
softmax_online          4       2           as softmax, plus rescaling by the change of the maximum
layer_norm              3       2           mean; variance; scale and shift
rms_norm                2       1           mean square; scale
gelu, silu              2       0           range reduction; polynomial
gated_gelu, gated_silu  3       0           activation, then the product with the gate
rope                    2       0           two multiply-adds per element
requantize              1       0           8 lines of parameters per block; add, multiply, shift, clip
others                  1       0           one operation per element
======================  ======  ==========  =====================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class VectorFunction(StrEnum):
    """What the vector unit computes."""

    COPY = "copy"
    ADD = "add"
    MULTIPLY = "multiply"
    RELU = "relu"
    GELU = "gelu"
    SILU = "silu"
    GATED_GELU = "gated_gelu"
    GATED_SILU = "gated_silu"
    REQUANTIZE = "requantize"
    LAYER_NORM = "layer_norm"
    RMS_NORM = "rms_norm"
    SOFTMAX = "softmax"
    SOFTMAX_ONLINE = "softmax_online"
    RESCALE = "rescale"
    ROPE = "rope"
    KV_APPEND = "kv_append"
    GATHER = "gather"
    TOP_K = "top_k"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class VectorCost:
    """Passes over the operand, waits for a row-wide reduction, and lines of parameters read per block of columns."""

    passes: int = 1
    reductions: int = 0
    setup: int = 0

    @property
    def by_row(self) -> bool:
        return self.reductions > 0


_COSTS = {
    VectorFunction.SOFTMAX: VectorCost(3, 2),
    VectorFunction.SOFTMAX_ONLINE: VectorCost(4, 2),
    VectorFunction.LAYER_NORM: VectorCost(3, 2),
    VectorFunction.RMS_NORM: VectorCost(2, 1),
    VectorFunction.TOP_K: VectorCost(1, 1),
    VectorFunction.GELU: VectorCost(2),
    VectorFunction.SILU: VectorCost(2),
    VectorFunction.GATED_GELU: VectorCost(3),
    VectorFunction.GATED_SILU: VectorCost(3),
    VectorFunction.ROPE: VectorCost(2),
    VectorFunction.OPTIMIZER: VectorCost(8),
    VectorFunction.REQUANTIZE: VectorCost(setup=8),
}


def vector_cost(function: VectorFunction) -> VectorCost:
    """Cost of ``function``; one pass and no reduction unless the table above says otherwise."""
    return _COSTS.get(function, VectorCost())
