"""What a training step keeps on the host: transfers and updates beside passes, and bytes on either side."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch import LoomError, NotSupported, load_system
from siliconloom.cli import main
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.mapper.system.host_memory import UpdatedBlock, left_after, waited
from siliconloom.mapper.system.plan import Plan, parse_plan
from siliconloom.mapper.system.search import plans
from siliconloom.mapper.system.training import Trainer
from siliconloom.sim.system.streams import Tasks, run_tasks
from siliconloom.workloads import load_workload

PICO = 10**12
TIMES = st.lists(st.tuples(*(st.integers(0, 40) for _ in range(3))), min_size=1, max_size=9)


def finish(tasks):
    return run_tasks(tasks).finish / PICO


@given(TIMES)
def test_a_pass_waits_as_streams_have_it(rows):
    """What a block needs comes beside the block before, what it makes leaves beside the next, and the last's stays."""
    comes, leaves, work = zip(*rows, strict=True)
    tasks, passes, gone = Tasks(), [], []
    for number, (come, leave, seconds) in enumerate(rows):
        load = tasks.add("come", 1, come * PICO)
        if number > 1:
            tasks.wait(load, passes[number - 2])
        passes.append(tasks.add("pass", 0, seconds * PICO))
        tasks.wait(passes[-1], load)
        if number > 1:
            tasks.wait(passes[-1], gone[number - 2])
        if number < len(rows) - 1:
            gone.append(tasks.add("leave", 2, leave * PICO))
            tasks.wait(gone[-1], passes[-1])
    assert waited(comes, leaves, work, 1.0) == pytest.approx(finish(tasks) - sum(work))


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=9),
    st.sampled_from([1.0, 2.0]),
    st.booleans(),
)
def test_an_update_follows_gradients_as_streams_have_it(rows, element, returns):
    """Gradients over the link, the update in the host's memory, parameters back over the link's other way."""
    tasks = Tasks()
    made = None
    for number, (seconds, parameters) in enumerate(rows):
        done = tasks.add(f"pass {number}", 0, seconds * PICO)
        gone = tasks.add(f"gradients {number}", 1, 2 * parameters * PICO)
        tasks.wait(gone, done)
        made = tasks.add(f"update {number}", 2, round((26 + element) * parameters * PICO))
        tasks.wait(made, gone)
        if returns:
            back = tasks.add(f"back {number}", 3, round(element * parameters * PICO))
            tasks.wait(back, made)
    blocks = [UpdatedBlock(seconds, parameters, element) for seconds, parameters in rows]
    left = left_after(blocks, 1.0, 1.0, returns=returns)
    assert left == pytest.approx(finish(tasks) - sum(seconds for seconds, _ in rows))


@pytest.fixture(scope="module")
def trainer():
    graph = load_workload("llama3-8b", [("phase", "training"), ("batch", "16"), ("sequence", "2048")])
    return Trainer(cluster_of(load_system("dgx-a100")), graph)


@pytest.fixture(scope="module")
def alone(trainer):
    return Trainer(trainer.cluster.part(1), trainer.graph)


HOST = {"host_bandwidth": 25e9, "host_memory_bandwidth": 50e9}
EASY = {"host_bandwidth": 1e18, "host_memory_bandwidth": 1e18}


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_the_optimizer_on_the_host_is_as_its_bytes_say(trainer, zero):
    """Of 16 bytes a parameter 12 lie on the host, whose memory moves 26 for an update, and two as the chip has it."""
    on_chip = trainer.step(Plan(data=8, zero=zero))
    easy, hard = (trainer.step(Plan(data=8, zero=zero, offload="optimizer", **host)) for host in (EASY, HOST))
    assert easy.seconds == pytest.approx(on_chip.seconds - on_chip.optimizer)
    assert (hard.optimizer, hard.gradients, hard.sharing) == (0.0, on_chip.gradients, on_chip.sharing)
    assert hard.memory.host == on_chip.memory.optimizer
    assert hard.memory.total == pytest.approx(on_chip.memory.total - on_chip.memory.optimizer)
    parameters = trainer.graph.parameters / (8 if zero else 1)
    whole = parameters * (26 + 2) / HOST["host_memory_bandwidth"]
    backward = sum(trainer.stages(Plan(data=8)).backward) + sum(trainer.stages(Plan(data=8)).weight)
    assert whole - backward <= hard.host <= whole
    assert hard.seconds == pytest.approx(easy.seconds + hard.host)


def kept_bytes(block, plan):
    """What a block's forward pass keeps for the backward one; what the head keeps is read at once."""
    if block.section.value == "head" or not plan.offload_activations:
        return 0.0
    if plan.recompute == "full":
        return block.entering or block.kept
    return block.kept - (block.scores if plan.recompute == "selective" else 0.0)


def by_streams(blocks, plan, passes):
    """Seconds of a microbatch's passes, one after the other, each beside what comes and what leaves."""
    total, speed = 0.0, plan.host_bandwidth
    kept = [kept_bytes(b, plan) for b in blocks]
    fetched = [b.weight_bytes if plan.offload == "parameters" else 0.0 for b in blocks]
    for forward in (True, False):
        order = range(len(blocks)) if forward else range(len(blocks))[::-1]
        tasks, done, gone = Tasks(), [], []
        for place, number in enumerate(order):
            inbound = fetched[number] + (0.0 if forward else kept[number])
            come = tasks.add("come", 1, round((inbound if forward or place else 0.0) / speed * PICO))
            if place > 1:
                tasks.wait(come, done[place - 2])
            done.append(tasks.add("pass", 0, round(passes[number][not forward] * PICO)))
            tasks.wait(done[-1], come)
            if forward and place > 1:
                tasks.wait(done[-1], gone[place - 2])
            if forward and place < len(blocks) - 1:
                gone.append(tasks.add("leave", 2, round(kept[number] / speed * PICO)))
                tasks.wait(gone[-1], done[-1])
        total += finish(tasks)
    return total


def update_by_streams(blocks, plan, passes):
    """Seconds of the update behind the last backward pass."""
    tasks, (speed, updates) = Tasks(), (plan.host_bandwidth, plan.host_memory_bandwidth)
    for block, (_, seconds) in list(zip(blocks, passes, strict=True))[::-1]:
        done = tasks.add("pass", 0, round(seconds * PICO))
        sent = tasks.add("gradients", 1, round(block.parameters * 2 / speed * PICO))
        tasks.wait(sent, done)
        made = tasks.add("update", 2, round((26 * block.parameters + block.weight_bytes) / updates * PICO))
        tasks.wait(made, sent)
        if plan.offload == "optimizer":
            back = tasks.add("back", 3, round(block.weight_bytes / speed * PICO))
            tasks.wait(back, made)
    return finish(tasks) - sum(seconds for _, seconds in passes)


AGAIN = {"none": lambda b: 0.0, "selective": lambda b: b.attention, "full": lambda b: b.forward if b.entering else 0.0}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from([1, 2, 16]),
    st.sampled_from(["none", "optimizer", "parameters"]),
    st.booleans(),
    st.sampled_from([2e9, 2e10, 1e11]),
    st.sampled_from([1e10, 1e11]),
)
def test_a_step_takes_what_streams_say(alone, recompute, microbatch, offload, kept, speed, updates):
    """One chip: every microbatch's passes beside the link, and what is left of the update behind the last one."""
    if offload == "none" and not kept:
        return
    plan = Plan(microbatch=microbatch, recompute=recompute, attention="unfused")
    hosted = replace(plan, offload=offload, offload_activations=kept, host_bandwidth=speed)
    if offload != "none":
        hosted = replace(hosted, host_memory_bandwidth=updates)
    blocks = [b for b in alone.layers.blocks(plan, microbatch) for _ in range(b.repeat)]
    passes = [(b.forward, b.backward + b.weight + AGAIN[recompute](b)) for b in blocks]
    step, bare = alone.step(hosted), alone.step(plan)
    expected = 16 // microbatch * by_streams(blocks, hosted, passes)
    expected += update_by_streams(blocks, hosted, passes) if offload != "none" else bare.optimizer
    if offload == "optimizer" and kept:  # parameters that return share the link with activations
        assert step.seconds >= expected * (1 - 1e-6)
    else:
        assert step.seconds == pytest.approx(expected, rel=1e-6)
    updated = bare.optimizer if offload != "none" else 0.0
    assert step.host == pytest.approx(step.seconds - bare.seconds + updated, rel=1e-6, abs=1e-9)
    assert step.seconds >= alone.least(hosted) * (1 - 1e-9)
    assert alone.least(hosted) >= alone.least(plan) - bare.optimizer - 1e-9


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from([(8, 1), (2, 4), (1, 8), (4, 2)]),
    st.sampled_from(["none", "optimizer", "parameters"]),
    st.booleans(),
    st.sampled_from([1, 2]),
)
def test_bytes_are_on_the_chip_or_on_the_host(trainer, recompute, zero, degrees, offload, kept, microbatch):
    """12 bytes of state a parameter, two of itself, and what all layers but two keep; shared as replicas share."""
    data, pipeline = degrees
    plan = Plan(data=data, pipeline=pipeline, zero=zero, microbatch=microbatch, recompute=recompute)
    hosted = replace(plan, offload=offload, offload_activations=kept, **HOST)
    near, far = trainer.memory(plan), trainer.memory(hosted)
    assert far.total <= near.total
    if pipeline == 1:  # of several stages another one may be the fullest
        assert far.optimizer == (near.optimizer if offload == "none" else 0.0)
        if offload == "none" or trainer.microbatches(plan) > 1:
            assert far.gradients == near.gradients
        parameters, expected = trainer.graph.parameters, 0.0
        if offload != "none":
            expected += 12 * parameters / (data if zero else 1)
        if offload == "parameters":
            expected += 2 * parameters / (data if zero == 3 else 1)
        every = [kept_bytes(b, hosted) for b in trainer.layers.blocks(plan, microbatch) for _ in range(b.repeat)]
        assert far.host == pytest.approx(expected + sum(every) - 2 * max(every))
    assert max(each.always.total + each.most for each in trainer.held(hosted)) <= far.total * (1 + 1e-9)


def test_stages_wait_in_fill_and_drain(trainer):
    """One microbatch of eight stages fetches every block in turn, but for the first of each backward pass."""
    plan = Plan(pipeline=8, microbatch=16, offload="parameters", host_bandwidth=1e6, host_memory_bandwidth=1e15)
    stages = [kinds[0] for kinds in trainer.stages(plan).blocks]
    moved = 2 * sum(b.weight_bytes for part in stages for b in part) - sum(part[-1].weight_bytes for part in stages)
    gradients = max(sum(2 * b.parameters for b in part) for part in stages)
    assert trainer.step(plan).seconds == pytest.approx((moved + gradients) / 1e6, rel=0.01)


def test_activations_of_stages_that_are_not_the_last_all_come_back(trainer):
    plan = Plan(pipeline=8, microbatch=16, offload_activations=True, host_bandwidth=1e6)
    stages = [kinds[0] for kinds in trainer.stages(plan).blocks]
    kept = [[kept_bytes(b, plan) for b in part] for part in stages]
    moved = sum(2 * sum(part) for part in kept[:-1]) + 2 * sum(kept[-1][:-1])
    assert trainer.step(plan).seconds == pytest.approx(moved / 1e6, rel=0.01)


def test_forward_passes_that_all_come_first_leave_nothing_for_backward_ones(trainer):
    """Under gpipe every block's parameters come twice, and all that is kept leaves and comes back."""
    for more in ({"offload": "parameters", "host_memory_bandwidth": 1e15}, {"offload_activations": True}):
        plan = Plan(data=8, microbatch=1, schedule="gpipe", host_bandwidth=1e6, **more)
        blocks = trainer.stages(plan).blocks[0][0]
        each = sum(b.weight_bytes if "offload" in more else kept_bytes(b, plan) for b in blocks)
        gradients = 2 * trainer.graph.parameters if "offload" in more else 0
        assert trainer.step(plan).seconds == pytest.approx((2 * 2 * each + gradients) / 1e6, rel=0.01)


def test_schedules_whose_weights_have_passes_of_their_own_keep_activations_near(trainer):
    plan = Plan(pipeline=8, microbatch=1, schedule="zero_bubble", offload_activations=True, host_bandwidth=25e9)
    with pytest.raises(NotSupported, match="passes of weights read activations once more"):
        trainer.step(plan)
    given = {"data": 1, "tensor": 1, "pipeline": 8, "offload_activations": True, "host_bandwidth": 25e9}
    assert all(each.schedule in ("1f1b", "interleaved") for each in plans(trainer, given))
    near, far = (
        trainer.step(Plan(pipeline=8, schedule="zero_bubble", offload="parameters", **h)) for h in (EASY, HOST)
    )
    assert near.seconds <= far.seconds


def test_sums_behind_the_backward_pass_hold_the_update_up(trainer):
    plan = Plan(data=8, zero=1, offload="optimizer", overlap_gradients=False, **HOST)
    step, early = trainer.step(plan), trainer.step(replace(plan, overlap_gradients=True))
    whole = trainer.graph.parameters / 8 * 28 / HOST["host_memory_bandwidth"]
    assert step.host >= whole > early.host


def test_experts_on_the_host_are_shared_as_experts_are():
    graph = load_workload("mixtral-8x7b", [("phase", "training"), ("batch", "8"), ("sequence", "512"), ("layers", "2")])
    mixture = Trainer(cluster_of(load_system("dgx-a100")), graph)
    plan = Plan(data=8, expert=8, zero=1, offload="optimizer", host_bandwidth=1e15, host_memory_bandwidth=1e6)
    blocks = [b for b in mixture.layers.blocks(plan, 1) for _ in range(b.repeat)]
    own = sum(b.parameters / 8 + b.expert_parameters for b in blocks)  # one chip has an expert by itself
    assert mixture.step(plan).host == pytest.approx(28 * own / 1e6, rel=1e-3)
    with pytest.raises(LoomError, match=r"plan.offload optimizer: is not of replicas that step by themselves"):
        mixture.step(replace(plan, outer=2, zero=0))


def test_gradients_of_one_microbatch_leave_as_they_are_made(trainer):
    one, two = (trainer.memory(Plan(data=8, microbatch=m, offload="optimizer", **HOST)) for m in (2, 1))
    assert two.gradients == 2 * trainer.graph.parameters
    assert one.gradients < two.gradients / 5


def test_parameters_on_the_host_come_twice_a_microbatch(trainer):
    """Of a link that nothing else can be beside: their bytes forward and, but for the last block's, backward."""
    slow = {"host_bandwidth": 1e6, "host_memory_bandwidth": 1e18}
    plan = Plan(data=8, zero=3, offload="parameters", **slow)
    step, part = trainer.step(plan), trainer.layers.blocks(plan, 1)
    size = sum(b.weight_bytes * b.repeat for b in part) / 8
    head = next(b for b in part if b.section.value == "head").weight_bytes / 8
    gradients = size  # leave once, in the same format; the update takes no time, and parameters stay
    assert step.host == pytest.approx((2 * (2 * size - head) + gradients) / 1e6, rel=1e-3)
    assert step.memory.weights == pytest.approx(2 * max(b.weight_bytes for b in part))


def test_activations_on_the_host_leave_and_come_back(trainer):
    near = trainer.step(Plan(data=8, zero=3))
    easy, hard = (trainer.step(Plan(data=8, zero=3, offload_activations=True, host_bandwidth=b)) for b in (1e18, 1e6))
    assert easy.seconds == pytest.approx(near.seconds)
    assert easy.memory.total + easy.memory.host == pytest.approx(near.memory.total)
    layers = [b for b in trainer.layers.blocks(Plan(data=8), 1) if b.section.value == "layer"]
    kept = sum(b.kept * b.repeat for b in layers)
    assert hard.host == pytest.approx(2 * 2 * kept / 1e6, rel=1e-3)  # two microbatches, there and back


def test_memory_over_time_is_under_that_of_the_step(trainer):
    plan = Plan(data=2, tensor=1, pipeline=4, microbatch=1, offload_activations=True, host_bandwidth=25e9)
    most = max(held.most + held.always.total for held in trainer.held(plan))
    assert most <= trainer.memory(plan).total * (1 + 1e-9)
    kept = Plan(data=2, tensor=1, pipeline=4, microbatch=1)
    assert max(held.most for held in trainer.held(plan)) < max(held.most for held in trainer.held(kept)) / 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"offload": "optimizer"}, "plan.offload optimizer: needs plan.host_bandwidth"),
        ({"offload": "optimizer", "host_bandwidth": "1GB/s"}, "needs plan.host_memory_bandwidth"),
        ({"offload_activations": "true"}, "plan.offload_activations: needs plan.host_bandwidth"),
        ({"host_bandwidth": "1GB/s"}, "plan.host_bandwidth: changes nothing without plan.offload or"),
        ({"host_memory_bandwidth": "1GB/s"}, "plan.host_memory_bandwidth: changes nothing without plan.offload"),
        ({"offload": "optimiser"}, "must be one of none, optimizer, parameters; did you mean 'optimizer'"),
        ({"host_bandwidth": "fast"}, "must be a number with a unit"),
        ({"host_bandwidth": "1e400GB/s"}, "must be from 1 B/s to 1000 PB/s"),
        ({"host_bandwidth": "0GB/s"}, "must be from 1 B/s to 1000 PB/s"),
    ],
)
def test_keys_that_lack_others_or_do_nothing_are_refused(given, why):
    with pytest.raises(LoomError, match=why):
        parse_plan(list(given.items()))


def test_a_step_and_a_plan_say_the_same(capsys):
    sets = [
        *("--set", "workload.phase=training", "--set", "workload.batch=8", "--set", "workload.layers=4"),
        *("--set", "plan.data=8", "--set", "plan.tensor=1", "--set", "plan.pipeline=1", "--set", "plan.microbatch=1"),
        *("--set", "plan.offload=optimizer", "--set", "plan.host_bandwidth=25GB/s"),
        *("--set", "plan.host_memory_bandwidth=50GB/s", "--set", "plan.recompute=none", "--set", "plan.zero=0"),
    ]
    assert main(["plan", "dgx-a100", "llama3-8b", *sets, "--json", "-"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["host_s"] > 0
    assert planned["memory"]["host"] == 12 * load_workload("llama3-8b", [("layers", "4")]).parameters
    assert main(["sim", "dgx-a100", "llama3-8b", *sets, "--json", "-"]) == 0
    step = json.loads(capsys.readouterr().out)
    assert step["seconds"] == pytest.approx(planned["step_s"])
    (row,) = [row for row in step["operators"] if row["kind"] == "host"]
    assert row["seconds"] == pytest.approx(planned["host_s"])
