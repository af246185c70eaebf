"""The array: products of matrices, into sums in the accumulator."""

from collections.abc import Iterator

from siliconloom.arch.access import SUM_BYTES, Access
from siliconloom.arch.description import NpuTile
from siliconloom.arch.isa import Instruction, compute_operands
from siliconloom.arch.layout import product_values
from siliconloom.arch.opcodes import Format, OpcodeSpec, UnitSpec, register_unit


def operands(i: Instruction) -> list[str]:
    """Shape and addresses of a product."""
    parts = compute_operands(i, f"{i.m}x{i.n}x{i.k}")
    return [*parts, "+="] if i.accumulate else parts


def accesses(i: Instruction, tile: NpuTile) -> Iterator[Access]:
    """Both operands, and the sums; the layouts are those of `arch.layout`."""
    values = product_values(tile.array, i.m, i.n, i.k)
    moving = [(i.a, values.a), (i.b, values.b)]
    if tile.array.dataflow == "input_stationary":
        moving.reverse()
    for port, (address, size) in zip(("moving", "loaded"), moving, strict=True):
        yield Access(port, False, address, size)
    yield Access("sums", True, i.c, values.lines * tile.array.cols * SUM_BYTES)


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
