"""Registers that divide the stages of a vector unit: where they stand, and that parameters follow them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import load_chip, timing
from siliconloom.arch.vector import COLUMN_LINES
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.npu.depth import Depth
from siliconloom.rtl.npu.float_lane import DIVIDED as FLOATS
from siliconloom.rtl.npu.float_lane import FloatLane, FloatRowScalars
from siliconloom.rtl.npu.lane import DIVIDED as INTEGERS
from siliconloom.rtl.npu.lane import Lane, RowScalars

KINDS = {"int8": (INTEGERS, Lane, RowScalars), "bf16": (FLOATS, FloatLane, FloatRowScalars)}
LAST_READ = {"int8": (8, 9), "bf16": (8, 9)}
"""The first and the last of the stages that read late parameters."""


def depth_of(kind, latency):
    order, lane, row = KINDS[kind]
    return Depth.of(order, latency, lane.STAGES, row.STAGES)


@given(st.sampled_from(sorted(KINDS)), st.integers(timing.VECTOR_STAGES, 60))
def test_a_row_has_its_state_within_the_latency_that_is_described(kind, latency):
    order, lane, row = KINDS[kind]
    depth = depth_of(kind, latency)
    assert depth.at(lane.STAGES) + row.STAGES + sum(depth.row) == min(latency, timing.VECTOR_STAGES + len(order))


@given(st.sampled_from(sorted(KINDS)), st.integers(timing.VECTOR_STAGES, 60), st.integers(1, 9))
def test_every_slot_is_computed_with_the_parameters_of_its_own_block(kind, latency, slots):
    """Cycle by cycle: a block's lines of parameters, its slots, the next block's lines; each stage reads its set."""
    depth, blocks = depth_of(kind, latency), 4
    block = COLUMN_LINES + slots
    swaps = [COLUMN_LINES + number * block + depth.lane[0] for number in range(blocks)]  # the last line has arrived
    late = depth.late(9, COLUMN_LINES)
    assert late < block, "the set is there until it is copied"

    def in_use(cycle, behind):
        return sum(cycle > swap + behind for swap in swaps) - 1

    for number in range(blocks):
        for slot in range(slots):
            address = COLUMN_LINES + number * block + slot
            early = [address + depth.at(stage) + depth.lane[stage] * (stage < 4) for stage in (2, 3, 4)]
            assert {in_use(cycle, 0) for cycle in early} == {number}
            assert {in_use(address + depth.at(stage), late) for stage in LAST_READ[kind]} == {number}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_only_stages_that_are_there_are_divided_and_none_twice(kind):
    order, lane, row = KINDS[kind]
    assert len({*order}) == len(order)
    assert all(stage < lane.STAGES if where == "lane" else 1 <= stage <= row.STAGES for where, stage in order)


def test_latency_becomes_registers_and_no_more_than_there_is_use_for():
    def registers(latency):
        sets = {
            "tile.array.rows": "4",
            "tile.array.cols": "4",
            "tile.vector.lanes": "2",
            "tile.vector.latency": latency,
        }
        bundle = build_rtl(load_chip("npu-edge-int8", [(key, str(value)) for key, value in sets.items()]))
        lane = next(text for name, text in bundle.files.items() if name.endswith("_lane.v"))
        return lane.count("\n  reg "), json.dumps(bundle.sidecar["timing"]["vector_latency"])

    least, some, all_of_them, more = (registers(latency) for latency in (15, 20, 27, 60))
    assert least[0] < some[0] < all_of_them[0] == more[0]
    assert [each[1] for each in (least, some, all_of_them, more)] == ["15", "20", "27", "60"]
