"""Functions of whole rows in floating point."""

import numpy as np

from siliconloom.arch.floats import Words, float_product, float_sum
from siliconloom.arch.vector import RISE_LIMIT, VectorFunction
from siliconloom.sim.golden import float_functions
from siliconloom.sim.golden.floating import FloatOperands, in_floats


def _normalize(o: FloatOperands, *, centred: bool) -> Words:
    i = o.held.instruction
    bias, multiplier = (each[None, : i.n] for each in o.columns)
    epsilon = np.array([i.k & 0xFFFF], np.uint32) << np.uint32(16)
    x, stages = o.first[:, : i.n], o.held.sum_stages
    return float_functions.normalize(x, multiplier, bias, epsilon, o.held.lanes, centred=centred, stages=stages)


@in_floats(VectorFunction.LAYER_NORM)
def layer_norm(o: FloatOperands) -> Words:
    """Rows of mean zero and deviation one, by their columns' multipliers."""
    return _normalize(o, centred=True)


@in_floats(VectorFunction.RMS_NORM)
def rms_norm(o: FloatOperands) -> Words:
    """Rows over their root mean squares, by their columns' multipliers."""
    return _normalize(o, centred=False)


def _exponents(o: FloatOperands) -> Words:
    """Elements or sums by their multiplier: logarithms to the base of two."""
    return float_product(o.first[:, : o.held.instruction.n], o.scalars[0])


@in_floats(VectorFunction.SOFTMAX)
def softmax(o: FloatOperands) -> Words:
    """Probabilities of what each row sees."""
    return float_functions.softmax(_exponents(o), o.seen, o.held.lanes, stages=o.held.sum_stages)


@in_floats(VectorFunction.SOFTMAX_ROWS)
def softmax_rows(o: FloatOperands) -> Words:
    """The same of elements."""
    return softmax(o)


@in_floats(VectorFunction.SOFTMAX_ONLINE)
def softmax_online(o: FloatOperands) -> Words:
    """Powers of what each row sees of a tile; peak and total stay for the next one, in the slot of the powers."""
    held, t = o.held, _exponents(o)
    before = None
    if held.add:
        peak, total = held.rows.before(held.instruction.m, 1 - held.slot, "softmax_online")
        before = peak, total.astype(np.uint32)
    peak, totals = float_functions.reduced(t, o.seen, held.lanes, before, stages=held.sum_stages)
    rise = 0 * peak if before is None else np.minimum(peak - before[0], RISE_LIMIT)
    held.rows.carried[held.slot], held.rows.rises[held.slot] = (peak, totals.astype(np.int64)), rise
    return np.where(o.seen, float_functions.powers_of(t, peak), 0).astype(np.uint32)


@in_floats(VectorFunction.REQUANTIZE_ROWS)
def requantize_rows(o: FloatOperands) -> Words:
    """Sums over the totals of their rows, each by its column's multiplier, and its bias."""
    held = o.held
    _, total = held.rows.before(held.instruction.m, held.second_slot, "requantize_rows")
    bias, multiplier = o.columns
    quotients = float_product(o.first, float_functions.reciprocal(total.astype(np.uint32))[:, None])
    return float_sum(float_product(quotients, multiplier[None, :]), bias[None, :])
