"""Lowering of attention: scores, softmax and context stay on the tile (FlashAttention, Dao et al., 2022).

For each sequence and key-value head, query rows are taken in tiles; the heads that share a key-value head are stacked
as rows. A key-value tile gives scores S = Q K^T in the accumulator, the vector unit turns them into probabilities,
and the array multiplies those with V. When all keys fit one tile, that is the result; otherwise the softmax is the
online one and the vector unit merges each tile's context into the running result.

The array computes the scores of the next tile before the context of this one, so that the softmax is hidden. Under a
causal mask the query range is cut into `CAUSAL_SEGMENTS` parts, each of which reads only the keys it may see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip, NpuTile
from siliconloom.arch.isa import Unit
from siliconloom.arch.vector import ROW_LIMIT, VectorFunction
from siliconloom.mapper.builder import SLOTS, affine
from siliconloom.mapper.layout import Layout
from siliconloom.mapper.lowering import STILL, Context, Nest, Segment, Walk, segments, when
from siliconloom.mapper.tasks import Task, share
from siliconloom.sim.timing.systolic import gemm_run
from siliconloom.sim.timing.units import vector_cycles
from siliconloom.workloads import Attention

CAUSAL_SEGMENTS = 8
"""Parts of the query range under a mask: the share of masked pairs still computed is at most 1/16 of all pairs."""


@dataclass(frozen=True)
class AttentionTiling:
    """Query and key tile sizes (in tokens), what they move and what they should take."""

    queries: int
    keys: int
    read_bytes: int
    write_bytes: int
    array_cycles: int
    memory_cycles: int
    vector_cycles: int
    cycles: int


@dataclass(frozen=True)
class Part:
    """A range of query tokens and the range of keys that some of them may see."""

    query_start: int
    queries: int
    key_start: int
    keys: int


def attention_shape(task: Task, chip: Chip) -> Attention:
    """The part that one tile of the chip computes."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    operator = share(task.operator, chip.tile_count, tile)
    assert isinstance(operator, Attention)
    return operator


def query_parts(shape: Attention) -> list[Part]:
    """Cut the queries so that each part reads only the keys that its mask admits."""
    past = shape.kv_len - shape.q_len
    masked = shape.causal or shape.window is not None
    count = min(CAUSAL_SEGMENTS, shape.q_len) if masked else 1
    size, parts = -(-shape.q_len // count), []
    for segment in segments(shape.q_len, size):
        for index in range(segment.count):
            start = segment.start + index * segment.size
            end = past + start + segment.size if shape.causal else shape.kv_len
            begin = 0 if shape.window is None else max(0, past + start + 1 - shape.window)
            parts.append(Part(start, segment.size, begin, end - begin))
    return parts


def choose_attention_tilings(chip: Chip, layouts: Sequence[Layout], shape: Attention) -> list[AttentionTiling | None]:
    """For each layout the cheapest query and key tile that fits its buffers, or ``None``."""
    group, size = shape.heads // shape.kv_heads, shape.precision.size
    wide = shape.precision.accumulator.size
    costs = _Costs(chip, shape)
    key_sizes = _halvings(max(p.keys for p in costs.parts))
    query_sizes = _halvings(max(p.queries for p in costs.parts))
    found: list[AttentionTiling | None] = []
    for layout in layouts:
        best: AttentionTiling | None = None
        for keys in key_sizes:
            if size(keys * max(shape.head_dim, shape.v_head_dim)) > layout.weights:
                continue
            for queries in query_sizes:
                rows = queries * group
                if (
                    (rows > ROW_LIMIT and queries > 1)
                    or size(rows * shape.head_dim) > layout.moving
                    or wide(rows * keys) > layout.partial
                    or size(rows * keys) > layout.probabilities
                    or wide(rows * shape.v_head_dim) > layout.context
                    or size(rows * shape.v_head_dim) > layout.results
                ):
                    continue
                cost = costs.of(queries, keys)
                if best is None or cost.cycles < best.cycles:
                    best = cost
        found.append(best)
    return found


class _Costs:
    """What attention of one shape should take under each tiling; every part of it is worked out once."""

    def __init__(self, chip: Chip, shape: Attention) -> None:
        assert isinstance(chip.tile, NpuTile)
        self.chip, self.tile, self.shape, self.parts = chip, chip.tile, shape, query_parts(shape)
        memory, array = chip.nearest, chip.tile.array
        self.rate = min(memory.total_bandwidth / chip.clock / chip.tile_count, chip.tile.dma.bytes_per_cycle)
        self.latency = chip.cycles(memory.latency)
        self.fill = array.rows // array.load_rows + array.rows + array.cols + array.multiply_stages
        self.of = cache(self._of)
        self.products, self.lanes = cache(self._products), cache(self._lanes)

    def _products(self, rows: int, keys: int) -> int:
        """Array cycles of the scores and the context of ``rows`` queries and ``keys`` keys."""
        runs = (
            gemm_run(self.tile.array, rows, keys, self.shape.head_dim),
            gemm_run(self.tile.array, rows, self.shape.v_head_dim, keys),
        )
        return sum(run.advance + max(run.first_load, run.stream_beats) for run in runs)

    def _lanes(self, rows: int, keys: int, one_tile: bool) -> int:
        """Vector cycles of the same."""
        softmax = VectorFunction.SOFTMAX if one_tile else VectorFunction.SOFTMAX_ONLINE
        merge = VectorFunction.REQUANTIZE if one_tile else VectorFunction.RESCALE
        unit = self.tile.vector
        return vector_cycles(unit, softmax, rows, keys) + vector_cycles(unit, merge, rows, self.shape.v_head_dim)

    def _of(self, queries: int, keys: int) -> AttentionTiling:
        shape, size = self.shape, self.shape.precision.size
        group, pairs = shape.heads // shape.kv_heads, shape.batch * shape.kv_heads
        array = vector = reads = writes = tiles = 0
        turns = 0.0
        for part in self.parts:
            one_tile = part.keys <= keys
            key_segments = segments(part.keys, keys)
            for q in segments(part.queries, queries):
                rows = q.size * group
                for k in key_segments:
                    count = q.count * k.count
                    products, lanes = self.products(rows, k.size), self.lanes(rows, k.size, one_tile)
                    array += count * products
                    vector += count * lanes
                    # the turn-around of the double buffers: K and V tiles, and scores to probabilities to context
                    moved = size(k.size * (shape.head_dim + shape.v_head_dim))
                    worked = products + 2 * self.fill
                    turns += count * max(2 * self.latency + moved / self.rate + worked, worked + lanes) / SLOTS
                    reads += count * moved
                    tiles += count
                reads += q.count * size(rows * shape.head_dim)
                writes += q.count * size(rows * shape.v_head_dim)
        port = round(pairs * (reads + writes) / self.rate)
        sequencer = pairs * tiles * 7 * self.tile.sequencer.issue_cycles
        edge = 2 * self.latency + (array + vector) // tiles
        cycles = max(pairs * array, port, pairs * vector, sequencer, round(pairs * turns)) + edge
        return AttentionTiling(
            queries, keys, pairs * reads, pairs * writes, pairs * array, port, pairs * vector, cycles
        )


def _halvings(total: int) -> list[int]:
    sizes, size = [total], total
    while size > 1:
        size = -(-size // 2)
        sizes.append(size)
    return sizes


class AttentionLowering:
    """Writes one attention operator."""

    def __init__(self, context: Context, task: Task, shape: Attention, tiling: AttentionTiling) -> None:
        self.context, self.shape, self.tiling = context, shape, tiling
        self.nest = Nest(context, task.depends)
        self.dtype: DataType = shape.precision
        self.group = shape.heads // shape.kv_heads
        size, memory, name = self.dtype.size, context.memory, task.operator.name
        self.q_row, self.o_row = size(shape.heads * shape.head_dim), size(shape.heads * shape.v_head_dim)
        self.k_row, self.v_row = size(shape.head_dim), size(shape.v_head_dim)
        tokens, repeat = shape.batch * shape.kv_heads * shape.kv_len * context.chip.tile_count, task.operator.repeat
        self.q_base = context.input_of(task.operator, shape.batch * shape.q_len * self.q_row)
        self.k_base = memory.take(name, "keys", tokens * self.k_row, repeat)
        self.v_base = memory.take(name, "values", tokens * self.v_row, repeat)
        self.o_base = context.output_of(task, shape.batch * shape.q_len * self.o_row)

    def emit(self) -> None:
        """Write the task, part by part; only the last part's last store ends it."""
        parts = query_parts(self.shape)
        for index, part in enumerate(parts):
            self.final = index == len(parts) - 1
            for sequence in self.nest.walk(self.shape.batch, 1):
                for head in self.nest.walk(self.shape.kv_heads, 1):
                    if part.keys <= self.tiling.keys:
                        self._over_queries(part, sequence, head)
                    else:
                        self._over_keys(part, sequence, head)

    def _over_queries(self, part: Part, sequence: Walk, head: Walk) -> None:
        """All keys in one tile: the array runs one query tile ahead with the scores."""

        def scores(queries: Walk) -> None:
            self._load_q(part, sequence, head, queries)
            self._load_k(part, sequence, head, None)
            self._scores(queries.size, part.keys, VectorFunction.SOFTMAX, moving=True)

        def context(queries: Walk) -> None:
            self._load_v(part, sequence, head, None)
            self._context(queries.size, part.keys)
            rings = self.context.rings
            self._merge(
                VectorFunction.REQUANTIZE,
                queries.size,
                rings.context.full_bit | rings.results.free_bit,
                rings.results.full_bit,
                0,
                0,
                0,
                0,
            )
            rings.results.written()
            self._store(part, sequence, head, queries)

        pipeline(self.nest, part.queries, self.tiling.queries, scores, context)

    def _over_keys(self, part: Part, sequence: Walk, head: Walk) -> None:
        """Keys in several tiles: for each query tile the array runs one key tile ahead with the scores."""
        rings, builder = self.context.rings, self.context.builder
        for queries in self.nest.walk(part.queries, self.tiling.queries):
            self._load_q(part, sequence, head, queries)
            builder.barrier(Unit.MATMUL, wait=rings.moving.full_bit)

            def scores(keys: Walk, queries: Walk = queries) -> None:
                self._load_k(part, sequence, head, keys)
                self._scores(queries.size, keys.size, VectorFunction.SOFTMAX_ONLINE, moving=False)

            def context(keys: Walk, queries: Walk = queries) -> None:
                self._load_v(part, sequence, head, keys)
                self._context(queries.size, keys.size)
                first_wait, first = when(keys.first, rings.results.free_bit)
                last_post, last = when(keys.last, rings.results.full_bit)
                self._merge(
                    VectorFunction.RESCALE, queries.size, rings.context.full_bit, 0, first_wait, first, last_post, last
                )

            pipeline(self.nest, part.keys, self.tiling.keys, scores, context)
            builder.barrier(Unit.MATMUL, release=rings.moving.free_bit)
            rings.moving.read()
            rings.results.written()
            self._store(part, sequence, head, queries)

    def _load_q(self, part: Part, sequence: Walk, head: Walk, queries: Walk) -> None:
        shape, row = self.shape, self.q_row
        width = self.group * self.k_row
        base = self.q_base + (part.query_start + queries.start) * row
        address = affine(
            base, (sequence.loop, shape.q_len * row), (head.loop, width), (queries.loop, queries.size * row)
        )
        self.nest.load(self.context.rings.moving, queries.size, width, row, address)

    def _load_k(self, part: Part, sequence: Walk, head: Walk, keys: Walk | None) -> None:
        self._load_cache(self.k_base, self.k_row, part, sequence, head, keys)

    def _load_v(self, part: Part, sequence: Walk, head: Walk, keys: Walk | None) -> None:
        self._load_cache(self.v_base, self.v_row, part, sequence, head, keys)

    def _load_cache(self, base: int, row: int, part: Part, sequence: Walk, head: Walk, keys: Walk | None) -> None:
        """A tile of the cache is contiguous: it is kept per layer, sequence and head, token by token."""
        shape = self.shape
        plane = shape.kv_len * row
        count, start = (part.keys, 0) if keys is None else (keys.size, keys.start)
        terms = [
            (self.context.layer, shape.batch * shape.kv_heads * plane),
            (sequence.loop, shape.kv_heads * plane),
            (head.loop, plane),
        ]
        if keys is not None:
            terms.append((keys.loop, keys.size * row))
        self.nest.load(
            self.context.rings.weights, count, row, row, affine(base + (part.key_start + start) * row, *terms)
        )

    def _scores(self, queries: int, keys: int, softmax: VectorFunction, *, moving: bool) -> None:
        """S = Q K^T, then probabilities."""
        builder, rings, rows = self.context.builder, self.context.rings, queries * self.group
        wait, release = rings.weights.full_bit, rings.weights.free_bit
        if moving:
            wait, release = wait | rings.moving.full_bit, release | rings.moving.free_bit
        builder.matmul(
            rows,
            keys,
            self.shape.head_dim,
            self.dtype,
            rings.moving,
            rings.weights,
            rings.partial,
            wait=wait,
            release=release,
            first_wait=rings.partial.free_bit,
            last_post=rings.partial.full_bit,
        )
        rings.weights.read()
        if moving:
            rings.moving.read()
        builder.vector(
            softmax,
            rows,
            keys,
            self.dtype,
            rings.partial,
            rings.probabilities,
            wait=rings.partial.full_bit | rings.probabilities.free_bit,
            release=rings.partial.free_bit,
            post=rings.probabilities.full_bit,
        )
        rings.partial.written()
        rings.partial.read()
        rings.probabilities.written()

    def _context(self, queries: int, keys: int) -> None:
        """Multiply the probabilities with V."""
        builder, rings = self.context.builder, self.context.rings
        builder.matmul(
            queries * self.group,
            self.shape.v_head_dim,
            keys,
            self.dtype,
            rings.probabilities,
            rings.weights,
            rings.context,
            wait=rings.probabilities.full_bit | rings.weights.full_bit,
            release=rings.probabilities.free_bit | rings.weights.free_bit,
            first_wait=rings.context.free_bit,
            last_post=rings.context.full_bit,
        )
        rings.probabilities.read()
        rings.weights.read()

    def _merge(
        self,
        function: VectorFunction,
        queries: int,
        wait: int,
        post: int,
        first_wait: int,
        first: int,
        last_post: int,
        last: int,
    ) -> None:
        """Bring the context from the accumulator into the result tile."""
        rings = self.context.rings
        self.context.builder.vector(
            function,
            queries * self.group,
            self.shape.v_head_dim,
            self.dtype,
            rings.context,
            rings.results,
            wait=wait,
            release=rings.context.free_bit,
            post=post,
            first_wait=first_wait,
            first=first,
            last_post=last_post,
            last=last,
        )
        rings.context.written()
        rings.context.read()

    def _store(self, part: Part, sequence: Walk, head: Walk, queries: Walk) -> None:
        shape, row, rings = self.shape, self.o_row, self.context.rings
        width = self.group * self.v_row
        base = self.o_base + (part.query_start + queries.start) * row
        address = affine(
            base, (sequence.loop, shape.q_len * row), (head.loop, width), (queries.loop, queries.size * row)
        )
        self.nest.store(rings.results, queries.size, width, row, address, final=self.final)


Stage = Callable[[Walk], None]


def pipeline(nest: Nest, total: int, size: int, head: Stage, tail: Stage) -> None:
    """Run two stages over the tiles of a dimension, ``head`` one tile ahead of ``tail``.

    ``head(0); loop {head(i + 1); tail(i)}; tail(last)``, with the dimension's shorter last tile unrolled at the end.
    """
    full, rest = divmod(total, size)
    tiles = full + (rest > 0)

    def at(index: int) -> Walk:
        width = size if index < full else rest
        return Walk(Segment(index * size, 1, width, index == 0, index == tiles - 1), STILL)

    nest.within(at(0), head)
    if full > 1:
        with nest.context.builder.loop(full - 1) as loop:
            nest.within(Walk(Segment(size, full - 1, size, False, False), loop), head)
            nest.within(Walk(Segment(0, full - 1, size, True, False), loop), tail)
    if rest and full:
        nest.within(at(full), head)
        nest.within(at(full - 1), tail)
    nest.within(at(tiles - 1), tail)
