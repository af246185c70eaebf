"""The assembler of NPU tiles: a program becomes words only if the tile can run it.

What a tile checks while it runs (`arch.faults.Cause`) is refused here beforehand, with the instruction's number:
local addresses beyond a memory, transfers that break the alignment rule, two users of one side of a scratchpad bank. A
bank has one read port and one write port; in a legal program each is used by one port of one unit throughout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip, NpuTile
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.faults import Cause, IllegalProgram
from siliconloom.arch.isa import COMPUTES, TRANSFERS, Address, Instruction, Opcode, Program
from siliconloom.arch.layout import moving_values, stationary_values
from siliconloom.arch.vector import BUILT, COLUMN_LIMIT, ROW_LIMIT, VectorFunction, vector_cost

SUM_BYTES = 4
CIRCUIT_FORMATS = (DataType.INT8,)
"""Number formats of matmul and vector instructions for which a tile has circuits; others are illegal instructions."""


class _SecondOperand(Mapping[VectorFunction, int]):
    """Vector functions with a second operand, and its bytes for each of the first."""

    def __getitem__(self, function: VectorFunction) -> int:
        if not function.spec.second:
            raise KeyError(function)
        return function.spec.second

    def __iter__(self) -> Iterator[VectorFunction]:
        return (function for function in VectorFunction if function.spec.second)

    def __len__(self) -> int:
        return sum(1 for _ in self)


SECOND_OPERAND = _SecondOperand()


@dataclass(frozen=True)
class Access:
    """What one execution of an instruction touches in local memory.

    Parameters
    ----------
    port
        Port of the scratchpad, or ``sums`` for the accumulator.
    writes
        Which side of it.
    address
        Where it begins.
    size
        Bytes from there on.
    """

    port: str
    writes: bool
    address: Address
    size: int


def assemble(program: Program, chip: Chip) -> bytes:
    """Encode ``program`` for the tile of ``chip``.

    Raises
    ------
    IllegalProgram
        For an instruction that the tile would refuse, with its number and the cause that the tile would report.
    """
    check_program(program, chip)
    return program.encode()


def check_program(program: Program, chip: Chip) -> None:
    """Refuse what a tile of ``chip`` cannot run; raises `IllegalProgram` that names the instruction."""
    tile = chip.tile
    if not isinstance(tile, NpuTile):
        raise NotSupported(f"programs on a {tile.kind} tile")
    if len(program.instructions) > tile.sequencer.program_words:
        raise IllegalProgram(
            Cause.PROGRAM_SIZE,
            None,
            f"program size: the program has {len(program.instructions)} instructions, the tile holds "
            f"{tile.sequencer.program_words} (tile.sequencer.program_words)",
        )
    _check_semaphores(program)
    bank_bytes = tile.scratchpad.capacity // tile.scratchpad.banks
    users: dict[tuple[int, bool], tuple[str, int]] = {}
    counts: list[int] = []
    for number, i in enumerate(program.instructions):
        where = _where(i, number)
        if i.opcode == Opcode.LOOP:
            counts.append(i.m)
        elif i.opcode == Opcode.NEXT:
            counts.pop()
        elif i.opcode in TRANSFERS | COMPUTES:
            if i.opcode in TRANSFERS:
                _check_alignment(i, tile, number)
            elif i.opcode == Opcode.VECTOR:
                _check_function(i, number)
            if i.opcode in COMPUTES:
                _check_format(i, number)
                _check_operands(i, tile, number)
            for access in accesses(i, tile):
                low, high = extent(access.address, counts)
                sums = access.port == "sums"
                capacity = tile.accumulator.capacity if sums else tile.scratchpad.capacity
                key = "tile.accumulator.capacity" if sums else "tile.scratchpad.capacity"
                if low < 0 or high + access.size > capacity:
                    raise IllegalProgram(
                        Cause.LOCAL_ADDRESS,
                        number,
                        f"{where}: local address: touches local bytes {low:#x} to {high + access.size - 1:#x}, "
                        f"but {key} is {capacity:#x}",
                    )
                if sums:
                    continue
                for bank in range(low // bank_bytes, (high + access.size - 1) // bank_bytes + 1):
                    port, other = users.setdefault((bank, access.writes), (access.port, number))
                    if port != access.port:
                        side = "written" if access.writes else "read"
                        raise IllegalProgram(
                            Cause.BANK_CONFLICT,
                            number,
                            f"{where}: bank conflict: scratchpad bank {bank} is {side} through the port "
                            f"'{access.port}' here and through '{port}' at instruction {other}; a bank has one user "
                            "of each side",
                        )


def _check_semaphores(program: Program) -> None:
    """Nobody may wait for a semaphore more often than it is posted: the last wait would never end."""
    counts: list[int] = []
    given = [s.initial for s in program.semaphores]
    taken, waiter = [0] * len(given), [0] * len(given)
    for number, i in enumerate(program.instructions):
        if i.opcode == Opcode.LOOP:
            counts.append(i.m)
        elif i.opcode == Opcode.NEXT:
            counts.pop()
        always = math.prod(counts)
        first, last = (
            math.prod(count for level, count in enumerate(counts) if not mask >> level & 1)
            for mask in (i.first, i.last)
        )
        for bit in range(len(given)):
            given[bit] += always * ((i.release >> bit & 1) + (i.post >> bit & 1)) + last * (i.last_post >> bit & 1)
            waits = always if i.wait >> bit & 1 else first * (i.first_wait >> bit & 1)
            if waits:
                taken[bit], waiter[bit] = taken[bit] + waits, number
    for bit, semaphore in enumerate(program.semaphores):
        if taken[bit] > given[bit]:
            number = waiter[bit]
            raise IllegalProgram(
                Cause.DEADLOCK,
                number,
                f"{_where(program.instructions[number], number)}: deadlock: {semaphore.name} is waited for "
                f"{taken[bit]:,} times and posted {given[bit]:,} times, its initial count included",
            )


def extent(address: Address, counts: Sequence[int]) -> tuple[int, int]:
    """Lowest and highest value of an address over loops with these iteration counts."""
    low = high = address.base
    for count, stride in zip(counts, address.strides, strict=False):
        step = (count - 1) * stride
        low, high = low + min(step, 0), high + max(step, 0)
    if address.slot and (address.parity or address.odd):
        fixed = address.odd and not address.parity
        low, high = low + (address.slot if fixed else 0), high + address.slot
    return low, high


def accesses(i: Instruction, tile: NpuTile) -> Iterator[Access]:
    """Local memory that one execution of ``i`` touches; the layouts are those of ``rtl.npu``."""
    array = tile.array
    cols, rows = array.cols, array.rows
    if i.opcode in TRANSFERS:
        size = (i.m - 1) * i.local_pitch + i.n
        yield Access("load", True, i.a, size) if i.opcode == Opcode.LOAD else Access("store", False, i.a, size)
    elif i.opcode == Opcode.MATMUL:
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
    elif i.opcode == Opcode.VECTOR:
        lanes = tile.vector.lanes
        blocks = -(-i.n // lanes)
        size = i.m * blocks * lanes
        spec = i.function.spec
        if spec.from_sums:
            yield Access("sums", False, i.a, SUM_BYTES * size)
        else:
            yield Access("first", False, i.a, size)
        if spec.second:
            yield Access("second", False, i.b, spec.second * size)
        parameters = vector_cost(i.function).parameter_bytes(i.n, lanes)
        if parameters:
            yield Access("second", False, i.d, parameters)
        if spec.transposes:
            size = i.n * -(-i.m // lanes) * lanes
        yield Access("vector", True, i.c, size)


def _where(i: Instruction, number: int) -> str:
    return f"instruction {number} ({i.opcode.name.lower()})"


def _check_format(i: Instruction, number: int) -> None:
    """Arrays and vector units have circuits for some number formats; a transfer moves bytes, whatever they mean."""
    if i.dtype not in CIRCUIT_FORMATS:
        raise IllegalProgram(
            Cause.ILLEGAL_INSTRUCTION,
            number,
            f"{_where(i, number)}: {Cause.ILLEGAL_INSTRUCTION.text}: no circuit for the number format {i.dtype.value}; "
            f"built are {', '.join(CIRCUIT_FORMATS)}",
        )


def _check_function(i: Instruction, number: int) -> None:
    """The vector unit has circuits for some functions, and a row memory of some rows."""
    where = f"{_where(i, number)}: {Cause.ILLEGAL_INSTRUCTION.text}"
    if i.function not in BUILT:
        raise IllegalProgram(
            Cause.ILLEGAL_INSTRUCTION,
            number,
            f"{where}: no circuit for the vector function {i.function.value}; built are {', '.join(sorted(BUILT))}",
        )
    if vector_cost(i.function).by_row:
        for name, size, limit in (("rows", i.m, ROW_LIMIT), ("columns", i.n, COLUMN_LIMIT)):
            if size > limit:
                raise IllegalProgram(
                    Cause.ILLEGAL_INSTRUCTION,
                    number,
                    f"{where}: {i.function.value} takes at most {limit} {name} (got {size})",
                )


def operand_units(i: Instruction, tile: NpuTile) -> dict[str, int]:
    """Bytes of which the local addresses of a compute instruction must be multiples: a line of their port."""
    array, lanes = tile.array, tile.vector.lanes
    if i.opcode == Opcode.VECTOR:
        first = lanes * (SUM_BYTES if i.function.spec.from_sums else 1)
        second = {} if i.function.spec.masks else {"b": lanes}
        return {"a": first, **second, "c": lanes, "d": lanes}
    loaded = array.load_rows * array.cols
    stays, moves = ("a", "b") if array.dataflow == "input_stationary" else ("b", "a")
    return {stays: loaded, moves: array.rows, "c": SUM_BYTES * array.cols}


def _check_operands(i: Instruction, tile: NpuTile, number: int) -> None:
    """Operands lie in whole lines."""
    for name, unit in operand_units(i, tile).items():
        address = getattr(i, name)
        wrong = next((p for p in (address.base, *address.strides, address.slot) if p % unit), None)
        if wrong is not None:
            raise IllegalProgram(
                Cause.MISALIGNED_OPERAND,
                number,
                f"{_where(i, number)}: misaligned operand: its addresses {name} must be multiples of {unit} "
                f"(got {wrong:#x})",
            )


def _check_alignment(i: Instruction, tile: NpuTile, number: int) -> None:
    """A row longer than the bus begins at its multiples on both sides; a shorter one stays within one window."""
    bus = tile.dma.bytes_per_cycle
    for name, address, pitch in (("memory", i.memory, i.pitch), ("local", i.a, i.local_pitch)):
        places = [address.base, *address.strides, address.slot, *([pitch] if i.m > 1 else [])]
        unit = bus if i.n > bus else 1 << (i.n - 1).bit_length()
        wrong = next((p for p in places if p % unit), None)
        if wrong is not None:
            raise IllegalProgram(
                Cause.MISALIGNED_TRANSFER,
                number,
                f"{_where(i, number)}: misaligned transfer: its {name} addresses must be multiples of {unit} for rows "
                f"of {i.n} bytes on a bus of {bus} (got {wrong:#x})",
            )


__all__ = ["CIRCUIT_FORMATS", "Access", "accesses", "assemble", "check_program", "extent"]
