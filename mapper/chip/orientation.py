"""In which orientation an array is given a product: in the one whose results come out row by row.

An array that keeps its first operand (input stationary) puts the transpose of C into the accumulator, and nothing that
requantises, divides or normalises takes rows for columns. So it is given the transpose of every product,
C^T = B^T A^T: what it keeps is then B, weights or keys and values, what moves are rows of A, and a line of sums is one
of a row of C. It is the same circuit as an array that keeps its second operand, and works as that one does.
"""

from __future__ import annotations

from functools import lru_cache

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.tile import NpuTile


def exchanges(tile: NpuTile) -> bool:
    """Whether a program gives the array the second operand of a product first."""
    return tile.array.dataflow == "input_stationary"


def oriented(tile: NpuTile) -> NpuTile:
    """The tile as products are laid out for it: of an array that gets their transposes, the one that it works as."""
    if not exchanges(tile):
        return tile
    return tile.model_copy(update={"array": _keeping_second(tile.array)})


@lru_cache(maxsize=64)
def _keeping_second(array: SystolicArray) -> SystolicArray:
    return array.model_copy(update={"dataflow": "weight_stationary"})


__all__ = ["exchanges", "oriented"]
