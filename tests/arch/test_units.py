"""Units and opcodes are found by registration; what does not fit together is refused, and leaves nothing behind."""

import copy
import pickle
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.arch.faults import Cause, IllegalProgram, cause_table
from siliconloom.arch.isa import Address, Instruction, Program, decode, encode
from siliconloom.arch.listing import disassemble
from siliconloom.arch.opcodes import (
    OPCODE_BITS,
    UNIT_BITS,
    UNIT_OF,
    Format,
    Opcode,
    OpcodeSpec,
    Unit,
    UnitSpec,
    opcode_table,
    register_unit,
    remove_unit,
)
from siliconloom.arch.vector import VectorFunction
from siliconloom.arch.word import word_layout

DOCUMENT = Path(__file__).parents[2] / "docs" / "npu.md"
FREE = st.sampled_from(sorted(set(range(1 << OPCODE_BITS)) - {int(each) for each in Opcode}))
FREE_UNIT = next(code for code in range(1 << UNIT_BITS) if code not in {int(each) for each in Unit})


@contextmanager
def registered(spec):
    """A unit that is there for a while."""
    unit = register_unit(spec)
    try:
        yield unit
    finally:
        remove_unit(unit)


def plugged(*codes, **changed):
    opcodes = [OpcodeSpec(name=f"plugged_{n}", code=code, result="a", **changed) for n, code in enumerate(codes)]
    return UnitSpec(name="plugged", code=FREE_UNIT, opcodes=tuple(opcodes), circuit=False)


@pytest.mark.checkout
def test_the_document_shows_every_opcode():
    assert opcode_table() in DOCUMENT.read_text(encoding="utf-8"), f"docs/npu.md must show:\n{opcode_table()}"


@pytest.mark.checkout
def test_the_document_shows_every_cause():
    assert cause_table() in DOCUMENT.read_text(encoding="utf-8"), f"docs/npu.md must show:\n{cause_table()}"


def test_a_code_is_one_object_however_it_is_reached():
    for kind in (Opcode, Unit):
        for each in kind:
            same = [kind(int(each)), kind[each.name], getattr(kind, each.name)]
            same += [pickle.loads(pickle.dumps(each)), copy.deepcopy(each)]
            assert all(other is each for other in same)
            assert (str(each), each.value) == (str(int(each)), int(each))
    with pytest.raises(ValueError, match="31 is no Opcode"):
        Opcode(31)
    with pytest.raises(AttributeError, match="no opcode divide is registered"):
        _ = Opcode.DIVIDE


@given(code=FREE, form=st.sampled_from(Format), base=st.integers(0, 2**28 - 1))
def test_an_opcode_can_be_encoded_and_listed_while_it_is_registered(code, form, base):
    spec = plugged(code, format=form, sizes=("k",), operands=lambda i: [f"to {i.a.base}"])
    with registered(spec) as unit:
        opcode = Opcode.PLUGGED_0
        assert UNIT_OF[opcode] is opcode.unit is unit
        address = Address() if form is Format.HEADER else Address(base=base)
        i = Instruction(opcode=opcode, k=3, a=address)
        word = encode(i)
        assert decode(word) == i
        assert len(word_layout(opcode)) > len(word_layout(Opcode.END)) or form is Format.HEADER
        program = Program((i, Instruction(opcode=Opcode.END)))
        assert f"plugged_0 to {address.base}" in disassemble(program)
        assert "| plugged_0 |" in opcode_table()
        with pytest.raises(IllegalProgram, match="k must be at least 1"):
            Program((Instruction(opcode=opcode), Instruction(opcode=Opcode.END)))
        with pytest.raises(IllegalProgram, match="no circuit for the unit plugged; there is load, store") as found:
            check_program(program, load_chip("npu-edge-int8"))
        assert (found.value.cause, found.value.instruction) == (Cause.ILLEGAL_INSTRUCTION, 0)
    assert unit not in list(Unit)
    with pytest.raises(LoomError, match=f"unknown opcode {code}"):
        decode(word)


@given(code=st.sampled_from(sorted(int(each) for each in Opcode)), free=FREE)
def test_a_code_that_is_taken_is_refused_and_nothing_is_left(code, free):
    before = list(Opcode), list(Unit)
    with pytest.raises(LoomError, match=f"opcode plugged_1: its code {code} is that of"):
        register_unit(plugged(free, code))
    with pytest.raises(LoomError, match="unit plugged: its code 1 is that of load"):
        register_unit(UnitSpec(name="plugged", code=1, opcodes=()))
    with pytest.raises(LoomError, match="opcode plugged_0: a code has 5 bits"):
        register_unit(plugged(1 << OPCODE_BITS))
    with pytest.raises(LoomError, match="unit LOAD is registered twice"):
        register_unit(UnitSpec(name="load", code=1, opcodes=()))
    assert (list(Opcode), list(Unit)) == before


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    "first", ["access", "opcodes", "units.dma", "units.planned", "functions.activations", "numerics"]
)
def test_whichever_module_is_imported_first_everything_is_registered(first):
    text = f"import siliconloom.arch.{first}, siliconloom.arch.isa as i, siliconloom.arch.vector as v"
    text += "; print(len(i.Opcode), len(i.Unit), len(v.VectorFunction))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(kind)) for kind in (Opcode, Unit, VectorFunction)]


def test_an_opcode_of_a_unit_that_no_tile_has_is_refused():
    """The tile stops at it; the assembler used to let it pass."""
    chip, end = load_chip("npu-edge-int8"), Instruction(opcode=Opcode.END)
    for i in (
        Instruction(opcode=Opcode.SEND, m=1, n=1),
        Instruction(opcode=Opcode.PIM, m=1, n=1, k=1),
        Instruction(opcode=Opcode.BARRIER, unit=Unit.LINK),
        Instruction(opcode=Opcode.BARRIER),
    ):
        with pytest.raises(IllegalProgram, match=f"no circuit for the unit {i.unit.spec.name}") as found:
            check_program(Program((i, end)), chip)
        assert found.value.cause == Cause.ILLEGAL_INSTRUCTION
