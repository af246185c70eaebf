"""Plans: memory by formula, search against trying everything, bad input."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from siliconloom.arch import LoomError, load_system
from siliconloom.arch.gpu import load_gpu
from siliconloom.cli import app
from siliconloom.planning.cluster import cluster_of
from siliconloom.planning.fused import fuse
from siliconloom.planning.memory import layer_activations, states
from siliconloom.planning.overlap import split_prefill
from siliconloom.planning.plan import Plan, Shape, parse_plan, shape_of
from siliconloom.planning.search import plans, search
from siliconloom.planning.training import Trainer
from siliconloom.workloads import load_workload

SMALL = Shape(
    hidden=1024, inner=4096, heads=16, kv_heads=16, head_dim=64, layers=8, vocabulary=32000, sequence=1024,
    layer_parameters=12 * 1024**2, end_parameters=33000 * 1024, element=2.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster():
    return cluster_of(load_system("dgx-a100"))


@pytest.fixture(scope="module")
def trainer(cluster):
    return Trainer(cluster, SMALL, 32, gated=False)


@given(st.floats(1e6, 1e12), st.integers(1, 1024))
def test_zero_states_are_the_papers_formulas(parameters, data):
    expected = [16, 4 + 12 / data, 2 + 14 / data, 16 / data]
    for stage, each in enumerate(expected):
        assert sum(states(parameters, 2.0, data, stage)) == pytest.approx(parameters * each)


@pytest.mark.parametrize("tensor", [1, 4, 8])
def test_activations_are_korthikantis_equations(tensor):
    """s b h (10 + 24 / t + 5 a s / (h t)); with sequence parallelism s b h / t (34 + 5 a s / h)."""
    s, b, h, a = SMALL.sequence, 2, SMALL.hidden, SMALL.heads
    plain = Plan(tensor=tensor, microbatch=b, attention="unfused")
    assert layer_activations(SMALL, plain) == pytest.approx(s * b * h * (10 + 24 / tensor + 5 * a * s / (h * tensor)))
    shared = Plan(tensor=tensor, microbatch=b, attention="unfused", sequence_parallel=True)
    assert layer_activations(SMALL, shared) == pytest.approx(s * b * h / tensor * (34 + 5 * a * s / h))
    selective = Plan(tensor=tensor, microbatch=b, attention="unfused", sequence_parallel=True, recompute="selective")
    assert layer_activations(SMALL, selective) == pytest.approx(s * b * h / tensor * 34)


def test_search_finds_what_trying_everything_finds(trainer):
    found = search(trainer, {}, keep=3)
    every = sorted(trainer.step(p).seconds for p in plans(trainer, {}))
    assert [f.step.seconds for f in found.best] == pytest.approx(every[:3])
    assert found.pruned > 0


def test_bounds_hold_for_every_plan(trainer):
    for plan in itertools.islice(plans(trainer, {}), 0, None, 7):
        step = trainer.step(plan)
        assert step.seconds >= trainer.least(plan) * (1 - 1e-9)
        assert step.seconds >= trainer.flops / (plan.chips * trainer.cluster.gpu.peak_flops("bf16"))


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["tensor", "pipeline", "microbatch"]), st.integers(0, 2))
def test_what_is_fixed_stays(name, power):
    trainer = Trainer(cluster_of(load_system("dgx-a100")), SMALL, 32, gated=False)
    for plan in itertools.islice(plans(trainer, {name: 2**power}), 50):
        assert getattr(plan, name) == 2**power
        assert plan.chips == 8


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(data=4), "data 4 x tensor 1 x pipeline 1 is 4 chips, dgx-a100 has 8"),
        (Plan(pipeline=8, chunks=2, schedule="interleaved"), "pipeline 8 x 2 chunks is more than the 8 layers"),
        (Plan(data=8, microbatch=3), "batch 32 does not divide into data 8 x microbatch 3: 8 left over"),
    ],
)
def test_plans_that_do_not_divide_say_by_how_much(trainer, plan, message):
    with pytest.raises(LoomError, match=message):
        trainer.check(plan)


def test_unknown_keys_and_values_get_the_nearest():
    with pytest.raises(LoomError, match="did you mean 'tensor'"):
        parse_plan([("tensr", "2")])
    with pytest.raises(LoomError, match="did you mean 'interleaved'"):
        parse_plan([("schedule", "interleave")])
    with pytest.raises(LoomError, match="whole number from 0 to 3"):
        parse_plan([("zero", "4")])


def test_shape_is_read_off_the_graph():
    shape = shape_of(load_workload("llama3-8b", [("phase", "training")]))
    assert (shape.hidden, shape.inner, shape.heads, shape.kv_heads, shape.layers) == (4096, 14336, 32, 8, 32)
    assert shape.parameters == pytest.approx(8.03e9, rel=0.001)


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_the_command_writes_json(tmp_path):
    target = tmp_path / "plan.json"
    done = run("plan", "dgx-h100", "llama3-8b", "--set", "workload.phase=training", "--set", "workload.batch=16",
               "--set", "workload.sequence=1024", "--json", str(target))  # fmt: skip
    assert done.exit_code == 0, done.output
    result = json.loads(target.read_text())
    assert {"plan", "step_s", "tflops_per_chip", "memory_bytes", "bubble", "exposed_comm_s"} <= set(result)
    assert result["step_s"] >= result["lower_bound_s"]
    assert all(other["slower_by"] >= 0 and other["lost_by"] for other in result["alternatives"])


def test_a_model_that_does_not_fit_says_what_it_needs():
    big = Shape(**{**SMALL.__dict__, "layer_parameters": 10**11})
    trainer = Trainer(cluster_of(load_system("dgx-a100")), big, 32, gated=False)
    with pytest.raises(LoomError, match=r"no plan fits .* of each a100: the smallest needs"):
        search(trainer)


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([512, 2048, 8192]), st.sampled_from([2, 4, 8]))
def test_token_splitting_hides_at_most_what_there_is(tokens, tensor):
    """Overlapped is no shorter than the halves' kernels or the halves' sums alone, and no longer than both in line."""
    found = split_prefill(load_gpu("h100"), SMALL, tokens, tensor)
    assert found.without < found.in_line
    again = split_prefill(load_gpu("h100"), SMALL, tokens, tensor)
    assert again == found
    assert found.overlapped > 0.5 * found.without


def test_token_splitting_needs_halves_and_partners():
    with pytest.raises(LoomError, match="not supported: token splitting of 1023 tokens on 2 GPU"):
        split_prefill(load_gpu("h100"), SMALL, 1023, 2)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-5, 1e-1), st.floats(1e4, 1e10), st.integers(2, 32))
def test_fused_sums_lie_between_ideal_and_sequential(product, size, chips):
    """Fusing never loses more than the steps' latency, arbitration never loses, and nothing beats the ideal."""
    found = fuse(product, size, chips, bandwidth=75e9, latency=500e-9, memory=1e12)
    tick = 1e-12 * 4 * chips
    assert found.ideal <= found.arbitrated + tick
    assert found.arbitrated <= found.triggered + tick
    assert found.arbitrated <= found.sequential + tick
