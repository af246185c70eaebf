"""One chip's part of a graph under tensor, sequence, context and expert parallelism."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.mapper.system.parallel import Split, share
from siliconloom.workloads import Collective, load_workload
from siliconloom.workloads.graph import is_optimizer

MODELS = ["gpt2", "llama3-8b", "qwen3-32b", "bert-base", "mixtral-8x7b", "deepseek-v3", "pythia-1b"]


def messages(graph, dimension=None):
    return [o for o in graph.operators() if isinstance(o, Collective) and dimension in (None, o.dimension)]


def work(graph):
    """Multiply-accumulates of products that are shared, and of those that every chip does."""
    repeated = ("router", "q_down", "kv_down")
    return sum(
        o.macs * o.repeat
        for o in graph.operators()
        if o.macs and o.block.partition(".")[0] != "head" and not any(f".{r}" in o.name for r in repeated)
    )


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(["prefill", "training"]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 8]),
    st.booleans(),
)
def test_the_parts_of_all_chips_are_the_whole(model, phase, tensor, context, expert, sequence):
    """The same arithmetic in total, each parameter stored once for each replica; nothing is lost or done twice."""
    graph = load_workload(model, [("phase", phase), ("batch", "2"), ("sequence", "64")])
    part = share(graph, Split(tensor, sequence, context, "ring", expert))
    chips = tensor * context
    # Experts' rows are rounded up to equal shares, so a chip may do a little more.
    assert work(graph) <= work(part) * chips <= work(graph) * 1.15
    products = [o for o in graph.operators() if not is_optimizer(o) and "expert" in o.name and o.kind == "gemm"]
    for operator in products:
        mine = part.digraph.nodes[operator.name]["operator"]
        assert mine.parameters * tensor * expert == operator.parameters


def test_megatrons_messages():
    """Two sums a layer forward and two back, each of all tokens times the width (Shoeybi et al., section 3)."""
    graph = load_workload("gpt2", [("phase", "training"), ("batch", "2"), ("sequence", "128")])
    found = [m for m in messages(share(graph, Split(4))) if m.block.startswith("layer")]
    assert [m.operation for m in found] == ["all_reduce"] * 4
    assert {m.elements for m in found} == {2 * 128 * 768}
    shared = [m for m in messages(share(graph, Split(4, sequence=True))) if m.block.startswith("layer")]
    assert [m.operation for m in shared] == ["reduce_scatter", "all_gather"] * 4
    assert {m.elements for m in shared} == {2 * 128 * 768}


def test_experts_get_and_return_every_chosen_token():
    graph = load_workload("mixtral-8x7b", [("phase", "training"), ("batch", "1"), ("sequence", "256")])
    found = messages(share(graph, Split(expert=4)), "expert")
    assert [m.operation for m in found] == ["all_to_all"] * 4
    assert {m.elements for m in found} == {256 * 2 * 4096}
    sliced = share(graph, Split(tensor=4, expert=4, expert_tensor=1))
    assert {m.elements for m in messages(sliced, "expert")} == {256 * 2 * 4096 // 4}
    assert sum(m.operation == "all_gather" for m in messages(sliced, "tensor")) >= 2


def test_key_value_heads_are_repeated_where_chips_are_more():
    graph = load_workload("llama3-8b", [("phase", "decode"), ("batch", "4"), ("context", "100")])
    part = share(graph, Split(16))
    attention = part.digraph.nodes["layer.attention"]["operator"]
    assert (attention.heads, attention.kv_heads) == (2, 1)
    assert part.kv_bytes == graph.kv_bytes // 8


def test_decode_shares_keys_and_merges_what_was_seen():
    graph = load_workload("llama3-8b", [("phase", "decode"), ("batch", "4"), ("context", "4096")])
    part = share(graph, Split(context=4))
    assert part.digraph.nodes["layer.attention"]["operator"].kv_len == 1024
    (merged,) = messages(part)
    assert (merged.operation, merged.dimension, merged.elements) == ("all_reduce", "context", 4 * 32 * (128 + 2))


@pytest.mark.parametrize(
    ("model", "split", "message"),
    [
        ("llama3-8b", Split(3), "3 chips cannot share"),
        ("mixtral-8x7b", Split(expert=3), r"3 chips cannot share 8 experts evenly, 2 or 4 can \(plan.expert\)"),
        ("llama3-8b", Split(context=3), r"cannot share 64 tokens evenly, 2 or 4 can \(plan.context\)"),
        ("mixtral-8x7b", Split(tensor=4, expert_tensor=3), "3 does not divide plan.tensor, 4"),
    ],
)
def test_what_cannot_be_shared_is_said(model, split, message):
    with pytest.raises(LoomError, match=message):
        share(load_workload(model, [("sequence", "64")]), split)


@pytest.mark.parametrize(("sequence", "operation"), [(False, "all_reduce"), (True, "reduce_scatter")])
def test_tokens_of_a_shared_vocabulary_are_summed_whole_or_left_in_parts(sequence, operation):
    """Each chip has a part of the embedding table: with shared norms it keeps the sums of its own tokens only."""
    part = share(load_workload("llama3-8b", [("layers", "2")]), Split(4, sequence))
    after = [o for o in part.operators() if isinstance(o, Collective) and o.block == "embedding"]
    assert [o.operation for o in after] == [operation]
