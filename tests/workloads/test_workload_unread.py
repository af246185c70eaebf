"""Keys of models: read, without effect by name, or refused; files as downloaded load as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.in_turn import in_turn

from siliconloom.arch import LoomError
from siliconloom.arch.document import Document
from siliconloom.workloads import Graph, load_workload
from siliconloom.workloads.configuration import Configuration
from siliconloom.workloads.huggingface import EPSILONS, MODELS, read_architecture
from siliconloom.workloads.quantization import KEY
from siliconloom.workloads.unread import CONSTANTS, SHAPING, stated

Loader = Callable[..., Graph]
DOWNLOADED: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "downloaded.yaml").read_text())

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}
CHUNKED = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "num_heads": 8, "head_dim": 16, "n_groups": 2}
IMAGE = {"image_size": 12, "patch_size": 4}
TEXT4 = {**SIZES, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4, "no_rope_layer_interval": 2}
NESTED = {"gemma3": SIZES, "llama4": TEXT4}
"""Text models that stand within another configuration."""
SMALL: dict[str, dict[str, Any]] = {
    **{name: {"model_type": name, **SIZES} for name in MODELS},
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100},
    "opt": {"model_type": "opt", **{k: v for k, v in SIZES.items() if k != "intermediate_size"}, "ffn_dim": 128},
    "qwen2": {"model_type": "qwen2", **SIZES, "num_key_value_heads": 2},
    "qwen3": {"model_type": "qwen3", **SIZES, "num_key_value_heads": 2},
    "mistral": {"model_type": "mistral", **SIZES, "num_key_value_heads": 2},
    "mixtral": {"model_type": "mixtral", **SIZES, "num_key_value_heads": 2},
    "gemma": {"model_type": "gemma", **SIZES, "num_key_value_heads": 2},
    "deepseek_v2": {"model_type": "deepseek_v2", **SIZES, "num_experts_per_tok": 2},
    "gemma3": {"model_type": "gemma3", "text_config": SIZES},
    "gptj": {"model_type": "gptj", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "rotary_dim": 8},
    "falcon": {"model_type": "falcon", **{k: v for k, v in SIZES.items() if k != "intermediate_size"}},
    "t5": {
        "model_type": "t5",
        "d_model": 64,
        "num_layers": 2,
        "num_heads": 4,
        "d_kv": 16,
        "d_ff": 128,
        "vocab_size": 100,
    },
    "whisper": {
        "model_type": "whisper",
        "d_model": 64,
        **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": 128 for side in ("encoder", "decoder")},
        "vocab_size": 100,
        "max_source_positions": 16,
    },
    "mamba": {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "time_step_rank": 4},
    "mamba2": {"model_type": "mamba2", **CHUNKED},
    "bloom": {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100},
    "gpt_oss": {
        "model_type": "gpt_oss",
        **{**SIZES, "num_hidden_layers": 2},
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "llama4_text": {"model_type": "llama4_text", **TEXT4},
    "llama4": {"model_type": "llama4", "text_config": TEXT4},
    "jamba": {"model_type": "jamba", **SIZES, "num_key_value_heads": 2, "num_experts": 4, "attn_layer_period": 2}
    | {"attn_layer_offset": 1},
    "qwen3_next": {
        "model_type": "qwen3_next",
        **SIZES,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "full_attention_interval": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "vit": {"model_type": "vit", **{k: v for k, v in SIZES.items() if k != "vocab_size"}, **IMAGE},
}
"""A small configuration of each family."""
IGNORED = {"model_type", "dtype", "torch_dtype"}
TRIED: dict[str, Any] = {
    "hidden_act": "relu",
    "hidden_activation": "relu",
    "activation_function": "silu",
    "attention_bias": True,
    "mlp_bias": True,
    "enable_bias": True,
    "do_layer_norm_before": False,
    "layer_norm_elementwise_affine": False,
    "tie_word_embeddings": True,
    "use_sliding_window": True,
    "qk_layernorm": True,
    "is_decoder": False,
    "is_causal": False,
    "use_bidirectional_attention": True,
    "is_encoder_decoder": False,
    "add_cross_attention": True,
    "_remove_final_layer_norm": True,
    "mlp_only_layers": [0],
    "layer_types": ["sliding_attention", "full_attention"],
    "partial_rotary_factor": 0.375,
    "rope_parameters": {"partial_rotary_factor": 0.375},
    "rope_scaling": {"type": "linear", "factor": 2.0},
    "text_config": {"hidden_size": 32},
    "final_logit_softcapping": 30.0,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "hidden_size": 128,
    "n_embd": 128,
    "activation": "relu",
    "bias": True,
    "rotary_pct": 0.375,
    "rotary_dim": 4,
    "n_positions": 8,
    "use_parallel_residual": False,
    "parallel_attn": False,
    "multi_query": False,
    "new_decoder_architecture": True,
    "alibi": True,
    "apply_residual_connection_post_layernorm": True,
    "num_ln_in_parallel_attn": 2,
    "qkv_bias": False,
    "use_bias": True,
    "use_conv_bias": False,
    "rms_norm": False,
    "architectures": ["ViTModel"],
    "id2label": {"0": "cat", "1": "dog", "2": "loom"},
    "image_size": 8,
    "patch_size": 2,
    "num_channels": 1,
    "attn_temperature_tuning": True,
    "mamba_inner_layernorms": True,
    "moe_layers": [1],
    "no_rope_layers": [0, 0, 0, 0, 1, 1, 1, 1],
}
"""Another value of each key that is not a whole number; 3 of the others."""
MEANS_NOTHING = {
    ("*", "max_window_layers"): "says where windows begin, of models that have none",
    ("*", "is_decoder"): "false is what every file says that was written before it was left out",
    ("*", "is_encoder_decoder"): "false is what every file says that was written before it was left out",
    ("*", "rope_scaling"): "raises the limit of positions of a rotary model, which is noted beyond it",
    ("*", "max_position_embeddings"): "the limit of a rotary model, which is noted beyond it",
    ("bert", "tie_word_embeddings"): "no head",
    ("roberta", "tie_word_embeddings"): "no head",
    ("vit", "tie_word_embeddings"): "no vocabulary",
    ("*", "architectures"): "says what stands behind the last norm of a vit alone",
    ("*", "id2label"): "names the classes of a vit; heads of others for classes are left out",
    ("*", "num_labels"): "counts the classes of a vit; heads of others for classes are left out",
    ("*", "rms_norm"): "false is the absence of it",
    ("*", "use_conv_bias"): "false is the absence of it",
    ("*", "qkv_bias"): "false is what files say whose family has it under another name",
    ("*", "use_parallel_residual"): "false is the absence of it",
    ("*", "parallel_attn"): "false is the absence of it",
    ("*", "multi_query"): "false is the absence of it",
}
"""Keys of a file that are taken as they are though they change nothing, and why."""


def outcome(config: dict[str, Any], *sets: tuple[str, str]) -> tuple[str, Any]:
    """``refused`` and the message, or ``loaded`` and all that a command could show."""
    document = json.dumps(config, indent=2)
    path = Path("config.json")
    path.write_text(document)
    heard = config["model_type"] == "whisper" and config.get("max_source_positions") != 16
    length = [] if config["model_type"] == "vit" or heard else [("sequence", "16")]
    try:
        summary = load_workload(str(path), [*length, *sets]).summary()
    except LoomError as error:
        return "refused", str(error)
    return "loaded", summary


def keys_read() -> dict[str, set[str]]:
    """Keys that each family asks for, those of nested configurations among them."""
    found: dict[str, set[str]] = {}
    for name, config in SMALL.items():
        seen: list[Configuration] = []
        document = Document({"model": config}, {}, "config.json")
        made = Configuration.__init__

        def noted(self: Configuration, *rest: Any, seen: list[Configuration] = seen, made: Any = made) -> None:
            made(self, *rest)
            seen.append(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Configuration, "__init__", noted)
            read_architecture(document, ("model",))
        found[name] = set().union(*(c.asked for c in seen)) - IGNORED
    return found


READ = keys_read()
EVERY = sorted(set().union(*READ.values()))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", in_turn(sorted(SMALL), 2, seconds=0.3))
def test_a_key_of_another_family_is_refused_or_changes_the_graph(name: str) -> None:
    """Of a family all keys are one test: 3,700 of them took longer to start than to run."""
    kind, before = outcome(SMALL[name])
    assert kind == "loaded", before
    others = [key for key in EVERY if key not in READ[name]]
    assert len(others) > 80
    assert {key: wrong for key in others if (wrong := wrong_with(name, key, before))} == {}


def wrong_with(name: str, key: str, before: Any) -> list[str]:
    """What is wrong with a key of another family: in a file of this one, and as an override."""
    value, wrong = TRIED.get(key, 3), []
    kind, after = outcome({**SMALL[name], key: value})
    if kind == "loaded" and after == before and (name, key) not in MEANS_NOTHING and ("*", key) not in MEANS_NOTHING:
        model = read_architecture(Document({"model": SMALL[name]}, {}, ""), ("model",))
        if value not in stated(model).get(key, ()):
            wrong.append("changes nothing")
    if kind == "refused" and not (f"model.{key}" in after and after.startswith("config.json:") and "\n" not in after):
        wrong.append(f"is refused by {after!r}")
    kind, after = outcome(SMALL[name], (f"model.{key}", json.dumps(value)))
    if kind == "loaded" and after == before:
        wrong.append("changes nothing by --set")
    if kind == "refused" and not after.startswith((f"--set workload.model.{key}=", "not supported: ")):
        wrong.append(f"is refused by --set with {after!r}")
    return wrong


@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_key_of_its_own_changes_the_graph_or_is_refused_when_set(name: str) -> None:
    """Of eight layers; where one key waits for another, it is refused without that one."""
    config = {**SMALL[name], "n_layer" if "n_layer" in SMALL[name] else "num_hidden_layers": 8}
    prefix, within = "model.", {"text_config", "tie_word_embeddings"}
    if name in NESTED:
        config = {"model_type": name, "text_config": {**NESTED[name], "num_hidden_layers": 8}}
    if name in ("qwen2", "qwen3"):
        config["max_window_layers"] = 2
    tried = {**TRIED, "layer_types": ["sliding_attention"] * 4 + ["full_attention"] * 4, "first_k_dense_replace": 1}
    before, idle = outcome(config), []
    for key in sorted(READ[name] - {"rope_scaling", "max_position_embeddings"}):
        value = tried.get(key, 3)
        values = [value, not value] if isinstance(value, bool) else [value]
        path = prefix + ("text_config." if name in NESTED and key not in within else "") + key
        found = [outcome(config, (path, json.dumps(each))) for each in values]
        if all(kind == "loaded" and what == before[1] for kind, what in found):
            idle.append(key)
    assert idle == (["final_logit_softcapping"] if name == "gemma2" else [])  # on already, whatever the constant


@pytest.mark.parametrize("name", sorted(SMALL))
def test_keys_that_turn_a_feature_off_are_taken(name: str) -> None:
    off = {"num_experts": 0, "sliding_window": None, "use_sliding_window": False, "q_lora_rank": None, "alibi": False}
    config = {**SMALL[name], **{key: value for key, value in off.items() if key not in READ[name]}}
    assert outcome(config)[1] == outcome(SMALL[name])[1]


def test_every_key_that_a_family_reads_is_placed_for_the_others() -> None:
    model = read_architecture(Document({"model": SMALL["llama"]}, {}, ""), ("model",))
    placed = {*SHAPING, *stated(model), *EPSILONS}
    of_images = {"architectures", "id2label", "num_labels"}
    assert READ["vit"] >= of_images
    assert all(KEY in read for read in READ.values())  # how weights are stored: of all families
    assert not set(EVERY) - placed - of_images - {KEY}
    assert not set(CONSTANTS) & placed
    assert set(CONSTANTS) & set(EVERY) == of_images


@pytest.mark.parametrize("key", sorted(CONSTANTS))
def test_keys_without_effect_are_taken_from_files_and_refused_when_set(key: str) -> None:
    before = outcome(SMALL["llama"])
    assert outcome({**SMALL["llama"], key: "x" if key == "_name_or_path" else 3})[1]["flops"] == before[1]["flops"]
    kind, text = outcome(SMALL["llama"], (f"model.{key}", "3"))
    assert kind == "refused"
    assert f"model.{key}: changes no time: {CONSTANTS[key]}; a file may have it" in text


@pytest.mark.parametrize(
    ("name", "sets", "expected"),
    [
        ("llama", ("model.num_experts", "8"), "model.num_experts: model type llama has no experts"),
        ("llama", ("model.hiden_size", "8"), "model.hiden_size: model type llama reads no such key; did you mean"),
        ("llama", ("model.rope_scaling.mscale", "1"), "changes nothing: max_position_embeddings is missing"),
        ("gpt2", ("model.hidden_size", "32"), "model.hidden_size: model type gpt2 reads no such key"),
        ("gpt2", ("model.n_ctx", "4"), "sequence: the model has learned positions for 4 tokens only (got 16)"),
        ("qwen2", ("model.sliding_window", "8"), "model.sliding_window: changes nothing: use_sliding_window is false"),
        ("qwen3_moe", ("model.intermediate_size", "8"), "model.intermediate_size: changes nothing: every layer has"),
        ("gemma3", ("model.hidden_size", "8"), "model.hidden_size: model type gemma3_text reads no such key"),
        ("gemma3", ("model.text_config.num_experts", "8"), "num_experts: model type gemma3_text has no experts"),
    ],
)
def test_what_is_set_and_not_read_is_refused(name: str, sets: tuple[str, str], expected: str) -> None:
    kind, text = outcome(SMALL[name], sets)
    assert kind == "refused"
    assert expected in text


def test_a_key_of_another_family_is_shown_where_it_stands() -> None:
    kind, text = outcome({**SMALL["llama"], "num_local_experts": 8})
    assert (kind, text) == (
        "refused",
        "config.json:8:24: model.num_local_experts: model type llama has no experts (got 8)",
    )
    kind, text = outcome({**SMALL["gpt2"], "num_key_value_heads": 2})
    assert text.endswith("model.num_key_value_heads: model type gpt2 does not read this key, and has 4 (got 2)")


@pytest.mark.parametrize(
    ("name", "keys", "refused"),
    [
        ("qwen2", {"is_causal": False}, None),
        ("llama", {"is_causal": False}, None),
        ("bloom", {"is_causal": False}, None),
        ("gemma3_text", {"use_bidirectional_attention": True}, None),
        ("bert", {"is_causal": False}, None),
        ("bert", {"is_causal": True}, "is_causal: model type bert: its tokens see later ones, too (got true)"),
        (
            "deepseek_v3",
            {"is_causal": False},
            "not supported: model type deepseek_v3 without a causal mask (got false)",
        ),
        ("qwen3_next", {"is_causal": False}, "not supported: model type qwen3_next without a causal mask (got false)"),
        ("mamba", {"is_causal": False}, "not supported: model type mamba without a causal mask (got false)"),
        ("llama", {"use_bidirectional_attention": True}, "model type llama does not read this key, and has false"),
        ("qwen2", {"bidirectional": True}, "model type qwen2 has no attention to later tokens (got true)"),
    ],
)
def test_tokens_see_later_ones_where_a_file_says_so(name: str, keys: dict[str, Any], refused: str | None) -> None:
    """Each of 16 queries has 16 keys in place of 8.5 in the mean, and nothing is kept for tokens to come."""
    kind, found = outcome({**SMALL[name], **keys})
    if refused is not None:
        assert kind == "refused"
        assert refused in found
        return
    assert kind == "loaded", found
    shapes = [(o["macs"], o["shape"]) for o in found["operators"] if o["kind"] == "attention"]
    assert shapes
    assert all(macs == shape["heads"] * 16 * 16 * 2 * shape["head_dim"] for macs, shape in shapes)
    assert (found["kv_bytes"], found["kv_bytes_per_token"]) == (0, 0)
    kind, text = outcome({**SMALL[name], **keys}, ("phase", "decode"))
    assert (kind, "is an encoder" in text) == ("refused", True)


@pytest.mark.parametrize("pattern", [2, 3])
def test_two_keys_that_say_one_pattern_are_alike(pattern: int) -> None:
    config = {**SMALL["gemma3_text"], "num_hidden_layers": 6, "sliding_window_pattern": 3}
    config["_sliding_window_pattern"] = pattern
    kind, text = outcome(config)
    assert kind == ("loaded" if pattern == 3 else "refused")
    assert kind == "loaded" or "_sliding_window_pattern: must be 3, as sliding_window_pattern is (got 2)" in text
    assert outcome(config | {"layer_types": ["full_attention"] * 6})[0] == "loaded"


@pytest.mark.parametrize("length", [16, 257, 258, 300, 2048])
def test_windows_are_to_both_sides_of_a_token(length: int) -> None:
    """Half of EmbeddingGemma's 512 on either side, counted key by key."""
    config = {**SMALL["gemma3_text"], "use_bidirectional_attention": True, "sliding_window": 512}
    config["layer_types"] = ["sliding_attention", "full_attention"]
    kind, found = outcome(config, ("sequence", str(length)))
    assert kind == "loaded", found
    shapes = [(o["macs"], o["shape"]) for o in found["operators"] if o["kind"] == "attention"]
    pairs = [sum(min(at + 256, length - 1) - max(at - 256, 0) + 1 for at in range(length)), length**2]
    counted = {macs // (shape["heads"] * 2 * shape["head_dim"]) for macs, shape in shapes}
    assert counted == set(pairs)


@pytest.mark.parametrize("name", sorted(DOWNLOADED))
def test_files_in_the_manner_of_the_hub_load(name: str) -> None:
    kind, found = outcome(DOWNLOADED[name])
    assert kind == "loaded", found


@pytest.mark.parametrize(
    ("keys", "length", "noted"),
    [
        ({}, 100, False),
        ({"max_position_embeddings": 64}, 64, False),
        ({"max_position_embeddings": 64}, 65, True),
        ({"max_position_embeddings": 64, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 256, False),
        ({"max_position_embeddings": 64, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 257, True),
        (
            {"max_position_embeddings": 64, "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 16}},
            128,
            False,
        ),
    ],
)
def test_more_tokens_than_rotary_positions_are_noted(keys: dict[str, Any], length: int, noted: bool) -> None:
    _, found = outcome({**SMALL["llama"], **keys}, ("sequence", str(length)))
    assert bool(found["notes"]) is noted
    if noted:
        assert "positions that the model was made for" in found["notes"][0]


def test_the_length_left_open_is_within_the_positions(load_config: Loader) -> None:
    assert load_config({**SMALL["llama"], "max_position_embeddings": 128}).tokens == 128
