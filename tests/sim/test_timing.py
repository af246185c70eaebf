import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import DescriptionError, SystolicArray, load_chip
from siliconloom.arch.timing import INPUT_SLICE, LOADER_GAP, OPERAND_LATENCY
from siliconloom.arch.vector import VectorFunction
from siliconloom.sim.timing.pace import matmul_pace, product_pace
from siliconloom.sim.timing.systolic import ArrayTimeline, gemm_folds, gemm_run, operand_folds, stall_free_schedule
from siliconloom.sim.timing.units import access_cycles, moved_bytes, transfer_cycles, vector_cycles
from tests.sim.reference import Array

DATAFLOWS = ("weight_stationary", "output_stationary", "input_stationary")
sizes = st.integers(1, 70)


@st.composite
def arrays(draw, **fixed):
    dataflow = draw(st.sampled_from(DATAFLOWS))
    load_rows = draw(st.sampled_from([1, 1, 2, 4])) if dataflow != "output_stationary" else 1
    rows = load_rows * draw(st.integers(1, 6))
    adds = draw(st.integers(0, 3)) if dataflow != "output_stationary" else 0
    fields = {"multiply_stages": draw(st.integers(0, 3)), "add_stages": adds, "load_rows": load_rows}
    if dataflow != "output_stationary":
        fields["load_port"] = draw(st.sampled_from(["own", "own", "shared"]))
    fields["accumulate_stages"] = draw(st.sampled_from([1, 1, 2, 4]))
    if dataflow == "output_stationary":
        fields["element"] = draw(st.sampled_from(["multiply_add", "carry_save", "compressor", "digit_serial"]))
        fields["depth"] = draw(st.sampled_from([1, 1, 3, 8]))
        fields["operand_sigma"] = 20.0 if fields["element"] == "digit_serial" and draw(st.booleans()) else None
    elif not adds:
        fields["element"] = draw(st.sampled_from(["multiply_add", "carry_save"]))
    array = SystolicArray(rows=rows, cols=draw(st.integers(1, 12)), dataflow=dataflow, **(fields | fixed))
    if dataflow == "output_stationary":
        return array
    # a description has registers where operands are made of packed weights alone
    return array.model_copy(update={"unpack_stages": draw(st.sampled_from([0, 0, 3]))})


whole = arrays(element="multiply_add", depth=1, operand_sigma=None)
"""Arrays as an NPU tile may have them, but for elements whose sums leave later."""


@given(arrays(), st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=4), st.integers(0, 50))
def test_the_closed_form_of_a_gemm_equals_its_folds_one_by_one(array, shapes, gap):
    whole, single = ArrayTimeline(array), ArrayTimeline(array)
    ready = INPUT_SLICE
    for m, n, k in shapes:
        run = gemm_run(array, m, n, k)
        folds = gemm_folds(array, m, n, k)
        assert run.folds == len(folds)
        assert run.work == sum(f.stream_beats for f in folds) or array.element == "digit_serial"
        assert run.stationary_beats == sum(f.load_beats for f in folds)
        times = [single.fold(fold, ready, begins=number == 0) for number, fold in enumerate(folds)]
        total = whole.run(run, ready)
        assert (total.first_fire, total.last_fire) == (times[0].first_fire, times[-1].last_fire)
        assert total.last_output == times[-1].last_output
        assert (whole.load_free, whole.stream_free) == (single.load_free, single.stream_free)
        ready += gap


@given(whole, st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=4))
def test_folds_one_by_one_take_the_cycles_of_an_array_that_is_stepped_through(array, shapes):
    stepped, timeline, ready = Array(array), ArrayTimeline(array), INPUT_SLICE
    for m, n, k in shapes:
        consumed, left, loader_free = stepped.multiply(m, n, k, ready)
        folds = gemm_folds(array, m, n, k)
        times = [timeline.fold(fold, ready, begins=number == 0) for number, fold in enumerate(folds)]
        assert (consumed, left) == (times[-1].last_fire + 1, times[-1].last_output)
        assert loader_free in (None, timeline.load_free)


@given(whole, st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=4))
def test_no_sums_are_brought_before_those_that_they_may_be_added_to_are_there(array, shapes):
    """Each line of a matmul's folds comes as late behind the fold before, and all behind the matmul before."""
    timeline, before, apart = ArrayTimeline(array), None, array.accumulate_stages
    for m, n, k in shapes:
        for number, fold in enumerate(gemm_folds(array, m, n, k)):
            times = timeline.fold(fold, INPUT_SLICE, begins=number == 0)
            if before is not None and number == 0:
                assert times.first_output >= before.last_output + apart
            elif before is not None and array.dataflow != "output_stationary":
                assert times.first_output - before.first_output >= apart
            before = times


@pytest.mark.parametrize(
    ("chip", "key", "stages", "why"),
    [
        ("npu-edge", "accumulate_stages", 3, "must be a power of two"),
        ("npu-edge", "accumulate_stages", 8, "must be less than or equal to 4"),
        ("npu-edge-int8", "accumulate_stages", 2, "sums of integers take a cycle"),
        ("systolic-ws-8", "accumulate_stages", 2, "an accumulator is that of an npu tile"),
        ("npu-edge", "unpack_stages", 9, "must be less than or equal to 8"),
        ("npu-edge-int8", "unpack_stages", 1, "there are no packed weights, and no keys and values in formats of th"),
        ("systolic-ws-8", "unpack_stages", 1, "there are no packed weights"),
    ],
)
def test_stages_that_an_array_cannot_have_are_refused(chip, key, stages, why):
    with pytest.raises(DescriptionError, match=f"tile.array.{key}: {why}"):
        load_chip(chip, [(f"tile.array.{key}", str(stages))])


@given(arrays(), st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=4))
def test_no_fold_overtakes_another_and_no_port_is_used_twice(array, shapes):
    folds = [f for m, n, k in shapes for f in gemm_folds(array, m, n, k)]
    times = stall_free_schedule(array, folds)
    for before, after in itertools.pairwise(times):
        assert after.first_fire > before.last_fire
        assert after.first_output > before.last_output
    for fold, time in zip(folds, times, strict=True):
        assert time.last_fire - time.first_fire + 1 >= fold.stream_beats
        assert time.last_output - time.first_output + 1 == fold.output_beats


@given(arrays(), sizes, sizes, sizes)
def test_no_gemm_beats_the_arrays_peak(array, m, n, k):
    end = stall_free_schedule(array, gemm_folds(array, m, n, k))[-1].last_output + 1
    assert end * array.products >= m * n * k


@given(arrays().filter(lambda array: array.dataflow == "output_stationary"), sizes, sizes, sizes, st.integers(0, 999))
@settings(max_examples=30)
def test_folds_of_given_operands_are_those_expected_where_all_operands_take_as_long(array, m, n, k, seed):
    """Beats whose operands are all ones, or all of four digits, take one step, or four; any operands lie between."""
    few, most = (operand_folds(array, np.full((m, k), value), n) for value in (1, -85))
    some = operand_folds(array, np.random.default_rng(seed).integers(-128, 128, (m, k)), n)
    serial = array.element == "digit_serial"
    for low, each, expected, high in zip(few, some, gemm_folds(array, m, n, k), most, strict=True):
        assert low.stream_beats == -(-k // array.depth)
        assert high.stream_beats == low.stream_beats * (4 if serial else 1)
        assert low.stream_beats <= each.stream_beats <= high.stream_beats
        assert serial or each == expected


@given(
    st.sampled_from(DATAFLOWS),
    st.sampled_from([8, 32, 128]),
    st.integers(1, 600),
    st.integers(1, 600),
    st.integers(1, 600),
)
def test_no_bare_gemm_is_slower_than_scale_sims_stall_free_figure(dataflow, size, m, n, k):
    name = {"weight_stationary": "ws", "output_stationary": "os", "input_stationary": "is"}[dataflow]
    array = load_chip(f"systolic-{name}-{size}").tile.array
    rows = cols = size
    if dataflow == "output_stationary":
        folds, beats, fill = -(-m // rows) * -(-n // cols), k, rows
    else:
        outer, beats = (n, m) if dataflow == "weight_stationary" else (m, n)
        folds, fill = -(-k // rows) * -(-outer // cols), 2 * rows
    peer = folds * (fill + cols + beats - 2)
    end = stall_free_schedule(array, gemm_folds(array, m, n, k))[-1].last_output + 1
    assert end <= 1.05 * peer + rows + cols


def test_a_wide_load_port_divides_the_load_time():
    narrow = SystolicArray(rows=128, cols=128, dataflow="weight_stationary")
    wide = SystolicArray(rows=128, cols=128, dataflow="weight_stationary", load_rows=8)
    ends = [stall_free_schedule(a, gemm_folds(a, 1, 1280, 128))[-1].last_output for a in (narrow, wide)]
    assert ends[0] - ends[1] == 10 * (128 - 16)


@given(whole, sizes, sizes, sizes)
def test_the_mapper_s_pace_is_that_of_equal_matmuls_back_to_back(array, m, n, k):
    """An instruction leaves its queue the cycle after the one before it has its last tile active (weights, inputs)."""
    timeline, run, starts = ArrayTimeline(array), gemm_run(array, m, n, k), []
    start = 0
    for _ in range(4):
        times = timeline.run(run, start + OPERAND_LATENCY + array.unpack_stages)
        starts.append(times.last_fire)
        start = timeline.stream_free if array.dataflow == "output_stationary" else timeline.load_free + LOADER_GAP
    pace = matmul_pace(array, *(np.array([size]) for size in (m, n, k)))
    assert starts[3] - starts[2] == pace[0] == product_pace(array, m, n, k)


@given(st.integers(1, 10_000), st.integers(0, 6))
def test_a_wider_dma_never_makes_a_transfer_longer(moved, doublings):
    """DRAM time follows bytes: a last beat that is not full takes its share of a beat."""
    narrow, wide = (load_chip("npu-edge-int8", [("tile.dma.bytes_per_cycle", str(64 << d))]) for d in (0, doublings))
    assert transfer_cycles(wide, moved) <= transfer_cycles(narrow, moved) + 1
    assert transfer_cycles(wide, moved) >= moved * wide.clock / wide.nearest.bandwidth


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1), st.sampled_from([1, 3, 8]))
def test_many_transfers_at_once_take_what_each_takes(transfers, ports):
    chip = load_chip("npu-edge-int8", [("memory.dram.ports", str(ports)), ("tile.dma.bytes_per_cycle", "128")])
    rows, width = np.array(transfers).T
    together = access_cycles(chip, chip.nearest, rows, width)
    assert together.tolist() == [access_cycles(chip, chip.nearest, r, w) for r, w in transfers]


@given(st.sampled_from(list(VectorFunction)), st.integers(1, 300), st.integers(1, 300))
def test_the_vector_unit_never_beats_its_lanes(function, rows, cols):
    unit = load_chip("npu-edge-int8").tile.vector
    assert vector_cycles(unit, function, rows, cols) >= rows * cols / unit.lanes


@given(st.integers(1, 100), st.integers(1, 1000))
def test_a_transfer_moves_at_least_its_bytes_and_keeps_the_bandwidth(rows, row_bytes):
    chip = load_chip("npu-datacenter")
    memory = chip.memory["hbm"]
    moved = moved_bytes(memory, rows, row_bytes)
    assert rows * row_bytes <= moved < rows * row_bytes + rows * memory.access_bytes
    cycles = transfer_cycles(chip, moved)
    assert cycles * memory.bandwidth >= moved * chip.clock
    assert cycles * chip.tile.dma.bytes_per_cycle >= moved
