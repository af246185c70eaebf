"""Number formats against an implementation of somebody else (`ml_dtypes`), and sums against float64."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.datatype import DataType
from siliconloom.arch.floats import chain_product, flushed, narrowed, patterns_of, values_of, widened

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
