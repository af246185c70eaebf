"""The share of a chip under tensor parallelism, and of a part of the batch."""

import pytest

from siliconloom.arch import LoomError
from siliconloom.mapper.system.shard import reduced_elements, sequences_of, tensor_shard, with_context, without
from siliconloom.workloads import Attention, Gemm, load_workload

DECODE = [("phase", "decode"), ("batch", "8"), ("context", "100")]


@pytest.mark.parametrize("model", ["gpt2", "gpt3-13b", "llama3-8b", "qwen3-32b"])
def test_shards_add_up_to_the_model(model):
    graph = load_workload(model, DECODE)
    for tensor in (2, 4):
        shard = tensor_shard(graph, tensor)
        vocabulary = next(o.n for o in graph.operators() if o.name == "head")
        spare = (-vocabulary % tensor) * next(o.k for o in graph.operators() if o.name == "head") * graph.batch
        assert shard.macs * tensor == graph.macs + spare
        assert shard.kv_bytes * tensor == graph.kv_bytes
        assert list(shard.digraph) == list(graph.digraph)
        assert set(shard.digraph.edges) == set(graph.digraph.edges)


def test_two_sums_a_layer_are_exchanged():
    graph = load_workload("llama3-8b", DECODE)
    assert reduced_elements(tensor_shard(graph, 4)) == {"layer.output": 8 * 4096, "layer.down": 8 * 4096}


def test_what_cannot_be_shared_is_said():
    with pytest.raises(LoomError, match=r"3 chips cannot share 2304 columns|3 chips cannot share"):
        tensor_shard(load_workload("llama3-8b", DECODE), 3)


@pytest.mark.parametrize("phase", ["prefill", "decode", "training"])
@pytest.mark.parametrize("model", ["gpt3-13b", "mixtral-8x7b", "deepseek-v3"])
def test_a_part_of_the_batch_is_a_smaller_step(model, phase):
    sets = [("phase", phase), ("context", "100") if phase == "decode" else ("sequence", "64")]
    half = sequences_of(load_workload(model, [*sets, ("batch", "8")]), 3)
    smaller = load_workload(model, [*sets, ("batch", "3")])
    assert (half.batch, half.tokens) == (smaller.batch, smaller.tokens)
    assert [o.shape for o in half.operators()] == [o.shape for o in smaller.operators()]


def test_context_and_operators_can_be_changed():
    graph = load_workload("gpt2", DECODE)
    longer = load_workload("gpt2", [*DECODE[:2], ("context", "300")])
    changed = with_context(graph, 300)
    assert [o.shape for o in changed.operators()] == [o.shape for o in longer.operators()]
    rest = without(graph, lambda o: isinstance(o, Attention | Gemm))
    assert not [o for o in rest.operators() if isinstance(o, Attention | Gemm)]
