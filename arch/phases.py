"""Fences: where a program makes every unit wait until all of them have done what is before.

A side of a scratchpad bank has one user at a time. Between two fences that is one port of one unit; behind a fence it
may be another, as nothing before it is still at work then, and nothing behind it has begun. A fence is seven barriers,
one behind the other: in the order in which work passes through the units each posts to the next one once everything
before it is complete, and back at the first one they let each other go on:

    matmul posts a; vector waits for a, posts b; store waits for b, posts c; load waits for c, posts d;
    matmul waits for d, posts a; vector waits for a, posts b; store waits for b

Units take their instructions in order, and a semaphore has one unit that posts and one that waits. So the post that a
barrier waits for is that of the fence if whatever was posted to the semaphore before it has been waited for before it:
`fences` counts that, and takes nothing else for a fence. The same semaphores may serve rings in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from siliconloom.arch.isa import Instruction, Opcode, Program
from siliconloom.arch.opcodes import Unit

ORDER = (Unit.MATMUL, Unit.VECTOR, Unit.STORE, Unit.LOAD)
"""Units in the order in which a fence passes them."""
LENGTH = 2 * len(ORDER) - 1
"""Barriers of a fence."""


def fence(semaphores: Sequence[int]) -> list[tuple[Unit, int, int]]:
    """Unit, semaphores that are waited for, and those that are posted, of each barrier of a fence.

    ``semaphores`` are a, b, c and d: each is posted by the unit of `ORDER` in its place, and waited for by the next.
    """
    bits = [1 << number for number in semaphores]
    a, b, _, d = bits
    rounds = [(unit, bits[place - 1] if place else 0, bits[place]) for place, unit in enumerate(ORDER)]
    return [*rounds, (ORDER[0], d, a), (ORDER[1], a, b), (ORDER[2], b, 0)]


def fences(program: Program) -> list[int]:
    """Numbers of the instructions that a fence begins with."""
    code, found = program.instructions, list[int]()
    if any(_works(each) and each.unit not in ORDER for each in code):
        return found  # a unit that no fence passes
    for first in range(len(code) - LENGTH + 1):
        if code[first].opcode is not Opcode.BARRIER or code[first].unit is not ORDER[0]:
            continue
        semaphores = _semaphores(code[first : first + LENGTH])
        if semaphores and all(_settled(program, number, first) for number in semaphores):
            found.append(first)
    return found


def phases(program: Program) -> list[int]:
    """Of every instruction the number of its phase: those of one phase may be at work at the same time.

    A fence is between phases; where a loop goes back from one behind it to one before it, they are one.
    """
    begins, code = set(fences(program)), program.instructions
    if not begins:
        return [0] * len(code)
    joined, now, where, loops = [0], 0, list[int](), list[int | None]()
    for number, i in enumerate(code):
        if number in begins:
            now = len(joined)
            joined.append(now)
        if i.opcode is Opcode.LOOP:
            following = next(at for at in range(number, len(code)) if code[at].opcode is not Opcode.LOOP)
            loops.append(None if following in begins else now)  # one that begins with a fence goes back to that
        where.append(now)
        if i.opcode is Opcode.NEXT and (back := loops.pop()) is not None:
            first, last = _root(joined, back), _root(joined, now)
            joined[max(first, last)] = min(first, last)
    return [_root(joined, phase) for phase in where]


def _root(joined: Sequence[int], phase: int) -> int:
    while joined[phase] != phase:
        phase = joined[phase]
    return phase


def _works(instruction: Instruction) -> bool:
    """Whether an instruction goes to a unit."""
    return instruction.opcode not in (Opcode.END, Opcode.LOOP, Opcode.NEXT)


def _semaphores(barriers: Sequence[Instruction]) -> tuple[int, ...]:
    """Numbers of the semaphores of a fence that these are, and nothing where they are none."""
    plain = all(
        i.opcode is Opcode.BARRIER and not (i.release or i.first_wait or i.last_post or i.m or i.first or i.last)
        for i in barriers
    )
    posted = [i.post for i in barriers[: len(ORDER)]]
    if not plain or any(not mask or mask & mask - 1 for mask in posted) or len(set(posted)) != len(posted):
        return ()
    numbers = tuple(mask.bit_length() - 1 for mask in posted)
    wanted = fence(numbers)
    return numbers if [(i.unit, i.wait, i.post) for i in barriers] == wanted else ()


def _settled(program: Program, semaphore: int, place: int) -> bool:
    """Whether all that is posted to a semaphore before a place has been waited for before it, in every iteration.

    What is in a loop counts as often as it is executed in one iteration of those around the place. There it must come
    to nothing before the place, and in a whole iteration.
    """
    if program.semaphores[semaphore].initial:
        return False
    uses = list[tuple[int, tuple[int, ...], int, int]]()  # number, loops around it, levels that limit it, sign
    bit, loops, around = 1 << semaphore, list[int](), tuple[int, ...]()
    for number, i in enumerate(program.instructions):
        if number == place:
            around = tuple(loops)
        if i.opcode is Opcode.LOOP:
            loops.append(number)
        elif i.opcode is Opcode.NEXT:
            loops.pop()
        elif bit & i.release:
            return False
        else:
            for used, levels, sign in (
                (i.wait, 0, -1),
                (i.first_wait, i.first, -1),
                (i.post, 0, 1),
                (i.last_post, i.last, 1),
            ):
                if used & bit:
                    uses.append((number, tuple(loops), levels, sign))
    before, whole = 0, [0] * (len(around) + 1)
    for number, own, levels, sign in uses:
        shared = next(
            (at for at, (one, other) in enumerate(zip(own, around, strict=False)) if one != other),
            min(len(own), len(around)),
        )
        if levels & (1 << shared) - 1:
            return False
        counts = (
            program.instructions[loop].m
            for level, loop in enumerate(own)
            if level >= shared and not levels >> level & 1
        )
        times = sign * prod(counts)
        whole[shared] += times
        before += times if number < place else 0
    return not before and not any(whole[1:])


__all__ = ["LENGTH", "ORDER", "fence", "fences", "phases"]
