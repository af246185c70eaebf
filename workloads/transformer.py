"""From an architecture and a way to run it to the forward graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import (
    Architecture,
    ChunkedStateSpace,
    Layer,
    MixtureOfExperts,
    Norm,
    NormPlacement,
    Patches,
    StateSpace,
)
from siliconloom.workloads.attention import TokenStep, add_attention
from siliconloom.workloads.builder import Builder, Value
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.feed_forward import add_feed_forward
from siliconloom.workloads.precision import NOTHING_MORE, Stated, Unpacked
from siliconloom.workloads.roles import Role, Section
from siliconloom.workloads.state_space import add_state_space

LONGEST_PATTERN = 16


def forward_graph(
    model: Architecture,
    run: TokenStep,
    precision: DataType,
    patterns: Mapping[str, Stated] | None = None,
    *,
    sample: bool = False,
    packing: Packing | None = None,
    unpacked: Unpacked = NOTHING_MORE,
) -> Dataflow:
    """Operators of one forward pass, in program order.

    In prefill and decode only the last token of each sequence goes through the head; in training all do, and a
    softmax for the loss follows. BERT's pooler, and the classifier of an image, take the first token of each sequence.
    With ``sample`` the token of the largest logit follows the head.
    """
    builder = Builder(precision, patterns, model.epsilon, packing, unpacked)
    x = _embedding(builder, model, run)
    names: dict[str, int] = {}
    for label, repeat, layers in layer_blocks(model.layers):
        names[label] = names.get(label, 0) + 1
        builder.block(label if names[label] == 1 else f"{label}_{names[label]}", Section.LAYER, repeat)
        for index, layer in enumerate(layers):
            builder.layer(index if len(layers) > 1 else None)
            x = _layer(builder, layer, run, model.hidden, x)
    logits = _head(builder, model, run, x)
    if sample:
        rows, cols = run.batch, model.vocabulary
        builder.vector("sample", Role.SAMPLE, VectorFunction.ARGMAX, logits, rows=rows, cols=cols)
    return builder.dataflow


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
    if len({other.attention.window for other in layers}) > 1:
        words.append("global" if layer.attention.window is None else "local")
    if len({type(other.feed_forward) for other in layers}) > 1:
        words.append("moe" if isinstance(layer.feed_forward, MixtureOfExperts) else "dense")
    return "_".join([*words, "layer"])


def _embedding(builder: Builder, model: Architecture, run: TokenStep) -> Value:
    tokens, width, gather = run.tokens, model.embedding_width, VectorFunction.GATHER
    builder.block("embedding", Section.EMBEDDING)
    if model.patches is not None:
        return _image(builder, model, model.patches, run)
    tied = "head" if model.tied and not model.pooler else None
    table = model.vocabulary * width
    x = builder.vector("tokens", Role.TABLE, gather, rows=tokens, cols=width, weights=table, tied=tied)
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
        x = _norm(builder, "norm", Role.EMBEDDING, model.embedding_norm, x, tokens, model.hidden)
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


def _layer(builder: Builder, layer: Layer, run: TokenStep, hidden: int, x: Value) -> Value:
    if isinstance(layer.attention, StateSpace | ChunkedStateSpace):
        return _state_space(builder, layer, layer.attention, run, hidden, x)
    assert layer.feed_forward is not None
    tokens, norm, placement = run.tokens, layer.norm, layer.placement
    joint = placement in (NormPlacement.PARALLEL, NormPlacement.PARALLEL_PAIR)
    norms, sums = (Role.JOINT_NORM, Role.JOINT_RESIDUAL) if joint else (Role.NORM, Role.RESIDUAL)

    def normed(name: str, value: Value) -> Value:
        return _norm(builder, name, norms, norm, value, tokens, hidden)

    def add(name: str, *values: Value) -> Value:
        return builder.vector(name, sums, VectorFunction.ADD, *values, rows=tokens, cols=hidden)

    if joint:
        pair = placement is NormPlacement.PARALLEL_PAIR
        inner = normed("attention_norm" if pair else "norm", x)
        attended = add_attention(builder, layer.attention, run, hidden, inner)
        inner = normed("feed_forward_norm", x) if pair else inner
        computed = add_feed_forward(builder, layer.feed_forward, tokens, hidden, inner)
        return add("add", attended, computed, x)
    after = placement is NormPlacement.POST
    attended = add_attention(builder, layer.attention, run, hidden, x if after else normed("attention_norm", x))
    if placement is NormPlacement.SANDWICH:
        attended = normed("attention_post_norm", attended)
    x = add("attention_add", attended, x)
    if after:
        x = normed("attention_norm", x)
    computed = add_feed_forward(
        builder, layer.feed_forward, tokens, hidden, x if after else normed("feed_forward_norm", x)
    )
    if placement is NormPlacement.SANDWICH:
        computed = normed("feed_forward_post_norm", computed)
    x = add("feed_forward_add", computed, x)
    return normed("feed_forward_norm", x) if after else x


def _state_space(
    builder: Builder, layer: Layer, mixer: StateSpace | ChunkedStateSpace, run: TokenStep, hidden: int, x: Value
) -> Value:
    """Norm, mixer and residual sum."""
    normed = _norm(builder, "norm", Role.NORM, layer.norm, x, run.tokens, hidden)
    mixed = add_state_space(builder, mixer, run, hidden, normed)
    return builder.vector("add", Role.RESIDUAL, VectorFunction.ADD, mixed, x, rows=run.tokens, cols=hidden)


def _head(builder: Builder, model: Architecture, run: TokenStep, x: Value) -> Value:
    hidden, width = model.hidden, model.embedding_width
    if model.pooler or model.classes:
        return _of_first(builder, model, run, x)
    builder.block("head", Section.HEAD)
    if model.final_norm is not None:
        x = _norm(builder, "norm", Role.FINAL_NORM, model.final_norm, x, run.tokens, hidden)
    rows = run.batch if run.cached else run.tokens
    if width != hidden:
        x = builder.gemm("project", Role.WHOLE, x.part(rows * hidden), m=rows, n=width, k=hidden)
    last, bias = x.part(rows * width), model.head_bias
    logits = builder.gemm("head", Role.HEAD, last, m=rows, n=model.vocabulary, k=width, bias=bias)
    if model.softcap:
        tanh = VectorFunction.TANH
        logits = builder.vector("softcap", Role.ACTIVATION, tanh, logits, rows=rows, cols=model.vocabulary)
    if not run.cached:
        builder.vector("loss", Role.LOSS, VectorFunction.SOFTMAX, logits, rows=rows, cols=model.vocabulary)
    return logits


def _of_first(builder: Builder, model: Architecture, run: TokenStep, x: Value) -> Value:
    """BERT's pooler, or a classifier: what takes the first position of each sequence."""
    hidden, rows = model.hidden, run.batch
    builder.block("pooler" if model.pooler else "classifier", Section.POOLER)
    if model.final_norm is not None:
        x = _norm(builder, "norm", Role.FINAL_NORM, model.final_norm, x, run.tokens, hidden)
    first = x.part(rows * hidden)
    if model.pooler:
        pooled = builder.gemm("pooler", Role.WHOLE, first, m=rows, n=hidden, k=hidden, bias=True)
        return builder.vector("tanh", Role.ACTIVATION, VectorFunction.TANH, pooled, rows=rows, cols=hidden)
    logits = builder.gemm("classifier", Role.HEAD, first, m=rows, n=model.classes, k=hidden, bias=True)
    if not run.cached:
        builder.vector("loss", Role.LOSS, VectorFunction.SOFTMAX, logits, rows=rows, cols=model.classes)
    return logits


def _norm(builder: Builder, name: str, role: Role, norm: Norm, x: Value, tokens: int, hidden: int) -> Value:
    return builder.vector(name, role, norm.function, x, rows=tokens, cols=hidden, weights=norm.weights(hidden))
