"""Functions of a mixture of experts, and of logits."""

import numpy as np

from siliconloom.arch.vector import INDEX_BYTES, VectorFunction
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.vector import Integers, Operands, golden


@golden(VectorFunction.TOP_K)
def top_k(o: Operands) -> Integers:
    """Probabilities of the largest values of each row."""
    multiplier, _, shift = o.scalars
    i = o.instruction
    return functions.top_k(o.first[:, : i.n], i.k, multiplier, shift, o.lanes)


@golden(VectorFunction.COMBINE)
def combine(o: Operands) -> Integers:
    """Weighted sums of rows."""
    multiplier, _, shift = o.scalars
    return functions.weighted_sum(o.inputs, o.weights, multiplier, shift)


@golden(VectorFunction.ARGMAX)
def argmax(o: Operands) -> Integers:
    """Bytes of the columns in which the largest values stand."""
    found = o.first[:, : o.instruction.n].argmax(1)
    return np.asarray(found.astype("<u4").view(np.int8).reshape(-1, INDEX_BYTES), np.int64)
