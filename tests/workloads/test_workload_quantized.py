"""Files of released models whose weights are codes: what ``quantization_config`` says is what runs, or is refused."""

import json

import pytest

from siliconloom.arch.errors import DescriptionError, LoomError, NotSupported
from siliconloom.baselines.model import kernels_of
from siliconloom.evaluate.chip import simulate
from siliconloom.models.source import weight_files
from siliconloom.workloads import Gemm, load_workload

DENSE = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "float16",
}
EXPERTS = {
    "model_type": "gpt_oss",
    "hidden_size": 256,
    "intermediate_size": 128,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 1000,
    "sliding_window": 128,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True, "damp_percent": 0.01}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
AWQ_OLD = {"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "modules_to_not_convert": ["lm_head"]}
MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
TENSORS = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "sparsity_config": {},
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": None,
            "weights": {"num_bits": 8, "type": "int", "group_size": 128, "strategy": "group", "symmetric": True},
        }
    },
}


def written(folder, config, stated):
    path = folder / "config.json"
    path.write_text(json.dumps({**config, **({} if stated is None else {"quantization_config": stated})}, indent=1))
    return str(path)


def packings(graph):
    return {o.name: o.packing and (o.packing.dtype.value, o.packing.group) for o in graph.operators() if _weighs(o)}


def _weighs(operator):
    return isinstance(operator, Gemm) and operator.weight


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("stated", "precision", "group"),
    [
        (GPTQ, "w4a16", 128),
        ({**GPTQ, "bits": 8, "group_size": 32}, "w8a16", 32),
        (AWQ, "w4a16", 64),
        (AWQ_OLD, "w4a16", 128),
        (TENSORS, "w8a16", 128),
    ],
)
def test_a_file_whose_weights_are_codes_is_what_its_precision_would_say(tmp_path, stated, precision, group):
    plain = written(tmp_path, DENSE, None)
    same = load_workload(plain, [("precision", precision), ("weight_group", str(group))])
    found = load_workload(written(tmp_path, DENSE, stated))
    assert packings(found) == packings(same)
    assert packings(found)["layer.down"] is not None
    assert packings(found)["head"] is None
    assert found.weight_bytes == same.weight_bytes
    assert simulate("npu-edge", found).run.cycles == simulate("npu-edge", same).run.cycles
    assert [kernel.row for kernel in kernels_of(found)] == [kernel.row for kernel in kernels_of(same)]
    assert any(f"{precision} in groups of {group}" in note for note in found.notes)


def test_what_is_stated_beside_the_file_is_what_runs(tmp_path):
    path = written(tmp_path, DENSE, GPTQ)
    other = load_workload(path, [("precision", "fp16")])
    assert set(packings(other).values()) == {None}
    assert "precision fp16 is stated; what the model's file says of its weights is not read" in other.notes
    blocks = written(tmp_path, DENSE, {"quant_method": "fp8", "fmt": "e4m3"})
    assert load_workload(blocks, [("precision", "fp8")]).precision.value == "fp8_e4m3"
    path = written(tmp_path, DENSE, GPTQ)
    finer = load_workload(path, [("weight_group", "32")])
    assert packings(finer)["layer.qkv"] == ("int4", 32)


def test_of_experts_in_mx_blocks_attention_stays_as_it_is(tmp_path):
    found = load_workload(written(tmp_path, EXPERTS, MXFP4), [("phase", "decode"), ("context", "64")])
    packed = {name: packing for name, packing in packings(found).items() if packing is not None}
    assert set(packed.values()) == {("fp4_e2m1", 32)}
    assert all("expert" in name for name in packed)
    assert len(packed) == 4  # two of each kind of layer
    plain = load_workload(written(tmp_path, EXPERTS, None), [("phase", "decode"), ("context", "64")])
    experts = 2 * 8 * (256 * 256 + 128 * 256)
    assert plain.weight_bytes - found.weight_bytes == pytest.approx(experts * (2 - 4.25 / 8))
    rows = {kernel.operator: kernel.row for kernel in kernels_of(found)}
    for name, row in rows.items():
        assert row.get("weights") == ("mxfp4" if name in packed else None)


@pytest.mark.parametrize(
    ("config", "stated", "told"),
    [
        (DENSE, {"bits": 4}, "weights of other methods than gptq, awq, mxfp4, compressed-tensors"),
        (DENSE, {"quant_method": "gptk", "bits": 4}, "did you mean 'gptq'"),
        (DENSE, {"quant_method": "fp8", "fmt": "e4m3"}, "weights of other methods"),
        (DENSE, {"quant_method": "bitsandbytes", "load_in_4bit": True}, "weights of other methods"),
        (DENSE, "gptq", "not a mapping"),
        (DENSE, {**GPTQ, "bits": [4]}, "other sizes than 4 and 8 bits"),
        (DENSE, {**GPTQ, "bits": 3}, "other sizes than 4 and 8 bits"),
        (DENSE, {**GPTQ, "group_size": -1}, "powers of two"),
        (DENSE, {**GPTQ, "group_size": 96}, "powers of two"),
        (DENSE, {**GPTQ, "group_size": True}, "powers of two"),
        (DENSE, {**AWQ, "modules_to_not_convert": ["model.layers.0.mlp"]}, "stay as they are"),
        (DENSE, {**AWQ, "modules_to_not_convert": ["model.layers.*.self_attn"]}, "stay as they are"),
        (DENSE, {**AWQ, "modules_to_not_convert": "lm_head"}, "no list"),
        (DENSE, MXFP4, "of a model without experts"),
        (DENSE, {**GPTQ, "dynamic": {"+:.*down.*": {"bits": 8}}}, "other bits for modules"),
        (DENSE, {**GPTQ, "modules_in_block_to_quantize": [["self_attn.q_proj"]]}, "some products of a layer"),
        (DENSE, {**GPTQ, "lm_head": True}, "a head that is packed"),
        (DENSE, {**TENSORS, "kv_cache_scheme": {"num_bits": 8}}, "cache_precision"),
        (DENSE, {**TENSORS, "sparsity_config": {"format": "sparse-24-bitmask"}}, "weight_sparsity"),
        (
            DENSE,
            {**TENSORS, "config_groups": {"g": {"targets": ["re:.*down.*"], "weights": {"num_bits": 8}}}},
            "some products of a layer",
        ),
        (EXPERTS, {**MXFP4, "modules_to_not_convert": ["model.layers.3.self_attn"]}, "stay as they are"),
        (DENSE, {**TENSORS, "config_groups": {}}, "in several ways"),
        (DENSE, {**TENSORS, "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}}, "no whole numbers"),
        (
            DENSE,
            {**TENSORS, "config_groups": {"g": {"weights": {"num_bits": 8}, "input_activations": {"num_bits": 8}}}},
            "activations in fewer bits",
        ),
    ],
)
def test_what_no_precision_says_is_refused_with_its_key(tmp_path, config, stated, told):
    with pytest.raises(DescriptionError, match=told) as refused:
        load_workload(written(tmp_path, config, stated))
    assert "quantization_config" in refused.value.path
    assert "\n" not in str(refused.value)


def test_training_and_values_of_such_weights_are_refused(tmp_path):
    path = written(tmp_path, DENSE, GPTQ)
    with pytest.raises(NotSupported, match="training with packed weights"):
        load_workload(path, [("phase", "training")])
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(LoomError, match="weights that are stored as codes"):
        weight_files(tmp_path)
