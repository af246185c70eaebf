"""What the vector unit does to the sums of a product before they are stored: its instructions, one after the other."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from msgspec import Struct

from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction, vector_cost

GATED = frozenset({VectorFunction.GATED_GELU, VectorFunction.GATED_SILU})
"""Functions of two operands that lie side by side in a product's result: the first half is gated by the second."""


class EpiloguePass(Struct, frozen=True):
    """One instruction on every result tile, over as many columns as are stored.

    Parameters
    ----------
    function
        What it computes.
    source, target
        Rings it reads and writes.
    half
        Half of the sums that it reads.
    second
        Ring of its second operand; of the residual, of gates, or none.
    """

    function: VectorFunction
    source: Literal["partial", "chained"]
    target: Literal["chained", "gates", "results"]
    half: int = 0
    second: Literal["", "second", "gates"] = ""


@lru_cache(maxsize=256)
def epilogue(functions: tuple[VectorFunction, ...]) -> tuple[EpiloguePass, ...]:
    """Instructions for a product whose results go through ``functions``.

    Sums are requantised first of all, column by column; a gated function takes two halves of them.
    """
    rest = functions[1:] if functions[:1] == (VectorFunction.REQUANTIZE,) else functions
    requantize = VectorFunction.REQUANTIZE
    if not rest:
        return (EpiloguePass(requantize, "partial", "results"),)
    passes = [EpiloguePass(requantize, "partial", "chained")]
    if rest[0] in GATED:
        passes.append(EpiloguePass(requantize, "partial", "gates", half=1))
    for index, function in enumerate(rest):
        second: Literal["", "second", "gates"] = (
            "gates" if function in GATED else "second" if function.spec.second else ""
        )
        target: Literal["chained", "results"] = "results" if index == len(rest) - 1 else "chained"
        passes.append(EpiloguePass(function, "chained", target, second=second))
    return tuple(passes)


def column_bytes(passes: tuple[EpiloguePass, ...], tile: NpuTile) -> int:
    """Bytes of parameters for each block of columns."""
    return sum(tile.parameter_line * vector_cost(each.function, tile.parameter_format).column_lines for each in passes)


def function_bytes(passes: tuple[EpiloguePass, ...], tile: NpuTile) -> int:
    """Bytes of parameters that do not depend on columns: multipliers, tables."""
    lanes, dtype = tile.vector.lanes, tile.parameter_format
    return sum(tile.parameter_line * vector_cost(each.function, dtype).once_lines(lanes) for each in passes)


__all__ = ["GATED", "EpiloguePass", "column_bytes", "epilogue", "function_bytes"]
