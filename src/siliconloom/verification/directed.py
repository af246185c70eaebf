"""Programs that reach what random ones do not: every loop level, strides down, `accumulate`, long rows, pages.

Each is written for any npu tile that has RTL, and legal; `directed_programs` names them. Those of numbers in floating
point are in `verification.float_directed`, those of products in `verification.product_directed` and those of narrow
lines in `verification.narrow_directed`.
"""

from __future__ import annotations

from math import prod

import numpy as np
from msgspec.structs import replace

from siliconloom.arch import Chip
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, Semaphore
from siliconloom.arch.layout import INDEX_BYTES, row_unit, row_values, sums_lines, window_of
from siliconloom.arch.vector import INPUT_LIMIT, SCALAR_BYTES, VectorFunction
from siliconloom.arch.word import LEVELS, SEMAPHORES
from siliconloom.rtl.npu.geometry import PAGE
from siliconloom.sim.golden.npu import LoadedProgram, parameter_planes, scalar_bytes
from siliconloom.verification.cached_directed import cache_programs
from siliconloom.verification.carried import carry
from siliconloom.verification.chain import Chain, Fields, Places, npu_tile
from siliconloom.verification.float_directed import FLOAT, packed_programs
from siliconloom.verification.images import MEMORY_BYTES, PROGRAM_BASE, RESULTS, random_image
from siliconloom.verification.narrow_directed import every_table, narrow_lines
from siliconloom.verification.product_directed import (
    accumulated,
    just_brought,
    many_panels,
    one_line,
    over_banks,
    split_programs,
)
from siliconloom.verification.shared_directed import shared_programs
from siliconloom.verification.transposed_directed import transposed_rows
from siliconloom.verification.writer import product_sizes

MOST_HELD = MEMORY_BYTES // 8
"""Bytes of a bank that are filled at most, so that a table of such rows has several in memory."""
LONGEST_NORM, LONGEST_SOFTMAX = 8192, 4096
"""Columns of the longest rows: widths of large models, and contexts; tiles with less room have shorter ones."""
ALL_LEVELS = (1 << LEVELS) - 1


def six_levels(chip: Chip) -> LoadedProgram:
    """A load, a copy and a store in six loops each: strides of either sign at every level, and a slot that is odd."""
    places = Places(npu_tile(chip))
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


def over_pages(chip: Chip) -> LoadedProgram:
    """Loads and stores of rows over the ends of pages, and of rows as long as a bank, or as four pages."""
    places = Places(npu_tile(chip))
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
    tile = npu_tile(chip)
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
    tile = npu_tile(chip)
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
    places = Places(npu_tile(chip))
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
    places = Places(npu_tile(chip))
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
    places = Places(npu_tile(chip))
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
    places = Places(npu_tile(chip))
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
    tile = npu_tile(chip)
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
    places = Places(npu_tile(chip))
    return carry(chip, places.chain(), places)


DIRECTED = {
    "six loop levels": six_levels,
    "accumulated sums": accumulated,
    "sums of one line": one_line,
    "sums that were just brought": just_brought,
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
    tile = npu_tile(chip)
    own = {**DIRECTED, **(INTEGER if tile.circuit_format.is_integer else FLOAT)}
    made = [(name, make(chip)) for name, make in own.items()]
    return made + split_programs(chip) + packed_programs(chip) + shared_programs(chip) + cache_programs(chip)
