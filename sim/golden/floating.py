"""What vector functions compute in floating point: a golden function each, of fp32 patterns, bit exact with the lanes.

An operand has the tile's short format and counts as its fp32 number; sums and parameters are fp32. A result is an fp32
number, which is rounded to the short format where it is written. All numbers are as `arch.floats` says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.floats import SIGN, Patterns, Words, float_product, float_sum, widened
from siliconloom.arch.layout import padded, row_values
from siliconloom.arch.registry import Registry, discover
from siliconloom.arch.vector import VectorFunction, column_lines
from siliconloom.sim.golden.vector import Bytes, Operands, window


class FloatOperands(Struct, frozen=True):
    """What one execution of a vector instruction finds, in fp32 patterns; see `sim.golden.vector.Operands`."""

    held: Operands

    @property
    def dtype(self) -> DataType:
        """The tile's short format."""
        return self.held.tile.circuit_format

    @property
    def first(self) -> Words:
        """The first operand, shape (m, columns of whole blocks): elements or sums."""
        if self.held.instruction.function.spec.from_sums:
            return self.held.first.astype(np.uint32)
        return self._matrix("a")

    @property
    def patterns(self) -> Patterns:
        """The first operand as it lies there: elements, shape (m, columns of whole blocks)."""
        i = self.held.instruction
        return self._elements("a", i.m, i.n)

    @property
    def second(self) -> Words:
        """The second operand, one element for each of the first."""
        return self._matrix("b")

    @property
    def angles(self) -> Words:
        """Numbers of two elements for each of the first operand: fp32, or bf16 where an element has a byte."""
        o, i, bits = self.held, self.held.instruction, self.dtype.bits
        pitch, taken = 2 * o.pitch, 2 * o.blocks * o.line
        lines = elements(o.scratchpad, o.addresses["b"], i.m * pitch, self.dtype).reshape(i.m, pitch)[:, :taken]
        low, high = lines.reshape(i.m, o.blocks, 2, o.line).transpose(2, 0, 1, 3).astype(np.uint32)
        if bits == 32:  # the second line says nothing
            return o.whole(low.reshape(i.m, -1))
        return o.whole(((low | high << np.uint32(bits)) << np.uint32(32 - 2 * bits)).reshape(i.m, -1))

    @property
    def scalars(self) -> tuple[Words, Words]:
        """Two multipliers."""
        found = window(self.held.scratchpad, self.held.addresses["d"], 8).copy().view("<u4")
        return found[:1], found[1:]

    @property
    def columns(self) -> tuple[Words, Words]:
        """Bias and multiplier of each column of whole blocks."""
        o = self.held
        lines = column_lines(self.dtype)
        held = elements(o.scratchpad, o.addresses["d"], lines * o.blocks * o.line, self.dtype)
        parts = o.whole(held.reshape(o.blocks, lines, o.line)).transpose(1, 0, 2).reshape(2, lines // 2, -1)
        words = np.ascontiguousarray(parts.transpose(0, 2, 1)).view("<u4").reshape(2, -1)
        return words[0], words[1]

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Which columns each row sees."""
        return np.arange(self.held.instruction.n) < self.held.seen[:, None]

    @property
    def inputs(self) -> Words:
        """The first operand of a weighted sum: of each row of results the rows it is made of."""
        i = self.held.instruction
        return self._rows("a", i.m * i.k, i.n).reshape(i.m, i.k, -1)

    @property
    def weights(self) -> Words:
        """The second operand of a weighted sum, shape (m, k)."""
        i = self.held.instruction
        return self._rows("b", i.m, i.k)[:, : i.k]

    def _matrix(self, name: str) -> Words:
        return self._rows(name, self.held.instruction.m, self.held.instruction.n)

    def _rows(self, name: str, rows: int, cols: int) -> Words:
        """The numbers of `_elements`."""
        return widened(self._elements(name, rows, cols), self.dtype)

    def _elements(self, name: str, rows: int, cols: int) -> Patterns:
        """Rows of elements, and of their columns all that whole blocks have."""
        o, pitch = self.held, row_values(self.held.tile, cols, self.held.instruction.narrow)
        found = elements(o.scratchpad, o.addresses[name], rows * pitch, self.dtype)
        return o.whole(found.reshape(rows, pitch)[:, : padded(cols, o.lanes)])


def elements(space: Bytes, first: int, count: int, dtype: DataType) -> Patterns:
    """Patterns of ``count`` numbers of a format from an address on; those of whole bytes."""
    size = dtype.bits // 8
    return window(space, first, count * size).copy().view(f"<u{size}")


FloatGolden = Callable[[FloatOperands], Words]
MOVES = (VectorFunction.COPY, VectorFunction.KV_APPEND, VectorFunction.TRANSPOSE)
"""Functions that pass their operand on bit by bit, whatever it means."""
FLOAT_GOLDEN: Registry[VectorFunction, FloatGolden] = Registry("the golden function in floating point of")


def in_floats(*functions: VectorFunction) -> Callable[[FloatGolden], FloatGolden]:
    """Register the decorated function as what ``functions`` compute in floating point."""

    def register(found: FloatGolden) -> FloatGolden:
        for function in functions:
            FLOAT_GOLDEN.add(function, found)
        return found

    return register


@in_floats(VectorFunction.RELU)
def relu(o: FloatOperands) -> Words:
    """Nothing that has a sign: also -0 becomes 0."""
    x = o.first
    return np.where(x >> np.uint32(31), np.uint32(0), x)


@in_floats(VectorFunction.ADD)
def add(o: FloatOperands) -> Words:
    """Two operands, each by its multiplier."""
    first, second = o.scalars
    return float_sum(float_product(o.first, first), float_product(o.second, second))


@in_floats(VectorFunction.MULTIPLY)
def multiply(o: FloatOperands) -> Words:
    """Two operands and a multiplier."""
    return float_product(float_product(o.first, o.second), o.scalars[0])


@in_floats(VectorFunction.ROPE)
def rope(o: FloatOperands) -> Words:
    """Neighbours turned by angles."""
    x, angles = o.first, o.angles
    cosine, sine = (np.repeat(angles[:, part::2], 2, axis=1) for part in (0, 1))
    pair = x.reshape(len(x), -1, 2)[:, :, ::-1].reshape(x.shape).copy()
    pair[:, 0::2] ^= SIGN
    return float_sum(float_product(x, cosine), float_product(pair, sine))


@in_floats(VectorFunction.REQUANTIZE)
def scale_and_shift(o: FloatOperands) -> Words:
    """Sums, each by its column's multiplier, and its bias."""
    bias, multiplier = o.columns
    return float_sum(float_product(o.first, multiplier[None, :]), bias[None, :])


discover("siliconloom.sim.golden.floats")

__all__ = ["FLOAT_GOLDEN", "MOVES", "FloatGolden", "FloatOperands", "elements", "in_floats"]
