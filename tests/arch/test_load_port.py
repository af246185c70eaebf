"""The load port of an array: a number of rows, or as many as take what the DMA brings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.description import load_chip
from siliconloom.arch.errors import DescriptionError


@given(
    rows=st.integers(1, 64),
    cols=st.integers(1, 64).map(lambda n: 2 * n),
    bus=st.sampled_from([1, 8, 16, 32, 64, 128, 256, 2048]),
    formats=st.sampled_from(["null", "{formats: [int8]}", "{formats: [int4, int8]}"]),
)
def test_a_port_as_the_dma_has_the_fewest_rows_that_take_a_cycle_of_it(rows, cols, bus, formats):
    sets = {"array.rows": rows, "array.cols": cols, "dma.bytes_per_cycle": bus, "array.weights": formats}
    array = load_chip("npu-edge", [(f"tile.{key}", str(value)) for key, value in sets.items()]).tile.array
    bits = 16 if formats == "null" else 4 if "int4" in formats else 8
    legal = [power for power in (2**i for i in range(7)) if rows % power == 0]
    enough = [power for power in legal if power * cols * bits >= 8 * bus]
    assert array.load_rows == (min(enough) if enough else max(legal))


def test_the_port_of_an_array_whose_sums_stay_is_one_row():
    sets = [("dataflow", "output_stationary"), ("weights", "null")]
    chip = load_chip(
        "npu-edge",
        [
            ("tile.vector.format", "null"),
            ("tile.array.cache", "[]"),
            *((f"tile.array.{key}", value) for key, value in sets),
        ],
    )
    assert chip.tile.array.load_rows == 1


@given(st.data())
def test_keys_of_the_array_s_pipeline_change_neither_its_port_nor_its_formats(data):
    kept = load_chip("npu-edge").tile.array
    values = {"multiply_stages": [0, 3], "add_stages": [0, 3], "accumulate_stages": [1, 2, 4], "unpack_stages": [1, 8]}
    values["load_port"] = ["own", "shared"]
    keys = data.draw(st.lists(st.sampled_from(sorted(values)), min_size=1, unique=True))
    sets = [(f"tile.array.{key}", str(data.draw(st.sampled_from(values[key])))) for key in keys]
    array = load_chip("npu-edge", sets).tile.array
    assert (array.load_rows, array.cache) == (kept.load_rows, kept.cache)
    assert len(kept.cache_scaled) == 2


@pytest.mark.parametrize(
    ("name", "sets", "words"),
    [
        ("npu-edge", {"tile.array.load_rows": "3"}, "tile.array.load_rows: must divide rows"),
        ("npu-edge", {"tile.array.load_rows": "dmx"}, "tile.array.load_rows: must be a valid integer"),
        ("npu-edge", {"tile.array.rows": "x"}, "tile.array.rows: must be a valid integer"),
        ("npu-edge", {"tile.array.weights": "{formats: [int9]}"}, "tile.array.weights.formats.0: must be one of"),
        ("npu-edge", {"tile.dma.bytes_per_cycle": "-1"}, "tile.dma.bytes_per_cycle: must be greater"),
        ("systolic-ws-8", {"tile.array.load_rows": "dma"}, "tile.array.load_rows: must be a valid integer"),
    ],
)
def test_what_is_no_port_is_refused_at_its_key(name, sets, words):
    with pytest.raises(DescriptionError) as refused:
        load_chip(name, list(sets.items()))
    assert words in str(refused.value)
