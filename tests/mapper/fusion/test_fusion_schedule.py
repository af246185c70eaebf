"""Sequential or pipelined, group by group: against every schedule by hand, and what more memory and time change."""

import itertools
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from siliconloom.arch.document import Document
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.mapper.fusion.schedule import CoreMachine, best_cores, best_schedule, group_compute, group_moves
from siliconloom.mapper.fusion.tasks import task_graph
from siliconloom.reproduce.intar import PUBLISHED, SIZES, group_names
from siliconloom.workloads.cascades.described import build_cascade, load_cascade

RANKS = "ABCDEF"


@st.composite
def chains(draw):
    """Products in a row, some of which also read an earlier result."""
    count = draw(st.integers(2, 4))
    sizes = [draw(st.sampled_from([2, 4, 8, 16])) for _ in range(count + 1)]
    ranks = ", ".join(f"{rank}: {size}" for rank, size in zip(RANKS, sizes, strict=False))
    names, texts = ["X0"], []
    for place in range(count):
        here, there = RANKS[place].lower(), RANKS[place + 1].lower()
        made = f"X{place + 1}"
        texts.append(f"  - {made}[t, {there}] = X{place}[t, {here}] * W{place}[{here}, {there}]")
        if draw(st.booleans()):  # a second reader of the first input
            texts[-1] += ""
            texts.append(f"  - Y{place}[t, {there}] = X0[t, a] * U{place}[a, {there}]")
            texts.append(f"  - Z{place}[t, {there}] = {made}[t, {there}] + Y{place}[t, {there}]")
        names.append(made)
    head = f"kind: cascade\nname: any\nranks: {{T: 4, {ranks}}}\nstream: T\neinsums:\n"
    return task_graph(build_cascade(Document.parse(head + "\n".join(texts))))


MACHINES = st.builds(
    CoreMachine,
    st.integers(1, 4),
    st.sampled_from([1, 4]),
    st.sampled_from([64.0, 200.0, 1000.0, math.inf]),
    st.sampled_from([0.1, 1.0, 16.0, math.inf]),
)


def by_hand(graph, machine, objective):
    """Every cut into groups, every share of cores, every set of tensors kept after each group."""
    count, best = len(graph.tasks), (math.inf, math.inf)
    for cuts in itertools.chain.from_iterable(itertools.combinations(range(1, count), n) for n in range(count)):
        edges = list(itertools.pairwise((0, *cuts, count)))
        times = []
        for first, last in edges:
            steps = graph.pipeline(first, last)
            macs = [task.macs for task in graph.tasks[first:last]]
            shares = [
                cores
                for cores in itertools.product(range(1, machine.cores + 1), repeat=len(macs))
                if sum(cores) == machine.cores
            ]
            if steps is None or not shares:
                break
            times.append(min(group_compute(macs, cores, machine.lanes, steps[1]) for cores in shares))
        else:
            states = {frozenset(): (0.0, 0.0)}
            for (first, last), time in zip(edges, times, strict=True):
                after_all = {}
                for kept, (moved, cycles) in states.items():
                    there = kept | {t for task in graph.tasks[first:last] for t in (*task.reads, *task.makes)}
                    later = [t for t in there if any(p >= last for p in graph.readers.get(t, ()))]
                    for n in range(len(later) + 1):
                        for after in map(frozenset, itertools.combinations(later, n)):
                            bytes_ = group_moves(graph, machine, first, last, kept, after)
                            if bytes_ is None:
                                continue
                            cost = (moved + bytes_, cycles + max(time, bytes_ / machine.bandwidth))
                            key = cost if objective == "traffic" else cost[::-1]
                            known = after_all.get(after)
                            if known is None or key < (known if objective == "traffic" else known[::-1]):
                                after_all[after] = cost
                states = after_all
            for moved, cycles in states.values():
                best = min(best, (moved, cycles) if objective == "traffic" else (cycles, moved))
    return best


@pytest.mark.slow(seconds=5)
@given(graph=chains(), machine=MACHINES, objective=st.sampled_from(["time", "traffic"]))
@settings(max_examples=60, deadline=None)
def test_the_schedule_is_the_best_of_all(graph, machine, objective):
    expected = by_hand(graph, machine, objective)
    if math.isinf(expected[0]):
        with pytest.raises(LoomError, match="no schedule finds room"):
            best_schedule(graph, machine, objective=objective)
        return
    found = best_schedule(graph, machine, objective=objective)
    assert (found.cycles if objective == "time" else found.moved) == pytest.approx(expected[0])
    if objective == "traffic":
        assert found.cycles == pytest.approx(expected[1])
    covered = [place for group in found.groups for place in range(group.first, group.last)]
    assert covered == list(range(len(graph.tasks)))


@pytest.mark.slow(seconds=3.5)
@given(graph=chains(), machine=MACHINES)
@settings(max_examples=20, deadline=None)
def test_more_of_anything_never_makes_it_slower(graph, machine):
    try:
        cycles = best_schedule(graph, machine).cycles
    except LoomError:
        assume(False)
    for more in (
        CoreMachine(machine.cores, machine.lanes * 2, machine.buffer, machine.bandwidth),
        CoreMachine(machine.cores, machine.lanes, machine.buffer * 2, machine.bandwidth),
        CoreMachine(machine.cores, machine.lanes, machine.buffer, machine.bandwidth * 2),
    ):
        assert best_schedule(graph, more).cycles <= cycles * (1 + 1e-12)
    for modes in (("sequential",), ("sequential", "pipelined")):
        try:
            assert best_schedule(graph, machine, modes=modes).cycles >= cycles * (1 - 1e-12)
        except LoomError as error:
            assert "no schedule finds room" in str(error)  # noqa: PT017
    macs = sum(task.macs for task in graph.tasks)
    assert cycles >= macs / (machine.cores * machine.lanes) * (1 - 1e-12)


@given(
    macs=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    cores=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    steps=st.integers(2, 6),
)
def test_a_pipeline_takes_what_its_steps_take_one_after_another(macs, cores, steps):
    """Against every step of every task begun when its core and its operand are there."""
    given_ = cores[: len(macs)]
    free = [0.0] * len(macs)
    for _ in range(steps):
        ready = 0.0
        for place, (count, share) in enumerate(zip(macs, given_, strict=True)):
            ready = free[place] = max(free[place], ready) + count / share / steps
    assert group_compute(macs, given_, 1, steps) == pytest.approx(free[-1])


def test_cores_are_shared_so_that_no_task_lags():
    assert best_cores([100, 300], CoreMachine(4, 1, 0, 1), 1) == (100.0, (1, 3))
    assert best_cores([1, 1, 1], CoreMachine(2, 1, 0, 1), 1) is None
    with pytest.raises(NotSupported, match="ways to share 64 cores among 8 products"):
        best_cores([1] * 8, CoreMachine(64, 1, 0, 1), 1)


def test_three_layers_have_no_rank_in_common_and_run_in_pairs():
    graph = task_graph(load_cascade("mlp"))
    assert [task.name for task in graph.tasks] == ["F1", "F2", "F3"]
    assert graph.pipeline(0, 2) == ("B", 1024)
    assert graph.pipeline(1, 3) == ("C", 2048)
    assert graph.pipeline(0, 3) is None


def test_scores_wait_for_all_of_a_softmax_row_along_keys_but_not_along_queries():
    graph = task_graph(load_cascade("self-attention"))
    assert graph.pipeline(1, 3) == ("E", 1024)  # keys and scores, along the width
    assert graph.pipeline(3, 5) == ("F", 1024)  # values and results, along theirs
    assert graph.pipeline(2, 5) is None  # scores along queries, values along keys
    assert graph.pipeline(0, 2) == ("", 1)  # queries and keys beside one another


def test_a_result_that_fits_is_kept_and_one_that_does_not_is_piped_where_memory_binds():
    graph = task_graph(load_cascade("mlp"))
    small, large = (CoreMachine(2, 16, size, 0.001) for size in (3072, 1 << 20))
    assert [g.mode for g in best_schedule(graph, small).groups] == ["sequential", "pipelined"]
    assert [g.mode for g in best_schedule(graph, large).groups] == ["sequential"] * 3
    fast = CoreMachine(2, 16, 3072, 64)  # the spill costs less than unequal stages do
    assert [g.mode for g in best_schedule(graph, fast).groups] == ["sequential"] * 3
    assert best_schedule(graph, fast).moved > best_schedule(graph, fast, objective="traffic").moved


@pytest.mark.parametrize("name", SIZES)
def test_intars_rule_gives_the_groups_that_were_built(name):
    assert group_names(name) == PUBLISHED[name]


def test_a_cascade_without_products_has_no_tasks():
    text = "kind: cascade\nname: any\nranks: {M: 4}\nstream: M\neinsums:\n  - Z[m] = exp(A[m])\n"
    with pytest.raises(LoomError, match="any has no multiply-adds"):
        task_graph(build_cascade(Document.parse(text)))
