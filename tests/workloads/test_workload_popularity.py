"""Experts that some tokens like better than others: rows of each, put together, in a graph and on a chip."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.arch.errors import NotSupported
from siliconloom.baselines.model import kernels_of
from siliconloom.evaluate.chip import simulate
from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.mapper.experts import loads_of
from siliconloom.mapper.system.parallel import Split, share
from siliconloom.workloads import Gemm, Graph, Vector, load_workload
from siliconloom.workloads.drawn_experts import drawn
from siliconloom.workloads.popularity import GROUPS, alike, rows_of, zipf
from siliconloom.workloads.roles import Role

WEIGHTS = st.lists(st.floats(0, 100, allow_nan=False), min_size=2, max_size=60)
MOE = [("layers", "1")]
SKEWED = [0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05]
TINY = [
    *MOE,
    ("model.hidden_size", "64"),
    ("model.intermediate_size", "96"),
    ("model.num_attention_heads", "2"),
    ("model.num_key_value_heads", "1"),
    ("model.vocab_size", "64"),
    ("precision", "int8"),
]


def experts(graph: Graph, role: Role = Role.EXPERT_COLUMN) -> list[Gemm]:
    return [o for o in graph.operators() if isinstance(o, Gemm) and o.role is role]


@given(weights=WEIGHTS, tokens=st.integers(1, 4000), used=st.integers(1, 8))
def test_every_row_goes_to_an_expert_and_none_to_one_twice(weights, tokens, used) -> None:
    liked = sum(weight > 0 for weight in weights)
    if liked < used:
        with pytest.raises(ValueError, match=f"at least {used} experts must have tokens"):
            rows_of(weights, tokens, used)
        return
    rows = rows_of(weights, tokens, used)
    assert sum(rows) == tokens * used
    assert len(rows) == len(weights)
    assert rows == sorted(rows, reverse=True)
    assert rows[0] <= tokens
    assert sum(row > 0 for row in rows) <= liked
    # an expert that not every token uses has its share of what such experts have, to a row
    open_ = [(row, weight) for row, weight in zip(rows, sorted(weights, reverse=True), strict=True) if row < tokens]
    rest, total = sum(row for row, _ in open_), sum(weight for _, weight in open_)
    assert all(abs(row - rest * weight / total) <= len(rows) for row, weight in open_ if total > 1e-6)


@given(shares=st.lists(st.integers(1, 50), min_size=2, max_size=20), tokens=st.integers(1, 30), used=st.integers(1, 3))
def test_shares_that_come_out_even_are_exact(shares, tokens, used) -> None:
    assume(len(shares) >= used)
    whole = sum(shares) * tokens
    assume(max(shares) * used <= sum(shares))  # no expert is used by every token
    assert rows_of(shares, whole, used) == sorted((each * tokens * used for each in shares), reverse=True)


@given(experts=st.integers(1, 300), tokens=st.integers(1, 5000), used=st.integers(1, 10))
def test_a_typical_draw_has_every_row_and_none_twice(experts, tokens, used) -> None:
    assume(used <= experts)
    rows = drawn(experts, tokens, used)
    assert len(rows) == experts
    assert sum(rows) == tokens * used
    assert rows == sorted(rows, reverse=True)
    assert 0 <= rows[-1] <= rows[0] <= tokens
    unused = experts * (1 - used / experts) ** tokens
    assert abs(rows.count(0) - unused) <= 1 + 0.1 * unused


@pytest.mark.parametrize(("experts", "tokens", "used"), [(8, 512, 2), (8, 8, 2), (64, 40, 6), (128, 300, 8)])
def test_a_typical_draw_is_the_mean_of_many(experts, tokens, used) -> None:
    """Of the expert with most tokens, the next one and so on, over draws of different experts for each token."""
    random, draws = np.random.default_rng(1), 300
    chosen = random.random((draws, tokens, experts)).argsort(axis=2)[:, :, :used]
    counts = np.stack([np.bincount(each.ravel(), minlength=experts) for each in chosen])
    means = np.sort(counts, axis=1)[:, ::-1].mean(axis=0)
    # of few experts the first and the last number vary most from draw to draw
    assert np.abs(means - drawn(experts, tokens, used)).max() < 1.5
    assert np.abs(means - drawn(experts, tokens, used)).mean() < 0.6


@given(rows=st.lists(st.integers(0, 500), min_size=1, max_size=80))
def test_experts_put_together_have_all_rows_of_their_own(rows) -> None:
    groups = alike(rows)
    liked = [row for row in rows if row]
    assert sum(count * each for count, each in groups) == sum(rows)
    assert sum(count for count, _ in groups) == len(liked)
    assert len(groups) <= 2 * GROUPS
    assert [each for _, each in groups] == sorted((each for _, each in groups), reverse=True)
    if len(set(liked)) <= GROUPS:
        assert groups == [(liked.count(each), each) for each in sorted(set(liked), reverse=True)]


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(["mixtral-8x7b", "qwen3-next-80b", "llama4-scout"]),
    exponent=st.sampled_from(["0.3", "1.0", "2.5", "chance"]),
    lengths=st.sampled_from([[("sequence", "333")], [("phase", "decode"), ("batch", "7")], [("sequence", "1")]]),
)
def test_rows_work_and_parameters_are_conserved(model, exponent, lengths) -> None:
    sets = [*MOE, *lengths]
    skewed, even = (load_workload(model, [*sets, *more]) for more in ([("expert_popularity", exponent)], []))
    assert (skewed.parameters, skewed.active_parameters) == (even.parameters, even.active_parameters)
    for role in (Role.EXPERT_COLUMN, Role.EXPERT_ROW):
        own, (plain,) = experts(skewed, role), experts(even, role)
        assert sum(o.batch * o.m for o in own) == skewed.tokens * (plain.chosen or 0)
        assert sum(o.stored or 0 for o in own) == plain.stored
    acts = [o for o in skewed.operators() if isinstance(o, Vector) and o.role is Role.EXPERT_ACTIVATION]
    assert sum(o.rows for o in acts) == sum(o.batch * o.m for o in experts(skewed))
    (combine,) = (o for o in skewed.operators() if o.role is Role.COMBINE)
    (other,) = (o for o in even.operators() if o.role is Role.COMBINE)
    assert combine.shape == other.shape
    rest = {Role.EXPERT_COLUMN, Role.EXPERT_ROW, Role.EXPERT_ACTIVATION}
    assert [o for o in skewed.operators() if o.role not in rest] == [o for o in even.operators() if o.role not in rest]


@pytest.mark.parametrize("stated", ["0", "[3, 3, 3, 3, 3, 3, 3, 3]"])
def test_experts_that_are_all_as_popular_are_routed_evenly(stated) -> None:
    sets = [*MOE, ("sequence", "13")]
    graph, even = (
        load_workload("mixtral-8x7b", [*sets, ("expert_popularity", stated)]),
        load_workload("mixtral-8x7b", sets),
    )
    assert graph.operators() == even.operators()
    assert [*graph.dataflow.edges()] == [*even.dataflow.edges()]


def test_counted_tokens_are_the_rows_of_experts() -> None:
    """Of 100 tokens that use two each, as they were counted."""
    counted = [90, 10, 40, 20, 20, 0, 15, 5]
    graph = load_workload("mixtral-8x7b", [*MOE, ("sequence", "100"), ("expert_popularity", str(counted))])
    found = [(o.batch, o.m) for o in experts(graph)]
    assert found == [(1, 90), (1, 40), (2, 20), (1, 15), (1, 10), (1, 5)]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), tokens=st.integers(1, 60))
def test_a_layer_of_a_trace_has_the_rows_that_were_counted(seed, tokens) -> None:
    """As placements read it: loads of one token on average, times the tokens of the step."""
    random = np.random.default_rng(seed)
    trace = np.stack([random.choice(8, 2, replace=False, p=SKEWED) for _ in range(tokens)])
    loads = loads_of(trace[:, None, :], 8)[0]
    graph = load_workload("mixtral-8x7b", [*MOE, ("sequence", str(tokens)), ("expert_popularity", str(loads.tolist()))])
    counted = sorted(np.bincount(trace.ravel(), minlength=8).tolist(), reverse=True)
    if len(set(counted) - {0}) <= GROUPS and len(set(counted)) > 1:
        assert [o.m for o in experts(graph) for _ in range(o.batch)] == [each for each in counted if each]


@pytest.mark.slow(seconds=1.5)
@settings(max_examples=3, deadline=None)
@given(exponent=st.sampled_from([0.5, 1.0, 3.0]), tokens=st.sampled_from([5, 64, 200]))
def test_a_tile_times_each_group_at_its_own_rows(exponent, tokens) -> None:
    graph = load_workload("mixtral-8x7b", [*TINY, ("sequence", str(tokens)), ("expert_popularity", str(exponent))])
    result = simulate("npu-edge-int8", graph).result()
    assert result["cycles"] >= result["bound"]["lower_bound_cycles"]
    assert result["macs"] == graph.macs
    own = {(o.batch, o.m) for o in experts(graph)}
    rows = [row["shape"] for row in result["operators"] if "gate_up" in row["name"] and row["kind"] == "gemm"]
    assert {(row["batch"], row["m"]) for row in rows} == own
    assert own == set(alike(rows_of(zipf(8, exponent), tokens, 2)))


@pytest.mark.slow(seconds=1.5)
def test_fewer_experts_in_use_are_less_that_decode_reads() -> None:
    lengths = [*MOE, ("phase", "decode"), ("batch", "8")]
    results = [
        simulate("npu-datacenter", load_workload("mixtral-8x7b", [*lengths, *more])).result()
        for more in ([], [("expert_popularity", "3.0")], [("expert_popularity", "[1, 1, 0, 0, 0, 0, 0, 0]")])
    ]
    traffic = [result["traffic_bytes"]["hbm"] for result in results]
    assert traffic[0] > traffic[1] > traffic[2]
    assert results[2]["cycles"] < results[0]["cycles"] / 2
    assert len({result["memory"]["used_bytes"] // 2**30 for result in results}) == 1, "all experts lie in memory"


def test_on_a_gpu_drawn_experts_are_one_kernel_and_every_chip_of_several_has_columns_of_all() -> None:
    sets = [*MOE, ("sequence", "512"), ("expert_popularity", "chance")]
    even, graph = (load_workload("mixtral-8x7b", each) for each in (sets[:-1], sets))
    whole = {k.operator: k.row for k in kernels_of(graph) if "expert" in k.operator}
    wide = [row for row in whole.values() if row["op"] == "grouped_gemm"]
    assert [(row["m"], row["batch"], row["dealt"], row["top_k"]) for row in wide] == 2 * [(1024, 8, "chance", 2)]
    (acts,) = (row for row in whole.values() if row["op"] != "grouped_gemm")
    assert acts["m"] == 1024
    node = read_machine("dgx-h100", [("plan.tensor", "2")])
    drawn_s, even_s = (evaluate(node, each).result["seconds"] for each in (graph, even))
    assert drawn_s > even_s, "pairs of tiles are no longer just full"
    shared = share(graph, Split(8))
    assert [o.name for o in experts(shared)] == [o.name for o in experts(graph)]
    columns = [(o.m, o.batch, o.n // 8, o.k) for o in experts(graph)]
    assert [(o.m, o.batch, o.n, o.k) for o in experts(shared)] == columns
    sums = [(o.m, o.k // 8) for o in experts(graph, Role.EXPERT_ROW)]
    assert [(o.m, o.k) for o in experts(shared, Role.EXPERT_ROW)] == sums
    for split in (Split(2, expert=2), Split(2, expert_tensor=1, expert=2), Split(context=2)):
        with pytest.raises(NotSupported, match=r"but for columns of each \(plan.tensor"):
            share(graph, split)


def test_a_gpu_times_the_groups_and_systems_refuse_them() -> None:
    sets = [*MOE, ("sequence", "64"), ("expert_popularity", "1.0")]
    graph = load_workload("mixtral-8x7b", sets)
    result = evaluate(read_machine("h100", []), graph).result
    kernels = [row for row in result["operators"] if "gate_up" in row["name"]]
    assert len(kernels) == len(experts(graph)) > 1
    batch = load_workload("mixtral-8x7b", [*sets, ("batch", "2")])
    for plan in ([("plan.data", "2")], [("plan.data", "2"), ("plan.expert", "2")]):
        with pytest.raises(NotSupported, match=r"experts of unequal popularity \(workload.expert_popularity\)"):
            evaluate(read_machine("dgx-h100", [("plan.tensor", "1"), *plan]), batch)


@pytest.mark.parametrize(
    ("model", "sets", "rule"),
    [
        ("llama3-8b", [("expert_popularity", "1.0")], "expert_popularity: the model has no experts"),
        ("mixtral-8x7b", [("expert_popularity", "[1, 2]")], "a number for each of the 8 experts, and has 2"),
        ("mixtral-8x7b", [("expert_popularity", "[1, 0, 0, 0, 0, 0, 0, 0]")], "at least 2 experts must have tokens"),
        ("mixtral-8x7b", [("expert_popularity", "1.0"), ("experts", "all")], "expert_popularity: changes nothing"),
        ("mixtral-8x7b", [("expert_popularity", "1.0"), ("phase", "training")], "expert_popularity in training"),
        ("mixtral-8x7b", [("expert_popularity", "-1")], "expert_popularity"),
    ],
)
def test_what_says_nothing_is_refused(model, sets, rule) -> None:
    with pytest.raises(LoomError, match=rule):
        load_workload(model, sets)
