"""How stationary operands lie in memory: the whole operand at once against fold by fold."""

from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.layout import (
    blocks_of,
    filled_values,
    fold_tile,
    line_values,
    next_power,
    packed,
    panels_of_sums,
    product_values,
    row_values,
    stationary_values,
    sums_bytes,
    sums_line,
    sums_split,
    unpacked,
)


@given(
    rows=st.sampled_from([4, 8, 12]),
    cols=st.integers(1, 9),
    load_rows=st.sampled_from([1, 2, 4]),
    k=st.integers(1, 40),
    outer=st.integers(1, 30),
)
def test_an_operand_lies_fold_by_fold(rows, cols, load_rows, k, outer):
    sets = {"tile.array.rows": rows, "tile.array.cols": cols, "tile.array.load_rows": load_rows}
    array = load_chip("npu-edge-int8", [(key, str(value)) for key, value in sets.items()]).tile.array
    operand = np.random.default_rng(0).integers(-128, 128, (k, outer)).astype(np.int8)
    folds = [
        fold_tile(array, operand[fold : fold + rows, panel : panel + cols]).reshape(-1)
        for panel in range(0, outer, cols)
        for fold in range(0, k, rows)
    ]
    held = packed(array, operand)
    np.testing.assert_array_equal(held, np.concatenate(folds))
    np.testing.assert_array_equal(unpacked(array, held, k)[:, :outer], operand)


@cache
def tile_of(rows, cols, lanes, dataflow="weight_stationary", load_rows=1):
    sets = {"dataflow": dataflow, "rows": rows, "cols": cols, "load_rows": load_rows}
    pairs = [(f"tile.array.{key}", str(value)) for key, value in sets.items()]
    return load_chip("npu-edge-int8", [*pairs, ("tile.vector.lanes", str(lanes))]).tile


@given(cols=st.integers(1, 20), load_rows=st.sampled_from([1, 2, 4]), k=st.integers(1, 40), outer=st.integers(1, 50))
def test_the_last_panel_of_a_narrow_operand_lies_in_lines_of_the_next_power_of_two(cols, load_rows, k, outer):
    array = tile_of(8, cols, 8, load_rows=load_rows).array
    operand = np.random.default_rng(0).integers(-128, 128, (k, outer)).astype(np.int8)
    held = packed(array, operand, narrow=1)
    whole, rest = outer // cols * cols, outer % cols
    last = np.zeros((-(-k // load_rows) * load_rows, min(next_power(rest), cols) if rest else 0), np.int8)
    last[:k, :rest] = operand[:, whole:]
    np.testing.assert_array_equal(held, np.concatenate([packed(array, operand[:, :whole]), last.reshape(-1)]))
    assert len(held) == stationary_values(array, outer, k, narrow=1)
    np.testing.assert_array_equal(unpacked(array, held, k, outer, narrow=1)[:, :outer], operand)


@given(rows=st.integers(1, 20), m=st.integers(1, 50), k=st.integers(1, 30))
def test_the_last_block_of_narrow_rows_lies_in_lines_of_the_next_power_of_two(rows, m, k):
    array = tile_of(rows, 8, 8, "output_stationary").array
    operand = np.random.default_rng(0).integers(-128, 128, (m, k)).astype(np.int8)
    held = blocks_of(array, operand, narrow=1).view(np.int8)
    whole, rest = m // rows * rows, m % rows
    last = np.zeros((k, min(next_power(rest), rows) if rest else 0), np.int8)
    last[:, :rest] = operand[whole:].T
    blocks = [operand[first : first + rows].T.reshape(-1) for first in range(0, whole, rows)]
    np.testing.assert_array_equal(held, np.concatenate([*blocks, last.reshape(-1)]))


@given(
    side=st.sampled_from([2, 4, 8, 16, 64]),
    lanes=st.sampled_from([2, 4, 8, 64]),
    dataflow=st.sampled_from(["weight_stationary", "input_stationary", "output_stationary"]),
    sizes=st.tuples(*[st.integers(0, 63)] * 3),
)
def test_what_uses_half_of_an_array_takes_no_more_room_than_on_one_of_half_the_size(side, lanes, dataflow, sizes):
    """Where an operand is a part of a line it takes as much of it as of a smaller one; so does a row."""
    m, n, k = (1 + size % min(side, lanes) for size in sizes)
    half, whole = tile_of(side, side, lanes, dataflow), tile_of(2 * side, 2 * side, 2 * lanes, dataflow)
    for small, large in zip(product_values(half, m, n, k, 1)[:2], product_values(whole, m, n, k, 1)[:2], strict=True):
        assert large == small
    assert row_values(whole, n, narrow=1) == row_values(half, n, narrow=1)


@given(values=st.lists(st.integers(1, 3000), min_size=1), line=st.integers(1, 300), narrow=st.integers(0, 1))
def test_sizes_of_many_operands_are_those_of_each(values, line, narrow):
    many, tile = np.array(values, np.int64), tile_of(16, 16, 32)
    assert line_values(many, line, narrow).tolist() == [line_values(each, line, narrow) for each in values]
    assert filled_values(many, line, narrow).tolist() == [filled_values(each, line, narrow) for each in values]
    assert row_values(tile, many, narrow).tolist() == [row_values(tile, each, narrow) for each in values]


@given(
    cols=st.sampled_from([1, 2, 3, 4, 8, 12, 64]),
    outer=st.integers(1, 200),
    beats=st.integers(1, 20),
    less=st.integers(0, 3),
    begin=st.integers(0, 7),
)
def test_sums_lie_in_as_many_words_as_their_bytes_say_and_in_none_twice(cols, outer, beats, less, begin):
    array = load_chip("npu-edge-int8", [("tile.array.cols", str(cols))]).tile.array
    split = max(sums_split(array, outer) - less, 0)
    held = np.zeros((200 // cols + 2) * beats * cols + 8 * cols, np.int64)
    held = held[: len(held) // cols * cols].reshape(-1, cols)
    line = 4 * sums_line(array, split)
    address = line * begin % (4 * cols) if split and outer <= cols else 0
    panels = panels_of_sums(array, held, address, outer, beats, split)
    for panel in panels:
        panel += 1
    assert held.max() == 1
    assert sum(panel.shape[1] for panel in panels) >= outer
    assert {len(panel) for panel in panels} == {beats}
    if cols & cols - 1 == 0:
        assert 4 * held.sum() == sums_bytes(array, outer, beats, split)
        first = int(np.argmax(held.reshape(-1)))
        assert 4 * first == address
        assert held.reshape(-1)[first : first + held.sum()].all()


@given(
    cols=st.sampled_from([1, 3, 8, 12, 64]), outer=st.lists(st.integers(1, 300), min_size=1), beats=st.integers(1, 9)
)
def test_bytes_of_many_sums_are_those_of_each(cols, outer, beats):
    array = load_chip("npu-edge-int8", [("tile.array.cols", str(cols))]).tile.array
    many = np.array(outer)
    splits = sums_split(array, many)
    assert splits.tolist() == [sums_split(array, each) for each in outer]
    found = sums_bytes(array, many, beats, splits)
    assert found.tolist() == [sums_bytes(array, each, beats, sums_split(array, each)) for each in outer]


@given(cols=st.sampled_from([4, 16, 64]), outer=st.integers(1, 300), beats=st.integers(1, 50))
def test_sums_of_an_array_of_twice_the_columns_take_no_more(cols, outer, beats):
    """But of columns that take more than half of the wider line, or less than an eighth of it."""
    small, large = (load_chip("npu-edge-int8", [("tile.array.cols", str(c))]).tile.array for c in (cols, 2 * cols))
    taken = [sums_bytes(array, outer, beats, sums_split(array, outer)) for array in (small, large)]
    rest = outer % (2 * cols)
    assert taken[1] <= taken[0] or cols < rest or rest <= cols // 4
