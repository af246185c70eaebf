"""Programs of products: sums that are added to, of one line, in split lines, in many panels, of operands over banks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from siliconloom.arch import Chip
from siliconloom.arch.isa import Address, Opcode
from siliconloom.arch.layout import (
    is_power,
    padded,
    row_values,
    sums_begin,
    sums_bytes,
    sums_lines,
    sums_pitch,
    sums_room,
    sums_split,
)
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.npu.geometry import PAGE
from siliconloom.sim.golden.npu import (
    LoadedProgram,
    float_parameter_planes,
    float_scalar_bytes,
    parameter_planes,
    scalar_bytes,
)
from siliconloom.verification.chain import Chain, Fields, Image, Places, npu_tile
from siliconloom.verification.images import RESULTS, random_image
from siliconloom.verification.writer import product_sizes


def accumulated(chip: Chip) -> LoadedProgram:
    """Sums that are overwritten, added to by `accumulate`, and overwritten in the first round of two loops only."""
    array = npu_tile(chip).array
    return _sums(chip, array.rows + 1, array.cols, array.rows)


def one_line(chip: Chip) -> LoadedProgram:
    """The same for products of one row or column: every fold of k adds to the line that the last one wrote."""
    array = npu_tile(chip).array
    return _sums(chip, *((array.cols, 1) if array.dataflow == "input_stationary" else (1, array.cols)), 5 * array.rows)


def just_brought(chip: Chip) -> LoadedProgram:
    """Products that add to the last lines of the one right before them, whose sums were brought in the cycles before.

    No semaphore stands between them: the array works on one after the other, whatever they add to. They are rounds of
    loops, whose words are there at once.
    """
    tile = npu_tile(chip)
    array, places = tile.array, Places(tile)
    chain, line, rounds = places.chain(), sums_pitch(array), 3
    rows, k = array.rows + 5, 1 if array.dataflow == "output_stationary" else array.rows
    inputs_stay = array.dataflow == "input_stationary"

    def sizes(rows: int) -> tuple[int, int]:
        return (array.cols, rows) if inputs_stay else (rows, array.cols)

    while max(product_sizes(tile, *sizes(rows), k)[:2]) > places.bank and k > 1:
        k -= 1
    while rows > 1 and (
        max(product_sizes(tile, *sizes(rows), k)[:2]) > places.bank or rounds * rows > sums_lines(tile)
    ):
        rows -= 1
    a_bytes, b_bytes, *_ = product_sizes(tile, *sizes(rows), k)
    memory = random_image(np.random.default_rng(1), tile.circuit_format, odd=0)
    for size, source, target in ((a_bytes, 0, places.bank), (b_bytes, 2 * PAGE, 0)):
        chain.add(Opcode.LOAD, m=1, n=places.aligned(size), memory=Address(base=source), a=Address(base=target))
    m, n = sizes(rows)
    product: Fields = {"m": m, "n": n, "k": k, "a": Address(base=places.bank), "b": Address(base=0), "nest": (rounds,)}
    for last, adds in ((0, 0), (1, 1), (2, 1), (3, 1)):
        step = max(rows - last, 1) * line
        chain.add(Opcode.MATMUL, c=Address(base=0, strides=(step, 0, 0, 0, 0, 0)), accumulate=adds, **product)
    requantize: Fields = {"function": VectorFunction.REQUANTIZE}
    _stored(tile, chain, memory, *sizes(rows), [{**requantize, "a": Address(base=at * line)} for at in (0, rows)])
    return chain.program(memory)


def _sums(chip: Chip, m: int, n: int, k: int) -> LoadedProgram:
    """Products of this shape, added up in all the ways there are, and their sums as bytes."""
    tile = npu_tile(chip)
    array, places = tile.array, Places(tile)
    chain = places.chain()
    while max(product_sizes(tile, m, n, k)[:2]) > places.bank and k > 1:
        k -= 1
    a_bytes, b_bytes, sums, rows, columns = product_sizes(tile, m, n, k)
    line, moving, weights = sums_pitch(array), places.bank, 0
    memory = random_image(np.random.default_rng(1), tile.circuit_format, odd=0)
    for size, source, target in ((a_bytes, 0, moving), (b_bytes, 2 * PAGE, weights)):
        chain.add(Opcode.LOAD, m=1, n=places.aligned(size), memory=Address(base=source), a=Address(base=target))
    product: Fields = {"m": m, "n": n, "k": k, "a": Address(base=moving), "b": Address(base=weights)}
    first, second = Address(base=0), Address(base=sums * line)
    chain.add(Opcode.MATMUL, **product, c=first)
    chain.add(Opcode.MATMUL, nest=(2, 3), **product, c=second, overwrite=0b11)
    chain.add(Opcode.MATMUL, nest=(2,), **product, c=first, accumulate=1)
    chain.add(Opcode.MATMUL, nest=(2, 2), **product, c=second, overwrite=0b01)
    requantize: Fields = {"function": VectorFunction.REQUANTIZE}
    _stored(tile, chain, memory, rows, columns, [{**requantize, "a": first}, {**requantize, "a": second}])
    return chain.program(memory)


def split_programs(chip: Chip) -> list[tuple[str, LoadedProgram]]:
    """Sums in lines that are split: in halves, in as many as there may be, in the last of two panels, and all in one.

    Where an array loads all of its rows in a beat, it comes back to the one line in the cycle after its last part.
    """
    array = npu_tile(chip).array
    most = int(sums_split(array, 1))
    shapes = {
        "sums in halves of lines": (1, array.cols // 2),
        "sums in parts of lines": (most, array.cols >> most),
        "split lines of a second panel": (most, array.cols + (array.cols >> most)),
        "one line of sums in halves": (1, array.cols // 2, 2),
    }
    return [(name, split_sums(chip, *shape)) for name, shape in shapes.items() if most]


def split_sums(chip: Chip, split: int, outer: int, rows: int | None = None) -> LoadedProgram:
    """Products whose rows of sums share lines, and begin within one where they may; or ``rows`` of them from one on.

    They replace what is there, add to it, and add to lines that another product has written as wholes.
    """
    tile = npu_tile(chip)
    array, places = tile.array, Places(tile)
    chain, line = places.chain(), sums_pitch(array)
    depth = 2 * array.rows + 1
    begin = 0 if rows else sums_begin(array, outer, split) % line
    rows = rows or (1 << split) + 2

    def shape(rows: int, outer: int) -> Fields:
        by_input = array.dataflow == "input_stationary"
        return {"m": outer, "n": rows} if by_input else {"m": rows, "n": outer}

    while 2 * (taken := padded(int(sums_bytes(array, outer, rows, split)) + begin, line)) > sums_room(tile):
        rows -= 1
    most = shape(rows, max(outer, array.cols))
    while max((sizes := product_sizes(tile, **most, k=depth))[:2]) > places.bank:
        depth -= 1
    memory = random_image(np.random.default_rng(7), tile.circuit_format, odd=0)
    for size, source, target in ((sizes[0], 0, places.bank), (sizes[1], 2 * PAGE, 0)):
        chain.add(Opcode.LOAD, m=1, n=places.aligned(size), memory=Address(base=source), a=Address(base=target))
    fields: Fields = {"k": depth, "a": Address(base=places.bank), "b": Address(base=0)}
    parts: Fields = {**fields, **shape(rows, outer), "split": split}
    first, second = Address(base=begin), Address(base=taken + begin)
    chain.add(Opcode.MATMUL, **parts, c=first)
    chain.add(Opcode.MATMUL, nest=(2, 2), **parts, c=first, overwrite=0b01)
    for at in range(0, taken, rows * line):
        whole = shape(min(rows, (taken - at) // line), array.cols)
        chain.add(Opcode.MATMUL, **fields, **whole, c=Address(base=taken + at))
    chain.add(Opcode.MATMUL, nest=(2,), **parts, c=second, accumulate=1)
    functions = [VectorFunction.REQUANTIZE, VectorFunction.SOFTMAX]
    given = [{"function": each, "a": at, "split": split} for each in functions for at in (first, second)]
    _stored(tile, chain, memory, rows, outer, given)
    return chain.program(memory)


def _stored(tile: NpuTile, chain: Chain, memory: Image, rows: int, columns: int, functions: Sequence[Fields]) -> None:
    """Functions of sums of this shape, each result in a page of its own; their parameters are put into ``memory``."""
    places, lanes = Places(tile), tile.vector.lanes
    size = tile.element_bytes
    count = padded(columns, lanes)
    row, written = size * row_values(tile, columns), size * count
    planes, scalars = _column_parameters(tile, count)
    memory[PAGE : PAGE + planes.size] = planes
    memory[PAGE + planes.size : PAGE + planes.size + len(scalars)] = scalars
    parameters, out = 3 * places.bank, 4 * places.bank
    given: Fields = {"memory": Address(base=PAGE), "a": Address(base=parameters)}
    chain.add(Opcode.LOAD, m=1, n=places.aligned(planes.size + padded(len(scalars), tile.parameter_line)), **given)
    part = min(size * lanes, tile.dma.bytes_per_cycle)
    for number, fields in enumerate(functions):
        found = parameters + (planes.size if fields["function"] is VectorFunction.SOFTMAX else 0)
        given = {"k": 1, "c": Address(base=out), "d": Address(base=found), **fields}
        chain.add(Opcode.VECTOR, m=rows, n=columns, **given)
        result = RESULTS + number * PAGE
        if row == written:
            chain.add(Opcode.STORE, m=1, n=rows * row, memory=Address(base=result), a=Address(base=out))
            continue
        for at in range(0, written, part):  # what lies between rows has never been written
            ends: Fields = {"memory": Address(base=result + at), "a": Address(base=out + at)}
            chain.add(Opcode.STORE, m=rows, n=part, pitch=row, local_pitch=row, **ends)


def _column_parameters(tile: NpuTile, count: int) -> tuple[Image, Image]:
    """Parameters of so many columns of sums, and the scalars of a softmax of them."""
    numbers, lanes = np.random.default_rng(2), tile.vector.lanes
    if not tile.circuit_format.is_integer:
        bias, multiplier = (numbers.standard_normal(count).astype(np.float32).view(np.uint32) for _ in range(2))
        planes = float_parameter_planes(bias, multiplier, lanes, tile.element_bytes)
        return planes, float_scalar_bytes(0.7, 1, tile.element_bytes)
    planes = parameter_planes(
        numbers.integers(-(2**12), 2**12, count), numbers.integers(8, 64, count), numbers.integers(13, 17, count), lanes
    ).reshape(-1)
    return planes, scalar_bytes(2**13 + 77, 1, 18)


def many_panels(chip: Chip) -> LoadedProgram:
    """Sums of more columns than the array has, which begin anywhere in their panels: requantised, and as softmax."""
    tile = npu_tile(chip)
    array, places = tile.array, Places(tile)
    chain = places.chain()
    rows, columns, k = 3, row_values(tile, 2 * array.cols + 2) - 1, array.rows + 1
    by_input = array.dataflow == "input_stationary"
    m, n = (columns, rows) if by_input else (rows, columns)
    while max(product_sizes(tile, m, n, k)[:2]) > places.bank:
        k -= 1
    a_bytes, b_bytes, *_ = product_sizes(tile, m, n, k)
    memory = random_image(np.random.default_rng(11), tile.circuit_format, odd=0)
    for size, source, target in ((a_bytes, 0, places.bank), (b_bytes, 2 * PAGE, 0)):
        chain.add(Opcode.LOAD, m=1, n=places.aligned(size), memory=Address(base=source), a=Address(base=target))
    chain.add(Opcode.MATMUL, m=m, n=n, k=k, a=Address(base=places.bank), b=Address())
    softmax: Fields = {"function": VectorFunction.SOFTMAX, "a": Address()}
    functions = [{"function": VectorFunction.REQUANTIZE, "a": Address()}, softmax]
    functions.append({**softmax, "k": 2, "b": Address(base=columns // 2)})
    _stored(tile, chain, memory, rows, columns, functions)
    return chain.program(memory)


def over_banks(chip: Chip) -> LoadedProgram:
    """A product whose operands lie over the ends of banks, a line of them in both where it may begin anywhere."""
    tile = npu_tile(chip)
    array, places = tile.array, Places(tile)
    chain = places.chain()
    m, n, k = array.rows + 1, array.cols + 1, 2 * array.rows + 1
    while max(product_sizes(tile, m, n, k)[:2]) > places.bank // 2:
        if k == 1:
            m, n = 1, 1
        k = max(k - 1, 1)
    a_bytes, b_bytes, _, rows, columns = product_sizes(tile, m, n, k)
    by_input = array.dataflow == "input_stationary"
    loaded = array.cols * (array.load_rows if array.dataflow != "output_stationary" else 1)
    sizes = tuple(tile.element_bytes * line for line in ((loaded, array.rows) if by_input else (array.rows, loaded)))
    memory, operands = random_image(np.random.default_rng(12), tile.circuit_format, odd=0), []
    for number, (size, line) in enumerate(zip((a_bytes, b_bytes), sizes, strict=True)):
        end = (2, 6)[number] * places.bank
        begin = end - 2 * line - (0 if is_power(line) else 2 * tile.element_bytes)
        first = begin // places.unit * places.unit
        source = Address(base=2 * number * PAGE)
        chain.add(Opcode.LOAD, m=1, n=places.aligned(begin - first + size), memory=source, a=Address(base=first))
        operands.append(Address(base=begin))
    chain.add(Opcode.MATMUL, m=m, n=n, k=k, a=operands[0], b=operands[1])
    _stored(tile, chain, memory, rows, columns, [{"function": VectorFunction.REQUANTIZE, "a": Address()}])
    return chain.program(memory)
