"""Elements in fp32 before an array in whole numbers: circuits as in NumPy, tiles as in the model, planted faults."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from siliconloom.arch import load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.faults import IllegalProgram
from siliconloom.arch.isa import Address, decode, encode
from siliconloom.arch.shared import CODE_FORMATS, add_fold, codes_of, factors, fields
from siliconloom.rtl.array.shared import SharedCode, SharedSum
from siliconloom.rtl.library import Library
from siliconloom.verification import npu as verification
from siliconloom.verification.float_directed import packed_programs
from siliconloom.verification.npu import check_programs
from siliconloom.verification.programs import random_program
from siliconloom.verification.random_tiles import random_npu
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


FORMS = [pytest.param(form, id=dtype.value) for dtype, form in CODE_FORMATS.items()]


@pytest.mark.parametrize("form", FORMS)
def test_a_code_is_that_of_numpy(form, seed):
    """Numbers of every kind by every distance from the largest: ties, the largest ones, zeros, subnormal numbers."""
    chance = np.random.default_rng(seed)
    drawn = chance.integers(0, 1 << 32, 150).astype(np.uint32)
    ties = (chance.integers(0, 2 << form.places, 100).astype(np.uint32) << np.uint32(22 - form.places)) | np.uint32(
        0x3F800000
    )
    words = np.concatenate([drawn, ties, np.array([0, 1 << 31, 1, 0x7FFFFF, 0x3FFFFFFF, 0xBFFFFFFF], np.uint32)])
    below = np.unique([0, 1, *range(form.places - 1, form.places + 4), 15, 16, 17, 100, 511])
    lane, found = SharedCode(Library("lane"), form), []

    async def bench(context):
        for word in words.tolist():
            context.set(lane.i, word)
            for places in below.tolist():
                context.set(lane.below, places)
                found.append(context.get(lane.o))

    simulated(lane.elaborate(None), bench)
    wanted = codes_of(np.repeat(words, len(below)), np.tile(below, len(words)), form).astype(np.int64)
    np.testing.assert_array_equal(found, wanted & (1 << form.bits) - 1)
    assert abs(wanted).max() == form.most


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("form", FORMS)
def test_a_sum_is_that_of_numpy(form, seed):
    """Whole numbers of all their bits by every exponent: what is rounded, flushed, infinite, and no numbers."""
    chance = np.random.default_rng(seed)
    most, bits = form.most * (form.most + 1) * 1024, form.sum_bits
    assert most < 1 << bits
    halves = ((2 * chance.integers(1 << 23, 1 << 24, 20) + 1) << bits - 25) if bits > 24 else [3, -3]
    largest = [(1 << 25) - 1 << bits - 25] if bits > 24 else []  # rounds up to a power of two
    drawn = chance.integers(-(1 << bits) + 1, 1 << bits, 40) >> chance.integers(0, bits, 40)
    sums = np.concatenate([drawn, halves, [*largest, 0, 1, -1, most, -most]])
    ends = [form.shift - 126, form.shift + 128]
    levels = np.array([0, 100, form.shift, 300, 510, *(end - place for end in ends for place in range(-1, bits + 2))])
    lane, found = SharedSum(Library("lane"), 48, form), []

    async def bench(context):
        for odd in (0, 1):
            context.set(lane.odd, odd)
            for level in levels.tolist():
                context.set(lane.level, level)
                for number in sums.tolist():
                    context.set(lane.i, number & (1 << 48) - 1)
                    found.append(context.get(lane.o))

    simulated(lane.elaborate(None), bench)
    wanted = np.zeros((2 * len(levels), len(sums)), np.float32)
    odd = np.repeat([False, True], len(levels))
    whole = np.tile(sums.astype(np.float64), (2 * len(levels), 1))
    add_fold(whole, factors(np.tile(levels, 2), odd, form), wanted, False)
    words = np.where(np.isnan(wanted), np.uint32(0x7FC00000), wanted.view(np.uint32))
    np.testing.assert_array_equal(np.array(found, np.uint32).reshape(words.shape), words)
    assert fields(words).max() == 255


TILES, CELLS = 6, 32


def tile_of(number, dtype):
    """The ``number``-th small random tile of an array in whole numbers between elements in fp32."""
    made = (random_npu(seed, seed % 2 == 1, dtype, DataType.FP32) for seed in range(4000))
    small = (
        chip
        for chip in made
        if chip.tile.shares and chip.tile.array.rows * chip.tile.array.cols <= CELLS and chip.tile.vector.lanes <= 8
    )
    return next(chip for place, chip in enumerate(small) if place == number)


@pytest.mark.slow(seconds=32)
@pytest.mark.parametrize("dtype", CODE_FORMATS)
@pytest.mark.parametrize("number", range(TILES))
def test_random_tiles_agree_in_every_cycle_and_byte(number, dtype, seed):
    needs("icarus")
    chip = tile_of(number, dtype)
    made = [*programs_of(chip, seed), *shared_programs(chip)]
    for parity in check_programs(chip, made, simulator="icarus", stall=[0] * (len(made) - 1) + [60]):
        assert parity.passed, "\n".join([f"{chip.name}, {parity.name}", *parity.errors])


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        pytest.param("npu-edge-w8a8", "int8", marks=pytest.mark.slow(seconds=14)),
        pytest.param("npu-edge-w8a8", "int4", marks=pytest.mark.slow(seconds=14)),
        pytest.param("npu-edge-w8a8", "int16", marks=pytest.mark.slow(seconds=14)),
        pytest.param("npu-edge-w4a8", "int8", marks=pytest.mark.slow(seconds=14)),
    ],
)
def test_the_library_s_tiles_in_small_agree(name, operands):
    needs("icarus")
    sets = SMALL | {"tile.array.load_rows": "2", "tile.array.operands": f"[{operands}]"}
    chip = load_chip(name, list(sets.items()))
    made = programs_of(chip, 1, 4) + (shared_programs(chip) if operands == "int16" else [])
    for parity in check_programs(chip, made, simulator="icarus"):
        assert parity.passed, "\n".join([parity.name, *parity.errors])


@pytest.mark.slow(seconds=19)
@pytest.mark.parametrize(
    ("module", "old", "new", "changes"),
    [
        ("code", "i[31]", "i[30]", {}),
        ("code", "i[31]", "i[30]", {"tile.array.operands": "[int4]"}),
        ("shared_sum", "rounded[23]", "1'h0", {"tile.array.operands": "[int16]"}),
    ],
)
def test_a_planted_fault_is_found(module, old, new, changes, monkeypatch):
    needs("verilator")
    chip = small_chip(**changes)
    bundle = verification.bundle_of(chip)
    name = next(each for each in sorted(bundle.files) if each.endswith(f"_{module}.v"))
    assert old in bundle.files[name], bundle.files[name]
    bundle.files[name] = bundle.files[name].replace(old, new, 1)
    monkeypatch.setattr(verification, "bundle_of", lambda chip: bundle)
    made = [*packed_programs(chip), ("any", random_program(chip, 1)), *shared_programs(chip)]
    assert not all(parity.passed for parity in check_programs(chip, made, simulator="verilator"))


def test_words_say_that_codes_have_no_groups():
    for packing in (
        Packing(DataType.INT8, 0),
        Packing(DataType.INT8, 1),
        Packing(DataType.INT8, 1 << 13),
        Packing(DataType.INT4, 0),
        Packing(DataType.INT16, 0),
    ):
        made = product(packing=packing).instructions[0]
        assert decode(encode(made)) == made


@pytest.mark.parametrize(
    ("packing", "rule"),
    [
        (Packing(DataType.INT8, 32), "weights in int8 have no groups here"),
        (Packing(DataType.INT4, 0), "no circuit for weights in int4; the array has int8"),
        (Packing(DataType.BF16, 0), "no circuit for weights in bf16; the array has int8"),
        (Packing(DataType.INT16, 0), "no circuit for weights in int16; the array has int8"),
    ],
)
def test_weights_without_a_circuit_are_refused(packing, rule):
    chip = small_chip()
    with pytest.raises(IllegalProgram, match=rule):
        check_program(product(packing=packing, dtype=DataType.FP32, a=Address(base=4096)), chip)
