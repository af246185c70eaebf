"""Advice on what would make a tile fit an FPGA: its rules beside what Yosys made of tiles of several sizes."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.evaluate.smaller import KEYS, block_rams, estimate, halved, smaller
from siliconloom.rtl.synthesis.area import ModuleArea
from siliconloom.rtl.synthesis.devices import PARTS, excess

AREAS = json.loads((Path(__file__).parent / "tile_areas.json").read_text(encoding="utf-8"))
"""What ``loom synth npu-edge-int8 --part ecp5-85 --seeds 0`` said of the tile as it is, and with keys set."""
WHOLE, QUARTER, SMALLEST = AREAS
OFF = 0.1
"""Share of the LUTs by which the rule of scaling may be off."""


def area(row):
    chip = load_chip("npu-edge-int8", [(key, str(value)) for key, value in row["sets"].items()])
    modules = [ModuleArea(tuple(m["module"].split("/")), *m["figures"]) for m in row["modules"]]
    return chip, row["used"], modules


@pytest.mark.parametrize(("known", "asked"), [(WHOLE, QUARTER), (QUARTER, WHOLE), (QUARTER, SMALLEST)])
def test_another_size_is_what_it_was_synthesized_to(known, asked):
    chip, used, modules = area(known)
    other, wanted, _ = area(asked)
    found = estimate(chip, other, used, modules)
    assert found["LUT"] == pytest.approx(wanted["LUT"], rel=OFF)
    assert found["MULT18X18D"] == pytest.approx(wanted["MULT18X18D"], rel=OFF)
    assert found["DP16KD"] == pytest.approx(wanted["DP16KD"], abs=4), "but for memories too small for a block RAM"
    assert estimate(chip, chip, used, modules) == used


@pytest.mark.slow(seconds=2)
@given(st.sampled_from([*PARTS]), st.sampled_from([WHOLE, QUARTER]))
def test_what_is_advised_fits_and_halves_nothing_in_vain(part, row):
    chip, used, modules = area(row)
    device = PARTS[part]
    advice = smaller(chip, device, used, modules)
    if not advice.changes:
        assert excess(advice.used, device) or not excess(used, device) or "no halving" in advice.line()
        return
    changed = load_chip("npu-edge-int8", [*((k, str(v)) for k, v in row["sets"].items()), *advice.changes])
    assert estimate(chip, changed, used, modules) == advice.used
    assert excess(advice.used, device) == []
    assert {key for key, _ in advice.changes} <= {*KEYS}
    assert all(f"--set {key}={value}" in advice.line() for key, value in advice.changes)


def test_what_has_no_circuit_is_not_advised():
    chip = load_chip("npu-edge-int8", [("tile.vector.lanes", "2")])
    assert halved(chip, ["tile.vector.lanes"]) is None
    made, values = halved(chip, ["tile.array.rows"])
    assert (made.tile.array.rows, values) == (8, {"tile.array.rows": 8})


@pytest.mark.parametrize("name", ["npu-edge", "npu-edge-mx", "npu-edge-w4a8", "npu-edge-w8a8", "npu-edge-int8"])
def test_tiles_of_the_library_can_be_halved(name):
    chip = load_chip(name)
    for key in KEYS:
        found = halved(chip, [key])
        if key != "tile.vector.lanes":  # which keys and values with scales want to be whole rows
            made, values = found
            again = load_chip(name, [(key, f"{values[key]} B" if "capacity" in key else str(values[key]))])
            room, last = key.split(".")[1:]
            assert getattr(getattr(made.tile, room), last) == getattr(getattr(again.tile, room), last) == values[key]


@pytest.mark.checkout
def test_block_rams_are_those_of_every_memory_that_is_kept():
    from benchmarks import synthesis

    kept = json.loads(synthesis.RESULTS.read_text(encoding="utf-8"))
    compared = 0
    for name, row in kept.items():
        found = re.search(r"sram_(\d+)x(\d+)(?:_g(\d+))?$", name)
        if found and row["block_rams"]:
            width, depth, granularity = (int(each or found[1]) for each in found.groups())
            assert block_rams(width, depth, granularity) == row["block_rams"], name
            compared += 1
    assert compared >= 10
