"""Functions of the vector unit and what each costs in passes over its operand.

Rows are cut into blocks of as many columns as there are lanes; a slot is one block of one row. A row function (softmax,
a norm) makes ``passes`` over its slots and waits ``reductions`` times for values reduced over whole rows before the
next pass can begin. An element function streams all slots once, ``passes`` cycles each. Parameters are read
ahead: ``once`` bytes before everything, and ``setup`` lines ahead of each block where they differ from column to
column. The counts are those of the unit's own micro-program:

======================  ======  ==========  ========================================================================
function                passes  reductions  micro-program
======================  ======  ==========  ========================================================================
softmax                 2       1           running maximum and sum of powers, in one; power and scale
softmax_online          4       2           maximum, power, sum; rescaling by the change of the maximum
layer_norm, rms_norm    2       1           sums of values and squares; scale, 8 lines of parameters per block
gelu, silu              1       0           256 bytes of table once; look up
gated_gelu, gated_silu  1       0           8 bytes of scalars and 256 of table once; look up, two products
add, multiply           1       0           8 bytes of scalars once; one or two products, shift, clip
rope                    2       0           two bytes of cosine or sine per element; two products
requantize              1       0           8 lines of parameters per block; add, multiply, shift, clip
transpose               lanes   0           one element per cycle
others                  1       0           one operation per element
======================  ======  ==========  ========================================================================
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
    TRANSPOSE = "transpose"


ROW_LIMIT = 256
"""Rows of one row function: each has a line of the unit's row memory."""
COLUMN_LIMIT = 1 << 15
"""Columns of one row function."""
SCALAR_BYTES = 8
"""Scalars of a function: two int16 multipliers, a shift, three unused."""
TABLE_BYTES = 256
"""Results of an activation, by the value it is of."""


@dataclass(frozen=True)
class VectorCost:
    """What a function takes of the unit.

    Parameters
    ----------
    passes
        Over the operand, or cycles per slot.
    reductions
        Waits for values reduced over whole rows.
    setup
        Lines of parameters read ahead of each block of columns.
    once
        Bytes of each group of parameters that is read before everything; a group begins on a new line.
    serial
        One element a cycle.
    """

    passes: int = 1
    reductions: int = 0
    setup: int = 0
    once: tuple[int, ...] = ()
    serial: bool = False

    @property
    def by_row(self) -> bool:
        return self.reductions > 0

    def slot_cycles(self, lanes: int) -> int:
        """Cycles that all passes together spend on one block of one row."""
        return lanes if self.serial else self.passes

    def once_lines(self, lanes: int) -> int:
        """Lines of parameters that are read before everything."""
        return sum(-(-size // lanes) for size in self.once)

    def parameter_bytes(self, cols: int, lanes: int) -> int:
        """Bytes of all parameters for ``cols`` columns."""
        return lanes * (self.once_lines(lanes) + self.setup * -(-cols // lanes))


_COSTS = {
    VectorFunction.SOFTMAX: VectorCost(2, 1, once=(SCALAR_BYTES,)),
    VectorFunction.SOFTMAX_ONLINE: VectorCost(4, 2),
    VectorFunction.LAYER_NORM: VectorCost(2, 1, setup=8),
    VectorFunction.RMS_NORM: VectorCost(2, 1, setup=8),
    VectorFunction.TOP_K: VectorCost(1, 1),
    VectorFunction.GELU: VectorCost(once=(TABLE_BYTES,)),
    VectorFunction.SILU: VectorCost(once=(TABLE_BYTES,)),
    VectorFunction.GATED_GELU: VectorCost(once=(SCALAR_BYTES, TABLE_BYTES)),
    VectorFunction.GATED_SILU: VectorCost(once=(SCALAR_BYTES, TABLE_BYTES)),
    VectorFunction.ADD: VectorCost(once=(SCALAR_BYTES,)),
    VectorFunction.MULTIPLY: VectorCost(once=(SCALAR_BYTES,)),
    VectorFunction.ROPE: VectorCost(2),
    VectorFunction.OPTIMIZER: VectorCost(8),
    VectorFunction.REQUANTIZE: VectorCost(setup=8),
    VectorFunction.TRANSPOSE: VectorCost(serial=True),
}

LOOK_UP = frozenset({VectorFunction.GELU, VectorFunction.SILU, VectorFunction.GATED_GELU, VectorFunction.GATED_SILU})
"""Functions with a table of 256 bytes."""
PRODUCTS = frozenset({VectorFunction.MULTIPLY, VectorFunction.GATED_GELU, VectorFunction.GATED_SILU})
"""Functions that multiply two operands."""
NORMS = frozenset({VectorFunction.LAYER_NORM, VectorFunction.RMS_NORM})
FROM_SUMS = frozenset({VectorFunction.REQUANTIZE, VectorFunction.SOFTMAX})
"""Functions whose first operand lies in the accumulator."""
BUILT = frozenset(
    {
        VectorFunction.COPY,
        VectorFunction.KV_APPEND,
        VectorFunction.RELU,
        VectorFunction.ADD,
        VectorFunction.ROPE,
        VectorFunction.TRANSPOSE,
        *LOOK_UP,
        *PRODUCTS,
        *NORMS,
        *FROM_SUMS,
    }
)
"""Functions that have a circuit."""


def vector_cost(function: VectorFunction) -> VectorCost:
    """Cost of ``function``; one pass and no reduction unless the table above says otherwise."""
    return _COSTS.get(function, VectorCost())
