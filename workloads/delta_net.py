"""Operators of gated delta nets (Yang et al., arXiv:2412.06464): states that forget what they have under a key.

Decode updates the state token by token. Prefill goes through a prompt in chunks, as the released kernels do (section
3.3): within a chunk a triangular matrix of keys' products is inverted, which makes of values and keys those that the
chunk adds (the WY form), and states go from chunk to chunk.
"""

from __future__ import annotations

from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import ChunkedStateSpace, DeltaNet, StateSpace
from siliconloom.workloads.attention import TokenStep
from siliconloom.workloads.builder import Builder, Value
from siliconloom.workloads.graph import Phase
from siliconloom.workloads.roles import Role


def add_convolution(
    builder: Builder, spec: StateSpace | ChunkedStateSpace | DeltaNet, run: TokenStep, cols: int, projected: Value
) -> Value:
    """Add the depthwise causal convolution of each column, and SiLU."""
    convolved = builder.recurrence(
        "conv1d",
        VectorFunction.CAUSAL_CONV1D,
        projected.part(run.tokens * cols),
        rows=run.tokens,
        cols=cols,
        sequences=run.batch,
        states=spec.taps,
        state_rows=spec.taps - 1,
        begun=run.phase is Phase.DECODE,
        weights=(spec.taps + spec.convolution_bias) * cols,
    )
    return builder.vector("silu", Role.ACTIVATION, VectorFunction.SILU, convolved, rows=run.tokens, cols=cols)


def add_delta_net(builder: Builder, spec: DeltaNet, run: TokenStep, hidden: int, x: Value) -> Value:
    """Add the mixer of one layer, from the normed residual ``x`` to the output projection.

    Queries and keys are scaled to length one, values' heads have a strength (a sigmoid) and a decay of each token; what
    comes out of a head is normed, and gated as a gated perceptron is.
    """
    tokens, inner, heads, whole = run.tokens, spec.inner, spec.value_heads, Role.WHOLE
    projected = builder.gemm("in_proj", whole, x, m=tokens, n=2 * spec.keys + 2 * inner, k=hidden)
    chosen = builder.gemm("step_proj", whole, x, m=tokens, n=2 * heads, k=hidden)
    active = add_convolution(builder, spec, run, spec.convolved, projected)
    norm, rows = VectorFunction.RMS_NORM, 2 * tokens * spec.key_heads
    both = builder.vector(
        "qk_norm", Role.STATE, norm, active.part(2 * tokens * spec.keys), rows=rows, cols=spec.key_dim
    )
    half = chosen.part(tokens * heads)
    strength = builder.vector("strength", Role.STATE, VectorFunction.SIGMOID, half, rows=tokens, cols=heads)
    softplus = VectorFunction.SOFTPLUS
    steps = builder.recurrence("softplus", softplus, half, rows=tokens, cols=heads, weights=heads)
    values = active.part(tokens * inner)
    mix = _update if run.phase is Phase.DECODE else _chunks
    mixed = mix(builder, spec, run, both, values, strength, steps)
    rows, cols = tokens * heads, spec.value_dim
    out = builder.vector("gate_norm", Role.NORM, norm, mixed, rows=rows, cols=cols, weights=cols)
    gate, silu = projected.part(tokens * inner), VectorFunction.GATED_SILU
    out = builder.vector("gate", Role.ACTIVATION, silu, gate, out, rows=tokens, cols=inner)
    return builder.gemm("out_proj", whole, out, m=tokens, n=hidden, k=inner)


def _update(
    builder: Builder, spec: DeltaNet, run: TokenStep, both: Value, values: Value, strength: Value, steps: Value
) -> Value:
    """One token: every state decays, forgets, takes the token up, and is read."""
    return builder.recurrence(
        "delta_update",
        VectorFunction.DELTA_UPDATE,
        values,
        both,
        strength,
        steps,
        rows=run.tokens,
        cols=spec.inner,
        inputs=1,
        sequences=run.batch,
        states=spec.key_dim,
        state_rows=spec.key_dim,
        begun=True,
        beside=2 * spec.keys + 2 * spec.value_heads,
        weights=spec.value_heads,
    )


def _chunks(
    builder: Builder, spec: DeltaNet, run: TokenStep, both: Value, values: Value, strength: Value, steps: Value
) -> Value:
    """Products within chunks, states from chunk to chunk; a chunk that is not full is filled up with zeros.

    Heads of values that share keys share products of these alone. The inverse of a chunk's triangular matrix counts as
    one product of whole squares. What a chunk takes from the state before it (``carried``) waits for the chunk before
    in truth; here all chunks' products are one operator each, and follow one another without such waits.
    """
    heads, groups, width, deep = spec.value_heads, spec.key_heads, spec.value_dim, spec.key_dim
    size = min(spec.chunk, run.q_len)
    chunks = run.batch * -(-run.q_len // size)
    rows, inner, keyed, every = chunks * size, spec.inner, heads * deep, chunks * heads
    make, product, role = builder.recurrence, builder.gemm, Role.STATE
    apart, options = chunks * groups, {"weight": False}
    half = both.part(run.tokens * spec.keys)
    sums = make(
        "chunk_cumsum", VectorFunction.CHUNK_CUMSUM, steps, rows=rows, cols=heads, sequences=chunks, weights=heads
    )
    square = {"rows": every * size, "cols": size, "beside": 3, "inputs": 1}
    found = product("key_products", role, half, half, m=size, n=size, k=deep, batch=apart, **options)
    found = make("key_decay", VectorFunction.CHUNK_DECAY, found, sums, strength, **square)
    inverse = product("inverse", role, found, found, m=size, n=size, k=size, batch=every, **options)
    scaled, beside = VectorFunction.CHUNK_INPUTS, {"rows": rows, "beside": 2 * heads, "inputs": 1}
    strong = make("value_inputs", scaled, values, strength, cols=inner, **beside)
    asked = make("key_inputs", scaled, half, strength, sums, cols=keyed, **beside)
    added = product("added_values", role, inverse, strong, m=size, n=width, k=size, batch=every, **options)
    under = product("added_keys", role, inverse, asked, m=size, n=deep, k=size, batch=every, **options)
    carried = product("carried", role, under, m=size, n=width, k=deep, batch=every, **options)
    new = builder.vector("new_values", role, VectorFunction.ADD, added, carried, rows=rows, cols=inner)
    ended = make("end_keys", scaled, half, sums, cols=keyed, **beside)
    ends = product("chunk_states", role, ended, new, m=deep, n=width, k=size, batch=every, **options)
    passed = make(
        "state_passing",
        VectorFunction.STATE_PASSING,
        ends,
        sums,
        rows=chunks,
        cols=deep * inner,
        inputs=1,
        sequences=run.batch,
        state_rows=1,
        beside=heads,
    )
    scores = product("scores", role, half, half, m=size, n=size, k=deep, batch=apart, **options)
    masked = make("score_decay", VectorFunction.CHUNK_DECAY, scores, sums, **square)
    within = product("within", role, masked, new, m=size, n=width, k=size, batch=every, **options)
    before = product("between", role, half, passed, m=size, n=inner // groups, k=deep, batch=apart, **options)
    outputs, shape = VectorFunction.CHUNK_OUTPUTS, {"rows": rows, "cols": inner, "inputs": 2, "beside": heads}
    out = make("chunk_outputs", outputs, within, before, sums, **shape)
    return out.part(run.tokens * inner)


__all__ = ["add_convolution", "add_delta_net"]
