"""The sum over a row in partial sums, cycle by cycle: rows of any lengths one after the other."""

import numpy as np
import pytest
from amaranth import Module
from amaranth.sim import Simulator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siliconloom.arch import DescriptionError, load_chip, timing
from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.library import Library
from siliconloom.rtl.npu.vector.row_sum import FALL_BITS, RowSum
from siliconloom.sim.golden.float_functions import row_sums
from siliconloom.sim.timing.units import vector_cycles


def driven(stages, lowers, cycles):
    """What the circuit gives in each cycle, of what is given to its inputs in each."""
    circuit, m = RowSum(Library("tile"), stages, lowers=lowers), Module()
    m.submodules.sum = circuit
    found = []

    async def bench(ctx):
        for given_now in cycles:
            for name, value in given_now.items():
                ctx.set(getattr(circuit, name), value)
            ctx.set(circuit.clk, 0)
            await ctx.delay(1e-9)
            found.append(ctx.get(circuit.o))
            ctx.set(circuit.clk, 1)
            await ctx.delay(1e-9)

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()
    return found


@st.composite
def some_rows(draw):
    """Rows, of most of which the first block goes on from a total: sums of blocks, peaks, peak and total before."""
    numbers = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    made = []
    for blocks in draw(st.lists(st.integers(1, 11), min_size=1, max_size=6)):
        parts = numbers.standard_normal(blocks).astype(np.float32).view(np.uint32)
        peaks = np.cumsum(numbers.integers(0, draw(st.sampled_from([1, 3, 90])), blocks + 1))
        total = numbers.standard_normal(1).astype(np.float32).view(np.uint32) * draw(st.integers(0, 1))
        made.append((parts, peaks[1:], (peaks[:1], total)))
    return made


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(some_rows(), st.sampled_from([2, 4]), st.booleans())
def test_rows_that_follow_one_another_have_the_golden_sums(rows, stages, lowers):
    cycles, ends = [], []
    flat = [(row, block) for row, (parts, _, _) in enumerate(rows) for block in range(len(parts))]
    for now, (row, block) in enumerate(flat):
        parts, peaks, (before, total) = rows[row]
        since = before[0] if block == 0 else peaks[block - stages] if block >= stages else peaks[block]
        given_now = {"i": int(parts[block]), "opens": block == 0, "before": int(total[0]) if block == 0 else 0x7FC00000}
        if lowers:
            given_now["fall"] = int(min(peaks[block] - since, 63))
        cycles.append(given_now)
        if block == len(parts) - 1:
            ends.append((row, now))
    cycles += [{"i": 0, "opens": 1}] * (3 * stages + 2)
    if lowers:
        for now, (row, block) in enumerate(flat):
            peaks = rows[row][1]
            places = [min(peaks[block] - peaks[max(block - ahead, 0)], 63) for ahead in range(1, stages)]
            late = sum(int(each) << FALL_BITS * place for place, each in enumerate(places))
            cycles[now + stages] = cycles[now + stages] | {"late_falls": late}
    found = driven(stages, lowers, cycles)
    for row, now in ends:
        parts, peaks, (before, total) = rows[row]
        peaks, carried = (peaks[None], (before, total)) if lowers else (0 * peaks[None], (0 * before, total))
        assert found[now + 1 + timing.sum_cycles(stages)] == row_sums(parts[None], stages, peaks, carried)[0]


@pytest.mark.parametrize(
    ("chip", "sets", "why"),
    [
        ("npu-edge", {"sum_stages": 2}, "tile.vector.sum_stages: so many are within a latency of 20 or more"),
        ("npu-edge", {"sum_stages": 4, "latency": 29}, "tile.vector.sum_stages: so many are within a latency of 30"),
        ("npu-edge", {"sum_stages": 3, "latency": 60}, "tile.vector.sum_stages: must be a power of two"),
        ("npu-edge", {"sum_stages": 8, "latency": 60}, "tile.vector.sum_stages: must be less than or equal to 4"),
        ("npu-edge-int8", {"sum_stages": 2, "latency": 60}, "tile.vector.sum_stages: sums of integers take a cycle"),
    ],
)
def test_stages_that_cannot_be_are_refused_by_their_key(chip, sets, why):
    with pytest.raises(DescriptionError, match=why):
        load_chip(chip, [(f"tile.vector.{key}", str(value)) for key, value in sets.items()])


def test_only_weighted_sums_take_more_cycles_than_their_latency_says():
    def cycles(function, **sets):
        chip = load_chip("npu-edge", [(f"tile.vector.{key}", str(value)) for key, value in sets.items()])
        return vector_cycles(chip.tile.vector, function, 3, 40, 5, chip.tile.parameter_format)

    for function in (VectorFunction.LAYER_NORM, VectorFunction.SOFTMAX_ROWS, VectorFunction.ADD):
        assert cycles(function, latency=40) == cycles(function, latency=40, sum_stages=4)
    blocks = -(-40 // load_chip("npu-edge").tile.vector.lanes)
    weighted = [cycles(VectorFunction.COMBINE, latency=40, sum_stages=stages) for stages in (1, 2, 4)]
    assert np.diff(weighted).tolist() == [3 * 5 * blocks, 3 * 5 * blocks * 2]
