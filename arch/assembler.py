"""The assembler of NPU tiles: a program becomes words only if the tile can run it.

What a tile checks while it runs (`arch.faults.Cause`) is refused here beforehand, with the instruction's number:
local addresses beyond a memory, transfers that break the alignment rule, two users of one side of a scratchpad bank. A
bank has one read port and one write port; in a legal program each is used by one port of one unit from one fence
(`arch.phases`) to the next. The write side of the accumulator has one user throughout; whoever reads it has a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.access import Access, illegal, where
from siliconloom.arch.array import TILE_FORMATS
from siliconloom.arch.description import Chip
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.faults import Cause, IllegalProgram
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, Unit
from siliconloom.arch.layout import bank_line, sums_room
from siliconloom.arch.opcodes import Format, built_units
from siliconloom.arch.phases import phases
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction

ACCUMULATOR = -1
"""The accumulator's place among the banks of the scratchpad, when their users are counted."""


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
    for violation in violations(program, chip):
        raise violation.error


class Violation(Struct, frozen=True):
    """A rule that a program breaks.

    Parameters
    ----------
    error
        What `check_program` would raise, were this the only one.
    instructions
        Places of those concerned; none where it is the program as a whole.
    """

    error: IllegalProgram
    instructions: tuple[int, ...] = ()


def violations(program: Program, chip: Chip) -> Iterator[Violation]:
    """Every rule that ``program`` breaks on a tile of ``chip``: at most one of an instruction by itself, and conflicts.

    Raises
    ------
    NotSupported
        For tiles that run no programs.
    """
    tile = chip.tile
    if not isinstance(tile, NpuTile):
        raise NotSupported(f"programs on a {tile.kind} tile")
    if len(program.instructions) > tile.sequencer.program_words:
        words = tile.sequencer.program_words
        yield Violation(
            IllegalProgram(
                Cause.PROGRAM_SIZE,
                None,
                f"program size: the program has {len(program.instructions)} instructions, the tile holds {words} "
                "(tile.sequencer.program_words)",
            )
        )
    try:
        _check_semaphores(program)
    except IllegalProgram as error:
        yield Violation(error)
    users: dict[tuple[int, int, bool], tuple[str, int]] = {}
    counts, phase_of = list[int](), phases(program)
    for number, i in enumerate(program.instructions):
        if i.opcode == Opcode.LOOP:
            counts.append(i.m)
        elif i.opcode == Opcode.NEXT:
            counts.pop()
        spec, touched = i.opcode.spec, list[_Touched]()
        try:
            _check_unit(i, tile, number)
            _check_flags(i, number)
            if spec.sizes:
                spec.check(i, tile, number)
                if spec.format is Format.COMPUTE:
                    _check_format(i, tile, number)
                _check_operands(i, tile, number)
                for access in accesses(i, tile):
                    low, high = extent(access.address, counts)
                    touched.append((access, low, high + access.size))
                    _check_room(i, tile, number, touched[-1])
                _check_lines(i, tile, number, touched)
        except IllegalProgram as error:
            yield Violation(error, (number,))
            continue
        yield from _conflicts(i, tile, number, touched, users, phase_of[number])


_Touched = tuple[Access, int, int]
"""An access, the first byte that it touches in all executions, and the first one behind them."""


def _check_room(i: Instruction, tile: NpuTile, number: int, touched: _Touched) -> None:
    """What an instruction touches lies within its memory."""
    access, low, end = touched
    sums = access.port == "sums"
    capacity = sums_room(tile) if sums else tile.scratchpad.capacity
    if low < 0 or end > capacity:
        key = "tile.accumulator.capacity" if sums else "tile.scratchpad.capacity"
        raise IllegalProgram(
            Cause.LOCAL_ADDRESS,
            number,
            f"{where(i, number)}: local address: touches local bytes {low:#x} to {end - 1:#x}, "
            f"but {key} is {capacity:#x}",
        )


def _check_lines(i: Instruction, tile: NpuTile, number: int, touched: Sequence[_Touched]) -> None:
    """Results share no line of a bank with an operand of their instruction, which would be read while it is written.

    They may begin where an operand does whose rows are theirs, in whole lines, or one row: then each line has been read
    before it is written.
    """
    line = bank_line(tile)
    for written, *ends in touched:
        for read, low, end in touched:
            if written.port == "sums" or read.port == "sums" or not written.writes or read.writes:
                continue
            first, last = ends
            if still := written.address == replace(read.address, base=written.address.base):  # both move as one
                low, end = read.address.base, read.address.base + read.size
                first, last = written.address.base, written.address.base + written.size
            if low // line > (last - 1) // line or first // line > (end - 1) // line:
                continue
            own = still and first == low and written.size == read.size and i.opcode.spec.format is Format.COMPUTE
            whole = i.m == 1 or not written.size // i.m % line  # of one row every line has been read before
            if not (own and whole and not i.function.spec.transposes):
                raise IllegalProgram(
                    Cause.BANK_CONFLICT,
                    number,
                    f"{where(i, number)}: bank conflict: results, local bytes {first:#x} to {last - 1:#x}, share a "
                    f"line of {line} bytes with an operand, {low:#x} to {end - 1:#x}, read while they are written; "
                    "they lie apart, or begin where an operand does that has their rows, in whole lines or one alone, "
                    "not transposed",
                )


def _conflicts(
    i: Instruction,
    tile: NpuTile,
    number: int,
    touched: Sequence[_Touched],
    users: dict[tuple[int, int, bool], tuple[str, int]],
    phase: int,
) -> Iterator[Violation]:
    """Sides of banks, and of the accumulator, that another uses already in a phase; ``users`` are those so far."""
    bank_bytes = tile.scratchpad.capacity // tile.scratchpad.banks
    for access, low, end in touched:
        if access.port == "sums":
            if access.writes:
                yield from _second_writer(i, number, users)
            continue
        for bank in range(low // bank_bytes, (end - 1) // bank_bytes + 1):
            port, other = users.setdefault((phase, bank, access.writes), (access.port, number))
            if port == access.port:
                continue
            side = "written" if access.writes else "read"
            text = (
                f"{where(i, number)}: bank conflict: scratchpad bank {bank} is {side} through the port '{access.port}' "
                f"here and through '{port}' at instruction {other}; a bank has one user of each side between fences"
            )
            yield Violation(IllegalProgram(Cause.BANK_CONFLICT, number, text), (other, number))


def _second_writer(
    i: Instruction, number: int, users: dict[tuple[int, int, bool], tuple[str, int]]
) -> Iterator[Violation]:
    """The accumulator's write side is another unit's already; whoever reads sums has a copy of them."""
    own = i.unit.spec.name
    writer, other = users.setdefault((0, ACCUMULATOR, True), (own, number))
    if writer != own:
        text = (
            f"{where(i, number)}: bank conflict: the accumulator is written by the unit {own} here and by {writer} at "
            f"instruction {other}; it has one user of that side"
        )
        yield Violation(IllegalProgram(Cause.BANK_CONFLICT, number, text), (other, number))


def _check_semaphores(program: Program) -> None:
    """Nobody may wait for a semaphore more often than it is posted: the last wait would never end."""
    counts: list[int] = []
    given = [s.initial for s in program.semaphores]
    taken, waiter, known = [0] * len(given), [0] * len(given), (1 << len(given)) - 1
    for number, i in enumerate(program.instructions):
        if i.opcode == Opcode.LOOP:
            counts.append(i.m)
        elif i.opcode == Opcode.NEXT:
            counts.pop()
        if not (waited := i.wait | i.first_wait) and not i.release | i.post | i.last_post:
            continue
        always = math.prod(counts)
        first, last = (
            always if not mask else math.prod(count for level, count in enumerate(counts) if not mask >> level & 1)
            for mask in (i.first, i.last)
        )
        for mask, times in ((i.release, always), (i.post, always), (i.last_post, last)):
            for bit in _bits(mask & known):
                given[bit] += times
        for bit in _bits(waited & known):
            waits = always if i.wait >> bit & 1 else first
            if waits:
                taken[bit], waiter[bit] = taken[bit] + waits, number
    for bit, semaphore in enumerate(program.semaphores):
        if taken[bit] > given[bit]:
            number = waiter[bit]
            raise IllegalProgram(
                Cause.DEADLOCK,
                number,
                f"{where(program.instructions[number], number)}: deadlock: {semaphore.name} is waited for "
                f"{taken[bit]:,} times and posted {given[bit]:,} times, its initial count included",
            )


def _bits(mask: int) -> Iterator[int]:
    """Numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


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
    yield from i.opcode.spec.accesses(i, tile)


def _check_unit(i: Instruction, tile: NpuTile, number: int) -> None:
    """Every instruction but the sequencer's own, and every barrier, goes to a queue."""
    own = i.opcode != Opcode.BARRIER and i.unit == Unit.SEQUENCER
    if not own and i.unit not in built_units(tile):
        built = ", ".join(unit.spec.name for unit in built_units(tile))
        raise illegal(i, number, f"no circuit for the unit {i.unit.spec.name}; there is {built}")


def _check_flags(i: Instruction, number: int) -> None:
    """No flag that its instruction does not know: the tile would ignore it, and who wrote it meant something."""
    what = i.function.value if i.opcode == Opcode.VECTOR else i.opcode.spec.name
    if (i.accumulate or i.overwrite) and not i.opcode.spec.adds(i):
        name = "accumulate" if i.accumulate else "overwrite"
        raise illegal(i, number, f"{what} adds to nothing that is there: it takes no {name}")
    if i.rescale and i.opcode != Opcode.MATMUL:
        raise illegal(i, number, f"sums are rescaled by a matmul that adds to them, and by nothing else (got {what})")
    if i.narrow and i.opcode.spec.format is not Format.COMPUTE:
        raise illegal(i, number, f"operands of a computation may be narrow, and no others (got {what})")
    if i.split and i.opcode not in (Opcode.MATMUL, Opcode.VECTOR):
        raise illegal(i, number, f"lines of a computation's sums may be split, and no others (got {what})")


def _check_format(i: Instruction, tile: NpuTile, number: int) -> None:
    """Arrays and vector units have circuits for one number format; a transfer moves bytes, whatever they mean."""
    own = tile.circuit_format
    if i.dtype is not own or not tile.built:
        built = f"the tile has {own.value}" if tile.built else f"tiles have {' or '.join(TILE_FORMATS)}"
        raise illegal(i, number, f"no circuit for the number format {i.dtype.value}; {built}")


def _check_operands(i: Instruction, tile: NpuTile, number: int) -> None:
    """Operands lie in whole lines."""
    for name, unit in i.opcode.spec.multiples(i, tile).items():
        address = getattr(i, name)
        wrong = next((p for p in (address.base, *address.strides, address.slot) if p % unit), None)
        if wrong is not None:
            raise IllegalProgram(
                Cause.MISALIGNED_OPERAND,
                number,
                f"{where(i, number)}: misaligned operand: its addresses {name} must be multiples of {unit} "
                f"(got {wrong:#x})",
            )


__all__ = ["Access", "Violation", "accesses", "assemble", "check_program", "extent", "violations"]
