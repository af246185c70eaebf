"""The vector unit: what each of its functions is stands in `arch.vector`."""

from collections.abc import Iterator

import numpy as np

from siliconloom.arch import scaled
from siliconloom.arch.access import Access, illegal
from siliconloom.arch.datatype import DataType
from siliconloom.arch.floats import values_of
from siliconloom.arch.isa import Instruction, compute_operands
from siliconloom.arch.layout import line_values, parameter_bytes, row_values, sums_begin, sums_bytes, sums_line
from siliconloom.arch.opcodes import Format, OpcodeSpec, UnitSpec, register_unit
from siliconloom.arch.scaled import keeps_scales
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.units.matmul import check_split, shown_split
from siliconloom.arch.vector import INPUT_LIMIT, ROW_LIMIT, built_in

INFINITY = 0x7F80
"""The pattern of infinity in bf16, the first that is no epsilon of a norm."""
OPERANDS = 2
"""What k is at most, of a function that neither chooses nor weighs: two operands, or one and a mask."""


def operands(i: Instruction) -> list[str]:
    """Function, shape and addresses."""
    taken = f"{i.k} in"
    if i.function.spec.epsilon and not i.dtype.is_integer:
        taken = f"epsilon {values_of(np.array([i.k & 0xFFFF]), DataType.BF16)[0]:g}"
    parts = compute_operands(i, f"{i.function.value} {i.m}x{i.n} ({taken})")
    parts = [*parts, "+="] if i.accumulate and i.function.spec.carries else parts
    kept = [f"kept {i.packing.dtype.value}"] if i.packing else []
    return [*parts, *kept, *["narrow"][: i.narrow], *shown_split(i)]


def result_bytes(i: Instruction, tile: NpuTile) -> int:
    """Bytes of an element of the result: of what is kept in a format of fewer bits those of that."""
    if keeps_scales(i.packing):
        assert i.packing is not None
        return scaled.result_bytes(i.packing)
    return tile.element_bytes if i.packing is None else i.packing.dtype.bits // 8


def result_rows(i: Instruction) -> int:
    """Rows of what is transposed: a column each, or two of keys in int4."""
    paired = keeps_scales(i.packing) and i.packing is not None and i.packing.dtype is DataType.INT4
    return -(-i.n // 2) if paired else i.n


def accesses(i: Instruction, tile: NpuTile) -> Iterator[Access]:
    """Operands, parameters and results in whole rows."""
    spec, element = i.function.spec, tile.element_bytes
    size = element * i.m * row_values(tile, i.n, i.narrow)
    inputs = i.k if spec.weighs else 1
    if spec.from_sums:
        yield Access("sums", False, i.a, int(sums_bytes(tile.array, i.n, i.m, i.split)))
    else:
        yield Access("first", False, i.a, inputs * size)
    if spec.weighs:
        yield Access("second", False, i.b, element * i.m * row_values(tile, i.k, i.narrow))
    elif spec.second:
        yield Access("second", False, i.b, spec.second * size)
    parameters = parameter_bytes(tile, i.function, i.n, i.narrow)
    if parameters:
        yield Access("second", False, i.d, parameters)
    if spec.transposes:
        size = result_bytes(i, tile) * result_rows(i) * row_values(tile, i.m, i.narrow)
    elif i.packing is not None:
        size = result_bytes(i, tile) * i.m * row_values(tile, i.n, i.narrow)
    elif spec.indexes:
        size = element * i.m * row_values(tile, spec.result_cols(i.n, tile.parameter_format), i.narrow)
    yield Access("vector", True, i.c, size)


def multiples(i: Instruction, tile: NpuTile) -> dict[str, int]:
    """A line of each port; a mask is no address."""
    size, lanes, spec = tile.element_bytes, tile.vector.lanes, i.function.spec
    rows, weights, whole = (size * line_values(values, lanes, i.narrow) for values in (i.n, i.k, lanes))
    wide = i.m if spec.transposes else spec.result_cols(i.n, tile.parameter_format)
    results = result_bytes(i, tile) * line_values(wide, lanes, i.narrow)
    second = {} if spec.masks else {"b": weights if spec.weighs else rows}
    parameters = rows if spec.cost_in(tile.parameter_format).setup else whole
    return {
        "a": sums_begin(tile.array, i.n, i.split) if spec.from_sums else rows,
        **second,
        "c": results,
        "d": parameters,
    }


def check_lines(i: Instruction, tile: NpuTile, number: int) -> None:
    """Lines of sums that are split have room for what the last panel has of the columns."""
    if not i.split:
        return
    if not i.function.spec.from_sums:
        raise illegal(i, number, f"lines of sums may be split; {i.function.value} reads none")
    check_split(i, tile, number)
    rest, line = (i.n - 1) % tile.array.cols + 1, sums_line(tile.array, i.split)
    if rest > line:
        raise illegal(i, number, f"a line of sums that is split has {line}; the last panel has {rest} columns")


def check_kept(i: Instruction, tile: NpuTile, number: int) -> None:
    """Results of what passes its operand on may be rounded to a format that the tile keeps keys and values in."""
    if i.packing is None:
        return
    name, dtype = i.function.value, i.packing.dtype
    if not i.function.spec.keeps:
        raise illegal(i, number, f"results of {name} are elements, and not kept in {dtype.value}")
    if dtype not in tile.array.cache:
        built = ", ".join(tile.array.cache) or "none but elements"
        raise illegal(i, number, f"no circuit for keys and values in {dtype.value}; the tile has {built}")
    if i.packing.group or i.packing.sparsity is not None:
        raise illegal(i, number, f"results that are kept in {dtype.value} have no groups (got {i.packing})")
    by_rows = keeps_scales(i.packing) and not i.function.spec.transposes
    if i.packing.by_rows != by_rows:
        whose = "of rows" if by_rows else "of columns"
        raise illegal(i, number, f"results of {name} that are kept in {dtype.value} have scales {whose}")
    if keeps_scales(i.packing) and i.function.spec.transposes and i.m > tile.vector.lanes:
        most = tile.vector.lanes
        raise illegal(i, number, f"{name} that keeps scales takes a line of {most} rows at most (got {i.m})")
    if dtype is DataType.INT4 and i.n % 2:
        raise illegal(i, number, f"results that are kept in int4 are pairs of columns (got {i.n})")


def check_function(i: Instruction, tile: NpuTile, number: int) -> None:
    """There are circuits for some functions, and a row memory of some rows."""
    functions = built_in(tile.circuit_format)
    if i.function not in functions:
        where = "" if tile.circuit_format.is_integer else f" in {tile.circuit_format.value}"
        built = ", ".join(sorted(functions))
        raise illegal(i, number, f"no circuit for the vector function {i.function.value}{where}; built are {built}")
    if i.function.spec.uses_rows:
        for name, size, limit in (("rows", i.m, ROW_LIMIT), ("columns", i.n, i.function.spec.column_limit)):
            if size > limit:
                raise illegal(i, number, f"{i.function.value} takes at most {limit} {name} (got {size})")
    check_lines(i, tile, number)
    check_kept(i, tile, number)
    if i.function.spec.chooses and i.k < 1:
        raise illegal(i, number, f"{i.function.value} chooses at least one element of each row (got {i.k})")
    spec = i.function.spec
    adds_epsilon = spec.epsilon and not i.dtype.is_integer
    if adds_epsilon and i.k >= INFINITY:
        raise illegal(
            i,
            number,
            f"{i.function.value} adds a positive number to a mean square: k is its pattern in bf16, below "
            f"{INFINITY:#x} (got {i.k:#x})",
        )
    counts = spec.chooses or spec.weighs or adds_epsilon
    if not counts and i.k > OPERANDS:
        raise illegal(i, number, f"{i.function.value} takes {OPERANDS} operands at most, or a mask (got k = {i.k})")
    if i.function.spec.weighs and not 1 <= i.k <= INPUT_LIMIT:
        raise illegal(i, number, f"{i.function.value} adds 1 to {INPUT_LIMIT} rows to one (got {i.k})")


register_unit(
    UnitSpec(
        name="vector",
        code=4,
        entry=("function", "m", "n", "k", "a", "b", "c", "d", "add", "narrow", "split", "weights", "b_slot", "c_slot"),
        opcodes=(
            OpcodeSpec(
                name="vector",
                code=7,
                format=Format.COMPUTE,
                sizes=("m", "n"),
                operands=operands,
                accesses=accesses,
                multiples=multiples,
                adds=lambda i: i.function.spec.carries,
                check=check_function,
                result="a function of m rows and n columns, see below",
            ),
        ),
    )
)
