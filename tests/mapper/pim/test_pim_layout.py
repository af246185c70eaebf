"""Matrices in the rows of a PIM channel: what the macros compute from them is the product."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from siliconloom.arch import LoomError, NotSupported, load_chip
from siliconloom.arch.datatype import DataType
from siliconloom.arch.floats import patterns_of, values_of
from siliconloom.arch.pim import check_macro
from siliconloom.mapper.pim.layout import plan_gemv
from siliconloom.sim.golden.pim import GoldenPim
from tests.sim.pim_tiles import random_pim

HBM = load_chip("pim-hbm").tile


def product(tile, layout, matrix, vector):
    """What the golden channel makes of a layout."""
    rows = layout.place(matrix)
    assert all(row.size == tile.dram.organization.row_bytes for row in rows.values())
    machine = GoldenPim(tile, rows)
    macros = layout.macros()
    for macro in macros:
        check_macro(tile, macro)
    machine.run(macros, vectors=layout.vectors(vector))
    return layout.collect(machine.results)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), k=st.integers(1, 300), heads=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_integers_are_the_product_exactly(seed, n, k, heads):
    tile = random_pim(seed, operands="[int8]").tile
    k = k if heads == 1 else k % 24 + 1
    numbers = np.random.default_rng(seed)
    matrix = numbers.integers(-128, 128, (heads, n, k), dtype=np.int8)
    vector = numbers.integers(-128, 128, (heads, k), dtype=np.int8)
    try:
        layout = plan_gemv(tile, n, k, DataType.INT8, heads=heads)
    except (LoomError, NotSupported):
        return
    exact = np.einsum("hnk,hk->hn", matrix.astype(np.int64), vector.astype(np.int64))
    assert (product(tile, layout, matrix, vector) == exact).all()


@pytest.mark.slow(seconds=1)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 20), k=st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_floats_are_the_product_within_their_rounding(seed, n, k):
    """No sum has more roundings than terms (Higham, Accuracy and Stability, 2nd ed., equation 4.4)."""
    tile = random_pim(seed, operands="[bf16]").tile
    numbers = np.random.default_rng(seed)
    matrix, vector = (patterns_of(numbers.standard_normal(shape), DataType.BF16) for shape in ((n, k), (k,)))
    try:
        layout = plan_gemv(tile, n, k, DataType.BF16)
    except LoomError:
        return
    a, b = values_of(matrix, DataType.BF16).astype(np.float64), values_of(vector, DataType.BF16).astype(np.float64)
    bound = 1.01 * k * 2.0**-24 * (np.abs(a) @ np.abs(b)) + 1e-35
    assert (np.abs(product(tile, layout, matrix, vector)[0] - a @ b) <= bound).all()


def test_short_vectors_share_rows_long_ones_take_several_and_longer_ones_are_cut():
    each, row = HBM.burst_elements(DataType.BF16), HBM.row_columns
    keys = plan_gemv(HBM, 256, 64, DataType.BF16).parts[0].macro
    assert (keys.segments, keys.columns, keys.rounds, keys.chunks) == (4, 4, 4, 1)
    long = plan_gemv(HBM, 16, 2 * row * each - each, DataType.BF16).parts[0].macro
    assert (long.chunks, long.columns, long.last_columns, long.segments) == (2, row, row - 1, 1)
    cut = plan_gemv(HBM, 16, 5 * row * each, DataType.BF16)
    assert [p.elements for p in cut.parts] == [2 * row * each, 2 * row * each, row * each]
    assert [p.macro.row for p in cut.parts] == [0, 2, 4]
    assert cut.rows == 5


def test_heads_stand_side_by_side_with_vectors_of_their_own():
    layout = plan_gemv(HBM, 32, 64, DataType.BF16, heads=6)
    assert [(p.macro.segments, p.macro.apart, p.macro.rounds) for p in layout.parts] == [(4, True, 2), (2, True, 2)]
    numbers = np.random.default_rng(1)
    keys, queries = (patterns_of(numbers.standard_normal(s), DataType.BF16) for s in ((6, 32, 64), (6, 64)))
    found = product(HBM, layout, keys, queries)
    exact = np.einsum(
        "hnk,hk->hn", values_of(keys, DataType.BF16).astype(np.float64), values_of(queries, DataType.BF16)
    )
    assert np.abs(found - exact).max() < 1e-4


def test_macros_keep_their_arrival():
    assert {m.arrival for m in plan_gemv(HBM, 4, 4, DataType.INT8).macros(77)} == {77}


@pytest.mark.parametrize(
    ("n", "k", "heads", "dtype", "told"),
    [
        (0, 4, 1, DataType.BF16, "n must be at least 1"),
        (4, 0, 1, DataType.BF16, "k must be at least 1"),
        (4, 4, 0, DataType.BF16, "heads must be at least 1"),
        (16 * 32768 * 4 + 1, 512, 1, DataType.BF16, "gemv: rounds must be in 1..32768"),
        (4, 4, 1, DataType.FP16, "not supported: fp16 operands"),
        (4, 1024, 2, DataType.BF16, "not supported: several heads with vectors of 1024 elements"),
    ],
)
def test_what_does_not_fit_is_refused(n, k, heads, dtype, told):
    with pytest.raises(LoomError, match=told):
        plan_gemv(HBM, n, k, dtype, heads=heads)


def test_a_layout_that_ends_beyond_the_last_row_is_refused():
    last = HBM.dram.organization.rows - 1
    assert plan_gemv(HBM, 16, 512, DataType.BF16, row=last).rows == 1
    with pytest.raises(LoomError, match="gemv: row must be in"):
        plan_gemv(HBM, 17, 512, DataType.BF16, row=last)
    assert structs.asdict(plan_gemv(HBM, 17, 512, DataType.BF16, row=last - 1).parts[0])["first"] == 0
