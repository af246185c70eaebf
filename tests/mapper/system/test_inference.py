"""Plans of prompts and tokens: against single chips, brute force, floors; our own chips, systems of several kinds."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from siliconloom.arch import LoomError, NotSupported, load_system
from siliconloom.cli import app
from siliconloom.evaluate.chip import simulate
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.search import plans, search
from siliconloom.mapper.system.stages import deal
from siliconloom.mapper.system.training import Trainer
from siliconloom.workloads import load_workload

RING = """
kind: system
name: four
chips: [{chip: npu-datacenter, count: 4}]
topology: {kind: ring}
link: {bandwidth: 50 GB/s, latency: 500 ns}
"""
MIXED = """
kind: system
name: mixed
chips: [{chip: a100, count: 8}, {chip: h100, count: 8}]
topology: {kind: hierarchical, chips_per_leaf: 8, uplink: {bandwidth: 25 GB/s, latency: 2500 ns}}
link: {count: 12, bandwidth: 25 GB/s, latency: 500 ns}
"""


def workload(model, phase="decode", **sets):
    """With the length that the phase has, where both are given or only the other one is."""
    lengths = {name: sets.pop(name) for name in ("sequence", "context") if name in sets}
    if lengths:
        name, other = ("context", "sequence") if phase == "decode" else ("sequence", "context")
        sets[name] = lengths.get(name, lengths.get(other))
    return load_workload(model, [("phase", phase), *((k, str(v)) for k, v in sets.items())])


@pytest.fixture(scope="module")
def node():
    return cluster_of(load_system("dgx-h100"))


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    path = tmp_path_factory.mktemp("systems") / "four.yaml"
    path.write_text(RING)
    return cluster_of(load_system(str(path)))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    path = tmp_path_factory.mktemp("systems") / "mixed.yaml"
    path.write_text(MIXED)
    return cluster_of(load_system(str(path)))


def brute_force(times, first, last, kinds):
    layers, stages = len(times[0]), len(kinds)
    best = float("inf")
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        bounds = [0, *cuts, layers]
        work = [sum(times[k][bounds[s] : bounds[s + 1]]) for s, k in enumerate(kinds)]
        work[0] += first[kinds[0]]
        work[-1] += last[kinds[-1]]
        best = min(best, max(work))
    return best


@pytest.mark.slow(seconds=1)
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_layers_are_dealt_as_well_as_any_way(data):
    """The slowest stage equals brute force's, for stages of different chips and layers of different work."""
    layers = data.draw(st.integers(1, 9))
    stages = data.draw(st.integers(1, layers))
    time = st.floats(0.1, 10)
    times = [data.draw(st.lists(time, min_size=layers, max_size=layers)) for _ in range(2)]
    first, last = ([data.draw(time) for _ in range(2)] for _ in range(2))
    kinds = [data.draw(st.integers(0, 1)) for _ in range(stages)]
    counts = deal(times, first, last, kinds)
    assert sum(counts) == layers
    assert min(counts) >= 1
    at, slowest = 0, 0.0
    for stage, (count, kind) in enumerate(zip(counts, kinds, strict=True)):
        work = sum(times[kind][at : at + count])
        work += first[kind] * (stage == 0) + last[kind] * (stage == stages - 1)
        slowest, at = max(slowest, work), at + count
    if layers % stages or len(set(kinds)) > 1 or len(set(times[kinds[0]])) > 1:
        assert slowest == pytest.approx(brute_force(times, first, last, kinds), rel=1e-6)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_search_finds_what_trying_everything_finds(node, phase):
    server = Server(node, workload("llama3-8b", phase, batch=16, sequence=512))
    found = search(server, {}, keep=3)
    every = sorted(server.step(p).seconds for p in plans(server, {}) if p.data <= 16)
    assert [f.step.seconds for f in found.best] == pytest.approx(every[:3])
    for step in (f.step for f in found.best):
        assert step.seconds >= server.bound


@pytest.mark.slow(seconds=1)
def test_a_plan_of_one_chip_is_the_chips_own_simulation(ring):
    """Four replicas of one sequence each take what the chip simulator takes for one."""
    server = Server(ring, workload("gpt2", batch=4, context=256, layers=3))
    step = server.step(Plan(data=4, microbatch=0))
    chip = ring.machine.chip
    one = simulate(chip, workload("gpt2", batch=1, context=256, layers=3))
    assert step.seconds == pytest.approx(one.seconds, rel=0.02)
    assert step.exposed == 0


@pytest.mark.slow(seconds=1.5)
def test_our_chips_on_a_ring_share_products(ring):
    server = Server(ring, workload("gpt3-7b", batch=4, context=256, precision="int8"))
    alone, shared = server.step(Plan(pipeline=4, microbatch=0)), server.step(Plan(tensor=4, microbatch=0))
    assert shared.seconds < alone.seconds
    assert shared.exposed > 0
    assert shared.memory.weights * 3.9 < server.step(Plan(data=4, microbatch=0)).memory.weights
    assert len(search(server).best) >= 2


def test_faster_chips_get_more_layers(mixed):
    trainer = Trainer(mixed, workload("llama3-8b", "training", batch=16, sequence=1024))
    step = trainer.step(Plan(data=8, pipeline=2, microbatch=1, zero=1))
    slow, fast = step.stages
    assert slow + fast == 32
    assert fast > slow * 1.5
    level = Trainer(cluster_of(load_system("dgx-a100x128", [("chips", "[{chip: a100, count: 16}]")])), trainer.graph)
    assert step.seconds < level.step(Plan(data=8, pipeline=2, microbatch=1, zero=1)).seconds


def test_replicas_of_different_chips_wait_for_the_slowest(mixed):
    trainer = Trainer(mixed, workload("gpt2", "training", batch=16))
    both = trainer.step(Plan(data=16, microbatch=1))
    level = Trainer(cluster_of(load_system("dgx-a100x128", [("chips", "[{chip: a100, count: 16}]")])), trainer.graph)
    assert both.pipeline == pytest.approx(level.step(Plan(data=16, microbatch=1)).pipeline)


@pytest.mark.parametrize("phase", ["prefill", "training"])
def test_experts_apart_need_less_memory_and_more_messages(node, phase):
    planner = (Trainer if phase == "training" else Server)(node, workload("mixtral-8x7b", phase, batch=8))
    together, apart = (planner.step(Plan(data=8, expert=e, microbatch=1)) for e in (1, 8))
    assert apart.memory.weights * 4 < together.memory.weights
    assert apart.exposed - apart.gradients > together.exposed - together.gradients
    tensor = planner.step(Plan(tensor=8, expert=8, expert_tensor=1, microbatch=1))
    assert tensor.memory.weights < apart.memory.weights


def test_uneven_experts_make_all_wait(node):
    server = Server(node, workload("mixtral-8x7b", "prefill", batch=8))
    even, uneven = (server.step(Plan(data=8, expert=8, microbatch=1, expert_load=x)) for x in (1.0, 2.0))
    assert even.seconds < uneven.seconds < 2 * even.seconds
    assert even.exposed < uneven.exposed


@pytest.mark.parametrize("overlap", ["tokens", "tiles", "ladder", "nano"])
def test_overlap_hides_messages_and_nothing_else(node, overlap):
    """Never slower than in line; never faster than the work or the messages alone."""
    for phase, sets in (("prefill", {"batch": 2, "sequence": 4096}), ("decode", {"batch": 64, "context": 1024})):
        server = Server(node, workload("llama3-8b", phase, **sets))
        line = server.step(Plan(tensor=8, microbatch=0))
        beside = server.step(Plan(tensor=8, microbatch=0, overlap=overlap))
        assert beside.seconds <= line.seconds * (1 + 1e-9)
        assert beside.seconds >= server.bound
        if overlap == "ladder":
            assert beside.seconds >= (line.seconds - line.exposed) * (1 - 1e-9)
            assert beside.seconds < line.seconds


@pytest.mark.parametrize("overlap", ["tokens", "tiles", "ladder", "nano"])
def test_requests_of_one_length_overlap_as_a_batch_of_them(node, overlap):
    """Of unequal ones halves of each take turns: the step is faster than in line, and no faster than its work."""
    plan = {"tensor": 8, "microbatch": 0}
    alike = Server(node, load_workload("llama3-8b", [("requests", "[{new: 1, context: 1023, count: 64}]")]))
    batch = Server(node, workload("llama3-8b", "decode", batch=64, context=1024))
    line, beside = (alike.step(Plan(**plan, overlap=o)).seconds for o in ("none", overlap))
    assert (line, beside) == (
        pytest.approx(batch.step(Plan(**plan)).seconds),
        pytest.approx(batch.step(Plan(**plan, overlap=overlap)).seconds),
    )
    steps = "[{new: 1024, context: 0, count: COUNT}, {new: 1, context: 1023, count: 64}]"
    mixed = Server(node, load_workload("llama3-8b", [("requests", steps.replace("COUNT", "2"))]))
    line, beside = (mixed.step(Plan(**plan, overlap=o)) for o in ("none", overlap))
    assert mixed.bound <= beside.seconds < line.seconds
    odd = Server(node, load_workload("llama3-8b", [("requests", steps.replace("COUNT", "3"))]))
    if overlap in ("tokens", "nano"):
        with pytest.raises(NotSupported, match="halves of 3 requests of 1024 tokens behind 0"):
            odd.step(Plan(**plan, overlap=overlap))
    else:
        assert odd.step(Plan(**plan, overlap=overlap)).seconds < odd.step(Plan(**plan)).seconds


def test_halves_take_turns_where_attention_beside_products_does_not_pay(node):
    """Many sequences with short contexts, whose products and sums are most of the work."""
    server = Server(node, workload("llama3-70b", "decode", batch=2048, context=64))
    tokens, nano, line = (
        server.step(Plan(tensor=8, microbatch=0, overlap=o)).seconds for o in ("tokens", "nano", "none")
    )
    assert server.bound <= tokens < nano < line  # norms within the sums are of the first


def test_shortcut_experts_travel_beside_attention(node):
    server = Server(
        node, workload("mixtral-8x7b", "prefill", batch=32)
    )  # fewer have whole waves to lose to the messages
    plan = {"data": 8, "expert": 8, "microbatch": 0}
    line, beside = server.step(Plan(**plan)), server.step(Plan(**plan, overlap="shortcut"))
    assert line.seconds - line.exposed <= beside.seconds * (1 + 1e-9)
    assert beside.seconds < line.seconds
    with pytest.raises(LoomError, match="has no experts"):
        Server(node, workload("gpt2")).step(Plan(tensor=4, data=2, overlap="shortcut"))


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_the_command_plans_inference(tmp_path):
    target = tmp_path / "plan.json"
    done = run(
        "plan",
        "dgx-h100",
        "llama3-70b",
        "--set",
        "workload.phase=decode",
        "--set",
        "workload.batch=64",
        "--json",
        str(target),
    )
    assert done.exit_code == 0, done.output
    result = json.loads(target.read_text())
    assert result["tokens_per_second"] == pytest.approx(64 / result["step_s"])
    assert result["memory"]["cache"] > 0
    assert result["step_s"] >= result["lower_bound_s"]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["plan.zero=1"], "plan.zero is for training"),
        (["plan.expert=2", "plan.data=8", "plan.tensor=1", "plan.pipeline=1"], "has no experts"),
        (["plan.tensor=8", "workload.batch=4096"], "no plan fits"),
        (["plan.data=3"], "plan: data 3 does not divide the 8 chips of dgx-h100"),
        (["plan.attention_chips=8"], "does not divide the 0 chips of dgx-h100 that are left"),
    ],
)
def test_bad_plans_of_inference(sets, message):
    assignments = [a for s in ["workload.phase=decode", *sets] for a in ("--set", s)]
    done = run("plan", "dgx-h100", "llama3-70b", *assignments)
    assert isinstance(done.exception, LoomError)
    assert message in str(done.exception)


def trainer(vocabulary=50257):
    sets = {"batch": 32, "layers": 16, "sequence": 512, "model.vocab_size": vocabulary}
    graph = workload("gpt2-medium", "training", **sets)
    return Trainer(cluster_of(load_system("dgx-a100")), graph)


def test_v_half_holds_half_of_what_1f1b_does():
    """Its bubble is larger, its fullest device's activations about half (Qi et al., 2024)."""
    planner = trainer(vocabulary=1000)
    plain, vee = (planner.step(Plan(pipeline=8, microbatch=1, schedule=s)) for s in ("1f1b", "v_half"))
    assert vee.memory.activations < 0.75 * plain.memory.activations
    assert vee.seconds >= planner.least(Plan(pipeline=8, microbatch=1, schedule="v_half")) * (1 - 1e-9)


def test_twice_the_memory_buys_a_smaller_bubble():
    planner = trainer()
    steps = [planner.step(Plan(pipeline=8, microbatch=1, schedule=s)) for s in ("1f1b", "zero_bubble", "zero_bubble_2")]
    assert steps[0].bubble > steps[1].bubble > steps[2].bubble
    assert steps[2].memory.activations > steps[1].memory.activations


def test_a_shared_vocabulary_levels_the_stages():
    """A vocabulary of 50,257 is as much work as several layers of this width: shared, no stage waits for the last."""
    planner = trainer()
    plain, shared = (planner.step(Plan(pipeline=8, microbatch=1, vocabulary=v)) for v in (False, True))
    assert shared.seconds < plain.seconds
    assert shared.bubble < plain.bubble
    with pytest.raises(LoomError, match="1f1b only"):
        planner.step(Plan(pipeline=8, microbatch=1, vocabulary=True, schedule="gpipe"))


def test_outer_steps_hide_the_sum_over_replicas():
    sets = [("topology.uplink.bandwidth", "5 GB/s"), ("chips", "[{chip: a100, count: 16}]")]
    planner = Trainer(cluster_of(load_system("dgx-a100x128", sets)), workload("gpt2", "training", batch=16))
    each, often, rare = (planner.step(Plan(data=16, microbatch=1, outer=k)) for k in (1, 2, 64))
    assert each.gradients > often.gradients > rare.gradients == 0
    assert rare.seconds == pytest.approx(rare.pipeline + rare.optimizer)


def test_hierarchical_partition_trades_memory_for_messages():
    """Shares within a node: the node's memory, and parameters that never cross the network."""
    planner = Trainer(
        cluster_of(load_system("dgx-a100x128", [("chips", "[{chip: a100, count: 32}]")])),
        workload("llama3-8b", "training", batch=32, sequence=1024),
    )
    whole, grouped = (planner.step(Plan(data=32, microbatch=1, zero=3, zero_group=g)) for g in (0, 8))
    assert grouped.memory.optimizer == pytest.approx(4 * whole.memory.optimizer)
    assert whole.memory.weights < grouped.memory.weights
    assert grouped.pipeline < whole.pipeline
    for group, message in ((5, "does not divide the 32 replicas"), (8, "nothing to share")):
        with pytest.raises(LoomError, match=message):
            planner.step(Plan(data=32, microbatch=1, zero=3 if group == 5 else 0, zero_group=group))


def test_shared_gradients_are_scattered_after_every_microbatch():
    planner = Trainer(cluster_of(load_system("dgx-a100")), workload("gpt2", "training", batch=64))
    one, four = (planner.step(Plan(data=8, microbatch=m, zero=2, overlap_gradients=False)) for m in (8, 2))
    state, part = (planner.step(Plan(data=8, microbatch=2, zero=z, overlap_gradients=False)) for z in (1, 2))
    assert part.seconds > state.seconds
    assert four.exposed > one.exposed


@pytest.mark.parametrize("overlap", ["tiles", "ladder"])
def test_messages_of_both_passes_go_beside_work(overlap):
    planner = Trainer(cluster_of(load_system("dgx-a100")), workload("llama3-8b", "training", batch=8, sequence=2048))
    plan = {"tensor": 8, "microbatch": 1, "zero": 1, "sequence_parallel": overlap == "tiles"}
    line, beside = (planner.step(Plan(**plan, overlap=o)) for o in ("none", overlap))
    assert beside.seconds < line.seconds
    assert beside.exposed < line.exposed
    blocks = [planner.model(Plan(**plan, overlap=o), 1).blocks[1] for o in ("none", overlap)]
    assert blocks[1].forward < blocks[0].forward
    assert blocks[1].backward < blocks[0].backward


GEMMA = {
    "model_type": "gemma3_text",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 14,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1000,
    "sliding_window": 16,
}


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b", "gpt2-xl", "gemma"])
def test_all_caches_are_the_workloads(node, tmp_path, model, phase):
    """Keys and values of all chips together, of layers with windows of their own, too."""
    if model == "gemma":
        path = tmp_path / "gemma.json"
        path.write_text(json.dumps(GEMMA))
        model = str(path)
    server = Server(node, workload(model, phase, batch=8, sequence=512, context=512))
    assert server.step(Plan(data=8, microbatch=1)).memory.cache * 8 == server.graph.kv_bytes
    assert server.step(Plan(data=8, microbatch=1)).memory.weights == server.graph.weight_bytes
