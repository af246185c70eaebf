"""The float64 reading of a graph against the model written down a second time, weights from files of every kind."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.errors import NotSupported
from siliconloom.execution.files import FileWeights
from siliconloom.execution.reference import Reference
from siliconloom.execution.run import lengths
from siliconloom.execution.walk import At, GraphWalk
from siliconloom.execution.weights import RandomWeights
from siliconloom.workloads import load_workload
from tests.execution.models import VOCABULARY, config_of, graph_of, logits_of, pooled_of, safetensors, tensors_of

FAMILIES = ["gpt2", "llama", "mistral", "qwen2", "mixtral"]


def read(graph, weights, tokens):
    """The float64 reading of tokens of shape (batch, length)."""
    walk = GraphWalk(graph)
    found = Reference(weights, lengths(graph)[2], len(tokens))
    walk.run(found, tokens)
    return found


@settings(max_examples=30, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    heads=st.sampled_from([2, 4]),
    group=st.sampled_from([1, 2]),
    dim=st.sampled_from([4, 8]),
    layers=st.integers(1, 3),
    length=st.integers(1, 9),
    batch=st.integers(1, 3),
    tied=st.booleans(),
    npz=st.booleans(),
    experts=st.integers(2, 5),
    seed=st.integers(0, 99),
)
def test_logits_are_those_of_the_model_whose_weights_the_file_has(
    tmp_path_factory, family, heads, group, dim, layers, length, batch, tied, npz, experts, seed
):
    """Experts all compute every token: those that are not chosen have no weight."""
    folder = tmp_path_factory.mktemp("model")
    config = config_of(family, heads, heads // group, dim, layers, tied)
    sets = [("sequence", str(length)), ("batch", str(batch))]
    if family == "mixtral":
        config, sets = config | {"num_local_experts": experts}, [*sets, ("experts", "all")]
    graph = graph_of(folder, config, sets)
    tensors = tensors_of(config, seed)
    file = folder / ("w.npz" if npz else "w.safetensors")
    if npz:
        np.savez(file, **tensors)
    else:
        file.write_bytes(safetensors(tensors))
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, (batch, length))
    found = read(graph, FileWeights(graph, str(file)), tokens).results[At("head", 0)]
    for sequence, own in zip(tokens, found, strict=True):
        np.testing.assert_allclose(own, logits_of(config, tensors, sequence), rtol=1e-9, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(
    heads=st.sampled_from([2, 4]),
    dim=st.sampled_from([4, 8]),
    layers=st.integers(1, 3),
    length=st.integers(1, 9),
    batch=st.integers(1, 3),
    older=st.booleans(),
    seed=st.integers(0, 99),
)
def test_an_encoder_is_the_one_whose_weights_the_file_has(
    tmp_path_factory, heads, dim, layers, length, batch, older, seed
):
    """Every token sees all others; the pooler takes the first one."""
    folder = tmp_path_factory.mktemp("model")
    config = config_of("bert", heads, heads, dim, layers)
    graph = graph_of(folder, config, [("sequence", str(length)), ("batch", str(batch))])
    tensors = tensors_of(config, seed)
    stored = tensors | {"cls.seq_relationship.weight": np.ones((2, 2), np.float32)}  # of a head that is left out
    if older:
        stored = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
            for name, value in stored.items()
        }
    file = folder / "w.safetensors"
    file.write_bytes(safetensors(stored))
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, (batch, length))
    found = read(graph, FileWeights(graph, str(file)), tokens).results[At("pooler.tanh", 0)]
    for sequence, own in zip(tokens, found, strict=True):
        np.testing.assert_allclose(own, pooled_of(config, tensors, sequence), rtol=1e-9, atol=1e-9)


@settings(max_examples=10, deadline=None)
@given(family=st.sampled_from(FAMILIES), context=st.integers(2, 12), batch=st.integers(1, 2), seed=st.integers(0, 99))
def test_a_token_after_others_is_the_last_one_of_a_prompt(tmp_path_factory, family, context, batch, seed):
    """Decode walks the tokens before it first, by the same graph, and reads their keys and values."""
    folder = tmp_path_factory.mktemp("model")
    config = config_of(family, 2, 2, 8, 2)
    prompt = graph_of(folder, config, [("sequence", str(context)), ("batch", str(batch))])
    decode = graph_of(folder, config, [("phase", "decode"), ("context", str(context)), ("batch", str(batch))])
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, (batch, context))
    whole = read(prompt, RandomWeights(prompt, seed), tokens)
    walk, weights = GraphWalk(decode), RandomWeights(decode, seed)
    past = walk.run(Reference(weights, 1, batch), tokens[:, :-1])
    one = Reference(weights, 1, batch)
    walk.run(one, tokens[:, -1:], past)
    for at, value in one.results.items():
        expected = whole.results[at].reshape(batch, -1, value.shape[1])[:, -1]
        np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "sets", "why"),
    [
        ("mixtral-8x7b", {}, "routing depends on data"),
        ("qwen3-32b", {}, "norms of queries and keys"),
        ("gpt2", {"phase": "training"}, "a training step"),
        ("gpt2-block-gemms", {}, "products"),
        ("resnet50-conv", {}, "products"),
        ("mistral-7b", {"sequence": "8192"}, "a sliding window"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_reason(model, sets, why):
    with pytest.raises(NotSupported, match=why):
        GraphWalk(load_workload(model, list(sets.items())))


def test_random_weights_are_the_same_for_the_same_seed_only(tmp_path):
    graph = graph_of(tmp_path, config_of("gpt2", 2, 2, 8, 2), [("sequence", "4")])
    qkv = graph.dataflow["layer.qkv"]
    at = At("layer.qkv", 1)
    first = RandomWeights(graph, 3).matrix(at, qkv)
    np.testing.assert_array_equal(first, RandomWeights(graph, 3).matrix(at, qkv))
    for other in (RandomWeights(graph, 4).matrix(at, qkv), RandomWeights(graph, 3).matrix(At("layer.qkv", 0), qkv)):
        assert not np.array_equal(first, other)
    assert 0.015 < first.std() < 0.025
