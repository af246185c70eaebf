"""Number formats against an implementation of somebody else (`ml_dtypes`), and sums against float64."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.datatype import DataType
from siliconloom.arch.floats import (
    EXPONENT,
    MAGNITUDE,
    NAN,
    SIGN,
    chain_product,
    float_product,
    float_sum,
    flushed,
    narrowed,
    patterns_of,
    values_of,
    widened,
)

OTHERS = {
    DataType.FP8_E4M3: ml_dtypes.float8_e4m3fn,
    DataType.FP8_E5M2: ml_dtypes.float8_e5m2,
    DataType.BF16: ml_dtypes.bfloat16,
    DataType.FP16: np.float16,
}


def every_pattern(dtype):
    return np.arange(1 << dtype.bits).astype(f"u{dtype.bits // 8}")


@pytest.mark.parametrize("dtype", OTHERS)
def test_every_pattern_is_the_number_that_others_read(dtype):
    patterns = every_pattern(dtype)
    with np.errstate(all="ignore"):
        others = patterns.view(OTHERS[dtype]).astype(np.float32)
    assert (widened(patterns, dtype) == flushed(others.view(np.uint32))).all()


@pytest.mark.parametrize("dtype", OTHERS)
def test_rounding_is_that_of_others(dtype):
    """Any number, every number of the format, every halfway between two, and the neighbours of those."""
    with np.errstate(all="ignore"):
        exact = every_pattern(dtype).view(OTHERS[dtype]).astype(np.float64)
    numbers = np.unique(exact[np.isfinite(exact)])
    halves = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32).view(np.uint32)
    chance = np.random.default_rng(1)
    any_ = chance.integers(0, 2**32, 50_000, dtype=np.uint32)
    words = np.concatenate([any_, widened(every_pattern(dtype), dtype), halves, halves + 1, halves - 1])
    with np.errstate(all="ignore"):
        others = flushed(words).view(np.float32).astype(OTHERS[dtype])
    wanted = others.view(f"u{dtype.bits // 8}")
    if not dtype.layout.keeps_subnormals:
        small = widened(wanted, dtype) << np.uint32(1) == 0
        wanted = np.where(small, wanted & (1 << (dtype.bits - 1)), wanted)
    with np.errstate(all="ignore"):
        nan = np.isnan(others.astype(np.float32))
    found = narrowed(words, dtype)
    assert (found[~nan] == wanted[~nan]).all()
    assert np.isnan(values_of(found[nan], dtype)).all()


@pytest.mark.parametrize("dtype", OTHERS)
def test_what_is_widened_and_narrowed_is_the_same(dtype):
    patterns = every_pattern(dtype)
    words = widened(patterns, dtype)
    assert (widened(narrowed(words, dtype), dtype) == words).all()


@given(
    seed=st.integers(0, 2**32 - 1), m=st.integers(1, 4), k=st.integers(1, 300), dtype=st.sampled_from(sorted(OTHERS))
)
@settings(max_examples=40)
def test_a_chain_of_sums_is_within_its_bound(seed, m, k, dtype):
    """No sum has more roundings than terms (Higham, Accuracy and Stability, 2nd ed., equation 4.4)."""
    chance = np.random.default_rng(seed)
    a, b = (patterns_of(chance.standard_normal(shape), dtype) for shape in ((m, k), (k, 3)))
    found = chain_product(widened(a, dtype), widened(b, dtype)).view(np.float32).astype(np.float64)
    x, y = values_of(a, dtype).astype(np.float64), values_of(b, dtype).astype(np.float64)
    assert (np.abs(found - x @ y) <= 1.01 * k * 2.0**-24 * (np.abs(x) @ np.abs(y))).all()


def kept(words):
    """The rule for operands and results, in steps of NumPy."""
    flat = np.where((words & EXPONENT) == 0, words & SIGN, words)
    return np.where((flat & MAGNITUDE) > EXPONENT, NAN, flat)


def exact(words):
    return kept(words).view(np.float32).astype(np.float64)


def rounded(real):
    """24 bits, wherever the exponent is; then what is below the smallest normal number is a zero."""
    fraction, exponent = np.frexp(real)
    short = np.ldexp(np.rint(np.ldexp(fraction, 24)), exponent - 24)
    with np.errstate(all="ignore"):
        found = np.where(np.abs(short) < 2.0**-126, np.copysign(0.0, real), short).astype(np.float32)
    return kept(np.where(np.isfinite(real), found, real.astype(np.float32)).view(np.uint32))


@st.composite
def operands(draw):
    """Patterns, of which many are zeros, infinities, not numbers, subnormal, or have products near 2^-126."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    words = chance.integers(0, 2**32, (2, 400), dtype=np.uint32)
    kinds = chance.integers(0, 8, words.shape)
    special = {0: 0, 1: 1 << 23, 2: 255 << 23, 3: 63 << 23, 4: 64 << 23}
    for kind, field in special.items():
        words = np.where(kinds == kind, (words & ~EXPONENT) | np.uint32(field), words)
    words = np.where(kinds == 5, words & SIGN, words)
    near = (2.0**-126 / np.abs(exact(words[0] & ~EXPONENT | np.uint32(64 << 23)))).astype(np.float32).view(np.uint32)
    near += chance.integers(0, 5, near.shape, dtype=np.uint32) - np.uint32(2)
    return words[0] & ~EXPONENT | np.uint32(64 << 23), near, words[0], words[1]


@given(operands())
def test_sums_and_products_are_rounded_once_by_the_rule(found):
    with np.errstate(all="ignore"):
        left, near, a, b = found
        product = float_product(left, near)
        assert (product == rounded(exact(left) * exact(near))).all()
        assert {0, 1 << 23} <= {*(product & MAGNITUDE).tolist()}
        assert (float_product(a, b) == rounded(exact(a) * exact(b))).all()
        plain = (exact(a).astype(np.float32) + exact(b).astype(np.float32)).view(np.uint32)
        assert (float_sum(a, b) == kept(plain)).all()
        assert (flushed(a) == kept(a)).all()
        assert (narrowed(a, DataType.BF16) == narrowed(kept(a), DataType.BF16)).all()


@given(operands())
def test_shapes_are_broadcast_and_operands_stay_as_they_were(found):
    a, b = (words[:12].reshape(3, 4).copy() for words in found[2:])
    before = a.copy()
    for other in (b, b[:1], b[:, :1], b[0], b[0, 0], b.T.copy().T):
        whole = np.broadcast_to(other, a.shape).copy()
        assert (float_sum(a, other) == float_sum(a, whole)).all()
        assert (float_product(other, a) == float_product(whole, a)).all()
    a.flags.writeable = False
    assert (flushed(a[:, ::2]) == flushed(a)[:, ::2]).all()
    assert (widened(narrowed(a, DataType.BF16), DataType.BF16) & np.uint32(0xFFFF) == 0).all()
    assert (a == before).all()


def test_numbers_are_not_taken_for_patterns():
    for operation in (flushed, lambda x: float_sum(x, x), lambda x: narrowed(x, DataType.BF16)):
        with pytest.raises(TypeError, match="patterns of numbers are integers"):
            operation(np.ones(3, np.float32))
