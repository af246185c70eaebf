"""Parameters in main memory: parts of a tile lie one behind the other, and hold all of its columns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.datatype import DataType
from siliconloom.arch.layout import filled_values, is_power, line_values, packed, panel_rows
from siliconloom.arch.vector import VectorFunction
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip.gemm_layout import GemmLayout, GemmShape, in_beats
from siliconloom.mapper.chip.lowering import segments
from siliconloom.mapper.chip.panels import PanelLayout
from tests.mapper.chip.test_improvements import gemm


def chip_of(rows, cols, bus, access, dataflow="weight_stationary", load_rows=1):
    sets = {
        "tile.array.dataflow": dataflow,
        "tile.array.rows": rows,
        "tile.array.cols": cols,
        "tile.array.load_rows": load_rows,
        "tile.dma.bytes_per_cycle": bus,
        "memory.dram.access_bytes": access,
    }
    return load_chip("npu-edge-int8", [(key, str(value)) for key, value in sets.items()])


def panels_of(chip, n, k, gated=False):
    functions = (VectorFunction.REQUANTIZE, VectorFunction.GATED_SILU) if gated else (VectorFunction.REQUANTIZE,)
    shape = GemmShape(1, 1, n, k, DataType.INT8, True, functions, gated, False)
    return PanelLayout(chip, GemmLayout(chip.tile, shape))


@pytest.mark.slow(seconds=1)
@settings(max_examples=200, deadline=None)
@given(
    rows=st.sampled_from([4, 8, 32]),
    cols=st.sampled_from([4, 10, 16, 64]),
    bus=st.sampled_from([4, 16, 64]),
    access=st.sampled_from([4, 16, 64]),
    dataflow=st.sampled_from(["weight_stationary", "output_stationary"]),
    half=st.integers(1, 150),
    gated=st.booleans(),
    load_rows=st.sampled_from([1, 2, 4]),
    k=st.integers(1, 70),
)
def test_parts_of_a_tile_follow_one_another_and_hold_its_columns(
    rows, cols, bus, access, dataflow, half, gated, load_rows, k
):
    chip = chip_of(rows, cols, bus, access, dataflow, 1 if dataflow == "output_stationary" else load_rows)
    n = 2 * half if gated else half
    panels = panels_of(chip, n, k, gated)
    parts, end, held = panels.parts(n, k), 0, set()
    for part in parts:
        assert part.memory == end
        end += part.rows * part.width
        for row in range(part.rows):
            place = range(part.local + row * part.pitch, part.local + row * part.pitch + part.width)
            assert held.isdisjoint(place)
            held |= set(place)
    assert end == panels.tile(n, k) <= panels.layout.b_tile(n, k)
    height = panel_rows(chip.tile.array, k) if dataflow == "weight_stationary" else k
    for number in range(2 if gated else 1):
        narrow = is_power(cols) or number == gated
        first = number * filled_values(half, cols, int(is_power(cols))) * height
        if is_power(cols) and number:
            first = panels.layout.b_tile(n, k) // 2
            beat = cols * chip.tile.array.load_rows if half > cols else 1
            assert first % beat == 0 <= first - filled_values(half, cols, 1) * height < beat
        for column in range(half):
            at = first + column // cols * cols * height + column % cols
            line = line_values(half % cols, cols) if narrow and column // cols == half // cols else cols
            assert all(at + row * line in held for row in range(k))
    alike, others = panels.spread(np.full((1, 1, 1), n, np.int64), np.full((1, 1, 1), k, np.int64))
    assert alike.item() == sum(part.width for part in parts if part.pitch == part.width)
    apart = sum(part.rows * part.width for part in parts if part.pitch != part.width)
    assert sum((rows * width).item() for rows, width, _ in others) == apart


@pytest.mark.slow(seconds=1)
@settings(max_examples=200, deadline=None)
@given(
    rows=st.sampled_from([4, 8, 32]),
    bus=st.sampled_from([4, 16, 64]),
    access=st.sampled_from([4, 16, 64]),
    n=st.integers(1, 300),
    k=st.integers(1, 70),
    cols=st.sampled_from([4, 10, 16, 64]),
    data=st.data(),
)
def test_tiles_of_parts_of_a_panel_take_no_more_room_than_one_tile(rows, bus, access, n, k, cols, data):
    chip = chip_of(rows, cols, bus, access)
    tile = data.draw(st.sampled_from([cols >> part for part in range(3 if is_power(cols) else 1)]))
    panels = panels_of(chip, n, k)
    parts = [panels.pitch(part.size) * part.count for part in segments(n, tile)]
    room = panels.room(n, k)
    assert sum(parts) <= room
    assert room % bus == 0 or room < 8 * bus  # what is repeated begins with a whole beat, too
    layout = GemmLayout(chip.tile, panels.layout.shape)
    assert sum(layout.columns(part.size) * part.count for part in segments(n, tile)) <= layout.scales(n)


@given(bus=st.sampled_from([1, 4, 16, 64, 2048, 48]), size=st.integers(0, 1 << 20))
def test_what_is_filled_up_to_beats_adds_an_eighth_at_most(bus, size):
    filled = in_beats(size, bus)
    assert size <= filled <= size + size // 8
    assert in_beats(np.array([size]), bus).tolist() == [filled]
    if size >= 8 * bus:
        assert filled % bus == 0
    if is_power(bus):  # a wider bus keeps what a narrower one aligns
        assert filled % min(bus, 1 << max((size // 8).bit_length() - 1, 0)) == 0


def test_a_tile_is_what_the_array_takes_where_nothing_is_narrower():
    chip = chip_of(8, 16, 16, 64)  # an access is longer than a line
    panels = panels_of(chip, 21, 24)
    assert panels.parts(21, 24) == [(0, 0, 1, 576, 576)]
    assert len(packed(chip.tile.array, np.zeros((24, 21), np.int8), narrow=1)) == 576


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(("m", "n", "k"), [(4, 64, 2048), (1, 65, 300), (7, 200, 64)])
def test_bytes_of_a_tiling_are_those_that_its_program_moves(m, n, k):
    done = simulate(chip_of(16, 128, 16, 16), gemm(m, n, k))
    (task,) = done.plan.tasks
    assert task.tiles == 1
    assert (task.tiling.read_bytes, task.tiling.write_bytes) == tuple(done.run.traffic[0, 0, :2].tolist())


@settings(max_examples=60, deadline=None)
@given(
    cols=st.sampled_from([10, 24, 60, 120]), n=st.integers(200, 2000), k=st.integers(200, 900), wide=st.integers(1, 3)
)
def test_panels_that_have_no_parts_take_no_room_for_some(cols, n, k, wide):
    """Room for tiles of one column of 120 was up to four and a half times what is read: no tile is so narrow there."""
    panels = panels_of(chip_of(8, cols, 128, 64), n, k)
    tiles = [panels.pitch(part.size) * part.count for part in segments(n, wide * cols)]
    room, read = panels.room(n, k), -(-k // 8) * 8 * n * panels.layout.shape.dtype.size(1)
    assert sum(tiles) <= room
    assert room <= 1.15 * read * (n + cols) / n
