"""Decoders with layer norms and two-layer perceptrons: GPT-J, GPT-NeoX, Pythia, Falcon, BLOOM.

They have RoPE, or ALiBi (BLOOM, some Falcons); perceptrons stand mostly beside attention.

Defaults of missing keys are those of each family's configuration class in Hugging Face transformers; the sizes of the
model (width, layers, heads) must be there.
"""

from __future__ import annotations

from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import (
    LAYER_NORM,
    Architecture,
    FeedForward,
    GroupedAttention,
    Layer,
    NormPlacement,
)
from siliconloom.workloads.configuration import MAX_LAYERS, Configuration
from siliconloom.workloads.llama_family import MAX_POSITIONS, head_width, rotary_fraction, rotary_width, trained_length

GELU = VectorFunction.GELU


def gpt_neox(config: Configuration) -> Architecture:
    """GPT-NeoX and Pythia: two norms of a layer's input, attention and perceptron side by side (arXiv:2204.06745)."""
    hidden, layers, heads = _sizes(config)
    head_dim, bias = head_width(config, hidden, heads), config.flag("attention_bias", True)
    key = "rotary_pct"
    part = config.fraction(key, 0.25) if config.has(key) else rotary_fraction(config, default=0.25)
    beside = config.flag("use_parallel_residual", True)
    layer = Layer(
        attention=GroupedAttention(
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            rotary_dim=rotary_width(config, head_dim, part),
            qkv_bias=bias,
            output_bias=bias,
        ),
        feed_forward=FeedForward(
            intermediate=config.integer("intermediate_size", default=24576),
            gated=False,
            bias=True,
            activation=config.activation("hidden_act", default="gelu"),
        ),
        norm=LAYER_NORM,
        placement=NormPlacement.PARALLEL_PAIR if beside else NormPlacement.PRE,
    )
    return Architecture(
        model_type="gpt_neox",
        vocabulary=config.integer("vocab_size", default=50432),
        hidden=hidden,
        embedding_width=hidden,
        layers=(layer,) * layers,
        final_norm=LAYER_NORM,
        tied=config.flag("tie_word_embeddings", False),
        dtype=config.dtype(),
        trained_length=trained_length(config),
    )


def gptj(config: Configuration) -> Architecture:
    """GPT-J: one norm, attention without biases beside a perceptron with them, a head with a bias."""
    hidden = config.required("n_embd", "hidden_size")
    layers = config.required("n_layer", "num_hidden_layers", high=MAX_LAYERS)
    heads = config.required("n_head", "num_attention_heads")
    head_dim = head_width(config, hidden, heads)
    for key in ("rope_scaling", "rope_parameters"):
        if config.has(key):
            raise config.error(f"not supported: gptj whose rotary positions are scaled ({key})", key)
    turned = config.optional("rotary_dim")
    if turned is None:  # an explicit null turns whole heads
        turned = head_dim if config.given("rotary_dim") else 64
    if turned > head_dim or turned % 2:
        if config.has("rotary_dim"):
            rule = f"must be an even number of columns, up to the {head_dim} of a head"
            raise config.error(rule, "rotary_dim", value=turned)
        absent = f"must have the key 'rotary_dim': heads have {head_dim} columns, and 64 are turned without it"
        raise config.error(absent)
    layer = Layer(
        attention=GroupedAttention(heads=heads, kv_heads=heads, head_dim=head_dim, rotary_dim=turned),
        feed_forward=FeedForward(
            intermediate=config.integer("n_inner", default=4 * hidden),
            gated=False,
            bias=True,
            activation=config.activation("activation_function", default="gelu_new"),
        ),
        norm=LAYER_NORM,
        placement=NormPlacement.PARALLEL,
    )
    return Architecture(
        model_type="gptj",
        vocabulary=config.integer("vocab_size", default=50400),
        hidden=hidden,
        embedding_width=hidden,
        layers=(layer,) * layers,
        final_norm=LAYER_NORM,
        head_bias=True,
        tied=config.flag("tie_word_embeddings", False),
        dtype=config.dtype(),
        trained_length=config.integer("n_positions", "max_position_embeddings", default=2048, high=MAX_POSITIONS),
    )


def falcon(config: Configuration) -> Architecture:
    """Falcon 7B (one key-value head, one norm), 40B and 180B (several, two norms), 11B (several, one norm).

    The head is the table of tokens where nothing else is said, though released files hold it twice.
    """
    if config.flag("apply_residual_connection_post_layernorm", False):
        key = "apply_residual_connection_post_layernorm"
        raise config.error(f"not supported: falcon whose residual stream is normed ({key})", key)
    hidden, layers, heads = _sizes(config, "n_layer", "n_head")
    head_dim, bias = head_width(config, hidden, heads), config.flag("bias", False)
    alibi = config.flag("alibi", False)
    length = trained_length(config)
    if alibi:
        rule = "alibi is true, and positions are biases of scores"
        config.idle |= dict.fromkeys(("rope_scaling", "rope_parameters", "max_position_embeddings"), rule)
    layer = Layer(
        attention=GroupedAttention(
            heads=heads,
            kv_heads=_falcon_heads(config, heads),
            head_dim=head_dim,
            rotary_dim=0 if alibi else rotary_width(config, head_dim),
            alibi=alibi,
            qkv_bias=bias,
            output_bias=bias,
        ),
        feed_forward=FeedForward(
            intermediate=config.integer("ffn_hidden_size", default=4 * hidden),
            gated=False,
            bias=bias,
            activation=config.activation("activation", default="gelu"),
        ),
        norm=LAYER_NORM,
        placement=_falcon_placement(config),
    )
    return Architecture(
        model_type="falcon",
        vocabulary=config.integer("vocab_size", default=65024),
        hidden=hidden,
        embedding_width=hidden,
        layers=(layer,) * layers,
        final_norm=LAYER_NORM,
        tied=config.flag("tie_word_embeddings", True),
        dtype=config.dtype(),
        trained_length=None if alibi else length,
    )


def bloom(config: Configuration) -> Architecture:
    """BLOOM (arXiv:2211.05100, section 3.2): ALiBi for positions, a norm of the embeddings, biases, a tied head.

    The width of the perceptron is four times the model's. ``seq_length`` is what it was trained with, and no limit.
    """
    key = "apply_residual_connection_post_layernorm"
    if config.flag(key, False):
        raise config.error(f"not supported: bloom whose residual stream is normed ({key})", key)
    hidden = config.required("hidden_size", "n_embed")
    layers = config.required("n_layer", "num_hidden_layers", high=MAX_LAYERS)
    heads = config.required("n_head", "num_attention_heads")
    layer = Layer(
        attention=GroupedAttention(
            heads=heads,
            kv_heads=heads,
            head_dim=head_width(config, hidden, heads),
            qkv_bias=True,
            output_bias=True,
            alibi=True,
        ),
        feed_forward=FeedForward(intermediate=4 * hidden, gated=False, bias=True, activation=GELU),
        norm=LAYER_NORM,
    )
    return Architecture(
        model_type="bloom",
        vocabulary=config.integer("vocab_size", default=250880),
        hidden=hidden,
        embedding_width=hidden,
        layers=(layer,) * layers,
        embedding_norm=LAYER_NORM,
        final_norm=LAYER_NORM,
        tied=config.flag("tie_word_embeddings", True),
        dtype=config.dtype(),
    )


def _sizes(config: Configuration, layers: str | None = None, heads: str | None = None) -> tuple[int, int, int]:
    """Width, layers and heads; ``layers`` and ``heads`` are earlier names of their keys."""
    of_layers = ("num_hidden_layers", layers) if layers else ("num_hidden_layers",)
    of_heads = ("num_attention_heads", heads) if heads else ("num_attention_heads",)
    return config.required("hidden_size"), config.required(*of_layers, high=MAX_LAYERS), config.required(*of_heads)


def _falcon_heads(config: Configuration, heads: int) -> int:
    """Key-value heads: as many as stated in the new architecture, else one for all heads or one for each."""
    new = config.flag("new_decoder_architecture", False)
    shared = config.flag("multi_query", True)
    key = next((name for name in ("num_kv_heads", "n_head_kv") if config.has(name)), "num_kv_heads")
    stated = config.integer(key, default=heads)
    if new:
        config.idle["multi_query"] = "new_decoder_architecture is true, and num_kv_heads says it"
        if heads % stated:
            raise config.error(f"{heads} attention heads cannot share {stated} key-value heads evenly", key)
        return stated
    if shared:
        config.idle[key] = "multi_query is true, and all heads share one key-value head"
        return 1
    if stated != heads:
        rule = f"must be {heads}, a key-value head for each head, without new_decoder_architecture and multi_query"
        raise config.error(rule, key, value=stated)
    return heads


def _falcon_placement(config: Configuration) -> NormPlacement:
    """Where norms stand; what the family's own code cannot run is refused."""
    new, beside = config.flag("new_decoder_architecture", False), config.flag("parallel_attn", True)
    key = "num_ln_in_parallel_attn"
    norms = config.integer(key, default=2 if new else 1, high=2)
    if not beside:
        if new:
            raise config.error("must be true, as new_decoder_architecture is", "parallel_attn")
        config.idle[key] = "parallel_attn is false"
        return NormPlacement.PRE
    if norms == 2 and not new:
        raise config.error("must be 1 without new_decoder_architecture", key, value=norms)
    return NormPlacement.PARALLEL_PAIR if norms == 2 else NormPlacement.PARALLEL
