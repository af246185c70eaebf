"""Transformers with layer norms and biases: GPT-2 (and GPT-3), OPT, Phi, BERT and RoBERTa.

Defaults of missing keys are those of each family's configuration class in Hugging Face transformers; the sizes of the
model (width, layers, heads) must be there.
"""

from __future__ import annotations

from siliconloom.arch.errors import NotSupported
from siliconloom.workloads.architecture import (
    LAYER_NORM,
    Architecture,
    FeedForward,
    GroupedAttention,
    Layer,
    Norm,
    NormPlacement,
)
from siliconloom.workloads.configuration import MAX_LAYERS, Configuration
from siliconloom.workloads.llama_family import head_width, rotary_fraction, rotary_width, trained_length

ROBERTA_PADDING = 1
"""Number of the token that fills up a sequence of RoBERTa: its configuration's default, and every released model's."""


def gpt2(config: Configuration) -> Architecture:
    """GPT-2, and GPT-3, whose alternating sparse attention is left out (arXiv:2005.14165, section 2.1)."""
    if config.flag("add_cross_attention", False):
        raise NotSupported("cross attention (add_cross_attention)")
    hidden = config.required("n_embd", "hidden_size")
    layers = config.required("n_layer", "num_hidden_layers", high=MAX_LAYERS)
    heads = config.required("n_head", "num_attention_heads")
    positions = config.integer("n_positions", "max_position_embeddings", default=1024)
    mask = config.integer("n_ctx", default=positions)
    layer = Layer(
        attention=_attention(config, hidden, heads),
        norm=LAYER_NORM,
        feed_forward=FeedForward(
            intermediate=config.integer("n_inner", default=4 * hidden),
            gated=False,
            bias=True,
            activation=config.activation("activation_function", default="gelu_new"),
        ),
    )
    return Architecture(
        model_type="gpt2",
        vocabulary=config.integer("vocab_size", default=50257),
        hidden=hidden,
        embedding_width=hidden,
        layers=(layer,) * layers,
        positions=positions,
        max_length=min(positions, mask),
        final_norm=LAYER_NORM,
        tied=config.flag("tie_word_embeddings", True),
        dtype=config.dtype(),
    )


def opt(config: Configuration) -> Architecture:
    """OPT; its positions begin with the third row of their table, and 350M has its norms after the sums."""
    hidden = config.required("hidden_size")
    layers = config.required("num_hidden_layers", high=MAX_LAYERS)
    heads = config.required("num_attention_heads")
    before, bias = config.flag("do_layer_norm_before", True), config.flag("enable_bias", True)
    norm = Norm(function=LAYER_NORM.function, affine=config.flag("layer_norm_elementwise_affine", True))
    positions = config.integer("max_position_embeddings", default=2048)
    layer = Layer(
        attention=_attention(config, hidden, heads, bias=bias),
        norm=norm,
        placement=NormPlacement.PRE if before else NormPlacement.POST,
        feed_forward=FeedForward(
            intermediate=config.integer("ffn_dim", default=3072),
            gated=False,
            bias=bias,
            activation=config.activation("activation_function", default="relu"),
        ),
    )
    final = before and not config.flag("_remove_final_layer_norm", False)
    return Architecture(
        model_type="opt",
        vocabulary=config.integer("vocab_size", default=50272),
        hidden=hidden,
        embedding_width=config.integer("word_embed_proj_dim", default=hidden),
        layers=(layer,) * layers,
        positions=positions + 2,
        max_length=positions,
        first_position=2,
        final_norm=norm if final else None,
        tied=config.flag("tie_word_embeddings", True),
        dtype=config.dtype(),
    )


def phi(config: Configuration) -> Architecture:
    """Phi-1, 1.5 and 2: attention and perceptron side by side, RoPE on part of each head."""
    hidden = config.required("hidden_size")
    layers = config.required("num_hidden_layers", high=MAX_LAYERS)
    heads = config.required("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.error(
            f"{heads} attention heads cannot share {kv_heads} key-value heads evenly", "num_key_value_heads"
        )
    head_dim = head_width(config, hidden, heads)
    attention = GroupedAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=True,
        output_bias=True,
        rotary_dim=rotary_width(config, head_dim, rotary_fraction(config, default=0.5)),
        qk_norm=LAYER_NORM if config.flag("qk_layernorm", False) else None,
    )
    perceptron = FeedForward(
        intermediate=config.integer("intermediate_size", default=8192),
        gated=False,
        bias=True,
        activation=config.activation("hidden_act", default="gelu_new"),
    )
    layer = Layer(attention=attention, feed_forward=perceptron, norm=LAYER_NORM, placement=NormPlacement.PARALLEL)
    return Architecture(
        model_type="phi",
        vocabulary=config.integer("vocab_size", default=51200),
        hidden=hidden,
        embedding_width=hidden,
        layers=(layer,) * layers,
        final_norm=LAYER_NORM,
        head_bias=True,
        tied=config.flag("tie_word_embeddings", False),
        dtype=config.dtype(),
        trained_length=trained_length(config),
    )


def bert(config: Configuration) -> Architecture:
    """BERT with its pooler and no language-model head: what transformers calls ``BertModel``."""
    return _encoder(config, "bert", vocabulary=30522)


def roberta(config: Configuration) -> Architecture:
    """RoBERTa: BERT whose positions begin with the row behind the padding token's number, which has none itself."""
    if config.data.get("pad_token_id") not in (None, ROBERTA_PADDING):
        raise NotSupported(f"roberta whose padding is another token than {ROBERTA_PADDING} (pad_token_id)")
    return _encoder(config, "roberta", vocabulary=50265, padding=ROBERTA_PADDING)


def _encoder(config: Configuration, model_type: str, vocabulary: int, padding: int | None = None) -> Architecture:
    first = 0 if padding is None else padding + 1
    for key in ("is_decoder", "add_cross_attention"):
        if config.flag(key, False):
            raise NotSupported(f"{model_type} as a decoder ({key})")
    hidden = config.required("hidden_size")
    layers = config.required("num_hidden_layers", high=MAX_LAYERS)
    heads = config.required("num_attention_heads")
    positions = config.integer("max_position_embeddings", default=512, low=first + 1)
    layer = Layer(
        attention=_attention(config, hidden, heads, causal=False),
        norm=LAYER_NORM,
        placement=NormPlacement.POST,
        feed_forward=FeedForward(
            intermediate=config.integer("intermediate_size", default=3072),
            gated=False,
            bias=True,
            activation=config.activation("hidden_act", default="gelu"),
        ),
    )
    return Architecture(
        model_type=model_type,
        vocabulary=config.integer("vocab_size", default=vocabulary),
        hidden=hidden,
        embedding_width=hidden,
        layers=(layer,) * layers,
        positions=positions,
        max_length=positions - first,
        first_position=first,
        padding=padding,
        token_types=config.integer("type_vocab_size", default=2),
        embedding_norm=LAYER_NORM,
        pooler=True,
        dtype=config.dtype(),
    )


def _attention(
    config: Configuration, hidden: int, heads: int, *, bias: bool = True, causal: bool = True
) -> GroupedAttention:
    width = head_width(config, hidden, heads)
    return GroupedAttention(heads=heads, kv_heads=heads, head_dim=width, qkv_bias=bias, output_bias=bias, causal=causal)
