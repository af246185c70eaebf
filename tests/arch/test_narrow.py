"""Narrow operands: what the assembler lets pass, and what lies where in the words of a program."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.assembler import accesses, check_program
from siliconloom.arch.faults import Cause, IllegalProgram
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, decode, encode
from siliconloom.arch.listing import disassemble
from siliconloom.arch.vector import VectorFunction

END = Instruction(opcode=Opcode.END)


def chip(lanes=16, dataflow="weight_stationary"):
    sets = {"tile.vector.lanes": lanes, "tile.array.dataflow": dataflow, "tile.array.load_rows": 1}
    return load_chip("npu-edge-int8", [(key, str(value)) for key, value in sets.items()])


def copy(**fields):
    given = {"function": VectorFunction.COPY, "m": 2, "n": 3, "k": 1, "c": Address(base=1 << 15), "narrow": 1}
    return Instruction(opcode=Opcode.VECTOR, **(given | fields))


def product(**fields):
    given = {"m": 2, "n": 3, "k": 5, "b": Address(base=1 << 15), "narrow": 1}
    return Instruction(opcode=Opcode.MATMUL, **(given | fields))


def checked(instruction, tile=None):
    check_program(Program((instruction, END)), tile or chip())


def test_a_word_says_that_operands_are_narrow():
    for instruction in (copy(), product()):
        assert decode(encode(instruction)) == instruction
        assert " narrow" in disassemble([instruction])
    assert decode(encode(copy(narrow=0))) != copy()


@pytest.mark.parametrize(
    ("legal", "wrong", "field"),
    [
        (copy(a=Address(base=4)), copy(a=Address(base=2)), "a"),
        (copy(c=Address(base=(1 << 15) + 4)), copy(c=Address(base=(1 << 15) + 2)), "c"),
        (copy(n=9, c=Address(base=1 << 15)), copy(n=9, c=Address(base=(1 << 15) + 8)), "c"),
        (copy(narrow=0), copy(narrow=0, c=Address(base=(1 << 15) + 4)), "c"),
        (product(a=Address(base=8)), product(a=Address(base=4)), "a"),
        (product(d=Address(base=24)), product(d=Address(base=12)), "d"),
        (product(b=Address(base=(1 << 15) + 4)), product(b=Address(base=(1 << 15) + 2)), "b"),
        (product(n=33), product(n=33, b=Address(base=(1 << 15) + 4)), "b"),
    ],
)
def test_addresses_are_multiples_of_a_narrow_line(legal, wrong, field):
    checked(legal)
    with pytest.raises(IllegalProgram, match=f"misaligned operand: its addresses {field} must be") as found:
        checked(wrong)
    assert found.value.cause == Cause.MISALIGNED_OPERAND


def test_nothing_but_a_computation_has_narrow_operands():
    load = Instruction(opcode=Opcode.LOAD, m=1, n=16, narrow=1)
    with pytest.raises(IllegalProgram, match=r"operands of a computation may be narrow, and no others \(got load\)"):
        checked(load)


@given(
    m=st.integers(1, 40),
    n=st.integers(1, 40),
    k=st.integers(1, 40),
    dataflow=st.sampled_from(["weight_stationary", "input_stationary", "output_stationary"]),
)
def test_narrow_operands_touch_no_more_than_others(m, n, k, dataflow):
    tile = chip(dataflow=dataflow).tile
    for make in (product, copy):
        sizes = {"m": m, "n": n} | ({"k": k} if make is product else {})
        narrow, wide = (
            {(each.port, each.writes): each.size for each in accesses(make(**sizes, narrow=bit), tile)}
            for bit in (1, 0)
        )
        assert narrow.keys() == wide.keys()
        assert all(0 < size <= wide[port] for port, size in narrow.items())
