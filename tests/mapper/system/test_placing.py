"""Ranks on chips: against every permutation, against the order described, and training runs whose chips fail."""

import json
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from siliconloom.arch import LoomError, load_system
from siliconloom.arch.network import LinkPort, Topology, wire
from siliconloom.cli import app
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.evaluate.plan import read_plan_input
from siliconloom.mapper.system import placing
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.placing import place, rates
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.search import search
from siliconloom.render.plan import runs_of
from siliconloom.workloads import load_workload

SLOW = "{{between: [{0}, {1}], bandwidth: 1 GB/s}}"


def ring(tmp_path, slow, chips=4):
    """Chips in a circle, of which some links are slow."""
    edges = ", ".join(SLOW.format(a, (a + 1) % chips) for a in slow)
    path = tmp_path / "uneven.yaml"
    path.write_text(
        f"kind: system\nname: uneven\nchips: [{{chip: npu-datacenter, count: {chips}}}]\n"
        f"topology: {{kind: ring, edges: [{edges}]}}\nlink: {{bandwidth: 50 GB/s, latency: 500 ns}}\n"
    )
    return cluster_of(load_system(str(path)))


def decode():
    sets = [("phase", "decode"), ("batch", "8"), ("context", "128"), ("layers", "4"), ("precision", "int8")]
    return load_workload("gpt3-7b", sets)


@pytest.mark.slow(seconds=1)
def test_small_systems_are_placed_as_well_as_any_way(tmp_path):
    """Tensor-parallel pairs end up on the fast links; the best of every plan and placement is found."""
    cluster = ring(tmp_path, slow=[0, 2])
    server, plan = Server(cluster, decode()), Plan(data=2, tensor=2, microbatch=4)
    places, step = place(server, plan)
    every = [Server(cluster.placed(p), server.graph).step(plan).seconds for p in permutations(range(4))]
    assert step.seconds == pytest.approx(min(every))
    assert step.seconds < server.step(plan).seconds
    assert {frozenset(places[:2]), frozenset(places[2:])} == {frozenset({1, 2}), frozenset({0, 3})}


@pytest.mark.slow(seconds=1)
def test_larger_systems_get_better_and_never_worse(tmp_path, monkeypatch):
    monkeypatch.setattr(placing, "TRIES", 40)
    cluster = ring(tmp_path, slow=[0, 2, 4, 6], chips=8)
    server, plan = Server(cluster, decode()), Plan(data=4, tensor=2, microbatch=2)
    places, step = place(server, plan)
    assert sorted(places) == list(range(8))
    assert step.seconds < server.step(plan).seconds


@pytest.mark.slow(seconds=1)
def test_alike_links_are_left_as_they_are(tmp_path):
    cluster = ring(tmp_path, slow=[])
    assert not cluster.uneven
    assert place(Server(cluster, decode()), Plan(tensor=4, microbatch=8))[0] == (0, 1, 2, 3)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12))
def test_rates_of_a_ring_fall_with_distance(chips):
    port = LinkPort.model_validate({"bandwidth": "12 GB/s", "latency": "1 ns"})
    found = rates(wire(Topology.model_validate({"kind": "ring"}), port, chips))
    hops = np.minimum(np.arange(chips), chips - np.arange(chips))
    assert found[0, 1:] == pytest.approx(12e9 / hops[1:])


def test_runs_are_put_together():
    assert runs_of((0, 5, 1, 2, 3, 4)) == "0, 5, 1 to 4"


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.slow(seconds=1)
def test_a_run_with_failures_takes_longer(tmp_path):
    target = tmp_path / "plan.json"
    sets = [
        "workload.phase=training",
        "workload.batch=16",
        "workload.sequence=1024",
        "run.steps=2000",
        "run.seeds=5",
        "run.mtbf=40 h",
        "run.restart=10 min",
    ]
    done = run("plan", "dgx-h100", "llama3-8b", *(a for s in sets for a in ("--set", s)), "--json", str(target))
    assert done.exit_code == 0, done.output
    found = json.loads(target.read_text())["run"]
    parts = ("useful_s", "checkpoints_s", "lost_s", "restart_s", "waiting_s")
    assert found["seconds"]["mean"] == pytest.approx(sum(found[p] for p in parts))
    assert found["seconds"]["p10"] >= found["ideal_s"] * (1 - 1e-12)  # a sum of 2,000 steps
    assert found["expected_s"] > found["ideal_s"]


@pytest.mark.slow(seconds=1)
def test_a_slow_stage_holds_the_pipeline_up(tmp_path):
    sets = [
        "workload.phase=training",
        "workload.batch=32",
        "workload.sequence=512",
        "plan.pipeline=4",
        "plan.tensor=2",
        "slow.stage=2",
        "slow.factor=2",
    ]
    target = tmp_path / "plan.json"
    trace = tmp_path / "trace.json"
    options = [*(a for s in sets for a in ("--set", s)), "--json", str(target), "--trace", str(trace)]
    done = run("plan", "dgx-h100", "gpt2-medium", *options)
    assert done.exit_code == 0, done.output
    found = json.loads(target.read_text())
    events = json.loads(trace.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    passes = {names[e["tid"]] for e in spans if e["cat"] in ("forward", "backward")}
    assert passes == {f"stage {stage}" for stage in range(4)}
    assert max(e["ts"] + e["dur"] for e in spans) * 1e-6 == pytest.approx(found["slow"]["step_s"], rel=1e-9)
    assert found["step_s"] * 1.3 < found["slow"]["step_s"] < found["step_s"] * 2
    far = ["slow.stage=9", "slow.factor=2", "workload.phase=training"]
    wrong = {"either stage or link": ["slow.factor=2"], "factor": ["slow.stage=1"], "device must be": far}
    for message, sets in wrong.items():
        done = run("plan", "dgx-h100", "gpt2", *(a for s in sets for a in ("--set", s)))
        assert message in str(done.exception)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("step", "5", "did you mean 'steps'"),
        ("restart", "-5 s", "negative"),
        ("steps", "many", "integer"),
        ("mtbf", "5 h", r"steps.*missing|missing.*steps"),
    ],
)
def test_bad_runs(key, value, message):
    with pytest.raises(LoomError, match=message):
        read_plan_input(
            "dgx-h100",
            "gpt2",
            [(f"run.{k}", v) for k, v in ([(key, value)] if key == "mtbf" else [("steps", "9"), (key, value)])],
        )


@pytest.mark.slow(seconds=1)
def test_the_search_places_its_best_plans(tmp_path):
    cluster = ring(tmp_path, slow=[0, 2])
    best = search(Server(cluster, decode()), {"tensor": 2}, keep=2).best
    assert all(f.plan.tensor == 2 for f in best)
