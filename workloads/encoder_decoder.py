"""An encoder and the decoder that attends to its result: what each phase runs of them, and how long sequences are.

Prefill runs the encoder over the whole input, makes of what comes out the keys and values of every decoder layer's
cross-attention, and runs the decoder over its first tokens. Decode runs the decoder alone, a token at a time: it reads
those keys and values as they are, and appends none to them.
"""

from __future__ import annotations

from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import Architecture, Encoder, Frames
from siliconloom.workloads.attention import TokenStep, position_bias_of
from siliconloom.workloads.builder import Builder, Value
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.graph import Phase
from siliconloom.workloads.operators import Operator
from siliconloom.workloads.roles import Role, Section
from siliconloom.workloads.stack import add_embedding, add_layers, add_norm, add_tokens

TABLE = "decoder_embedding.tokens"
"""Stores the table of tokens that encoder and decoder read, where the head is another one."""


def add_encoder_decoder(builder: Builder, model: Architecture, encoder: Encoder, run: TokenStep) -> Value:
    """Add everything before the head; in decode nothing of the encoder.

    Parameters
    ----------
    run
        Of the decoder's tokens; ``run.source`` are the positions of each of the encoder's sequences.
    """
    made: tuple[Value, ...] = ()
    if run.phase is not Phase.DECODE:
        made = (_add_encoder(builder, model, encoder, run),)
    builder.block("decoder_embedding", Section.EMBEDDING)
    x = add_embedding(builder, model, run)
    bias = position_bias_of(builder, model.layers, run)
    return add_layers(builder, model.layers, run, model.hidden, x, *made, prefix="decoder_", bias=bias)


def _add_encoder(builder: Builder, model: Architecture, encoder: Encoder, run: TokenStep) -> Value:
    """From tokens, or frames, to the norm of what the last layer makes: a row of the model's width to a position."""
    own = TokenStep(phase=run.phase, batch=run.batch, q_len=run.source, kv_len=run.source)
    builder.block("embedding", Section.EMBEDDING)
    if encoder.frames is None:
        x = add_tokens(builder, model, own, "head" if model.tied else TABLE)
    else:
        x = _add_frames(builder, encoder.frames, model.hidden, own)
    bias = position_bias_of(builder, encoder.layers, own)
    x = add_layers(builder, encoder.layers, own, model.hidden, x, prefix="encoder_", bias=bias)
    builder.block("encoder_norm", Section.EMBEDDING)
    return add_norm(builder, "encoder_norm", Role.NORM, encoder.norm, x, own.tokens, model.hidden)


def _add_frames(builder: Builder, frames: Frames, hidden: int, run: TokenStep) -> Value:
    """Two convolutions as products of what lies under their kernels (im2col), a GELU behind each, and positions.

    The second product reads each value of the first one's result ``kernel / stride`` times.
    """
    role, gelu, gather = Role.EMBEDDING, VectorFunction.GELU, VectorFunction.GATHER
    first, rows = run.batch * frames.count, run.tokens
    x = builder.gemm("conv1", Role.WHOLE, m=first, n=hidden, k=frames.kernel * frames.bands, bias=True)
    x = builder.vector("gelu1", Role.WHOLE, gelu, x, rows=first, cols=hidden)
    under = frames.kernel * hidden
    x = builder.gemm("conv2", Role.WHOLE, x.part(rows * under), m=rows, n=hidden, k=under, bias=True)
    x = builder.vector("gelu2", Role.WHOLE, gelu, x, rows=rows, cols=hidden)
    table = frames.positions * hidden
    places = builder.vector("positions", role, gather, rows=rows, cols=hidden, weights=table)
    return builder.vector("add", role, VectorFunction.ADD, x, places, rows=rows, cols=hidden)


def resting(prefill: Dataflow, decode: Dataflow) -> tuple[Operator, ...]:
    """Operators whose parameters lie in memory in decode though nothing reads them: those that prefill alone runs."""
    return tuple(o for o in prefill.operators() if o.name not in decode and o.parameters)


__all__ = ["TABLE", "add_encoder_decoder", "resting"]
