"""Functions of a mixture of experts, and of logits, in floating point."""

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.floats import Words, float_product, float_sum
from siliconloom.arch.vector import VectorFunction
from siliconloom.sim.golden import float_functions
from siliconloom.sim.golden.floating import FloatOperands, in_floats


def _order(o: FloatOperands) -> NDArray[np.int64]:
    return float_functions.order_of(o.first[:, : o.held.instruction.n])


@in_floats(VectorFunction.TOP_K)
def top_k(o: FloatOperands) -> Words:
    """Probabilities of the largest values of each row, of equal ones those of the lower columns."""
    i, order = o.held.instruction, _order(o)
    chosen = np.zeros(order.shape, bool)
    np.put_along_axis(chosen, np.argsort(-order, axis=1, kind="stable")[:, : i.k], True, axis=1)
    t = float_product(o.first[:, : i.n], o.scalars[0])
    return float_functions.softmax(t, chosen, o.held.lanes, stages=o.held.sum_stages)


@in_floats(VectorFunction.COMBINE)
def combine(o: FloatOperands) -> Words:
    """Weighted sums of rows, one row after the other."""
    rows, weights = o.inputs, o.weights
    total = np.full((len(rows), rows.shape[2]), float_functions.MINUS_ZERO)
    for number in range(rows.shape[1]):
        total = float_sum(float_product(rows[:, number], weights[:, number, None]), total)
    return float_product(total, o.scalars[0])


@in_floats(VectorFunction.ARGMAX)
def argmax(o: FloatOperands) -> Words:
    """Parts of the columns in which the largest values stand: bits of elements, and no numbers."""
    found = _order(o).argmax(1).astype("<u4")
    parts: Words = found.view(f"<u{o.dtype.bits // 8}").reshape(len(found), -1).astype(np.uint32)
    return parts
