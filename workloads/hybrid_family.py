"""Models some of whose layers attend and others keep a state: Jamba (Mamba), Qwen3-Next (gated delta nets).

Defaults of missing keys are those of each family's configuration class in Hugging Face transformers; the sizes of the
model (width, layers, heads) must be there.
"""

from __future__ import annotations

from collections.abc import Callable

from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import (
    RMS_NORM,
    Architecture,
    DeltaNet,
    FeedForward,
    GroupedAttention,
    Layer,
    MixtureOfExperts,
    StateSpace,
)
from siliconloom.workloads.configuration import MAX_LAYERS, Configuration
from siliconloom.workloads.llama_family import (
    MAX_POSITIONS,
    head_width,
    idle_widths,
    kv_heads_of,
    rotary_fraction,
    rotary_width,
    top_k,
    trained_length,
)
from siliconloom.workloads.mamba_family import MAX_STATE, MAX_TAPS

NO_ATTENTION = "no layer attends"
NO_STATES = "no layer keeps a state"


def jamba(config: Configuration) -> Architecture:
    """Jamba (arXiv:2403.19887): one of eight layers attends, without positions; every other one has experts."""
    hidden = config.required("hidden_size")
    count = config.required("num_hidden_layers", high=MAX_LAYERS)
    heads = config.required("num_attention_heads")
    activation = config.activation("hidden_act", default="silu", gated=True)
    attention = GroupedAttention(
        heads=heads, kv_heads=kv_heads_of(config, heads, 8), head_dim=head_width(config, hidden, heads)
    )
    if activation is not VectorFunction.SILU:
        raise config.error("must be silu", "hidden_act", value=config.data["hidden_act"])
    automatic = config.has("mamba_dt_rank") and config.data["mamba_dt_rank"] == "auto"
    rank = -(-hidden // 16) if automatic else config.integer("mamba_dt_rank", default=-(-hidden // 16))
    mixer = StateSpace(
        inner=config.integer("mamba_expand", default=2) * hidden,
        state=config.integer("mamba_d_state", default=16, high=MAX_STATE),
        taps=config.integer("mamba_d_conv", default=4, low=2, high=MAX_TAPS),
        rank=rank,
        bias=config.flag("mamba_proj_bias", False),
        convolution_bias=config.flag("mamba_conv_bias", True),
        inner_norms=config.flag("mamba_inner_layernorms", True),
    )
    width = config.integer("intermediate_size", default=14336)
    experts = config.integer("num_experts", "num_local_experts", default=16, high=2**16)
    dense = FeedForward(intermediate=width, activation=activation)
    chosen = top_k(config, experts, default=min(2, experts))
    mixture = MixtureOfExperts(experts=experts, top_k=chosen, intermediate=width, activation=activation)
    attends, routed = _every(config, "attn_layer", 8, 4), _every(config, "expert_layer", 2, 1)
    layers = tuple(
        Layer(
            attention=attention if attends(index) else mixer,
            feed_forward=mixture if routed(index) and experts > 1 else dense,
            norm=RMS_NORM,
        )
        for index in range(count)
    )
    _idle(config, layers, ("num_key_value_heads",), "mamba_")
    if not any(isinstance(layer.feed_forward, MixtureOfExperts) for layer in layers):
        rule = "no layer has experts"
        config.idle |= dict.fromkeys(("num_experts", "num_experts_per_tok"), rule)
    if experts == 1:
        config.idle |= dict.fromkeys(("expert_layer_period", "expert_layer_offset"), "num_experts is 1")
    return Architecture(
        model_type="jamba",
        vocabulary=config.integer("vocab_size", default=65536),
        hidden=hidden,
        embedding_width=hidden,
        layers=layers,
        final_norm=RMS_NORM,
        tied=config.flag("tie_word_embeddings", False),
        dtype=config.dtype(),
        trained_length=config.integer("max_position_embeddings", "n_ctx", default=262144, high=MAX_POSITIONS),
        epsilon=1e-6,
    )


def qwen3_next(config: Configuration) -> Architecture:
    """Qwen3-Next: three gated delta nets to one layer of gated attention, many small experts and a gated shared one.

    The layers that predict further tokens are left out, as they are from the released model's own class.
    """
    hidden = config.required("hidden_size")
    count = config.required("num_hidden_layers", high=MAX_LAYERS)
    heads = config.required("num_attention_heads")
    head_dim, bias = config.integer("head_dim", default=256), config.flag("attention_bias", False)
    attention = GroupedAttention(
        heads=heads,
        kv_heads=kv_heads_of(config, heads, 2),
        head_dim=head_dim,
        rotary_dim=rotary_width(config, head_dim, rotary_fraction(config, default=0.25)),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=RMS_NORM,
        gate=True,
    )
    activation = config.activation("hidden_act", default="silu", gated=True)
    if activation is not VectorFunction.SILU:
        raise config.error("must be silu", "hidden_act", value=config.data["hidden_act"])
    mixer = _delta_net(config)
    experts = config.integer("num_experts", "num_local_experts", default=512, high=2**16)
    mixture = MixtureOfExperts(
        experts=experts,
        top_k=top_k(config, experts, default=10),
        intermediate=config.integer("moe_intermediate_size", default=512),
        activation=activation,
        shared_intermediate=config.integer("shared_expert_intermediate_size", default=512),
        shared_gate=True,
    )
    dense = FeedForward(intermediate=config.integer("intermediate_size", default=5632), activation=activation)
    step, plain = config.integer("decoder_sparse_step", default=1), config.integers("mlp_only_layers")
    every = config.integer("full_attention_interval", default=4, high=MAX_LAYERS)
    types = config.layer_types(count, ("linear_attention", "full_attention"))
    if types is None:
        types = ["linear_attention" if (index + 1) % every else "full_attention" for index in range(count)]
    else:
        config.idle["full_attention_interval"] = "layer_types says which layers attend"
    layers = tuple(
        Layer(
            attention=attention if kind == "full_attention" else mixer,
            feed_forward=mixture if index not in plain and (index + 1) % step == 0 else dense,
            norm=RMS_NORM,
        )
        for index, kind in enumerate(types)
    )
    idle_widths(config, layers)
    if not any(isinstance(layer.feed_forward, MixtureOfExperts) for layer in layers):
        config.idle["shared_expert_intermediate_size"] = "no layer has experts"
    _idle(config, layers, ("num_key_value_heads", "head_dim", "partial_rotary_factor", "attention_bias"), "linear_")
    return Architecture(
        model_type="qwen3_next",
        vocabulary=config.integer("vocab_size", default=151936),
        hidden=hidden,
        embedding_width=hidden,
        layers=layers,
        final_norm=RMS_NORM,
        tied=config.flag("tie_word_embeddings", False),
        dtype=config.dtype(),
        trained_length=trained_length(config),
        epsilon=1e-6,
    )


def _delta_net(config: Configuration) -> DeltaNet:
    key_heads = config.integer("linear_num_key_heads", default=16)
    value_heads = config.integer("linear_num_value_heads", default=32)
    if value_heads % key_heads:
        key = "linear_num_value_heads" if config.has("linear_num_value_heads") else "linear_num_key_heads"
        raise config.error(f"{value_heads} heads of values cannot share {key_heads} of keys evenly", key)
    return DeltaNet(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=config.integer("linear_key_head_dim", default=128, high=MAX_STATE),
        value_dim=config.integer("linear_value_head_dim", default=128, high=MAX_STATE),
        taps=config.integer("linear_conv_kernel_dim", default=4, low=2, high=MAX_TAPS),
    )


def _every(config: Configuration, what: str, period: int, offset: int) -> Callable[[int], bool]:
    """Whether a layer is one of every so many, counted from an offset."""
    period = config.integer(f"{what}_period", default=period, high=MAX_LAYERS)
    offset = config.integer(f"{what}_offset", default=offset, low=0, high=MAX_LAYERS)
    if offset >= period:
        raise config.error(f"must be below {what}_period, {period}", f"{what}_offset", value=offset)
    return lambda index: index % period == offset


def _idle(config: Configuration, layers: tuple[Layer, ...], of_attention: tuple[str, ...], prefix: str) -> None:
    """Say which keys no layer has: those of attention, or those of a state."""
    if not any(isinstance(layer.attention, GroupedAttention) for layer in layers):
        config.idle |= dict.fromkeys(of_attention, NO_ATTENTION)
    if all(isinstance(layer.attention, GroupedAttention) for layer in layers):
        config.idle |= {key: NO_STATES for key in config.asked if key.startswith(prefix)}
