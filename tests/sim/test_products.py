"""Products in floating point as a compiled loop makes them: those of `arch.floats`, sum by sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.datatype import DataType
from siliconloom.arch.floats import chain_product, float_sum, flushed, narrowed, rounded, widened
from siliconloom.sim.golden import products
from siliconloom.sim.golden.products import folded_product, folds_of, panels_product

SHORT = (DataType.BF16, DataType.FP16, DataType.FP8_E4M3, DataType.FP8_E5M2)


@given(
    dtype=st.sampled_from(SHORT),
    m=st.integers(1, 5),
    k=st.integers(1, 20),
    n=st.integers(1, 9),
    rows=st.integers(1, 6),
    depth=st.integers(1, 20),
    near=st.booleans(),
    adds=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_are_those_of_one_after_the_other(dtype, m, k, n, rows, depth, near, adds, seed):
    chance = np.random.default_rng(seed)
    clear = 0x6000 >> (16 - dtype.bits) if near else 0  # exponents near one another: few infinities, and sums near zero

    def operand(*shape):
        return widened(chance.integers(0, 1 << dtype.bits, shape) & ~clear, dtype)

    a, b, order = operand(m, k), operand(k, n), tuple(chance.permutation(rows).tolist())
    total = flushed(chance.integers(0, 1 << 32, (m, n)).astype(np.uint32)) if adds else None
    expected = total
    for start in range(0, k, depth):
        end = min(start + depth, k)
        for first in range(start, end, rows):
            fold = [first + row for row in order if first + row < end]
            part = chain_product(a[:, fold], b[fold])
            expected = part if expected is None else float_sum(expected, part)
    found = folded_product(a, b, folds_of(k, depth, order), total)
    np.testing.assert_array_equal(found, expected)


@given(
    m=st.integers(1, 4),
    k=st.integers(1, 20),
    line=st.integers(1, 9),
    columns=st.integers(1, 40),
    more=st.integers(0, 3),
    rows=st.integers(1, 6),
    room=st.integers(1, 400),
    near=st.booleans(),
    adds=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_panels_are_multiplied_as_they_lie(m, k, line, columns, more, rows, room, near, adds, seed):
    """Panels of more rows than the product has, the last of fewer columns, however many are made at once."""
    chance, clear = np.random.default_rng(seed), 0x6000 if near else 0
    panels, rest = -(-columns // line), columns % line
    last = int(chance.integers(rest, line + 1)) if rest else line
    held = [
        chance.integers(0, 1 << 16, (k + more, last if number == columns // line else line)) for number in range(panels)
    ]
    held = [(panel & ~clear).astype(np.uint16) for panel in held]
    b = np.zeros((k, panels * line), np.uint16)
    for number, panel in enumerate(held):
        b[:, number * line : number * line + panel.shape[1]] = panel[:k]
    a, folds = widened(chance.integers(0, 1 << 16, (m, k)) & ~clear, DataType.BF16), folds_of(k, k, tuple(range(rows)))
    total = flushed(chance.integers(0, 1 << 32, (m, panels * line)).astype(np.uint32))
    expected = folded_product(a, widened(b, DataType.BF16), folds, total if adds else None)
    sums = np.ascontiguousarray(total.view(np.int32).reshape(m, panels, line).transpose(1, 0, 2)).astype(np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "ROOM", room)
        values = np.concatenate([panel.reshape(-1) for panel in held])
        panels_product(a, values, (k + more, columns, last), folds, sums, adds)
    found = sums.transpose(1, 0, 2).reshape(m, -1)
    np.testing.assert_array_equal(found, expected.view(np.int32))


@pytest.mark.slow(seconds=2.5)
@given(st.sampled_from(SHORT), st.integers(0, 2**32 - 1))
def test_what_is_narrowed_quickly_is_what_the_rule_says(dtype, seed):
    """Halfway points and their neighbours, of all sizes, and whatever else 32 bits hold."""
    chance = np.random.default_rng(seed)
    words = chance.integers(0, 1 << 32, 64).astype(np.uint32)
    halves = widened(chance.integers(0, 1 << dtype.bits, 64), dtype) | np.uint32(1 << (22 - dtype.layout.fraction_bits))
    words = np.concatenate([words, halves, halves + np.uint32(1), halves - np.uint32(1)])
    real = flushed(words).view(np.float32).astype(np.float64)
    found = widened(narrowed(words, dtype), dtype)
    np.testing.assert_array_equal(rounded(words, dtype), found)
    found = found.view(np.float32).astype(np.float64)
    numbers = np.sort(widened(np.arange(1 << dtype.bits), dtype).view(np.float32).astype(np.float64))
    numbers = numbers[np.isfinite(numbers)]
    inside = np.abs(real) <= numbers[-1]
    nearest = np.abs(numbers[None] - real[inside, None]).min(1)
    np.testing.assert_array_equal(np.abs(found[inside] - real[inside]), nearest)
