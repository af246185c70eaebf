"""The integer functions of the vector unit against float64."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.isa import Address, Instruction, Opcode
from siliconloom.arch.layout import INDEX_BYTES, row_values
from siliconloom.arch.numerics import (
    ACTIVATIONS,
    EXP2,
    RECIPROCAL_SHIFT,
    RECIPROCALS,
    ROOT_SHIFT,
    ROOTS,
    activation_table,
    gelu,
    interpolated,
    silu,
)
from siliconloom.arch.vector import VectorFunction
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.npu import GoldenMachine

INT8 = st.integers(-128, 127)


def column(*values):
    return np.array(values, np.int64)


@given(st.integers(-(2**52), 2**52), st.integers(0, 63))
def test_halves_round_to_even(value, shift):
    assert functions.half_even(np.int64(value), shift) == round(Fraction(value, 2**shift))


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**15), 2**15 - 1),
    st.integers(0, 63),
)
def test_requantization_is_exact(total, bias, multiplier, shift):
    bias = max(min(bias, 2**32 - 1 - abs(total)), -(2**32) + abs(total))
    got = functions.requantize(column(total), column(bias), column(multiplier), column(shift))
    assert got[0] == round(Fraction((total + bias) * multiplier, 2**shift))


@given(INT8, INT8, st.integers(-(2**15), 2**15 - 1), st.integers(-(2**15), 2**15 - 1), st.integers(0, 63))
def test_sums_and_products_are_exact(a, b, first, second, shift):
    assert functions.scaled_sum(column(a), column(b), (first, second), shift)[0] == round(
        Fraction(a * first + b * second, 2**shift)
    )
    assert functions.scaled_product(column(a), column(b), first, shift)[0] == round(Fraction(a * b * first, 2**shift))


@pytest.mark.parametrize(
    ("table", "first", "real"),
    [(RECIPROCALS, 128, lambda m: 127 * 2**RECIPROCAL_SHIFT / m), (ROOTS, 64, lambda m: 2**ROOT_SHIFT / math.sqrt(m))],
)
def test_interpolated_tables_are_close_at_every_mantissa(table, first, real):
    worst = max(abs(interpolated(table, m) / real(m) - 1) for m in range(first << 8, 1 << 16))
    assert worst < 5e-5


def test_the_table_of_powers_is_exact_to_half_a_step():
    assert all(abs(entry - 2**15 * 2 ** (-f / 256)) <= 0.5 for f, entry in enumerate(EXP2))


@pytest.mark.parametrize("function", sorted(ACTIVATIONS))
@given(st.floats(0.001, 0.2), st.floats(0.001, 0.2))
def test_activations_are_right_to_half_a_step(function, scale_in, scale_out):
    table = activation_table(ACTIVATIONS[function], scale_in, scale_out)
    for x in range(-128, 128):
        real = ACTIVATIONS[function](x * scale_in) / scale_out
        got = table[x & 255] - 256 * (table[x & 255] > 127)
        assert abs(got - min(max(real, -128), 127)) <= 0.5 + 1e-9


def test_activations_at_known_points():
    assert gelu(0) == silu(0) == 0
    assert gelu(1) == pytest.approx(0.8413447460685429)
    assert silu(1) == pytest.approx(0.7310585786300049)
    assert silu(-1000) == 0


@given(st.integers(1, 6), st.integers(1, 80), st.sampled_from([2, 4, 8, 16]), st.integers(0, 100), st.floats(0.5, 12))
def test_softmax_is_close_to_float64(rows, cols, lanes, seed, spread):
    """Within the half step of rounding, and 0.7 % for the fraction of the exponent and what a shift cuts off."""
    chance = np.random.default_rng(seed)
    sums = chance.integers(-40000, 40000, (rows, cols))
    multiplier, shift = 23170, 15 + int(np.log2(40000 / 256 / spread))
    valid = chance.integers(1, cols + 1, rows)
    got = functions.softmax(sums, multiplier, shift, valid, lanes)
    exponent = sums * multiplier / 2**shift / 256
    for row in range(rows):
        powers = 2.0 ** (exponent[row, : valid[row]] - exponent[row, : valid[row]].max())
        real = 127 * powers / powers.sum()
        assert np.all(np.abs(got[row, : valid[row]] - real) <= 0.5 + 0.007 * real + 0.02)
        assert np.all(got[row, valid[row] :] == 0)
    assert got.min() >= 0
    assert got.max() <= 127


def first_ones(row, count):
    """Columns of the largest values, found one after the other; of equal ones the lower column comes first."""
    left, found = list(range(len(row))), []
    while left and len(found) < count:
        best = left[0]
        for column in left[1:]:
            if row[column] > row[best]:
                best = column
        found.append(best)
        left.remove(best)
    return found


@given(
    st.integers(1, 6),
    st.integers(1, 40),
    st.integers(1, 45),
    st.sampled_from([2, 4, 16]),
    st.integers(0, 100),
    st.sampled_from([1, 3, 127]),
)
def test_a_top_k_is_a_softmax_over_the_largest_of_which_the_first_count(rows, cols, count, lanes, seed, most):
    """Few different values make many ties; all that is not chosen is zero."""
    values = np.random.default_rng(seed).integers(-most - 1, most + 1, (rows, cols))
    multiplier, shift = 23170, 12
    got = functions.top_k(values, count, multiplier, shift, lanes)
    for row, own in zip(values, got, strict=True):
        chosen = first_ones(row, count)
        exponent = row[chosen] * multiplier / 2**shift / 256
        powers = 2.0 ** (exponent - exponent.max())
        real = 127 * powers / powers.sum()
        assert np.all(np.abs(own[chosen] - real) <= 0.5 + 0.007 * real + 0.02)
        assert not np.delete(own, chosen).any()
        if len(chosen) <= 8:
            assert own[chosen].min() > 0 or most > 3, "what is chosen shows"


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 7), st.integers(0, 100), st.integers(0, 30))
def test_a_weighted_sum_is_exact_and_rounded_once(rows, count, cols, seed, shift):
    chance = np.random.default_rng(seed)
    made, weights = chance.integers(-128, 128, (rows, count, cols)), chance.integers(-128, 128, (rows, count))
    multiplier = int(chance.integers(-(2**15), 2**15))
    got = functions.weighted_sum(made, weights, multiplier, shift)
    for row in range(rows):
        for col in range(cols):
            total = sum(int(w) * int(y) for w, y in zip(weights[row], made[row, :, col], strict=True))
            assert got[row, col] == round(Fraction(total * multiplier, 2**shift))


@pytest.mark.parametrize("lanes", [2, 4, 8])
@given(rows=st.integers(1, 5), cols=st.integers(1, 700), seed=st.integers(0, 100), most=st.sampled_from([1, 127]))
@settings(max_examples=20)
def test_an_argmax_is_an_index_that_a_gather_reads(lanes, rows, cols, seed, most):
    """The first of the largest values, in four bytes, each at the beginning of a row of its own."""
    tile = {"tile.array.rows": 4, "tile.array.cols": 4, "tile.array.load_rows": 1, "tile.vector.lanes": lanes}
    chip = load_chip("npu-edge-int8", [(key, str(value)) for key, value in tile.items()])
    machine = GoldenMachine(chip, np.zeros(16, np.uint8))
    values = np.random.default_rng(seed).integers(-most - 1, most + 1, (rows, cols)).astype(np.int8)
    pitch, place = row_values(chip.tile, cols), 1 << 16
    machine.scratchpad[: rows * pitch].reshape(rows, pitch)[:, :cols] = values.view(np.uint8)
    instruction = Instruction(
        opcode=Opcode.VECTOR, function=VectorFunction.ARGMAX, m=rows, n=cols, k=1, c=Address(base=place)
    )
    machine.execute(instruction, [])
    own = row_values(chip.tile, INDEX_BYTES)
    found = machine.scratchpad[place : place + rows * own].reshape(rows, own)[:, :INDEX_BYTES]
    assert [int.from_bytes(row.tobytes(), "little") for row in found] == [first_ones(row, 1)[0] for row in values]


def test_softmax_is_safe_at_the_extremes():
    sums = np.array([[2**31 - 1, 2**31 - 1, -(2**31)], [-(2**31)] * 3])
    got = functions.softmax(sums, 2**15 - 1, 0, column(3, 3), 2)
    assert np.abs(got - [[63.5, 63.5, 0], [42.33, 42.33, 42.33]]).max() <= 0.52
    assert functions.softmax(sums, 1, 0, column(0, 0), 2).tolist() == [[0] * 3] * 2


@given(st.booleans(), st.integers(2, 300), st.integers(0, 100), st.integers(1, 100), st.integers(-100, 100))
def test_norms_are_close_to_float64(centred, cols, seed, spread, offset):
    """z in 1/256: within half a step and 0.01 %."""
    chance = np.random.default_rng(seed)
    x = np.clip(np.rint(chance.normal(offset, spread, (3, cols))), -128, 127).astype(np.int64)
    one, none = np.ones(cols, np.int64), np.zeros(cols, np.int64)
    z = functions.normalize(x, one, none, none, centred=centred)
    moved = x - x.mean(1, keepdims=True) * centred
    deviation = np.sqrt((moved**2).mean(1, keepdims=True))
    real = 256 * np.divide(moved, deviation, out=np.zeros_like(moved, float), where=deviation > 0)
    assert np.all(np.abs(z - real) <= 0.5 + 1e-4 * np.abs(real))


def test_a_constant_row_normalizes_to_its_bias():
    x = np.full((2, 7), 93)
    bias = np.arange(7) * 1000
    got = functions.normalize(x, np.full(7, 1 << 14), bias, np.full(7, 10), centred=True)
    assert np.array_equal(got, np.tile(np.rint(bias / 1024), (2, 1)))


@given(st.integers(1, 9), st.integers(0, 100))
def test_rotation_is_close_to_float64(pairs, seed):
    chance = np.random.default_rng(seed)
    x, angle = chance.integers(-128, 128, (4, 2 * pairs)), chance.uniform(0, 7, (4, pairs))
    turns = np.empty((4, 2 * pairs), np.int64)
    turns[:, 0::2], turns[:, 1::2] = np.rint(32767 * np.cos(angle)), np.rint(32767 * np.sin(angle))
    got = functions.rotate(x, turns)
    real = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angle)
    assert np.abs(got[:, 0::2] - real.real).max() <= 0.5 + 0.02
    assert np.abs(got[:, 1::2] - real.imag).max() <= 0.5 + 0.02
