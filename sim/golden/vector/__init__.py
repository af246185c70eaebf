"""What each vector function computes: one golden function a row, registered by the modules of this folder.

A golden function takes `Operands` and returns whole rows of integers, which the machine clips to int8 and writes; what
lies beyond the instruction's columns is dropped. One that is registered elsewhere is found in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import Instruction, last_seen
from siliconloom.arch.layout import line_values, padded, panels_of_sums, row_values
from siliconloom.arch.registry import Registry, discover
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import COLUMN_LINES, SCALAR_BYTES, TABLE_BYTES, Parameters, VectorFunction
from siliconloom.sim.golden import functions

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)
Softmax = Callable[[Integers, int, int, Integers], Integers]


def window(space: Bytes, first: int, count: int) -> Bytes:
    """Bytes of a memory; raises `LoomError` for those outside."""
    if not 0 <= first <= first + count <= len(space):
        raise LoomError(f"address {first:#x} + {count} lies outside a memory of {len(space)} bytes")
    return space[first : first + count]


def _filled(values: NDArray[Number], cols: int) -> NDArray[Number]:
    """Values with zeros behind their columns, up to so many: as `numpy.pad`, in a tenth of its time."""
    if values.shape[-1] == cols:
        return values
    found = np.zeros((*values.shape[:-1], cols), values.dtype)
    found[..., : values.shape[-1]] = values
    return found


class RowMemory:
    """In each of two slots of each row the peak and the total so far, and by how much the peak has risen."""

    def __init__(self) -> None:
        self.carried: list[functions.Carried | None] = [None, None]
        self.rises: list[Integers | None] = [None, None]

    def before(self, rows: int, slot: int, who: str) -> functions.Carried:
        """Peaks and totals of so many rows; raises `LoomError` where no function has left them in that slot."""
        found = self.carried[slot]
        if found is None or len(found[0]) < rows:
            held = 0 if found is None else len(found[0])
            raise LoomError(f"{who} of {rows} rows; slot {slot} of the row memory has peaks and totals of {held}")
        return found[0][:rows], found[1][:rows]

    def rise(self, rows: int, slot: int) -> Integers:
        """By how much the peaks of so many rows have risen; raises `LoomError` where nothing says so."""
        found = self.rises[slot]
        if found is None or len(found) < rows:
            held = 0 if found is None else len(found)
            raise LoomError(f"sums of {rows} rows are rescaled; slot {slot} says of {held} by how much")
        return found[:rows]


class Operands(Struct, frozen=True):
    """What one execution of a vector instruction finds.

    Parameters
    ----------
    instruction
        With its sizes: m rows, n columns.
    addresses
        ``a``, ``b`` and ``d``, resolved, in bytes.
    tile
        With its lanes, and how rows and sums lie.
    scratchpad, sums
        The memories; sums as lines of as many as the array has columns.
    softmax
        `functions.softmax` on these lanes, for who wants to watch it.
    rows
        What functions that carry have left of each row.
    add
        The function goes on from that.
    slot, second_slot
        Which of two slots the result is in, and ``b``.
    """

    instruction: Instruction
    addresses: dict[str, int]
    tile: NpuTile
    scratchpad: Bytes
    sums: Integers
    softmax: Softmax
    rows: RowMemory
    add: bool = False
    slot: int = 0
    second_slot: int = 0

    @property
    def lanes(self) -> int:
        """Lanes of the unit."""
        return self.tile.vector.lanes

    @property
    def sum_stages(self) -> int:
        """Partial sums of a row in floating point."""
        return self.tile.vector.sum_stages

    @property
    def pitch(self) -> int:
        """Bytes from row to row of an operand, and of the result."""
        return row_values(self.tile, self.instruction.n, self.instruction.narrow)

    @property
    def line(self) -> int:
        """Values of a line of the first operand, of the second and of parameters of columns."""
        return line_values(self.instruction.n, self.lanes, self.instruction.narrow)

    @property
    def blocks(self) -> int:
        """Blocks of columns."""
        return -(-self.instruction.n // self.lanes)

    @property
    def width(self) -> int:
        """Columns of all blocks together."""
        return self.blocks * self.lanes

    @property
    def first(self) -> Integers:
        """The first operand, shape (m, `width`): int8 values or sums."""
        i = self.instruction
        if not i.function.spec.from_sums:
            return self._rows("a")
        found = panels_of_sums(self.tile.array, self.sums, self.addresses["a"], i.n, i.m, i.split)
        held = np.concatenate(found, axis=1)[:, : self.width]
        return _filled(held, self.width)

    @property
    def second(self) -> Integers:
        """The second operand, one byte for each of the first: shape (m, `width`), int8 values."""
        return self._rows("b")

    @property
    def wide_second(self) -> Integers:
        """The second operand, two bytes for each of the first: shape (m, `width`), int16 values."""
        i = self.instruction
        planes = window(self.scratchpad, self.addresses["b"], i.m * 2 * self.pitch).reshape(i.m, 2 * self.pitch)
        taken = planes[:, : 2 * self.blocks * self.line].reshape(i.m, self.blocks, 2, self.line)
        low, high = taken.transpose(2, 0, 1, 3)
        return self.whole((low | high.astype("<i2") << 8).reshape(i.m, -1)).astype(np.int64)

    @property
    def inputs(self) -> Integers:
        """The first operand of a weighted sum, shape (m, k, `width`): of each row of results the rows it is made of."""
        i = self.instruction
        return self._matrix("a", i.m * i.k, i.n).reshape(i.m, i.k, -1)

    @property
    def weights(self) -> Integers:
        """The second operand of a weighted sum, shape (m, k)."""
        i = self.instruction
        return self._matrix("b", i.m, i.k)[:, : i.k]

    @property
    def scalars(self) -> tuple[int, int, int]:
        """Two multipliers and a shift."""
        low = window(self.scratchpad, self.addresses["d"], SCALAR_BYTES)
        first, second = (int(x) for x in low[:4].view("<i2"))
        return first, second, int(low[4]) & 63

    @property
    def table(self) -> Integers:
        """256 int8 results, by the byte that they are of."""
        after = Parameters.SCALARS in self.instruction.function.spec.parameters
        first = self.addresses["d"] + (padded(SCALAR_BYTES, self.lanes) if after else 0)
        return window(self.scratchpad, first, TABLE_BYTES).view(np.int8).astype(np.int64)

    @property
    def columns(self) -> tuple[Integers, Integers, Integers]:
        """Bias, multiplier and shift of each column, shape (`width`,) each."""
        size = COLUMN_LINES * self.blocks * self.line
        lines = window(self.scratchpad, self.addresses["d"], size).reshape(self.blocks, COLUMN_LINES, self.line)
        return parameters_of(self.whole(lines))

    @property
    def seen(self) -> Integers:
        """Columns that each row sees, shape (m,): all, or under a mask those up to its own."""
        i = self.instruction
        return np.full(i.m, i.n) if i.k != 2 else np.minimum(last_seen(self.addresses["b"]) + 1 + np.arange(i.m), i.n)

    def whole(self, values: NDArray[Number]) -> NDArray[Number]:
        """Values whose last dimension is columns, with zeros for those that a narrow line has not."""
        return _filled(values, values.shape[-1] + -values.shape[-1] % self.lanes)

    def _rows(self, name: str) -> Integers:
        return self._matrix(name, self.instruction.m, self.instruction.n)

    def _matrix(self, name: str, rows: int, cols: int) -> Integers:
        """So many rows of int8 values, and of their columns all that whole blocks have."""
        pitch = row_values(self.tile, cols, self.instruction.narrow)
        found = window(self.scratchpad, self.addresses[name], rows * pitch).view(np.int8)
        return self.whole(found.reshape(rows, pitch)[:, : padded(cols, self.lanes)]).astype(np.int64)


def parameters_of(planes: Bytes) -> tuple[Integers, Integers, Integers]:
    """Biases, multipliers and shifts of columns from their lines, shape (blocks, 8, lanes)."""
    wide = planes.astype(np.int64)
    bias = wide[:, 0] | wide[:, 1] << 8 | wide[:, 2] << 16 | wide[:, 3] << 24
    multiplier = wide[:, 4] | wide[:, 5] << 8
    bias, multiplier = (bias ^ 1 << 31) - (1 << 31), (multiplier ^ 1 << 15) - (1 << 15)
    return bias.reshape(-1), multiplier.reshape(-1), (wide[:, 6] & 63).reshape(-1)


Golden = Callable[[Operands], Integers]
GOLDEN: Registry[VectorFunction, Golden] = Registry("the golden function of")


def golden(*functions: VectorFunction) -> Callable[[Golden], Golden]:
    """Register the decorated function as what ``functions`` compute."""

    def register(found: Golden) -> Golden:
        for function in functions:
            GOLDEN.add(function, found)
        return found

    return register


discover("siliconloom.sim.golden.vector")

__all__ = ["GOLDEN", "Golden", "Operands", "golden", "parameters_of", "window"]
