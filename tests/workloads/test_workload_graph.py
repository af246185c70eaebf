"""Structure of the graphs: order, blocks, edges, training, summary."""

from __future__ import annotations

import json
from collections.abc import Callable

import networkx
import pytest

from siliconloom.arch import DataType
from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads import Attention, Gemm, Graph, Phase, Vector, load_workload, workload_names
from siliconloom.workloads.roles import Role

Loader = Callable[..., Graph]
LISTS = ("gpt2-block-gemms", "resnet50-conv", "resnet50")
MODELS = [name for name in workload_names() if name not in LISTS]
GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 14,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 1000,
    "sliding_window": 16,
}


ENCODERS = ("bert-base", "vit-base")
TRANSLATORS = ("t5-base", "whisper-small")
"""Encoders with a decoder, which are not trained."""
RECURRENT = ("mamba-2.8b", "mamba2-2.7b")
"""Models with states, which no context makes longer, and which are not trained."""
HYBRIDS = ("jamba-v0.1", "qwen3-next-80b")
"""Models with states in some layers, which are not trained."""
TRAINED = [name for name in MODELS if name not in (*TRANSLATORS, *RECURRENT, *HYBRIDS)]
WITHOUT = ("embedding.patches", "embedding.conv1", "embedding.position_bias")
"""Products of what no operator makes."""
ROUND = ".carried"
"""Products with a state that comes round, from the chunk before, as no edge of an acyclic graph does."""


def phases(name: str) -> list[Graph]:
    kinds = ["prefill", "training"] if name in ENCODERS else ["prefill", "decode", "training"]
    kinds = kinds[:2] if name in TRANSLATORS else kinds
    kinds = ["prefill", "decode"] if name in (*RECURRENT, *HYBRIDS) else kinds
    return [load_workload(name, [("phase", phase), ("batch", "2"), *length(name, 64, phase)]) for phase in kinds]


def length(name: str, tokens: int, phase: str = "training") -> list[tuple[str, str]]:
    """Length of a sequence in a phase; an image has its own, and 30 seconds of sound."""
    own = name == "vit-base" or (name == "whisper-small" and phase != "decode")
    if own or (name in RECURRENT and phase == "decode"):
        return []
    return [("context" if phase == "decode" else "sequence", str(tokens))]


@pytest.mark.parametrize("name", MODELS)
def test_graphs_are_acyclic_and_in_program_order(name: str) -> None:
    for graph in phases(name):
        assert networkx.is_directed_acyclic_graph(graph.digraph)
        position = {operator.name: index for index, operator in enumerate(graph.operators())}
        assert all(position[source] < position[target] for source, target in graph.digraph.edges)
        blocks = graph.blocks()
        assert len({block for block, _, _ in blocks}) == len(blocks)
        assert all(operator.repeat == repeat for _, repeat, operators in blocks for operator in operators)


@pytest.mark.parametrize("name", MODELS)
def test_every_operator_but_the_embedding_has_an_operand_and_edges_carry_bytes(name: str) -> None:
    for graph in phases(name):
        for operator in graph.operators():
            gather = isinstance(operator, Vector) and operator.function is VectorFunction.GATHER
            assert gather or operator.name in WITHOUT or graph.digraph.in_degree(operator.name) > 0, operator.name
        for source, _, data in graph.digraph.edges(data=True):
            assert data["bytes"] == graph.digraph.nodes[source]["operator"].precision.size(data["elements"]) > 0


@pytest.mark.parametrize("name", MODELS)
def test_forward_operands_arrive_in_full(name: str) -> None:
    for graph in phases(name):
        if graph.phase is Phase.TRAINING:
            continue
        for operator in graph.operators():
            if isinstance(operator, Gemm) and operator.stored is None and operator.name not in WITHOUT:
                arriving = sum(
                    graph.digraph.in_edges[edge]["elements"] for edge in graph.digraph.in_edges(operator.name)
                )
                own = operator.input_elements
                if operator.name.endswith(ROUND):
                    own -= operator.batch * operator.k * operator.n
                assert arriving == own, operator.name


def test_residual_edges_skip_the_layer() -> None:
    edges = load_workload("llama3-8b").digraph.edges
    assert ("embedding.tokens", "layer.attention_add") in edges
    assert ("layer.attention_add", "layer.feed_forward_add") in edges
    assert ("layer.attention_add", "layer.feed_forward_norm") in edges


@pytest.mark.parametrize("sets", [[("sequence", "16")], [("phase", "decode"), ("batch", "5")]])
def test_a_sampled_step_has_one_operator_more_and_nothing_else_changes(sets: list[tuple[str, str]]) -> None:
    plain, sampled = (load_workload("mixtral-8x7b", [*sets, *more]) for more in ([], [("sample", "greedy")]))
    *operators, last = sampled.operators()
    assert operators == plain.operators()
    assert isinstance(last, Vector)
    assert (last.name, last.role, last.rows, last.cols) == ("head.sample", Role.SAMPLE, plain.batch, 32000)
    assert last.output_elements == 4 * plain.batch
    assert sampled.dataflow.predecessors(last.name) == ["head"]


def test_where_all_experts_compute_every_token_they_have_its_rows_and_the_sum_weighs_all() -> None:
    sets = [("sequence", "16"), ("batch", "3")]
    graph = load_workload("mixtral-8x7b", [*sets, ("experts", "all")])
    plain = load_workload("mixtral-8x7b", sets)
    flow = graph.dataflow
    first, chances, combine = flow["layer.expert_gate_up"], flow["layer.top_k"], flow["layer.combine"]
    assert isinstance(first, Gemm)
    assert (first.batch, first.stored, first.chosen, first.m) == (8, 8, 8, 48)
    assert isinstance(chances, Vector)
    assert (chances.chosen, chances.cols) == (2, 8)
    assert isinstance(combine, Vector)
    assert combine.inputs == 8
    assert graph.parameters == plain.parameters
    experts = [o for o in graph.operators() if isinstance(o, Gemm) and o.stored is not None]
    fewer = [o for o in plain.operators() if isinstance(o, Gemm) and o.stored is not None]
    assert sum(o.macs for o in experts) == 4 * sum(o.macs for o in fewer), "eight experts for two"


def test_layers_of_one_block_run_as_written() -> None:
    names = [operator.name for operator in load_workload("llama3-8b").operators()]
    layer = "attention_norm qkv rope kv_append attention output attention_add feed_forward_norm gate_up activation down"
    expected = [f"layer.{step}" for step in (*layer.split(), "feed_forward_add")]
    assert names == ["embedding.tokens", *expected, "head.norm", "head"]


def test_dense_layers_come_before_the_mixtures() -> None:
    graph = load_workload("deepseek-v3")
    assert [(name, repeat) for name, repeat, _ in graph.blocks()] == [
        ("embedding", 1),
        ("dense_layer", 3),
        ("moe_layer", 58),
        ("head", 1),
    ]
    cut = load_workload("deepseek-v3", [("layers", "5")])
    assert [repeat for _, repeat, _ in cut.blocks()] == [1, 3, 2, 1]
    assert len(load_workload("deepseek-v3", [("layers", "2")]).blocks()) == 3


def test_repeating_pattern_of_layers_is_one_block(load_config: Loader) -> None:
    graph = load_config(GEMMA3, ("sequence", "64"))
    assert [(name, repeat) for name, repeat, _ in graph.blocks()] == [
        ("embedding", 1),
        ("layers", 2),
        ("local_layer", 2),
        ("head", 1),
    ]
    attentions = [operator for operator in graph.operators() if isinstance(operator, Attention)]
    assert [attention.window for attention in attentions] == [16] * 5 + [None, 16]
    assert [attention.name for attention in attentions[:2]] == ["layers.0.attention", "layers.1.attention"]
    per_layer = 2 * 1 * 32 * 2
    assert graph.kv_bytes_per_token == 14 * per_layer
    assert graph.kv_bytes == per_layer * (12 * 16 + 2 * 64)


@pytest.mark.parametrize("layers", range(1, 15))
def test_pattern_cut_short_keeps_its_parameters(layers: int, load_config: Loader) -> None:
    counts = [load_config(GEMMA3, ("layers", str(count))).parameters for count in (1, 2, layers)]
    assert counts[2] == counts[0] + (layers - 1) * (counts[1] - counts[0])


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "gpt3-175b", "mixtral-8x7b"])
def test_training_does_three_times_the_products_and_attention_three_and_a_half(name: str) -> None:
    overrides = [("sequence", "256"), ("batch", "4")]
    training = load_workload(name, [*overrides, ("phase", "training")])
    forward = [
        operator
        for block, _, operators in training.blocks()
        for operator in operators
        if not block.endswith((".backward", ".optimizer"))
    ]
    products = sum(operator.macs * operator.repeat for operator in forward if isinstance(operator, Gemm))
    attention = sum(operator.macs * operator.repeat for operator in forward if isinstance(operator, Attention))
    assert 2 * training.macs == 6 * products + 7 * attention
    prefill = load_workload(name, overrides)
    head = dict(prefill.digraph.nodes(data="operator"))["head"]
    assert products + attention == prefill.macs + head.macs * (256 - 1)


@pytest.mark.parametrize("name", TRAINED)
def test_optimizer_updates_every_parameter_once(name: str) -> None:
    graph = load_workload(name, [("phase", "training"), *length(name, 32)])
    updates = [
        operator
        for operator in graph.operators()
        if isinstance(operator, Vector) and operator.function is VectorFunction.OPTIMIZER
    ]
    assert sum(update.rows * update.cols * update.repeat for update in updates) == graph.parameters
    kept = graph.with_precision(DataType.INT8).digraph.nodes
    assert all(kept[update.name]["operator"].precision is DataType.FP32 for update in updates)


@pytest.mark.parametrize("name", TRAINED)
def test_every_stored_parameter_receives_a_gradient(name: str) -> None:
    graph = load_workload(name, [("phase", "training"), *length(name, 32)])
    for operator in graph.operators():
        if not operator.parameters:
            continue
        optimizer = f"{operator.block}.optimizer"
        makers = {f"{operator.name}.weight_gradient", f"{operator.name}.backward"}
        makers |= {f"{operator.name}.keys_gradient"} if isinstance(operator, Attention) else set()
        assert makers & set(graph.digraph.predecessors(optimizer)), operator.name


def test_gradients_of_a_forked_value_are_summed() -> None:
    graph = load_workload("gpt2", [("phase", "training"), ("sequence", "32")])
    operators = dict(graph.digraph.nodes(data="operator"))
    entry = operators["layer.entry.gradient"]
    assert (entry.function, entry.inputs, entry.rows, entry.cols) == (VectorFunction.ADD, 2, 32, 768)
    middle = operators["layer.attention_add.gradient"]
    assert (middle.inputs, middle.rows, middle.cols) == (2, 32, 768)


def test_with_precision_changes_formats_and_nothing_else() -> None:
    graph = load_workload("mixtral-8x7b")
    other = graph.with_precision(DataType.INT8)
    assert other.precision is DataType.INT8
    assert other.explicit_precision
    assert not graph.explicit_precision
    assert (other.macs, other.parameters) == (graph.macs, graph.parameters)
    assert 2 * other.weight_bytes == graph.weight_bytes
    assert 2 * other.kv_bytes == graph.kv_bytes
    for edge in graph.digraph.edges:
        assert 2 * other.digraph.edges[edge]["bytes"] == graph.digraph.edges[edge]["bytes"]


@pytest.mark.parametrize("name", workload_names())
def test_summary_is_plain_data_that_adds_up(name: str) -> None:
    graph = load_workload(name)
    summary = json.loads(json.dumps(graph.summary()))
    assert summary["schema"] == "siliconloom.workload/1"
    rows = summary["operators"]
    assert [row["name"] for row in rows] == [operator.name for operator in graph.operators()]
    for total, key in (
        (summary["macs"], "macs"),
        (summary["flops"], "flops"),
        (summary["weight_bytes"], "weight_bytes"),
    ):
        assert total == sum(row[key] * row["repeat"] for row in rows)
    assert set(summary) == {
        "schema",
        "name",
        "phase",
        "batch",
        "tokens",
        "precision",
        "parameters",
        "active_parameters",
        "flops",
        "unmasked_flops",
        "macs",
        "weight_bytes",
        "kv_bytes_per_token",
        "kv_bytes",
        "state_bytes",
        "operators",
        "notes",
    }
