"""GPT-NeoX, GPT-J, Falcon and ViT against formulas of parameters, work and cache that know nothing of operators."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.arch.document import Document
from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads import Attention, Gemm, Graph, Vector, load_workload
from siliconloom.workloads.load import read_workload
from siliconloom.workloads.roles import Role


def load(config: dict[str, Any], **sets: object) -> Graph:
    document = Document.parse(json.dumps({"kind": "transformer", "model": config}))
    return read_workload(document, "model", [(key, str(value)) for key, value in sets.items()])


def norms(graph: Graph, block: str = "layer") -> list[str]:
    """Norms of a layer."""
    return [
        o.name
        for o in graph.operators()
        if isinstance(o, Vector) and o.function is VectorFunction.LAYER_NORM and o.block == block
    ]


def made_by(graph: Graph, name: str) -> list[str]:
    return graph.dataflow.predecessors(name)


SIZES = {
    "heads": st.integers(1, 6),
    "half": st.integers(1, 8),
    "layers": st.integers(1, 5),
    "inner": st.integers(1, 200),
    "vocabulary": st.integers(1, 400),
    "tokens": st.integers(1, 50),
    "batch": st.integers(1, 3),
}


@given(**SIZES, turned=st.integers(1, 8), beside=st.booleans(), bias=st.booleans(), tied=st.booleans())
def test_gpt_neox(
    heads: int,
    half: int,
    layers: int,
    inner: int,
    vocabulary: int,
    tokens: int,
    batch: int,
    turned: int,
    beside: bool,
    bias: bool,
    tied: bool,
) -> None:
    dim = 2 * half
    hidden, pairs = heads * dim, min(turned, half)
    config = {
        "model_type": "gpt_neox",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "rotary_pct": 2 * pairs / dim,
        "use_parallel_residual": beside,
        "attention_bias": bias,
        "tie_word_embeddings": tied,
    }
    graph = load(config, sequence=tokens, batch=batch)
    matrices = 4 * hidden**2 + 2 * hidden * inner
    layer = matrices + 4 * hidden * bias + inner + hidden + 2 * 2 * hidden
    assert graph.parameters == layers * layer + 2 * hidden + (1 if tied else 2) * vocabulary * hidden
    scores = layers * heads * 2 * dim * tokens * (tokens + 1) // 2
    assert graph.macs == batch * (layers * matrices * tokens + scores + hidden * vocabulary)
    assert graph.kv_bytes == batch * tokens * layers * 2 * hidden * 2
    rope = graph.dataflow["layer.rope"]
    assert isinstance(rope, Vector)
    assert rope.cols == 2 * heads * 2 * pairs
    assert norms(graph) == ["layer.attention_norm", "layer.feed_forward_norm"]
    start = "embedding.tokens"
    assert made_by(graph, "layer.attention_norm") == [start]
    if beside:
        assert made_by(graph, "layer.feed_forward_norm") == [start], "both norms are of the layer's input"
        assert made_by(graph, "layer.add") == ["layer.output", "layer.down", start]
    else:
        assert made_by(graph, "layer.feed_forward_norm") == ["layer.attention_add"]


@given(**SIZES, turned=st.none() | st.integers(1, 8), tied=st.booleans())
def test_gptj(
    heads: int,
    half: int,
    layers: int,
    inner: int,
    vocabulary: int,
    tokens: int,
    batch: int,
    turned: int | None,
    tied: bool,
) -> None:
    dim = 2 * half
    hidden, pairs = heads * dim, half if turned is None else min(turned, half)
    config = {
        "model_type": "gptj",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": inner,
        "vocab_size": vocabulary,
        "rotary_dim": None if turned is None else 2 * pairs,
        "tie_word_embeddings": tied,
    }
    graph = load(config, sequence=tokens, batch=batch)
    matrices = 4 * hidden**2 + 2 * hidden * inner
    layer = matrices + inner + hidden + 2 * hidden
    tables = (1 if tied else 2) * vocabulary * hidden + vocabulary
    assert graph.parameters == layers * layer + 2 * hidden + tables
    rope = graph.dataflow["layer.rope"]
    assert isinstance(rope, Vector)
    assert rope.cols == 2 * heads * 2 * pairs
    assert norms(graph) == ["layer.norm"]
    assert made_by(graph, "layer.qkv") == made_by(graph, "layer.up") == ["layer.norm"]


@given(
    **SIZES,
    group=st.integers(1, 4),
    kind=st.sampled_from(["multi_query", "multi_head", "sequential", "two norms", "one norm"]),
    bias=st.booleans(),
    tied=st.booleans(),
)
def test_falcon(
    heads: int,
    half: int,
    layers: int,
    inner: int,
    vocabulary: int,
    tokens: int,
    batch: int,
    group: int,
    kind: str,
    bias: bool,
    tied: bool,
) -> None:
    """``heads`` are the key-value heads of the later kinds, which ``group`` heads share each."""
    dim, new = 2 * half, kind in ("two norms", "one norm")
    queries = heads * group
    kv = {"multi_query": 1, "multi_head": queries, "sequential": 1}.get(kind, heads)
    hidden = queries * dim
    config: dict[str, Any] = {
        "model_type": "falcon",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": queries,
        "ffn_hidden_size": inner,
        "vocab_size": vocabulary,
        "bias": bias,
        "tie_word_embeddings": tied,
        "multi_query": kind != "multi_head",
        "parallel_attn": kind != "sequential",
        "new_decoder_architecture": new,
    }
    if new:
        config |= {"num_kv_heads": heads} | ({"num_ln_in_parallel_attn": 1} if kind == "one norm" else {})
    graph = load(config, sequence=tokens, batch=batch)
    width = (queries + 2 * kv) * dim
    matrices = hidden * width + hidden**2 + 2 * hidden * inner
    pair = kind in ("two norms", "sequential")
    layer = matrices + (width + hidden + inner + hidden) * bias + (2 if pair else 1) * 2 * hidden
    assert graph.parameters == layers * layer + 2 * hidden + (1 if tied else 2) * vocabulary * hidden
    scores = layers * queries * 2 * dim * tokens * (tokens + 1) // 2
    assert graph.macs == batch * (layers * matrices * tokens + scores + hidden * vocabulary)
    assert graph.kv_bytes == batch * tokens * layers * 2 * kv * dim * 2
    attention = graph.dataflow["layer.attention"]
    assert isinstance(attention, Attention)
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (queries, kv, dim)
    assert len(norms(graph)) == (2 if pair else 1)
    inputs = {"two norms": "layer.feed_forward_norm", "sequential": "layer.feed_forward_norm"}.get(kind, "layer.norm")
    assert made_by(graph, "layer.up") == [inputs]
    if kind == "two norms":
        assert made_by(graph, inputs) == ["embedding.tokens"]


@given(
    **{key: value for key, value in SIZES.items() if key not in ("vocabulary", "tokens")},
    side=st.integers(1, 9),
    patch=st.integers(1, 8),
    channels=st.integers(1, 4),
    classes=st.integers(1, 50),
    bias=st.booleans(),
    pooler=st.booleans(),
)
def test_vit(
    heads: int,
    half: int,
    layers: int,
    inner: int,
    batch: int,
    side: int,
    patch: int,
    channels: int,
    classes: int,
    bias: bool,
    pooler: bool,
) -> None:
    hidden, patches, values = heads * half, side**2, channels * patch**2
    config: dict[str, Any] = {
        "model_type": "vit",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "image_size": side * patch,
        "patch_size": patch,
        "num_channels": channels,
        "qkv_bias": bias,
    }
    config |= {"architectures": ["ViTModel"]} if pooler else {"id2label": {str(n): f"c{n}" for n in range(classes)}}
    graph, length = load(config, batch=batch), patches + 1
    matrices = 4 * hidden**2 + 2 * hidden * inner
    layer = matrices + 3 * hidden * bias + hidden + inner + hidden + 2 * 2 * hidden
    embedding = values * hidden + hidden + hidden + length * hidden
    columns = hidden if pooler else classes
    end = 2 * hidden + hidden * columns + columns
    assert graph.parameters == embedding + layers * layer + end
    products = patches * values * hidden + length * layers * matrices + hidden * columns
    assert graph.macs == batch * (products + layers * heads * 2 * half * length**2)
    assert graph.tokens == batch * length
    assert graph.kv_bytes == 0
    embedded = graph.dataflow["embedding.patches"]
    assert isinstance(embedded, Gemm)
    assert (embedded.m, embedded.n, embedded.k, embedded.bias) == (batch * patches, hidden, values, True)
    assert embedded.input_elements == batch * channels * (side * patch) ** 2, "every value of the image once"
    arriving = dict(graph.dataflow.inputs("embedding.add"))
    assert arriving == {
        "embedding.class_token": batch * hidden,
        "embedding.patches": batch * patches * hidden,
        "embedding.positions": batch * length * hidden,
    }
    assert all(o.role is not Role.TABLE for o in graph.operators())


@pytest.mark.parametrize("sequence", [1, 196, 198, 2048])
def test_an_image_is_as_long_as_its_patches(sequence: int) -> None:
    assert load_workload("vit-base").tokens == load_workload("vit-base", [("sequence", "197")]).tokens == 197
    with pytest.raises(LoomError) as caught:
        load_workload("vit-base", [("sequence", str(sequence))])
    rule = "must be 197: 196 patches of an image (image_size 224, patch_size 16) and a class token"
    assert str(caught.value) == f"--set workload.sequence={sequence}: sequence: {rule} (got {sequence})"


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (("phase", "decode"), "phase: vit is an encoder and does not decode; use prefill"),
        (("sample", "greedy"), "sample: vit has a classifier and no head to sample from"),
        (("cache_length", "197"), "cache_length: vit is an encoder and keeps no cache"),
    ],
)
def test_an_image_has_no_next_token(sets: tuple[str, str], expected: str) -> None:
    with pytest.raises(LoomError) as caught:
        load_workload("vit-base", [sets])
    assert expected in str(caught.value)


def test_a_training_step_of_images_needs_no_gradient_of_them() -> None:
    graph = load_workload("vit-base", [("phase", "training"), ("batch", "2")])
    forward = load_workload("vit-base", [("batch", "2")])
    names = [o.name for o in graph.operators()]
    assert "embedding.patches.weight_gradient" in names
    assert "embedding.patches.input_gradient" not in names
    attention = sum(o.macs * o.repeat for o in forward.operators() if isinstance(o, Attention))
    patches = forward.dataflow["embedding.patches"].macs
    assert 2 * graph.macs == 6 * (forward.macs - attention) + 7 * attention - 2 * patches
    loss = graph.dataflow["classifier.loss"]
    assert isinstance(loss, Vector)
    assert (loss.rows, loss.cols) == (2, 1000)
