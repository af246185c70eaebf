"""Numbers that share an exponent: what codes are, how far products are from float64, and what is no number."""

import ml_dtypes
import numpy as np
import pytest

from siliconloom.arch.datatype import DataType
from siliconloom.arch.shared import (
    CODE_FORMATS,
    add_fold,
    codes_of,
    factors,
    fields,
    from_memory,
    in_memory,
    moving,
    shared_product,
    staying,
)

BYTE = CODE_FORMATS[DataType.INT8]
FORMS = [pytest.param(form, id=dtype.value) for dtype, form in CODE_FORMATS.items()]


def words(values):
    return np.asarray(values, np.float32).view(np.uint32)


def numbers(seed, shape, spread=6):
    chance = np.random.default_rng(seed)
    return (chance.standard_normal(shape) * 2.0 ** chance.integers(-spread, spread, shape)).astype(np.float32)


def test_codes_are_those_of_mxint8():
    """The scale is the power of two of the largest; elements are rounded to 1/64 of it, and saturate."""
    values = numbers(1, (50, 32))
    codes, tops = staying(words(values), BYTE)
    exponents = np.floor(np.log2(np.abs(values).max(1)))
    np.testing.assert_array_equal(tops - 127, exponents)
    scaled = values.astype(np.float64) / 2.0 ** exponents[:, None] * 64
    np.testing.assert_array_equal(codes, np.clip(np.rint(scaled), -127, 127))


def test_halves_are_rounded_to_even_and_the_largest_saturates():
    values = np.array([[1.0, 0.5 / 64, 1.5 / 64, 2.5 / 64, -0.5 / 64, -1.5 / 64, 127.5 / 64, -127.9 / 64, 0.49 / 64]])
    codes, _ = staying(words(values), BYTE)
    np.testing.assert_array_equal(codes, [[64, 0, 2, 2, 0, -2, 127, -127, 0]])


@pytest.mark.parametrize("form", FORMS)
def test_codes_of_every_format_are_rounded_to_its_places_and_saturate(form):
    values = numbers(9, (40, 16), 3)
    codes, tops = staying(words(values), form)
    scaled = values.astype(np.float64) / 2.0 ** (tops[:, None] - 127) * 2**form.places
    np.testing.assert_array_equal(codes, np.clip(np.rint(scaled), -form.most, form.most))
    assert form.most == 2 ** (form.bits - 1) - 1


@pytest.mark.parametrize("dtype", CODE_FORMATS)
def test_codes_lie_in_memory_one_after_the_other(dtype, seed):
    """Two of four bits to a byte, the first one in the low bits; of sixteen the low byte first."""
    most = CODE_FORMATS[dtype].most
    codes = np.random.default_rng(seed).integers(-most - 1, most + 1, 64)
    held = in_memory(codes.astype(np.int16 if dtype is DataType.INT16 else np.int8), dtype)
    assert len(held) == dtype.size(64)
    whole = int.from_bytes(held.tobytes(), "little")
    mask = (1 << dtype.bits) - 1
    assert [whole >> dtype.bits * place & mask for place in range(64)] == (codes & mask).tolist()
    np.testing.assert_array_equal(from_memory(held, dtype), codes)


def test_a_subnormal_number_is_zero_and_a_row_of_zeros_has_no_exponent():
    codes, tops = staying(words([[2.0**-127, -0.0, 0.0]]), BYTE)
    assert not codes.any()
    assert tops.tolist() == [0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [4, 16, 64])
def test_products_are_within_the_rounding_of_both_operands(size, form):
    """Each operand errs by half of a code's last place of the largest of its block, or by one where that saturates.

    The error is as small as the codes are long, down to what fp32 rounds.
    """
    step = 2.0**-form.places
    a, b = numbers(2, (7, 3 * size + 1), 2), numbers(3, (3 * size + 1, 2 * size + 3), 2)
    found = shared_product(words(a), words(b), size, size, len(b), form=form).view(np.float32)
    exact = a.astype(np.float64) @ b
    bound = np.zeros_like(exact)
    for first in range(0, len(b), size):
        for panel in range(0, b.shape[1], size):
            left, right = np.abs(a[:, first : first + size]), np.abs(b[first : first + size, panel : panel + size])
            rows = right.max(1)
            peak = (left * rows).max(1)  # of what moves, times the rows that it meets
            bound[:, panel : panel + size] += len(rows) * peak[:, None] * 6 * step
    assert (np.abs(found - exact) <= bound).all()
    assert step / 8 < np.sqrt(((found - exact) ** 2).mean() / (exact**2).mean()) < 1.3 * step


@pytest.mark.parametrize("form", FORMS)
def test_codes_in_memory_are_the_numbers_themselves(form):
    a, codes = numbers(4, (5, 40), 1), np.random.default_rng(5).integers(-form.most - 1, form.most + 1, (40, 9))
    stored = codes.astype(np.int16 if form.bits > 8 else np.int8)
    found = shared_product(words(a), stored, 16, 16, 40, form=form).view(np.float32)
    made = np.zeros_like(found)
    for first in range(0, 40, 16):
        part = words(a[:, first : first + 16])
        own, levels, _ = moving(part, np.full(part.shape[1], form.unit), form)
        sums = own.astype(np.float64) @ codes[first : first + 16]
        made += (sums * 2.0 ** (levels[:, None] - form.shift)).astype(np.float32)
    np.testing.assert_array_equal(found, made)
    exact = a.astype(np.float64) @ codes
    assert np.sqrt(((found - exact) ** 2).mean() / (exact**2).mean()) < 0.6 * 2.0**-form.places


def test_a_sum_is_rounded_once_to_the_nearest_and_halves_to_even():
    """Products of two codes in int16 have more bits than fp32: 2^24 + 1 lies between two of its numbers."""
    a = np.array([[1.0, 2.0**-14]])
    for odd, wanted in ((1, 2**24), (2, 2**24 + 2), (3, 2**24 + 4), (-1, 2**24 - 1)):
        codes = np.array([[1024], [odd]], np.int16)
        found = shared_product(words(a), codes, 2, 1, 2, form=CODE_FORMATS[DataType.INT16]).view(np.float32)
        assert found.tolist() == [[wanted * 2.0**-14]]


def test_a_row_counts_by_the_product_with_the_row_that_it_meets():
    """A large number that meets small ones takes no bits of a small one that meets large ones."""
    a, b = np.array([[1.0, 1024.0]]), np.array([[1024.0], [1.0]])
    found = shared_product(words(a), words(b), 2, 4, 2).view(np.float32)
    assert found.tolist() == [[2048.0]]


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_no_numbers_stay_within_their_fold_and_panel_or_row(odd):
    a, b = np.ones((3, 8), np.float32), np.ones((8, 8), np.float32)
    a[1, 2] = odd
    found = shared_product(words(a), words(b), 4, 4, 8).view(np.float32)
    assert np.isnan(found).any(axis=1).tolist() == [False, True, False]
    a[1, 2], b[5, 6] = 0, odd
    found = shared_product(words(a), words(b), 4, 4, 8).view(np.float32)
    assert np.isnan(found).tolist() == [[False] * 4 + [True] * 4] * 3
    assert shared_product(words(a), words(b), 4, 4, 8)[0, 7] == 0x7FC00000


def test_sums_beyond_fp32_are_infinite_and_small_ones_are_zeros_of_their_sign():
    big, small = np.full((1, 1), 2.0**100), np.full((1, 1), 2.0**-100)
    assert shared_product(words(big), words(-big), 1, 1, 1).tolist() == [[0xFF800000]]
    assert shared_product(words(small), words(-small), 1, 1, 1).tolist() == [[0x80000000]]
    assert shared_product(words(small), words(0 * small), 1, 1, 1).tolist() == [[0]]
    assert shared_product(words(-small), words(0 * small), 1, 1, 1).tolist() == [[0]]


def test_a_tile_ends_a_fold():
    """Folds begin anew with every tile of rows, and add up one after the other."""
    a, b = numbers(6, (4, 24), 1), numbers(7, (24, 8), 1)
    whole = shared_product(words(a), words(b), 8, 8, 12)
    first = shared_product(words(a[:, :12]), words(b[:12]), 8, 8, 12)
    np.testing.assert_array_equal(whole, shared_product(words(a[:, 12:]), words(b[12:]), 8, 8, 12, first))


def test_exponents_are_those_of_numpy():
    values = numbers(8, 100)
    np.testing.assert_array_equal(fields(words(values)) - 127, np.frexp(values)[1] - 1)
    scale = ml_dtypes.float8_e8m0fnu(float(2.0 ** (fields(words(values))[0] - 127)))
    assert float(scale) == 2.0 ** np.floor(np.log2(abs(float(values[0]))))
    assert codes_of(words([[1.0]]), np.array([[8]]), BYTE).tolist() == [[0.0]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("odd", [False, True])
def test_the_kernel_is_what_numpy_says(odd, form, seed):
    """Fold by fold and panel by panel: codes of what stays, of what moves, and their sums."""
    chance = np.random.default_rng(seed)
    a, b = numbers(seed, (6, 21), 9), numbers(seed + 1, (21, 19), 9)
    a[chance.random(a.shape) < 0.2], b[chance.random(b.shape) < 0.2] = 0, -0.0
    for halves in (a[:, 8:16], b[8:16]):  # of the last place, beside numbers of size one
        halves[:] = (2 * chance.integers(-form.most, form.most, halves.shape) + 1) / 2.0 ** (form.places + 1)
        halves[chance.random(halves.shape) < 0.3] = 1.0
    b[3] = 0
    if odd:
        a[2, 17], b[9, 12] = np.inf, np.nan
    wanted = np.zeros((6, 19), np.float32)
    for first in range(0, 21, 8):
        for panel in range(0, 19, 4):
            stays, tops = staying(words(b[first : first + 8, panel : panel + 4]), form)
            codes, levels, no = moving(words(a[:, first : first + 8]), tops, form)
            sums = codes.astype(np.float64) @ stays
            add_fold(sums, factors(levels, no, form), wanted[:, panel : panel + 4], first > 0)
    found = shared_product(words(a), words(b), 8, 4, 21, form=form).view(np.float32)
    np.testing.assert_array_equal(found, wanted)
    assert np.isnan(found).any() == odd
