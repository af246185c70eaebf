"""Packed weights: their layout, what codes stand for, and how long they take to load."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from siliconloom.arch import packing as packed
from siliconloom.arch.array import SystolicArray, WeightFormats
from siliconloom.arch.datatype import INTEGER_CODES, MX_ELEMENTS, DataType, Packing
from siliconloom.arch.floats import patterns_of, values_of, widened
from siliconloom.arch.layout import fold_beats
from siliconloom.arch.layout import packed as in_lines_of
from siliconloom.sim.golden.packed import weights_of
from siliconloom.sim.timing.pace import matmul_pace, product_pace
from siliconloom.sim.timing.systolic import ArrayTimeline, gemm_folds, gemm_run


@st.composite
def arrays(draw):
    beat = draw(st.sampled_from([1, 2, 4, 8]))
    rows, cols = beat * draw(st.integers(1, 6)), draw(st.sampled_from([2, 4, 7, 8, 12, 16, 20]))
    assume(beat * cols % 2 == 0)
    formats = draw(st.sampled_from([INTEGER_CODES, (*INTEGER_CODES, *MX_ELEMENTS)]))
    weights = WeightFormats(formats=formats, minima=draw(st.booleans()))
    return SystolicArray(
        rows=rows,
        cols=cols,
        dataflow="weight_stationary",
        operands=[draw(st.sampled_from(["bf16", "fp16"]))],
        load_rows=beat,
        weights=weights,
    )


@st.composite
def packings(draw, array):
    group = draw(st.sampled_from([size for size in (1, 2, 4, 8, 16, 32, 64) if size % array.load_rows == 0]))
    return Packing(draw(st.sampled_from(array.weights.formats)), group)


CUT = {DataType.FP4_E2M1: 1 - 6 / 8, DataType.FP8_E4M3: 1 - 448 / 512, DataType.FP8_E5M2: 1 - 57344 / 65536}
"""The part of the largest number of a block that its largest element may leave out: scales are powers of two."""
sizes = st.tuples(st.integers(1, 30), st.integers(1, 45), st.integers(1, 130))


@given(st.data(), arrays(), sizes, st.integers(0, 1))
def test_what_is_packed_is_found_again(data, array, shape, narrow):
    packing, (_, n, k) = data.draw(packings(array)), shape
    values = np.random.default_rng(k).standard_normal((k, n))
    weights = packed.quantised(values, packing, packed.has_minima(array, packing.dtype))
    held = packed.packed_weights(array, packing, weights, narrow)
    assert len(held) == packed.weight_bytes(array, packing, n, k, narrow)
    found = packed.unpacked_weights(array, packing, held, n, k, narrow)
    for mine, theirs in zip(found, weights, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            np.testing.assert_array_equal(mine[:, :n], theirs)
            assert not mine[:, n:].any()


@given(st.data(), arrays(), sizes)
def test_values_are_near_and_groups_do_not_know_of_each_other(data, array, shape):
    packing, (_, n, k) = data.draw(packings(array)), shape
    numbers = np.random.default_rng(n)
    values = numbers.standard_normal((k, n)) * 2.0 ** numbers.integers(-4, 4, (k, n))
    dtype = array.circuit_format
    minima = packed.has_minima(array, packing.dtype)
    found = values_of(packed.unpacked(packed.quantised(values, packing, minima), packing, dtype), dtype)
    for start in range(0, k, packing.group):
        own = slice(start, start + packing.group)
        peak = np.abs(values[own]).max(0)
        if packing.dtype in MX_ELEMENTS:
            # half a place of the largest number, or the quarter of it that is beyond the largest element, at most
            most = peak * np.maximum(2.0 ** -(1 + packing.dtype.layout.fraction_bits), CUT[packing.dtype])
            assert (np.abs(found[own] - values[own]) <= most * (1 + 2.0**-6)).all()
            continue
        spread = np.ptp(values[own], axis=0) if minima else 2 * peak
        steps = (1 << packing.dtype.bits) - 1
        # half a step, a last code that is cut off without minima, and the rounding of scales, minima and operands;
        # and scales below the normal numbers of fp16, which are 2^-24 apart
        most = spread / steps * (1.01 if minima else 1.6) + peak * 2.0**-7 + (steps + 1) * 2.0**-25
        assert (np.abs(found[own] - values[own]) <= most).all()


@given(st.integers(0, 1000), st.sampled_from(["Q4_1", "Q4_0", "Q8_0"]))
def test_what_was_made_of_such_groups_loses_nothing(seed, kind):
    """As GGUF files store them: codes with every end of their range in use."""
    numbers = np.random.default_rng(seed)
    scales = numbers.uniform(0.01, 2, (3, 1, 5)).astype(np.float16).astype(np.float32)
    minima = numbers.uniform(-3, 1, (3, 1, 5)).astype(np.float16).astype(np.float32)
    if kind == "Q4_1":
        codes = numbers.integers(0, 16, (3, 32, 5))
        codes[:, :2] = np.array([0, 15])[:, None]
        values = codes * scales + minima
    elif kind == "Q4_0":
        codes = numbers.integers(-8, 8, (3, 32, 5))
        codes[:, 3] = -8
        values = codes * scales * numbers.choice([-1, 1], (3, 1, 5))
    else:
        codes = numbers.integers(-127, 128, (3, 32, 5))
        codes[:, 7] = 127
        values = codes * scales
    values = values.reshape(96, 5).astype(np.float32)
    packing = Packing(DataType.INT8 if kind == "Q8_0" else DataType.INT4, 32)
    found = packed.unpacked(packed.quantised(values, packing, kind == "Q4_1"), packing, DataType.BF16)
    np.testing.assert_array_equal(found, patterns_of(values, DataType.BF16))


@pytest.mark.slow(seconds=2)
@given(st.data(), arrays(), sizes, st.integers(0, 1))
def test_the_golden_kernel_has_the_same_numbers(data, array, shape, narrow):
    """Of any bytes: scales that are infinite, subnormal or no numbers, too."""
    packing, (_, n, k) = data.draw(packings(array)), shape
    count = packed.weight_bytes(array, packing, n, k, narrow)
    held = np.random.default_rng(count).integers(0, 256, count).astype(np.uint8)
    found = packed.unpacked(packed.unpacked_weights(array, packing, held, n, k, narrow), packing, array.circuit_format)
    made = weights_of(array, packing, held, n, k, narrow)
    assert made.shape == (k, -(-n // array.cols) * array.cols)
    wide = found.shape[1]
    np.testing.assert_array_equal(made[:, :wide], widened(found, array.circuit_format))
    assert wide >= n


@given(arrays(), sizes, st.integers(0, 1))
def test_operands_in_the_array_s_own_format_lie_as_elements_do(array, shape, narrow):
    """A last panel in narrow lines, too: as many bytes, and the golden kernel finds each number again."""
    (_, n, k), packing = shape, Packing(array.circuit_format, 0)
    patterns = patterns_of(np.random.default_rng(n * k).standard_normal((k, n)), packing.dtype)
    held = in_lines_of(array, patterns, narrow).view(np.uint8)
    assert len(held) == packed.weight_bytes(array, packing, n, k, narrow)
    found = weights_of(array, packing, held, n, k, narrow)[:, :n]
    np.testing.assert_array_equal(found, widened(patterns, packing.dtype))


@given(st.data(), arrays(), sizes)
def test_a_narrow_panel_of_groups_is_one_of_a_narrower_array(data, array, shape):
    """Where it may be: its columns are a power of two, their headers come in one read, and lines begin with parts."""
    packing, (_, n, k) = data.draw(packings(array)), shape
    rest, least = n % array.cols, packed.least_columns(array, packing.dtype)
    wide = max(1 << (rest - 1).bit_length(), least) if rest else array.cols
    taken, whole = (packed.weight_bytes(array, packing, n, k, narrow) for narrow in (1, 0))
    if not packed.may_be_narrow(array, packing) or wide >= array.cols:
        assert taken == whole
        return
    slim = array.model_copy(update={"cols": wide})
    assert taken == whole - packed.panel_bytes(array, packing, k) + packed.panel_bytes(slim, packing, k)
    assert packed.granule(slim, packing.dtype) * array.cols == packed.granule(array, packing.dtype) * wide
    assert packed.header_lines(slim, packing.dtype) == packed.header_lines(array, packing.dtype)
    assert not array.load_rows * wide * packing.dtype.bits % 8


@given(st.data(), arrays(), st.integers(1, 40), st.integers(1, 300), st.integers(0, 5))
def test_tiles_of_whole_groups_adjoin(data, array, n, rest, whole):
    """What a mapping relies on: rows of whole folds and groups take their share of a panel."""
    packing = data.draw(packings(array))
    start = whole * np.lcm(array.rows, packing.group)
    parts = (packed.weight_bytes(array, packing, n, int(k)) for k in (start, rest))
    assert sum(parts) == packed.weight_bytes(array, packing, n, int(start + rest))


@given(st.data(), arrays(), sizes)
def test_headers_take_their_cycles(data, array, shape):
    """The closed form is the sum over folds, and a fold has a header for each group that begins in it."""
    packing, (m, n, k) = data.draw(packings(array)), shape
    listed = packed.fold_loads(array, k, packing)
    found = packed.loads(array, k, packing)
    assert found.beats == sum(listed)
    assert found.first == listed[0]
    lines = packed.header_lines(array, packing.dtype)
    plain = [fold_beats(array, min(array.rows, k - start)) for start in range(0, k, array.rows)]
    # a group's rows may end within a beat only where the panel ends
    assert sum(listed) - sum(plain) == lines * -(-sum(plain) // packed.group_beats(array, packing))
    assert lines == -(-packed.header_bytes(array, packing.dtype) // packed.line_bytes(array))
    folds, run = gemm_folds(array, m, n, k, packing), gemm_run(array, m, n, k, packing)
    timeline = ArrayTimeline(array)
    last = [timeline.fold(fold, 0) for fold in folds][-1]
    assert ArrayTimeline(array).run(run, 0).last_output == last.last_output
    assert run.stationary_beats == sum(fold.load_beats for fold in folds)
    pace = matmul_pace(array, *(np.array([size]) for size in (m, n, k)), packing)
    assert pace[0] == product_pace(array, m, n, k, packing)


@given(st.integers(0, 1000), st.sampled_from(MX_ELEMENTS))
def test_elements_of_mx_blocks_are_those_of_another_library(seed, dtype):
    """Every pattern, and every rounding, by ``ml_dtypes``; a block's own numbers come back bit for bit."""
    theirs = {"fp4_e2m1": "float4_e2m1fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}[dtype.value]
    patterns = np.arange(1 << dtype.bits, dtype=np.uint8)
    wanted = patterns.view(getattr(ml_dtypes, theirs)).astype(np.float32)
    np.testing.assert_array_equal(values_of(patterns, dtype), wanted)
    numbers = np.random.default_rng(seed)
    exponents = numbers.integers(1, 255, (2, 1, 5))
    scales = exponents.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    elements = numbers.choice(wanted[np.isfinite(wanted)], (2, 32, 5)).astype(np.float64)
    elements[:, 3] = np.max(wanted[np.isfinite(wanted)])
    found = packed.quantised((elements * scales).reshape(64, 5), Packing(dtype, 32), minima=False)
    np.testing.assert_array_equal(found.scales, exponents[:, 0])
    np.testing.assert_array_equal(values_of(found.codes, dtype), elements.reshape(64, 5))
    between = numbers.uniform(-1.2, 1.2, 500).astype(np.float32) * np.float32(elements.max())
    near = np.clip(between, -elements.max(), elements.max()).astype(getattr(ml_dtypes, theirs)).astype(np.float32)
    np.testing.assert_array_equal(
        values_of(patterns_of(np.clip(between, -elements.max(), elements.max()), dtype), dtype), near
    )


def test_bits_of_a_weight():
    """An edge tile's W4A16 in groups of 32 has five bits a weight, as Q4_1 has, and 4.25 in groups of 128.

    MXFP4 has 4.25 as it should where its headers are not filled up to longer beats.
    """
    weights = WeightFormats(formats=("int4", "fp4_e2m1"))
    kinds = (
        (8, DataType.INT4, 32, 5.0),
        (8, DataType.INT4, 128, 4.25),
        (2, DataType.FP4_E2M1, 32, 4.25),
        (4, DataType.FP4_E2M1, 32, 4.5),
        (8, DataType.FP4_E2M1, 32, 5.0),
    )
    for load_rows, dtype, group, bits in kinds:
        array = SystolicArray(
            rows=16, cols=16, dataflow="weight_stationary", operands=["bf16"], load_rows=load_rows, weights=weights
        )
        size = packed.weight_bytes(array, Packing(dtype, group), 4096, 4096)
        assert 8 * size / 4096**2 == bits


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"dataflow": "output_stationary", "load_rows": 1}, "weight stationary"),
        ({"operands": ["fp8_e4m3"]}, "int8, bf16 or fp16"),
        ({"load_rows": 3, "rows": 9}, "power of two"),
        ({"load_rows": 1, "cols": 7}, "even number"),
    ],
)
def test_arrays_that_cannot_take_packed_weights_say_why(changes, rule):
    given = {"rows": 8, "cols": 8, "dataflow": "weight_stationary", "operands": ["bf16"], "load_rows": 2}
    with pytest.raises(ValueError, match=rule):
        SystolicArray.model_validate(given | {"weights": {"formats": ["int4"]}} | changes)


@given(st.integers(0, 100), st.booleans(), st.sampled_from([DataType.INT4, DataType.INT8]))
def test_finite_weights_stay_finite(seed, minima, dtype):
    """However large: scales and minima have the range of fp16."""
    values = np.random.default_rng(seed).standard_normal((16, 3)) * 10.0 ** np.random.default_rng(seed).integers(0, 9)
    found = packed.unpacked(packed.quantised(values, Packing(dtype, 8), minima), Packing(dtype, 8), DataType.BF16)
    assert np.isfinite(values_of(found, DataType.BF16)).all()


@pytest.mark.parametrize("dtype", MX_ELEMENTS)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_block_with_a_weight_that_is_not_finite_is_no_numbers(dtype, odd):
    values = np.ones((64, 3))
    values[5, 1] = odd
    weights = packed.quantised(values, Packing(dtype, 32), minima=False)
    assert (weights.scales == packed.NO_SCALE).tolist() == [[False, True, False], [False, False, False]]
    found = values_of(packed.unpacked(weights, Packing(dtype, 32), DataType.BF16), DataType.BF16)
    assert np.isnan(found[:32, 1]).all()
    assert (found[:, [0, 2]] == 1).all()
    assert (found[32:, 1] == 1).all()
