"""What a chip takes of silicon beside published dies, and that larger chips take more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.area import (
    FLOOR_PLAN,
    PARTS,
    PUBLISHED,
    chip_area,
    element_transistors,
    logic_area,
    published_area,
    sram_area,
)
from siliconloom.arch.datatype import DataType
from siliconloom.evaluate.chip import simulate


@pytest.mark.parametrize("die", PUBLISHED, ids=lambda die: die.name)
def test_what_is_counted_of_a_published_die_is_what_the_text_says(die):
    """None of them is in the model, which has its two factors from the floor plan of TPU v1."""
    assert 1 / 2.6 < published_area(die) / die.mm2 < 1 / 0.8


def test_the_floor_plan_is_what_the_factors_come_from():
    node, die, elements_share, elements, buffer_share, capacity = FLOOR_PLAN
    assert logic_area(elements * element_transistors(DataType.INT8), node) == pytest.approx(die * elements_share)
    assert sram_area(capacity, node) == pytest.approx(die * buffer_share)


LARGER = [
    ("tile.array.rows", "array"),
    ("tile.array.cols", "array"),
    ("tile.vector.lanes", "vector"),
    ("tile.scratchpad.capacity", "scratchpad"),
    ("tile.accumulator.capacity", "accumulator"),
    ("tile.sequencer.program_words", "program"),
]


@given(st.sampled_from(LARGER), st.sampled_from(["45nm", "7nm"]))
def test_twice_of_something_takes_twice_its_area_and_no_other(larger, technology):
    key, part = larger
    chip = load_chip("npu-edge", [("technology", technology), ("clock", "100 MHz")])
    value = chip
    for name in key.split("."):
        value = getattr(value, name)
    unit = " B" if key.endswith("capacity") else ""
    sets = [("technology", technology), ("clock", "100 MHz"), (key, f"{2 * value}{unit}")]
    before, after = chip_area(chip), chip_area(load_chip("npu-edge", sets))
    assert after[part] == pytest.approx(2 * before[part])
    assert all(after[other] == before[other] for other in PARTS if other != part)


def test_tiles_and_nodes():
    one, four = (chip_area(load_chip("npu-edge-int8", [("tile_count", str(n))])) for n in (1, 4))
    assert four == pytest.approx({part: 4 * square for part, square in one.items()})
    older = chip_area(load_chip("npu-edge-int8", [("technology", "45nm")]))
    assert older["array"] / one["array"] == pytest.approx(0.16 / 0.0092)
    assert older["scratchpad"] / one["scratchpad"] == pytest.approx(0.346 / 0.027)


def test_a_result_has_the_area_of_the_chip_that_was_described():
    area = simulate("npu-edge-int8", "gpt2-block-gemms").result()["area"]
    assert area["parts"] == chip_area(load_chip("npu-edge-int8"))
    assert area["mm2"] == pytest.approx(sum(area["parts"].values()))
    assert area["excludes"]
