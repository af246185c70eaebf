"""A unit that only this file knows: assembled, timed, computed and run in the generated RTL."""

from contextlib import contextmanager

import numpy as np
import pytest
from amaranth import Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from siliconloom.arch import LoomError
from siliconloom.arch.access import Access
from siliconloom.arch.assembler import assemble, check_program
from siliconloom.arch.faults import Cause, IllegalProgram
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, Semaphore, Unit, decode_program
from siliconloom.arch.listing import disassemble
from siliconloom.arch.opcodes import UNIT_OF, Format, OpcodeSpec, UnitSpec, built_units
from siliconloom.rtl.bench.programs import ProgramCase, run_programs
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.library import Circuit
from siliconloom.rtl.npu.circuits import UNIT_CIRCUITS, Port, UnitCircuit, unit_circuits
from siliconloom.rtl.npu.entries import entry_layout
from siliconloom.rtl.npu.geometry import LOCAL_BITS, log2
from siliconloom.rtl.npu.interfaces import local_write
from siliconloom.rtl.npu.registers import register_map, unit_names
from siliconloom.sim.chip.costs import cost_key
from siliconloom.sim.chip.engine import run
from siliconloom.sim.chip.opcodes import TIMINGS, Counter, Timing
from siliconloom.sim.golden.npu import GoldenMachine, LoadedProgram
from siliconloom.sim.golden.opcodes import EXECUTIONS, executes
from siliconloom.verification.images import PROGRAM_BASE, RESULTS
from siliconloom.verification.npu import compare
from siliconloom.verification.programs import random_program
from siliconloom.verification.random_tiles import random_npu
from tests.arch.test_units import registered

START = 1
"""Cycles from leaving the queue to the first line."""
RAMP = UnitSpec(
    name="ramp",
    code=7,
    entry=("m", "k", "c"),
    opcodes=(
        OpcodeSpec(
            name="ramp",
            code=20,
            format=Format.COMPUTE,
            sizes=("m",),
            operands=lambda i: [f"{i.m} from {i.k}"],
            accesses=lambda i, tile: [Access("ramp", True, i.c, i.m * tile.vector.lanes)],
            multiples=lambda i, tile: {"c": tile.vector.lanes},
            result="m lines, line r of bytes k + r",
        ),
    ),
)


class RampUnit(Circuit):
    """Writes a line a cycle."""

    def __init__(self, library, geometry):
        self.cols = geometry.array.cols
        ports = {
            "instruction": In(stream.Signature(entry_layout(Unit.RAMP))),
            "done": Out(1),
            "working": Out(1),
            "misaligned": Out(1),
            "write": Out(local_write(self.cols)),
        }
        super().__init__(library, library.name("ramp"), ports, reset=True)

    def elaborate(self, platform):
        m = self.module()
        new, taken = self.instruction.payload, self.instruction.valid & self.instruction.ready
        left, value, address = Signal(24), Signal(8), Signal(LOCAL_BITS)
        working = Signal(name="works")
        m.d.comb += [
            working.eq(left != 0),
            self.working.eq(working),
            self.instruction.ready.eq(~working),
            self.done.eq(left == 1),
            self.misaligned.eq(taken & new.c[: log2(self.cols)].any()),
            self.write.enable.eq(working.replicate(self.cols)),
            self.write.address.eq(address),
            self.write.data.eq(value.replicate(self.cols)),
        ]
        with m.If(taken):
            m.d.sync += [left.eq(new.m), value.eq(new.k), address.eq(new.c)]
        with m.Elif(working):
            m.d.sync += [left.eq(left - 1), value.eq(value + 1), address.eq(address + self.cols)]
        return m


def ramp(machine, i, indices):
    lines = np.repeat((i.k + np.arange(i.m)).astype(np.uint8), machine.lanes)
    first = i.c.at(indices)
    machine.scratchpad[first : first + len(lines)] = lines


TIMING = Timing(
    times=lambda work: {"duration": START + work.instruction.m},
    counts=lambda work: {Counter.SCRATCHPAD_WRITE: work.instruction.m * work.npu.vector.lanes},
)
CIRCUIT = UnitCircuit(make=RampUnit, writes={"ramp": Port("write", lambda geometry: geometry.array.cols, 15)})


@contextmanager
def plugged():
    """The unit with all that belongs to it."""
    with registered(RAMP) as unit:
        (opcode,) = (each for each in Opcode if each.unit is unit)
        TIMINGS.add(opcode, TIMING)
        executes(opcode)(ramp)
        UNIT_CIRCUITS.add(unit, CIRCUIT)
        try:
            yield
        finally:
            UNIT_CIRCUITS.remove(unit)
            EXECUTIONS.remove(opcode)
            TIMINGS.remove(opcode)


def made_for(chip, rows, value, times, slots, barrier):
    """Lines of the ramp, whole words of the bus, stored, with loops, rings and barriers as for every unit."""
    bank, lanes = chip.tile.scratchpad.capacity // chip.tile.scratchpad.banks, chip.tile.vector.lanes
    size = rows * lanes
    toggle = {"slot": bank, "parity": 1} if slots == 2 else {}
    free, full, fence = 1, 2, 4
    ramped = Instruction(opcode=Opcode.RAMP, m=rows, k=value, c=Address(**toggle), wait=free, post=full)
    width = chip.tile.dma.bytes_per_cycle
    stored = Instruction(
        opcode=Opcode.STORE,
        m=size // width,
        n=width,
        pitch=width,
        local_pitch=width,
        memory=Address(base=RESULTS, strides=(size, 0, 0, 0, 0, 0)),
        a=Address(**toggle),
        wait=full,
        release=free,
    )
    fences = (
        Instruction(opcode=Opcode.BARRIER, unit=Unit.RAMP, post=fence),
        Instruction(opcode=Opcode.BARRIER, unit=Unit.LOAD, wait=fence),
    )
    code = (Instruction(opcode=Opcode.LOOP, m=times), ramped, stored, Instruction(opcode=Opcode.NEXT))
    code = (*code, *(fences if barrier else ()), Instruction(opcode=Opcode.END))
    semaphores = (Semaphore("free", slots), Semaphore("full"), Semaphore("fence"))
    return LoadedProgram(Program(code, semaphores), np.zeros(1 << 17, np.uint8), PROGRAM_BASE)


@st.composite
def programs(draw, chip):
    """Programs of the ramp for ``chip``: whole words of the bus."""
    lanes, width = chip.tile.vector.lanes, chip.tile.dma.bytes_per_cycle
    unit = max(64 // lanes, width // lanes, 1)
    bank = chip.tile.scratchpad.capacity // chip.tile.scratchpad.banks
    rows = unit * draw(st.integers(1, bank // lanes // unit))
    return made_for(
        chip, rows, draw(st.integers(0, 300)), draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.booleans())
    )


def test_every_unit_with_a_circuit_has_its_halves():
    built = set(built_units())
    assert set(unit_circuits()) == {unit.spec.name for unit in built}
    built.add(Unit.PIM)  # of tiles with a channel
    assert set(UNIT_CIRCUITS) == built
    assert set(TIMINGS) == set(EXECUTIONS) == {opcode for opcode in UNIT_OF if opcode.unit in built}


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_plugged_unit_is_assembled_listed_timed_and_computed(examples):
    with plugged():
        chip = random_npu(examples.draw(st.integers(0, 50)))
        made = examples.draw(programs(chip))
        code = made.program.instructions
        assert decode_program(assemble(made.program, chip)) == code
        assert f"ramp {code[1].m} from {code[1].k}" in disassemble(made.program)
        model = run(made.program, chip, exact=True, trace_limit=100)
        assert model.busy[Unit.RAMP] == code[0].m * (START + code[1].m)
        assert run(made.program, chip).cycles == model.cycles
        GoldenMachine(chip, made.memory).run(made.program)
        size, lanes = code[1].m * chip.tile.vector.lanes, chip.tile.vector.lanes
        stored = made.memory[RESULTS : RESULTS + code[0].m * size].reshape(code[0].m, code[1].m, lanes)
        wanted = ((code[1].k + np.arange(code[1].m)) & 255).astype(np.uint8)
        assert np.array_equal(stored, np.broadcast_to(wanted[None, :, None], stored.shape))


@pytest.mark.rtl
@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("tile", [0, 1])
def test_a_unit_that_only_a_test_knows_runs_in_every_model(tile, seed, tmp_path):
    if simulator_path("icarus") is None:
        pytest.skip("icarus is not installed")
    chip = random_npu(9000 * seed + tile)
    before = build_rtl(chip).files
    lanes = chip.tile.vector.lanes
    with plugged():
        assert list(unit_names()) == [unit.spec.name for unit in built_units()] == list(unit_circuits())
        assert register_map().by_name["ramp_busy_low"].offset < register_map().by_name["semaphore_0"].offset
        rows = 64 // min(lanes, 64)
        made = [
            made_for(chip, rows, 250, 3, 2, True),
            made_for(chip, 2 * rows, 17, 2, 1, False),
            made_for(chip, rows, 0, 4, 2, False),
            *(random_program(chip, seed + number) for number in range(2)),
        ]
        wrong = Instruction(opcode=Opcode.RAMP, m=1, c=Address(base=1))
        broken = Program((wrong, Instruction(opcode=Opcode.END)))
        with pytest.raises(IllegalProgram, match="misaligned operand: its addresses c must be multiples of"):
            check_program(broken, chip)
        for each in made:
            check_program(each.program, chip)
        bundle = build_rtl(chip)
        sources = bundle.write(tmp_path / "rtl")
        cases = [ProgramCase(each.program, each.memory.copy(), each.base) for each in made]
        cases.append(ProgramCase(broken, made[0].memory.copy(), PROGRAM_BASE, limit=20_000))
        *found, stopped = run_programs(chip, sources, bundle.top, cases, folder=tmp_path / "bench", simulator="icarus")
        assert (stopped.cause, stopped.instruction) == (Cause.MISALIGNED_OPERAND, 0)
        for each, outcome in zip(made, found, strict=True):
            parity = compare("plugged", chip, each, outcome)
            assert parity.passed, "\n".join(parity.errors)
        ramps = [outcome.counters["ramp"]["completed"] for outcome in found]
        assert ramps == [3, 2, 4, 0, 0]
        TIMINGS.remove(Opcode.RAMP)
        TIMINGS.add(Opcode.RAMP, structs.replace(TIMING, times=lambda work: {"duration": work.instruction.m}))
        assert not compare("early", chip, made[0], found[0]).passed, "cycles are compared"
    assert build_rtl(chip).files == before, "what was taken back is not built"


def test_a_unit_without_a_half_is_refused_where_that_is_needed():
    chip = random_npu(1)
    with registered(RAMP):
        made = made_for(chip, 64, 0, 1, 1, False)
        with pytest.raises(LoomError, match="values of ramp instructions"):
            GoldenMachine(chip, made.memory).run(made.program)
        with pytest.raises(LoomError, match="ramp instructions in the simulator"):
            run(made.program, chip)
        with pytest.raises(LoomError, match="no circuit is registered for the unit ramp"):
            build_rtl(chip)


def test_a_duration_of_somebody_else_is_not_remembered_when_it_changes():
    chip, keys = random_npu(1), set()
    for more in (0, 5):
        with registered(RAMP):
            TIMINGS.add(
                Opcode.RAMP,
                structs.replace(TIMING, times=lambda work, more=more: {"duration": work.instruction.m + more}),
            )
            keys.add(cost_key(made_for(chip, 64, 0, 1, 1, False).program, chip))
            TIMINGS.remove(Opcode.RAMP)
    assert len(keys) == 2
