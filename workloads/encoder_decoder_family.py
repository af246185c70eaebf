"""Models of an encoder and a decoder that attends to it: T5 and Whisper.

Defaults of missing keys are those of the configuration classes in Hugging Face transformers; the sizes of the model
(width, layers, heads) must be there.
"""

from __future__ import annotations

from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import (
    GATED,
    LAYER_NORM,
    RMS_NORM,
    Architecture,
    Encoder,
    FeedForward,
    Frames,
    GroupedAttention,
    Layer,
)
from siliconloom.workloads.configuration import ACTIVATIONS, MAX_LAYERS, Configuration
from siliconloom.workloads.llama_family import MAX_POSITIONS, head_width

MAX_BUCKETS = 2**16
MAX_BANDS = 2**12
PERCEPTRONS = {
    **{f"gated-{name}": (function, True) for name, function in ACTIVATIONS.items() if function in GATED},
    **{name: (function, False) for name, function in ACTIVATIONS.items()},
}
"""Activation and whether there is a gate, by the value of ``feed_forward_proj``."""

ENDS = {"T5ForConditionalGeneration": "both", "T5WithLMHeadModel": "both", "T5EncoderModel": "encoder"}
"""What of T5 there is, by the name under ``architectures``."""


def t5(config: Configuration) -> Architecture:
    """T5, T5 v1.1 and Flan-T5 (Raffel et al., arXiv:1910.10683).

    RMS norms before each part of a layer, no biases of products, and a bias of every score by distance, from one table
    for all layers of the encoder and one for the decoder's own attention. Heads may be together wider or narrower than
    the model (``d_kv``). Where the head is the table of tokens, what it takes is scaled. As ``T5EncoderModel``, or
    where ``is_encoder_decoder`` is false, it is the encoder by itself (of text, in models that make images).
    """
    alone = _encoder_alone(config)
    hidden = config.required("d_model", "hidden_size")
    layers = config.required("num_layers", "num_hidden_layers", high=MAX_LAYERS)
    heads = config.required("num_heads", "num_attention_heads")
    attention = GroupedAttention(
        heads=heads,
        kv_heads=heads,
        head_dim=config.integer("d_kv", default=64),
        position_buckets=config.integer("relative_attention_num_buckets", default=32, low=2, high=MAX_BUCKETS),
    )
    activation, gated = _perceptron(config)
    layer = Layer(
        attention=attention,
        cross=GroupedAttention(heads=heads, kv_heads=heads, head_dim=attention.head_dim, causal=False),
        feed_forward=FeedForward(intermediate=config.integer("d_ff", default=2048), gated=gated, activation=activation),
        norm=RMS_NORM,
    )
    encoding = Layer(
        attention=GroupedAttention(
            heads=heads,
            kv_heads=heads,
            head_dim=attention.head_dim,
            causal=False,
            position_buckets=attention.position_buckets,
        ),
        feed_forward=layer.feed_forward,
        norm=RMS_NORM,
    )
    tied = config.flag("tie_word_embeddings", True)
    decoders = config.integer("num_decoder_layers", default=layers, low=0 if alone else 1, high=MAX_LAYERS)
    if alone:
        config.idle |= dict.fromkeys(("num_decoder_layers", "tie_word_embeddings"), "there is an encoder alone")
    return Architecture(
        model_type="t5",
        vocabulary=config.integer("vocab_size", default=32128),
        hidden=hidden,
        embedding_width=hidden,
        layers=(encoding,) * layers if alone else (layer,) * decoders,
        encoder=None if alone else Encoder(layers=(encoding,) * layers, norm=RMS_NORM),
        final_norm=RMS_NORM,
        tied=tied,
        head_scale=tied,
        headless=alone,
        dtype=config.dtype(),
        epsilon=1e-6,
        trained_length=config.integer("n_positions", default=512, high=MAX_POSITIONS),
    )


def _encoder_alone(config: Configuration) -> bool:
    """Whether only T5's encoder is there; what else a name under ``architectures`` may ask for is refused."""
    names, key = config.names("architectures"), "is_encoder_decoder"
    unknown = next((name for name in names if name not in ENDS), None)
    if unknown is not None or len(names) > 1:
        raise config.error(f"not supported: must be one of {', '.join(ENDS)}", "architectures", value=unknown)
    alone = [ENDS[name] for name in names] == ["encoder"]
    both = config.flag(key, not alone)
    if names and not alone and not both:
        raise config.error(f"{names[0]} has a decoder", key, value=False)
    return alone or not both


def _perceptron(config: Configuration) -> tuple[VectorFunction, bool]:
    """Activation of a layer's perceptron, and whether there is a gate."""
    key = "feed_forward_proj"
    value = config.data[key] if config.has(key) else "relu"
    if not isinstance(value, str) or value not in PERCEPTRONS:
        raise config.error(f"must be one of {', '.join(PERCEPTRONS)}", key, value=str(value))
    return PERCEPTRONS[value]


def whisper(config: Configuration) -> Architecture:
    """Whisper: two convolutions over a spectrogram, an encoder, a decoder of text (Radford et al., arXiv:2212.04356).

    Norms before each part of a layer; biases of all products but those that make keys. The encoder's positions are as
    many as the convolutions leave of 30 seconds of sound, ``max_source_positions``, whatever is said in them.
    """
    if not config.flag("is_encoder_decoder", True):
        raise config.error("not supported: whisper's encoder by itself", "is_encoder_decoder", value=False)
    hidden = config.required("d_model", "hidden_size")
    layers = config.required("encoder_layers", high=MAX_LAYERS), config.required("decoder_layers", high=MAX_LAYERS)
    frames = Frames(
        bands=config.integer("num_mel_bins", default=80, high=MAX_BANDS),
        positions=config.integer("max_source_positions", default=1500),
    )
    activation = config.activation("activation_function", default="gelu")

    def attention(heads: int, causal: bool) -> GroupedAttention:
        return GroupedAttention(
            heads=heads,
            kv_heads=heads,
            head_dim=head_width(config, hidden, heads),
            qkv_bias=True,
            key_bias=False,
            output_bias=True,
            causal=causal,
        )

    def perceptron(key: str) -> FeedForward:
        width = config.integer(key, default=1536)
        return FeedForward(intermediate=width, gated=False, bias=True, activation=activation)

    listening, writing = config.required("encoder_attention_heads"), config.required("decoder_attention_heads")
    encoding = Layer(
        attention=attention(listening, causal=False), feed_forward=perceptron("encoder_ffn_dim"), norm=LAYER_NORM
    )
    layer = Layer(
        attention=attention(writing, causal=True),
        cross=attention(writing, causal=False),
        feed_forward=perceptron("decoder_ffn_dim"),
        norm=LAYER_NORM,
    )
    positions = config.integer("max_target_positions", default=448)
    return Architecture(
        model_type="whisper",
        vocabulary=config.integer("vocab_size", default=51865),
        hidden=hidden,
        embedding_width=hidden,
        layers=(layer,) * layers[1],
        encoder=Encoder(layers=(encoding,) * layers[0], norm=LAYER_NORM, frames=frames),
        embedding_scale=config.flag("scale_embedding", False),
        positions=positions,
        max_length=positions,
        final_norm=LAYER_NORM,
        tied=config.flag("tie_word_embeddings", True),
        dtype=config.dtype(),
    )
