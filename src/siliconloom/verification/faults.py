"""What an npu tile must stop at, and with which cause: programs that no assembler would pass, and errors of the bus."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from siliconloom.arch import Chip
from siliconloom.arch.datatype import CACHE_SCALED, DataType, Packing, scale_bits
from siliconloom.arch.faults import Cause
from siliconloom.arch.isa import SEMAPHORE_LIMIT, Address, Instruction, Opcode, Program, Semaphore, encode
from siliconloom.arch.layout import is_power, row_unit, sums_pitch, sums_room
from siliconloom.arch.opcodes import OPCODE_BITS, UNIT_BITS, Format, Unit, built_units
from siliconloom.arch.scaled import result_bytes
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.units.pim import burst_of, results_of
from siliconloom.arch.vector import VectorFunction
from siliconloom.arch.word import CODES, WORD_BYTES
from siliconloom.rtl.bench.programs import EACH, ProgramCase
from siliconloom.rtl.npu.geometry import PAGE, geometry_of
from siliconloom.rtl.npu.ports import prefixes
from siliconloom.verification.chain import Places
from siliconloom.verification.images import PROGRAM_BASE, PROGRAM_WORDS, random_image

LIMIT = 20_000
"""Cycles in which a tile must have stopped."""
END = Instruction(opcode=Opcode.END)


class Faulty(Struct, frozen=True):
    """A case that ends with ``cause``, at instruction ``number`` where the tile says which."""

    name: str
    case: ProgramCase
    cause: Cause
    number: int | None = None


class _Faults(Struct):
    """Collects the cases of a tile."""

    chip: Chip
    tile: NpuTile
    memory: Any = field(default_factory=lambda: random_image(np.random.default_rng(8)))
    found: list[Faulty] = field(default_factory=list)

    def add(
        self, name: str, instructions: list[Instruction], cause: Cause, number: int | None = None, **options: Any
    ) -> None:
        """A program of these instructions; three semaphores, the first of which nobody posts.

        Those that compute are in the tile's format, but of a program that is ``foreign``.
        """
        semaphores = options.pop("semaphores", (Semaphore("never"), Semaphore("one"), Semaphore("two")))
        if not options.pop("foreign", False):
            own = self.tile.circuit_format
            instructions = [
                replace(i, dtype=own) if i.opcode.spec.format is Format.COMPUTE else i for i in instructions
            ]
        program = Program((*instructions, END), semaphores)
        self.found.append(
            Faulty(name, ProgramCase(program, self.memory, PROGRAM_BASE, limit=LIMIT, **options), cause, number)
        )

    def raw(self, name: str, words: list[bytes], cause: Cause, number: int | None = None, *, told: int = 0) -> None:
        """Words as they are, of which the tile is told another number where ``told``."""
        program: Any = SimpleNamespace(
            encode=lambda: b"".join(words), instructions=range(told or len(words)), semaphores=(Semaphore("never"),)
        )
        self.found.append(Faulty(name, ProgramCase(program, self.memory, PROGRAM_BASE, limit=LIMIT), cause, number))


def fault_cases(chip: Chip) -> list[Faulty]:
    """Cases for the npu tile of ``chip``; some of them, at a limit, end well."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    faults = _Faults(chip, tile)
    _limits(faults)
    _conflicts(faults)
    _illegal(faults)
    _words(faults)
    _bus(faults)
    return faults.found


def channel_faults(chip: Chip) -> list[Faulty]:
    """Of a tile with a channel of memory that computes: addresses inside a burst, or beyond the scratchpad."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    assert tile.pim is not None
    faults, misaligned = _Faults(chip, tile), Cause.MISALIGNED_OPERAND
    burst, port = tile.pim.dram.organization.request_bytes, burst_of(tile)
    write = Instruction(opcode=Opcode.PIM_WRITE, m=1, n=burst)
    two = replace(write, m=2, pitch=burst, local_pitch=port)
    wrong: dict[str, tuple[Instruction, dict[str, Any]]] = {
        "part of a burst": (write, {"n": burst // 2}),
        "from within a burst of the scratchpad": (write, {"a": Address(base=port // 2)}),
        "to within a burst of the channel": (write, {"memory": Address(base=burst // 2)}),
        "rows within a burst of the channel": (two, {"pitch": burst // 2}),
        "rows within a burst of the scratchpad": (two, {"local_pitch": port // 2}),
    }
    for opcode, verb in ((Opcode.PIM_WRITE, "written"), (Opcode.PIM_READ, "read")):
        for name, (whole, fields) in wrong.items():
            faults.add(f"{verb} {name}", [replace(whole, opcode=opcode, **fields)], misaligned, 0)
        faults.add(f"{verb} two rows side by side", [replace(two, opcode=opcode)], Cause.NONE)
    vector = Instruction(opcode=Opcode.PIM_VECTOR, m=1, dtype=tile.circuit_format)
    faults.add("a vector within a burst", [replace(vector, a=Address(base=port // 2))], misaligned, 0)
    product = replace(vector, opcode=Opcode.PIM, n=1, k=1, c=Address(base=results_of(tile) // 2))
    faults.add("results within a burst", [product], misaligned, 0)
    pitched = replace(write, pitch=burst // 2, local_pitch=port // 2)
    faults.add("one row, whatever the pitches are", [pitched], Cause.NONE)
    faults.add("results behind half a line", [replace(product, c=Address(base=results_of(tile)))], Cause.NONE)
    rows, columns = tile.pim.dram.organization.rows, tile.pim.row_columns
    most = tile.pim.global_buffer // burst
    for name, each in (
        ("a longer row than a bank's is written", replace(write, n=(columns + 1) * burst)),
        ("a longer row than a bank's is read", replace(write, opcode=Opcode.PIM_READ, n=(columns + 1) * burst)),
        ("a vector of more than the global buffer", replace(vector, m=most + 1)),
        ("a product of more rows than a bank's", replace(product, c=Address(), m=rows + 1)),
        ("a product of more vectors than accumulators", replace(product, c=Address(), n=tile.pim.accumulators + 1)),
        ("a product of a vector over more than all rows", replace(product, c=Address(), k=rows * columns + 1)),
    ):
        faults.add(name, [each], Cause.ILLEGAL_INSTRUCTION, 0)
    beyond = Address(base=faults.tile.scratchpad.capacity)
    faults.add("a vector beyond the scratchpad", [replace(vector, a=beyond)], Cause.LOCAL_ADDRESS)
    faults.add("read beyond the scratchpad", [replace(write, opcode=Opcode.PIM_READ, a=beyond)], Cause.LOCAL_ADDRESS)
    return faults.found


def _limits(faults: _Faults) -> None:
    """Local addresses at their limits and beyond, and a semaphore."""
    tile, places = faults.tile, Places(faults.tile)
    size, capacity = places.unit, tile.scratchpad.capacity
    sums, line = sums_room(tile), sums_pitch(tile.array)
    load = Instruction(opcode=Opcode.LOAD, m=1, n=size)
    fill = replace(load, n=places.bank, post=0b010)
    product = Instruction(opcode=Opcode.MATMUL, m=1, n=1, k=1, a=Address(), b=Address(base=places.bank), wait=0b010)
    lines = 1 if tile.array.dataflow != "output_stationary" else tile.array.rows
    for name, beyond in (("last", 0), ("beyond", 1)):
        cause = Cause.LOCAL_ADDRESS if beyond else Cause.NONE
        at = Address(base=capacity - size + beyond * size)
        faults.add(f"a load to the {name} line", [replace(load, a=at)], cause)
        faults.add(
            f"a store from the {name} line",
            [replace(load, a=replace(at, base=at.base), opcode=Opcode.STORE, memory=Address(base=1 << 16))],
            cause,
        )
        at = Address(base=sums - line + beyond * line)
        if lines == 1:
            faults.add(
                f"sums in the {name} line",
                [fill, replace(fill, a=Address(base=places.bank), post=0b100), replace(product, c=at, wait=0b110)],
                cause,
            )
        read = Instruction(
            opcode=Opcode.VECTOR,
            function=VectorFunction.REQUANTIZE,
            m=1,
            n=1,
            a=at,
            d=Address(),
            c=Address(base=places.bank),
            wait=0b010,
        )
        if beyond:
            faults.add("sums read beyond the accumulator", [fill, read], cause)
    rows = tile.array.rows
    if not is_power(rows):  # such an operand begins anywhere, and each of its blocks lies in two lines at most
        last = replace(fill, n=2 * size, a=Address(base=capacity - 2 * size), post=0b100)
        for name, beyond in (("at", 0), ("beyond", 1)):
            ends, stays = Address(base=capacity - rows + beyond), Address()
            if tile.array.dataflow == "input_stationary":
                ends, stays = stays, ends
            whole = replace(product, k=rows, wait=0b110, a=ends, b=stays)
            cause = Cause.LOCAL_ADDRESS if beyond else Cause.NONE
            faults.add(f"an operand that ends {name} the end of the scratchpad", [fill, last, whole], cause)
    full = (Semaphore("never"), Semaphore("one", SEMAPHORE_LIMIT), Semaphore("two"))
    once = replace(load, post=0b010)
    faults.add("a semaphore above its limit", [once], Cause.SEMAPHORE_OVERFLOW, semaphores=full)
    nearly = (full[0], Semaphore("one", SEMAPHORE_LIMIT - 1), full[2])
    faults.add("a semaphore at its limit", [once], Cause.NONE, semaphores=nearly)
    faults.add("a semaphore that nobody posts", [load, replace(load, wait=1)], Cause.DEADLOCK)


def _conflicts(faults: _Faults) -> None:
    """Two units on one side of a bank, and both operands of a product."""
    tile, places = faults.tile, Places(faults.tile)
    array, bank, row = tile.array, places.bank, row_unit(tile)
    count = bank // (row * tile.element_bytes)
    fill = Instruction(opcode=Opcode.LOAD, m=1, n=bank, a=Address(base=2 * bank), post=0b010)
    copy = Instruction(
        opcode=Opcode.VECTOR,
        dtype=tile.circuit_format,
        m=count,
        n=row,
        k=1,
        a=Address(base=2 * bank),
        c=Address(base=4 * bank),
        wait=0b010,
    )
    # row by row: the beats of one long burst come together, at the end of its time
    rows: dict[str, Any] = {
        "m": bank // places.unit,
        "n": places.unit,
        "pitch": places.unit,
        "local_pitch": places.unit,
    }
    again = Instruction(opcode=Opcode.LOAD, **rows, a=Address(base=4 * bank))
    faults.add("two units write a bank", [fill, copy, again, again], Cause.BANK_CONFLICT)
    store = Instruction(
        opcode=Opcode.STORE, m=1, n=bank, a=Address(base=2 * bank), memory=Address(base=1 << 16), wait=0b100
    )
    both = replace(fill, post=0b110)
    faults.add("two units read a bank", [both, copy, store], Cause.BANK_CONFLICT)
    # long in what moves, deep in what stays; where sums stay both operands come with the depth
    rows_, columns = (array.cols, count // 2) if array.dataflow == "input_stationary" else (count // 2, array.cols)
    long = Instruction(opcode=Opcode.MATMUL, dtype=tile.circuit_format, m=rows_, n=columns, k=array.rows, wait=0b100)
    deep = replace(long, m=min(array.rows, array.cols), n=min(array.rows, array.cols), k=min(count, 4 * array.rows))
    moving = {"weight_stationary": "a", "input_stationary": "b"}.get(array.dataflow)
    for operand, other in (("a", "b"), ("b", "a")):
        product = long if operand == moving else deep
        reads = replace(product, **{operand: Address(base=2 * bank), other: Address()})
        faults.add(
            f"the vector unit and the array, its {operand}, read a bank", [both, copy, reads], Cause.BANK_CONFLICT
        )
    within = replace(long, a=Address(base=2 * bank), b=Address(base=2 * bank), wait=0b010)
    faults.add(
        "the array reads both operands in a bank", [fill, replace(within, k=2 * array.rows)], Cause.BANK_CONFLICT
    )


def _illegal(faults: _Faults) -> None:
    """Instructions that the tile has no circuit for, or whose addresses do not fit."""
    size = Places(faults.tile).unit
    load = Instruction(opcode=Opcode.LOAD, m=1, n=size)
    vector = Instruction(opcode=Opcode.VECTOR, m=1, n=1)
    illegal, misaligned = Cause.ILLEGAL_INSTRUCTION, Cause.MISALIGNED_OPERAND
    faults.add("a function without circuit", [load, replace(vector, function=VectorFunction.RESCALE)], illegal, 1)
    other = DataType.BF16 if faults.tile.circuit_format.is_integer else DataType.INT8
    faults.add("a vector in another format", [replace(vector, dtype=other)], illegal, 0, foreign=True)
    norm = replace(vector, function=VectorFunction.RMS_NORM)
    faults.add("too many rows", [replace(norm, m=257)], illegal, 0)
    faults.add("too many rows to divide", [replace(vector, function=VectorFunction.REQUANTIZE_ROWS, m=257)], illegal, 0)
    m, n = (1, 257) if faults.tile.array.dataflow == "input_stationary" else (257, 1)
    product = Instruction(opcode=Opcode.MATMUL, m=m, n=n, k=1, rescale=1)
    faults.add("too many rows to rescale", [product], illegal, 0)
    plain = replace(product, m=1, n=1, rescale=0, dtype=faults.tile.circuit_format)
    if faults.tile.array.weights is not None and faults.tile.array.load_rows > 1:
        part = Packing(faults.tile.array.weights.formats[0], 1)
        faults.add("weights in groups of a part of a beat", [replace(plain, packing=part)], illegal, 0)
    if faults.tile.array.weights is not None and is_power(faults.tile.array.cols):
        group = Packing(faults.tile.array.weights.formats[0], max(32, faults.tile.array.load_rows))
        within = replace(plain, packing=group, b=Address(base=1))
        faults.add("packed weights within a header's part of a line", [within], misaligned, 0)
    for code in CODES[1:]:
        if code is not None and code not in faults.tile.weight_formats:
            faults.add(
                f"weights in {code.value}",
                [replace(plain, packing=Packing(code, 32 * (scale_bits(code) > 0)))],
                illegal,
                0,
            )
    _kept(faults, replace(vector, function=VectorFunction.KV_APPEND, dtype=faults.tile.circuit_format))
    faults.add("too many columns", [replace(norm, n=(1 << 15) + 1)], illegal, 0)
    largest = replace(vector, function=VectorFunction.ARGMAX, n=(1 << 18) + 1)
    faults.add("too many columns to look in", [largest], illegal, 0)
    counted = VectorFunction.TOP_K, VectorFunction.COMBINE
    for function in counted:
        faults.add(f"{function} of none", [replace(vector, function=function, k=0)], illegal, 0)
    faults.add("too many rows to one", [replace(vector, function=VectorFunction.COMBINE, k=257)], illegal, 0)
    bus = faults.tile.dma.bytes_per_cycle
    if bus > 1:
        faults.add(
            "a load within a beat",
            [load, replace(load, n=2 * bus, memory=Address(base=bus // 2))],
            Cause.MISALIGNED_TRANSFER,
            1,
        )
        store = replace(load, opcode=Opcode.STORE, n=2 * bus, a=Address(base=bus // 2), memory=Address(base=1 << 16))
        faults.add("a store within a beat", [store], Cause.MISALIGNED_TRANSFER, 0)
    _indices(faults)
    if faults.tile.vector.lanes > 1:
        faults.add("a result within a line", [replace(vector, c=Address(base=1))], misaligned, 0)
        product = Instruction(opcode=Opcode.MATMUL, m=1, n=1, k=1, c=Address(base=4))
        faults.add("sums within a line", [product], misaligned, 0)
    if faults.tile.vector.lanes > 2:
        size, short = faults.tile.element_bytes, replace(vector, n=2, narrow=1)
        faults.add("a narrow result within its line", [replace(short, c=Address(base=size))], misaligned, 0)
        faults.add("a narrow result within a line", [replace(short, c=Address(base=2 * size))], Cause.NONE)
    array = faults.tile.array
    if is_power(array.rows) and array.rows > 1:
        pitched = Instruction(opcode=Opcode.MATMUL, m=1, n=1, k=1, d=Address(base=array.rows // 2))
        faults.add("a pitch within a row of the array", [pitched], misaligned, 0)
    _splits(faults, vector)
    if faults.tile.pim is None:
        faults.add("a product of a channel", [Instruction(opcode=Opcode.PIM, m=1, n=1, k=1)], illegal, 0)


def _kept(faults: _Faults, append: Instruction) -> None:
    """Results that are kept in a format of fewer bits: which, of which functions, and where they may begin."""
    own, lanes, illegal = faults.tile.array.cache, faults.tile.vector.lanes, Cause.ILLEGAL_INSTRUCTION
    others = [code for code in CODES if code is not None and code not in own]
    for code in others if own else others[:1]:
        faults.add(f"results kept in {code.value}", [replace(append, packing=Packing(code, 0))], illegal, 0)
    for code in own:
        scaled = code in CACHE_SCALED
        packing = Packing(code, 0, by_rows=scaled)
        size = result_bytes(packing) if scaled else code.bits // 8
        kept = replace(append, packing=packing, n=2 if scaled else append.n)
        if scaled:
            turned = replace(kept, function=VectorFunction.TRANSPOSE, packing=Packing(code, 0))
            long = replace(turned, m=lanes + 1)
            faults.add(f"more rows than lanes transposed in {code.value}", [long], illegal, 0)
            odd = replace(kept, n=lanes + 1)
            faults.add(f"odd columns kept in {code.value}", [odd], *((illegal, 0) if code.bits < 8 else (Cause.NONE,)))
        added = replace(kept, function=VectorFunction.ADD, k=2)
        faults.add(f"results of a sum kept in {code.value}", [added], illegal, 0)
        within, next_line = Address(base=lanes * size // 2), Address(base=lanes * size)
        faults.add(
            f"results kept in {code.value} within a line", [replace(kept, c=within)], Cause.MISALIGNED_OPERAND, 0
        )
        faults.add(f"results kept in {code.value} behind a line", [replace(kept, c=next_line)], Cause.NONE)


def _splits(faults: _Faults, vector: Instruction) -> None:
    """Lines of sums that are split: where they may begin, and what has room in them."""
    array, illegal, misaligned = faults.tile.array, Cause.ILLEGAL_INSTRUCTION, Cause.MISALIGNED_OPERAND
    product = Instruction(opcode=Opcode.MATMUL, m=1, n=1, k=1, b=Address(base=Places(faults.tile).bank), split=1)
    reads = replace(vector, function=VectorFunction.REQUANTIZE, m=1, n=1, k=1, split=1)
    if not is_power(array.cols):
        for name, each in (("product", product), ("function", reads)):
            faults.add(f"a {name} of split lines of no power of two", [each], illegal, 0)
        return
    if array.cols == 1:
        return
    half, outer = sums_pitch(array) // 2, "m" if array.dataflow == "input_stationary" else "n"
    both = (("product", product, outer, "c"), ("function", reads, "n", "a"))
    for name, each, size, address in both:
        begins: dict[str, Any] = {address: Address(base=half)}
        faults.add(f"a {name} of half a line of sums", [replace(each, **begins)], Cause.NONE)
        inside: dict[str, Any] = {address: Address(base=half // 2)}
        faults.add(f"a {name} of sums within half a line", [replace(each, **inside)], misaligned, 0)
        panels: dict[str, Any] = {**begins, size: array.cols + 1}
        faults.add(f"a {name} of panels within a line", [replace(each, **panels)], misaligned, 0)
    faults.add("half a line of too many sums", [replace(reads, n=array.cols // 2 + 1)], illegal, 0)


def _indices(faults: _Faults) -> None:
    """Gathers whose table or indices do not begin where they must, or whose indices lie beyond the scratchpad."""
    bus, places, capacity = faults.tile.dma.bytes_per_cycle, Places(faults.tile), faults.tile.scratchpad.capacity
    lists, zeros = Address(base=6 * places.bank), places.aligned(16)
    faults.memory[15 * PAGE : 15 * PAGE + zeros] = 0
    listed = Instruction(opcode=Opcode.LOAD, m=1, n=zeros, memory=Address(base=15 * PAGE), a=lists, post=0b010)
    gather = Instruction(opcode=Opcode.GATHER, m=2, n=1, k=1, local_pitch=1, b=lists, wait=0b010)
    end = replace(listed, n=max(bus, 8), a=Address(base=capacity - max(bus, 8)))
    for name, back, cause in (("last", 8, Cause.NONE), ("beyond the last", 4, Cause.LOCAL_ADDRESS)):
        faults.add(
            f"two indices, {name} of the scratchpad", [end, replace(gather, b=Address(base=capacity - back))], cause
        )
    wrong: dict[str, dict[str, Any]] = {"indices within an index": {"b": replace(lists, base=lists.base + 2)}}
    wrong["a table within a beat"] = {"memory": Address(base=bus // 2)}
    wrong["rows of a table within a beat"] = {"pitch": 3 * bus // 2}
    for name, fields in wrong.items():
        faults.add(name, [listed, replace(gather, **fields)], Cause.MISALIGNED_TRANSFER, 1)


def _words(faults: _Faults) -> None:
    """Words that are no program."""
    end, loop = bytes(WORD_BYTES), encode(Instruction(opcode=Opcode.LOOP, m=2))
    most = faults.tile.sequencer.program_words
    illegal, size = Cause.ILLEGAL_INSTRUCTION, Cause.PROGRAM_SIZE
    faults.raw("an unknown opcode", [b"\x1f" + bytes(WORD_BYTES - 1), end], illegal, 0)
    faults.raw("no end", [loop], size, 1)
    faults.raw("a loop that was not opened", [bytes([Opcode.NEXT]) + bytes(WORD_BYTES - 1), end], illegal, 0)
    faults.raw("seven loops", [loop] * 7 + [end], illegal, 6)
    faults.raw("no words", [], size, 0)
    faults.raw("one word too many", [end], size, 0, told=most + 1)
    if most <= PROGRAM_WORDS:
        faults.raw("as many words as there may be", [end] * most, Cause.NONE)
    sized = (Opcode.LOAD, "m"), (Opcode.GATHER, "k"), (Opcode.STORE, "n"), (Opcode.MATMUL, "k"), (Opcode.VECTOR, "m")
    built = built_units(faults.tile)
    for opcode in Opcode:
        if opcode.unit not in built and opcode.unit != Unit.SEQUENCER:
            word = encode(Instruction(opcode=opcode, m=1, n=1, k=1))
            faults.raw(f"{opcode.name.lower()}, of a unit that is not there", [word, end], illegal, 0)
    for code in sorted(set(range(1 << UNIT_BITS)) - {int(unit) for unit in built}):
        word = (int(Opcode.BARRIER) | code << OPCODE_BITS).to_bytes(WORD_BYTES, "little")
        faults.raw(f"a barrier for unit {code}, which is not there", [word, end], illegal, 0)
    for opcode, name in sized:
        sizes: dict[str, Any] = {"m": 1, "n": 1, "k": 1} | {name: 0}
        word = encode(Instruction(opcode=opcode, **sizes))
        faults.raw(f"{opcode.name.lower()} without {name}", [word, end], illegal, 0)


def _bus(faults: _Faults) -> None:
    """Answers that are errors: of each beat, and of single ones, first, in the middle and last."""
    bus = faults.tile.dma.bytes_per_cycle
    beats, ports = 12, len(prefixes(geometry_of(faults.chip)))
    load = Instruction(opcode=Opcode.LOAD, m=1, n=beats * bus, memory=Address(base=4 * PAGE - 4 * bus))
    store = replace(load, opcode=Opcode.STORE, memory=Address(base=20 * PAGE - 4 * bus))
    bad = Cause.BUS_ERROR
    for stall in (0, 100):
        kept = {"stall": stall}
        told = f", stalled by {stall}" if stall else ""
        for beat in (1, 5, beats, EACH):
            faults.add(f"an error of beat {beat} of a load{told}", [load], bad, fail={"read": beat}, **kept)
        for answer in (1, 2, EACH):
            # an error on one of several ports is the error of the burst
            faults.add(f"an error of answer {answer} of a store{told}", [store], bad, fail={"write": answer}, **kept)
        for beat in (1, 4, EACH):
            faults.add(f"an error of beat {beat} of the program{told}", [load, load], bad, fail={"fetch": beat}, **kept)
    faults.add("an error of a beat that never comes", [load], Cause.NONE, fail={"read": beats + ports + 1})
