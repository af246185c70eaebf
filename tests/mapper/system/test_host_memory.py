"""What a training step keeps on the host: transfers and updates beside passes, and bytes on either side."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import LoomError, load_system
from siliconloom.cli import main
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.mapper.system.host_memory import UPDATED, UpdatedBlock, beside, left_after, left_behind
from siliconloom.mapper.system.plan import Plan, parse_plan
from siliconloom.mapper.system.training import Trainer
from siliconloom.sim.system.streams import Tasks, run_tasks
from siliconloom.workloads import load_workload

PICO = 10**12
TIMES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=9)


def finish(tasks):
    return run_tasks(tasks).finish / PICO


@given(TIMES)
def test_what_comes_is_waited_for_as_streams_have_it(rows):
    """A block's pass waits for what it needs, which comes from the beginning of the pass before on."""
    sizes, work = zip(*rows, strict=True)
    tasks, loads, passes = Tasks(), [], []
    for number, (size, seconds) in enumerate(rows):
        load = tasks.add(f"load {number}", 1, size * PICO)
        if number > 1:
            tasks.wait(load, passes[number - 2])
        done = tasks.add(f"pass {number}", 0, seconds * PICO)
        tasks.wait(done, load)
        loads.append(load)
        passes.append(done)
    assert beside(sizes, work, 1.0) == pytest.approx(finish(tasks) - sum(work))


@given(TIMES)
def test_what_leaves_is_waited_for_as_streams_have_it(rows):
    """It leaves while the next block is computed, and the one behind that needs its place; the last one's stays."""
    sizes, work = zip(*rows, strict=True)
    tasks, leaving, passes = Tasks(), [], []
    for number, (size, seconds) in enumerate(rows):
        done = tasks.add(f"pass {number}", 0, seconds * PICO)
        if number > 1:
            tasks.wait(done, leaving[number - 2])
        passes.append(done)
        if number < len(rows) - 1:
            leaving.append(tasks.add(f"leave {number}", 1, size * PICO))
            tasks.wait(leaving[-1], done)
    assert left_behind(sizes, work, 1.0) == pytest.approx(finish(tasks) - sum(work))


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
        made = tasks.add(f"update {number}", 2, round((UPDATED + element) * parameters * PICO))
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
    whole = parameters * (UPDATED + 2) / HOST["host_memory_bandwidth"]
    backward = sum(trainer.stages(Plan(data=8)).backward) + sum(trainer.stages(Plan(data=8)).weight)
    assert whole - backward <= hard.host <= whole
    assert hard.seconds == pytest.approx(easy.seconds + hard.host)


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
        ({"host_bandwidth": "0GB/s"}, "must be more than nothing"),
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
