"""Where each value of an operand lies in local memory, as formulas for whoever writes programs by hand.

A formula is text of whole numbers with ``+ * / %``, ``/`` rounding down, in C and in documents alike. Of a product,
C[i,j] is the sum over l of A[i,l] B[l,j]; m, n and k are the instruction's sizes. `arch.layout` has the same facts as
functions; a test holds every formula against them.
"""

from __future__ import annotations

from msgspec import Struct

from siliconloom.arch.layout import padded, row_unit, sums_pitch
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import SCALAR_BYTES


class ValuePlace(Struct, frozen=True):
    """Where a value lies.

    Parameters
    ----------
    value
        The value, by its indices.
    formula
        Its address.
    text
        The layout in words.
    """

    value: str
    formula: str
    text: str


def filled(size: str, unit: int) -> str:
    """A size filled up to a multiple of ``unit``, as a formula."""
    return size if unit == 1 else f"({size} + {unit - 1}) / {unit} * {unit}"


def scaled(elements: str, size: int) -> str:
    """Bytes of so many elements, as a formula."""
    return elements if size == 1 else f"({elements}) * {size}"


def product_places(tile: NpuTile) -> list[ValuePlace]:
    """Where the operands and the sums of a matmul lie."""
    array, unit, size = tile.array, row_unit(tile), tile.element_bytes
    rows, cols, pitch = array.rows, array.cols, sums_pitch(array)
    if array.dataflow == "output_stationary":
        return [
            ValuePlace(
                "A[i,l]",
                f"a + {scaled(f'(i / {rows} * k + l) * {rows} + i % {rows}', size)}",
                f"blocks of {rows} rows, column by column",
            ),
            ValuePlace(
                "B[l,j]",
                f"b + {scaled(f'(j / {cols} * k + l) * {cols} + j % {cols}', size)}",
                f"panels of {cols} columns, row by row",
            ),
            ValuePlace(
                "C[i,j]", f"c + (j / {cols} * m + i) * {pitch} + j % {cols} * 4", f"panels of m lines of {cols} sums"
            ),
        ]
    by_input = array.dataflow == "input_stationary"
    height, row = filled("k", array.load_rows), filled("k", unit)
    outer, beat, sizes = ("i", "j", "n") if by_input else ("j", "i", "m")
    stays, moves = (("A[i,l]", "a"), ("B[l,j]", "b")) if by_input else (("B[l,j]", "b"), ("A[i,l]", "a"))
    panels = f"panels of {cols} {'rows' if by_input else 'columns'}, each k lines of {cols}"
    if array.load_rows > 1:
        panels += f", filled up with lines of zeros to a multiple of {array.load_rows}"
    across = "columns" if by_input else "rows"
    beats = scaled(f"{beat} * ({row}) + l", size)
    lines = scaled(f"{outer} / {cols} * ({height}) * {cols} + l * {cols} + {outer} % {cols}", size)
    return [
        ValuePlace(
            moves[0], f"{moves[1]} + {beats}", f"{across} one after the other, filled up to {unit * size} B each"
        ),
        ValuePlace(stays[0], f"{stays[1]} + {lines}", panels),
        ValuePlace(
            "C[i,j]",
            f"c + ({outer} / {cols} * {sizes} + {beat}) * {pitch} + {outer} % {cols} * 4",
            f"panels of {sizes} lines of {cols} sums",
        ),
    ]


def vector_places(tile: NpuTile) -> list[ValuePlace]:
    """Where what the vector unit reads and writes lies: row i, column j of m x n; byte t of what has several."""
    lanes, unit, cols, pitch = tile.vector.lanes, row_unit(tile), tile.array.cols, sums_pitch(tile.array)
    row, scalars = filled("n", unit), padded(SCALAR_BYTES, lanes)
    if not tile.circuit_format.is_integer:
        return _float_places(tile)
    return [
        ValuePlace("int8 operand, result", f"a + i * ({row}) + j", f"row by row, filled up to {unit} B each"),
        ValuePlace("sum", f"a + (j / {cols} * m + i) * {pitch} + j % {cols} * 4", f"panels of m lines of {cols} sums"),
        ValuePlace(
            "operand of 2 B an element",
            f"b + i * ({row}) * 2 + (j / {lanes} * 2 + t) * {lanes} + j % {lanes}",
            f"of each {lanes} columns a line of low bytes (t = 0), then one of high bytes (t = 1)",
        ),
        ValuePlace("result of transpose", f"c + j * ({filled('m', unit)}) + i", "column by column"),
        ValuePlace(
            "columns",
            f"d + (j / {lanes} * 8 + t) * {lanes} + j % {lanes}",
            f"of each {lanes} columns 8 lines, byte t of each column: t = 0..3 the bias (int32), 4..5 the multiplier "
            "(int16), 6 the shift (0..63), 7 unused",
        ),
        ValuePlace("scalars", "d + t", "t = 0..1 the multiplier m0 (int16), 2..3 m1 (int16), 4 the shift (0..63)"),
        ValuePlace("table", "d + t", "byte t, 0..255, is the result for the operand whose byte is t"),
        ValuePlace("table behind scalars", f"d + {scalars} + t", "from the next line on"),
    ]


def _parts(first: int, end: int) -> str:
    """Numbers of parts as text."""
    return str(first) if end == first + 1 else f"{first}..{end - 1}"


def _float_places(tile: NpuTile) -> list[ValuePlace]:
    """`vector_places` of a tile that computes in floating point."""
    lanes, unit, cols, pitch = tile.vector.lanes, row_unit(tile), tile.array.cols, sums_pitch(tile.array)
    name, size = tile.circuit_format.value, tile.element_bytes
    row, down = filled("n", unit), filled("m", unit)
    result = scaled(f"j * ({down}) + i", size)
    return [
        ValuePlace(
            f"{name} operand, result",
            f"a + {scaled(f'i * ({row}) + j', size)}",
            f"row by row, filled up to {unit * size} B each",
        ),
        ValuePlace("sum", f"a + (j / {cols} * m + i) * {pitch} + j % {cols} * 4", f"panels of m lines of {cols} sums"),
        ValuePlace("result of transpose", f"c + {result}", "column by column"),
        ValuePlace(
            "angle",
            f"b + {scaled(f'i * ({row}) * 2 + (j / {lanes} * 2 + t) * {lanes} + j % {lanes}', size)}",
            f"{'fp32' if size == 2 else 'bf16'}; of each {lanes} columns a line of low parts (t = 0), then one of high "
            "parts",
        ),
        ValuePlace(
            "columns",
            f"d + {scaled(f'(j / {lanes} * {8 // size} + t) * {lanes} + j % {lanes}', size)}",
            f"of each {lanes} columns {8 // size} lines, part t of each column: t = {_parts(0, 4 // size)} the bias "
            f"(fp32, low part first), {_parts(4 // size, 8 // size)} the multiplier (fp32)",
        ),
        ValuePlace("scalars", "d + t", "t = 0..3 the multiplier m0 (fp32), 4..7 m1 (fp32)"),
    ]


__all__ = ["ValuePlace", "filled", "product_places", "vector_places"]
