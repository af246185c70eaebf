"""Every bad input is refused in one line that says where and what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from siliconloom.arch import LoomError, NotSupported
from siliconloom.workloads import Graph, load_workload

Loader = Callable[..., Graph]

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
}
NARROW = LLAMA | {"hidden_size": 48, "intermediate_size": 80}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
BERT = {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA4 = {**LLAMA, "model_type": "llama4_text", "num_key_value_heads": 1}
FALCON = {**BERT, "model_type": "falcon"}
VIT = {**BERT, "model_type": "vit"}
GEMM = "kind: gemms\ngemms:\n- {name: a, m: 8, n: 8, k: 8}\n"
CONVOLUTION = (
    "kind: convolutions\nconvolutions:\n"
    "- {name: c, in_channels: 4, out_channels: 4, height: 5, width: 5, kernel: 3, groups: 1}\n"
)


def message(caught: pytest.ExceptionInfo[LoomError]) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("k: 8", "kk: 8"), "3:29: gemms.0.kk: unknown key 'kk'"),
        (("k: 8", "k: 0"), "gemms.0.k: "),
        (("k: 8", "k: -8"), "gemms.0.k: "),
        (("k: 8", "k: 1000000000000"), "gemms.0.k: "),
        (("k: 8", "k: 8.5"), "gemms.0.k: "),
        (("k: 8", "k: true"), "gemms.0.k: "),
        (("k: 8", "k: 8, repeat: 10000000"), "gemms.0.repeat: "),
        (("k: 8", "k: 8, batch: 10000000"), "gemms.0.batch: "),
        (("k: 8", "k: 8, precision: int9"), "must be one of int4, int8"),
        ((", k: 8", ""), "the key 'k' is missing"),
        (("- {name: a, m: 8, n: 8, k: 8}", "  []"), "2:1: gemms: "),
        (("gemms:\n", "gemm:\n"), "did you mean 'gemms'?"),
        (("name: a", "name: ''"), "gemms.0.name: "),
        (("k: 8}\n", "k: 8}\n- {name: a, m: 1, n: 1, k: 1}\n"), "two entries are named 'a'"),
    ],
)
def test_bad_gemm_lists(change: tuple[str, str], expected: str, load_text: Loader) -> None:
    assert change[0] in GEMM
    with pytest.raises(LoomError) as caught:
        load_text(GEMM.replace(*change))
    assert expected in message(caught)
    assert "workload.yaml:" in message(caught)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("kernel: 3", "kernel: 6"), "convolutions.0: the kernel is larger than the padded image"),
        (("kernel: 3", "kernel: [3, 3, 3]"), "convolutions.0.kernel"),
        (("kernel: 3", "kernel: 3, stride: 0"), "convolutions.0.stride"),
        (("kernel: 3", "kernel: 3, padding: -1"), "convolutions.0.padding"),
        (("kernel: 3", "kernal: 3"), "did you mean 'kernel'?"),
        (("groups: 1", "groups: 3"), "in_channels (4) must be a multiple of groups (3)"),
    ],
)
def test_bad_convolution_lists(change: tuple[str, str], expected: str, load_text: Loader) -> None:
    with pytest.raises(LoomError) as caught:
        load_text(CONVOLUTION.replace(*change))
    assert expected in message(caught)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({**LLAMA, "model_type": "lama"}, "model.model_type: must be one of bert, "),
        ({**LLAMA, "model_type": "lama"}, "(got 'lama'); did you mean 'llama'?"),
        ({**LLAMA, "model_type": ["llama"]}, "model.model_type: must be one of "),
        ({"hidden_size": 64}, "the key 'model_type' is missing; it must be one of bert"),
        ({key: value for key, value in LLAMA.items() if key != "hidden_size"}, "the key 'hidden_size' is missing"),
        ({**GPT2, "n_layer": None}, "the key 'n_layer' is missing"),
        ({"hiden_size": 64, **{k: v for k, v in LLAMA.items() if k != "hidden_size"}}, "did you mean 'hidden_size'?"),
        (
            {"num_key_value_head": 2, **{k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}},
            "2:25: model.num_key_value_head: unknown key 'num_key_value_head'; did you mean 'num_key_value_heads'?",
        ),
        ({**LLAMA, "hidden_size": -64}, "model.hidden_size: must be from 1 to"),
        ({**LLAMA, "hidden_size": 10**12}, "model.hidden_size: must be from 1 to"),
        ({**LLAMA, "hidden_size": "64"}, "model.hidden_size: must be a whole number (got '64')"),
        ({**LLAMA, "hidden_size": True}, "model.hidden_size: must be a whole number"),
        ({**LLAMA, "num_hidden_layers": 10**6}, "model.num_hidden_layers: must be from 1 to 4096"),
        ({**LLAMA, "hidden_size": 65}, "hidden size 65 is not a multiple of 4 attention heads"),
        ({**LLAMA, "hidden_size": 20}, "heads of 5 have an odd 5 to turn"),
        ({**LLAMA, "model_type": "gpt_oss", "num_key_value_heads": 1, "experts_per_token": 3}, "must be 4, as num_exp"),
        ({**LLAMA4, "moe_layers": [9]}, "must be layers of the"),
        (
            {**LLAMA, "model_type": "llama4_text", "num_key_value_heads": 1, "no_rope_layers": [2]},
            "no_rope_layers: mus",
        ),
        (
            {**LLAMA, "model_type": "jamba", "num_key_value_heads": 1, "attn_layer_offset": 8},
            "must be below attn_layer",
        ),
        (
            {**LLAMA, "model_type": "qwen3_next", "num_key_value_heads": 1, "linear_num_value_heads": 24},
            "linear_num_value_heads: 24 heads of values cannot share 16 of keys evenly",
        ),
        (
            {**FALCON, "num_ln_in_parallel_attn": 2},
            "num_ln_in_parallel_attn: must be 1 without new_decoder_architecture",
        ),
        ({**FALCON, "num_ln_in_parallel_attn": 3}, "model.num_ln_in_parallel_attn: must be from 1 to 2"),
        ({**FALCON, "multi_query": False, "num_kv_heads": 2}, "model.num_kv_heads: must be 4, a key-value head for"),
        ({**FALCON, "new_decoder_architecture": True, "num_kv_heads": 3}, "cannot share 3 key-value heads evenly"),
        ({**FALCON, "new_decoder_architecture": True, "parallel_attn": False}, "model.parallel_attn: must be true"),
        ({**FALCON, "apply_residual_connection_post_layernorm": True}, "falcon whose residual stream is normed"),
        ({**GPT2, "model_type": "gptj"}, "must have the key 'rotary_dim': heads have 16 columns, and 64 are turned"),
        ({**GPT2, "model_type": "gptj", "rotary_dim": 7}, "model.rotary_dim: must be an even number of columns"),
        ({**VIT, "patch_size": 5}, "model.patch_size: patches of 5 x 5 pixels must fill an image of 224 x 224"),
        ({**VIT, "image_size": [224, 224]}, "model.image_size: must be a whole number"),
        ({**VIT, "architectures": ["ViTForMaskedImageModeling"]}, "architectures: must be one of ViTForImageClass"),
        ({**VIT, "architectures": "ViTModel"}, "model.architectures: must be a list of names"),
        ({**VIT, "num_labels": 3, "id2label": {"0": "a"}}, "model.num_labels: must be 1, as many as id2label names"),
        ({**VIT, "id2label": {}}, "model.id2label: must name from 1 to"),
        ({**LLAMA, "model_type": "phi", "partial_rotary_factor": 0.45}, "heads of 16 have an odd 7 to turn"),
        ({**LLAMA, "num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads evenly"),
        ({**LLAMA, "hidden_act": "tanh"}, "model.hidden_act: must be one of gelu"),
        ({**LLAMA, "hidden_act": "relu"}, "model.hidden_act: must be one of gelu"),
        ({**LLAMA, "tie_word_embeddings": "no"}, "model.tie_word_embeddings: must be true or false"),
        ({**LLAMA, "torch_dtype": "bfloat61"}, "did you mean 'bfloat16'?"),
        ({**LLAMA, "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, "at most the number of"),
        ({**LLAMA, "model_type": "qwen3", "layer_types": ["full_attention"]}, "list of 2 names"),
        ({**LLAMA, "model_type": "qwen3", "layer_types": ["linear_attention"] * 2}, "must be made of full_attention"),
        ({**LLAMA, "model_type": "phi", "partial_rotary_factor": 2}, "above 0 and up to 1"),
        ({**LLAMA, "model_type": "deepseek_v2"}, "the key 'num_experts_per_tok' is missing"),
        ({"model_type": "gemma3"}, "the key 'text_config' must be a mapping"),
        ({**GPT2, "add_cross_attention": True}, "not supported: cross attention"),
        ({**BERT, "is_decoder": True}, "not supported: bert as a decoder"),
    ],
)
def test_bad_configurations(config: dict[str, object], expected: str, load_config: Loader) -> None:
    with pytest.raises(LoomError) as caught:
        load_config(config)
    assert expected in message(caught)
    assert isinstance(caught.value, NotSupported) or "config.json:" in message(caught)


@pytest.mark.parametrize(
    ("config", "override", "expected"),
    [
        (LLAMA, ("phase", "decoding"), "must be one of prefill, decode, training"),
        (LLAMA, ("batch", "0"), "batch: "),
        (LLAMA, ("batch", "100000000000"), "batch: "),
        (LLAMA, ("sequence", "-1"), "sequence: "),
        (LLAMA, ("context", "1e3"), "context: "),
        (LLAMA, ("layers", "3"), "layers: the model has 2 layers (got 3)"),
        (LLAMA, ("layers", "0"), "layers: "),
        (LLAMA, ("precision", "bf61"), "must be one of int4"),
        (LLAMA, ("fase", "decode"), "unknown key 'fase'"),
        (LLAMA, ("operator_precision", "{'nothing.*': int8}"), "no operator matches 'nothing.*'"),
        (LLAMA, ("operator_precision", "{'*.attention': w4a16}"), "no operator that '*.attention' matches has weights"),
        (LLAMA, ("precision", "w3a8"), "must be one of int4"),
        (LLAMA, ("weight_group", "32"), "groups are of packed weights (precision w4a16, w8a16 or w4a8) (got 32)"),
        (LLAMA, ("precision", "mxfp6"), "must be one of int4"),
        (
            LLAMA | {"hidden_size": 48, "intermediate_size": 80},
            ("precision", "mxfp4"),
            "MX blocks must divide the 48 rows of layer.qkv's weights (got 32)",
        ),
        (GPT2, ("sequence", "1025"), "learned positions for 1024 tokens only (got 1025)"),
        (GPT2, ("context", "1025"), "learned positions for 1024 tokens only (got 1025)"),
        (GPT2, ("context", "7"), "7 tokens of context and 1024 new ones; the model has learned positions for 1024"),
        (BERT, ("context", "7"), "not supported: context in prefill (tokens that lie in the cache already): bert is"),
        (BERT, ("sequence", "513"), "learned positions for 512 tokens only (got 513)"),
        (BERT, ("phase", "decode"), "bert is an encoder and does not decode"),
    ],
)
def test_bad_overrides(
    config: dict[str, object], override: tuple[str, str], expected: str, load_config: Loader
) -> None:
    with pytest.raises(LoomError) as caught:
        load_config(config, override)
    assert expected in message(caught)
    assert f"--set workload.{override[0]}={override[1]}" in message(caught)


def test_rotary_models_may_run_longer_than_they_were_trained(load_config: Loader) -> None:
    graph = load_config({**LLAMA, "max_position_embeddings": 128}, ("sequence", "4096"))
    assert graph.tokens == 4096


@pytest.mark.parametrize("key", ["phase", "batch", "sequence", "context", "layers"])
def test_overrides_of_models_do_not_apply_to_gemm_lists(key: str) -> None:
    with pytest.raises(LoomError) as caught:
        load_workload("gpt2-block-gemms", [(key, "2")])
    assert f"unknown key '{key}'; valid keys: kind, name" in message(caught)


def test_a_chip_is_not_a_workload(load_text: Loader) -> None:
    with pytest.raises(LoomError) as caught:
        load_text("kind: chip\nname: c\n")
    assert (
        "workload.yaml:1:7: kind: must be one of transformer, gemms, convolutions, operators, onnx (got 'chip')"
        in message(caught)
    )
    with pytest.raises(LoomError) as caught:
        load_text("name: c\n")
    assert "the key 'kind' is missing" in message(caught)


def test_missing_files_and_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(LoomError) as caught:
        load_workload(str(tmp_path / "none.yaml"))
    assert "none.yaml: no such file" in message(caught)
    with pytest.raises(LoomError) as caught:
        load_workload("config.json")
    assert "config.json: no such file" in message(caught)
    with pytest.raises(LoomError) as caught:
        load_workload("lama3-8b")
    assert "did you mean 'llama3-8b'?" in message(caught)
    with pytest.raises(LoomError) as caught:
        load_workload(str(tmp_path))
    assert "is a folder" in message(caught)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "kind: [transformer]", "kind: transformer", "kind: transformer\nmodel: 5"]
)
def test_shapeless_documents(text: str, load_text: Loader) -> None:
    with pytest.raises(LoomError) as caught:
        load_text(text)
    assert "workload.yaml" in message(caught)


def test_experts_of_a_model_that_has_none_cannot_all_compute(load_config: Loader) -> None:
    with pytest.raises(LoomError) as caught:
        load_config(LLAMA, ("experts", "all"))
    assert "experts: the model has no experts" in message(caught)


@pytest.mark.parametrize(
    ("model", "sets", "expected"),
    [
        (GPT2, [("phase", "training")], "not supported: sample in training, which has no next token"),
        (BERT, [], "sample: bert has a pooler and no head to sample from"),
    ],
)
def test_a_step_without_a_next_token_samples_none(
    model: dict[str, object], sets: list[tuple[str, str]], expected: str, load_config: Loader
) -> None:
    with pytest.raises(LoomError) as caught:
        load_config(model, *sets, ("sample", "greedy"))
    assert expected in message(caught)


def test_mx_blocks_have_their_rows_whatever_groups_others_have(load_config: Loader) -> None:
    graph = load_config(
        LLAMA, ("precision", "w4a16"), ("weight_group", "64"), ("operator_precision", "{'layer.qkv': mxfp4}")
    )
    groups = {packing.dtype.value: packing.group for packing in graph.packings}
    assert groups == {"fp4_e2m1": 32, "int4": 64}
