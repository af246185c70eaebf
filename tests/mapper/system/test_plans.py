"""Plans: memory by formula, search against trying everything, bad input."""

import itertools
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from siliconloom.arch import LoomError, load_system
from siliconloom.cli import app
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.memory import Held, activations, states
from siliconloom.mapper.system.plan import Plan, parse_plan
from siliconloom.mapper.system.search import plans, search
from siliconloom.mapper.system.training import Trainer
from siliconloom.reproduce.fused import fuse
from siliconloom.workloads import load_workload


def small(batch=32, **sets):
    """A GPT of eight layers, a thousand wide."""
    given = {"phase": "training", "batch": batch, "layers": 8, "sequence": 1024, **sets}
    return load_workload("gpt2-medium", [(k, str(v)) for k, v in given.items()])


@pytest.fixture(scope="module")
def cluster():
    return cluster_of(load_system("dgx-a100"))


@pytest.fixture(scope="module")
def trainer(cluster):
    return Trainer(cluster, small())


@given(st.floats(1e6, 1e12), st.integers(1, 1024))
def test_zero_states_are_the_papers_formulas(parameters, data):
    expected = [16, 4 + 12 / data, 2 + 14 / data, 16 / data]
    for stage, each in enumerate(expected):
        assert sum(states(parameters, 2.0, data, stage)) == pytest.approx(parameters * each)


@pytest.mark.parametrize("tensor", [1, 4, 8])
def test_activations_are_korthikantis_equations(trainer, tensor):
    """s b h (10 + 24 / t + 5 a s / (h t)); with sequence parallelism s b h / t (34 + 5 a s / h).

    Ours are counted on the graph's edges; with a flash attention the masks of dropout are not there either.
    """
    s, b, h, a = 1024, 2, 1024, 16

    def kept(**choices):
        plan = Plan(tensor=tensor, microbatch=b, **choices)
        return activations(Held.of([trainer.model(plan, b).blocks[1]]), plan)

    assert kept(attention="unfused") == pytest.approx(s * b * h * (10 + 24 / tensor + 5 * a * s / (h * tensor)))
    if tensor > 1:
        shared = {"attention": "unfused", "sequence_parallel": True}
        assert kept(**shared) == pytest.approx(s * b * h / tensor * (34 + 5 * a * s / h))
        assert kept(**shared, recompute="selective") == pytest.approx(s * b * h / tensor * 34)
    assert kept() == pytest.approx(s * b * h * (8 + 24 / tensor))
    assert kept(recompute="full") == pytest.approx(2 * s * b * h)


@pytest.mark.slow(seconds=1.5)
def test_search_finds_what_trying_everything_finds(trainer):
    found = search(trainer, {}, keep=3)
    every = sorted(trainer.step(p).seconds for p in plans(trainer, {}))
    assert [f.step.seconds for f in found.best] == pytest.approx(every[:3])
    assert found.pruned > 0


def test_stages_share_no_vocabulary_of_images(cluster):
    """A model of images has no table of tokens: no plan of the search is one, and to state one is refused."""
    planner = Trainer(cluster, load_workload("vit-base", [("phase", "training"), ("batch", "8")]))
    assert not any(plan.vocabulary for plan in plans(planner, {}))
    with pytest.raises(LoomError, match=r"plan\.vocabulary: vit-base has no vocabulary that stages could share"):
        planner.step(Plan(data=4, pipeline=2, microbatch=1, vocabulary=True))


@pytest.mark.slow(seconds=1)
def test_bounds_hold_for_every_plan(trainer):
    for plan in itertools.islice(plans(trainer, {}), 0, None, 7):
        step = trainer.step(plan)
        assert step.seconds >= trainer.least(plan) * (1 - 1e-9)
        assert step.seconds >= trainer.bound


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["tensor", "pipeline", "microbatch"]), st.integers(0, 2))
def test_what_is_fixed_stays(name, power):
    trainer = Trainer(cluster_of(load_system("dgx-a100")), small())
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


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.slow(seconds=1)
def test_the_command_writes_json(tmp_path):
    target = tmp_path / "plan.json"
    done = run(
        "plan",
        "dgx-h100",
        "llama3-8b",
        "--set",
        "workload.phase=training",
        "--set",
        "workload.batch=16",
        "--set",
        "workload.sequence=1024",
        "--json",
        str(target),
    )
    assert done.exit_code == 0, done.output
    result = json.loads(target.read_text())
    assert {"plan", "step_s", "tflops_per_chip", "memory_bytes", "bubble", "exposed_comm_s"} <= set(result)
    assert result["step_s"] >= result["lower_bound_s"]
    assert all(other["slower_by"] >= 0 and other["lost_by"] for other in result["alternatives"])


def test_a_model_that_does_not_fit_says_what_it_needs():
    graph = load_workload("gpt-145b", [("phase", "training"), ("batch", "8")])
    with pytest.raises(
        LoomError, match=r"no plan fits .* a100: parameters, gradients and optimizer state of gpt-145b are"
    ):
        search(Trainer(cluster_of(load_system("dgx-a100")), graph))
    graph = load_workload("gpt-145b", [("phase", "training"), ("batch", "8"), ("layers", "20")])
    with pytest.raises(LoomError, match=r"no plan fits .* of each a100: the smallest needs"):
        search(Trainer(cluster_of(load_system("dgx-a100")), graph), {"zero": 0, "data": 8})


@pytest.mark.parametrize("zero", [0, 3])
def test_no_plan_holds_less_than_the_least(trainer, zero):
    for plan in itertools.islice(plans(trainer, {"zero": zero}), 0, None, 11):
        assert trainer.memory(plan).total * trainer.cluster.chips >= trainer.least_bytes


def test_a_search_in_which_nothing_fits_the_tile_ends_soon(monkeypatch):
    """The operator that blocks is found once and looked at first; each part that was refused is kept."""
    from siliconloom.evaluate import chip_machine

    simulated, real = [], chip_machine.simulate
    monkeypatch.setattr(chip_machine, "simulate", lambda *a, **k: simulated.append(a) or real(*a, **k))
    tiny = cluster_of(load_system("npu-x4-ring"), [("tile.scratchpad.capacity", "8 KiB")])
    graph = load_workload("gpt2", [("batch", "8"), ("layers", "2")])
    with pytest.raises(LoomError, match=r"cannot hold two tiles of each operand of operator embedding\.tokens"):
        search(Server(tiny, graph))
    assert len(simulated) == 1


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_model_too_large_for_all_chips_is_refused_before_anything_is_timed(phase, monkeypatch):
    monkeypatch.setattr("siliconloom.evaluate.chip_machine.simulate", None)
    graph = load_workload("llama3-70b", [("phase", phase), ("batch", "8")])
    with pytest.raises(LoomError, match=r"no plan fits .* of llama3-70b are .* even when all 4 chips share them"):
        search(Server(cluster_of(load_system("npu-x4-ring")), graph))


def test_a_microbatch_larger_than_a_replicas_share_is_refused(cluster):
    graph = load_workload("llama3-8b", [("phase", "decode"), ("batch", "8")])
    with pytest.raises(LoomError, match=r"^plan.microbatch 9223372036854775807: a replica has 1 sequences"):
        search(Server(cluster, graph), {"microbatch": 2**63 - 1})


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-5, 1e-1), st.floats(1e4, 1e10), st.integers(2, 32))
def test_fused_sums_lie_between_ideal_and_sequential(product, size, chips):
    """Fusing never loses more than the steps' latency, arbitration never loses, and nothing beats the ideal."""
    found = fuse(product, size, chips, bandwidth=75e9, latency=500e-9, memory=1e12)
    tick = 1e-12 * 4 * chips
    assert found.ideal <= found.arbitrated + tick
    assert found.arbitrated <= found.triggered + tick
    assert found.arbitrated <= found.sequential + tick


@pytest.mark.parametrize(("data", "tensor", "expert"), [(1, 8, 8), (2, 4, 4), (1, 8, 2), (4, 2, 8), (8, 1, 16)])
def test_experts_that_do_not_divide_are_told_what_would(cluster, data, tensor, expert):
    planner = Server(cluster, load_workload("mixtral-8x7b", [("batch", "8")]))
    plan = Plan(data=data, tensor=tensor, expert=expert)
    with pytest.raises(LoomError, match=f"plan.expert {expert} does not divide the {data} groups of {tensor}") as told:
        planner.check(plan)
    _, named, value = str(told.value).partition("; plan.expert_tensor=")
    assert bool(named) == (expert <= data * tensor)
    if named:
        planner.check(msgspec.structs.replace(plan, expert_tensor=int(value.split()[0])))
