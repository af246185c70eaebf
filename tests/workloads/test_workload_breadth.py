"""Models with several kinds of layers, against formulas of their own: gpt-oss, Llama 4, Jamba, Qwen3-Next, BLOOM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.document import Document
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.gpu import load_gpu
from siliconloom.arch.vector import VectorFunction, vector_cost
from siliconloom.baselines.model import predict_model
from siliconloom.cli import main
from siliconloom.evaluate.chip import simulate
from siliconloom.workloads import Attention, Gemm, Graph, Phase, Vector, load_workload
from siliconloom.workloads.load import read_workload
from siliconloom.workloads.recurrence import Recurrence
from siliconloom.workloads.roles import Role

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "intermediate_size": 96,
}
LLAMA4 = {
    "model_type": "llama4_text",
    **SIZES,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "no_rope_layer_interval": 2,
}
OSS = {
    "model_type": "gpt_oss",
    **SIZES,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
}
NEXT = {
    "model_type": "qwen3_next",
    **SIZES,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
JAMBA = {"model_type": "jamba", **SIZES, "num_hidden_layers": 8, "num_experts": 4, "mamba_dt_rank": 4}
BLOOM = {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}


def built(model: dict[str, Any], *sets: tuple[str, str]) -> Graph:
    document = Document({"kind": "transformer", "model": {**model}}, {}, "model.yaml")
    return read_workload(document, "model", list(sets))


def step(model: dict[str, Any], past: int, new: int, batch: int, phase: str = "prefill", **more: str) -> Graph:
    lengths = [("batch", str(batch)), *more.items()]
    if phase == "decode":
        lengths += [("phase", "decode"), ("context", str(past + new)), *([("sequence", str(new))] if new > 1 else [])]
    else:
        lengths += [("sequence", str(new)), *([("context", str(past))] if past else [])]
    return built(model, *lengths)


def attentions(graph: Graph, layer: int) -> list[Attention]:
    """Attention of one of the layers of a repeating pattern."""
    return [o for o in graph.operators() if isinstance(o, Attention) and o.name.startswith(f"{PATTERN[layer]}.")]


PATTERN = {0: "local_layer", 1: "global_layer"}
"""Blocks of two layers that differ."""


@pytest.mark.slow(seconds=1)
@settings(max_examples=150, deadline=None)
@given(
    past=st.integers(0, 60),
    new=st.integers(1, 60),
    chunk=st.integers(1, 20),
    batch=st.integers(1, 3),
    phase=st.sampled_from(["prefill", "decode"]),
)
def test_a_query_sees_its_own_chunk_of_positions_up_to_itself(past, new, chunk, batch, phase) -> None:
    graph = step({**LLAMA4, "attention_chunk_size": chunk}, past, new, batch, phase)
    local, whole = attentions(graph, 0), attentions(graph, 1)
    pairs = sum(position % chunk + 1 for position in range(past, past + new))
    assert sum(o.batch * o.pairs for o in local) == batch * pairs
    assert sum(o.batch * o.q_len for o in local) == batch * new
    assert [o.pairs for o in whole] == [sum(range(past + 1, past + new + 1))]
    # later tokens see the last chunk alone: its keys and values are kept, and of a chunk that is begun those before
    kept = (past + new - 1) % chunk + 1
    assert local[-1].kv_len == kept
    row = 2 * 2 * 16 * 2
    assert graph.kv_bytes == batch * row * (kept + past + new)
    appends = [o.rows for o in graph.operators() if isinstance(o, Vector) and o.role is Role.CACHE]
    assert appends == [batch * min(new, kept), batch * new]


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(1, 30), min_size=1, max_size=5), chunk=st.integers(1, 20))
def test_chunks_of_a_prompt_do_the_work_of_the_whole(cuts, chunk) -> None:
    model = {**LLAMA4, "attention_chunk_size": chunk}
    whole = step(model, 0, sum(cuts), 1)
    parts = [step(model, sum(cuts[:n]), new, 1) for n, new in enumerate(cuts)]
    for layer in PATTERN:
        assert sum(o.macs for part in parts for o in attentions(part, layer)) == sum(
            o.macs for o in attentions(whole, layer)
        )
    assert parts[-1].kv_bytes == whole.kv_bytes


def test_requests_are_cut_into_chunks_of_their_own() -> None:
    model = {**LLAMA4, "attention_chunk_size": 8}
    graph = built(model, ("requests", "[{new: 20}, {new: 1, context: 17, count: 3}]"))
    alone = [step(model, 0, 20, 1), step(model, 17, 1, 3, "decode")]
    for layer in PATTERN:
        own, other = attentions(graph, layer), [o for each in alone for o in attentions(each, layer)]
        assert [(o.batch, o.q_len, o.kv_len) for o in own] == [(o.batch, o.q_len, o.kv_len) for o in other]
    assert graph.kv_bytes == sum(each.kv_bytes for each in alone)


def test_llama4_turns_and_norms_the_queries_of_layers_with_chunks_alone(tmp_path) -> None:
    graph = step(LLAMA4, 0, 16, 1)
    names = {
        layer: {o.name.partition(".")[2] for o in graph.operators() if o.block == name}
        for layer, name in PATTERN.items()
    }
    assert {"rope", "q_norm", "k_norm"} <= names[0]
    assert not {"rope", "q_norm", "k_norm"} & names[1]
    assert "query_scale" in names[1] - names[0]
    off = step({**LLAMA4, "attn_temperature_tuning": False, "use_qk_norm": False}, 0, 16, 1)
    assert {o.name.partition(".")[2] for o in off.operators()} & {"query_scale", "q_norm"} == set()
    stated = load_workload("llama4-scout", [("model.text_config.attn_temperature_tuning", "false")])
    assert "layers.3.query_scale" in load_workload("llama4-scout").dataflow
    assert "layers.3.query_scale" not in stated.dataflow
    with pytest.raises(LoomError, match=r"attn_temperature_tuning.*every layer turns its queries"):
        load_workload(
            "llama4-scout",
            [
                ("model.text_config.no_rope_layers", str([1] * 48)),
                ("model.text_config.attn_temperature_tuning", "false"),
            ],
        )
    for told, key, value, reason in (
        ({"no_rope_layers": [0] * 4}, "use_qk_norm", "false", "no layer turns its queries"),
        ({"no_rope_layers": [0] * 4}, "attention_chunk_size", "8", "no layer has chunks"),
        ({"layer_types": ["full_attention"] * 4}, "attention_chunk_size", "8", "no layer has chunks"),
        ({"moe_layers": []}, "intermediate_size", "32", "no layer has experts"),
    ):
        file = tmp_path / "config.json"
        file.write_text(json.dumps({**LLAMA4, "num_hidden_layers": 4, **told}))
        with pytest.raises(LoomError, match=rf"{key}.*{reason}"):
            load_workload(str(file), [(f"model.{key}", value)])
    dense = step({**LLAMA4, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 128}, 0, 16, 1)
    products = {o.name: o.n for o in dense.operators() if isinstance(o, Gemm)}
    assert products["local_dense_layer.gate_up"] == 256
    assert products["global_moe_layer.shared_gate_up"] == 192


@pytest.mark.slow(seconds=1)
def test_gpt_oss_has_sinks_windows_and_biases_of_experts() -> None:
    graph = step(OSS, 0, 32, 1)
    windows = [o.window for o in graph.operators() if isinstance(o, Attention)]
    assert windows == [8, None]
    assert all(o.parameters == 4 for o in graph.operators() if isinstance(o, Attention))
    gate_up, down = (graph.dataflow[f"local_layer.expert_{name}"] for name in ("gate_up", "down"))
    assert (gate_up.parameters, down.parameters) == (4 * (64 * 192 + 192), 4 * (96 * 64 + 64))
    act = graph.dataflow["local_layer.expert_activation"]
    assert isinstance(act, Vector)
    assert act.function is VectorFunction.CLAMPED_SWIGLU
    result = simulate("npu-edge-int8", graph).result()
    why = {row["name"]: row["hardware_why"] for row in result["operators"]}
    assert why["global_layer.attention"] == "no circuit for a score that belongs to no key"
    assert "no circuit for clamped_swiglu" in why["local_layer.expert_activation"]
    plain = step({**OSS, "sliding_window": 64}, 0, 32, 1)
    assert sum(o.macs for o in plain.operators() if isinstance(o, Attention)) > sum(
        o.macs for o in graph.operators() if isinstance(o, Attention)
    )


@pytest.mark.slow(seconds=1)
def test_bloom_has_a_bias_of_every_score_and_no_positions() -> None:
    graph = step(BLOOM, 0, 24, 2)
    bias = graph.dataflow["layer.score_bias"]
    assert isinstance(bias, Vector)
    assert (bias.rows, bias.cols, bias.inputs) == (2 * 24 * 4, 24, 2)
    slopes = graph.dataflow["embedding.position_bias"]
    assert (slopes.shape["rows"], slopes.shape["cols"], slopes.parameters) == (24, 4, 0)
    decode = step(BLOOM, 99, 1, 2, "decode").dataflow["layer.score_bias"]
    assert (decode.shape["rows"], decode.shape["cols"]) == (8, 100)
    why = {row["name"]: row["hardware_why"] for row in simulate("npu-edge-int8", graph).result()["operators"]}
    assert why["layer.score_bias"] == why["layer.attention"] == "no circuit adds a bias of its distance to a score"
    mixed = built(BLOOM, ("requests", "[{new: 8}, {new: 1, context: 30, count: 2}]"))
    rows = [(o.shape["rows"], o.shape["cols"]) for o in mixed.operators() if o.role is Role.SCORE_BIAS]
    assert rows == [(8 * 4, 8), (2 * 4, 31)]


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 300),
    batch=st.integers(1, 3),
    groups=st.integers(1, 3),
    ratio=st.integers(1, 3),
    deep=st.sampled_from([8, 16]),
    width=st.sampled_from([8, 24]),
    taps=st.integers(2, 5),
)
def test_delta_nets_have_the_products_of_their_chunks(tokens, batch, groups, ratio, deep, width, taps) -> None:
    heads = groups * ratio
    sizes = {
        "linear_num_key_heads": groups,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": deep,
        "linear_value_head_dim": width,
        "linear_conv_kernel_dim": taps,
    }
    keys, inner = groups * deep, heads * width
    model = {**NEXT, **sizes, "num_hidden_layers": 1}
    graph, decode = step(model, 0, tokens, batch), built(model, ("phase", "decode"), ("batch", str(batch)))

    def mixing(made: Graph) -> int:
        return sum(o.macs for o in made.operators() if isinstance(o, Gemm) and o.role is Role.STATE)

    size = min(64, tokens)
    chunks = batch * -(-tokens // size)
    shared = 2 * groups * size**2 * deep  # keys by keys, queries by keys
    each = size**3 + size**2 * (width + deep) + 2 * size * deep * width + size**2 * width + size * deep * width
    assert mixing(graph) == chunks * (shared + heads * each)
    assert mixing(decode) == 0
    state = batch * 2 * (deep * inner + (taps - 1) * (2 * keys + inner))
    assert graph.state_bytes == decode.state_bytes == state
    mixer = 64 * (2 * keys + 2 * inner) + 64 * 2 * heads + taps * (2 * keys + inner) + 2 * heads + width + inner * 64
    names = ("in_proj", "step_proj", "conv1d", "softplus", "chunk_cumsum", "delta_update", "gate_norm", "out_proj")
    for made in (graph, decode):
        own = [o for o in made.operators() if o.name.rpartition(".")[2] in names]
        assert sum(o.parameters for o in own) == mixer
    (update,) = (o for o in decode.operators() if o.name.endswith("delta_update"))
    assert isinstance(update, Recurrence)
    assert (update.begun, update.states, update.rows, update.cols) == (True, deep, batch, inner)
    assert vector_cost(update.function).slot_cycles(128, deep) == 4 * deep + 3


def test_qwen3_next_gates_what_attention_makes_and_its_shared_expert() -> None:
    graph = step(NEXT, 0, 16, 1)
    qkv, gate = graph.dataflow["attention_layer.qkv"], graph.dataflow["attention_layer.output_gate"]
    assert isinstance(qkv, Gemm)
    assert qkv.n == 2 * 64 + 2 * 2 * 16
    assert isinstance(gate, Vector)
    assert (gate.function, gate.rows, gate.cols) == (VectorFunction.GATED_SIGMOID, 16, 64)
    assert set(graph.dataflow.predecessors(gate.name)) == {"attention_layer.qkv", "attention_layer.attention"}
    shared = graph.dataflow["attention_layer.shared_gate"]
    assert isinstance(shared, Gemm)
    assert (shared.m, shared.n, shared.k) == (16, 1, 64)
    rope = graph.dataflow["attention_layer.rope"]
    assert rope.shape["cols"] == (4 + 2) * 4


def test_jamba_attends_every_eighth_layer_and_has_experts_in_every_other_one() -> None:
    graph = step(JAMBA, 0, 16, 1)
    order = [(name, repeat) for name, repeat, _ in graph.blocks()]
    assert order[0] == ("embedding", 1)
    attention = [o for o in graph.operators() if isinstance(o, Attention)]
    assert sum(o.repeat for o in attention) == 1
    scans = [o for o in graph.operators() if isinstance(o, Recurrence) and o.function.value == "selective_scan"]
    assert sum(o.repeat for o in scans) == 7
    routers = [o for o in graph.operators() if o.role is Role.ROUTER]
    assert sum(o.repeat for o in routers) == 4
    assert all(o.role is not Role.ROPE for o in graph.operators())
    norms = {
        o.name.rpartition(".")[2]: o.parameters for o in graph.operators() if o.name.endswith(("dt_norm", "b_norm"))
    }
    assert norms == {"dt_norm": 4, "b_norm": 16}
    longer = step(JAMBA, 40, 1, 1, "decode")
    assert longer.kv_bytes == 41 * longer.kv_bytes_per_token == 41 * 2 * 2 * 16 * 2
    assert longer.state_bytes == graph.state_bytes


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    "model", [OSS, {**LLAMA4, "attention_chunk_size": 8}, JAMBA, NEXT, BLOOM], ids=lambda model: model["model_type"]
)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_they_run_on_a_tile_no_faster_than_their_bounds(model, phase) -> None:
    graph = step(model, 0 if phase == "prefill" else 20, 24 if phase == "prefill" else 1, 2, phase)
    chip = load_chip("npu-edge-int8", [("tile.sequencer.program_words", "8192")])
    result = simulate(chip, graph).result()
    assert result["cycles"] >= result["bound"]["lower_bound_cycles"] > 0
    assert result["macs"] == graph.macs
    assert any(row["hardware"] == "specified" for row in result["operators"])


@pytest.mark.parametrize("model", [OSS, LLAMA4, BLOOM], ids=lambda model: model["model_type"])
def test_a_gpu_times_them(model) -> None:
    for phase in ("prefill", "decode"):
        found = predict_model(load_gpu("h100"), step(model, 20, 1, 2, phase))
        assert (found.seconds >= found.roofline * (1 - 1e-9)).all()


@pytest.mark.parametrize("model", [JAMBA, NEXT], ids=lambda model: model["model_type"])
def test_what_keeps_a_state_is_refused_on_gpus_in_training_and_behind_a_cache(model) -> None:
    with pytest.raises(NotSupported, match="on a GPU"):
        predict_model(load_gpu("h100"), step(model, 0, 16, 1))
    with pytest.raises(LoomError, match="not supported: training of"):
        built(model, ("phase", "training"))
    with pytest.raises(LoomError, match="not supported: context in prefill"):
        step(model, 8, 8, 1)
    with pytest.raises(LoomError, match="not supported: requests of"):
        built(model, ("requests", "[{new: 8}, {new: 4}]"))


@pytest.mark.parametrize("model", [OSS, LLAMA4, JAMBA, NEXT, BLOOM], ids=lambda model: model["model_type"])
def test_their_values_are_refused_by_name(model, tmp_path: Path, capsys) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(model))
    sets = ["--set", "workload.sequence=8", "--set", "tile.sequencer.program_words=8192"]
    assert main(["run", "npu-edge-int8", str(path), *sets]) == 2
    assert "not supported: values of" in " ".join(capsys.readouterr().err.split())


def test_phases_of_a_model_are_those_of_its_parameters() -> None:
    for model in (OSS, LLAMA4, BLOOM):
        assert step(model, 0, 16, 1).parameters == built(model, ("phase", "training")).parameters
        assert built(model, ("phase", "training")).phase is Phase.TRAINING
