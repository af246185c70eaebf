"""What the search of a mapping minimises: time, energy, both together, or bytes moved.

Every objective is a sum: so much for a cycle, so much for a byte between the main memory and a tile, and what work
takes wherever it is done. The product of energy and time is no such sum; near its least it is one, of energy and of
cycles at the price that energy over time is there (its differential is zero where dE / E + dT / T is).

Time, too, has a price for bytes (`mapper.chip.price`): of mappings that take nearly as long the one that moves far
fewer bytes is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.isa import Program
from siliconloom.arch.kernels import UNCOUNTED, kernel

Int = NDArray[np.int64]
Real = NDArray[np.float64]

OBJECTIVES = ("time", "energy", "edp", "traffic")
"""Names of objectives; ``edp`` is the product of energy and delay."""


class Costed(Protocol):
    """What a tiling of any kind says of itself."""

    @property
    def cycles(self) -> int:
        """Cycles that it should take."""

    @property
    def read_bytes(self) -> int:
        """Bytes that a tile reads from memory."""

    @property
    def write_bytes(self) -> int:
        """Bytes that it writes."""


class Objective(Struct, frozen=True):
    """What a program costs, in a whole number of the objective's units.

    Parameters
    ----------
    name
        One of `OBJECTIVES`.
    measure
        The cost of a program that is run; of time the cycles, without the price of its bytes.
    per_cycle, per_byte
        What a cycle of the chip and a byte of main memory's traffic add to it: for candidates that are not run, and
        where time counts the price of a byte of any.
    """

    name: str
    measure: Callable[[Program], int]
    per_cycle: float = 1.0
    per_byte: float = 0.0

    def of(self, cycles: Any, moved: Any) -> Any:
        """Cost of so many cycles and bytes, of numbers or of arrays of them."""
        if self._is_cycles:
            return cycles
        return (self.per_cycle * cycles + self.per_byte * moved + 0.5) // 1

    def of_all(self, cycles: Int, read: Int, written: Int) -> tuple[Int, Real]:
        """Bytes moved, and `of` them and of the cycles, of many at once."""
        moved, found = np.empty_like(cycles), np.empty(len(cycles))
        weigh(self._is_cycles, float(self.per_cycle), float(self.per_byte), cycles, read, written, moved, found)
        return moved, found

    @property
    def _is_cycles(self) -> bool:
        return self.name == "time" and not self.per_byte

    def of_program(self, program: Program, moved: int) -> int:
        """Cost of a program that is run, which moves so many bytes."""
        measured = self.measure(program)
        return measured + self.price_of(moved) if self.name == "time" else measured

    def price_of(self, moved: int) -> int:
        """What so many bytes add to cycles, where time counts."""
        return int(self.per_byte * moved + 0.5)

    def of_tiling(self, tiling: Costed, tiles: int = 1) -> Any:
        """Cost of a task whose tiles of the chip have this tiling each."""
        return self.of(tiling.cycles, tiles * (tiling.read_bytes + tiling.write_bytes))


@kernel(**UNCOUNTED)
def weigh(
    is_cycles: Any, per_cycle: Any, per_byte: Any, cycles: Any, read: Any, written: Any, moved: Any, found: Any
) -> None:
    """Fill what `Objective.of_all` returns."""
    for i in range(cycles.shape[0]):
        moved[i] = read[i] + written[i]
        if is_cycles:
            found[i] = cycles[i]
        else:
            found[i] = np.floor(per_cycle * cycles[i] + per_byte * moved[i] + 0.5)


def in_time(cycles: Callable[[Program], int], price: float = 0.0) -> Objective:
    """The objective that counts cycles, and a byte as so many."""
    return Objective("time", cycles, per_byte=price)


def _unmeasured(program: Program) -> int:
    raise AssertionError("estimates decide: nothing is run")


ESTIMATED = in_time(_unmeasured)
"""Cycles, of candidates that are not run."""

__all__ = ["ESTIMATED", "OBJECTIVES", "Objective", "in_time"]
