"""Programs that reach what random ones do not: every loop level, strides down, `accumulate`, long rows, pages.

Each is written for any npu tile that has RTL, and legal; `directed_programs` names them. Those of numbers in floating
point are in `verification.float_directed`, those of narrow lines in `verification.narrow_directed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from msgspec.structs import replace

from siliconloom.arch import Chip
from siliconloom.arch.description import NpuTile
from siliconloom.arch.isa import LEVELS, SEMAPHORES, Address, Instruction, Opcode, Program, Semaphore
from siliconloom.arch.layout import (
    INDEX_BYTES,
    is_power,
    padded,
    row_unit,
    row_values,
    sums_begin,
    sums_bytes,
    sums_lines,
    sums_pitch,
    sums_room,
    sums_split,
    window_of,
)
from siliconloom.arch.vector import INPUT_LIMIT, SCALAR_BYTES, VectorFunction
from siliconloom.sim.golden.npu import (
    LoadedProgram,
    float_parameter_planes,
    float_scalar_bytes,
    parameter_planes,
    scalar_bytes,
)
from siliconloom.verification.cached_directed import cache_programs
from siliconloom.verification.carried import carry
from siliconloom.verification.chain import Chain, Image, Places
from siliconloom.verification.float_directed import FLOAT, packed_programs
from siliconloom.verification.narrow_directed import every_table, narrow_lines
from siliconloom.verification.programs import MEMORY_BYTES, PROGRAM_BASE, RESULTS, product_sizes, random_image
from siliconloom.verification.shared_directed import shared_programs
from siliconloom.verification.transposed_directed import transposed_rows

PAGE = 4096
MOST_HELD = MEMORY_BYTES // 8
"""Bytes of a bank that are filled at most, so that a table of such rows has several in memory."""
LONGEST_NORM, LONGEST_SOFTMAX = 8192, 4096
"""Columns of the longest rows: widths of large models, and contexts; tiles with less room have shorter ones."""
Fields = dict[str, Any]
"""Fields of an instruction by name."""
ALL_LEVELS = (1 << LEVELS) - 1


def six_levels(chip: Chip) -> LoadedProgram:
    """A load, a copy and a store in six loops each: strides of either sign at every level, and a slot that is odd."""
    places = Places(_tile(chip))
    counts = [2] * LEVELS
    level = 0
    room = min(places.bank, RESULTS // 3, PROGRAM_BASE - RESULTS)  # loads are three units apart
    while prod(counts) * places.unit > room:
        counts[level], level = 1, level + 1
    nest, chain = tuple(counts), places.chain()
    size = places.unit

    def walk(base: int, step: int, negative: int, *, slot: bool = False) -> Address:
        """Every multiple of ``step`` once; the levels in ``negative`` run downwards, the innermost may be a slot."""
        strides, start = [0] * LEVELS, base
        for number in range(LEVELS):
            stride = step * prod(counts[number + 1 :])
            if slot and number == LEVELS - 1:
                continue
            if negative >> number & 1:
                start += stride * (counts[number] - 1)
                stride = -stride
            strides[number] = stride
        if slot:
            return Address(base=start, strides=tuple(strides), slot=step, parity=1 << LEVELS - 1, odd=1)
        return Address(base=start, strides=tuple(strides))

    first, out = 2 * places.bank, 4 * places.bank
    one: Fields = {"m": 1, "n": size}
    chain.add(
        Opcode.LOAD, nest=nest, **one, memory=walk(0, 3 * size, 0b101001), a=walk(first, size, 0b010110, slot=True)
    )
    chain.add(
        Opcode.VECTOR,
        nest=nest,
        function=VectorFunction.COPY,
        **places.copied(size),
        a=walk(first, size, 0b111000),
        c=walk(out, size, 0b000111, slot=True),
    )
    chain.add(Opcode.STORE, nest=nest, **one, memory=walk(RESULTS, size, 0b011010), a=walk(out, size, 0b100101))
    return chain.program(random_image(np.random.default_rng(6)))


def accumulated(chip: Chip) -> LoadedProgram:
    """Sums that are overwritten, added to by `accumulate`, and overwritten in the first round of two loops only."""
    array = _tile(chip).array
    return _sums(chip, array.rows + 1, array.cols, array.rows)


def one_line(chip: Chip) -> LoadedProgram:
    """The same for products of one row or column: every fold of k adds to the line that the last one wrote."""
    array = _tile(chip).array
    return _sums(chip, *((array.cols, 1) if array.dataflow == "input_stationary" else (1, array.cols)), 5 * array.rows)


def _sums(chip: Chip, m: int, n: int, k: int) -> LoadedProgram:
    """Products of this shape, added up in all the ways there are, and their sums as bytes."""
    tile = _tile(chip)
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
    array = _tile(chip).array
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
    tile = _tile(chip)
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
    tile = _tile(chip)
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
    tile = _tile(chip)
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


def over_pages(chip: Chip) -> LoadedProgram:
    """Loads and stores of rows over the ends of pages, and of rows as long as a bank, or as four pages."""
    places = Places(_tile(chip))
    chain = places.chain()
    bank, size = min(places.bank, 4 * PAGE), places.unit
    rows = 3
    width = places.aligned(bank // 4)
    first, out = 2 * places.bank, 4 * places.bank
    tries = (
        (rows, width, PAGE - places.aligned(width // 3), PAGE - size),
        (1, bank, 5 * PAGE - places.aligned(bank // 2) - size, 3 * PAGE - size),
        (1, size, 3 * PAGE - size, 5 * PAGE),
        (rows, width, PAGE - width, 6 * PAGE - 2 * size),
    )
    for m, n, source, target in tries:
        at: Fields = {"m": m, "n": n, "pitch": PAGE, "local_pitch": n}
        chain.add(Opcode.LOAD, **at, memory=Address(base=source), a=Address(base=first))
        copy = places.copied(m * n)
        chain.add(Opcode.VECTOR, function=VectorFunction.COPY, **copy, a=Address(base=first), c=Address(base=out))
        chain.add(Opcode.STORE, **at, memory=Address(base=RESULTS + target), a=Address(base=out))
    return chain.program(random_image(np.random.default_rng(3)))


def long_rows(chip: Chip) -> LoadedProgram:
    """Norms of one row as long as fits, less a column, of the largest values: no sum may be cut short."""
    tile = _tile(chip)
    lanes, chain, places = tile.vector.lanes, Chain(), Places(tile)
    capacity = tile.scratchpad.capacity
    columns = min(capacity // 16, LONGEST_NORM) // lanes * lanes
    memory = random_image(np.random.default_rng(4))
    numbers = np.random.default_rng(5)
    planes = parameter_planes(
        numbers.integers(-(2**12), 2**12, columns),
        numbers.integers(-(2**15), 2**15, columns),
        numbers.integers(8, 20, columns),
        lanes,
    ).reshape(-1)
    row = numbers.choice(np.array([127, -128, -127], np.int8), columns).view(np.uint8)
    steep = np.where(np.arange(columns) < columns // 2, 127, 126).astype(np.int8).view(np.uint8)
    memory[: planes.size] = planes
    room = places.aligned(columns)
    memory[RESULTS : RESULTS + columns] = row
    memory[RESULTS + room : RESULTS + room + columns] = steep
    operand, out = capacity // 2, 3 * capacity // 4
    chain.add(Opcode.LOAD, m=1, n=places.aligned(planes.size), memory=Address(base=0), a=Address(base=0))
    for number, (source, function) in enumerate(
        (source, function)
        for source in (RESULTS, RESULTS + room)
        for function in (VectorFunction.RMS_NORM, VectorFunction.LAYER_NORM)
    ):
        chain.add(Opcode.LOAD, m=1, n=columns, memory=Address(base=source), a=Address(base=operand))
        ends: Fields = {"a": Address(base=operand), "c": Address(base=out), "d": Address(base=0)}
        chain.add(Opcode.VECTOR, function=function, m=1, n=columns - 1, k=1, **ends)
        target = Address(base=RESULTS + (2 + number) * room)
        chain.add(Opcode.STORE, m=1, n=columns, memory=target, a=Address(base=out))
    return chain.program(memory)


def long_softmax(chip: Chip) -> LoadedProgram:
    """Softmax over two rows of sums as long as fits, less a column: as many keys as a long context has."""
    tile = _tile(chip)
    array, places = tile.array, Places(tile)
    chain = places.chain()
    by_input = array.dataflow == "input_stationary"
    rows, k, columns = 2, 2, min(sums_lines(tile) // 2 * array.cols, LONGEST_SOFTMAX)

    def sizes() -> tuple[int, int]:
        m, n = (columns, rows) if by_input else (rows, columns)
        a_bytes, b_bytes, *_ = product_sizes(tile, m, n, k)
        return a_bytes, b_bytes

    while max(*sizes(), rows * row_values(tile, columns)) > places.bank:
        columns //= 2
    columns = max(columns - 1, 1)
    memory = random_image(np.random.default_rng(13))
    for size, source, target in zip(sizes(), (0, RESULTS - places.aligned(PAGE)), (places.bank, 0), strict=True):
        source = source if size <= PAGE else places.aligned(PAGE)
        chain.add(Opcode.LOAD, m=1, n=places.aligned(size), memory=Address(base=source), a=Address(base=target))
    m, n = (columns, rows) if by_input else (rows, columns)
    chain.add(Opcode.MATMUL, m=m, n=n, k=k, a=Address(base=places.bank), b=Address())
    scalars = scalar_bytes(2**13 + 77, 1, 11)  # steep, as of thousands of nearly equal ones each is below 1/254
    at = RESULTS - 2 * places.aligned(PAGE)
    memory[at : at + len(scalars)] = scalars
    parameters, out = Address(base=3 * places.bank), Address(base=4 * places.bank)
    chain.add(Opcode.LOAD, m=1, n=places.aligned(len(scalars)), memory=Address(base=at), a=parameters)
    given: Fields = {"a": Address(), "c": out, "d": parameters, "k": 1}
    chain.add(Opcode.VECTOR, function=VectorFunction.SOFTMAX, m=rows, n=columns, **given)
    blocks, row = -(-columns // tile.vector.lanes) * tile.vector.lanes, row_values(tile, columns)
    for number in range(rows):  # what lies between rows has never been written
        part = blocks // places.unit * places.unit or min(tile.vector.lanes, tile.dma.bytes_per_cycle)
        ends: Fields = {"memory": Address(base=RESULTS + 4 * number * PAGE), "a": Address(base=out.base + number * row)}
        chain.add(Opcode.STORE, m=1, n=part, **ends)
    return chain.program(memory)


def full_queues(chip: Chip) -> LoadedProgram:
    """More transfers of one kind in a row than any queue holds, then as many of the other."""
    places = Places(_tile(chip))
    chain = places.chain()
    size, first, out = places.unit, 2 * places.bank, 4 * places.bank
    count = min(20, places.bank // size, (PROGRAM_BASE - RESULTS) // size)
    apart = min(7, RESULTS // (count * size))
    kept_apart = min(5, (PROGRAM_BASE - RESULTS) // (count * size))
    for number in range(count):
        where: Fields = {"memory": Address(base=apart * number * size), "a": Address(base=first + number * size)}
        chain.add(Opcode.LOAD, m=1, n=size, **where)
    copy = places.copied(count * size)
    chain.add(Opcode.VECTOR, function=VectorFunction.COPY, **copy, a=Address(base=first), c=Address(base=out))
    for number in range(count):
        where = {"memory": Address(base=RESULTS + kept_apart * number * size), "a": Address(base=out + number * size)}
        chain.add(Opcode.STORE, m=1, n=size, **where)
    return chain.program(random_image(np.random.default_rng(7)))


def every_semaphore(chip: Chip) -> LoadedProgram:
    """A load that waits for every semaphore there is, by what they begin with, but for the one that it posts."""
    places = Places(_tile(chip))
    size, first, out = places.unit, 2 * places.bank, 4 * places.bank
    loaded, copied = 0, 1
    others = (1 << SEMAPHORES) - 1 & ~(1 << loaded | 1 << copied)
    copy: Fields = {**places.copied(size), "a": Address(base=first), "c": Address(base=out)}
    code = (
        Instruction(opcode=Opcode.LOAD, m=1, n=size, a=Address(base=first), wait=others, post=1 << loaded),
        Instruction(opcode=Opcode.VECTOR, function=VectorFunction.COPY, **copy, wait=1 << loaded, post=1 << copied),
        Instruction(
            opcode=Opcode.STORE, m=1, n=size, memory=Address(base=RESULTS), a=Address(base=out), wait=1 << copied
        ),
        Instruction(opcode=Opcode.END),
    )
    names = [Semaphore(f"semaphore_{n}", n if others >> n & 1 else 0) for n in range(SEMAPHORES)]
    return LoadedProgram(Program(code, tuple(names)), random_image(np.random.default_rng(11)), PROGRAM_BASE)


def contended_port(chip: Chip) -> LoadedProgram:
    """Loads and stores that wait for the memory port at the same time, of many lengths: who asked first goes first."""
    places = Places(_tile(chip))
    size, bank = places.unit, places.bank
    first, out, other, apart = 2 * bank, 4 * bank, 5 * bank, PAGE // 2
    held = min(bank, MOST_HELD)
    fill = Instruction(opcode=Opcode.LOAD, m=1, n=held, a=Address(base=first), post=0b0001)
    copy: Fields = {**places.copied(held), "a": Address(base=first), "c": Address(base=out)}
    copied = Instruction(opcode=Opcode.VECTOR, function=VectorFunction.COPY, **copy, wait=0b0001, post=0b0110)
    chain = [fill, copied]
    for number, units in enumerate((1, 5, 1, 3, 2, 2, 7, 1, 1, 4, 6, 1, 3, 3, 2, 5, 1, 1)):
        length = min(units * size, bank, apart)
        store = number % 3 == 1 or number % 5 == 4
        memory = Address(base=(RESULTS if store else 0) + number * apart)
        kind, place, bit = (Opcode.STORE, out, 0b0100) if store else (Opcode.LOAD, other, 0b0010)
        waits = bit if all(each.opcode != kind for each in chain[2:]) else 0
        chain.append(Instruction(opcode=kind, m=1, n=length, memory=memory, a=Address(base=place), wait=waits))
    end = Instruction(opcode=Opcode.END)
    names = [Semaphore(name) for name in ("filled", "load_goes", "store_goes")]
    return LoadedProgram(Program((*chain, end), tuple(names)), random_image(np.random.default_rng(9)), PROGRAM_BASE)


def gathered_rows(chip: Chip) -> LoadedProgram:
    """Rows by index: the first and the last of a table, one again and again, one alone, one as long as a bank.

    That one is shorter where memory has no room for several. Whole beats and parts of them, rows over pages, in loops
    with indices in two slots, between loads and stores that follow at once; and an index whose every part counts, of a
    table so far up that its address begins again at 0.
    """
    places = Places(_tile(chip))
    bank, bus = places.bank, places.tile.dma.bytes_per_cycle
    length = min(bank, MOST_HELD)
    first, other, out, lists, source = 2 * bank, 3 * bank, 4 * bank, 6 * bank, RESULTS - PAGE
    filled, free, listed, copied, stored = (1 << n for n in range(5))
    slot, half = bank // 2, max(bus // 2, 1)
    most, rows = min(length // bus, slot // INDEX_BYTES - 2, 40), RESULTS // 2 // (3 * bus)
    pitch = places.aligned(length + bus)
    last = min(7, (MEMORY_BYTES - length) // pitch)
    numbers = np.random.default_rng(10)
    indices = numbers.integers(0, rows, most + 2)
    often = min(5, rows - 2)
    indices[:7] = [0, rows - 1, often, often, often, 0, rows - 1]
    indices[most:] = last, 0xA5C3E7  # of the table of long rows; of the one far up
    memory = random_image(numbers)
    memory[source : source + INDEX_BYTES * len(indices)] = indices.astype("<u4").view(np.uint8)
    load = Instruction(opcode=Opcode.LOAD, m=1, n=length, memory=Address(base=PAGE), a=Address(base=first))
    listing = replace(load, n=places.aligned(INDEX_BYTES * len(indices)), memory=Address(base=source))
    code = [load, replace(listing, a=Address(base=lists)), replace(listing, a=Address(base=lists + slot), post=listed)]
    code.append(replace(load, n=bus, a=Address(base=other), wait=listed))
    gather = Instruction(
        opcode=Opcode.GATHER, m=1, n=bus, k=rows, pitch=3 * bus, a=Address(base=first), b=Address(base=lists)
    )
    again, end = Instruction(opcode=Opcode.NEXT), Instruction(opcode=Opcode.END)
    long: Fields = {"n": length, "k": last + 1, "pitch": pitch}
    up = (PAGE - 0xA5C3E7 * 5 * bus) % (1 << 48)
    far: Fields = {"k": 0xA5C3E8, "pitch": 5 * bus, "memory": Address(base=up)}
    steps = Address(base=first, strides=(3 * bus, bus, 0, 0, 0, 0))
    inside = Address(base=lists, strides=(0, INDEX_BYTES, 0, 0, 0, 0), slot=slot, parity=0b01)
    tries = (
        [replace(gather, m=most, local_pitch=bus)],
        [replace(gather, **long, b=Address(base=lists + INDEX_BYTES * most))],
        [replace(gather, **far, b=Address(base=lists + INDEX_BYTES * (most + 1)))],
        [replace(gather, m=2, n=2 * bus - 1, local_pitch=2 * bus, memory=Address(base=5 * bus))],
        [replace(gather, m=most, n=half, local_pitch=half), replace(gather, m=3, n=1, local_pitch=1)],
        [*(Instruction(opcode=Opcode.LOOP, m=m) for m in (2, 3)), replace(gather, a=steps, b=inside), again, again],
    )
    aside = replace(load, n=places.unit, a=Address(base=other))
    for number, body in enumerate(tries):
        copy: Fields = {**places.copied(length), "a": Address(base=first), "c": Address(base=out)}
        kept_bytes = min(length, (PROGRAM_BASE - RESULTS) // len(tries) // places.unit * places.unit)
        target = Address(base=RESULTS + number * kept_bytes)
        given: Fields = {"wait": filled | stored, "release": free, "post": copied}
        kept: Fields = {"wait": copied, "release": stored}
        code += [
            replace(aside, wait=free),
            *body,
            replace(aside, post=filled),
            Instruction(opcode=Opcode.VECTOR, function=VectorFunction.COPY, **copy, **given),
            Instruction(opcode=Opcode.STORE, m=1, n=kept_bytes, memory=target, a=Address(base=out), **kept),
        ]
    names = [
        Semaphore(name, int(name in ("free", "stored"))) for name in ("filled", "free", "listed", "copied", "stored")
    ]
    return LoadedProgram(Program((*code, end), tuple(names)), memory, PROGRAM_BASE)


def chosen_elements(chip: Chip) -> LoadedProgram:
    """The largest of rows that have few different values: equal ones of one block and of several, all of them, none.

    Rows whose weights take more than a line are added up, at the limits of both operands.
    """
    tile = _tile(chip)
    places, chain, lanes = Places(tile), Chain(), tile.vector.lanes
    bank, row = places.bank, row_unit(tile)
    memory, numbers = random_image(np.random.default_rng(11)), np.random.default_rng(12)
    parameters, first, second, out = (number * bank for number in (3, 2, 5, 4))
    columns, rows = 2 * lanes + 1, 4
    pitch = row_values(tile, columns)
    values = numbers.choice(np.array([-128, -1, 0, 1, 127], np.int8), (rows, pitch))
    values[1] = -128
    values[2, 1:], values[2, 0] = 127, 0
    values[3] = -1
    values[3, lanes - 1 : lanes + 1] = 5  # one in each of two blocks
    memory[: values.size] = values.reshape(-1).view(np.uint8)
    scalars = np.zeros((2, -(-SCALAR_BYTES // lanes) * lanes), np.uint8)
    scalars[0, :SCALAR_BYTES], scalars[1, :SCALAR_BYTES] = scalar_bytes(12_000, 0, 7), scalar_bytes(1 << 14, 0, 21)
    memory[PAGE : PAGE + scalars.size] = scalars.reshape(-1)
    loads = [(0, values.size, first), (PAGE, scalars.size, parameters)]
    for source, size, target in loads:
        chain.add(Opcode.LOAD, m=1, n=places.aligned(size), memory=Address(base=source), a=Address(base=target))
    part, target = min(lanes, tile.dma.bytes_per_cycle), RESULTS

    def compute(function: VectorFunction, m: int, n: int, k: int, *, scale: int = 0) -> None:
        nonlocal target
        ends: Fields = {"a": Address(base=first), "b": Address(base=second if function.spec.weighs else 0)}
        ends |= {"c": Address(base=out), "d": Address(base=parameters + scale)}
        chain.add(Opcode.VECTOR, function=function, m=m, n=n, k=k, **ends)
        width = function.spec.result_cols(n)
        step, written = row_values(tile, width), -(-width // lanes) * lanes
        each = part if step % window_of(tile.dma.bytes_per_cycle, written) else written
        for at in range(0, written, each):
            where: Fields = {"memory": Address(base=target + at), "a": Address(base=out + at)}
            chain.add(Opcode.STORE, m=m, n=each, pitch=step, local_pitch=step, **where)
        target += PAGE // 4

    for count in (1, 3, lanes + 1, columns, columns + 1):
        compute(VectorFunction.TOP_K, rows, columns, count)
    compute(VectorFunction.ARGMAX, rows, columns, 1)
    inputs = min(lanes + 1, INPUT_LIMIT)
    wide, room = row_values(tile, inputs), min(bank, RESULTS - 2 * PAGE)
    many = 2 if 2 * inputs * row <= room else 1
    taken, table = many * inputs * row, 4 * PAGE
    memory[2 * PAGE : 2 * PAGE + taken] = numbers.integers(-128, 128, taken).astype(np.int8).view(np.uint8)
    memory[table : table + many * wide] = numbers.integers(-128, 128, many * wide).astype(np.int8).view(np.uint8)
    memory[table : table + lanes] = 0x80
    for source, size, place in ((2 * PAGE, taken, first), (table, many * wide, second)):
        chain.add(Opcode.LOAD, m=1, n=places.aligned(size), memory=Address(base=source), a=Address(base=place))
    compute(VectorFunction.COMBINE, many, max(lanes - 1, 1), inputs, scale=scalars.shape[1])
    compute(VectorFunction.COMBINE, many, max(lanes - 1, 1), 1, scale=scalars.shape[1])
    return chain.program(memory)


def carried_rows(chip: Chip) -> LoadedProgram:
    """A softmax whose columns come tile by tile, and the products with its powers, see `verification.carried`."""
    places = Places(_tile(chip))
    return carry(chip, places.chain(), places)


def _tile(chip: Chip) -> NpuTile:
    assert isinstance(chip.tile, NpuTile)
    return chip.tile


DIRECTED = {
    "six loop levels": six_levels,
    "accumulated sums": accumulated,
    "sums of one line": one_line,
    "rows over pages": over_pages,
    "full queues": full_queues,
    "contended port": contended_port,
    "every semaphore": every_semaphore,
    "gathered rows": gathered_rows,
    "many panels": many_panels,
    "over banks": over_banks,
    "carried rows": carried_rows,
    "transposed rows": transposed_rows,
}
"""Programs for tiles of any format."""
INTEGER = {
    "long rows": long_rows,
    "long softmax": long_softmax,
    "chosen elements": chosen_elements,
    "narrow lines": narrow_lines,
    "every table": every_table,
}
"""And for those that compute in int8."""


def directed_programs(chip: Chip) -> list[tuple[str, LoadedProgram]]:
    """Names and programs for the npu tile of ``chip``."""
    tile = _tile(chip)
    own = {**DIRECTED, **(INTEGER if tile.circuit_format.is_integer else FLOAT)}
    made = [(name, make(chip)) for name, make in own.items()]
    return made + split_programs(chip) + packed_programs(chip) + shared_programs(chip) + cache_programs(chip)
