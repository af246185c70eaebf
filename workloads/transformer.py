"""From an architecture and a way to run it to the forward graph."""

from __future__ import annotations

from collections.abc import Mapping

from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import Architecture
from siliconloom.workloads.attention import TokenStep, position_bias_of
from siliconloom.workloads.builder import Builder, Value
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.encoder_decoder import add_encoder_decoder
from siliconloom.workloads.precision import NOTHING_MORE, Stated, Unpacked
from siliconloom.workloads.roles import Role, Section
from siliconloom.workloads.stack import add_embedding, add_layers, add_norm


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

    In prefill only the last token of each sequence goes through the head. In decode all new ones do: where there are
    several, somebody has guessed them, and the logits of each tell whether the next guess is right. In training all
    do, and a softmax for the loss follows. BERT's pooler, and the classifier of an image, take the first token of each
    sequence.

    With ``sample`` the token of the largest logit, of each row, follows the head.
    """
    builder = Builder(precision, patterns, model.epsilon, packing, unpacked)
    if model.encoder is None:
        builder.block("embedding", Section.EMBEDDING)
        x = add_embedding(builder, model, run)
        bias = position_bias_of(builder, model.layers, run)
        x = add_layers(builder, model.layers, run, model.hidden, x, bias=bias)
    else:
        x = add_encoder_decoder(builder, model, model.encoder, run)
    logits = _head(builder, model, run, x)
    if sample:
        rows, cols = run.headed, model.vocabulary
        builder.vector("sample", Role.SAMPLE, VectorFunction.ARGMAX, logits, rows=rows, cols=cols)
    return builder.dataflow


def _head(builder: Builder, model: Architecture, run: TokenStep, x: Value) -> Value:
    hidden, width = model.hidden, model.embedding_width
    if model.pooler or model.classes:
        return _of_first(builder, model, run, x)
    builder.block("head", Section.HEAD)
    if model.final_norm is not None:
        x = add_norm(builder, "norm", Role.FINAL_NORM, model.final_norm, x, run.tokens, hidden)
    if model.headless:
        return x
    rows = run.headed
    if model.head_scale:
        scale, x = VectorFunction.MULTIPLY, x.part(rows * hidden)
        x = builder.vector("scale", Role.FINAL_NORM, scale, x, rows=rows, cols=hidden, inputs=1)
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
        x = add_norm(builder, "norm", Role.FINAL_NORM, model.final_norm, x, run.tokens, hidden)
    first = x.part(rows * hidden)
    if model.pooler:
        pooled = builder.gemm("pooler", Role.WHOLE, first, m=rows, n=hidden, k=hidden, bias=True)
        return builder.vector("tanh", Role.ACTIVATION, VectorFunction.TANH, pooled, rows=rows, cols=hidden)
    logits = builder.gemm("classifier", Role.HEAD, first, m=rows, n=model.classes, k=hidden, bias=True)
    if not run.cached:
        builder.vector("loss", Role.LOSS, VectorFunction.SOFTMAX, logits, rows=rows, cols=model.classes)
    return logits
