"""Lines of sums that are split: what the assembler lets pass, and that a product's values are what they were."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.assembler import accesses, check_program
from siliconloom.arch.faults import Cause, IllegalProgram
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, decode, encode
from siliconloom.arch.listing import disassemble
from siliconloom.arch.vector import VectorFunction
from siliconloom.sim.golden.npu import GoldenMachine

END = Instruction(opcode=Opcode.END)
BANK = 1 << 15


def chip(name="npu-edge-int8", **sets):
    sets = {"tile__array__cols": 32, "tile__array__rows": 32} | sets
    return load_chip(name, [(key.replace("__", "."), str(value)) for key, value in sets.items()])


def product(**fields):
    given = {"m": 5, "n": 8, "k": 5, "b": Address(base=BANK), "split": 2}
    return Instruction(opcode=Opcode.MATMUL, **(given | fields))


def reads(**fields):
    given = {"function": VectorFunction.REQUANTIZE, "m": 5, "n": 8, "k": 1, "split": 2}
    return Instruction(opcode=Opcode.VECTOR, **(given | {"c": Address(base=BANK)} | fields))


def checked(instruction, tile=None):
    check_program(Program((instruction, END)), tile or chip())


def test_a_word_says_how_lines_are_split():
    for instruction in (product(), reads()):
        assert decode(encode(instruction)) == instruction
        assert " split 2" in disassemble([instruction])


def test_sums_of_split_lines_take_less():
    tile = chip().tile
    for make in (product, reads):
        sizes = [
            next(each.size for each in accesses(make(split=split), tile) if each.port == "sums") for split in (0, 2)
        ]
        assert sizes == [5 * 128, 5 * 32]


@pytest.mark.parametrize(
    ("legal", "wrong"),
    [
        (product(c=Address(base=32)), product(c=Address(base=16))),
        (product(n=40, c=Address(base=128)), product(n=40, c=Address(base=32))),
        (reads(a=Address(base=32)), reads(a=Address(base=16))),
        (reads(n=40, a=Address(base=128)), reads(n=40, a=Address(base=32))),
    ],
)
def test_they_begin_at_multiples_of_their_lines(legal, wrong):
    checked(legal)
    with pytest.raises(IllegalProgram, match="misaligned operand") as found:
        checked(wrong)
    assert found.value.cause == Cause.MISALIGNED_OPERAND


@pytest.mark.parametrize(
    ("wrong", "columns", "rule"),
    [
        (reads(n=9), 32, "a line of sums that is split has 8; the last panel has 9 columns"),
        (reads(n=64), 32, "a line of sums that is split has 8; the last panel has 32 columns"),
        (reads(function=VectorFunction.COPY), 32, "lines of sums may be split; copy reads none"),
        (Instruction(opcode=Opcode.LOAD, m=1, n=64, split=1), 32, "reserved|may be split, and no others"),
        (product(), 12, r"where C is a power of two \(got 12 columns\)"),
        (reads(), 12, r"where C is a power of two \(got 12 columns\)"),
    ],
)
def test_what_has_no_room_or_no_sums_is_refused(wrong, columns, rule):
    with pytest.raises(IllegalProgram, match=rule) as found:
        checked(wrong, chip(tile__array__cols=columns))
    assert found.value.cause == Cause.ILLEGAL_INSTRUCTION


def sums_of(machine, split, m, n, k, add):
    """Sums of a product, read row by row."""
    by_input = machine.array.dataflow == "input_stationary"
    sizes = {"m": n, "n": m} if by_input else {"m": m, "n": n}
    for adds in range(1 + add):
        own = product(**sizes, k=k, split=split, accumulate=adds, dtype=machine.dtype)
        machine.execute(own, [])
    return machine.operands(reads(m=m, n=n, split=split, dtype=machine.dtype), []).first[:, :n].copy()


@pytest.mark.slow(seconds=1)
@settings(max_examples=60, deadline=None)
@given(
    operands=st.sampled_from(["int8", "bf16"]),
    dataflow=st.sampled_from(["weight_stationary", "input_stationary", "output_stationary"]),
    m=st.integers(1, 12),
    n=st.integers(1, 20),
    k=st.integers(1, 20),
    less=st.integers(0, 3),
    add=st.booleans(),
)
def test_a_product_of_split_lines_has_the_same_sums(operands, dataflow, m, n, k, less, add):
    sizes = {"tile__array__rows": 8, "tile__array__cols": 8, "tile__array__load_rows": 1, "tile__vector__lanes": 8}
    made = chip(tile__array__operands=f"[{operands}]", tile__array__dataflow=dataflow, **sizes)
    found = []
    for split in (0, max((8 // (1 << ((n - 1) % 8).bit_length())).bit_length() - 1 - less, 0)):
        machine = GoldenMachine(made, np.zeros(64, np.uint8))
        values = np.random.default_rng(n).integers(0, 1 << 6, machine.scratchpad.shape)
        machine.scratchpad[:] = values
        found.append(sums_of(machine, split, m, n, k, add))
    np.testing.assert_array_equal(*found)
