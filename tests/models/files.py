"""Small trained-looking models as files: GGUF by gguf's own writer, folders by safetensors and tokenizers."""

import json

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.execution.models import config_of, tensors_of

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "1 2"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
ALONE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
}


def words():
    """Texts of all tokens: special ones, bytes, merges."""
    return [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]


def model_of(family, tied=True, layers=2, heads=2, kv_heads=1, dim=32, seed=0):
    """A configuration whose vocabulary is that of `words`, and its parameters."""
    config = config_of(family, heads, kv_heads, dim, layers, tied) | {"vocab_size": len(words())}
    if family != "gpt2":
        config |= {"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu"}
    tensors = tensors_of(config, seed)
    width = config.get("n_embd", config.get("hidden_size"))
    chance = np.random.default_rng(seed + 1)
    for name in ("wte.weight", "model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = chance.normal(0, 0.2, (len(words()), width)).astype(np.float32)
    return config, tensors


def gguf_name(name):
    place, _, ending = name.rpartition(".")
    for prefix in ("model.layers.", "h."):
        if place.startswith(prefix):
            layer, _, own = place.removeprefix(prefix).partition(".")
            return f"blk.{layer}.{LAYER[own]}.{ending}"
    return f"{ALONE[place]}.{ending}"


def gguf_values(config, name, values):
    """Values as the converter of llama.cpp writes them: neighbours turn in Llama, matrices of GPT-2 are flipped."""
    if config["model_type"] == "llama" and name.rpartition(".")[0].endswith(("q_proj", "k_proj")):
        dim = config["hidden_size"] // config["num_attention_heads"]
        heads = values.reshape(-1, 2, dim // 2, *values.shape[1:])
        return np.ascontiguousarray(heads.swapaxes(1, 2).reshape(values.shape))
    if config["model_type"] == "gpt2" and name.startswith("h.") and values.ndim == 2:
        return np.ascontiguousarray(values.T)
    return values


def write_gguf(path, config, tensors, *, kind="F32", pre="smollm", template=TEMPLATE, changes=None, left_out=()):
    """A GGUF file; ``changes`` replaces values of metadata, or takes them out with None."""
    family, gpt2 = config["model_type"], config["model_type"] == "gpt2"
    heads = config["n_head" if gpt2 else "num_attention_heads"]
    width = config["n_embd" if gpt2 else "hidden_size"]
    own = {
        "embedding_length": width,
        "block_count": config["n_layer" if gpt2 else "num_hidden_layers"],
        "feed_forward_length": 4 * width if gpt2 else config["intermediate_size"],
        "context_length": config["n_positions" if gpt2 else "max_position_embeddings"],
        "attention.head_count": heads,
    }
    if not gpt2:
        own["attention.head_count_kv"] = config["num_key_value_heads"]
    texts = words()
    special = [3 if text in SPECIAL else 1 for text in texts]
    metadata = {f"{family}.{key}": value for key, value in own.items()}
    norm = "layer_norm_epsilon" if gpt2 else "layer_norm_rms_epsilon"
    metadata |= {f"{family}.attention.{norm}": 1e-5} | ({} if gpt2 else {f"{family}.rope.freq_base": 10000.0})
    metadata |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": special,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": template,
    }
    metadata |= changes or {}
    writer = GGUFWriter(path, metadata.pop("general.architecture", family))
    for key, value in metadata.items():
        add_value(writer, key, value)
    for name, values in tensors.items():
        if name in left_out:
            continue
        made = gguf_values(config, name, values)
        of = GGMLQuantizationType[kind if made.ndim == 2 else "F32"]
        raw = made if of is GGMLQuantizationType.F32 else quants.quantize(made, of)
        writer.add_tensor(gguf_name(name), raw, raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer, key, value):
    """A value of metadata in the kind that its type has."""
    if value is None:
        return
    if isinstance(value, list):
        writer.add_array(key, value)
        return
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds[type(value)](key, value)


def made_tokenizer():
    """The same tokenizer as tokenizers' own."""
    texts = words()
    pairs = [tuple(merge.split(" ")) for merge in MERGES]
    made = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate(texts)}, merges=pairs))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return made


def write_folder(path, config, tensors, *, shards=1, template=TEMPLATE):
    """A Hugging Face folder."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**config, "eos_token_id": 2}))
    if shards == 1:
        save_file(tensors, path / "model.safetensors")
    else:
        names, places = sorted(tensors), {}
        for shard in range(shards):
            own = {name: tensors[name] for name in names[shard::shards]}
            save_file(own, path / f"model-{shard}.safetensors")
            places |= dict.fromkeys(own, f"model-{shard}.safetensors")
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    made_tokenizer().save(str(path / "tokenizer.json"))
    more = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": template}
    (path / "tokenizer_config.json").write_text(json.dumps(more))
    return path


__all__ = ["model_of", "write_folder", "write_gguf"]
