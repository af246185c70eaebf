"""The float64 reading of a graph against the model written down a second time, weights from files of every kind."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.execution.files import FileWeights
from siliconloom.execution.reference import Reference
from siliconloom.execution.run import lengths
from siliconloom.execution.walk import At, GraphWalk
from siliconloom.execution.weights import RandomWeights
from siliconloom.workloads import load_workload
from tests.execution.models import (
    ENCODERS,
    PADDING,
    POSITIONS,
    VOCABULARY,
    beside_of,
    config_of,
    graph_of,
    logits_of,
    pooled_of,
    position_ids,
    safetensors,
    tensors_of,
)

FAMILIES = ["gpt2", "llama", "mistral", "qwen2", "mixtral"]


def read(graph, weights, tokens):
    """The float64 reading of tokens of shape (batch, length)."""
    walk = GraphWalk(graph)
    found = Reference(weights, lengths(graph)[2], len(tokens))
    walk.run(found, tokens)
    return found


@pytest.mark.slow(seconds=1)
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
    family=st.sampled_from(ENCODERS),
    heads=st.sampled_from([2, 4]),
    dim=st.sampled_from([4, 8]),
    layers=st.integers(1, 3),
    length=st.integers(1, 9),
    batch=st.integers(1, 3),
    older=st.booleans(),
    seed=st.integers(0, 99),
)
def test_an_encoder_is_the_one_whose_weights_the_file_has(
    tmp_path_factory, family, heads, dim, layers, length, batch, older, seed
):
    """Every token sees all others; the pooler takes the first one. Of RoBERTa some tokens are padding."""
    folder = tmp_path_factory.mktemp("model")
    config = config_of(family, heads, heads, dim, layers)
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
    numbers = np.random.default_rng(seed)
    tokens = np.where(numbers.random((batch, length)) < 0.2, PADDING, numbers.integers(0, VOCABULARY, (batch, length)))
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


BESIDE = {
    "pythia": {"model_type": "gpt_neox", "rotary_pct": 1.0, "use_parallel_residual": True, "intermediate_size": 24},
    "one after the other": {"model_type": "gpt_neox", "rotary_pct": 1.0, "use_parallel_residual": False},
    "falcon 7b": {"model_type": "falcon", "bias": True},
    "falcon 40b": {"model_type": "falcon", "new_decoder_architecture": True},
}


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(sorted(BESIDE)),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    layers=st.integers(1, 3),
    length=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_halves_of_a_layer_side_by_side_are_those_of_gpt_neox_and_falcon(
    tmp_path_factory, kind, kv_heads, group, layers, length, seed
):
    """Norms, heads that share keys, and the sum of both halves; weights are large, so that each of them shows."""
    heads = kv_heads * group
    sizes = {"hidden_size": 8 * heads, "num_attention_heads": heads, "num_hidden_layers": layers}
    config = {"intermediate_size": 20, **sizes, "vocab_size": VOCABULARY, **BESIDE[kind]}
    if config["model_type"] == "falcon":
        del config["intermediate_size"]
    if config.get("new_decoder_architecture"):
        config["num_kv_heads"] = kv_heads
    graph = graph_of(tmp_path_factory.mktemp("model"), config, [("sequence", str(length))])
    weights = LargeWeights(graph, seed)
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, (1, length))
    found = read(graph, weights, tokens).results[At("head", 0)]
    np.testing.assert_allclose(found[0], beside_of(config, weights, tokens[0]), rtol=1e-9, atol=1e-9)


class LargeWeights(RandomWeights):
    """Random ones far from zero, biases and norms' offsets among them."""

    def find(self, at, operator, what, shape):
        return 10 * super().find(at, operator, what, shape)


OPT = {
    "model_type": "opt",
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "ffn_dim": 32,
    "max_position_embeddings": 12,
    "vocab_size": VOCABULARY,
}


@pytest.mark.parametrize("sets", [{"sequence": "12"}, {"phase": "decode", "context": "7"}])
def test_positions_of_opt_begin_with_the_third_row_of_their_table(tmp_path, sets):
    """In a prompt of all positions, and of the token that comes after six others."""
    graph = graph_of(tmp_path, OPT, list(sets.items()))
    weights, walk, tokens = RandomWeights(graph, 3), GraphWalk(graph), np.arange(7 if "context" in sets else 12)[None]
    new = lengths(graph)[2]
    past = walk.run(Reference(weights, 1, 1), tokens[:, :-new]) if new == 1 else None
    found = Reference(weights, new, 1)
    walk.run(found, tokens[:, -new:], past)
    words, positions = (
        weights.table(At(name, 0), graph.dataflow[name]).astype(float)
        for name in ("embedding.tokens", "embedding.positions")
    )
    expected = words[tokens[0]] + positions[position_ids(OPT, tokens[0])]
    np.testing.assert_allclose(found.results[At("embedding.add", 0)], expected[-new:], rtol=1e-12)
    numbers = walk.numbers(graph.dataflow["embedding.positions"], tokens[:, -new:], tokens.shape[1] - new)
    assert list(numbers) == list(position_ids(OPT, tokens[0])[-new:])


def test_positions_of_roberta_begin_behind_the_number_of_its_padding_token(tmp_path):
    """Padding has the row before the first position, and takes none; the table serves two tokens fewer than rows."""
    config, padding = config_of("roberta", 2, 2, 8, 1) | {"pad_token_id": PADDING}, PADDING
    longest = POSITIONS - 2
    graph = graph_of(tmp_path, config, [("sequence", str(longest))])
    tokens = np.full((1, longest), 9)
    tokens[0, 3:5] = padding
    numbers = GraphWalk(graph).numbers(graph.dataflow["embedding.positions"], tokens, 0)
    assert list(numbers) == list(position_ids(config, tokens[0]))
    assert list(numbers[:6]) == [2, 3, 4, 1, 1, 5]
    with pytest.raises(LoomError, match=f"learned positions for {longest} tokens only"):
        graph_of(tmp_path, config, [("sequence", str(longest + 1))])
    with pytest.raises(NotSupported, match=r"roberta whose padding is another token than 1 \(pad_token_id\)"):
        graph_of(tmp_path, config | {"pad_token_id": 0})


@pytest.mark.parametrize(
    ("model", "sets", "why"),
    [
        ("mixtral-8x7b", {}, "routing depends on data"),
        ("qwen3-32b", {}, "norms of queries and keys"),
        ("gpt2", {"phase": "training"}, "a training step"),
        ("gpt2-block-gemms", {}, "products"),
        ("resnet50-conv", {}, "products"),
        ("mistral-7b", {"sequence": "8192"}, "a sliding window"),
        ("pythia-1b", {}, "rotations of a part of each head"),
        ("t5-base", {}, "t5-base, an encoder with a decoder that attends to it"),
        ("whisper-small", {"phase": "decode"}, "whisper-small, an encoder with a decoder that attends to it"),
        ("vit-base", {}, r"products of what no operator makes \(an image's patches"),
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
