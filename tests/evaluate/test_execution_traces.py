"""Chakra execution traces: what is written is read, what is run takes what it must, what is damaged is told."""

import heapq
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from siliconloom.arch import LoomError
from siliconloom.arch.execution_trace import CollectiveKind, ExecutionTrace, NodeKind, TraceNode
from siliconloom.cli import app
from siliconloom.evaluate.chakra_files import read_trace, trace_bytes, trace_files
from siliconloom.evaluate.collective import collective_result, load_any
from siliconloom.evaluate.plan import plan_result, read_plan_input
from siliconloom.evaluate.traced import execution_trace_result
from tests.in_turn import in_turn

COMPUTE, SEND, RECEIVE, COLLECTIVE = NodeKind.COMPUTE, NodeKind.SEND, NodeKind.RECEIVE, NodeKind.COLLECTIVE
# As ASTRA-sim's generator of all-reduces writes them: its metadata, and one node without a group.
ALL_REDUCE = bytes.fromhex(
    "070a05302e302e344a08{rank}1214616c6c5f7265647563655f346e7075735f314d4218"
    "07520e0a0969735f6370755f6f70d80100520d0a09636f6d6d5f747970654800520f0a09636f6d6d5f73697a6548808040".replace(
        "{rank}", "01"
    )
)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def written(trace, folder):
    """The files of a trace, and its name."""
    files = trace_files(str(folder / "t.et"), len(trace.ranks))
    for file, content in zip(files, trace_bytes(trace), strict=True):
        with open(file, "wb") as out:
            out.write(content)
    return str(folder / "t.et")


def simulated(trace, system="ring", sets=(), **options):
    described, _ = load_any(system, list(sets), len(trace.ranks))
    return execution_trace_result(described, trace, **options)


def traces(*ranks, groups=None):
    return ExecutionTrace("t", tuple(map(tuple, ranks)), groups or {})


def compute(number, *waits, time=1000, **more):
    return TraceNode(number, f"c{number}", COMPUTE, waits, duration=time, **more)


@st.composite
def computing(draw):
    """Ranks that only compute, in any graph without circles."""
    ranks = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 8))
        names = draw(st.permutations(range(count)))
        nodes = []
        for place, name in enumerate(names):
            waits = draw(st.sets(st.sampled_from(names[:place]), max_size=3)) if place else set()
            time = draw(st.integers(0, 5)) * 1000
            nodes.append(compute(name, *sorted(waits), time=time, on_host=draw(st.booleans())))
        ranks.append(sorted(nodes, key=lambda node: node.id))
    return traces(*ranks)


def by_events(nodes):
    """When a rank is done whose processors take up work as it comes, by an event list."""
    done, free, left = {}, {False: 0, True: 0}, {node.id: set(node.waits) for node in nodes}
    by_id = {node.id: node for node in nodes}
    order = topological(nodes)
    events = [(0, order.index(i), i) for i, waits in left.items() if not waits]
    heapq.heapify(events)
    while events:
        now, _, number = heapq.heappop(events)
        node = by_id[number]
        done[number] = free[node.on_host] = max(now, free[node.on_host]) + node.duration
        for other in nodes:
            if number in left[other.id]:
                left[other.id].discard(number)
                if not left[other.id]:
                    heapq.heappush(events, (max(done[w] for w in other.waits), order.index(other.id), other.id))
    return max(done.values())


def topological(nodes):
    order, left = [], {node.id: set(node.waits) for node in nodes}
    while left:
        number = min(i for i, waits in left.items() if not waits)
        order.append(number)
        del left[number]
        for waits in left.values():
            waits.discard(number)
    return order


@pytest.mark.slow(seconds=1)
@settings(max_examples=60, deadline=None)
@given(computing(), st.booleans())
def test_processors_do_one_thing_at_a_time_in_the_order_in_which_it_comes(trace, exact):
    found = simulated(trace, "fully-connected", exact=exact)
    assert [round(r["finish_s"] * 1e12) for r in found["ranks"]] == [by_events(nodes) for nodes in trace.ranks]
    path = found["path"]
    assert path[-1]["end_s"] == found["time_s"]
    assert all(a["end_s"] == b["start_s"] for a, b in pairwise(path)), path
    assert path[0]["start_s"] == 0


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=9)
SIZES = st.integers(0, 2**40)


@st.composite
def mixed(draw):
    """Two or three ranks with every kind of node."""
    count = draw(st.integers(2, 3))
    ranks = [[] for _ in range(count)]
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from([COMPUTE, SEND, COLLECTIVE, NodeKind.METADATA]))
        rank = draw(st.integers(0, count - 1))
        peer = (rank + draw(st.integers(1, count - 1))) % count
        size, name, tag = draw(SIZES), draw(NAMES), draw(st.integers(0, 9))

        def add(at, **given):
            waits = draw(st.sets(st.integers(0, len(ranks[at]) - 1), max_size=2)) if ranks[at] else set()
            ranks[at].append(TraceNode(len(ranks[at]), waits=tuple(sorted(waits)), **given))

        if kind is SEND:
            add(rank, name=name, kind=SEND, size=size, peer=peer, tag=tag)
            add(peer, name=name, kind=RECEIVE, size=size, peer=rank, tag=tag)
        elif kind is COLLECTIVE:
            group = draw(st.sampled_from(["", "7"]))
            what = draw(st.sampled_from(CollectiveKind))
            for each in range(count) if not group else (1, 0):
                add(each, name=name, kind=COLLECTIVE, size=size, collective=what, group=group)
        elif kind is COMPUTE:
            time = draw(st.none() | st.integers(0, 10**13))
            add(rank, name=name, kind=COMPUTE, duration=time, operations=size, tensor=draw(SIZES), on_host=tag > 5)
        else:
            add(rank, name=name, kind=kind)
    return traces(*ranks, groups={"7": (1, 0)})


@pytest.mark.slow(seconds=1)
@settings(max_examples=60, deadline=None)
@given(mixed())
def test_what_is_written_is_read(tmp_path_factory, trace):
    assert read_trace(written(trace, tmp_path_factory.mktemp("t"))) == trace


@pytest.mark.slow(seconds=1)
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_is_told_in_one_line_or_is_a_trace(tmp_path_factory, data):
    trace = traces(
        [compute(0), TraceNode(1, "a", COLLECTIVE, (0,), size=64, collective=CollectiveKind.ALL_REDUCE)],
        [TraceNode(0, "a", COLLECTIVE, size=64, collective=CollectiveKind.ALL_REDUCE)],
    )
    folder = tmp_path_factory.mktemp("t")
    name = written(trace, folder)
    raw = bytearray((folder / "t.0.et").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    (folder / "t.0.et").write_bytes(raw)
    told = ""
    try:
        simulated(read_trace(name))
    except LoomError as error:
        told = str(error)
    assert "\n" not in told


SYSTEM = """kind: system
name: four
chips: [{chip: h100, count: 4}]
topology: {kind: fully_connected, edges: [{between: [0, 1], bandwidth: 50 GB/s}]}
link: {bandwidth: 50 GB/s, latency: 500 ns}
algorithm: ring
"""
PLANS = [
    {"tensor": 4},
    {"pipeline": 4},
    {"pipeline": 2, "tensor": 2},
    {"data": 2, "tensor": 2},
    {"data": 2, "pipeline": 2},
    {"pipeline": 4, "microbatch": 1},
]
TRAINING = [
    {"schedule": "gpipe"},
    {"schedule": "1f1b", "recompute": "full"},
    {"schedule": "interleaved", "chunks": 2, "recompute": "selective"},
    {"schedule": "zero_bubble"},
]


STEPS = [
    (degrees, more)
    for more in (None, *TRAINING)
    for degrees in PLANS
    if "pipeline" in degrees or (more or {}).get("schedule", "1f1b") == "1f1b"  # else there is nothing to schedule
]


@pytest.mark.parametrize(("degrees", "more"), in_turn(STEPS, 6, seconds=1))
def test_a_plans_step_takes_as_long_when_its_trace_is_run(tmp_path, degrees, more):
    training = more is not None
    plan = {"data": 1, "tensor": 1, "pipeline": 1, "microbatch": 2, **degrees, **(more or {})}
    if training:
        plan |= {"overlap_gradients": "false", "microbatch": 1}
    sets = [(f"plan.{key}", str(value)) for key, value in plan.items()]
    work = [("workload.phase", "training" if training else "prefill"), ("workload.batch", "8")]
    work.append(("workload.sequence", "128"))
    file = tmp_path / "four.yaml"
    file.write_text(SYSTEM)
    cluster, graph, fixed, *_ = read_plan_input(str(file), "gpt2", [*sets, *work])
    made = []
    step = plan_result(cluster, graph, fixed, traces=made)
    read = read_trace(written(made[0](), tmp_path))
    described, _ = load_any(str(file), [], 4)
    drawn = []
    found = execution_trace_result(described, read, timeline=drawn)
    # a plan's stages update together when the last one is done, a trace's each by itself
    after = step["gradient_s"] + step["optimizer_s"]
    passes = max(span.end for span in drawn[0].spans if span.name[0] in "FBW") * 1e-12
    assert found["time_s"] <= step["step_s"] * (1 + 2e-3)
    assert (found["time_s"] > passes) == training
    # messages between stages pass beside each other in a plan, and beside the work of both in a trace
    alone = plan["pipeline"] == 1 or plan["pipeline"] == 4 or not training
    assert passes == pytest.approx(step["step_s"] - after, rel=1e-9 if alone else 2e-3, abs=nodes_of(read) * 1e-12)


def nodes_of(trace):
    return sum(map(len, trace.ranks))


@pytest.mark.parametrize("kind", list(CollectiveKind), ids=lambda kind: kind.name)
def test_a_trace_of_one_collective_takes_what_the_collective_takes(kind):
    operation = kind.name.lower()
    size = 1 << 20
    each = [[TraceNode(3, "it", COLLECTIVE, size=size, collective=kind)] for _ in range(4)]
    found = simulated(traces(*each), "ring")
    if kind is CollectiveKind.BARRIER:
        assert 0 < found["time_s"] < 5e-6
        return
    whole = size * 4 if kind is CollectiveKind.ALL_GATHER else size
    described, _ = load_any("ring", [], 4)
    told = collective_result(described, operation, float(whole), 4)
    assert found["time_s"] == pytest.approx(told["time_s"], rel=1e-9)
    assert found["lower_bound_s"] <= found["time_s"]


def test_astra_sims_own_files_are_read(tmp_path):
    for rank in range(4):
        (tmp_path / f"all_reduce.{rank}.et").write_bytes(ALL_REDUCE)
    target = tmp_path / "out.json"
    done = run("collective", "ring", tmp_path / "all_reduce.2.et", "--json", target, "--trace", tmp_path / "t.json")
    assert done.exit_code == 0, done.output
    result = json.loads(target.read_text())
    described, _ = load_any("ring", [], 4)
    assert result["time_s"] == pytest.approx(collective_result(described, "all_reduce", 2.0**20, 4)["time_s"])
    assert result["operations"][0]["name"] == "all_reduce_4npus_1MB"
    assert len([e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]) == 4


def test_work_without_a_duration_takes_that_of_its_operations_or_bytes():
    node = TraceNode(0, "", COMPUTE, operations=10**12, tensor=10)
    heavy = TraceNode(0, "", COMPUTE, operations=10, tensor=10**9)
    found = simulated(traces([node], [heavy]), "dgx-h100")
    gpu = 989.4e12
    assert found["ranks"][0]["finish_s"] == pytest.approx(1e12 / gpu, rel=0.01)
    assert found["ranks"][1]["finish_s"] == pytest.approx(1e9 / 3.35e12, rel=0.01)
    assert found["notes"]
    with pytest.raises(LoomError, match=r"rank 0 node 0.*has no duration, and ring is a bare network"):
        simulated(traces([node], [heavy]), "ring")


def summing(number, *waits, size=64, kind=CollectiveKind.ALL_REDUCE, group=""):
    return TraceNode(number, "sum", COLLECTIVE, waits, size=size, collective=kind, group=group)


WRONG = {
    "wait for each other: rank 0 node 0 .*rank 0 node 1": traces([compute(0, 1), compute(1, 0)], []),
    "rank 1 never comes to it": traces([summing(0)], [compute(0)]),
    "disagree.*all_reduce of 64 B.*all_reduce of 65 B": traces([summing(0)], [summing(0, size=65)]),
    "disagree.*all_reduce.*all_gather": traces([summing(0)], [summing(0, kind=CollectiveKind.ALL_GATHER)]),
    "rank 1 has no receive of it": traces([TraceNode(0, "m", SEND, size=1, peer=1)], []),
    "rank 0 has no send to it": traces([], [TraceNode(0, "m", RECEIVE, size=1, peer=0)]),
    "expects 2 B; rank 0 node 0.*sends 1 B": traces(
        [TraceNode(0, "m", SEND, size=1, peer=1)], [TraceNode(0, "m", RECEIVE, size=2, peer=0)]
    ),
    "deadlock: .*wait for each other: rank 0 node 1 .*rank 1 node 0": traces(
        [summing(0, 1, group="1"), TraceNode(1, "m", RECEIVE, peer=1)],
        [summing(0, group="1"), TraceNode(1, "m", SEND, (0,), peer=0)],
        groups={"1": (0, 1)},
    ),
    "no rank has a node": traces([], []),
}


@pytest.mark.parametrize("rule", WRONG)
def test_ranks_that_cannot_go_on_are_named(rule):
    with pytest.raises(LoomError, match=rule):
        simulated(WRONG[rule])


def changed(folder, rule):
    """Damage the files of a sound trace of two ranks in one way."""
    two = traces([compute(0), compute(1, 0)], [summing(0), TraceNode(1, "m", SEND, (0,), peer=0)])
    if rule == "type must be one of":
        two = traces([replace(two.ranks[0][0], kind=12)], two.ranks[1])
    elif rule == "waits for node 9":
        two = traces([compute(0, 9)], two.ranks[1])
    elif rule == "not supported: .*MEMORY_LOAD":
        two = traces([replace(two.ranks[0][0], kind=NodeKind.MEMORY_LOAD)], two.ranks[1])
    elif rule == "not supported: .*comm_type 1 REDUCE":
        two = traces(two.ranks[0], [replace(summing(0), collective=1)])
    elif rule == "pg_name must be a group":
        two = traces(two.ranks[0], [summing(0, group="4")])
    elif rule == "comm_dst must be another rank":
        two = traces(two.ranks[0], [TraceNode(1, "m", SEND, peer=5)])
    elif rule == "is there twice":
        two = traces([compute(0), compute(0)], two.ranks[1])
    name = written(two, folder)
    if rule == "t.1.et: no such file":
        (folder / "t.1.et").rename(folder / "t.2.et")
    elif rule == "the file is empty":
        (folder / "t.1.et").write_bytes(b"")
    elif rule == "group 1: must be ranks":
        (folder / "t.json").write_text('{"1": [0, 2]}')
    elif rule == "is not JSON":
        (folder / "t.json").write_text("[")
    return name


@pytest.mark.parametrize(
    "rule",
    [
        "type must be one of",
        "waits for node 9",
        "not supported: .*MEMORY_LOAD",
        "not supported: .*comm_type 1 REDUCE",
        "pg_name must be a group",
        "comm_dst must be another rank",
        "is there twice",
        "t.1.et: no such file",
        "the file is empty",
        "group 1: must be ranks",
        "is not JSON",
    ],
)
def test_what_is_wrong_in_a_file_is_told_in_one_line(tmp_path, rule):
    with pytest.raises(LoomError, match=rule) as told:
        read_trace(changed(tmp_path, rule))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        (["64 KiB"], "an execution trace has its own"),
        (["--flows"], "not supported: an execution trace as flows"),
        (["--predicted"], "--predicted"),
        (["--chips", "3"], "the trace has 2 ranks"),
        (["--groups", "nowhere.json"], "nowhere.json"),
    ],
)
def test_options_that_a_trace_has_not_are_refused(tmp_path, more, rule):
    name = written(traces([compute(0)], [compute(0)]), tmp_path)
    done = run("collective", "ring", name, *more)
    assert rule in str(done.exception)


def test_a_step_is_written_by_the_commands(tmp_path):
    arguments = ["dgx-h100", "gpt2", "--set", "plan.tensor=2", "--json", tmp_path / "r.json"]
    assert run("sim", *arguments, "--trace", tmp_path / "s.et").exit_code == 0
    assert {p.name for p in tmp_path.iterdir()} == {"s.0.et", "s.1.et", "s.json", "r.json"}


@pytest.mark.slow(seconds=1)
def test_what_is_more_than_operators_in_line_is_refused(tmp_path):
    name = str(tmp_path / "s.et")
    for key in ("plan.context=2", "plan.overlap=ladder"):
        done = run("sim", "dgx-h100", "gpt2", "--set", "plan.tensor=2", "--set", key, "--trace", name)
        assert "not supported: an execution trace of plan." in str(done.exception)
    done = run("sim", "npu-edge", "gpt2", "--trace", name)
    assert "one chip" in str(done.exception)
    assert not list(tmp_path.iterdir())
