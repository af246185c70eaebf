"""Results on top of operands: an instruction would read lines that it writes, unless whole rows replace their own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.arch.faults import IllegalProgram
from siliconloom.arch.isa import Address, Instruction, Opcode, Program
from siliconloom.arch.layout import bank_line
from siliconloom.arch.vector import VectorFunction

SMALL = {
    "tile.array.rows": "4",
    "tile.array.cols": "4",
    "tile.array.load_rows": "1",
    "tile.vector.lanes": "8",
    "tile.dma.bytes_per_cycle": "8",
}


def check(chip, function, m, n, results, **fields):
    made = Instruction(opcode=Opcode.VECTOR, function=function, m=m, n=n, c=Address(base=results), **fields)
    check_program(Program((made, Instruction(opcode=Opcode.END)), ()), chip)


@pytest.fixture(scope="module")
def chip():
    return load_chip("npu-edge-int8", list(SMALL.items()))


@given(rows=st.integers(1, 9), columns=st.integers(1, 20), narrow=st.integers(0, 1), lines=st.integers(0, 40))
def test_results_lie_apart_or_whole_rows_replace_their_own(chip, rows, columns, narrow, lines):
    """Rows of one or two values share a line where they are narrow; the operand begins at byte 0."""
    line = bank_line(chip.tile)
    pitch = -(-columns // line) * line if columns > line or not narrow else 1 << (columns - 1).bit_length()
    taken = -(-rows * pitch // line)
    if lines >= taken or (lines == 0 and (pitch % line == 0 or rows == 1)):
        check(chip, VectorFunction.RELU, rows, columns, lines * line, narrow=narrow)
        return
    with pytest.raises(IllegalProgram, match=r"share a line of 8 bytes with an operand, 0x0 to"):
        check(chip, VectorFunction.RELU, rows, columns, lines * line, narrow=narrow)


def test_a_matrix_is_not_transposed_onto_itself(chip):
    with pytest.raises(IllegalProgram, match="bank conflict: results"):
        check(chip, VectorFunction.TRANSPOSE, 8, 8, 0)
    check(chip, VectorFunction.TRANSPOSE, 8, 8, 64)


def test_operands_and_results_that_move_apart_share_no_line_in_any_round(chip):
    """The result of the second round lies where the operand of the first one does."""
    loop = Instruction(opcode=Opcode.LOOP, m=2)
    move = Address(base=0, strides=(64, 0, 0, 0, 0, 0))
    own = Instruction(opcode=Opcode.VECTOR, function=VectorFunction.RELU, m=8, n=8, a=move, c=Address(base=64))
    ends = Instruction(opcode=Opcode.NEXT), Instruction(opcode=Opcode.END)
    with pytest.raises(IllegalProgram, match="bank conflict: results"):
        check_program(Program((loop, own, *ends), ()), chip)
