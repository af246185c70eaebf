"""Decoders with experts in every layer, or in every other one, and several kinds of attention: gpt-oss, Llama 4.

Defaults of missing keys are those of each family's configuration class in Hugging Face transformers; the sizes of the
model (width, layers, heads) must be there.
"""

from __future__ import annotations

from msgspec.structs import replace

from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import (
    RMS_NORM,
    Architecture,
    FeedForward,
    GroupedAttention,
    Layer,
    MixtureOfExperts,
    Norm,
)
from siliconloom.workloads.configuration import MAX_LAYERS, Configuration
from siliconloom.workloads.llama_family import idle_widths, kv_heads_of, rotary_width, top_k, trained_length

UNIT_NORM = Norm(function=VectorFunction.RMS_NORM, affine=False)
"""A norm without parameters."""


def gpt_oss(config: Configuration) -> Architecture:
    """gpt-oss: every other layer has a window, heads have sinks, experts have biases and a clamped gate.

    Biases are on all products but the head. Heads' width is no part of the model's: 64 heads of 64 columns beside a
    width of 2,880. A file whose experts are stored in MXFP4 says so in ``quantization_config`` (`quantization`).
    """
    hidden = config.required("hidden_size")
    count = config.required("num_hidden_layers", high=MAX_LAYERS)
    heads = config.required("num_attention_heads")
    head_dim = config.integer("head_dim", default=64)
    bias = config.flag("attention_bias", True)
    attention = GroupedAttention(
        heads=heads,
        kv_heads=kv_heads_of(config, heads, 8),
        head_dim=head_dim,
        rotary_dim=rotary_width(config, head_dim),
        qkv_bias=bias,
        output_bias=bias,
        sinks=True,
    )
    _only_silu(config)
    experts = config.integer("num_local_experts", "num_experts", default=128, high=2**16)
    chosen = top_k(config, experts, default=4)
    alias = config.optional("experts_per_token")
    if alias not in (None, chosen):
        raise config.error(f"must be {chosen}, as num_experts_per_tok", "experts_per_token", value=alias)
    mixture = MixtureOfExperts(
        experts=experts,
        top_k=chosen,
        intermediate=config.integer("intermediate_size", default=2880),
        activation=VectorFunction.CLAMPED_SWIGLU,
        bias=True,
        correction_bias=True,
    )
    window = config.integer("sliding_window", default=128)
    types = config.layer_types(count)
    if types is None:
        types = ["full_attention" if index % 2 else "sliding_attention" for index in range(count)]
    if "sliding_attention" not in types:
        config.idle["sliding_window"] = "no layer has a window"
    layers = tuple(
        Layer(
            attention=replace(attention, window=window if kind == "sliding_attention" else None),
            feed_forward=mixture,
            norm=RMS_NORM,
        )
        for kind in types
    )
    return Architecture(
        model_type="gpt_oss",
        vocabulary=config.integer("vocab_size", default=201088),
        hidden=hidden,
        embedding_width=hidden,
        layers=layers,
        final_norm=RMS_NORM,
        tied=config.flag("tie_word_embeddings", False),
        dtype=config.dtype(),
        trained_length=trained_length(config),
    )


def llama4_text(config: Configuration) -> Architecture:
    """Llama 4's text model: chunks of positions with RoPE, and every fourth layer all positions without any.

    Queries and keys of layers with RoPE are scaled to one length (``use_qk_norm``), which is the same before and after
    they are turned; queries of the others are scaled by their position (``attn_temperature_tuning``). Layers with
    experts have a shared one; ``intermediate_size`` is the width of both, ``intermediate_size_mlp`` that of the others.
    """
    hidden = config.required("hidden_size")
    count = config.required("num_hidden_layers", high=MAX_LAYERS)
    heads = config.required("num_attention_heads")
    head_dim, bias = config.integer("head_dim", default=128), config.flag("attention_bias", False)
    activation = config.activation("hidden_act", default="silu", gated=True)
    experts = config.integer("num_local_experts", "num_experts", default=16, high=2**16)
    width = config.integer("intermediate_size", default=8192)
    mixture = MixtureOfExperts(
        experts=experts,
        top_k=top_k(config, experts, default=1),
        intermediate=width,
        activation=activation,
        shared_intermediate=width,
    )
    dense = FeedForward(intermediate=config.integer("intermediate_size_mlp", default=16384), activation=activation)
    with_experts, turned = _expert_layers(config, count), _turned_layers(config, count)
    # in a released file a whole number says so, too
    key = "attn_temperature_tuning"
    scaled = bool(config.optional(key, low=0)) if _is_number(config, key) else config.flag(key, True)
    normed = config.flag("use_qk_norm", True)
    common = GroupedAttention(
        heads=heads, kv_heads=kv_heads_of(config, heads, 8), head_dim=head_dim, qkv_bias=bias, output_bias=bias
    )
    local = replace(
        common, rotary_dim=rotary_width(config, head_dim), qk_norm=UNIT_NORM if normed else None, chunk=_chunk(config)
    )
    whole = replace(common, query_scale=scaled)
    types = config.layer_types(count, ("chunked_attention", "full_attention"))
    layers = []
    for index in range(count):
        attention = local if turned[index] else whole
        if types is not None:
            attention = replace(attention, chunk=local.chunk if types[index] == "chunked_attention" else None)
        layers.append(
            Layer(attention=attention, feed_forward=mixture if index in with_experts else dense, norm=RMS_NORM)
        )
    idle_widths(config, tuple(layers), dense="intermediate_size_mlp")
    if not with_experts:
        config.idle["intermediate_size"] = "no layer has experts"
    if all(turned):
        config.idle[key] = "every layer turns its queries"
    if not any(turned):
        config.idle["use_qk_norm"] = "no layer turns its queries"
    kinds = types if types is not None else ["chunked_attention" if each else "" for each in turned]
    if "chunked_attention" not in kinds:
        config.idle["attention_chunk_size"] = "no layer has chunks"
    return Architecture(
        model_type="llama4_text",
        vocabulary=config.integer("vocab_size", default=202048),
        hidden=hidden,
        embedding_width=hidden,
        layers=tuple(layers),
        final_norm=RMS_NORM,
        tied=config.flag("tie_word_embeddings", False),
        dtype=config.dtype(),
        trained_length=trained_length(config),
    )


def llama4(config: Configuration) -> Architecture:
    """Text model of a Llama 4, which reads images too; its vision tower is left out."""
    text = config.section("text_config")
    model = llama4_text(text)
    text.refuse_misspelt()
    model = replace(model, tied=config.flag("tie_word_embeddings", model.tied))
    return model if model.dtype is not None else replace(model, dtype=config.dtype())


def _only_silu(config: Configuration) -> None:
    if config.activation("hidden_act", default="silu") is not VectorFunction.SILU:
        raise config.error("must be silu", "hidden_act", value=config.data["hidden_act"])


def _is_number(config: Configuration, key: str) -> bool:
    value = config.data.get(key)
    return isinstance(value, int) and not isinstance(value, bool)


def _chunk(config: Configuration) -> int | None:
    """Positions of a chunk; an explicit null means that there are none."""
    chunk = config.optional("attention_chunk_size")
    return chunk if chunk is not None or config.given("attention_chunk_size") else 8192


def _expert_layers(config: Configuration, count: int) -> set[int]:
    """Layers that have experts: those that ``moe_layers`` names, else the last of every so many."""
    step = config.integer("interleave_moe_layer_step", default=1, high=MAX_LAYERS)
    if not config.has("moe_layers"):
        return set(range(step - 1, count, step))
    named = config.integers("moe_layers")
    wrong = next((each for each in named if each >= count), None)
    if wrong is not None:
        raise config.error(f"must be layers of the {count} that there are", "moe_layers", value=wrong)
    config.idle["interleave_moe_layer_step"] = "moe_layers says which layers have experts"
    return set(named)


def _turned_layers(config: Configuration, count: int) -> list[int]:
    """1 for each layer whose queries and keys RoPE turns, else 0; all but every fourth where nothing is said."""
    every = config.integer("no_rope_layer_interval", default=4, high=MAX_LAYERS)
    stated = config.integers("no_rope_layers")
    if not stated:
        return [int((index + 1) % every != 0) for index in range(count)]
    if len(stated) != count or max(stated) > 1:
        rule = f"must be a list of {count} numbers, 1 for each layer with RoPE and 0 for others"
        raise config.error(rule, "no_rope_layers")
    config.idle["no_rope_layer_interval"] = "no_rope_layers says which layers have RoPE"
    return stated
