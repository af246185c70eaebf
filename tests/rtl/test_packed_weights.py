"""Packed weights at the array's edge: every code against NumPy, whole tiles against the model, planted faults."""

import random
import re

import numpy as np
import pytest
from amaranth.sim import Simulator

from siliconloom.arch import load_chip
from siliconloom.arch.array import MOST_UNPACK_STAGES, SystolicArray
from siliconloom.arch.assembler import check_program
from siliconloom.arch.datatype import MX_ELEMENTS, DataType, Packing
from siliconloom.arch.faults import IllegalProgram
from siliconloom.arch.floats import widened
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, decode, encode
from siliconloom.arch.packing import NO_SCALE, SCALE, Packed, scale_words, unpacked
from siliconloom.rtl.array.weights import ScaledLane, WeightLane, code_kind
from siliconloom.rtl.cells.floating import BITS
from siliconloom.rtl.library import Library
from siliconloom.verification import npu as verification
from siliconloom.verification.float_directed import packed_programs
from siliconloom.verification.npu import check_programs
from siliconloom.verification.programs import random_program
from siliconloom.verification.random_tiles import random_npu
from tests.in_turn import in_turn
from tests.rtl.test_float_tiles import needs

pytestmark = pytest.mark.rtl
SMALL = {
    "tile.array.rows": "4",
    "tile.array.cols": "4",
    "tile.vector.lanes": "4",
    "tile.scratchpad.capacity": "32 KiB",
    "tile.scratchpad.banks": "8",
    "tile.accumulator.capacity": "2 KiB",
    "tile.dma.bytes_per_cycle": "16",
    "tile.sequencer.program_words": "64",
}


def small_chip(**changes):
    """An edge tile in small."""
    return load_chip("npu-edge", list((SMALL | {"tile.array.load_rows": "2"} | changes).items()))


def array_of(dtype, formats, minima):
    weights = {"formats": formats} | ({"minima": minima} if "int8" in formats else {})
    given = {"rows": 4, "cols": 4, "dataflow": "weight_stationary", "operands": [dtype], "weights": weights}
    return SystolicArray.model_validate(given)


@pytest.mark.parametrize(
    ("dtype", "codes"),
    [
        pytest.param(DataType.BF16, ["int8"], marks=pytest.mark.slow(seconds=35)),
        (DataType.FP16, []),
        pytest.param(DataType.BF16, [], marks=pytest.mark.slow(seconds=35)),
        pytest.param(DataType.FP16, ["int8"], marks=pytest.mark.slow(seconds=35)),
    ],
)
def test_every_element_of_an_mx_block_stands_for_the_number_that_numpy_says(dtype, codes):
    """Every pattern of every format by every scale, from what is flushed to what is infinite and to no number."""
    array = array_of(dtype, [*codes, *MX_ELEMENTS], True)
    lane = WeightLane(Library("lane"), array)
    places = BITS - (1 + 8 + SCALE.layout.fraction_bits)
    exponents = [*range(0, 30), *range(90, 160, 3), *range(236, 256)]
    wanted, found = list[int](), list[int]()

    async def bench(context):
        for kind in MX_ELEMENTS:
            patterns = np.arange(1 << kind.bits)
            context.set(lane.kind, code_kind(kind))
            if codes:
                context.set(lane.minimum, 1 << len(lane.minimum) - 1)
            for scale in exponents:
                pattern = int(scale_words(np.array([scale]), kind)[0]) >> places
                context.set(lane.scale, pattern | (scale == NO_SCALE))
                held = Packed(patterns[None], np.full((1, len(patterns)), scale), None)
                wanted.extend(unpacked(held, Packing(kind, 1), dtype)[0].tolist())
                for code in patterns.tolist():
                    context.set(lane.code, code)
                    found.append(context.get(lane.o))

    simulator = Simulator(lane.elaborate(None))
    simulator.add_testbench(bench)
    simulator.run()
    assert found == wanted


@pytest.mark.parametrize(
    ("dtype", "minima"),
    in_turn([(dtype, each) for dtype in (DataType.BF16, DataType.FP16) for each in (True, False)], 0, seconds=5),
)
def test_every_code_stands_for_the_number_that_numpy_says(dtype, minima, seed):
    """All 256 codes by scales and minima of every kind: any pattern, subnormal ones, infinities, no numbers."""
    numbers = np.random.default_rng(seed)
    count = 24
    special = np.array([0x0000, 0x8000, 0x0001, 0x7C00, 0xFC00, 0x7E00, 0x3C00, 0x7BFF], np.uint16)
    scales = np.concatenate([special, numbers.integers(0, 1 << 16, count - len(special)).astype(np.uint16)])
    least = numbers.permutation(scales)
    lane = WeightLane(Library("lane"), array_of(dtype, ["int4", "int8"], minima))
    module = lane.elaborate(None)
    codes = np.arange(256) if minima else np.arange(-128, 128)
    wanted = unpacked(
        Packed(np.repeat(codes[None], count, 0), *(np.repeat(part[:, None], 256, 1) for part in (scales, least)))
        if minima
        else Packed(np.repeat(codes[None], count, 0), np.repeat(scales[:, None], 256, 1), None),
        Packing(DataType.INT8, 1),
        dtype,
    )
    places = BITS - (1 + 8 + SCALE.layout.fraction_bits)
    found = np.zeros_like(wanted)

    async def bench(context):
        for row in range(count):
            context.set(lane.scale, int(widened(scales[row : row + 1], SCALE)[0]) >> places)
            if minima:
                context.set(lane.minimum, int(widened(least[row : row + 1], SCALE)[0]) >> places)
            for column, code in enumerate(codes.tolist()):
                context.set(lane.code, code & 255)
                found[row, column] = context.get(lane.o)

    simulator = Simulator(module)
    simulator.add_testbench(bench)
    simulator.run()
    np.testing.assert_array_equal(found, wanted)


def operands_of(lane, beats, numbers):
    """What a lane has made in front of each beat; where it has registers some cycles pass without their taking on."""
    found, divided = [], "en" in lane.signature.members

    async def bench(context):
        for beat in beats:
            for name, value in beat.items():
                context.set(getattr(lane, name), value)
            found.append(context.get(lane.o))
            if divided:
                for _ in range(numbers.choice([0, 0, 0, 3])):
                    context.set(lane.en, 0)
                    await context.tick()
                context.set(lane.en, 1)
                await context.tick()

    simulator = Simulator(lane.elaborate(None))
    if divided:
        simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return found


def later(kind, array, stages, numbers, count=400):
    """Operands that a lane in ``stages`` makes of random beats, and those that one without any makes at once."""
    lanes = [kind(Library("lane"), array.model_copy(update={"unpack_stages": each})) for each in (0, stages)]
    ports = {name: len(getattr(lanes[0], name)) for name in lanes[0].signature.members if name != "o"}
    beats = [{name: numbers.getrandbits(bits) for name, bits in ports.items()} for _ in range(count)]
    at_once, divided = (operands_of(lane, beats, numbers) for lane in lanes)
    return divided[lanes[1].stages :], at_once[: -lanes[1].stages]


@pytest.mark.parametrize("stages", in_turn(range(1, MOST_UNPACK_STAGES + 1), 2, seconds=2))
@pytest.mark.parametrize("formats", [["int4", "int8"], ["int4"], ["int8", "fp4_e2m1"], ["fp8_e4m3", "fp8_e5m2"]])
def test_a_way_in_steps_makes_the_operands_of_one_in_one_cycle(stages, formats, seed):
    numbers = random.Random(f"{seed} {stages} {formats}")
    array = array_of(numbers.choice([DataType.BF16, DataType.FP16]), formats, numbers.random() < 0.7)
    divided, at_once = later(WeightLane, array, stages, numbers)
    assert divided == at_once


@pytest.mark.parametrize("stages", [1, 2, 3, 8])
def test_keys_and_values_in_steps_are_those_of_one_cycle(stages, seed):
    numbers = random.Random(f"{seed} {stages}")
    given = {"rows": 2, "cols": 2, "load_rows": 2, "dataflow": "weight_stationary"}
    array = SystolicArray(**given, operands=["bf16"], cache=["int8", "int4"])
    divided, at_once = later(ScaledLane, array, stages, numbers)
    assert divided == at_once


TILES, CELLS = 8, 32


def tile_of(number):
    """The ``number``-th small random tile whose weights have formats of their own."""
    made = (random_npu(seed, seed % 2 == 1, (DataType.BF16, DataType.FP16)[number % 2]) for seed in range(4000))
    small = (
        chip
        for chip in made
        if chip.tile.weight_formats
        and chip.tile.array.rows * chip.tile.array.cols <= CELLS
        and chip.tile.vector.lanes <= 8
    )
    return next(chip for place, chip in enumerate(small) if place == number)


def programs_of(chip, number, count=4):
    made = packed_programs(chip)
    made += [(f"program {n}", random_program(chip, 1000 * number + n)) for n in range(count)]
    for _, each in made:
        check_program(each.program, chip)
    return made


@pytest.mark.slow(seconds=14)
@pytest.mark.parametrize("number", range(TILES))
def test_random_tiles_agree_in_every_cycle_and_byte(number, seed):
    needs("icarus")
    chip = tile_of(number)
    made = programs_of(chip, seed)
    for parity in check_programs(chip, made, simulator="icarus", stall=[0] * (len(made) - 1) + [60]):
        assert parity.passed, "\n".join([f"{chip.name}, {parity.name}", *parity.errors])


def test_random_tiles_have_every_kind_of_weights():
    tiles = [tile_of(number).tile for number in range(TILES)]
    assert {dtype for tile in tiles for dtype in tile.weight_formats} == {
        DataType.INT4,
        DataType.INT8,
        DataType.BF16,
        DataType.FP16,
        *MX_ELEMENTS,
    }
    packed = [tile.array.weights for tile in tiles if tile.array.weights]
    assert {each.minima for each in packed} == {True, False}
    assert any(tile.rounds for tile in tiles)
    assert not all(tile.rounds for tile in tiles)


EDGES = {
    "wide": {},
    "short": {"tile.vector.format": "null", "tile.array.cache": "[]"},
    "row by row": {"tile.array.load_rows": "1", "tile.array.cols": "8"},
    "in steps": {"tile.array.unpack_stages": "5"},
}
"""Of the last one a header of scales and minima takes two reads, and a column of a beat in int4 half of a byte."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", EDGES)
def test_an_edge_tile_in_small_agrees(kind):
    needs("verilator")
    chip = small_chip(**EDGES[kind])
    for parity in check_programs(chip, programs_of(chip, 1, 2), simulator="verilator"):
        assert parity.passed, "\n".join([parity.name, *parity.errors])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("weight_bf16_minimum", r"code\[0\]", "code[1]"),
        ("narrowing_bf16", r"i\[15\] & ", "i[14] & "),
        # a register behind the edge takes on what is before it when it should not
        ("array", r"\.en\(stationary_slice_o_ready\)", ".en(1'b1)"),
        # a header is loaded
        ("array", r"(assign load_fires = .*) & .*;", r"\1;"),
    ],
)
def test_a_planted_fault_is_found(module, old, new, monkeypatch):
    needs("icarus")
    chip = small_chip(**({"tile.array.unpack_stages": "3"} if module == "array" else {}))
    bundle = verification.bundle_of(chip)
    name = next(each for each in sorted(bundle.files) if each.endswith(f"_{module}.v"))
    bundle.files[name], count = re.subn(old, new, bundle.files[name], count=1)
    assert count == 1, bundle.files[name]
    monkeypatch.setattr(verification, "bundle_of", lambda chip: bundle)
    made = packed_programs(chip)
    assert not all(parity.passed for parity in check_programs(chip, made, simulator="icarus"))


def product(**fields):
    return Program((Instruction(opcode=Opcode.MATMUL, m=1, n=1, k=1, **fields), Instruction(opcode=Opcode.END)))


def test_words_say_how_weights_are_packed():
    for packing in (Packing(DataType.INT4, 32), Packing(DataType.INT8, 1), Packing(DataType.BF16, 0), None):
        made = product(packing=packing).instructions[0]
        assert decode(encode(made)) == made


@pytest.mark.parametrize(
    ("changes", "packing", "rule"),
    [
        ({}, Packing(DataType.INT4, 1), "whole beats of 2"),
        ({}, Packing(DataType.FP16, 0), "no circuit for weights in fp16; the array has int4, int8, bf16"),
        ({"tile.array.weights": "{formats: [int8]}"}, Packing(DataType.INT4, 32), "the array has int8, bf16"),
        (
            {"tile.array.weights": "null", "tile.vector.format": "null", "tile.array.cache": "[]"},
            Packing(DataType.INT8, 32),
            "no packed ones",
        ),
        (
            {"tile.array.weights": "null", "tile.vector.format": "null", "tile.array.cache": "[]"},
            Packing(DataType.BF16, 0),
            "no packed ones",
        ),
    ],
)
def test_weights_without_a_circuit_are_refused(changes, packing, rule):
    chip = small_chip(**changes)
    made = product(packing=packing, dtype=chip.tile.circuit_format, a=Address(base=4096))
    with pytest.raises(IllegalProgram, match=rule):
        check_program(made, chip)
