"""A trace of routing in a plan: the load that it gives is the plan's, as if that had been given."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError, load_system
from siliconloom.arch.planned import PlanResult
from siliconloom.arch.result import StepResult
from siliconloom.cli import main
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.mapper.experts import RoutingTrace
from siliconloom.mapper.system.experts import RoutedExperts, read_routed, routing_of_model
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.plan import Plan, parse_plan
from siliconloom.mapper.system.search import search
from siliconloom.mapper.system.training import Trainer
from siliconloom.workloads import Gemm, load_workload

LAYERS, EXPERTS = 4, 8
MODEL = ["mixtral-8x7b", "--set", f"workload.layers={LAYERS}", "--set", "workload.batch=8"]
WHOLE = {"data": 4, "tensor": 2, "pipeline": 1, "microbatch": 1}


def routed_of(loads, placement="balanced"):
    return RoutedExperts(RoutingTrace("made", "", 1, np.asarray(loads, float)), placement)


def loads_by(seed, sharp=1.0):
    return np.random.default_rng(seed).dirichlet(np.full(EXPERTS, sharp), size=LAYERS) * 2


@pytest.fixture(scope="module")
def node():
    return cluster_of(load_system("dgx-h100"))


@pytest.fixture(scope="module")
def graphs():
    sets = [("layers", str(LAYERS)), ("batch", "8")]
    return {
        phase: load_workload("mixtral-8x7b", [*sets, ("phase", phase)]) for phase in ("prefill", "decode", "training")
    }


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """File of 300 tokens, some of whose experts are popular."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    likes = rng.dirichlet(np.full(EXPERTS, 1.5), size=LAYERS)
    picks = np.stack(
        [np.stack([rng.choice(EXPERTS, 2, replace=False, p=likes[at]) for at in range(LAYERS)]) for _ in range(300)]
    )
    np.savetxt("trace.csv", picks.reshape(300, -1), fmt="%d", delimiter=",")
    return picks


def result(command, *sets):
    words = [each for key_value in sets for each in ("--set", key_value)]
    assert main([command, "dgx-h100", *MODEL, *words, "--json", "result.json"]) == 0
    with open("result.json") as file:
        return json.load(file)


def degrees(**more):
    return [f"plan.{key}={value}" for key, value in (WHOLE | more).items()]


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3", "llama3-8b"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_what_a_trace_must_be_of_is_read_off_the_model(model, phase):
    found = routing_of_model(load_workload(model, [("phase", phase)]))
    wanted = {"mixtral-8x7b": (32, 8, 2), "deepseek-v3": (58, 256, 8), "llama3-8b": (0, 1, 1)}
    assert (found.layers, found.experts, found.chosen) == wanted[model]


@pytest.mark.parametrize("placement", ["in_order", "balanced"])
@pytest.mark.parametrize("expert", [1, 2, 4, 8])
def test_uniform_routing_is_a_load_of_one(placement, expert, node, graphs):
    server = Server(node, graphs["prefill"], routed=routed_of(np.full((LAYERS, EXPERTS), 0.25), placement))
    plan = Plan(data=8, expert=expert, microbatch=1)
    assert server.loaded(plan) == plan


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 999), st.sampled_from([2, 4, 8]), st.sampled_from(["prefill", "decode", "training"]))
def test_a_plan_takes_what_it_takes_with_the_load_given(node, graphs, seed, expert, phase):
    loads = loads_by(seed)
    planner = (Trainer if phase == "training" else Server)(node, graphs[phase], routed=routed_of(loads, "in_order"))
    plan = planner.loaded(Plan(data=8, expert=expert, microbatch=1))
    rows = loads.reshape(LAYERS, expert, -1).sum(axis=2)
    assert plan.expert_load == pytest.approx((rows.max(axis=1) / (2 / expert)).mean(), rel=1e-9)
    plain = type(planner)(node, graphs[phase])
    given_load = Plan(data=8, expert=expert, microbatch=1, expert_load=plan.expert_load)
    assert planner.step(plan) == plain.step(given_load)
    assert planner.loaded(plan) == plan


@pytest.mark.slow(seconds=1)
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 999), st.sampled_from([2, 4]), st.sampled_from(["prefill", "decode", "training"]))
def test_balanced_experts_are_never_slower_than_in_order(node, graphs, seed, expert, phase):
    found = []
    for placement in ("balanced", "in_order"):
        routed = routed_of(loads_by(seed, 0.5), placement)
        planner = (Trainer if phase == "training" else Server)(node, graphs[phase], routed=routed)
        plan = planner.loaded(Plan(data=8, expert=expert, microbatch=1))
        found.append((plan.expert_load, planner.step(plan).seconds))
    assert found[0][0] <= found[1][0]
    assert found[0][1] <= found[1][1] * (1 + 1e-9)


@pytest.mark.slow(seconds=1)
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 999), st.integers(1, 3))
def test_copies_even_loads_and_cost_memory(node, graphs, seed, copies):
    server = Server(node, graphs["prefill"], routed=routed_of(loads_by(seed, 0.5)))
    plain = server.loaded(Plan(data=8, expert=4, microbatch=1))
    more = server.loaded(Plan(data=8, expert=4, microbatch=1, expert_copies=copies))
    assert 1 <= more.expert_load <= plain.expert_load
    held = [server.step(plan).memory.weights for plan in (plain, more)]
    bytes_of_an_expert = sum(
        o.weight_bytes * o.repeat / EXPERTS for o in server.graph.operators() if isinstance(o, Gemm) and o.chosen
    )
    assert held[1] - held[0] == pytest.approx(copies * bytes_of_an_expert)


@pytest.mark.slow(seconds=1)
def test_the_search_finds_each_plans_own_load(node, graphs):
    """Of every number of chips that hold different experts its own; the best is as good as the best with each given."""
    loads = loads_by(3)
    server = Server(node, graphs["prefill"], routed=routed_of(loads))
    found = search(server, {}, keep=50)
    by_expert = {f.plan.expert: f.plan.expert_load for f in found.best}
    assert len(by_expert) > 2
    for expert, load in by_expert.items():
        assert load == (1.0 if expert == 1 else routed_of(loads).load(Plan(expert=expert)))
    for expert, load in by_expert.items():
        given_load = search(
            Server(node, graphs["prefill"]), {"expert": expert, "expert_load": load} if expert > 1 else {"expert": 1}
        )
        mine = next(f for f in found.best if f.plan.expert == expert)
        assert given_load.best[0] == mine


def test_a_load_is_of_chips_that_hold_different_experts(node, graphs):
    """One chip's is even: a given load made plans slower that have none."""
    found = search(Server(node, graphs["prefill"]), {"expert_load": 2.0}, keep=50)
    alone = [f.plan.expert_load for f in found.best if f.plan.expert == 1]
    assert alone
    assert set(alone) == {1.0}
    assert {f.plan.expert_load for f in found.best if f.plan.expert > 1} == {2.0}


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("phase", ["prefill", "decode", "training"])
@pytest.mark.parametrize("placement", ["balanced", "in_order"])
def test_sim_and_plan_say_the_same_and_what_was_found(trace, phase, placement):
    asked = [f"workload.phase={phase}", *degrees(expert=4)]
    keys = ["plan.expert_routing=trace.csv", f"plan.expert_placement={placement}"]
    simulated, planned = (result(command, *asked, *keys) for command in ("sim", "plan"))
    StepResult.model_validate(simulated)
    PlanResult.model_validate(planned)
    assert simulated["seconds"] == planned["step_s"]
    assert simulated["experts"] == planned["experts"]
    found = simulated["experts"]
    assert (found["routing"], found["placement"], found["tokens"]) == ("trace.csv", placement, 300)
    assert found["load"] == planned["plan"]["expert_load"]
    by_hand = []
    for layer, chips in enumerate(found["chips"]):
        assert sorted(e for chip in chips for e in chip) == list(range(EXPERTS))
        rows = [int(np.isin(trace[:, layer], chip).sum()) for chip in chips]
        by_hand.append(max(rows) / (sum(rows) / 4))
    assert found["layer_loads"] == pytest.approx(by_hand)
    assert found["load"] == pytest.approx(np.mean(by_hand), abs=1e-11)
    for answer in (simulated, planned):
        assert answer["asked"]["plan"]["expert_routing"] == "trace.csv"
        assert answer["asked"]["plan"]["expert_placement"] == placement
        assert "expert_load" not in answer["asked"]["plan"]
        assert any("experts: load" in note for note in answer["notes"])
    given_load = f"plan.expert_load={found['load']!r}"
    assert result("sim", *asked, given_load)["operators"] == simulated["operators"]
    assert result("sim", *asked, given_load)["seconds"] == simulated["seconds"]
    assert result("plan", *asked, given_load)["step_s"] == planned["step_s"]


def test_tokens_after_prompts_have_a_trace_of_their_own(trace):
    sets = [*degrees(), "decode.expert=4", "decode.expert_routing=trace.csv"]
    found = result("plan", *sets)
    assert "experts" not in found
    assert found["decode"]["experts"]["load"] == found["decode"]["plan"]["expert_load"] > 1
    PlanResult.model_validate(found)


@pytest.mark.slow(seconds=1)
def test_our_own_chips_wait_for_the_fullest(trace, tmp_path):
    (tmp_path / "four.yaml").write_text(
        "kind: system\nname: four\nchips: [{chip: npu-datacenter, count: 4}]\n"
        "topology: {kind: ring}\nlink: {bandwidth: 50 GB/s, latency: 1 us}\n"
    )
    times = {}
    for placement in ("in_order", "balanced"):
        sets = ["workload.phase=decode", "plan.data=4", "plan.tensor=1", "plan.pipeline=1", "plan.expert=4"]
        sets += ["plan.expert_routing=trace.csv", f"plan.expert_placement={placement}"]
        words = [each for key_value in sets for each in ("--set", key_value)]
        assert main(["sim", "four.yaml", *MODEL, *words, "--json", "result.json"]) == 0
        times[placement] = json.loads((tmp_path / "result.json").read_text())
    assert times["balanced"]["experts"]["load"] < times["in_order"]["experts"]["load"]
    assert times["balanced"]["seconds"] <= times["in_order"]["seconds"]


@pytest.mark.parametrize(
    ("command", "sets", "said"),
    [
        ("sim", ["plan.expert_routing=no.csv"], "plan.expert_routing: changes nothing: plan.expert is 1"),
        ("plan", [*degrees(), "plan.expert_routing=no.csv"], "plan.expert_routing: changes nothing: plan.expert is 1"),
        ("plan", ["plan.expert=1", "plan.expert_routing=no.csv"], "plan.expert_routing: changes nothing: plan.expert"),
        ("plan", [*degrees(), "plan.expert_load=2"], "plan.expert_load: changes nothing: plan.expert is 1"),
        ("plan", ["plan.expert=4", "plan.expert_routing=no.csv"], "no.csv: cannot be read"),
        ("plan", ["plan.expert_routing=trace.csv", "plan.expert_load=1"], "plan.expert_routing finds it; give one"),
        ("plan", ["plan.expert_placement=balanced"], "changes nothing without plan.expert_routing"),
        (
            "plan",
            ["plan.expert=8", "plan.expert_placement=in_order", "plan.expert_routing=trace.csv"],
            "plan.expert_placement: changes nothing: each of the 8 chips has one expert",
        ),
        ("plan", ["plan.expert_placement=affinity"], "must be one of balanced, in_order"),
        ("plan", ["plan.expert_routing="], "must be the name of a file"),
        ("plan", ["plan.expert=4", "plan.expert_copies=7"], "a chip has room for 6 copies"),
        ("plan", [*degrees(), "plan.expert_copies=1"], "plan.expert_copies: changes nothing: plan.expert is 1"),
        (
            "plan",
            ["workload.phase=training", "plan.expert=4", "plan.expert_copies=1"],
            "plan.expert_copies is for inference",
        ),
        (
            "plan",
            ["plan.data=1", "plan.tensor=8", "plan.expert_tensor=8", "plan.expert_routing=trace.csv"],
            "plan.expert_routing: changes nothing: in no plan that fits",
        ),
        (
            "plan",
            ["plan.expert=4", "workload.layers=2", "plan.expert_routing=trace.csv"],
            "trace.csv:1:1: has 8 numbers",
        ),
        ("plan", ["plan.expert=3", "plan.expert_routing=trace.csv"], "3"),
    ],
)
def test_what_changes_nothing_or_is_wrong_is_refused(trace, capsys, command, sets, said):
    words = [each for key_value in sets for each in ("--set", key_value)]
    assert main([command, "dgx-h100", *MODEL, *words]) == 2
    found = capsys.readouterr().err.strip()
    assert said in found
    assert "\n" not in found


@pytest.mark.parametrize(
    "key", ["expert_routing=no.csv", "expert_load=2", "expert_copies=1", "expert_placement=in_order"]
)
@pytest.mark.parametrize("command", ["sim", "plan"])
def test_a_dense_model_has_no_experts(capsys, command, key):
    assert main([command, "dgx-h100", "llama3-8b", "--set", f"plan.{key}"]) == 2
    assert f"plan.{key.partition('=')[0]}: changes nothing: the model has no experts" in capsys.readouterr().err


def test_keys_without_a_trace_read_nothing(graphs):
    assert read_routed(parse_plan([("expert", "4"), ("expert_load", "1.5")]), graphs["prefill"]) is None
    with pytest.raises(LoomError, match="cannot be read"):
        read_routed(parse_plan([("expert_routing", "no such file")]), graphs["prefill"])
