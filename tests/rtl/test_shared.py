"""Elements in fp32 before an array in int8: circuits against NumPy, whole tiles against the model, planted faults."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from siliconloom.arch import load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.faults import IllegalProgram
from siliconloom.arch.isa import Address, decode, encode
from siliconloom.arch.shared import SHIFT, add_fold, codes_of, factors, fields
from siliconloom.rtl.array.shared import SharedCode, SharedSum
from siliconloom.rtl.library import Library
from siliconloom.verification import npu as verification
from siliconloom.verification.float_directed import packed_programs
from siliconloom.verification.npu import check_programs
from siliconloom.verification.programs import random_npu, random_program
from siliconloom.verification.shared_directed import shared_programs
from tests.rtl.test_float_tiles import needs
from tests.rtl.test_packed_weights import SMALL, product, programs_of

pytestmark = pytest.mark.rtl


def small_chip(**changes):
    """The library's tile in small."""
    return load_chip("npu-edge-w8a8", list((SMALL | {"tile.array.load_rows": "2"} | changes).items()))


def simulated(module, bench):
    simulator = Simulator(module)
    simulator.add_testbench(bench)
    simulator.run()


def test_a_code_is_that_of_numpy(seed):
    """Numbers of every kind by every distance from the largest: ties, the largest ones, zeros, subnormal numbers."""
    chance = np.random.default_rng(seed)
    drawn = chance.integers(0, 1 << 32, 150).astype(np.uint32)
    ties = (chance.integers(0, 1 << 8, 100).astype(np.uint32) << np.uint32(15)) | np.uint32(0x3F800000)
    words = np.concatenate([drawn, ties, np.array([0, 1 << 31, 1, 0x7FFFFF, 0x3FFFFFFF, 0xBFFFFFFF], np.uint32)])
    below = np.array([0, 1, 5, 6, 7, 8, 9, 15, 16, 100, 511])
    lane, found = SharedCode(Library("lane")), []

    async def bench(context):
        for word in words.tolist():
            context.set(lane.i, word)
            for places in below.tolist():
                context.set(lane.below, places)
                found.append(context.get(lane.o))

    simulated(lane.elaborate(None), bench)
    wanted = codes_of(np.repeat(words, len(below)), np.tile(below, len(words))).astype(np.int64) & 255
    np.testing.assert_array_equal(found, wanted)


def test_a_sum_is_that_of_numpy(seed):
    """Whole numbers of up to 24 bits by every exponent: what is flushed, what is infinite, and no numbers."""
    chance = np.random.default_rng(seed)
    most = 127 * 128 * 1024
    sums = np.concatenate([chance.integers(-(1 << 24) + 1, 1 << 24, 40), [0, 1, -1, most, -most]])
    levels = np.array([0, 100, 115, 116, 138, 139, 140, 150, SHIFT, 300, 380, 390, 393, 394, 400, 510])
    lane, found = SharedSum(Library("lane")), []

    async def bench(context):
        for odd in (0, 1):
            context.set(lane.odd, odd)
            for level in levels.tolist():
                context.set(lane.level, level)
                for number in sums.tolist():
                    context.set(lane.i, number & 0xFFFFFFFF)
                    found.append(context.get(lane.o))

    simulated(lane.elaborate(None), bench)
    wanted = np.zeros((2 * len(levels), len(sums)), np.float32)
    odd = np.repeat([False, True], len(levels))
    whole = np.tile(sums.astype(np.float32), (2 * len(levels), 1))
    add_fold(whole, factors(np.tile(levels, 2), odd), wanted, False)
    words = np.where(np.isnan(wanted), np.uint32(0x7FC00000), wanted.view(np.uint32))
    np.testing.assert_array_equal(np.array(found, np.uint32).reshape(words.shape), words)
    assert fields(words).max() == 255


TILES, CELLS = 6, 32


def tile_of(number):
    """The ``number``-th small random tile of an array in int8 between elements in fp32."""
    made = (random_npu(seed, seed % 2 == 1, DataType.INT8, DataType.FP32) for seed in range(4000))
    small = (
        chip
        for chip in made
        if chip.tile.shares and chip.tile.array.rows * chip.tile.array.cols <= CELLS and chip.tile.vector.lanes <= 8
    )
    return next(chip for place, chip in enumerate(small) if place == number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(TILES))
def test_random_tiles_agree_in_every_cycle_and_byte(number, seed):
    needs("verilator")
    chip = tile_of(number)
    made = [*programs_of(chip, seed), *shared_programs(chip)]
    for parity in check_programs(chip, made, simulator="verilator", stall=[0] * (len(made) - 1) + [60]):
        assert parity.passed, "\n".join([f"{chip.name}, {parity.name}", *parity.errors])


@pytest.mark.parametrize("name", [pytest.param("npu-edge-w8a8", marks=pytest.mark.slow), "npu-edge-w4a8"])
def test_the_library_s_tiles_in_small_agree(name):
    needs("verilator")
    chip = load_chip(name, list((SMALL | {"tile.array.load_rows": "2"}).items()))
    for parity in check_programs(chip, programs_of(chip, 1, 4), simulator="verilator"):
        assert parity.passed, "\n".join([parity.name, *parity.errors])


@pytest.mark.slow
@pytest.mark.parametrize(("module", "old", "new"), [("code", "i[31]", "i[30]")])
def test_a_planted_fault_is_found(module, old, new, monkeypatch):
    needs("verilator")
    chip = small_chip()
    bundle = verification.bundle_of(chip)
    name = next(each for each in sorted(bundle.files) if each.endswith(f"_{module}.v"))
    assert old in bundle.files[name], bundle.files[name]
    bundle.files[name] = bundle.files[name].replace(old, new, 1)
    monkeypatch.setattr(verification, "bundle_of", lambda chip: bundle)
    made = [*packed_programs(chip), ("any", random_program(chip, 1))]
    assert not all(parity.passed for parity in check_programs(chip, made, simulator="verilator"))


def test_words_say_that_codes_have_no_groups():
    for packing in (Packing(DataType.INT8, 0), Packing(DataType.INT8, 1), Packing(DataType.INT8, 1 << 13)):
        made = product(packing=packing).instructions[0]
        assert decode(encode(made)) == made


@pytest.mark.parametrize(
    ("packing", "rule"),
    [
        (Packing(DataType.INT8, 32), "weights in int8 have no groups here"),
        (Packing(DataType.INT4, 0), "no circuit for weights in int4; the array has int8"),
        (Packing(DataType.BF16, 0), "no circuit for weights in bf16; the array has int8"),
    ],
)
def test_weights_without_a_circuit_are_refused(packing, rule):
    chip = small_chip()
    with pytest.raises(IllegalProgram, match=rule):
        check_program(product(packing=packing, dtype=DataType.FP32, a=Address(base=4096)), chip)
