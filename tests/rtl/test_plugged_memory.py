"""Units that only tests know share the accumulator and the port to main memory, in every model to the cycle."""

import random

import numpy as np
import pytest
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out
from msgspec import structs

from siliconloom.arch import LoomError
from siliconloom.arch.access import SUM_BYTES
from siliconloom.arch.assembler import check_program
from siliconloom.arch.faults import Cause, IllegalProgram
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, Semaphore
from siliconloom.arch.layout import moving_values, stationary_values
from siliconloom.arch.opcodes import Format, register_unit
from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.bench.programs import ProgramCase, run_programs
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.library import Circuit
from siliconloom.rtl.npu.entries import TRANSFER_ENTRY
from siliconloom.rtl.npu.interfaces import local_write, read_channels
from siliconloom.sim.chip.engine import run
from siliconloom.sim.chip.levels import READ, USEFUL_READ, USEFUL_WRITE, WRITE
from siliconloom.sim.chip.opcodes import TIMINGS
from siliconloom.sim.golden.npu import GoldenMachine, LoadedProgram
from siliconloom.sim.timing.units import access_cycles
from siliconloom.verification.images import PROGRAM_BASE, RESULTS
from siliconloom.verification.npu import compare
from siliconloom.verification.programs import random_program
from siliconloom.verification.random_tiles import random_npu
from tests.rtl.plugged import PLUGS, SOW, InvertingLoad, engine_spec, rows

# Programs -----------------------------------------------------------------------------------------------------------

FREE, FULL, OTHER_FREE, OTHER_FULL, READY = (1 << n for n in range(5))


def program(code, *initial):
    names = ("free", "full", "other_free", "other_full", "ready")
    semaphores = tuple(Semaphore(name, count) for name, count in zip(names, initial, strict=False))
    made = Program((*code, Instruction(opcode=Opcode.END)), semaphores)
    memory = np.random.default_rng(len(code)).integers(0, 256, 1 << 17).astype(np.uint8)
    return LoadedProgram(made, memory, PROGRAM_BASE)


def transfer(opcode, chip, size, memory, local, **sync):
    width = chip.tile.dma.bytes_per_cycle
    return Instruction(
        opcode=opcode, m=size // width, n=width, pitch=width, local_pitch=width, memory=memory, a=local, **sync
    )


def stepping(base, size):
    return Address(base=base, strides=(size, 0, 0, 0, 0, 0))


def banks(chip):
    size = chip.tile.scratchpad.capacity // chip.tile.scratchpad.banks
    return [Address(base=number * size) for number in range(chip.tile.scratchpad.banks)]


def sown(chip, times, lines):
    """Sums of one value, more of them added, and their bytes stored; again and again."""
    lanes = chip.tile.vector.lanes
    code = [
        Instruction(opcode=Opcode.LOOP, m=times),
        Instruction(opcode=Opcode.TALLY, m=lines, k=SOW + 200, post=OTHER_FULL),
        Instruction(opcode=Opcode.TALLY, m=lines, k=SOW + 77, accumulate=1, wait=OTHER_FULL, post=OTHER_FULL),
        Instruction(opcode=Opcode.TALLY, m=lines, c=banks(chip)[0], wait=FREE | OTHER_FULL, post=FULL),
        transfer(
            Opcode.STORE, chip, lines * lanes, stepping(RESULTS, lines * lanes), banks(chip)[0], wait=FULL, release=FREE
        ),
        Instruction(opcode=Opcode.NEXT),
    ]
    return program(code, 1, 0, 0, 0)


def multiplied(chip, times):
    """A product, whose sums the tally and the vector unit take to the scratchpad while the next operands load."""
    array, lanes, width = chip.tile.array, chip.tile.vector.lanes, chip.tile.dma.bytes_per_cycle
    moving, stays, target, functions, copied = banks(chip)[:5]
    beats, panel, k = max(width // lanes, 2), array.cols, array.rows
    m, n, a, b = beats, panel, moving, stays
    if array.dataflow == "input_stationary":
        m, n, a, b = panel, beats, stays, moving
    if array.dataflow == "output_stationary":
        sizes = -(-m // array.rows) * k * array.rows, k * array.cols
    else:
        sizes = moving_values(chip.tile, beats, k), stationary_values(array, panel, k)
    size, parameters = beats * lanes, 8 * lanes
    whole = [-(-each // width) * width for each in (*sizes, parameters)]
    code = [
        transfer(Opcode.LOAD, chip, whole[2], Address(base=0x8000), functions),
        Instruction(opcode=Opcode.LOOP, m=times),
        transfer(Opcode.LOAD, chip, whole[0], stepping(0x100 * width, whole[0]), moving, wait=FREE),
        transfer(Opcode.LOAD, chip, whole[1], stepping(0x4000, whole[1]), stays, post=FULL),
        Instruction(opcode=Opcode.MATMUL, m=m, n=n, k=k, a=a, b=b, wait=FULL, post=OTHER_FULL),
        Instruction(opcode=Opcode.TALLY, m=beats, c=target, wait=OTHER_FULL, post=OTHER_FREE),
        Instruction(
            opcode=Opcode.VECTOR,
            function=VectorFunction.REQUANTIZE,
            m=beats,
            n=panel,
            k=1,
            c=copied,
            d=functions,
            wait=OTHER_FREE,
            post=READY,
        ),
        transfer(Opcode.STORE, chip, size, stepping(RESULTS, size), target, wait=READY),
        transfer(Opcode.STORE, chip, size, stepping(RESULTS + 0x4000, size), copied, release=FREE),
        Instruction(opcode=Opcode.NEXT),
    ]
    return program(code, 1, 0, 0, 0, 0)


def contended(chip, opcode, chance, times):
    """Two rings of two slots, from memory to memory: everybody wants the port, ``opcode`` in place of one of four."""
    width = chip.tile.dma.bytes_per_cycle
    bank = chip.tile.scratchpad.capacity // chip.tile.scratchpad.banks
    fills = opcode.unit.spec.memory == "read"
    code = []
    for ring, (free, full) in enumerate(((FREE, FULL), (OTHER_FREE, OTHER_FULL))):
        n = width * chance.randint(1, 3) if chance.random() < 0.7 else max(width >> chance.randint(1, 2), 1)
        local = -(-n // width) * width
        pitch = local + width * chance.randint(0, 1)
        m = chance.randint(1, max(min(bank // 2 // local, 0x4000 // (times * pitch), 9), 1))
        place = Address(base=ring * bank, slot=bank // 2, parity=1)
        shape = {"m": m, "n": n, "pitch": pitch, "local_pitch": local, "a": place}
        into, out = (opcode, Opcode.STORE) if fills else (Opcode.LOAD, opcode)
        into, out = (into, out) if ring else (Opcode.LOAD, Opcode.STORE)
        source = stepping(0x400 * ring, m * pitch)
        target = stepping(RESULTS + 0x4000 * ring, m * pitch)
        code.append((Instruction(opcode=into, memory=source, wait=free, post=full, **shape),))
        code.append((Instruction(opcode=out, memory=target, wait=full, release=free, **shape),))
    order = [code[0], code[2], code[1], code[3]] if chance.random() < 0.5 else code
    if chance.random() < 0.5:
        order.append((Instruction(opcode=Opcode.BARRIER, unit=opcode.unit),))
    body = [each for group in order for each in group]
    return program([Instruction(opcode=Opcode.LOOP, m=times), *body, Instruction(opcode=Opcode.NEXT)], 2, 0, 2, 0)


def made_for(plug, opcode, chip, seed):
    """Programs that use the plugged unit, and one that does not."""
    if plug == "tally":
        lines = max(64 // chip.tile.vector.lanes, chip.tile.dma.bytes_per_cycle // chip.tile.vector.lanes, 1)
        return [sown(chip, 3, lines), multiplied(chip, 4), random_program(chip, seed)]
    chance = random.Random(seed)
    return [contended(chip, opcode, chance, times) for times in (1, 5, 12)] + [random_program(chip, seed)]


@pytest.mark.parametrize("plug", PLUGS)
@pytest.mark.parametrize("tile", range(8))
def test_what_a_plugged_unit_does_is_assembled_timed_and_computed(plug, tile, seed):
    chip = random_npu(9100 * seed + tile)
    with PLUGS[plug].in_place() as opcode:
        for made in made_for(plug, opcode, chip, 100 * seed + tile):
            check_program(made.program, chip)
            exact, jumped = run(made.program, chip, exact=True), run(made.program, chip)
            assert (jumped.cycles, jumped.busy.tolist()) == (exact.cycles, exact.busy.tolist())
            assert np.array_equal(jumped.traffic, exact.traffic)
            GoldenMachine(chip, made.memory).run(made.program)
        if plug == "tally":
            return
        made = contended(chip, opcode, random.Random(tile), 5)
        before = made.memory.copy()
        GoldenMachine(chip, made.memory).run(made.program)
        outcome = run(made.program, chip)
        body = {i.opcode: i for i in made.program.instructions}
        own = body[opcode]
        assert outcome.busy[opcode.unit] == 5 * access_cycles(chip, next(iter(chip.memory.values())), own.m, own.n)
        (level,) = outcome.traffic.sum(axis=0)
        assert level[READ] == level[WRITE]
        assert (
            level[USEFUL_READ]
            == level[USEFUL_WRITE]
            == 5 * sum(i.m * i.n for i in made.program.instructions if i.opcode.unit.spec.memory == "read")
        )
        moved = [made.memory[RESULTS + 0x4000 * ring :][: own.n] for ring in range(2)]
        assert np.array_equal(moved[1], ~before[0x400:][: own.n]), "inverted on its way"


def test_a_random_program_stores_rows_of_results_in_pieces_that_may_begin_where_they_do():
    """Rows of ten bytes, twelve apart, on a bus of sixteen were one transfer, which no decoder takes."""
    chip = random_npu(9100 * 20788 + 3)
    check_program(random_program(chip, 100 * 20788 + 3).program, chip)


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.parametrize("plug", PLUGS)
def test_a_plugged_unit_shares_what_units_share_to_the_cycle(plug, seed, tmp_path):
    if simulator_path("icarus") is None:
        pytest.skip("icarus is not installed")
    chip = random_npu(9200 * seed + sorted(PLUGS).index(plug))
    with PLUGS[plug].in_place() as opcode:
        made = made_for(plug, opcode, chip, seed)
        for each in made:
            check_program(each.program, chip)
        bundle = build_rtl(chip)
        sources = bundle.write(tmp_path / "rtl")
        hesitant = made[0]
        cases = [ProgramCase(each.program, each.memory.copy(), each.base) for each in made]
        cases.append(ProgramCase(hesitant.program, hesitant.memory.copy(), hesitant.base, stall=96))
        if plug == "tally":
            both = colliding(chip)
            with pytest.raises(IllegalProgram, match="the accumulator is written by the unit matmul here and by tally"):
                check_program(both.program, chip)
            cases.append(ProgramCase(both.program, both.memory.copy(), both.base, limit=20_000))
        found = run_programs(chip, sources, bundle.top, cases, folder=tmp_path / "bench", simulator="icarus")
        for each, outcome in zip(made, found, strict=False):
            parity = compare(plug, chip, each, outcome)
            assert parity.passed, "\n".join(parity.errors)
        assert compare("hesitant", chip, hesitant, found[len(made)], stalled=True).passed
        if plug == "tally":
            assert found[-1].cause == Cause.BANK_CONFLICT
        TIMINGS.remove(opcode)
        right = PLUGS[plug].timing
        late = structs.replace(right, times=lambda work: {**right.times(work), "duration": longer(right, work)})
        TIMINGS.add(opcode, late)
        assert not compare("late", chip, made[0], found[0]).passed, "cycles are compared"


def longer(timing, work):
    return timing.times(work)["duration"] + 1


def colliding(chip):
    """The array and the tally write sums at once."""
    lanes = chip.tile.vector.lanes
    lines = chip.tile.accumulator.capacity // (SUM_BYTES * lanes)
    code = [Instruction(opcode=Opcode.LOOP, m=4), Instruction(opcode=Opcode.TALLY, m=lines, k=SOW)]
    code += [Instruction(opcode=Opcode.MATMUL, m=2, n=2, k=2, b=banks(chip)[1]), Instruction(opcode=Opcode.NEXT)]
    return program(code)


@pytest.mark.parametrize(
    ("memory", "change", "rule"),
    [
        ("both", {}, "not supported: a unit that does 'both' with main memory"),
        (
            "read",
            {"format": Format.COMPUTE},
            "has the format TRANSFER and sizes m and n .got COMPUTE and m, n for fill",
        ),
        ("write", {"sizes": ("m",)}, "has the format TRANSFER and sizes m and n .got TRANSFER and m for fill"),
    ],
)
def test_an_engine_that_moves_no_rows_is_refused(memory, change, rule):
    spec = engine_spec("fill", memory, rows("fill", True))
    spec = structs.replace(spec, opcodes=(structs.replace(spec.opcodes[0], **change),))
    with pytest.raises(LoomError, match=rule):
        register_unit(spec)


class WithoutAnAnswer(InvertingLoad):
    """Does not tell that an answer was an error."""

    def __init__(self, library, geometry):
        self.geometry = geometry
        flags = dict.fromkeys(("held", "read", "done", "misaligned"), Out(1))
        ports = {"memory": Out(read_channels(geometry.bus)), "write": Out(local_write(geometry.bus)), **flags}
        Circuit.__init__(
            self, library, library.name("mute"), {"instruction": In(stream.Signature(TRANSFER_ENTRY)), **ports}
        )


def test_a_circuit_without_what_its_row_names_is_refused():
    plug = PLUGS["fill"]
    mute = structs.replace(plug, circuit=structs.replace(plug.circuit, make=WithoutAnAnswer))
    with mute.in_place(), pytest.raises(LoomError, match="the circuit of the unit fill has no member failed"):
        build_rtl(random_npu(1))
