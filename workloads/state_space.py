"""Operators of layers that keep a state: Mamba's selective scan, Mamba-2's products of chunks, gated delta nets'.

A layer is norm, mixer and residual sum. Its state has the same size whatever came before: ``d_conv - 1`` rows of what
is convolved, and ``state`` values for each inner column. Decode reads and writes both; prefill leaves them.
"""

from __future__ import annotations

from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import ChunkedStateSpace, DeltaNet, StateSpace
from siliconloom.workloads.attention import TokenStep
from siliconloom.workloads.builder import Builder, Value
from siliconloom.workloads.delta_net import add_convolution, add_delta_net
from siliconloom.workloads.graph import Phase
from siliconloom.workloads.roles import Role


def add_state_space(
    builder: Builder, spec: StateSpace | ChunkedStateSpace | DeltaNet, run: TokenStep, hidden: int, x: Value
) -> Value:
    """Add the mixer of one layer, from the normed residual ``x`` to the output projection."""
    if isinstance(spec, StateSpace):
        return _selective(builder, spec, run, hidden, x)
    if isinstance(spec, DeltaNet):
        return add_delta_net(builder, spec, run, hidden, x)
    return _chunked(builder, spec, run, hidden, x)


def _selective(builder: Builder, spec: StateSpace, run: TokenStep, hidden: int, x: Value) -> Value:
    tokens, inner, rank, state = run.tokens, spec.inner, spec.rank, spec.state
    whole, gated = Role.WHOLE, VectorFunction.GATED_SILU
    projected = builder.gemm("in_proj", whole, x, m=tokens, n=2 * inner, k=hidden, bias=spec.bias)
    active = add_convolution(builder, spec, run, inner, projected)
    chosen = builder.gemm("x_proj", whole, active, m=tokens, n=rank + 2 * state, k=inner)
    low, shared = chosen.part(tokens * rank), [chosen.part(2 * tokens * state)]
    if spec.inner_norms:
        norm, rows = VectorFunction.RMS_NORM, {"rows": tokens}
        low = builder.vector("dt_norm", Role.STATE, norm, low, **rows, cols=rank, weights=rank)
        halves = [chosen.part(tokens * state)] * 2
        shared = [
            builder.vector(name, Role.STATE, norm, half, **rows, cols=state, weights=state)
            for name, half in zip(("b_norm", "c_norm"), halves, strict=True)
        ]
    steps = builder.gemm("dt_proj", whole, low, m=tokens, n=inner, k=rank, bias=True)
    softplus = VectorFunction.SOFTPLUS
    steps = builder.vector("softplus", Role.ACTIVATION, softplus, steps, rows=tokens, cols=inner)
    scanned = builder.recurrence(
        "scan",
        VectorFunction.SELECTIVE_SCAN,
        active,
        steps,
        *shared,
        rows=tokens,
        cols=inner,
        inputs=2,
        sequences=run.batch,
        states=state,
        state_rows=state,
        begun=run.phase is Phase.DECODE,
        beside=2 * state,
        weights=(state + 1) * inner,
    )
    gate = projected.part(tokens * inner)
    open_ = builder.vector("gate", Role.ACTIVATION, gated, gate, scanned, rows=tokens, cols=inner)
    return builder.gemm("out_proj", whole, open_, m=tokens, n=hidden, k=inner, bias=spec.bias)


def _chunked(builder: Builder, spec: ChunkedStateSpace, run: TokenStep, hidden: int, x: Value) -> Value:
    tokens, inner, heads, whole = run.tokens, spec.inner, spec.heads, Role.WHOLE
    width = inner + spec.convolved + heads
    projected = builder.gemm("in_proj", whole, x, m=tokens, n=width, k=hidden, bias=spec.bias)
    active = add_convolution(builder, spec, run, spec.convolved, projected)
    steps = builder.recurrence(
        "softplus", VectorFunction.SOFTPLUS, projected.part(tokens * heads), rows=tokens, cols=heads, weights=heads
    )
    mix = _update if run.phase is Phase.DECODE else _chunks
    mixed = mix(builder, spec, run, active, steps)
    gate, silu = projected.part(tokens * inner), VectorFunction.GATED_SILU
    out = builder.vector("gate", Role.ACTIVATION, silu, gate, mixed, rows=tokens, cols=inner)
    if spec.gated_norm:
        norm = VectorFunction.RMS_NORM
        out = builder.vector("gate_norm", Role.NORM, norm, out, rows=tokens, cols=inner, weights=inner)
    return builder.gemm("out_proj", whole, out, m=tokens, n=hidden, k=inner, bias=spec.bias)


def _update(builder: Builder, spec: ChunkedStateSpace, run: TokenStep, active: Value, steps: Value) -> Value:
    """One token: every state decays, takes the token up, and is read."""
    return builder.recurrence(
        "state_update",
        VectorFunction.STATE_UPDATE,
        active,
        steps,
        rows=run.tokens,
        cols=spec.inner,
        inputs=1,
        sequences=run.batch,
        states=spec.state,
        state_rows=spec.state,
        begun=True,
        beside=2 * spec.groups * spec.state + spec.heads,
        weights=2 * spec.heads,
    )


def _chunks(builder: Builder, spec: ChunkedStateSpace, run: TokenStep, active: Value, steps: Value) -> Value:
    """Products within chunks, states from chunk to chunk; a chunk that is not full is filled up with zeros.

    Heads of a group share B and C, so what multiplies these alone is one product of all columns of the group. Decays
    stand in what the heads multiply: in the scores of a chunk, in its inputs, and in its outputs.
    """
    heads, width, state, joint = spec.heads, spec.head_dim, spec.state, spec.inner // spec.groups
    size = min(spec.chunk, run.q_len)
    each = -(-run.q_len // size)
    chunks, inner, groups = run.batch * each, spec.inner, spec.groups
    rows, options = chunks * size, {"weight": False}
    matrix, make = Role.STATE, builder.recurrence
    sums = make(
        "chunk_cumsum", VectorFunction.CHUNK_CUMSUM, steps, rows=rows, cols=heads, sequences=chunks, weights=heads
    )
    values, shared = active.part(run.tokens * inner), active.part(run.tokens * groups * state)
    scores = builder.gemm("scores", matrix, shared, shared, m=size, n=size, k=state, batch=chunks * groups, **options)
    masked = make(
        "chunk_decay",
        VectorFunction.CHUNK_DECAY,
        scores,
        sums,
        rows=chunks * heads * size,
        cols=size,
        beside=3,
        inputs=1,
    )
    within = builder.gemm("within", matrix, masked, values, m=size, n=width, k=size, batch=chunks * heads, **options)
    decayed = make(
        "chunk_inputs",
        VectorFunction.CHUNK_INPUTS,
        values,
        sums,
        steps,
        rows=rows,
        cols=inner,
        beside=2 * heads,
        inputs=1,
    )
    ends = builder.gemm(
        "chunk_states", matrix, shared, decayed, m=state, n=joint, k=size, batch=chunks * groups, **options
    )
    passed = make(
        "state_passing",
        VectorFunction.STATE_PASSING,
        ends,
        sums,
        rows=chunks,
        cols=state * inner,
        inputs=1,
        sequences=run.batch,
        state_rows=1,
        beside=heads,
    )
    before = builder.gemm("between", matrix, shared, passed, m=size, n=joint, k=state, batch=chunks * groups, **options)
    out = make(
        "chunk_outputs",
        VectorFunction.CHUNK_OUTPUTS,
        within,
        before,
        values,
        sums,
        rows=rows,
        cols=inner,
        inputs=3,
        beside=heads,
        weights=heads,
    )
    return out.part(run.tokens * inner)


__all__ = ["add_state_space"]
