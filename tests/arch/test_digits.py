"""Digits of operands: their recoding, published statistics, and cycles expected of a distribution."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import SystolicArray
from siliconloom.arch.datatype import DataType
from siliconloom.arch.digits import (
    beat_steps,
    chances_of,
    digit_counts,
    digits_of,
    expected_steps,
    mean_digits,
    step_chances,
)

FORMATS = [DataType.INT4, DataType.INT8, DataType.INT16]
PUBLISHED = {10: 1.7619, 20: 2.1148, 30: 2.3347, 40: 2.4903, 50: 2.6047, None: 2.918}
"""Mean non-zero digits of int8 operands by standard deviation, of the paper's encoder; ``None``: all values alike."""


@pytest.mark.parametrize("dtype", FORMATS)
def test_digits_are_the_number_and_none_is_three(dtype):
    half = 1 << dtype.bits - 1
    values = np.arange(-half, half)
    digits = digits_of(values, dtype.bits)
    assert np.array_equal(digits @ 4 ** np.arange(dtype.bits // 2), values)
    assert set(np.unique(digits * np.sign(values)[:, None]).tolist()) == {-1, 0, 1, 2}
    assert np.array_equal(digit_counts(values, dtype.bits)[half + 1 :], digit_counts(-values, dtype.bits)[half + 1 :])


@pytest.mark.parametrize(("sigma", "mean"), PUBLISHED.items())
def test_enumeration_gives_the_published_means(sigma, mean):
    assert mean_digits(DataType.INT8, sigma) == pytest.approx(mean, abs=6e-5)


@pytest.mark.slow(seconds=1)
@settings(max_examples=25)
@given(
    st.sampled_from([(1, 1), (1, 2), (2, 1)]), st.integers(1, 3), st.sampled_from([None, 0.6, 3.0]), st.integers(0, 4)
)
def test_expected_cycles_are_the_mean_over_all_operands(shape, depth, sigma, least):
    """All operands of int4 that a fold may have, each with its chance."""
    rows, k = shape
    fields = {"dataflow": "output_stationary", "operands": ("int4",), "element": "digit_serial", "depth": depth}
    array = SystolicArray(rows=rows, cols=1, operand_sigma=sigma, **fields)
    values, chances = chances_of(DataType.INT4, sigma)
    mean = 0.0
    for places in itertools.product(range(len(values)), repeat=rows * k):
        steps = beat_steps(array, values[list(places)].reshape(rows, k))
        assert len(steps) == -(-k // depth)
        mean += np.prod(chances[list(places)]) * max(steps.sum(), least)
    assert expected_steps(array, rows, k, least) == pytest.approx(mean)


@given(st.sampled_from(FORMATS), st.sampled_from([None, 0.3, 5.0, 60.0]), st.integers(1, 4000))
def test_a_beat_of_more_operands_takes_no_fewer_steps(dtype, sigma, operands):
    few, many = (np.array(step_chances(dtype, sigma, count)) for count in (operands, operands + 1))
    assert few.sum() == pytest.approx(1)
    assert few[0] == 0
    assert (np.cumsum(many) <= np.cumsum(few) + 1e-12).all()
