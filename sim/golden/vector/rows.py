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
