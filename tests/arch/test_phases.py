"""Fences: what is taken for one orders everything, in whatever time instructions take; and nothing else is."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import Instruction, Opcode, Program, Semaphore
from siliconloom.arch.opcodes import Unit
from siliconloom.arch.phases import LENGTH, ORDER, fence, fences, phases

NAMES = ("full", "sums", "fence", "stored", "free", "results", "parameters", "other")
POSTED_BY = {0: Unit.LOAD, 1: Unit.MATMUL, 2: Unit.STORE, 3: Unit.STORE, 5: Unit.VECTOR, 6: Unit.LOAD, 7: Unit.MATMUL}
WAITED_BY = {0: Unit.MATMUL, 1: Unit.VECTOR, 2: Unit.LOAD, 3: Unit.LOAD, 5: Unit.STORE, 6: Unit.VECTOR, 7: Unit.STORE}
"""Of each semaphore but those that are released the unit that posts, and the one that waits."""
FENCE = (1, 5, 2, 0)
"""Semaphores of a fence, three of which are rings', too."""


def barrier(unit, wait=0, post=0):
    return Instruction(opcode=Opcode.BARRIER, unit=unit, wait=wait, post=post)


def fenced():
    return [barrier(unit, wait, post) for unit, wait, post in fence(FENCE)]


def whole(code):
    semaphores = tuple(Semaphore(name, 1 if name == "stored" else 0, "dependency") for name in NAMES)
    return Program((*code, Instruction(opcode=Opcode.END)), semaphores)


def chain(r, *, late=()):
    """Work that passes from unit to unit; what posts of ``late`` semaphores is not waited for."""
    found = []
    for number in r.sample(sorted(POSTED_BY), r.randint(1, 4)):
        if number in (2, 3):
            continue
        times = r.randint(1, 2)
        found += [barrier(POSTED_BY[number], post=1 << number)] * times
        if number not in late:
            found += [barrier(WAITED_BY[number], wait=1 << number)] * times
    return found


def body(r, depth=0):
    """Chains, fences and loops of these."""
    found = []
    for _ in range(r.randint(1, 4)):
        kind = r.random()
        if kind < 0.45:
            found += chain(r)
        elif kind < 0.75:
            found += fenced()
        elif depth < 2:
            found += [Instruction(opcode=Opcode.LOOP, m=r.randint(2, 3)), *body(r, depth + 1)]
            found.append(Instruction(opcode=Opcode.NEXT))
    return found


def times_of(program, r):
    """When each execution begins and ends: number of the instruction, begin, end; in program order.

    Every unit takes its own in order, one at a time, and each takes any time. A post counts from the end on.
    """
    executed = [(number, i) for number, i, _, _ in program.executions()]
    queues = {unit: [at for at, (_, i) in enumerate(executed) if i.unit == unit] for unit in ORDER}
    posted = [[0.0] * each.initial for each in program.semaphores]
    taken, free = [0] * len(posted), dict.fromkeys(ORDER, 0.0)
    found, moved = {}, True
    while moved:
        moved = False
        for unit, queue in queues.items():
            while queue:
                i = executed[queue[0]][1]
                waits = [bit for bit in range(len(posted)) if i.wait >> bit & 1]
                if any(taken[bit] >= len(posted[bit]) for bit in waits):
                    break
                begin = max([free[unit], *(posted[bit][taken[bit]] for bit in waits)])
                for bit in waits:
                    taken[bit] += 1
                end = begin + r.choice([0.1, 1, 10, 100]) * r.random()
                for bit in range(len(posted)):
                    if i.post >> bit & 1:
                        posted[bit].append(end)
                free[unit] = end
                found[queue.pop(0)] = begin, end
                moved = True
    assert len(found) == len(executed), "a deadlock"
    return [(executed[at][0], *found[at]) for at in range(len(executed))]


@given(seed=st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_what_is_taken_for_a_fence_parts_all_before_it_from_all_behind_it(seed):
    r = random.Random(seed)
    program = whole([*chain(r), *body(r), *fenced(), *chain(r)])
    begins, phase = fences(program), phases(program)
    assert begins, "one is behind everything that is waited for"
    for _ in range(5):
        ran = times_of(program, r)
        for at, (number, _, _) in enumerate(ran):
            if number in begins:
                before = [end for _, _, end in ran[:at]]
                behind = [begin for _, begin, _ in ran[at + LENGTH :]]
                assert not before or not behind or max(before) <= min(behind)
        # so two that overlap in time are of one phase, but for the barriers of fences themselves
        inner = {number for begin in begins for number in range(begin, begin + LENGTH)}
        some = [each for each in ran if each[0] not in inner]
        for one, first, last in some:
            for other, begin, end in some:
                if first < end and begin < last:
                    assert phase[one] == phase[other]


@given(seed=st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_a_fence_whose_semaphores_have_posts_that_nobody_took_is_none(seed):
    """Its waits may take these in place of the fence's own."""
    r = random.Random(seed)
    number = r.choice([0, 1, 5])
    late = [barrier(POSTED_BY[number], post=1 << number)]
    taken = [barrier(WAITED_BY[number], wait=1 << number)]
    looped = [Instruction(opcode=Opcode.LOOP, m=2), *late, *fenced(), *taken, Instruction(opcode=Opcode.NEXT)]
    for code in (looped, [*chain(r), *late, *fenced(), *taken]):
        assert not fences(whole(code))
    inside = [Instruction(opcode=Opcode.LOOP, m=2), *fenced(), *late, Instruction(opcode=Opcode.NEXT), *taken, *taken]
    assert not fences(whole(inside)), "the second iteration's would take those of the first"


def test_a_wait_of_some_iterations_of_a_loop_around_a_fence_settles_nothing():
    loop, end = Instruction(opcode=Opcode.LOOP, m=2), Instruction(opcode=Opcode.NEXT)
    post = barrier(Unit.MATMUL, post=2)
    wait = Instruction(opcode=Opcode.BARRIER, unit=Unit.VECTOR, first_wait=2, first=1)
    assert not fences(whole([loop, post, wait, *fenced(), end, barrier(Unit.VECTOR, wait=2)]))
    assert fences(whole([loop, post, wait, end, barrier(Unit.VECTOR, wait=2), *fenced()])), "all iterations are before"


@pytest.mark.parametrize("place", range(LENGTH))
@pytest.mark.parametrize("how", ["left out", "doubled", "another unit", "no wait", "no post", "of work"])
def test_a_fence_with_another_barrier_is_none(place, how):
    r = random.Random(place)
    code, one = fenced(), fenced()[place]
    others = [unit for unit in ORDER if unit is not one.unit]
    changed = {
        "left out": [],
        "doubled": [one, barrier(one.unit)],
        "another unit": [replace(one, unit=r.choice(others))],
        "no wait": [replace(one, wait=0)],
        "no post": [replace(one, post=0)],
        "of work": [replace(one, m=1)],
    }[how]
    if changed == [one] or (how == "doubled" and place == LENGTH - 1):
        return
    code[place : place + 1] = changed
    semaphores = tuple(Semaphore(name, 0, "dependency") for name in NAMES)
    try:
        program = Program((*code, Instruction(opcode=Opcode.END)), semaphores)
    except LoomError:  # a semaphore of two units
        return
    assert not fences(program)


def test_a_semaphore_that_begins_with_a_count_makes_no_fence():
    code = (*fenced(), Instruction(opcode=Opcode.END))
    assert fences(Program(code, tuple(Semaphore(name, 0, "dependency") for name in NAMES))) == [0]
    for number in FENCE:
        given_one = tuple(Semaphore(name, int(at == number), "dependency") for at, name in enumerate(NAMES))
        assert not fences(Program(code, given_one))


def test_a_program_with_a_unit_that_no_fence_passes_has_none():
    other = next(unit for unit in Unit if unit not in ORDER and unit)
    assert not fences(whole([*fenced(), barrier(other)]))


def test_a_loop_joins_what_is_behind_its_last_fence_to_its_beginning():
    work = [barrier(Unit.LOAD, post=1), barrier(Unit.MATMUL, wait=1)]
    loop, end = Instruction(opcode=Opcode.LOOP, m=2), Instruction(opcode=Opcode.NEXT)
    found = phases(whole([*work, loop, *work, *fenced(), *work, end, *fenced(), *work]))
    first, begin, last, behind = found[0], found[3], found[5 + LENGTH], found[-2]
    assert first == begin == last != behind
    found = phases(whole([*work, loop, *fenced(), *work, *fenced(), *work, end, *work]))
    first, one, other = found[0], found[3 + LENGTH], found[5 + 2 * LENGTH]
    assert len({first, one, other}) == 3, "it goes back to a fence, which is behind all of the last iteration"
    assert found[-2] == other
