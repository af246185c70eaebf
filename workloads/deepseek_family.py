"""DeepSeek-V2 and V3: latent attention, dense layers first, then fine-grained experts with shared ones.

Only the main model is read: the layers that predict further tokens (``num_nextn_predict_layers``) are left out.
"""

from __future__ import annotations

from siliconloom.workloads.architecture import (
    RMS_NORM,
    Architecture,
    FeedForward,
    LatentAttention,
    Layer,
    MixtureOfExperts,
)
from siliconloom.workloads.configuration import MAX_LAYERS, Configuration
from siliconloom.workloads.llama_family import idle_widths, rotary_width, top_k, trained_length


def deepseek_v2(config: Configuration) -> Architecture:
    """DeepSeek-V2 and V2-Lite; defaults of ``DeepseekV2Config`` in transformers."""
    return _deepseek(
        config,
        "deepseek_v2",
        vocabulary=32000,
        intermediate=11008,
        moe_intermediate=1407,
        experts=64,
        shared=2,
        chosen=None,
        first_dense=0,
        correction_bias=False,
    )


def deepseek_v3(config: Configuration) -> Architecture:
    """DeepSeek-V3 and R1 (arXiv:2412.19437); defaults of ``DeepseekV3Config`` in transformers."""
    return _deepseek(
        config,
        "deepseek_v3",
        vocabulary=129280,
        intermediate=18432,
        moe_intermediate=2048,
        experts=256,
        shared=1,
        chosen=8,
        first_dense=3,
        correction_bias=True,
    )


def _deepseek(
    config: Configuration,
    model_type: str,
    *,
    vocabulary: int,
    intermediate: int,
    moe_intermediate: int,
    experts: int,
    shared: int,
    chosen: int | None,
    first_dense: int,
    correction_bias: bool,
) -> Architecture:
    hidden = config.required("hidden_size")
    count = config.required("num_hidden_layers", high=MAX_LAYERS)
    q_rank = config.optional("q_lora_rank")
    if q_rank is None and not config.given("q_lora_rank"):
        q_rank = 1536
    attention = LatentAttention(
        heads=config.required("num_attention_heads"),
        q_rank=q_rank,
        kv_rank=config.integer("kv_lora_rank", default=512),
        content_dim=config.integer("qk_nope_head_dim", default=128),
        rotary_dim=rotary_width(config, config.integer("qk_rope_head_dim", default=64)),
        v_head_dim=config.integer("v_head_dim", default=128),
        bias=config.flag("attention_bias", False),
    )
    activation = config.activation("hidden_act", default="silu", gated=True)
    width = config.integer("moe_intermediate_size", default=moe_intermediate)
    experts = config.integer("n_routed_experts", "num_experts", "num_local_experts", default=experts, high=2**16)
    # An explicit null means that no expert is shared.
    n_shared = config.optional("n_shared_experts", low=0)
    if n_shared is None:
        n_shared = 0 if config.given("n_shared_experts") else shared
    mixture = MixtureOfExperts(
        experts=experts,
        top_k=top_k(config, experts, chosen),
        intermediate=width,
        activation=activation,
        shared_intermediate=n_shared * width,
        correction_bias=correction_bias,
    )
    dense = FeedForward(intermediate=config.integer("intermediate_size", default=intermediate), activation=activation)
    first = config.integer("first_k_dense_replace", default=first_dense, low=0, high=MAX_LAYERS)
    every = config.integer("moe_layer_freq", default=1, high=MAX_LAYERS)
    layers = tuple(
        Layer(
            attention=attention, norm=RMS_NORM, feed_forward=mixture if index >= first and index % every == 0 else dense
        )
        for index in range(count)
    )
    idle_widths(config, layers)
    return Architecture(
        model_type=model_type,
        vocabulary=config.integer("vocab_size", default=vocabulary),
        hidden=hidden,
        embedding_width=hidden,
        layers=layers,
        final_norm=RMS_NORM,
        tied=config.flag("tie_word_embeddings", False),
        dtype=config.dtype(),
        trained_length=trained_length(config),
    )
