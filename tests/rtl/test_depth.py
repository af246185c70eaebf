"""Registers that divide the stages of a vector unit: where they stand, and that parameters follow them."""

import json
from itertools import pairwise

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
EARLY_READ = {"int8": (2, 3, 4), "bf16": (2, 3)}
"""Those that read parameters as they come."""
LAST_READ = {"int8": (8, 9), "bf16": (8, 9)}
"""The first and the last of the stages that read late parameters."""


UNITS = st.sampled_from([("int8", 1), ("bf16", 1), ("bf16", 2), ("bf16", 4)])
"""Kinds of units, and stages of their additions."""


def depth_of(kind, latency, sum_stages):
    order, lane, row = KINDS[kind]
    return Depth.of(order, max(latency, timing.vector_stages(sum_stages)), lane.STAGES, row.STAGES, sum_stages)


@given(UNITS, st.integers(timing.VECTOR_STAGES, 90))
def test_a_row_has_its_state_within_the_latency_that_is_described(made, latency):
    (kind, stages), (order, lane, row) = made, KINDS[made[0]]
    least = timing.vector_stages(stages)
    depth = depth_of(kind, latency, stages)
    spent = depth.at(lane.STAGES) + depth.sums + row.STAGES + sum(depth.row)
    assert spent == min(max(latency, least), least + len(order))


@given(UNITS, st.integers(timing.VECTOR_STAGES, 90), st.integers(1, 9))
def test_every_slot_is_computed_with_the_parameters_of_its_own_block(made, latency, slots):
    """Cycle by cycle: a block's lines of parameters, its slots, the next block's lines; each stage reads its set."""
    kind, sum_stages = made
    depth, blocks = depth_of(kind, latency, sum_stages), 4
    block = COLUMN_LINES + slots
    swaps = [COLUMN_LINES + number * block + depth.lane[0] for number in range(blocks)]  # the last line has arrived
    late, copies = depth.late(9, COLUMN_LINES), [0, *depth.copies(9, COLUMN_LINES)]
    assert copies[-1] == late
    if kind == "bf16":
        assert all(after - before < block for before, after in pairwise(copies)), "a set is there until it is copied"
    else:
        assert late < block

    def in_use(cycle, behind):
        return sum(cycle > swap + behind for swap in swaps) - 1

    for number in range(blocks):
        for slot in range(slots):
            address = COLUMN_LINES + number * block + slot
            # in integers registers of the first stages stand before what reads parameters, in floating point behind
            behind = {stage: depth.lane[stage] * (kind == "int8" and stage < 4) for stage in EARLY_READ[kind]}
            early = [address + depth.at(stage) + behind[stage] for stage in EARLY_READ[kind]]
            assert {in_use(cycle, 0) for cycle in early} == {number}
            assert {in_use(address + depth.at(stage), late) for stage in LAST_READ[kind]} == {number}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_only_stages_that_are_there_are_divided(kind):
    order, lane, row = KINDS[kind]
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
