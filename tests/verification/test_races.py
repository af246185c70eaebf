"""Programs whose units meet at a word, and semaphores that keep them apart or do not."""

from itertools import product

import pytest

from siliconloom.arch import load_chip
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, Semaphore
from siliconloom.arch.layout import bank_line
from siliconloom.arch.vector import VectorFunction
from siliconloom.verification.races import races

CHIP = load_chip("npu-edge-int8")
LINE = bank_line(CHIP.tile)
END = Instruction(opcode=Opcode.END)
FULL, FREE = 1, 2


def program(given: dict[str, int], taken: dict[str, int], place: int = 0, stride: int = 0, rounds: int = 4) -> Program:
    """A loop that loads bytes to the first line, or to ``place``, and copies what is in the first line."""
    into = Address(base=place, strides=(stride, 0, 0, 0, 0, 0)[: len(Address().strides)])
    load = Instruction(opcode=Opcode.LOAD, m=1, n=8, a=into, **given)
    copy = Instruction(
        opcode=Opcode.VECTOR, function=VectorFunction.COPY, m=1, n=8, c=Address(base=1 << 20), k=1, **taken
    )
    loop, close = Instruction(opcode=Opcode.LOOP, m=rounds), Instruction(opcode=Opcode.NEXT)
    return Program((loop, load, copy, close, END), (Semaphore("full"), Semaphore("free", 1)))


def test_a_load_that_waits_until_it_is_free_and_a_copy_that_waits_until_it_is_full_do_not_race():
    assert list(races(program({"wait": FREE, "post": FULL}, {"wait": FULL, "release": FREE}), CHIP)) == []
    assert list(races(program({"wait": FREE, "post": FULL}, {"wait": FULL, "post": FREE}), CHIP)) == []


@pytest.mark.parametrize(("waits", "posts"), [each for each in product([False, True], repeat=2) if not all(each)])
def test_without_one_of_both_they_race(waits, posts):
    """The next load comes too soon, or the first copy."""
    given = ({"wait": FREE} if waits else {}) | ({"post": FULL} if posts else {})
    taken = ({"wait": FULL} if posts else {}) | ({"release": FREE} if waits else {})
    (race,) = races(program(given, taken), CHIP)
    assert race[:3] == (2, 1, "scratchpad")
    assert race.line == 0
    assert "instruction 2 (vector) may read line 0 of the scratchpad while instruction 1 (load)" in race.text(
        program(given, taken)
    )


def test_the_last_of_two_rounds_is_enough():
    """The second load may come while the first copy reads, and neither of the others meets anything."""
    assert len(list(races(program({"post": FULL}, {"wait": FULL}, rounds=2), CHIP))) == 1
    assert list(races(program({"post": FULL}, {"wait": FULL}, rounds=1), CHIP)) == []


def test_a_load_whose_results_are_not_complete_races_with_who_reads_them():
    """What it releases says that it has read, not that it has written."""
    assert len(list(races(program({"wait": FREE, "release": FULL}, {"wait": FULL, "release": FREE}), CHIP))) == 1


def test_what_lies_in_one_line_races_and_what_lies_in_the_next_does_not():
    free = {"post": FULL}, {"wait": FULL}
    assert list(races(program(*free, place=LINE), CHIP)) == []
    assert len(list(races(program(*free, place=LINE - 8), CHIP))) == 1
    # from round to round the load moves on, to the line that is read or away from it
    assert list(races(program(*free, place=LINE, stride=LINE), CHIP)) == []
    assert len(list(races(program(*free, place=3 * LINE, stride=-LINE), CHIP))) == 1


def test_two_slots_that_take_turns_do_not_race_while_their_reader_is_one_behind():
    into = Address(base=0, slot=LINE, parity=1)
    load = Instruction(opcode=Opcode.LOAD, m=1, n=8, a=into, wait=FREE, post=FULL)
    copy = Instruction(
        opcode=Opcode.VECTOR,
        function=VectorFunction.COPY,
        m=1,
        n=8,
        k=1,
        a=into,
        c=Address(base=1 << 20),
        wait=FULL,
        release=FREE,
    )
    loop, close = Instruction(opcode=Opcode.LOOP, m=6), Instruction(opcode=Opcode.NEXT)
    for slots in (2, 3):
        made = Program((loop, load, copy, close, END), (Semaphore("full"), Semaphore("free", slots)))
        assert len(list(races(made, CHIP))) == slots - 2
