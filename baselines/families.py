"""Which measured rows a model may be fitted to, and which it is judged on: whole families of shapes, never single rows.

Neighbouring sizes of one family lie so close together that a row withheld from it would be no test.
"""

from __future__ import annotations

import numpy as np

from siliconloom.baselines.operations import ATTENTION, ELEMENTWISE, MODELS, Bool, Op, Operations
from siliconloom.baselines.tables import Table

WITHHELD_WIDTHS = (1536, 3584, 5120, 10240, 11008, 14336, 51200)
"""A product is withheld when its n or its k is one of these."""
WITHHELD_HEADS = (5, 12, 20, 40, 96)
"""Attention is withheld when it has that many query heads."""
WITHHELD_EXPERTS = (3, 16, 20, 64)
"""A grouped product is withheld when it has that many experts, or its rows are dealt by chance."""
WITHHELD_COLLECTIVES = (
    (Op.ALL_REDUCE, 2),
    (Op.ALL_REDUCE, 4),
    (Op.ALL_GATHER, 2),
    (Op.REDUCE_SCATTER, 8),
    (Op.ALL_TO_ALL, 8),
)
"""Collectives that are withheld, with the number of GPUs."""
WITHHELD_DIVISOR = 5
"""An element-wise operation is withheld when its columns are a multiple of this."""


def split(table: Table | Operations) -> tuple[Bool, Bool]:
    """Masks of the rows to fit to, and of the rows to judge by; each row is in one of them.

    Whole models and layers are always judged, never fitted to.
    """
    o = table.operations if isinstance(table, Table) else table
    test = o.among(*MODELS)
    test |= o.among(Op.GEMM) & (np.isin(o.n, WITHHELD_WIDTHS) | np.isin(o.k, WITHHELD_WIDTHS))
    test |= o.among(Op.GROUPED_GEMM) & (np.isin(o.batch, WITHHELD_EXPERTS) | o.by_chance())
    test |= o.among(*ATTENTION) & np.isin(o.heads, WITHHELD_HEADS)
    for op, gpus in WITHHELD_COLLECTIVES:
        test |= o.among(op) & (o.gpus == gpus)
    test |= o.among(*ELEMENTWISE) & (o.n % WITHHELD_DIVISOR == 0)
    return ~test, test


__all__ = ["WITHHELD_COLLECTIVES", "WITHHELD_DIVISOR", "WITHHELD_EXPERTS", "WITHHELD_HEADS", "WITHHELD_WIDTHS", "split"]
