"""Keys that a model's family does not read: those that say what it is anyway, those that would change it, the rest.

A file as downloaded has dozens of keys that no computation depends on, and they stay. What is refused is a key that
shapes a computation elsewhere and here says something that is not so, and every key of ``--set`` that nothing reads.
"""

from __future__ import annotations

from typing import Any

from siliconloom.arch.document import Key
from siliconloom.arch.errors import nearest_name
from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import (
    MIXERS,
    Architecture,
    ChunkedStateSpace,
    DeltaNet,
    FeedForward,
    GroupedAttention,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    NormPlacement,
)
from siliconloom.workloads.configuration import ACTIVATIONS, Configuration

FEATURES: dict[str, str] = {
    "experts": (
        "num_experts num_local_experts num_experts_per_tok num_experts_per_token n_routed_experts moe_num_experts "
        "moe_top_k moe_topk moe_intermediate_size moe_layer_freq decoder_sparse_step mlp_only_layers "
        "first_k_dense_replace expert_intermediate_size expert_ffn_hidden_size moe_layer_start_index moe_layers "
        "interleave_moe_layer_step expert_layer_period expert_layer_offset experts_per_token intermediate_size_mlp"
    ),
    "shared experts": (
        "n_shared_experts num_shared_experts moe_num_shared_experts shared_expert_intermediate_size "
        "shared_intermediate_size"
    ),
    "window": (
        "sliding_window use_sliding_window max_window_layers sliding_window_pattern _sliding_window_pattern "
        "window_size local_attention_window attention_window attention_chunk_size global_attn_every_n_layers"
    ),
    "latent attention": "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim qk_head_dim",
    "layers without positions": "no_rope_layers no_rope_layer_interval attn_temperature_tuning",
    "rotary positions": "rope_scaling rope_parameters partial_rotary_factor rotary_pct",
    "ALiBi": "alibi use_alibi",
    "squashed logits": "final_logit_softcapping attn_logit_softcapping",
    "text model nested in it": "text_config llm_config language_config",
    "encoder": (
        "is_encoder_decoder encoder_layers num_encoder_layers cross_attention_hidden_size add_cross_attention "
        "cross_attention_layers cross_attention_frequency encoder_attention_heads encoder_ffn_dim decoder_layers "
        "num_decoder_layers decoder_attention_heads decoder_ffn_dim"
    ),
    "sound": "num_mel_bins max_source_positions max_target_positions",
    "biases of scores by distance": "relative_attention_num_buckets",
    "perceptron of this kind": "feed_forward_proj",
    "scaled embeddings": "scale_embedding",
    "state-space or linear-attention layers": (
        "state_size conv_kernel time_step_rank expand use_conv_bias chunk_size n_groups ssm_state_size mamba_d_state "
        "mamba_n_heads mamba_d_conv mamba_expand attn_layer_period attn_layer_offset full_attention_interval "
        "linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_conv_kernel_dim "
        "mamba_inner_layernorms mamba_dt_rank mamba_conv_bias mamba_proj_bias linear_value_head_dim "
        "hybrid_override_pattern"
    ),
    "layers that differ in this way": (
        "num_kv_shared_layers cla_share_factor block_configs hidden_size_per_layer_input altup_num_inputs laurel_rank"
    ),
    "queries or keys of this kind": (
        "use_qk_norm multi_query num_attention_groups multi_query_group_num parallel_attn use_parallel_residual "
        "new_decoder_architecture"
    ),
    "residual stream of this kind": "apply_residual_connection_post_layernorm",
    "images": "image_size patch_size num_channels",
    "attention to later tokens": (
        "is_causal use_bidirectional_attention bidirectional_attention bidirectional use_prefix_lm prefix_lm"
    ),
}
"""What a model may have, and the keys that say so in some family or other."""

INERT: dict[str, str] = {
    "constants of positions": (
        "initial_context_length attn_scale floor_scale offset_alibi seq_length "
        "rope_theta rotary_emb_base rope_local_base_freq rope_interleave original_max_position_embeddings "
        "relative_attention_max_distance"
    ),
    "constants of scores and routers": (
        "swiglu_limit attention_softmax_in_fp32 masked_softmax_fusion "
        "query_pre_attn_scalar scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn "
        "norm_topk_prob routed_scaling_factor scoring_func topk_method n_group topk_group router_jitter_noise "
        "output_router_logits router_aux_loss_coef aux_loss_alpha seq_aux"
    ),
    "dropout and initial values": (
        "attention_dropout attention_probs_dropout_prob hidden_dropout_prob dropout layerdrop attn_pdrop "
        "embd_pdrop resid_pdrop initializer_range init_std classifier_dropout dropout_rate activation_dropout "
        "rescale_prenorm_residual time_step_scale time_step_min time_step_max time_step_init_scheme time_step_floor "
        "time_step_limit encoder_layerdrop decoder_layerdrop initializer_factor"
    ),
    "tokens": "bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id",
    "how the file came about": (
        "architectures _name_or_path transformers_version auto_map use_cache cache_implementation pretraining_tp "
        "ep_size attn_implementation _attn_implementation gradient_checkpointing num_nextn_predict_layers "
        "residual_in_fp32 fused_add_norm use_mambapy task_specific_params id2label label2id num_labels problem_type "
        "encoder_stride"
    ),
}
"""Keys that change no time, by what they are; of families that do not read them."""

SHAPING = {key: feature for feature, keys in FEATURES.items() for key in keys.split()}
CONSTANTS = {key: what for what, keys in INERT.items() for key in keys.split()}
OFF: tuple[Any, ...] = (None, False, 0, "", [], {})
BESIDE = {NormPlacement.PARALLEL: 1, NormPlacement.PARALLEL_PAIR: 2}
"""Norms before halves of a layer that run side by side."""
ON_BY_DEFAULT = ("bias", "do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine", "is_causal")
"""Flags whose false is a statement, and not the absence of one."""
ABSENT = (
    "num_attention_heads n_head n_heads num_key_value_heads num_kv_heads n_head_kv rotary_dim v_head_dim qk_head_dim "
    "n_inner ffn_dim ffn_hidden_size type_vocab_size n_positions n_ctx max_position_embeddings num_ln_in_parallel_attn "
    "pooler_output_size"
)
"""Sizes of what a state-space model has not: attention, perceptrons, positions."""
BIASES = "attention_bias qkv_bias mlp_bias enable_bias bias use_bias"
"""Names of biases of projections."""
WHOLE: dict[str, object] = {
    "moe_layer_freq": 1,
    "decoder_sparse_step": 1,
    "sliding_window_pattern": 1,
    "_sliding_window_pattern": 1,
    "num_experts": 1,
    "num_local_experts": 1,
    "position_embedding_type": "absolute",
}
"""Values with which a feature changes nothing, beside those that turn it off."""


def refuse_unread(config: Configuration, model: Architecture) -> None:
    """Raise for a key that nothing read and that asks for another computation, or that ``--set`` gave.

    Parameters
    ----------
    config
        A configuration, or one nested in it, after its family has read it.
    model
        What the family made of it.
    """
    for path in config.document.assigned:
        if path[: len(config.path)] == config.path and len(path) > len(config.path):
            _refuse_assigned(config, path, model)
    for key, value in config.data.items():
        if key not in config.asked:
            _refuse_stated(config, str(key), value, model)


def _refuse_assigned(config: Configuration, path: tuple[Key, ...], model: Architecture) -> None:
    """Whoever sets a key expects that something reads it."""
    key = str(path[len(config.path)])
    if key in config.idle:
        raise config.document.error(f"changes nothing: {config.idle[key]}", path)
    if key in config.asked:
        return
    kind = f"model type {model.model_type}"
    if key in CONSTANTS:
        raise config.document.error(f"changes no time: {CONSTANTS[key]}; a file may have it", path)
    if key in SHAPING:
        raise config.document.error(f"{kind} has no {SHAPING[key]}", path)
    raise config.document.error(f"{kind} reads no such key", path, nearest=nearest_name(key, config.asked))


def _refuse_stated(config: Configuration, key: str, value: Any, model: Architecture) -> None:
    """Refuse a key of the file that says what the model is not."""
    kind = f"model type {model.model_type}"
    said = stated(model)
    if value is None or (any(value == off for off in OFF) and key not in ON_BY_DEFAULT):
        return
    if key in said:
        if not any(value == each for each in said[key]) and not _same_activation(key, value, said[key]):
            takes = " or ".join(str(each).lower() if isinstance(each, bool) else str(each) for each in said[key][:2])
            raise config.error(f"{kind} does not read this key, and has {takes}", key, value=_shown(value))
    elif key in ("partial_rotary_factor", "rotary_pct"):
        if not _same_rotation(model, value):
            raise config.error(f"{kind} turns no such part of each head", key, value=_shown(value))
    elif key in WHOLE and value == WHOLE[key]:
        return
    elif key == "position_embedding_type" and model.positions:
        raise config.error(f"not supported: {key} other than absolute", key, value=_shown(value))
    elif key in SHAPING and not _without(config, key, model):
        raise config.error(f"{kind} has no {SHAPING[key]}", key, value=_shown(value))


def stated(model: Architecture) -> dict[str, tuple[Any, ...]]:
    """Values that keys of other families may have in a file of ``model``, because they say what it is."""
    if not model.attends:
        return _stated_recurrent(model)
    layer = next(each for each in model.layers if not isinstance(each.attention, MIXERS))
    assert isinstance(layer.attention, GroupedAttention | LatentAttention)
    assert layer.feed_forward is not None
    attention, perceptron, layers = layer.attention, layer.feed_forward, len(model.layers)
    hidden, heads = model.hidden, attention.heads
    plain = [each.feed_forward for each in model.layers if isinstance(each.feed_forward, FeedForward)]
    widths = tuple(dict.fromkeys(each.intermediate for each in plain)) or (perceptron.intermediate,)
    positions = tuple(n for n in (model.max_length, model.positions or None, model.trained_length) if n is not None)
    said: dict[str, tuple[Any, ...]] = {
        "hidden_size": (hidden,),
        "n_embd": (hidden,),
        "d_model": (hidden,),
        "word_embed_proj_dim": (model.embedding_width,),
        "embedding_size": (model.embedding_width,),
        "num_hidden_layers": (layers,) if model.encoder is None else (layers, len(model.encoder.layers)),
        "n_layer": (layers,),
        "n_layers": (layers,),
        "num_layers": (layers,),
        "num_attention_heads": (heads,),
        "n_head": (heads,),
        "n_heads": (heads,),
        "num_heads": (heads,),
        "is_encoder_decoder": (model.encoder is not None,),
        "rms_norm": (layer.norm.function is VectorFunction.RMS_NORM,),
        "intermediate_size": widths,
        "n_inner": widths,
        "ffn_dim": widths,
        "d_ff": widths,
        "ffn_hidden_size": widths,
        "hidden_act": (perceptron.activation,),
        "hidden_activation": (perceptron.activation,),
        "activation_function": (perceptron.activation,),
        "activation": (perceptron.activation,),
        "vocab_size": (model.vocabulary,),
        "num_ln_in_parallel_attn": (BESIDE.get(layer.placement, 0),),
        "pooler_output_size": (hidden,),
        "pooler_act": ("tanh",),
        "type_vocab_size": (model.token_types,),
        "is_decoder": (model.causal,),
        "is_causal": (model.causal,),
        **dict.fromkeys(("use_bidirectional_attention", "bidirectional_attention"), (not model.causal,)),
        "do_layer_norm_before": (layer.placement is not NormPlacement.POST,),
        "layer_norm_elementwise_affine": (layer.norm.affine,),
        "tie_word_embeddings": (True, False) if model.pooler or model.classes else (model.tied,),
        "_remove_final_layer_norm": (model.final_norm is None,),
        "n_positions": positions,
        "n_ctx": positions,
        "max_position_embeddings": positions,
    }
    if isinstance(attention, GroupedAttention):
        biases = (attention.output_bias, attention.qkv_bias)
        said |= {
            "num_key_value_heads": (attention.kv_heads,),
            "num_kv_heads": (attention.kv_heads,),
            "n_head_kv": (attention.kv_heads,),
            "head_dim": (attention.head_dim,),
            "d_kv": (attention.head_dim,),
            "rotary_dim": (attention.rotary_dim,),
            "v_head_dim": (attention.head_dim,),
            "attention_bias": biases,
            "qkv_bias": (attention.qkv_bias,),
            "mlp_bias": (getattr(perceptron, "bias", False),),
            "enable_bias": (attention.output_bias,),
            "bias": (attention.output_bias,),
            "use_bias": biases,
            "qk_layernorm": (attention.qk_norm is not None,),
            "use_qk_norm": (attention.qk_norm is not None,),
            "use_sliding_window": (any(each.attention.window is not None for each in model.layers),),
            "layer_types": ([_kind(each) for each in model.layers],),
        }
    else:
        content, rotary = attention.content_dim, attention.rotary_dim
        said |= {
            "num_key_value_heads": (heads,),
            "num_kv_heads": (heads,),
            "n_head_kv": (heads,),
            "rotary_dim": (rotary,),
            "qk_head_dim": (content + rotary,),
            "d_kv": (rotary, content + rotary, attention.v_head_dim),
            "head_dim": (rotary, content + rotary, attention.v_head_dim, hidden // heads),
            "mlp_bias": (False,),
            "bias": (False,),
            "use_bias": (False,),
            "enable_bias": (False,),
            "qk_layernorm": (False,),
            "layer_types": (["full_attention"] * layers,),
        }
    if isinstance(perceptron, MixtureOfExperts):
        said |= dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), (perceptron.experts,))
        said["moe_intermediate_size"] = (perceptron.intermediate,)
    return said


def _kind(layer: Layer) -> str:
    """What a file calls a layer's attention."""
    if isinstance(layer.attention, MIXERS):
        return "linear_attention" if isinstance(layer.attention, DeltaNet) else "mamba"
    if getattr(layer.attention, "chunk", None) is not None:
        return "chunked_attention"
    return "full_attention" if layer.attention.window is None else "sliding_attention"


def _stated_recurrent(model: Architecture) -> dict[str, tuple[Any, ...]]:
    """The same of a state-space model; files have their sizes under other names, too."""
    mixer, layers = model.layers[0].attention, len(model.layers)
    assert isinstance(mixer, MIXERS)
    own: dict[str, tuple[Any, ...]] = {"rms_norm": (True,), "head_dim": (0,), "num_heads": (0,)}
    if isinstance(mixer, ChunkedStateSpace):
        own = {"time_step_rank": (-(-model.hidden // 16), "auto")}  # files have it, and nothing uses it
    return own | {
        **dict.fromkeys(ABSENT.split(), (0,)),
        **dict.fromkeys(BIASES.split(), (mixer.bias,)),
        **dict.fromkeys(("d_model", "n_embd", "word_embed_proj_dim", "embedding_size"), (model.hidden,)),
        **dict.fromkeys(("n_layer", "n_layers", "num_layers"), (layers,)),
        **dict.fromkeys(("d_ff", "d_kv"), (0,)),
        "is_encoder_decoder": (False,),
        **dict.fromkeys(("d_inner", "intermediate_size"), (mixer.inner,)),
        **dict.fromkeys(
            ("hidden_act", "hidden_activation", "activation_function", "activation"), (VectorFunction.SILU,)
        ),
        **dict.fromkeys(("do_layer_norm_before", "layer_norm_elementwise_affine", "is_decoder", "is_causal"), (True,)),
        **dict.fromkeys(("_remove_final_layer_norm", "qk_layernorm", "use_qk_norm"), (False,)),
        "d_state": (mixer.state,),
        "d_conv": (mixer.taps,),
        "vocab_size": (model.vocabulary,),
        "layer_types": ([],),
        "tie_word_embeddings": (model.tied,),
    }


def _without(config: Configuration, key: str, model: Architecture) -> bool:
    """Whether a key means nothing beside another one that turns its feature off."""
    if SHAPING[key] == "window" and key != "use_sliding_window":
        return config.data.get("use_sliding_window") is False or key == "max_window_layers"
    if key in ("rope_scaling", "rope_parameters"):
        return (
            model.positions == 0
            and not model.recurrent
            and not getattr(model.layers[0].attention, "position_buckets", 0)
            and not getattr(model.layers[0].attention, "alibi", False)
        )
    return key == "attn_logit_softcapping" and model.softcap


def _same_activation(key: str, value: Any, known: tuple[Any, ...]) -> bool:
    return "act" in key and isinstance(value, str) and ACTIVATIONS.get(value) in known


def _same_rotation(model: Architecture, value: Any) -> bool:
    attention = model.layers[0].attention
    if not isinstance(attention, GroupedAttention) or not isinstance(value, int | float):
        return bool(value == 1)
    return 0 < value <= 1 and int(attention.head_dim * value) == attention.rotary_dim


def _shown(value: Any) -> object:
    """A value as an error shows it: not the content of lists and mappings."""
    return None if isinstance(value, list | dict) else value
