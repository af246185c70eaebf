"""A stack of layers and what makes its input: a decoder, an encoder, or one of the two behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import (
    MIXERS,
    Architecture,
    ChunkedStateSpace,
    DeltaNet,
    Layer,
    MixtureOfExperts,
    Norm,
    NormPlacement,
    Patches,
    StateSpace,
)
from siliconloom.workloads.attention import TokenStep, add_attention, add_cross_attention
from siliconloom.workloads.builder import Builder, Value
from siliconloom.workloads.feed_forward import add_feed_forward
from siliconloom.workloads.roles import Role, Section
from siliconloom.workloads.state_space import add_state_space

LONGEST_PATTERN = 16


def add_layers(
    builder: Builder,
    stack: Sequence[Layer],
    run: TokenStep,
    hidden: int,
    x: Value,
    *made: Value,
    prefix: str = "",
    bias: Value | None = None,
) -> Value:
    """Add the blocks of a stack of layers; ``made`` and ``bias`` are what all of them read beside the one before.

    Parameters
    ----------
    made
        The encoder's result, where the layers attend to it and it is at hand.
    prefix
        Of the blocks' names.
    bias
        Biases of scores by distance, where there are any.
    """
    names: dict[str, int] = {}
    for label, repeat, layers in layer_blocks(stack):
        names[label] = names.get(label, 0) + 1
        own = prefix + (label if names[label] == 1 else f"{label}_{names[label]}")
        builder.block(own, Section.LAYER, repeat)
        for index, layer in enumerate(layers):
            builder.layer(index if len(layers) > 1 else None)
            x = _layer(builder, layer, run, hidden, x, *made, bias=bias)
    return x


def layer_blocks(layers: Sequence[Layer]) -> list[tuple[str, int, list[Layer]]]:
    """Cut layers into runs of a repeating pattern: label, executions, the layers of one execution.

    At each point the pattern that covers most layers is taken, the shorter one when two cover as many. The labels
    are ``layer`` where all layers are alike, else say what differs (``dense_layer``, ``local_layer``), and
    ``layers`` for a pattern of several.
    """
    blocks = []
    start = 0
    while start < len(layers):
        covered, length = 1, 1
        for candidate in range(1, min(LONGEST_PATTERN, (len(layers) - start) // 2 or 1) + 1):
            pattern = layers[start : start + candidate]
            times = 1
            while list(layers[start + times * candidate : start + (times + 1) * candidate]) == list(pattern):
                times += 1
            if times > 1 and times * candidate > covered:
                covered, length = times * candidate, candidate
        pattern = list(layers[start : start + length])
        label = _label(pattern[0], layers) if length == 1 else "layers"
        blocks.append((label, covered // length, pattern))
        start += covered
    return blocks


def _label(layer: Layer, layers: Sequence[Layer]) -> str:
    words = []
    if len({isinstance(other.attention, MIXERS) for other in layers}) > 1:
        words.append("mixer" if isinstance(layer.attention, MIXERS) else "attention")
    if len({_seen(other) for other in layers if not isinstance(other.attention, MIXERS)}) > 1 and words != ["mixer"]:
        words.append("global" if _seen(layer) is None else "local")
    if len({type(other.feed_forward) for other in layers}) > 1:
        words.append("moe" if isinstance(layer.feed_forward, MixtureOfExperts) else "dense")
    return "_".join([*words, "layer"])


def _seen(layer: Layer) -> int | None:
    """Keys that a query sees at most: those of a window, or of a chunk; ``None`` for all."""
    return layer.attention.window or getattr(layer.attention, "chunk", None)


def add_tokens(builder: Builder, model: Architecture, run: TokenStep, tied: str | None) -> Value:
    """Add the rows of the table of tokens, which the operator ``tied`` stores where that is another one."""
    rows, cols, table = run.tokens, model.embedding_width, model.vocabulary * model.embedding_width
    return builder.vector("tokens", Role.TABLE, VectorFunction.GATHER, rows=rows, cols=cols, weights=table, tied=tied)


def add_embedding(builder: Builder, model: Architecture, run: TokenStep) -> Value:
    """Add what makes the first layer's input of tokens, or of an image, to a block that has begun."""
    tokens, width, gather = run.tokens, model.embedding_width, VectorFunction.GATHER
    if model.patches is not None:
        return _image(builder, model, model.patches, run)
    x = add_tokens(builder, model, run, "head" if model.tied and not (model.pooler or model.headless) else None)
    if model.embedding_scale:
        x = builder.vector("scale", Role.EMBEDDING, VectorFunction.MULTIPLY, x, rows=tokens, cols=width)
    if width != model.hidden:
        x = builder.gemm("project", Role.WHOLE, x, m=tokens, n=model.hidden, k=width)
    summands = [x]
    begins: dict[str, Any] = {"first": model.first_position, "padding": model.padding}
    for name, rows, more in (("positions", model.positions, begins), ("token_types", model.token_types, {})):
        if rows:
            shape = {"rows": tokens, "cols": model.hidden, "weights": rows * model.hidden}
            summands.append(builder.vector(name, Role.EMBEDDING, gather, **shape, **more))
    if len(summands) > 1:
        add = VectorFunction.ADD
        x = builder.vector("add", Role.EMBEDDING, add, *summands, rows=tokens, cols=model.hidden)
    if model.embedding_norm is not None:
        x = add_norm(builder, "norm", Role.EMBEDDING, model.embedding_norm, x, tokens, model.hidden)
    return x


def _image(builder: Builder, model: Architecture, patches: Patches, run: TokenStep) -> Value:
    """Positions plus the class token, which is the same in every sequence, and a product of each patch behind it."""
    hidden, gather, role = model.hidden, VectorFunction.GATHER, Role.EMBEDDING
    rows, values = run.batch * patches.count, patches.values
    embedded = builder.gemm("patches", Role.WHOLE, m=rows, n=hidden, k=values, bias=True)
    first = builder.vector("class_token", role, gather, rows=run.batch, cols=hidden, weights=hidden)
    table = model.positions * hidden
    places = builder.vector("positions", role, gather, rows=run.tokens, cols=hidden, weights=table)
    shape = {"rows": run.tokens, "cols": hidden, "inputs": 2}
    return builder.vector("add", role, VectorFunction.ADD, first, embedded, places, **shape)


def _layer(
    builder: Builder, layer: Layer, run: TokenStep, hidden: int, x: Value, *made: Value, bias: Value | None = None
) -> Value:
    if layer.feed_forward is None:
        assert isinstance(layer.attention, MIXERS)
        return _state_space(builder, layer, layer.attention, run, hidden, x)
    tokens, norm, placement = run.tokens, layer.norm, layer.placement
    joint = placement in (NormPlacement.PARALLEL, NormPlacement.PARALLEL_PAIR)
    norms, sums = (Role.JOINT_NORM, Role.JOINT_RESIDUAL) if joint else (Role.NORM, Role.RESIDUAL)

    def normed(name: str, value: Value) -> Value:
        return add_norm(builder, name, norms, norm, value, tokens, hidden)

    def add(name: str, *values: Value) -> Value:
        return builder.vector(name, sums, VectorFunction.ADD, *values, rows=tokens, cols=hidden)

    if joint:
        assert not isinstance(layer.attention, MIXERS)
        pair = placement is NormPlacement.PARALLEL_PAIR
        inner = normed("attention_norm" if pair else "norm", x)
        attended = add_attention(builder, layer.attention, run, hidden, inner, bias)
        inner = normed("feed_forward_norm", x) if pair else inner
        computed = add_feed_forward(builder, layer.feed_forward, tokens, hidden, inner)
        return add("add", attended, computed, x)
    after = placement is NormPlacement.POST
    if isinstance(layer.attention, MIXERS):
        mixed = add_state_space(builder, layer.attention, run, hidden, normed("mixer_norm", x))
        x = add("mixer_add", mixed, x)
        computed = add_feed_forward(builder, layer.feed_forward, tokens, hidden, normed("feed_forward_norm", x))
        return add("feed_forward_add", computed, x)
    inner = x if after else normed("attention_norm", x)
    attended = add_attention(builder, layer.attention, run, hidden, inner, bias)
    if placement is NormPlacement.SANDWICH:
        attended = normed("attention_post_norm", attended)
    x = add("attention_add", attended, x)
    if after:
        x = normed("attention_norm", x)
    if layer.cross is not None:
        attended = add_cross_attention(builder, layer.cross, run, hidden, normed("cross_norm", x), *made)
        x = add("cross_add", attended, x)
    computed = add_feed_forward(
        builder, layer.feed_forward, tokens, hidden, x if after else normed("feed_forward_norm", x)
    )
    if placement is NormPlacement.SANDWICH:
        computed = normed("feed_forward_post_norm", computed)
    x = add("feed_forward_add", computed, x)
    return normed("feed_forward_norm", x) if after else x


def _state_space(
    builder: Builder,
    layer: Layer,
    mixer: StateSpace | ChunkedStateSpace | DeltaNet,
    run: TokenStep,
    hidden: int,
    x: Value,
) -> Value:
    """Norm, mixer and residual sum."""
    normed = add_norm(builder, "norm", Role.NORM, layer.norm, x, run.tokens, hidden)
    mixed = add_state_space(builder, mixer, run, hidden, normed)
    return builder.vector("add", Role.RESIDUAL, VectorFunction.ADD, mixed, x, rows=run.tokens, cols=hidden)


def add_norm(builder: Builder, name: str, role: Role, norm: Norm, x: Value, tokens: int, hidden: int) -> Value:
    """Add a norm of rows as wide as the model."""
    return builder.vector(name, role, norm.function, x, rows=tokens, cols=hidden, weights=norm.weights(hidden))
