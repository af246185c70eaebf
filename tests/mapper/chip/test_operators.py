"""Work that used to be free: sums of many operands, top-k, parameters, transposed keys, gathered rows; latents."""

import json

import pytest

from siliconloom.arch import load_chip
from siliconloom.arch.datatype import DataType
from siliconloom.arch.isa import Opcode
from siliconloom.arch.vector import VectorFunction
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip.attention_cost import MOST_SUMMED
from siliconloom.workloads import load_workload


def roomy(name):
    level = next(iter(load_chip(name).memory))
    return load_chip(name, [(f"memory.{level}.capacity", "4 TiB")])


def rows_of(chip, model, **sets):
    graph = load_workload(model, [(key, str(value)) for key, value in sets.items()])
    simulation = simulate(roomy(chip), graph)
    return {o["name"]: o for o in simulation.result()["operators"]}, simulation


@pytest.mark.slow(seconds=1)
def test_a_weighted_sum_takes_a_cycle_for_each_operand_and_a_top_k_a_pass_for_each_element():
    rows, simulation = rows_of("npu-datacenter", "deepseek-v3", layers=4, sequence=64)
    lanes = simulation.chip.tile.vector.lanes
    combine, route = (next(o for n, o in rows.items() if n.endswith(end)) for end in (".combine", ".top_k"))
    for operator, passes in ((combine, 9), (route, 8 + 2)):
        elements = operator["shape"]["rows"] * operator["shape"]["cols"]
        assert operator["busy_cycles"]["vector"] >= passes * elements // lanes
        assert operator["bound_cycles"] >= passes * elements // lanes
    counts = {i.function: i.k for i in simulation.plan.program.instructions if i.opcode == Opcode.VECTOR}
    assert counts[VectorFunction.TOP_K] == 8
    assert counts[VectorFunction.COMBINE] == 9


def test_requantising_loads_its_parameters():
    rows, _ = rows_of("npu-edge-int8", "gpt2-block-gemms")
    for o in rows.values():
        shape = o["shape"]
        operands = shape["batch"] * (shape["m"] * shape["k"] + shape["k"] * shape["n"])
        assert o["read_bytes"] >= operands + 8 * shape["batch"] * shape["n"]


@pytest.mark.slow(seconds=1)
def test_new_keys_are_transposed_once_one_element_a_cycle():
    rows, _ = rows_of("npu-edge-int8", "gpt2", layers=2, sequence=128)
    moved = rows["layer.kv_append.keys"]
    assert moved["busy_cycles"]["vector"] >= 2 * 128 * 768
    assert moved["read_bytes"] >= 2 * 128 * 768
    rows, _ = rows_of("npu-edge-int8", "gpt2", layers=2, phase="decode", context=128)
    assert rows["layer.kv_append.keys"]["read_bytes"] < 2 * 1024, "older keys lie transposed in the cache"


@pytest.mark.parametrize(("context", "word"), [(MOST_SUMMED, "proven"), (MOST_SUMMED + 1, "specified")])
def test_attention_whose_sums_may_wrap_is_not_called_proven(context, word, tmp_path):
    model = {"model_type": "gpt2", "n_embd": 16, "n_head": 1, "n_layer": 1, "n_positions": 1 << 18, "vocab_size": 4}
    (tmp_path / "config.json").write_text(json.dumps(model))
    graph = load_workload(str(tmp_path / "config.json"), [("phase", "decode"), ("context", str(context))])
    hardware = simulate(load_chip("npu-edge-int8"), graph).result()["hardware"]
    assert hardware["word"] == word
    wraps = [
        reason
        for reason in hardware["why"]
        if reason == f"sums of {context:,} keys may wrap: 32 bits hold those of 132,104"
    ]
    assert len(wraps) == (word == "specified")


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("phase", [("sequence", "64"), ("context", "64")])
def test_an_array_that_keeps_its_inputs_is_given_transposed_products(phase):
    """So its results lie as rows do, and it takes as long as one that keeps its weights."""
    graph = load_workload("gpt2", [("layers", "1"), ("phase", "decode" if phase[0] == "context" else "prefill"), phase])
    kept = [
        simulate(load_chip("npu-edge-int8", [("tile.array.dataflow", f"{kind}_stationary")]), graph).result()
        for kind in ("weight", "input")
    ]
    assert kept[0]["cycles"] == kept[1]["cycles"]
    assert kept[1]["hardware"]["word"] == "proven"


@pytest.mark.slow(seconds=1)
def test_experts_gather_the_rows_of_their_tokens():
    rows, _ = rows_of("npu-datacenter", "mixtral-8x7b", layers=1, sequence=64)
    gathered = rows["layer.expert_gate_up.gather"]
    assert gathered["read_bytes"] >= 64 * 2 * 4096 * 2, "two experts a token, two bytes an element"
    assert not any(name.endswith("expert_down.gather") for name in rows), "those are in order already"


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("chip", ["npu-edge-int8", "gemmini-16", "tpu-v4", "npu-datacenter"])
def test_latent_attention_runs_everywhere(chip):
    rows, simulation = rows_of(chip, "deepseek-v3", layers=1, phase="decode", batch=2, context=256)
    attention = next(o for o in rows.values() if o["kind"] == "attention")
    assert attention["cycles"] >= attention["bound_cycles"]
    assert any("latent" in note for note in simulation.result()["notes"])


@pytest.mark.slow(seconds=1)
def test_a_latent_cache_is_read_once():
    """Keys and values are one: 302 MB a layer at batch 64 and context 4096, not 580."""
    rows, simulation = rows_of("npu-datacenter", "deepseek-v3", layers=1, phase="decode", batch=64, context=4096)
    attention = next(o for o in rows.values() if o["kind"] == "attention")
    size = DataType.BF16.size
    cache, queries = size(64 * 4096 * 576), size(64 * 128 * 576)
    assert cache <= attention["read_bytes"] <= 1.01 * (cache + queries)
    bytes_counted = simulation.plan.bound.level_cycles["hbm"] * simulation.chip.nearest.bandwidth
    weights = sum(o.weight_bytes for o in simulation.graph.operators())
    assert bytes_counted / simulation.chip.clock < weights + 1.01 * cache
