"""Communication programs: what gets through, what deadlocks and how that is said, times against plain collectives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.arch.communication import Communication
from siliconloom.arch.document import Document
from siliconloom.arch.network import Endpoint, LinkPort, Topology, wire
from siliconloom.mapper.network.collectives import candidates, collective
from siliconloom.mapper.network.communication import lower
from siliconloom.mapper.network.rendezvous import match, read_calls
from siliconloom.sim.network.flows import run_flows
from siliconloom.sim.network.messages import run_transfers

LINK = LinkPort.model_validate({"bandwidth": "50 GB/s", "latency": "500 ns"})
OPERATORS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier"]


def ring(chips):
    return wire(Topology(kind="ring"), LINK, chips)


def read(text, chips):
    document = Document.parse("kind: communication\nname: made\n" + text, "made.yaml")
    return read_calls(document.validate(Communication), document, chips), document


def meetings_of(text, chips):
    return match(*read(text, chips))


def first_fit(operation, wanted, group, placed, size):
    return candidates(operation, group)[0] if wanted == "auto" else wanted


def run_program(text, wiring, runner=run_transfers, **more):
    transfers, operators = lower(meetings_of(text, wiring.chips), wiring, first_fit)
    return transfers, operators, runner(wiring, transfers, Endpoint(), **more)


@st.composite
def programs(draw):
    """Steps in one order for all, so that nobody can wait in a circle; groups of any sizes, several streams."""
    chips = draw(st.integers(2, 7))
    groups = draw(st.lists(st.sets(st.integers(0, chips - 1), min_size=1), min_size=1, max_size=3))
    lines = ["groups:"] + [f"  g{i}: {sorted(g)}" for i, g in enumerate(groups)] + ["program:"]
    for number in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from([*OPERATORS, "message", "exchange", "compute"]))
        if kind == "message":
            a, b = draw(st.permutations(range(chips)))[:2]
            lines += [
                f"  - {{ranks: {a}, do: [send: {{to: {b}, bytes: 1e5, tag: {number}}}]}}",
                f"  - {{ranks: {b}, do: [receive: {{from: {a}, tag: {number}}}]}}",
            ]
        elif kind == "exchange":
            lines += ["  - {do: [together: [send: {to: rank+1, bytes: 1 MB}, receive: {from: rank-1, bytes: 1 MB}]]}"]
        elif kind == "compute":
            lines += [f"  - {{ranks: {draw(st.integers(0, chips - 1))}, do: [compute: {{time: 7 us}}]}}"]
        else:
            group = draw(st.integers(0, len(groups) - 1))
            size = "" if kind == "barrier" else ", bytes: 64 KiB"
            lines += [
                f"  - {{ranks: {sorted(groups[group])}, stream: s{group % 2}, do: [{kind}: {{group: g{group}{size}}}]}}"
            ]
    return chips, "\n".join(lines)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(programs())
def test_a_program_in_one_order_gets_through_and_every_rank_does_its_steps_in_turn(case):
    chips, text = case
    wiring = ring(chips)
    _, operators, run = run_program(text, wiring)
    exact = run_program(text, wiring, exact=True)[2]
    assert np.array_equal(run.done, exact.done)
    assert (run.done >= 0).all()
    calls, _ = read(text, chips)
    assert sum(len(o.meeting.calls) for o in operators) == sum(len(step) for steps in calls.values() for step in steps)
    ends = {}
    for each in operators:
        for call, began, ended in zip(each.meeting.calls, each.began, each.ended, strict=True):
            start = int(run.done[began]) if began >= 0 else 0
            assert run.done[ended] >= start + call.time
            before = [end for (key, position), end in ends.items() if key == call.key and position < call.position]
            assert start >= max(before, default=0)
            here = (call.key, call.position)
            ends[here] = max(ends.get(here, 0), int(run.done[ended]))
    assert run_program(text, wiring, run_flows)[2].finish > 0 or run.finish == 0


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_one_collective_of_all_takes_what_it_takes_alone(operation):
    wiring = ring(6)
    for algorithm in candidates(operation, wiring):
        run = run_program(f"program: [do: [{operation}: {{bytes: 1 MiB, algorithm: {algorithm}}}]]", wiring)[2]
        alone = run_transfers(wiring, collective(operation, algorithm, wiring, 2.0**20), Endpoint())
        assert (run.finish, run.carried.tolist()) == (alone.finish, alone.carried.tolist())


def test_collectives_on_the_same_links_slow_each_other_and_groups_apart_do_not():
    wiring = ring(8)
    one = "  - {ranks: 0-3, do: [all_gather: {group: left, bytes: 8 MiB, algorithm: ring}]}\n"
    groups = "groups: {left: 0-3, right: 4-7, again: 0-3}\nprogram:\n"
    apart = one + "  - {ranks: 4-7, do: [all_gather: {group: right, bytes: 8 MiB, algorithm: ring}]}\n"
    shared = one + "  - {ranks: 0-3, stream: b, do: [all_gather: {group: again, bytes: 8 MiB, algorithm: ring}]}\n"
    alone = run_program(groups + one, wiring)[2].finish
    both = run_program(groups + shared, wiring)[2].finish
    assert run_program(groups + apart, wiring)[2].finish == alone
    assert 1.8 * alone < both < 2.2 * alone


def test_a_message_waits_for_its_receiver_and_work_takes_its_time():
    text = """program:
  - {ranks: 0, do: [send: {to: 1, bytes: 50 kB}]}
  - {ranks: 1, do: [compute: {time: 10 us}, receive: {from: 0}, compute: {time: 1 us}]}
"""
    _, operators, run = run_program(text, ring(2))
    assert run.finish == 10_000_000 + 1_000_000 + LINK.latency + Endpoint().delay + 1_000_000
    assert [o.meeting.kind for o in operators] == ["compute", "send", "compute"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # nobody receives
        (
            "program:\n  - {ranks: 0, do: [send: {to: 1, bytes: 8}]}",
            r"made.yaml:4:.*deadlock: 1 of 1 streams.*rank 0 in send to 1 at line 4 waits for rank 1; rank 1 has no "
            r"steps",
        ),
        # both send first
        (
            "program:\n  - {ranks: 0-1, do: [send: {to: rank+1, bytes: 8}, receive: {from: rank-1}]}",
            r"deadlock: 2 of 2 .*rank 0 in send to 1 .*waits for rank 1; rank 1 in send to 0 .* waits for rank 0$",
        ),
        # other tag
        (
            "program:\n  - {ranks: 0, do: [send: {to: 1, bytes: 8}]}\n  - {ranks: 1, do: [receive: {from: 0, tag: 3}]}",
            r"deadlock: .*rank 0 in send to 1 at line 4 .*rank 1 in receive from 0 at line 5",
        ),
        (
            "program:\n  - {ranks: 0, do: [send: {to: 1, bytes: 8}]}\n"
            "  - {ranks: 1, do: [receive: {from: 0, bytes: 9}]}",
            r"rank 1 in receive from 0 at line 5 expects 9 B, but rank 0 in send to 1 at line 4 sends 8 B",
        ),
        (
            "program:\n  - {ranks: 0, do: [all_reduce: {bytes: 8}]}\n  - {ranks: 1, do: [all_gather: {bytes: 8}]}",
            r"deadlock: ranks disagree on call 1 of group 'all': rank 0 calls all_reduce of 8 B.*line 4, rank 1 calls "
            r"all_gather of 8 B by auto at line 5",
        ),
        (
            "program:\n  - {ranks: 0, do: [all_reduce: {bytes: 8}]}\n  - {ranks: 1, do: [all_reduce: {bytes: 16}]}",
            r"deadlock: ranks disagree on call 1 of group 'all': .* of 8 B .* of 16 B",
        ),
        # a member never calls
        (
            "program:\n  - {ranks: 0, do: [barrier: {}, compute: {time: 1 us}]}",
            r"deadlock: .*rank 0 in barrier of group 'all' at line 4 waits for rank 1; rank 1 has no steps",
        ),
        # two groups in different orders
        (
            "groups: {a: 0-1, b: 0-1}\nprogram:\n"
            "  - {ranks: 0, do: [barrier: {group: a}, barrier: {group: b}]}\n"
            "  - {ranks: 1, do: [barrier: {group: b}, barrier: {group: a}]}",
            r"deadlock: 2 of 2 .*rank 0 in barrier of group 'a' .*waits for rank 1; rank 1 in barrier of group 'b'",
        ),
        ("program: [{ranks: 0-2, do: [barrier: {}]}]", r"made.yaml:3:.*program.0.ranks: names rank 2; .* 0 to 1"),
        ("program: [{do: [barrier: {group: tp}]}]", r"program.0.do.0.barrier.group: must be a group: all \(got 'tp'\)"),
        ("program: [{do: [al_reduce: {bytes: 8}]}]", r"unknown key 'al_reduce'.*did you mean 'all_reduce'"),
        ("program: [{do: [receive: {form: 1}]}]", r"unknown key 'form'; .*did you mean 'from'"),
        ("program: [{do: [{barrier: {}, send: {to: 1, bytes: 8}}]}]", r"must have exactly one of"),
        ("program: [{do: [send: {to: 0, bytes: 8}]}]", r"rank 0 cannot send to rank 0 itself"),
        ("program: [{do: [all_to_all: {bytes: [[0, 1], [2]]}]}]", r"must be square"),
        ("program: [{do: [all_to_all: {bytes: [[1]]}]}]", r"must have a row for each of the 2 members \(got 1\)"),
        ("groups: {a: 0}\nprogram: [{do: [barrier: {group: a}]}]", r"rank 1 is no member of the group \(got 'a'\)"),
        ("splits: {t: {size: 4}}\nprogram: [{do: [barrier: {group: t}]}]", r"splits.t: groups of 4, .* fill 2 ranks"),
        ("splits: {a: {size: 2}}\ngroups: {a: 0}\nprogram: [{do: [barrier: {}]}]", r"splits.a: a group of that name"),
        ("groups: {a: 0-x}\nprogram: [{do: [barrier: {}]}]", r"groups.a: must be 'all', ranks such as"),
    ],
)
def test_what_cannot_end_is_one_clear_line(text, message):
    with pytest.raises(LoomError, match=message) as raised:
        meetings_of(text, 2)
    assert "\n" not in str(raised.value)


@settings(max_examples=60, deadline=None)
@given(programs(), st.data())
def test_a_call_left_out_is_a_deadlock_or_was_work_of_one(case, data):
    """Without one of its calls an operator of several ranks ends for nobody, and that is said, not waited for.

    Where a later receive takes the message of the one that is gone, its size may be another; then that is said.
    """
    chips, text = case
    calls, document = read(text, chips)
    steps = [(key, at) for key, each in calls.items() for at in range(len(each))]
    key, at = data.draw(st.sampled_from(steps))
    left_out = calls[key].pop(at)
    alone = all(c.kind == "compute" or (c.group and len(c.group) == 1) for c in left_out)
    if alone:
        match(calls, document)
    else:
        with pytest.raises(LoomError, match=r"deadlock: |expects .* sends"):
            match(calls, document)


def test_an_algorithm_that_does_not_fit_is_named_with_its_place():
    with pytest.raises(LoomError, match=r"^not supported: in_switch: needs .* \(program.0.do.0.all_reduce\)$"):
        run_program("program: [{do: [all_reduce: {bytes: 8, algorithm: in_switch}]}]", ring(4))
