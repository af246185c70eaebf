"""The array: products of matrices, into sums in the accumulator."""

from collections.abc import Iterator

from siliconloom.arch.access import SUM_BYTES, Access
from siliconloom.arch.description import NpuTile
from siliconloom.arch.isa import Instruction, compute_operands
from siliconloom.arch.layout import moving_values, stationary_values
from siliconloom.arch.opcodes import Format, OpcodeSpec, UnitSpec, register_unit


def operands(i: Instruction) -> list[str]:
    """Shape and addresses of a product."""
    parts = compute_operands(i, f"{i.m}x{i.n}x{i.k}")
    return [*parts, "+="] if i.accumulate else parts


def accesses(i: Instruction, tile: NpuTile) -> Iterator[Access]:
    """Both operands, and the sums; the layouts are those of `arch.layout`."""
    array = tile.array
    cols, rows = array.cols, array.rows
    if array.dataflow == "output_stationary":
        yield Access("moving", False, i.a, -(-i.m // rows) * i.k * rows)
        yield Access("loaded", False, i.b, -(-i.n // cols) * i.k * cols)
        lines = -(-i.n // cols) * i.m
    else:
        by_input = array.dataflow == "input_stationary"
        outer, beats = (i.m, i.n) if by_input else (i.n, i.m)
        stays, moves = (i.a, i.b) if by_input else (i.b, i.a)
        yield Access("moving", False, moves, moving_values(array, beats, i.k))
        yield Access("loaded", False, stays, stationary_values(array, outer, i.k))
        lines = -(-outer // cols) * beats
    yield Access("sums", True, i.c, lines * cols * SUM_BYTES)


def multiples(i: Instruction, tile: NpuTile) -> dict[str, int]:
    """A line of each port."""
    array = tile.array
    stays, moves = ("a", "b") if array.dataflow == "input_stationary" else ("b", "a")
    return {stays: array.load_rows * array.cols, moves: array.rows, "c": SUM_BYTES * array.cols}


register_unit(
    UnitSpec(
        name="matmul",
        code=3,
        shown="array",
        entry=("m", "n", "k", "a", "b", "c", "add"),
        opcodes=(
            OpcodeSpec(
                name="matmul",
                code=6,
                format=Format.COMPUTE,
                sizes=("m", "n", "k"),
                operands=operands,
                accesses=accesses,
                multiples=multiples,
                result="C[m,n] = A[m,k] B[k,n], or added to what C is",
            ),
        ),
    )
)
