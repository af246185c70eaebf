"""All-reduces of serving software: against measured rows, their rules by size, and where NCCL remains."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines import one_shot, tables
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.predict import predict
from siliconloom.baselines.stacks import STACKS
from siliconloom.evaluate.cluster import with_messages
from siliconloom.evaluate.gpus import gpus_of

SOFTWARE = {"vllm": ("vLLM custom", "graph"), "tensorrt-llm": ("TRT-LLM custom", "")}


def reduce(gpus, size, op="all_reduce"):
    return {"op": op, "gpus": gpus, "bytes": size, "dtype": "bf16"}


def seconds(gpu, rows, software=""):
    return predict(load_gpu(gpu) if isinstance(gpu, str) else gpu, make_operations(rows), software=software).seconds


@pytest.mark.parametrize("gpu", ["a100", "h100"])
@pytest.mark.parametrize("program", SOFTWARE)
def test_measured_rows_are_nearer_than_by_nccl(gpu, program):
    table, (name, launches) = tables.load("aiconfigurator-collectives"), SOFTWARE[program]
    named = table.software.astype(str)
    rows = table.select((table.gpu == gpu) & np.char.startswith(named, name) & (np.char.find(named, launches) >= 0))
    own = load_efficiency(load_gpu(gpu).architecture).one_shot_by[program]
    theirs = one_shot.ways(load_gpu(gpu), program, own, rows.operations.gpus, rows.operations.bytes) != one_shot.NCCL
    off = np.abs(np.log(predict(load_gpu(gpu), rows.operations, software=program).seconds / rows.time_us * 1e6))
    nccl = np.abs(np.log(predict(load_gpu(gpu), rows.operations).seconds / rows.time_us * 1e6))
    assert theirs.sum() >= 25
    assert np.median(off[theirs]) < (0.09 if (gpu, program) == ("a100", "tensorrt-llm") else 0.04)
    assert np.median(nccl[theirs]) > 5 * np.median(off[theirs])
    assert np.array_equal(off[~theirs], nccl[~theirs])
    assert np.median(off[~theirs]) < 0.06


@given(st.sampled_from(["a100", "h100", "h200"]), st.sampled_from(list(SOFTWARE)), st.integers(2, 9), st.data())
def test_more_bytes_take_no_less_by_the_same_way(gpu, program, gpus, data):
    machine = load_gpu(gpu)
    own = load_efficiency(machine.architecture).one_shot_by[program]
    sizes = np.sort(data.draw(st.lists(st.integers(1, 2**27), min_size=2, max_size=2)))
    ways = one_shot.ways(machine, program, own, np.full(2, gpus), sizes)
    small, large = seconds(machine, [reduce(gpus, int(size)) for size in sizes], program)
    assert ways[0] != ways[1] or small <= large
    if gpus not in (2, 4, 6, 8):
        assert (ways == one_shot.NCCL).all()


@pytest.mark.parametrize("program", SOFTWARE)
def test_other_messages_and_gpus_without_a_switch_have_nccl(program):
    others = [reduce(8, 4096, op) for op in ("all_gather", "reduce_scatter", "all_to_all")]
    assert np.array_equal(seconds("h100", others, program), seconds("h100", others))
    small = [reduce(2, 4096), reduce(4, 4096)]
    for gpu in ("l40s", "rtx-pro-6000", "mi300x"):
        assert np.array_equal(seconds(gpu, small, program), seconds(gpu, small))
    assert (seconds("a100", small, program) < 0.7 * seconds("a100", small)).all()


def test_the_switch_and_two_shots_begin_where_the_program_says():
    own = load_efficiency("hopper").one_shot_by["vllm"]
    sizes = np.array([256 * 1024 - 2, 256 * 1024, 64 * 2**20, 64 * 2**20 + 2])
    asked = load_gpu("h100"), "vllm", own
    assert one_shot.ways(*asked, np.full(4, 8), sizes).tolist() == [1, 3, 3, 0]
    assert one_shot.ways(*asked, np.full(4, 4), sizes).tolist() == [1, 1, 0, 0]
    assert one_shot.ways(*asked, np.full(2, 4), np.array([512 * 1024, 32 * 2**20])).tolist() == [2, 2]
    assert one_shot.ways(*asked, np.full(4, 6), np.array([2**18 - 2, 2**18, 2**19, 2**26])).tolist() == [1, 2, 3, 3]
    ampere = load_gpu("a100"), "vllm", own
    assert one_shot.ways(*ampere, np.full(2, 2), np.array([2**23 - 2, 2**23])).tolist() == [1, 0]
    trt = load_efficiency("hopper").one_shot_by["tensorrt-llm"]
    for card, most in (("a100", 2**20), ("h100", 2**23)):
        around = np.array([most, most + 2])
        assert one_shot.ways(load_gpu(card), "tensorrt-llm", trt, np.full(2, 2), around).tolist() == [1, 0]
    blackwell = load_gpu("b200"), "vllm", own
    assert one_shot.ways(*blackwell, np.full(3, 8), np.array([2**20, 2**20 + 2, 2**27])).tolist() == [2, 3, 3]
    assert one_shot.ways(load_gpu("a100"), "vllm", own, np.full(3, 8), sizes[1:]).tolist() == [2, 0, 0]


def test_a_step_of_vllm_has_its_all_reduces():
    cluster = gpus_of(load_gpu("h100"), 8)
    own = with_messages(cluster, STACKS["vllm"].messages)
    assert with_messages(cluster, STACKS["none"].messages) is cluster
    assert own.digest != cluster.digest
    for size in (8192, 2**20):
        asked = ("all_reduce", size, 1, 8)
        assert own.fabrics[0].seconds(*asked) == seconds("h100", [reduce(8, size)], "vllm")
        assert own.fabrics[0].seconds(*asked) < cluster.fabrics[0].seconds(*asked)


def test_small_ones_wait_and_large_ones_move():
    rows = make_operations([reduce(8, 64), reduce(8, 2**26), reduce(2, 64), reduce(2, 2**22)])
    assert predict(load_gpu("h100"), rows, software="vllm").bound == ["latency", "link", "latency", "link"]


def test_in_the_switch_each_gpu_sends_all_and_takes_its_part():
    """Of two buffers the time between them is (1 + 1/n) of their difference at the link's share."""
    small, large = seconds("h100", [reduce(8, 2**25), reduce(8, 2**26)], "vllm")
    share = load_efficiency("hopper").one_shot_by["vllm"].switch.share
    assert large - small == pytest.approx(2**25 * (1 + 1 / 8) / (450e9 * share))
    six = seconds("h100", [reduce(6, 2**25), reduce(6, 2**26)], "vllm")
    assert six[1] - six[0] == pytest.approx(2**25 * (1 + 1 / 6) / (450e9 * share))
