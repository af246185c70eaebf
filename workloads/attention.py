"""Operators of attention: the grouped-query family, and multi-head latent attention in both of its forms."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.datatype import CacheFormat, DataType
from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import RMS_NORM, GroupedAttention, LatentAttention, Layer
from siliconloom.workloads.builder import Builder, Value
from siliconloom.workloads.graph import Phase, RequestGroup
from siliconloom.workloads.roles import Role


class TokenStep(Struct, frozen=True, kw_only=True):
    """How a model is run: ``q_len`` new tokens of each of ``batch`` sequences, that see ``kv_len`` tokens.

    The cache has room for ``room`` positions, or for ``kv_len`` where it says nothing. It is kept in ``cache``, or in
    the operands' own format where that says nothing; whole numbers have a scale for each head's key and value.
    ``source`` are the positions of each sequence of the encoder, where the model has one. Sequences of several lengths
    are ``groups``; ``batch`` are all of them then, ``q_len`` and ``kv_len`` the most that a sequence has.
    """

    phase: Phase
    batch: int
    q_len: int
    kv_len: int
    room: int | None = None
    cache: DataType | None = None
    source: int = 0
    groups: tuple[RequestGroup, ...] = ()

    @property
    def parts(self) -> tuple[TokenStep, ...]:
        """The step as steps of sequences that are alike, in the order in which their tokens stand."""
        if not self.groups:
            return (self,)
        return tuple(
            replace(self, batch=each.count, q_len=each.new, kv_len=each.length, groups=()) for each in self.groups
        )

    @property
    def past(self) -> int:
        """Tokens of each sequence that lie in the cache already."""
        return self.kv_len - self.q_len

    @property
    def tokens(self) -> int:
        """Tokens of one execution."""
        return sum(part.batch * part.q_len for part in self.parts)

    @property
    def headed(self) -> int:
        """Tokens that go through the head: the last one of each sequence in prefill, all new ones otherwise."""
        return self.batch if self.phase is Phase.PREFILL else self.tokens

    @property
    def cached(self) -> bool:
        """Whether keys and values are kept: in prefill and decode, not in training."""
        return self.phase is not Phase.TRAINING

    def format(self, head_dim: int) -> CacheFormat | None:
        """That of the cache of heads of such a size."""
        if self.cache is None:
            return None
        return CacheFormat(self.cache, head_dim if self.cache.is_integer else 0)


def add_attention(
    builder: Builder,
    spec: GroupedAttention | LatentAttention,
    run: TokenStep,
    hidden: int,
    x: Value,
    bias: Value | None = None,
) -> Value:
    """Add the attention of one layer, from the normed residual ``x`` to the output projection.

    ``bias`` has the biases of scores by distance, where there are any (`add_position_bias`).
    """
    if isinstance(spec, GroupedAttention):
        return _grouped(builder, spec, run, hidden, x, bias)
    if run.phase is Phase.DECODE:
        return _latent_absorbed(builder, spec, run, hidden, x)
    return _latent_expanded(builder, spec, run, hidden, x)


def add_position_bias(builder: Builder, spec: GroupedAttention, run: TokenStep) -> Value:
    """Add what every layer of a stack takes biases of scores from: one for each distance, and each head.

    Without a table (ALiBi) they are products of distances and slopes, which are no parameters.

    Of ``q_len`` queries and ``kv_len`` keys there are ``kv_len`` distances under a causal mask, as many as there are
    earlier tokens and the own one, and ``q_len + kv_len - 1`` without one. The table has a row to a bucket of distances
    (Raffel et al., arXiv:1910.10683, section 2.1).
    """
    distances = run.kv_len if spec.causal else run.q_len + run.kv_len - 1
    if spec.alibi:
        slopes = {"rows": distances, "cols": spec.heads, "inputs": 1}
        return builder.vector("position_bias", Role.POSITION_BIAS, VectorFunction.MULTIPLY, **slopes)
    table = {"rows": distances, "cols": spec.heads, "weights": spec.position_buckets * spec.heads}
    return builder.vector("position_bias", Role.POSITION_BIAS, VectorFunction.GATHER, **table)


def position_bias_of(builder: Builder, layers: Sequence[Layer], run: TokenStep) -> Value | None:
    """Add the biases of scores of a stack of layers, where its attention has any."""
    first = layers[0].attention
    if not isinstance(first, GroupedAttention) or not (first.position_buckets or first.alibi):
        return None
    return add_position_bias(builder, first, run)


def _score_bias(builder: Builder, spec: GroupedAttention, run: TokenStep, bias: Value, label: str = "") -> Value:
    """The sum of scores and their biases as an operator of its own: no kernel or circuit of attention does it.

    It reads every score and its bias and writes their sum, through memory. That is more than a kernel of attention
    would take that adds biases (it would read those alone), and less than one that keeps its scores in memory takes.
    """
    shape = {"rows": run.tokens * spec.heads, "cols": run.kv_len, "inputs": 2}
    return builder.vector(f"score_bias{label}", Role.SCORE_BIAS, VectorFunction.ADD, bias, **shape)


def add_cross_attention(
    builder: Builder, spec: GroupedAttention, run: TokenStep, hidden: int, x: Value, *made: Value
) -> Value:
    """Add attention of the decoder's tokens to all positions of the encoder, from the normed residual ``x``.

    Keys and values are a product of the encoder's result ``made``, once for all of the decoder's tokens: in prefill
    they are made and put into a cache of their own, and each step of decode, where nothing is ``made``, reads that.
    """
    tokens, source = run.tokens, run.batch * run.source
    q_width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    bias = spec.qkv_bias
    query = builder.gemm("cross_query", Role.COLUMN_PARALLEL, x, m=tokens, n=q_width, k=hidden, bias=bias)
    operands = [query]
    for encoded in made:
        unbiased = 0 if spec.key_bias or not bias else kv_width
        sizes = {"m": source, "n": 2 * kv_width, "k": hidden, "unbiased": unbiased}
        both = builder.gemm("cross_kv", Role.CROSS_KEYS_VALUES, encoded, **sizes, bias=bias)
        shape = {"rows": source, "cols": 2 * kv_width, "inputs": 1}
        append, cached = VectorFunction.KV_APPEND, run.format(spec.head_dim)
        operands.append(builder.vector("cross_append", Role.CROSS_CACHE, append, both, **shape, cached=cached))
    context = builder.attention(
        "cross_attention",
        *operands,
        role=Role.CROSS_ATTENTION,
        batch=run.batch,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        q_len=run.q_len,
        kv_len=run.source,
        head_dim=spec.head_dim,
        v_head_dim=spec.head_dim,
        causal=False,
        cached=None if made else run.format(spec.head_dim),
    )
    sizes = {"m": tokens, "n": hidden, "k": q_width}
    return builder.gemm("cross_output", Role.ROW_PARALLEL, context, **sizes, bias=spec.output_bias)


def _grouped(
    builder: Builder, spec: GroupedAttention, run: TokenStep, hidden: int, x: Value, bias: Value | None
) -> Value:
    tokens = run.tokens
    q_width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    unbiased = 0 if spec.key_bias or not spec.qkv_bias else kv_width
    asked = q_width * (1 + spec.gate)
    sizes = {"m": tokens, "n": asked + 2 * kv_width, "k": hidden, "unbiased": unbiased}
    qkv = builder.gemm("qkv", Role.QKV, x, **sizes, bias=spec.qkv_bias)
    query, key, value = (qkv.part(tokens * width) for width in (q_width, kv_width, kv_width))
    if spec.qk_norm is not None:
        function, weights = spec.qk_norm.function, spec.qk_norm.weights(spec.head_dim)
        rows = tokens * spec.heads
        query = builder.vector(
            "q_norm", Role.QUERY_NORM, function, query, rows=rows, cols=spec.head_dim, weights=weights
        )
        rows = tokens * spec.kv_heads
        key = builder.vector("k_norm", Role.KEY_NORM, function, key, rows=rows, cols=spec.head_dim, weights=weights)
    if spec.rotary_dim:
        turned = [operand.part(operand.elements * spec.rotary_dim // spec.head_dim) for operand in (query, key)]
        cols = (spec.heads + spec.kv_heads) * spec.rotary_dim
        rope = builder.vector("rope", Role.ROPE, VectorFunction.ROPE, *turned, rows=tokens, cols=cols, inputs=1)
        queries = _partly(rope, query, spec.rotary_dim, spec.head_dim)
        keys = _partly(rope, key, spec.rotary_dim, spec.head_dim)
    else:
        queries, keys = [query], [key]
    if spec.query_scale:
        scale, shape = VectorFunction.MULTIPLY, {"rows": tokens * spec.heads, "cols": spec.head_dim, "inputs": 1}
        queries = [builder.vector("query_scale", Role.QUERY_NORM, scale, *queries, **shape)]
    made = _Made(queries, [*keys, value], bias)
    contexts = [_attend(builder, spec, run, piece, made) for piece in _pieces(spec, run)]
    if spec.gate:
        gate, opens = qkv.part(tokens * q_width), VectorFunction.GATED_SIGMOID
        shape = {"rows": tokens, "cols": q_width, "inputs": 2}
        contexts = [builder.vector("output_gate", Role.ACTIVATION, opens, gate, *contexts, **shape)]
    return builder.gemm("output", Role.ROW_PARALLEL, *contexts, m=tokens, n=hidden, k=q_width, bias=spec.output_bias)


class _Made(Struct, frozen=True):
    """Queries, new keys and values, and biases of scores, of all tokens of a step."""

    queries: list[Value]
    news: list[Value]
    bias: Value | None


class _Piece(Struct, frozen=True):
    """Sequences that are alike, of which one attention operator does the work; ``label`` is behind its name.

    ``kept`` says whether later tokens see their keys and values, so that they go into the cache.
    """

    run: TokenStep
    label: str = ""
    kept: bool = True


def _pieces(spec: GroupedAttention, run: TokenStep) -> list[_Piece]:
    """What each attention operator of a layer does: all sequences, or those of one length; chunks of these."""
    found = []
    for part in run.parts:
        label = f"_{part.q_len}_at_{part.past}" if run.groups else ""
        found += [_Piece(part, label)] if spec.chunk is None else _chunks(part, spec.chunk, label)
    return found


def _chunks(run: TokenStep, size: int, label: str) -> list[_Piece]:
    """Chunks of positions that see nothing of one another: the one begun before, whole ones, and the last one.

    Whole ones are as many sequences of that length. Tokens to come see the last one alone: the others' keys and values
    go into no cache.
    """
    room = None if run.room is None else min(run.room, size)

    def piece(batch: int, new: int, seen: int, behind: str, kept: bool) -> _Piece:
        own = replace(run, batch=batch, q_len=new, kv_len=seen, room=room if kept else None)
        return _Piece(own, f"{label}{behind}", kept)

    left, begun, found = run.q_len, run.past % size, []
    if begun and begun + left > size:
        found.append(piece(run.batch, size - begun, size, "_first", kept=False))
        left, begun = left - (size - begun), 0
    whole = (left - 1) // size if not begun else 0
    if whole:
        found.append(piece(run.batch * whole, size, size, "_whole", kept=False))
    left -= whole * size
    return [*found, piece(run.batch, left, begun + left, "", kept=True)]


def _attend(builder: Builder, spec: GroupedAttention, whole: TokenStep, piece: _Piece, made: _Made) -> Value:
    """Append the keys and values of some sequences to the cache, and attend to what they see."""
    run, label = piece.run, piece.label
    tokens, all_tokens = run.tokens, whole.tokens

    def share(values: list[Value]) -> list[Value]:
        return [value.part(value.elements * tokens // all_tokens) for value in values]

    operands = share(made.news)
    if run.cached and spec.causal and piece.kept:  # an encoder makes no further tokens that would read a cache
        append, width = VectorFunction.KV_APPEND, 2 * spec.kv_heads * spec.head_dim
        shape, cached = {"rows": tokens, "cols": width, "inputs": 1}, run.format(spec.head_dim)
        operands = [builder.vector(f"kv_append{label}", Role.CACHE, append, *operands, **shape, cached=cached)]
    if made.bias is not None:
        operands.append(_score_bias(builder, spec, run, made.bias, label))
    return builder.attention(
        f"attention{label}",
        *share(made.queries),
        *operands,
        batch=run.batch,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        q_len=run.q_len,
        kv_len=run.kv_len,
        head_dim=spec.head_dim,
        v_head_dim=spec.head_dim,
        causal=spec.causal,
        window=spec.window,
        room=run.room,
        sinks=spec.sinks,
        # a prompt's keys and values are there as they were made, those before a chunk of it as they are kept
        cached=run.format(spec.head_dim) if run.phase is Phase.DECODE or run.past else None,
    )


def _partly(rope: Value, whole: Value, rotary_dim: int, head_dim: int) -> list[Value]:
    """Split a head-wise operand into its turned columns, made by ``rope``, and the rest, which RoPE passed by."""
    turned = whole.elements * rotary_dim // head_dim
    rest = whole.elements - turned
    return [rope.part(turned)] + ([whole.part(rest)] if rest else [])


def _latent_inputs(
    builder: Builder, spec: LatentAttention, run: TokenStep, hidden: int, x: Value
) -> tuple[Value, Value, Value]:
    """Add what both forms share; returns the queries, the compressed keys and values, and what RoPE has turned."""
    tokens, rms = run.tokens, RMS_NORM.function
    compressed, width = x, hidden
    if spec.q_rank is not None:
        compressed = builder.gemm("q_down", Role.WHOLE, x, m=tokens, n=spec.q_rank, k=hidden, bias=spec.bias)
        rank = spec.q_rank
        compressed = builder.vector("q_norm", Role.LATENT_NORM, rms, compressed, rows=tokens, cols=rank, weights=rank)
        width = spec.q_rank
    per_head = spec.content_dim + spec.rotary_dim
    query = builder.gemm("q_up", Role.COLUMN_PARALLEL, compressed, m=tokens, n=spec.heads * per_head, k=width)
    down = builder.gemm("kv_down", Role.WHOLE, x, m=tokens, n=spec.kv_rank + spec.rotary_dim, k=hidden, bias=spec.bias)
    latent = builder.vector(
        "kv_norm",
        Role.LATENT_NORM,
        rms,
        down.part(tokens * spec.kv_rank),
        rows=tokens,
        cols=spec.kv_rank,
        weights=spec.kv_rank,
    )
    rope = builder.vector(
        "rope",
        Role.LATENT_ROPE,
        VectorFunction.ROPE,
        query.part(tokens * spec.heads * spec.rotary_dim),
        down.part(tokens * spec.rotary_dim),
        rows=tokens,
        cols=(spec.heads + 1) * spec.rotary_dim,
        inputs=1,
    )
    return query, latent, rope


def _latent_append(builder: Builder, spec: LatentAttention, run: TokenStep, latent: Value, rope: Value) -> Value:
    turned_key = rope.part(run.tokens * spec.rotary_dim)
    cols, append = spec.kv_rank + spec.rotary_dim, VectorFunction.KV_APPEND
    return builder.vector(
        "kv_append", Role.LATENT_CACHE, append, latent, turned_key, rows=run.tokens, cols=cols, inputs=1
    )


def _latent_expanded(builder: Builder, spec: LatentAttention, run: TokenStep, hidden: int, x: Value) -> Value:
    """Keys and values are expanded from the latent; right for many queries (prefill, training).

    Those of the tokens before a chunk are expanded again, from the latent that the cache has of them: a step of the
    ``past`` and the new ones has as many rows as both. The turned part of their keys is read from there, too.
    """
    tokens = run.tokens
    query, latent, rope = _latent_inputs(builder, spec, run, hidden, x)
    turned = [rope]
    if run.cached:
        kept = _latent_append(builder, spec, run, latent, rope)
        if run.past:
            latent = kept.part(tokens * spec.kv_rank)
            queries = rope.part(tokens * spec.heads * spec.rotary_dim)
            turned = [queries, kept.part(tokens * spec.rotary_dim)]
    expanded = builder.gemm(
        "kv_up",
        Role.COLUMN_PARALLEL,
        latent,
        m=run.batch * run.kv_len,
        n=spec.heads * (spec.content_dim + spec.v_head_dim),
        k=spec.kv_rank,
    )
    context = builder.attention(
        "attention",
        query.part(tokens * spec.heads * spec.content_dim),
        *turned,
        expanded,
        batch=run.batch,
        heads=spec.heads,
        kv_heads=spec.heads,
        q_len=run.q_len,
        kv_len=run.kv_len,
        head_dim=spec.content_dim + spec.rotary_dim,
        v_head_dim=spec.v_head_dim,
        causal=True,
        remade=run.past > 0,
    )
    return builder.gemm(
        "output", Role.ROW_PARALLEL, context, m=tokens, n=hidden, k=spec.heads * spec.v_head_dim, bias=spec.bias
    )


def _latent_absorbed(builder: Builder, spec: LatentAttention, run: TokenStep, hidden: int, x: Value) -> Value:
    """The expanding matrices move to queries and outputs, so that the cache is read compressed: right for decode.

    ``absorb_keys`` and ``absorb_values`` together store the matrix that the other form calls ``kv_up``.
    """
    tokens = run.tokens
    query, latent, rope = _latent_inputs(builder, spec, run, hidden, x)
    cache = _latent_append(builder, spec, run, latent, rope)
    content = query.part(tokens * spec.heads * spec.content_dim)
    absorbed = builder.gemm(
        "absorb_keys", Role.HEADWISE, content, m=tokens, n=spec.kv_rank, k=spec.content_dim, batch=spec.heads
    )
    context = builder.attention(
        "attention",
        absorbed,
        rope.part(tokens * spec.heads * spec.rotary_dim),
        cache,
        batch=run.batch,
        heads=spec.heads,
        kv_heads=1,
        q_len=run.q_len,
        kv_len=run.kv_len,
        head_dim=spec.kv_rank + spec.rotary_dim,
        v_head_dim=spec.kv_rank,
        causal=True,
        values_in_keys=True,
    )
    values = builder.gemm(
        "absorb_values", Role.HEADWISE, context, m=tokens, n=spec.v_head_dim, k=spec.kv_rank, batch=spec.heads
    )
    return builder.gemm(
        "output", Role.ROW_PARALLEL, values, m=tokens, n=hidden, k=spec.heads * spec.v_head_dim, bias=spec.bias
    )
