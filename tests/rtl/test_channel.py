"""A tile and the channel of memory that computes beside it: its programs on the RTL, to the cycle and the byte."""

import itertools

import numpy as np
import pytest
from msgspec.structs import replace

from siliconloom.arch import load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import Address, Instruction, Opcode, Program
from siliconloom.arch.pim import Command
from siliconloom.arch.timing import PIM_OFFER, PIM_REFRESH
from siliconloom.arch.units.pim import macros_of
from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.bench.programs import ProgramCase, run_programs
from siliconloom.rtl.emit import build_rtl
from siliconloom.sim.chip.channel import TileChannel
from siliconloom.sim.chip.engine import run
from siliconloom.sim.pim.channel import run_channel
from siliconloom.sim.timing.units import fetch_cycles
from siliconloom.verification import npu
from siliconloom.verification.channel_programs import channel_program
from siliconloom.verification.faults import channel_faults
from siliconloom.verification.filling import filled
from siliconloom.verification.npu import check_programs, compare
from siliconloom.verification.parity import verilog
from siliconloom.verification.programs import random_program
from tests.mapper.chip.test_banked import mapped_to, model
from tests.rtl.channel_tiles import small_channel
from tests.rtl.npu import small_chip
from tests.rtl.test_float_tiles import needs

VARIANTS = {
    "fp32": {"tile__vector__format": "fp32"},
    "per bank": {"tile__pim__commands": "per_bank"},
    "ranks in turn": {"tile__pim__dram__organization__ranks": 2, "tile__pim__refresh_ranks": "in_turn"},
    "one machine": {"tile__pim__bank_machines": 1, "tile__pim__activate_group": 1},
    "a burst a cycle": {"tile__pim__dram__timing__tCCD_L": 1, "tile__pim__lanes": 8},
    "wide": {"tile__pim__dram__organization__bus_bits": 64, "tile__pim__dram__organization__banks": 4},
    "refreshed often": {"tile__pim__dram__timing__tREFI": 420},
    "slow to issue": {"tile__sequencer__issue_cycles": 7, "tile__sequencer__queue_depth": 2},
}


def agree(chip, made, **options):
    for parity in check_programs(chip, made, simulator="icarus", **options):
        assert parity.passed, "\n".join([chip.name, parity.name, *parity.errors])


def programs_of(chip, first, count):
    made = [(f"channel {seed}", channel_program(chip, seed)) for seed in range(first, first + count)]
    for _, each in made:
        check_program(each.program, chip)
    return made


@pytest.mark.slow(seconds=17)
def test_random_programs_and_a_token_agree_in_every_cycle_and_byte(seed):
    """Every command to the DRAM, too, and JEDEC's rules hold; a token of a small Llama has its attention there."""
    needs("icarus")
    chip = small_channel()
    token = mapped_to(chip, model(batch=2, context=21))
    made = [*programs_of(chip, seed, 2), ("token", filled(token, seed))]
    codes = [opcode for _, each in made for opcode in {i.opcode for i in each.program.instructions}]
    assert {Opcode.PIM, Opcode.PIM_READ, Opcode.PIM_WRITE, Opcode.PIM_VECTOR} <= set(codes)
    agree(chip, made)


@pytest.mark.slow(seconds=35)
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_other_channels_agree(name, seed):
    needs("icarus")
    chip = small_channel(**VARIANTS[name])
    token = mapped_to(chip, model("gpt2", layers=1, context=30))
    agree(chip, [*programs_of(chip, seed + 50, 6), ("token", filled(token, seed))])


@pytest.mark.slow(seconds=35)
def test_hosts_with_habits_and_memories_that_hesitate_change_no_value(seed):
    """A start while refresh is due, resets, and a memory that hesitates: the run begins when the channel rests."""
    needs("icarus")
    chip = small_channel(tile__pim__dram__timing__tREFI=400)
    around = [npu.surrounded(each, number, seed=seed) for number, (_, each) in enumerate(programs_of(chip, seed, 8))]
    made = [(str(number), each) for number, (each, _) in enumerate(around)]
    agree(chip, made, options=[more for _, more in around])


@pytest.mark.slow(seconds=35)
@pytest.mark.parametrize("elements", ["null", "fp32"])
def test_every_fault_has_its_cause_and_the_next_run_is_right(elements, seed):
    needs("icarus")
    chip = small_channel(tile__vector__format=elements)
    faults, good = channel_faults(chip), channel_program(chip, seed)
    cases = [each.case for each in faults] + [
        ProgramCase(good.program, good.memory, good.base, channel=good.channel, host=1)
    ]
    bundle = build_rtl(chip)
    with verilog(bundle) as (sources, folder):
        *outcomes, last = run_programs(chip, sources, bundle.top, cases, folder=folder, simulator="icarus")
    found = {each.name: (outcome.ended, outcome.cause) for each, outcome in zip(faults, outcomes, strict=True)}
    assert found == {each.name: (True, each.cause) for each in faults}
    assert compare("after faults", chip, good, last).passed


@pytest.mark.parametrize("name", [None, *sorted(VARIANTS)])
def test_a_channel_that_is_asked_step_by_step_does_what_it_does_at_once(name, seed):
    """The same commands in the same cycles as where all macros are known from the start, with their arrivals."""
    chip = small_channel(**VARIANTS.get(name, {}))
    pim, numbers = chip.tile.pim, np.random.default_rng(seed)
    program = channel_program(chip, seed, 12).program
    channel, macros, now = TileChannel(pim, log=True), [], int(fetch_cycles(chip)[0])
    for _, i, indices, _ in program.executions():
        if i.opcode.unit.spec.name != "pim":
            continue
        now += int(numbers.integers(0, 900))
        some = macros_of(pim, i, indices)
        macros += [replace(each, arrival=now + PIM_OFFER - PIM_REFRESH) for each in some]
        now += channel.advance(some, now)
    whole = run_channel(pim, macros, log=True)
    assert [row[1:] for row in channel.commands] == [tuple(row[1:5]) for row in whole.commands.tolist()]
    assert [row[0] - PIM_REFRESH for row in channel.commands] == whole.commands[:, 0].tolist()
    assert whole.counts[Command.REF] == channel.counts[Command.REF]


@pytest.mark.slow(seconds=1)
def test_a_run_in_full_and_one_with_jumps_are_the_same():
    chip = small_channel()
    program = mapped_to(chip, model(layers=2, context=40)).program
    assert run(program, chip).cycles == run(program, chip, exact=True).cycles


READ = Instruction(opcode=Opcode.PIM_READ, m=1, n=32, local_pitch=64, pitch=256)
PRODUCT = Instruction(opcode=Opcode.PIM, m=1, n=1, k=1, dtype=load_chip("npu-pim-edge").tile.circuit_format)
END = Instruction(opcode=Opcode.END)


@pytest.mark.parametrize(
    ("instruction", "told"),
    [
        (replace(READ, n=40), "whole bursts of 32 bytes, at most 1024 (got 40)"),
        (replace(READ, n=2048), "whole bursts of 32 bytes, at most 1024 (got 2048)"),
        (replace(READ, memory=Address(base=16)), "multiples of 32 in the channel (got 0x10)"),
        (replace(READ, n=96, memory=Address(base=96)), "multiples of 128 in the channel (got 0x60)"),
        (replace(READ, a=Address(base=32)), "multiples of 64 in the scratchpad (got 0x20)"),
        (replace(READ, memory=Address(base=1 << 29)), "the channel has 536,870,912 bytes"),
        (replace(PRODUCT, n=5), "segments must be in 1..4 (got 5)"),
        (replace(PRODUCT, n=2, k=20), r"segments \* columns must be in 1..32 (got 40)"),
        (replace(PRODUCT, b=Address(base=256)), "column must be in 0..255 (got 256)"),
        (replace(PRODUCT, d=Address(base=40000)), "row must be in 0..32767 (got 40000)"),
        (replace(PRODUCT, c=Address(base=16)), "its addresses c must be multiples of 32 (got 0x10)"),
        (replace(PRODUCT, b=Address(slot=1, odd=1)), "have no slots"),
    ],
)
def test_what_the_channel_does_not_take_is_refused_by_the_assembler(instruction, told):
    chip = load_chip("npu-pim-edge")
    with pytest.raises(LoomError, match=told.replace("(", r"\(").replace(")", r"\)")):
        check_program(Program((instruction, END)), chip)


def test_a_tile_without_a_channel_has_no_unit_for_it():
    chip = load_chip("npu-edge")
    with pytest.raises(LoomError, match="no circuit for the unit pim; there is load, store, matmul, vector"):
        check_program(Program((READ, END)), chip)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("tile.pim.channels", "2", "a tile drives one channel"),
        ("tile.pim.global_buffer", "96 KiB", "powers of two"),
        ("tile.pim.operands", "[int8]", "elements in bf16 or fp32, and multiplies in bf16"),
        ("clock", "1.1 GHz", "clock must be that of the pim channels' DRAM"),
        ("tile.pim.dual_row_buffer", "true", "transfer or compute, one after the other"),
        ("tile_count", "2", "a tile that drives a channel is alone"),
    ],
)
def test_a_channel_that_the_tile_cannot_drive_is_refused(key, value, told):
    with pytest.raises(LoomError, match=told):
        load_chip("npu-pim-edge", [(key, value)])


@pytest.mark.slow(seconds=20)
def test_a_softmax_of_elements_in_integers_is_the_golden_models(seed):
    """It shares a hook with functions of sums, behind which it once stood."""
    needs("icarus")
    chip = small_chip()
    made = ((number, random_program(chip, number, 3)) for number in itertools.count(1000 * seed))
    named = ((f"program {number}", each) for number, each in made if VectorFunction.SOFTMAX_ROWS in used(each))
    agree(chip, list(itertools.islice(named, 3)))


def used(made):
    return {i.function for i in made.program.instructions if i.opcode == Opcode.VECTOR}
