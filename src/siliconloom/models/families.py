"""What a GGUF file says of its model, as Hugging Face says it: configuration and names of tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from siliconloom.arch.errors import LoomError, NotSupported, nearest_name
from siliconloom.models.gguf import GgufFile, GgufTensor

LLAMA_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GPT2_LAYER = {
    "attn_norm": "ln_1",
    "ffn_norm": "ln_2",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
LLAMA_ALONE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
GPT2_ALONE = {"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "output": "lm_head"}
FLIPPED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
"""Matrices of GPT-2 that Hugging Face has as inputs x outputs."""
BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufFamily(Struct, frozen=True):
    """Names of a family: of its layers' tensors, of others, and how its layers are called.

    ``paired``: rows of queries and keys lie as neighbours that turn against each other, not as the halves of a head.
    """

    layer: Mapping[str, str]
    alone: Mapping[str, str]
    prefix: str
    paired: bool = False
    flipped: tuple[str, ...] = ()

    def name(self, tensor: str) -> str:
        """Name of a tensor in Hugging Face; its own where there is none."""
        block = BLOCK.fullmatch(tensor)
        if block and block[2] in self.layer:
            return f"{self.prefix}.{block[1]}.{self.layer[block[2]]}.{block[3]}"
        name, _, ending = tensor.rpartition(".")
        return f"{self.alone[name]}.{ending}" if name in self.alone else tensor

    def turned(self, tensor: GgufTensor) -> bool:
        """Whether Hugging Face has the other dimension of a matrix first."""
        block = BLOCK.fullmatch(tensor.name)
        return block is not None and block[2] in self.flipped and len(tensor.shape) == 2


GGUF_FAMILIES = {
    "llama": GgufFamily(LLAMA_LAYER, LLAMA_ALONE, "model.layers", paired=True),
    "qwen2": GgufFamily(LLAMA_LAYER, LLAMA_ALONE, "model.layers"),
    "gpt2": GgufFamily(GPT2_LAYER, GPT2_ALONE, "h", flipped=FLIPPED),
}
"""By ``general.architecture``."""


def family_of(file: GgufFile) -> tuple[str, GgufFamily]:
    """Architecture of a file; raises `NotSupported` for one that is not read."""
    found = file.metadata.get("general.architecture")
    if not isinstance(found, str) or found not in GGUF_FAMILIES:
        near = nearest_name(str(found), GGUF_FAMILIES)
        hint = f"; did you mean '{near}'?" if near else ""
        known = ", ".join(GGUF_FAMILIES)
        raise NotSupported(f"GGUF files of the architecture {found} ({file.path}); those that are read: {known}{hint}")
    return found, GGUF_FAMILIES[found]


def gguf_config(file: GgufFile) -> dict[str, Any]:
    """Configuration of a file's model under the keys of a Hugging Face ``config.json``.

    Raises
    ------
    LoomError
        For a key that is missing or no number of its kind.
    NotSupported
        For another architecture, and for experts.
    """
    name, _ = family_of(file)
    keys = _Keys(file, name)
    if keys.whole("expert_count", 0):
        raise NotSupported(f"GGUF files of mixtures of experts ({file.path})")
    heads = keys.whole("attention.head_count")
    _refuse_others(file, name, keys.whole("embedding_length") // max(heads, 1))
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    table = file.tensors.get("token_embd.weight")
    rows = table.shape[0] if table is not None and table.shape else 0
    vocabulary = keys.whole("vocab_size", len(tokens) if isinstance(tokens, list) else rows)
    shared: dict[str, Any] = {
        "model_type": name,
        "vocab_size": vocabulary,
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    if name == "gpt2":
        return shared | {
            "n_embd": keys.whole("embedding_length"),
            "n_layer": keys.whole("block_count"),
            "n_head": heads,
            "n_inner": keys.whole("feed_forward_length"),
            "n_positions": keys.whole("context_length"),
            "activation_function": "gelu_new",
            "layer_norm_epsilon": keys.real("attention.layer_norm_epsilon", 1e-5),
        }
    found = shared | {
        "hidden_size": keys.whole("embedding_length"),
        "intermediate_size": keys.whole("feed_forward_length"),
        "num_hidden_layers": keys.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.whole("attention.head_count_kv", heads),
        "max_position_embeddings": keys.whole("context_length"),
        "hidden_act": "silu",
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_theta": keys.real("rope.freq_base", 10000.0),
    }
    width = keys.whole("attention.key_length", 0)
    if width:
        found["head_dim"] = width
    if name == "llama" and "blk.0.attn_q.bias" in file.tensors:
        found["attention_bias"] = True
    kind = file.metadata.get(f"{name}.rope.scaling.type", "none")
    if "rope_freqs.weight" in file.tensors:
        kind = "llama3"
    if kind != "none":
        found["rope_scaling"] = {"rope_type": kind, "factor": keys.real("rope.scaling.factor", 1.0)}
    return found


def _refuse_others(file: GgufFile, name: str, width: int) -> None:
    """Raise `NotSupported` for keys that make another model of it than those of its family that are read here."""
    width = file.metadata.get(f"{name}.attention.key_length", width)
    usual: dict[str, tuple[Any, ...]] = {
        "attention.value_length": (width,),
        "attention.sliding_window": (0,),
        "attention.causal": (True,),
        "attention.scale": (),
        "attention.clamp_kqv": (0,),
        "attention.max_alibi_bias": (0,),
        "rope.dimension_count": (width,),
        "rope.scale_linear": (1,),
        "use_parallel_residual": (False,),
        "logit_scale": (1,),
        "residual_scale": (1,),
        "embedding_scale": (1,),
        "final_logit_softcapping": (),
        "attn_logit_softcapping": (),
    }
    if file.metadata.get(f"{name}.rope.scaling.type", "none") == "none":
        usual["rope.scaling.factor"] = (0, 1)
    for key, values in usual.items():
        found = file.metadata.get(f"{name}.{key}")
        if found is not None and found not in values:
            shown = f"{found:.7g}" if isinstance(found, float) else str(found)[:40]
            raise NotSupported(f"models with {name}.{key} of {shown} ({file.path})")


class _Keys(Struct, frozen=True):
    """Numbers of a file's metadata under the name of its architecture."""

    file: GgufFile
    name: str

    def whole(self, key: str, default: int | None = None) -> int:
        found = self._found(key, default)
        if type(found) is not int or not 0 <= found < 2**40:
            raise LoomError(f"{self.file.path}: {self.name}.{key} must be a whole number (got {str(found)[:40]})")
        return found

    def real(self, key: str, default: float) -> float:
        found = self._found(key, default)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise LoomError(f"{self.file.path}: {self.name}.{key} must be a number (got {str(found)[:40]})")
        return float(f"{found:.7g}")  # a float32 as it was written

    def _found(self, key: str, default: float | None) -> Any:
        full = f"{self.name}.{key}"
        found = self.file.metadata.get(full, default)
        if found is None:
            near = nearest_name(full, self.file.metadata)
            hint = f"; did you mean {near}?" if near else ""
            raise LoomError(f"{self.file.path}: its metadata lacks {full}{hint}")
        return found


__all__ = ["GGUF_FAMILIES", "GgufFamily", "family_of", "gguf_config"]
