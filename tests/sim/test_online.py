"""The online softmax in integers: tile by tile as of the whole row, near float64, and refused without what it needs."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.arch.faults import IllegalProgram
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, last_seen
from siliconloom.arch.numerics import ONE
from siliconloom.arch.vector import VectorFunction
from siliconloom.arch.word import LOCAL_BITS
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.npu import GoldenMachine

LANES = 8
STEP = 2.0 ** (1 / 512) - 1
"""Of a power, where its exponent is rounded to 1/256."""


def online(scores, values, scalars, seen, tile):
    """Sums over tiles of keys, and peaks and totals of rows."""
    sums, before = np.zeros((len(scores), values.shape[1]), np.int64), None
    for start in range(0, scores.shape[1], tile):
        part = slice(start, start + tile)
        powers, before, rise = functions.softmax_online(scores[:, part], *scalars, seen - start, LANES, before)
        assert powers.min() >= 0
        assert powers.max() <= ONE
        sums = functions.rescaled(sums, rise) + powers @ values[part]
    return sums, before


def drawn(seed, rows, keys, width, spread):
    """Scores whose exponents have so many octaves, values, and the scalars and columns that make the best of them."""
    chance = np.random.default_rng(seed)
    scores = np.rint(chance.normal(0, 10_000, (rows, keys))).astype(np.int64)
    values = chance.integers(-128, 128, (keys, width))
    multiplier, shift = 2**14 + 123, 14 - int(np.round(np.log2(spread * 256 / 10_000)))
    return scores, values, (multiplier, shift)


def reals(scores, values, scalars, seen):
    """Powers below each row's peak, rounded up to an integer, and softmax times values, in float64."""
    exponent = scores * scalars[0] / 2.0 ** scalars[1] / 256
    within = np.arange(scores.shape[1]) < seen[:, None]
    peak = np.ceil(np.where(within, exponent, -np.inf).max(1))
    powers = np.where(within, 2.0 ** (exponent - peak[:, None]), 0)
    return powers, within, powers @ values / powers.sum(1)[:, None]


@pytest.mark.slow(seconds=1.5)
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    keys=st.integers(1, 300),
    tile=st.integers(1, 90),
    spread=st.sampled_from([0.01, 0.3, 1, 3, 12]),
    causal=st.booleans(),
)
def test_attention_tile_by_tile_is_float64_but_for_what_is_rounded(seed, keys, tile, spread, causal):
    """Every rounding by itself: of exponents, powers, probabilities, totals, older sums, results; and no more."""
    rows, width = 5, 6
    scores, values, scalars = drawn(seed, rows, keys, width, spread)
    seen = np.clip(keys - rows + 1 + np.arange(rows), 1, keys) if causal else np.full(rows, keys)
    sums, (_, total) = online(scores, values, scalars, seen, tile)
    powers, within, real = reals(scores, values, scalars, seen)
    multiplier = np.full(width, 2**14)
    factor = 127 / max(np.abs(real).max(), 1)
    shift = np.full(width, int(np.clip(np.ceil(np.log2(2**14 * ONE / factor)), 0, 40)))
    got = functions.requantize_rows(sums, total, 0 * multiplier, multiplier, shift)
    scale = ONE * multiplier / 2.0**shift
    whole, size = powers.sum(1), np.abs(values)
    of_powers = np.where(within, STEP * powers + 2.0**-15, 0)
    of_sums = (of_powers + np.where(within, 0.5 / ONE, 0)) @ size
    tiles, blocks = -(-keys // tile), -(-tile // LANES) * -(-keys // tile)
    older = tiles * 0.5 / ONE
    of_total = (of_powers.sum(1) + blocks * 2.0**-15) / whole + 1e-4
    error = (of_sums + older) / whole[:, None] + of_total[:, None] * np.abs(real) + 0.5 / 128 / ONE
    bound = 0.5 + scale * error * 1.01
    assert (np.abs(got - real * scale) <= bound).all()


@pytest.mark.parametrize("spread", [0.5, 1.5, 4])
@pytest.mark.parametrize(("keys", "tile"), [(64, 16), (1000, 96), (7000, 512)])
def test_attention_over_many_keys_is_right_to_a_few_steps(keys, tile, spread):
    """Where whole rows of probabilities vanish below 1/254, powers below a row's peak do not."""
    scores, values, scalars = drawn(1, 16, keys, 32, spread)
    seen = np.full(16, keys)
    sums, (_, total) = online(scores, values, scalars, seen, tile)
    _, _, real = reals(scores, values, scalars, seen)
    factor = 127 / np.abs(real).max() / ONE
    shift = np.full(32, int(14 - np.floor(np.log2(factor))))
    multiplier = np.rint(factor * 2.0**shift).astype(np.int64)
    got = functions.requantize_rows(sums, total, 0 * shift, multiplier, shift)
    chances = functions.softmax(scores, *scalars, seen, LANES)
    whole = functions.requantize(chances @ values, 0 * shift, multiplier, shift)
    error, other = (made - real * ONE * multiplier / 2.0**shift for made in (got, whole))
    rms, of_whole = (float(np.sqrt((each**2).mean())) for each in (error, other))
    print(f"{keys} keys, {spread} octaves: {np.abs(error).max():.2f} steps, rms {rms:.2f}; whole rows {of_whole:.2f}")
    assert np.abs(error).max() < 9
    assert rms < 2
    assert rms < of_whole + 0.02


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 200), st.integers(1, 12), st.sampled_from([0.3, 3, 12]))
def test_peaks_and_totals_are_those_of_the_whole_row_whatever_its_tiles(seed, keys, blocks, spread):
    scores, values, scalars = drawn(seed, 4, keys, 1, spread)
    seen = np.random.default_rng(seed).integers(0, keys + 1, 4)
    _, whole = online(scores, values, scalars, seen, keys)
    _, parts = online(scores, values, scalars, seen, blocks * LANES)
    np.testing.assert_array_equal(whole, parts)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(0, 63), st.integers(-(2**15), 2**15 - 1))
def test_older_sums_and_results_round_halves_to_even(value, rise, multiplier):
    assert functions.rescaled(np.array([[value]]), np.array([rise]))[0, 0] == round(Fraction(value, 2**rise))
    # of a total of 2^15, one power of one, a sum is in steps of 1/127 of a value
    small = np.int64(value >> 16)
    got = functions.requantize_rows(*(np.array(each) for each in ([[small]], [1 << 15], [0], [multiplier], [7])))
    assert abs(int(got[0, 0]) - int(small) * multiplier / 128) <= 0.5 + abs(int(small) * multiplier) * 1e-6


@given(st.integers(-(2 ** (LOCAL_BITS - 1)), 2 ** (LOCAL_BITS - 1) - 1))
def test_a_mask_below_zero_wraps_as_addresses_do(seen):
    assert last_seen(seen % (1 << LOCAL_BITS)) == seen


APART = Address(base=1 << 15)
ONLINE = Instruction(opcode=Opcode.VECTOR, function=VectorFunction.SOFTMAX_ONLINE, m=2, n=3, k=1, c=APART)
CLOSE = Instruction(opcode=Opcode.VECTOR, function=VectorFunction.REQUANTIZE_ROWS, m=2, n=3, k=1, c=APART)
LOAD = Instruction(opcode=Opcode.LOAD, m=1, n=16)
COPY = Instruction(opcode=Opcode.VECTOR, function=VectorFunction.COPY, m=2, n=3, k=1, c=APART)
RESCALE = Instruction(opcode=Opcode.MATMUL, m=2, n=3, k=4, accumulate=1, rescale=1)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ([CLOSE], "requantize_rows of 2 rows; slot 0 of the row memory has peaks and totals of 0"),
        ([Instruction(**(asdict(ONLINE) | {"accumulate": 1}))], "softmax_online of 2 rows"),
        ([ONLINE, Instruction(**(asdict(CLOSE) | {"m": 3}))], "requantize_rows of 3 rows; slot 0 .* of 2"),
        ([ONLINE, Instruction(**(asdict(ONLINE) | {"function": VectorFunction.SOFTMAX})), CLOSE], "of 0"),
        ([ONLINE, Instruction(**(asdict(CLOSE) | {"b": Address(odd=1)}))], "slot 1 of the row memory .* of 0"),
        ([ONLINE, Instruction(**(asdict(ONLINE) | {"accumulate": 1}))], "slot 1 of the row memory .* of 0"),
        ([RESCALE], "sums of 2 rows are rescaled; slot 0 says of 0"),
        ([ONLINE, Instruction(**(asdict(RESCALE) | {"a": Address(odd=1)}))], "slot 1 says of 0"),
    ],
)
def test_what_no_function_has_left_is_not_carried(code, why):
    machine = GoldenMachine(load_chip("npu-edge-int8"), np.zeros(4096, np.uint8))
    with pytest.raises(LoomError, match=why):
        machine.run(Program((*code, Instruction(opcode=Opcode.END))))


@pytest.mark.parametrize(
    ("sets", "instruction", "why"),
    [
        ([], {"m": 257}, "sums of at most 256 rows are rescaled"),
        ([("tile.array.dataflow", "input_stationary")], {"n": 257}, "sums of at most 256 rows are rescaled"),
    ],
)
def test_sums_that_no_circuit_rescales_are_refused(sets, instruction, why):
    wrong = Instruction(**(asdict(RESCALE) | instruction))
    with pytest.raises(IllegalProgram, match=why):
        check_program(Program((wrong, Instruction(opcode=Opcode.END))), load_chip("npu-edge-int8", sets))


@pytest.mark.parametrize(
    ("instruction", "change", "why"),
    [
        (ONLINE, {"rescale": 1}, "rescaled by a matmul that adds to them, and by nothing else .got softmax_online"),
        (
            Instruction(**(asdict(RESCALE) | {"b": Address(base=1 << 16)})),
            {"accumulate": 0},
            "rescaled by a matmul that adds to them; this one has no accumulate",
        ),
        (CLOSE, {"accumulate": 1}, "requantize_rows adds to nothing that is there: it takes no accumulate"),
        (LOAD, {"accumulate": 1}, "load adds to nothing that is there: it takes no accumulate"),
        (LOAD, {"rescale": 1}, "by nothing else .got load"),
        (COPY, {"k": 3}, r"copy takes 2 operands at most, or a mask \(got k = 3\)"),
        (COPY, {"accumulate": 1}, "copy adds to nothing"),
    ],
)
def test_flags_that_an_instruction_does_not_know_are_refused(instruction, change, why):
    chip, end = load_chip("npu-edge-int8"), Instruction(opcode=Opcode.END)
    check_program(Program((instruction, end)), chip)
    with pytest.raises(IllegalProgram, match=why):
        check_program(Program((Instruction(**(asdict(instruction) | change)), end)), chip)
