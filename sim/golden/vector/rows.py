"""Functions of whole rows."""

from siliconloom.arch.vector import VectorFunction
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.vector import Integers, Operands, golden


def _normalize(o: Operands, centred: bool) -> Integers:
    n = o.instruction.n
    bias, gamma, places = (each[:n] for each in o.columns)
    return functions.normalize(o.first[:, :n], gamma, bias, places, centred=centred)


@golden(VectorFunction.LAYER_NORM)
def layer_norm(o: Operands) -> Integers:
    """Rows of mean zero and deviation one, by their columns' multipliers."""
    return _normalize(o, centred=True)


@golden(VectorFunction.RMS_NORM)
def rms_norm(o: Operands) -> Integers:
    """Rows over their root mean squares, by their columns' multipliers."""
    return _normalize(o, centred=False)


@golden(VectorFunction.SOFTMAX)
def softmax(o: Operands) -> Integers:
    """Probabilities of what each row sees."""
    multiplier, _, shift = o.scalars
    return o.softmax(o.first[:, : o.instruction.n], multiplier, shift, o.seen)


@golden(VectorFunction.SOFTMAX_ROWS)
def softmax_rows(o: Operands) -> Integers:
    """The same of elements."""
    return softmax(o)


@golden(VectorFunction.SOFTMAX_ONLINE)
def softmax_online(o: Operands) -> Integers:
    """Powers of what each row sees of a tile; peak and total stay for the next one, in the slot of the powers."""
    i = o.instruction
    multiplier, _, shift = o.scalars
    before = o.rows.before(i.m, 1 - o.slot, i.function.value) if o.add else None
    powers, o.rows.carried[o.slot], o.rows.rises[o.slot] = functions.softmax_online(
        o.first[:, : i.n], multiplier, shift, o.seen, o.lanes, before
    )
    return powers


@golden(VectorFunction.REQUANTIZE_ROWS)
def requantize_rows(o: Operands) -> Integers:
    """Sums over the totals of their rows, each by its column's multiplier."""
    i = o.instruction
    _, total = o.rows.before(i.m, o.second_slot, i.function.value)
    return functions.requantize_rows(o.first, total, *o.columns)
