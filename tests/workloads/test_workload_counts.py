"""FLOPs, bytes and cache against formulas that know nothing of operators."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from siliconloom.arch import DataType
from siliconloom.workloads import Attention, Gemm, load_workload
from siliconloom.workloads.load import LIBRARY

LLAMAS = ["llama2-7b", "llama2-70b", "llama3-8b", "llama3-70b", "mistral-7b", "qwen3-32b", "yi-34b"]


def matrices(model: dict[str, int]) -> int:
    """Elements of one Llama layer's matrices."""
    hidden, heads, kv = model["hidden_size"], model["num_attention_heads"], model["num_key_value_heads"]
    width = model.get("head_dim") or hidden // heads
    return hidden * width * (2 * heads + 2 * kv) + 3 * hidden * model["intermediate_size"]


def stated(name: str) -> dict[str, int]:
    model: dict[str, int] = yaml.safe_load((LIBRARY / f"{name}.yaml").read_text())["model"]
    return model


@pytest.mark.parametrize("name", LLAMAS)
@pytest.mark.parametrize(("batch", "sequence"), [(1, 2048), (3, 100)])
def test_prefill_flops_of_llamas(name: str, batch: int, sequence: int) -> None:
    model = stated(name)
    layers, heads, hidden = model["num_hidden_layers"], model["num_attention_heads"], model["hidden_size"]
    width = model.get("head_dim") or hidden // heads
    products = 2 * batch * sequence * layers * matrices(model)
    attention = 2 * 2 * batch * layers * heads * width * sequence * (sequence + 1) // 2
    head = 2 * batch * hidden * model["vocab_size"]  # the last token of each sequence only
    graph = load_workload(name, [("batch", str(batch)), ("sequence", str(sequence))])
    assert graph.flops == 2 * graph.macs == products + attention + head
    assert graph.unmasked_flops == products + 4 * batch * layers * heads * width * sequence**2 + head
    assert graph.tokens == batch * sequence


@pytest.mark.parametrize("name", LLAMAS)
@pytest.mark.parametrize(("batch", "context"), [(1, 1), (1, 4096), (8, 3000)])
def test_decode_flops_and_cache_of_llamas(name: str, batch: int, context: int) -> None:
    model = stated(name)
    layers, heads, hidden = model["num_hidden_layers"], model["num_attention_heads"], model["hidden_size"]
    width = model.get("head_dim") or hidden // heads
    graph = load_workload(name, [("phase", "decode"), ("batch", str(batch)), ("context", str(context))])
    products = 2 * batch * (layers * matrices(model) + hidden * model["vocab_size"])
    assert graph.flops == products + 4 * batch * layers * heads * width * context
    assert graph.kv_bytes_per_token == 2 * layers * model["num_key_value_heads"] * width * 2
    assert graph.kv_bytes == batch * context * graph.kv_bytes_per_token
    assert graph.tokens == batch


def test_gpt2_flops_follow_the_textbook() -> None:
    layers, hidden, tokens = 12, 768, 1024
    expected = 24 * tokens * layers * hidden**2 + 4 * layers * hidden * tokens * (tokens + 1) // 2 + 2 * hidden * 50257
    assert load_workload("gpt2").flops == expected


def test_bert_attends_in_both_directions_and_keeps_no_cache() -> None:
    graph = load_workload("bert-base", [("sequence", "384"), ("batch", "2")])
    tokens = 768
    assert graph.flops == 24 * tokens * 12 * 768**2 + 4 * 12 * 768 * tokens * 384 + 2 * 2 * 768**2
    assert graph.kv_bytes == graph.kv_bytes_per_token == 0


def test_window_bounds_pairs_and_cache() -> None:
    overrides = [("phase", "decode"), ("context", "6000")]
    graph = load_workload("mistral-7b", overrides)
    whole = load_workload("mistral-7b", [*overrides, ("model.sliding_window", "null")])
    assert graph.kv_bytes == 4096 * graph.kv_bytes_per_token
    assert whole.kv_bytes == 6000 * graph.kv_bytes_per_token
    assert whole.macs - graph.macs == 32 * 32 * 2 * 128 * (6000 - 4096)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 7, 512])
def test_mixture_runs_the_distinct_experts_that_balanced_routing_chooses(tokens: int) -> None:
    graph = load_workload("mixtral-8x7b", [("phase", "decode"), ("batch", str(tokens))])
    experts = dict(graph.digraph.nodes(data="operator"))["layer.expert_gate_up"]
    assert isinstance(experts, Gemm)
    assert experts.batch == min(8, 2 * tokens)
    assert experts.m == -(-2 * tokens // experts.batch)
    assert (experts.n, experts.k, experts.stored, experts.chosen) == (2 * 14336, 4096, 8, 2)
    assert experts.weight_bytes == 8 * 4096 * 2 * 14336 * 2


def test_deepseek_decode_reads_the_compressed_cache() -> None:
    graph = load_workload("deepseek-v3", [("phase", "decode"), ("context", "1000"), ("batch", "2")])
    assert graph.kv_bytes_per_token == (512 + 64) * 61 * 2
    assert graph.kv_bytes == 2 * 1000 * graph.kv_bytes_per_token
    operators = dict(graph.digraph.nodes(data="operator"))
    attention = operators["moe_layer.attention"]
    assert isinstance(attention, Attention)
    assert attention.macs == 2 * 128 * 1000 * (576 + 512)
    assert attention.input_bytes == 2 * 2 * (128 * 576 + 1000 * 576)  # the values are columns of the keys
    assert operators["moe_layer.absorb_keys"].macs == 2 * 128 * 128 * 512


def test_deepseek_prefill_expands_keys_and_values() -> None:
    graph = load_workload("deepseek-v3", [("sequence", "100")])
    operators = dict(graph.digraph.nodes(data="operator"))
    attention = operators["moe_layer.attention"]
    assert attention.macs == 128 * 5050 * (192 + 128)
    assert operators["moe_layer.kv_up"].macs == 100 * 512 * 128 * 256
    assert graph.kv_bytes_per_token == (512 + 64) * 61 * 2


def test_weight_and_activation_bytes_of_a_product() -> None:
    common = {"name": "g", "block": "g", "precision": DataType.INT8, "m": 3, "n": 5, "k": 7, "batch": 2}
    stored = Gemm(**common, bias=True)  # type: ignore[arg-type]
    assert (stored.weight_bytes, stored.input_bytes, stored.output_bytes) == (2 * (35 + 5), 2 * 21, 2 * 15)
    product = Gemm(**common, weight=False)  # type: ignore[arg-type]
    assert (product.weight_bytes, product.input_bytes) == (0, 2 * (21 + 35))


def test_precision_of_single_operators(tmp_path: Path) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(
        "kind: transformer\nprecision: int8\n"
        "operator_precision: {'*.attention': bf16, '*.kv_append': bf16, head: fp16}\n"
        "model: {model_type: gpt2, n_embd: 64, n_layer: 2, n_head: 4, vocab_size: 100}\n"
    )
    graph = load_workload(str(path))
    formats = {name: operator.precision for name, operator in graph.digraph.nodes(data="operator")}
    assert formats["layer.attention"] is DataType.BF16
    assert formats["head"] is DataType.FP16
    assert formats["layer.qkv"] is DataType.INT8
    assert graph.kv_bytes_per_token == 2 * 64 * 2 * 2
    changed = graph.with_precision(DataType.FP32)
    formats = {name: operator.precision for name, operator in changed.digraph.nodes(data="operator")}
    assert formats["layer.qkv"] is DataType.FP32
    assert formats["layer.attention"] is DataType.BF16


@pytest.mark.parametrize(("precision", "bits"), [("mxfp4", 4.25), ("mxfp8", 8.25), ("w4a16", 4.125), ("w8a16", 8.125)])
def test_packed_weights_have_the_bits_of_their_format(precision: str, bits: float) -> None:
    """MX blocks of 32 have a byte each (OCP Microscaling Formats, 1.0, table 1), groups of 128 an fp16 scale."""
    graph = load_workload("llama3-8b", [("precision", precision)])
    product = next(o for o in graph.operators() if isinstance(o, Gemm) and o.packing is not None)
    assert 8 * product.matrix_bytes == bits * product.k * product.n
