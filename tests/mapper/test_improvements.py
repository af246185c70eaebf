"""A better chip is rarely slower: what was mapped to the smaller one is nearly always among what is looked at."""

import json

import pytest

from siliconloom.arch import load_chip
from siliconloom.simulate import simulate
from tests.mapper.improvements import IMPROVEMENTS, comparisons, workload

TOLERANCE, WORST = 1.01, 1.1


def check(found):
    """Few improvements make a chip slower, and none by much: one or two in a hundred are known to (docs/mapping.md)."""
    slower = [f for f in found if f[0] > TOLERANCE]
    assert len(slower) <= max(2, len(found) * 3 // 100), f"{len(slower)} of {len(found)}"
    worst = max(found, key=lambda f: f[0])
    assert worst[0] <= WORST, worst


@pytest.mark.parametrize("number", range(4))
def test_no_single_improvement_makes_a_chip_much_slower(number):
    """Random chips and small workloads; arrays are doubled where their fill is small beside the work."""
    found = list(comparisons(number, 50, widest=24))
    assert len({name for _, name, _, _ in found}) > len(IMPROVEMENTS) // 2
    check(found)


@pytest.mark.slow
def test_few_of_many_improvements_make_a_chip_slower():
    check(list(comparisons(1000, 200, widest=24)))


def gemm(m, n, k):
    gemms = [{"name": "g", "m": m, "n": n, "k": k}]
    return workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))


def test_the_setup_of_each_column_block_is_part_of_a_tiling_s_cost():
    """A tile of four rows spent two thirds of the vector unit's time on parameters: 3,182,221 cycles."""
    assert simulate(load_chip("npu-edge"), gemm(4096, 4096, 16)).run.cycles <= 1_126_700


def test_search_keeps_transfers_within_their_field():
    """A resident weight tile of 19,922,944 bytes was one row of a transfer, whose width has 24 bits."""
    chip = load_chip("npu-edge", [("tile.scratchpad.capacity", "64 MiB"), ("tile.accumulator.capacity", "1 MiB")])
    assert simulate(chip, gemm(64, 8192, 8192), search=True).run.cycles > 0
