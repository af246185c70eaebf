"""Words of local memory that one unit may read while another writes a part of them.

What two units do is in order where semaphores say so and in no other way: an execution that waits begins behind all
that was read by those before the one that released, or behind all that they wrote where they posted. A word is a line
of a bank of the scratchpad, or of the accumulator. Memories are built for programs in which none is read while a part
of it is written, whatever part: what is read then is undefined, and simulated RTL ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from siliconloom.arch.access import Access
from siliconloom.arch.assembler import accesses
from siliconloom.arch.description import Chip
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.isa import Instruction, Program
from siliconloom.arch.layout import bank_line, filled_values, line_values, moving_values, next_power, sums_pitch
from siliconloom.arch.opcodes import Unit
from siliconloom.arch.tile import NpuTile

MOST = 20_000
"""Executions of instructions that are looked at, unless told otherwise."""

Touched = tuple[str, bool, int]
"""A memory, whether it is written, and its lines as bits of a number."""


class Execution(NamedTuple):
    """One execution of an instruction, by a ``unit`` that takes its own in order.

    ``read`` and ``written`` are executions of other units before whose place all operands have been read, and all
    results are complete, when it starts.
    """

    number: int
    unit: Unit
    place: int
    read: dict[Unit, int]
    written: dict[Unit, int]


class Race(NamedTuple):
    """Two instructions of a program, by their numbers: what one reads the other may write, or what lies beside it."""

    reads: int
    writes: int
    memory: str
    line: int

    def text(self, program: Program) -> str:
        """What may happen, in a sentence."""
        reader, writer = (
            f"{number} ({program.instructions[number].opcode.name.lower()})" for number in (self.reads, self.writes)
        )
        return (
            f"instruction {reader} may read line {self.line} of the {self.memory} while instruction {writer} writes a "
            "part of it: no semaphore puts them in order"
        )


def races(program: Program, chip: Chip, most: int = MOST) -> Iterator[Race]:
    """Each pair of instructions of two units once, one of which may read a word while the other writes a part of it.

    Of a program's executions the first ``most`` are looked at, those of long loops not to their end.

    Raises
    ------
    NotSupported
        For tiles that run no programs.
    """
    tile = chip.tile
    if not isinstance(tile, NpuTile):
        raise NotSupported(f"programs on a {tile.kind} tile")
    done: dict[Unit, list[tuple[Execution, list[Touched]]]] = defaultdict(list)
    for each, indices in islice(_executions(program), most):
        i = program.instructions[each.number]
        done[each.unit].append((each, _touched(i, tile, indices) if i.opcode.spec.sizes else []))
    found = set[tuple[int, int]]()
    for unit, own in done.items():
        for other, theirs in done.items():
            if other == unit:
                continue
            for each, writes in own:
                for race in _met(each, writes, theirs[each.read.get(other, 0) :]):
                    if race[:2] not in found:
                        found.add(race[:2])
                        yield race


def _met(each: Execution, touched: list[Touched], others: list[tuple[Execution, list[Touched]]]) -> Iterator[Race]:
    """What an execution writes and those of another unit may read meanwhile."""
    writes = [(memory, lines) for memory, written, lines in touched if written]
    if not writes:
        return
    for other, theirs in others:
        if other.written.get(each.unit, 0) > each.place:  # it begins behind what this one writes
            return
        for memory, lines in writes:
            for place, written, read in theirs:
                if place == memory and not written and lines & read:
                    same = lines & read
                    yield Race(other.number, each.number, memory, (same & -same).bit_length() - 1)


def _executions(program: Program) -> Iterator[tuple[Execution, list[int]]]:
    """All executions in the order of the program, and the indices of the loops around each, the outermost first."""
    places: dict[Unit, int] = defaultdict(int)
    known: dict[Unit, tuple[dict[Unit, int], dict[Unit, int]]] = defaultdict(lambda: ({}, {}))
    given: list[list[tuple[dict[Unit, int], dict[Unit, int]]]] = [[] for _ in program.semaphores]
    taken = [-semaphore.initial for semaphore in program.semaphores]
    for number, i, indices, counts in program.executions():
        first = all(indices[level] == 0 for level in range(len(counts)) if i.first >> level & 1)
        last = all(indices[level] == counts[level] - 1 for level in range(len(counts)) if i.last >> level & 1)
        read, written = (dict(each) for each in known[i.unit])
        for bit in _bits(i.wait | (i.first_wait if first else 0)):
            if taken[bit] >= 0:
                for mine, theirs in zip((read, written), given[bit][taken[bit]], strict=True):
                    for unit, place in theirs.items():
                        mine[unit] = max(mine.get(unit, 0), place)
            taken[bit] += 1
        place = places[i.unit]
        places[i.unit], known[i.unit] = place + 1, (read, written)
        yield Execution(number, i.unit, place, read, written), indices
        for bit in _bits(i.release):
            given[bit].append((read | {i.unit: place + 1}, written))
        for bit in _bits(i.post | (i.last_post if last else 0)):
            given[bit].append((read | {i.unit: place + 1}, written | {i.unit: place + 1}))


def _bits(mask: int) -> Iterator[int]:
    return (bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def _touched(i: Instruction, tile: NpuTile, indices: list[int]) -> list[Touched]:
    """Lines that an execution touches, row by row where its rows do not adjoin."""
    return [_lines(i, each, tile, indices) for each in accesses(i, tile)]


def _lines(i: Instruction, access: Access, tile: NpuTile, indices: list[int]) -> Touched:
    start, size = access.address.at(indices), access.size
    if access.port == "sums":
        return "accumulator", access.writes, _between(start, start + size, sums_pitch(tile.array))
    line = next_power(bank_line(tile))
    rows, pitch, width = 1, 0, size
    if access.port == "load":
        rows, pitch, width = i.m, i.local_pitch, i.n
    elif access.port == "moving" and tile.array.dataflow != "output_stationary":
        rows = i.n if tile.array.dataflow == "input_stationary" else i.m
        pitch = i.d.base or tile.element_bytes * int(moving_values(tile, 1, i.k, i.narrow))
        # of the last block of an array's rows all is read, or of a narrow one what lies in its line
        width = tile.element_bytes * int(filled_values(i.k, tile.array.rows, i.narrow))
    elif access.port == "moving" and i.d.base:
        rows, pitch = i.k, i.d.base
        width = tile.element_bytes * int(line_values(i.m, tile.array.rows, i.narrow))
    lines = 0
    for row in range(rows):
        lines |= _between(start + row * pitch, start + row * pitch + width, line)
    return "scratchpad", access.writes, lines


def _between(start: int, end: int, line: int) -> int:
    """Bits of the lines from byte ``start`` to the one before ``end``."""
    first, last = start // line, (end - 1) // line
    return (1 << last + 1) - (1 << first)


__all__ = ["Race", "races"]
