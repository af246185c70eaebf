"""Decoders with RMS norms, RoPE and gated perceptrons: Llama, Mistral, Mixtral, Qwen2, Qwen3, Phi-3, Gemma.

Defaults of missing keys are those of each family's configuration class in Hugging Face transformers. The three sizes
that no default fits (``hidden_size``, ``num_hidden_layers``, ``num_attention_heads``) must be there.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.workloads.architecture import (
    RMS_NORM,
    Architecture,
    FeedForward,
    GroupedAttention,
    Layer,
    MixtureOfExperts,
    NormPlacement,
)
from siliconloom.workloads.configuration import MAX_LAYERS, Configuration

MAX_POSITIONS = 2**40
NO_WINDOW = "use_sliding_window is false"
PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern")


class _Defaults(Struct, frozen=True, kw_only=True):
    """What a family takes for missing keys; ``kv_heads=None`` is as many as heads."""

    vocabulary: int
    intermediate: int
    kv_heads: int | None = None
    head_dim: int | None = None
    tied: bool = False
    activation: str = "silu"


def llama(config: Configuration) -> Architecture:
    """Llama 1 to 3."""
    return _decoder(
        config,
        "llama",
        _Defaults(vocabulary=32000, intermediate=11008),
        attention_bias=config.flag("attention_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
    )


def mistral(config: Configuration) -> Architecture:
    """Mistral 7B and its successors."""
    window = _window(config, default=4096)
    return _decoder(config, "mistral", _Defaults(vocabulary=32000, intermediate=14336, kv_heads=8), window=window)


def mixtral(config: Configuration) -> Architecture:
    """Mixtral: Mistral with a mixture of experts in every layer."""
    defaults = _Defaults(vocabulary=32000, intermediate=14336, kv_heads=8)
    model = _decoder(config, "mixtral", defaults, window=_window(config, default=None))
    plain = model.layers[0].feed_forward
    assert isinstance(plain, FeedForward)
    experts = config.integer("num_local_experts", "num_experts", default=8, high=2**16)
    mixture = MixtureOfExperts(
        experts=experts,
        top_k=top_k(config, experts, default=2),
        intermediate=plain.intermediate,
        activation=plain.activation,
    )
    return replace(model, layers=tuple(replace(layer, feed_forward=mixture) for layer in model.layers))


def qwen2(config: Configuration) -> Architecture:
    """Qwen 1.5, 2 and 2.5."""
    defaults = _Defaults(vocabulary=151936, intermediate=22016, kv_heads=32)
    return _qwen_windows(config, _decoder(config, "qwen2", defaults, qkv_bias=True))


def qwen3(config: Configuration) -> Architecture:
    """Qwen 3: norms on each head's queries and keys."""
    defaults = _Defaults(vocabulary=151936, intermediate=22016, kv_heads=32, head_dim=128)
    bias = config.flag("attention_bias", False)
    return _qwen_windows(config, _decoder(config, "qwen3", defaults, attention_bias=bias, qk_norm=RMS_NORM))


def qwen3_moe(config: Configuration) -> Architecture:
    """Qwen 3 with a mixture of experts in every layer, or in those that ``decoder_sparse_step`` chooses."""
    defaults = _Defaults(vocabulary=151936, intermediate=6144, kv_heads=4)
    bias = config.flag("attention_bias", False)
    model = _decoder(config, "qwen3_moe", defaults, attention_bias=bias, qk_norm=RMS_NORM)
    plain = model.layers[0].feed_forward
    assert isinstance(plain, FeedForward)
    experts = config.integer("num_experts", "num_local_experts", default=128, high=2**16)
    mixture = MixtureOfExperts(
        experts=experts,
        top_k=top_k(config, experts, default=8),
        intermediate=config.integer("moe_intermediate_size", default=768),
        activation=plain.activation,
    )
    step, dense = config.integer("decoder_sparse_step", default=1), config.integers("mlp_only_layers")
    layers = tuple(
        replace(layer, feed_forward=mixture) if index not in dense and (index + 1) % step == 0 else layer
        for index, layer in enumerate(model.layers)
    )
    idle_widths(config, layers)
    use, window = config.flag("use_sliding_window", False), _window(config, default=4096)
    if not use:
        config.idle["sliding_window"], window = NO_WINDOW, None
    return replace(model, layers=_windowed(layers, [window] * len(layers)))


def phi3(config: Configuration) -> Architecture:
    """Phi-3 and Phi-4."""
    rotary = rotary_fraction(config, default=1.0)
    defaults = _Defaults(vocabulary=32064, intermediate=8192)
    return _decoder(config, "phi3", defaults, window=_window(config, default=None), rotary_fraction=rotary)


def gemma(config: Configuration) -> Architecture:
    """Gemma 1."""
    defaults = _Defaults(
        vocabulary=256000, intermediate=24576, kv_heads=16, head_dim=256, tied=True, activation="gelu_pytorch_tanh"
    )
    bias = config.flag("attention_bias", False)
    return replace(_decoder(config, "gemma", defaults, attention_bias=bias), embedding_scale=True)


def gemma2(config: Configuration) -> Architecture:
    """Gemma 2: four norms a layer, a window in every other layer, squashed logits.

    The tanh on attention scores is inside the fused `Attention` and not counted.
    """
    defaults = _Defaults(
        vocabulary=256000, intermediate=9216, kv_heads=4, head_dim=256, tied=True, activation="gelu_pytorch_tanh"
    )
    bias = config.flag("attention_bias", False)
    model = _decoder(config, "gemma2", defaults, attention_bias=bias)
    # Missing means 30; only an explicit null turns the squashing of the logits off.
    softcap = config.has("final_logit_softcapping") or not config.given("final_logit_softcapping")
    return replace(model, layers=_local_global(config, model, pattern=2), embedding_scale=True, softcap=softcap)


def gemma3_text(config: Configuration) -> Architecture:
    """Gemma 3: five windowed layers to one that sees all, norms on queries and keys.

    With ``use_bidirectional_attention`` (EmbeddingGemma) a token sees later ones, too, and half of a window's keys lie
    on either side of it.
    """
    defaults = _Defaults(
        vocabulary=262208, intermediate=9216, kv_heads=4, head_dim=256, tied=True, activation="gelu_pytorch_tanh"
    )
    bias = config.flag("attention_bias", False)
    heads = config.integer("num_attention_heads", default=8)
    model = _decoder(config, "gemma3_text", defaults, attention_bias=bias, qk_norm=RMS_NORM, heads=heads)
    pattern = _pattern(config)
    softcap = config.has("final_logit_softcapping")
    model = replace(model, layers=_local_global(config, model, pattern), embedding_scale=True, softcap=softcap)
    return _to_both_sides(model) if config.flag("use_bidirectional_attention", False) else model


def gemma3(config: Configuration) -> Architecture:
    """Text model of a Gemma 3 that reads images too; its vision tower is left out."""
    text = config.section("text_config")
    model = gemma3_text(text)
    text.refuse_misspelt()
    model = replace(model, tied=config.flag("tie_word_embeddings", model.tied))
    return model if model.dtype is not None else replace(model, dtype=config.dtype())


def _pattern(config: Configuration) -> int:
    """Of how many layers one sees all; two keys say so, which are alike where ``layer_types`` is not there."""
    said = {name: config.optional(name, high=MAX_LAYERS) for name in PATTERNS}
    first, second = (said[name] for name in PATTERNS)
    if None not in (first, second) and first != second and not config.has("layer_types"):
        raise config.error(f"must be {first}, as {PATTERNS[0]} is", PATTERNS[1], value=second)
    return next((pattern for pattern in (first, second) if pattern is not None), 6)


def _to_both_sides(model: Architecture) -> Architecture:
    """The same without a causal mask, windows in halves: keys that are nearer than half of one, and one more."""
    layers = []
    for layer in model.layers:
        assert isinstance(layer.attention, GroupedAttention)
        window = layer.attention.window
        half = None if window is None else window // 2 + 1
        layers.append(replace(layer, attention=replace(layer.attention, causal=False, window=half)))
    return replace(model, layers=tuple(layers))


def top_k(config: Configuration, experts: int, default: int | None) -> int:
    """Experts per token; it must be there when there is no default."""
    key = "num_experts_per_tok"
    chosen = config.required(key) if default is None else config.integer(key, default=default)
    if chosen > experts:
        raise config.error(f"must be at most the number of experts, {experts}", key, value=chosen)
    return chosen


def rotary_fraction(config: Configuration, default: float) -> float:
    """Part of each head that RoPE turns, at the top or in ``rope_parameters``."""
    if not config.has("partial_rotary_factor") and config.has("rope_parameters"):
        return config.section("rope_parameters").fraction("partial_rotary_factor", default)
    return config.fraction("partial_rotary_factor", default)


def idle_widths(config: Configuration, layers: tuple[Layer, ...], dense: str = "intermediate_size") -> None:
    """Say which widths no layer has: that of ``dense`` layers, or that of experts."""
    kinds = {type(layer.feed_forward) for layer in layers}
    if FeedForward not in kinds:
        config.idle[dense] = "every layer has experts"
    if MixtureOfExperts not in kinds:
        no_experts = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "n_routed_experts")
        config.idle |= dict.fromkeys((*no_experts, "n_shared_experts", "num_local_experts"), "no layer has experts")


def trained_length(config: Configuration) -> int | None:
    """Positions that a model with rotary ones was made for; what scales them (YaRN, linear) adds to them."""
    length = config.optional("max_position_embeddings", high=MAX_POSITIONS)
    for key in ("rope_scaling", "rope_parameters"):
        if config.has(key):
            scaling = config.section(key)
            factor = scaling.factor("factor")
            original = scaling.optional("original_max_position_embeddings", high=MAX_POSITIONS) or length
            if length is None:
                config.idle[key] = "max_position_embeddings is missing"
            elif original is not None:
                length = max(length, int(original * factor))
    return length


def head_width(config: Configuration, hidden: int, heads: int) -> int:
    """Hidden size over heads, which must divide it."""
    if hidden % heads:
        raise config.error(f"hidden size {hidden} is not a multiple of {heads} attention heads")
    return hidden // heads


def rotary_width(config: Configuration, head_dim: int, fraction: float = 1.0) -> int:
    """Columns of each head that RoPE turns, in pairs: ``fraction`` of ``head_dim``, rounded down.

    Raises
    ------
    DescriptionError
        They are an odd number, so that one column has no partner to be turned with.
    """
    width = int(head_dim * fraction)
    if width % 2:
        raise config.error(
            f"rotary embeddings turn pairs of columns, and heads of {head_dim} have an odd {width} to turn"
        )
    return width


def _decoder(
    config: Configuration,
    model_type: str,
    defaults: _Defaults,
    *,
    attention_bias: bool = False,
    qkv_bias: bool = False,
    mlp_bias: bool = False,
    window: int | None = None,
    rotary_fraction: float = 1.0,
    heads: int | None = None,
    **attention: Any,
) -> Architecture:
    """What the families share; ``attention_bias`` is on all four projections, ``qkv_bias`` on three."""
    hidden = config.required("hidden_size")
    count = config.required("num_hidden_layers", high=MAX_LAYERS)
    heads = heads or config.required("num_attention_heads")
    kv_heads = kv_heads_of(config, heads, defaults.kv_heads)
    # An explicit null means hidden size over heads, in every family.
    head_dim = config.optional("head_dim")
    if head_dim is None:
        family = None if config.given("head_dim") else defaults.head_dim
        head_dim = family or head_width(config, hidden, heads)
    grouped = GroupedAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_width(config, head_dim, rotary_fraction),
        qkv_bias=attention_bias or qkv_bias,
        output_bias=attention_bias,
        window=window,
        **attention,
    )
    activation = config.activation("hidden_activation", "hidden_act", default=defaults.activation, gated=True)
    intermediate = config.integer("intermediate_size", default=defaults.intermediate)
    perceptron = FeedForward(intermediate=intermediate, activation=activation, bias=mlp_bias)
    return Architecture(
        model_type=model_type,
        vocabulary=config.integer("vocab_size", default=defaults.vocabulary),
        hidden=hidden,
        embedding_width=hidden,
        layers=(Layer(attention=grouped, feed_forward=perceptron, norm=RMS_NORM),) * count,
        final_norm=RMS_NORM,
        tied=config.flag("tie_word_embeddings", defaults.tied),
        dtype=config.dtype(),
        trained_length=trained_length(config),
    )


def kv_heads_of(config: Configuration, heads: int, default: int | None) -> int:
    """A missing key takes the family's default; null, or no default, means as many as heads."""
    kv_heads = config.optional("num_key_value_heads")
    if kv_heads is None:
        kv_heads = heads if config.given("num_key_value_heads") or default is None else default
    if heads % kv_heads:
        raise config.error(
            f"{heads} attention heads cannot share {kv_heads} key-value heads evenly", "num_key_value_heads"
        )
    return kv_heads


def _window(config: Configuration, default: int | None) -> int | None:
    """Keys that a query sees; an explicit null means all."""
    window = config.optional("sliding_window")
    return window if window is not None or config.given("sliding_window") else default


def _windowed(layers: tuple[Layer, ...], windows: list[int | None]) -> tuple[Layer, ...]:
    changed = []
    for layer, window in zip(layers, windows, strict=True):
        assert isinstance(layer.attention, GroupedAttention)
        changed.append(replace(layer, attention=replace(layer.attention, window=window)))
    return tuple(changed)


def _qwen_windows(config: Configuration, model: Architecture) -> Architecture:
    """``use_sliding_window`` gives the layers from ``max_window_layers`` on a window, or those ``layer_types`` name."""
    use, window = config.flag("use_sliding_window", False), _window(config, default=4096)
    count = len(model.layers)
    first = config.integer("max_window_layers", default=28, low=0, high=MAX_LAYERS)
    types = config.layer_types(count)
    if types is None:
        types = ["sliding_attention" if use and index >= first else "full_attention" for index in range(count)]
    elif config.has("max_window_layers"):
        config.idle["max_window_layers"] = "layer_types says which layers have a window"
    windows = [window if use and kind == "sliding_attention" else None for kind in types]
    if not use:
        config.idle |= dict.fromkeys(("sliding_window", "max_window_layers", "layer_types"), NO_WINDOW)
    elif not any(windows):
        config.idle["sliding_window"] = "no layer has a window"
    return replace(model, layers=_windowed(model.layers, windows))


def _local_global(config: Configuration, model: Architecture, pattern: int) -> tuple[Layer, ...]:
    """Sandwich norms, and a window in all layers but every ``pattern``-th."""
    window, count = _window(config, default=4096), len(model.layers)
    types = config.layer_types(count)
    if types is not None:
        config.idle |= dict.fromkeys(PATTERNS, "layer_types says which layers have a window")
    else:
        types = ["sliding_attention" if (index + 1) % pattern else "full_attention" for index in range(count)]
    if "sliding_attention" not in types:
        config.idle["sliding_window"] = "no layer has a window"
    layers = tuple(replace(layer, placement=NormPlacement.SANDWICH) for layer in model.layers)
    return _windowed(layers, [window if kind == "sliding_attention" else None for kind in types])
