"""The array: products of matrices, into sums in the accumulator."""

from collections.abc import Iterator

from siliconloom.arch import packing
from siliconloom.arch.access import Access, illegal
from siliconloom.arch.isa import Instruction, compute_operands
from siliconloom.arch.layout import (
    filled_values,
    is_power,
    line_values,
    moving_values,
    product_values,
    sums_begin,
    sums_bytes,
)
from siliconloom.arch.opcodes import Format, OpcodeSpec, UnitSpec, register_unit
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import ROW_LIMIT


def operands(i: Instruction) -> list[str]:
    """Shape and addresses of a product."""
    parts = compute_operands(i, f"{i.m}x{i.n}x{i.k}")
    weights = [f"weights {i.packing}"] if i.packing else []
    return [
        *parts,
        *weights,
        *["+="][: i.accumulate],
        *["rescale"][: i.rescale],
        *["narrow"][: i.narrow],
        *shown_split(i),
    ]


def shown_split(i: Instruction) -> list[str]:
    """How lines of sums are split, where they are."""
    return [f"split {i.split}"] if i.split else []


def check_split(i: Instruction, tile: NpuTile, number: int) -> None:
    """Lines are split into halves of halves."""
    if i.split and not is_power(tile.array.cols):
        raise illegal(i, number, f"lines of sums are split where C is a power of two (got {tile.array.cols} columns)")


def accesses(i: Instruction, tile: NpuTile) -> Iterator[Access]:
    """Both operands, and the sums; the layouts are those of `arch.layout`."""
    values, size = product_values(tile, i.m, i.n, i.k, i.narrow), tile.element_bytes
    taken = size * values.b if i.packing is None else packing.weight_bytes(tile.array, i.packing, i.n, i.k, i.narrow)
    moving = [(i.a, size * values.a), (i.b, taken)]
    by_input = tile.array.dataflow == "input_stationary"
    if by_input:
        moving.reverse()
    if i.d.base:
        if tile.array.dataflow == "output_stationary":
            lines, line = i.k, filled_values(i.m, tile.array.rows, i.narrow)
        else:
            lines, line = i.n if by_input else i.m, moving_values(tile, 1, i.k, i.narrow)
        moving[0] = moving[0][0], (lines - 1) * i.d.base + size * line
    for port, (address, taken) in zip(("moving", "loaded"), moving, strict=True):
        yield Access(port, False, address, taken)
    outer, beats = (i.m, i.n) if by_input else (i.n, i.m)
    yield Access("sums", True, i.c, int(sums_bytes(tile.array, outer, beats, i.split)))


def multiples(i: Instruction, tile: NpuTile) -> dict[str, int]:
    """A line of each port; one that is no power of two begins anywhere."""
    array = tile.array
    stays, moves = ("a", "b") if array.dataflow == "input_stationary" else ("b", "a")
    size = tile.element_bytes
    outer, along, beat = (i.m, i.k, array.load_rows) if stays == "a" else (i.n, i.k, array.load_rows)
    if array.dataflow == "output_stationary":
        along, beat = i.m, 1
    widths = {stays: line_values(outer, array.cols, i.narrow), moves: line_values(along, array.rows, i.narrow)}
    lines = {stays: size * beat * widths[stays], moves: size * widths[moves], "d": size * widths[moves]}
    whole = {stays: beat * array.cols, moves: array.rows, "d": array.rows}
    found = {name: line for name, line in lines.items() if is_power(whole[name])} | {
        "c": sums_begin(array, outer, i.split)
    }
    if i.packing is not None and stays in found:
        found[stays] = packing.begin_unit(array, i.packing)
        if packing.may_be_narrow(array, i.packing):
            found[stays] = found[stays] * packing.panel_columns(array, i.packing.dtype, outer) // array.cols
    return found


def check_product(i: Instruction, tile: NpuTile, number: int) -> None:
    """What the unit would refuse of a pitch, and of a rescaling."""
    check_pitch(i, number)
    check_packing(i, tile, number)
    check_split(i, tile, number)
    if i.rescale and not (i.accumulate or i.overwrite):
        raise illegal(
            i, number, "sums are rescaled by a matmul that adds to them; this one has no accumulate, no overwrite"
        )
    lines = i.n if tile.array.dataflow == "input_stationary" else i.m
    if i.rescale and lines > ROW_LIMIT:
        raise illegal(i, number, f"sums of at most {ROW_LIMIT} rows are rescaled (got {lines})")


def check_packing(i: Instruction, tile: NpuTile, number: int) -> None:
    """The array has a circuit for packed weights of this format, and groups of whole beats."""
    if i.packing is None:
        return
    if i.packing.sparsity is not None:
        raise illegal(i, number, "no circuit for sparsity; zeros among weights are stored as they are")
    group, beat = i.packing.group, tile.array.load_rows
    able = tile.weight_formats if group else tile.stationary_formats
    if i.packing.dtype not in able:
        built = ", ".join(able) or "no packed ones"
        raise illegal(i, number, f"no circuit for weights in {i.packing.dtype.value}; the array has {built}")
    if i.packing.by_rows and (group or i.packing.dtype not in tile.array.cache_scaled):
        raise illegal(i, number, f"scales of rows are of values that the array keeps so (got {i.packing})")
    if not group and i.packing.dtype in tile.array.cache:
        return
    if not packing.has_groups(tile.array, i.packing.dtype):
        if group:
            raise illegal(i, number, f"weights in {i.packing.dtype.value} have no groups here (got {group} rows)")
    elif not is_power(group) or group % beat or not group:
        rule = f"rows of a group of packed weights are a power of two, and whole beats of {beat} (got {group})"
        raise illegal(i, number, rule)


def check_pitch(i: Instruction, number: int) -> None:
    """The moving operand's pitch is a number."""
    if any(i.d.strides) or i.d.slot or i.d.base < 0:
        raise illegal(i, number, "the moving operand's pitch, d, is no address: it has no strides and no slot")


register_unit(
    UnitSpec(
        name="matmul",
        code=3,
        shown="array",
        entry=(
            "m",
            "n",
            "k",
            "a",
            "b",
            "c",
            "d",
            "add",
            "rescale",
            "narrow",
            "split",
            "weights",
            "group",
            "a_slot",
            "b_slot",
        ),
        opcodes=(
            OpcodeSpec(
                name="matmul",
                code=6,
                format=Format.COMPUTE,
                sizes=("m", "n", "k"),
                operands=operands,
                accesses=accesses,
                multiples=multiples,
                adds=lambda i: True,
                check=check_product,
                result="C[m,n] = A[m,k] B[k,n], or added to what C is; rows of the operand that moves begin every d "
                "bytes, or adjoin where d is 0 (of A's transpose, where sums stay: blocks adjoin then); with rescale "
                "what C is, is divided by a power of two of its row; with weights B is packed: groups of codes in this "
                "format, each with its scales",
            ),
        ),
    )
)
