"""Lowering of a GEMM and its epilogue to a looped, double-buffered stretch of Program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from siliconloom.arch.isa import Address, Unit
from siliconloom.arch.layout import parameter_bytes
from siliconloom.arch.word import LEVELS
from siliconloom.mapper.chip.gemm_layout import GemmLayout, GemmShape, gemm_layout_of
from siliconloom.mapper.chip.lowering import STILL, Context, Nest, Segment, Walk, joined, parts_of, when
from siliconloom.mapper.chip.operands import operands, residual
from siliconloom.mapper.chip.panels import PanelLayout, PanelPart
from siliconloom.mapper.chip.rings import NOWHERE, SLOTS, Loop, Ring, affine
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.workloads import Gemm


class BlockPart(Walk, frozen=True):
    """Rows of a part of the array, in a ``block`` of as many as it has; or a tile of rows, among those that stay."""

    block: Walk


def _start(walk: Walk) -> int:
    """First row of a tile, in the first round of its loops."""
    return walk.start + (walk.block.start if isinstance(walk, BlockPart) else 0)


def _steps(walk: Walk, row: int) -> list[tuple[Loop, int]]:
    """Loops over tiles of rows, and what their rounds add where rows are so far apart."""
    blocks = [(walk.block.loop, walk.block.size * row)] if isinstance(walk, BlockPart) else []
    return [*blocks, (walk.loop, walk.size * row)]


def takes_turns(values: int, layout: GemmLayout, tiling: GemmTiling) -> bool:
    """Whether tiles of the second operand take turns in two rings, that of attention's values beside their own."""
    return layout.turns(tiling.n, tiling.k, values)


class GemmLowering:
    """Writes one GEMM: for every result tile the partial sums over k, then the epilogue, then the store.

    Loop nest, outermost first: batch, then n and m in the order of the tiling, then k. The operand of the outer loop
    is *resident* when its tile spans all of k: it is loaded once and kept while the inner loop runs. Parameters lie in
    memory tile by tile, each in the order in which the array takes it (they are rearranged once, off line); everything
    else lies row by row, as `gemm_cost.GemmLayout` says. What the vector unit needs, of each column and of functions,
    is loaded once for each tile of columns, or for each result tile when those take turns.

    With ``m_kept`` rows stay in both slots of their ring, as one: what a result tile needs of them is loaded when the
    first columns pass. Columns come in tiles of a part of the depth, or of all of it and stay, too, while the rows
    pass in several result tiles (`GemmLayout.result_rows`). Where a part of the rows is ``held`` the rest of their
    depth comes again for every tile of columns, in two slots behind it.

    The first tile of weights may stand ``apart`` from all loops, so that it can be loaded ahead (`mapper.chip.ahead`):
    the first iterations that it is in are written out. Transfers of weights that are longer than a ``chunk`` are cut
    into such, so that other units have the memory port in between.
    """

    def __init__(
        self, context: Context, task: Task, shape: GemmShape, tiling: GemmTiling, *, apart: bool = False, chunk: int = 0
    ) -> None:
        self.context, self.task, self.shape, self.tiling = context, task, shape, tiling
        self.apart, self.chunk = apart, chunk
        self.nest = Nest(context, task)
        self.n_outer, self.pairs = tiling.order == "n_outer", tiling.order == "m_pairs"
        self.turns = takes_turns(context.layout.values, gemm_layout_of(context.tile, shape), tiling)
        self.scales = "outer" if self.n_outer else "batch" if tiling.n >= shape.n else "tile"
        self.keeps = tiling.order == "m_kept"
        memory, name, whole = context.memory, task.operator.name, task.operator
        assert isinstance(whole, Gemm)
        self.layout = layout = gemm_layout_of(context.tile, shape)
        self.panels = PanelLayout.of(context.chip, layout)
        # objects have the same size for every share: parts of a task in several memory levels may be shared differently
        all_of = gemm_layout_of(context.tile, gemm_shape(whole, task))
        rows, columns = whole.batch * whole.m, whole.n // 2 if shape.output_halved else whole.n
        self.a_bytes = 0 if shape.common else layout.a_plane(shape.m)
        self.c_bytes = shape.m * layout.c_row
        found = (*operands(context.graph, whole), None)[0]
        if layout.blocks:  # it comes from outside, or its rows have been transposed
            self.a_base = memory.take(name, "input", (1 if shape.common else whole.batch) * all_of.a_plane(whole.m))
        else:
            # of the last row only what it holds itself: where not every row is read, it may be the last of all
            self.a_base = context.operand(name, "input", found, rows * all_of.a_row, all_of.a_row)
        if shape.packed:
            self.b_bytes = self.panels.room(shape.n, shape.k)
            second = PanelLayout.of(context.chip, all_of).room(whole.n, whole.k)
        else:
            self.b_bytes = shape.k * layout.b_row
            second = whole.k * all_of.b_row
        second *= (whole.stored or whole.batch) if shape.weight else whole.batch
        if shape.weight:
            self.b_base = memory.take(name, "parameters", second, whole.repeat)
        else:
            self.b_base = memory.take(name, "operand 1", second)
        self.column_bytes, self.scale_bytes = layout.scales(shape.stored_n), whole.batch * all_of.scales(columns)
        self.scale_base = memory.take(name, "scales", self.scale_bytes, whole.repeat)
        self.table_base = 0
        if layout.function_bytes:
            self.table_base = memory.take(name, "functions", layout.function_bytes, whole.repeat)
        self.residual_base = 0
        if shape.residual:
            added = residual(context.graph, (whole, *task.fused))
            self.residual_base = context.operand(name, "residual", added, rows * all_of.c_row, all_of.c_row)
        self.c_base = context.output_of(task, rows * all_of.c_row, all_of.c_row)

    def emit(self) -> None:
        """Write the task."""
        sums, builder = self.context.rings.partial, self.context.builder
        for _ in range(sums.spare):
            builder.barrier(Unit.MATMUL, wait=sums.free_bit)
        for batch in self.nest.walk(self.shape.batch, 1):
            if self.scales == "batch":
                self._open_scales(batch, None)
            if self.keeps:
                self._rows_that_stay(batch)
            for outer in () if self.keeps else self._walk(self.n_outer):
                tiles = self._of_pair(outer) if self.pairs else [outer]
                self._enter(batch, outer, tiles)
                for inner in self._walk(not self.n_outer):
                    for tile in tiles:
                        n, m = (outer, inner) if self.n_outer else (inner, tile)
                        self._result(batch, n, m, tiles)
                self._leave(tiles)
            if self.scales == "batch":
                self._close_scales()
        if self.tiling.held:  # what has a slot next waits for one that is free, and all that stayed lies in both
            moving = self.context.rings.moving
            for unit, end in ((Unit.LOAD, {"wait": moving.free_bit}), (Unit.MATMUL, {"release": moving.free_bit})):
                for _ in range(SLOTS):
                    builder.barrier(unit, **end)
        for _ in range(sums.spare):
            builder.barrier(Unit.VECTOR, release=sums.free_bit)

    def _result(self, batch: Walk, n: Walk, m: Walk, tiles: Sequence[Walk]) -> None:
        """One result tile; where two tiles of rows stay the first loads what both meet, and the second frees it."""
        opens, closes = (not self.pairs or m is tiles[place] for place in (0, -1))
        self.nest.walks += [m] if self.pairs else []
        for k, ring in self._depths():
            self._product(batch, n, m, k, ring, opens=opens, closes=closes)
        self._epilogue(batch, n, m)
        if self.pairs:
            self.nest.walks.pop()

    def _depths(self, begin: int = 0, end: int = 0) -> Iterator[tuple[Walk, Ring]]:
        """Tiles of the depth, or of a part of it, and the ring of the second operand.

        Two rings take turns where tiles fit both.
        """
        rings, size, end = self.context.rings, self.tiling.k, end or self.shape.k
        step = 2 * size if self.turns else size
        for walk in self.nest.walk(end - begin, step, lead=0 if begin else self._lead(end, step)):
            first, last = walk.segment.first and not begin, walk.segment.last and end == self.shape.k
            segment = replace(walk.segment, start=begin + walk.start, first=first, last=last)
            both = Walk(segment, walk.loop)
            if not self.turns:
                yield both, rings.weights
                continue
            for number, k in enumerate(parts_of(both, size)):
                yield k, rings.values if number else rings.weights

    def _of_pair(self, pair: Walk) -> list[Walk]:
        """The tiles of a pair; of the last there may be one."""
        size = self.tiling.m
        starts = range(0, pair.size, size)
        return [
            BlockPart(Segment(start, 1, min(size, pair.size - start), start == 0, start == starts[-1]), STILL, pair)
            for start in starts
        ]

    def _rows_that_stay(self, batch: Walk) -> None:
        """All columns for as many rows as both slots hold, then the next rows."""
        builder, moving, wide = self.context.builder, self.context.rings.moving, self.tiling.n

        def freed() -> None:
            for _ in range(SLOTS):
                builder.barrier(Unit.MATMUL, release=moving.free_bit)

        for rows in self.nest.walk(self.shape.m, self.tiling.m, lead=self._lead(self.shape.m, self.tiling.m)):
            if self.tiling.held:  # slots behind what stays: when it is loaded all that was before has been read
                freed()
            for n in self.nest.walk(self.shape.n, wide, lead=wide if wide < self.shape.n else 0):
                self._columns_for(batch, n, rows, moving.whole)
            if not self.tiling.held:
                freed()

    def _columns_for(self, batch: Walk, n: Walk, rows: Walk, held: Ring) -> None:
        """A tile of columns for all rows that stay, which are loaded for the first one."""
        builder, weights, layout = self.context.builder, self.context.rings.weights, self.layout
        if self.tiling.resident:
            self._load_b(batch, n, None, weights)
            builder.barrier(Unit.MATMUL, wait=weights.full_bit)
        if self.scales == "tile":
            self._open_scales(batch, n)
        tall, deep, block = map(int, layout.kept_blocks(self.tiling.m, self.tiling.n, self.tiling.k))
        stays, passes = self.tiling.held, held
        if stays:
            taken = int(layout.held_bytes(self.tiling.m, self.tiling.k, stays))
            passes = self.context.rings.moving.moved(held.base + taken, block)
        for part in self.nest.walk(rows.size, tall, lead=self._lead(rows.size, tall)):
            m = BlockPart(part.segment, part.loop, rows)
            for k, second in self._depths(0, stays):
                first = part.start // tall + k.start // deep
                place = affine(first * block, (part.loop, block), (k.loop, k.step // deep * block))
                waits = releases = 0
                if not self.tiling.resident:
                    self._load_b(batch, n, k, second)
                    waits, releases = second.full_bit, second.free_bit
                if n.segment.first:
                    # columns may come before the rows of the last product have been read
                    waits_for, levels = when(joined((part.first, k.first)), held.free_bit)
                    for _ in range(SLOTS if waits_for else 0):
                        builder.barrier(Unit.LOAD, first_wait=waits_for, first=levels)
                    self._load_part(batch, m, k, held, place)
                    waits |= held.full_bit
                self._multiply(n, m, k, held, second, waits, releases, place)
                if releases:
                    second.read()
            for k, second in self._depths(stays, self.shape.k) if stays else ():
                self._load_b(batch, n, k, second)
                self._load_part(batch, m, k, passes, NOWHERE, opens=True)
                waits, releases = second.full_bit | passes.full_bit, second.free_bit | passes.free_bit
                self._multiply(n, m, k, passes, second, waits, releases)
                second.read()
                passes.read()
            self._epilogue(batch, n, m)
        if self.scales == "tile":
            self._close_scales()
        if self.tiling.resident:
            builder.barrier(Unit.MATMUL, release=weights.free_bit)
            weights.read()

    def _load_part(self, batch: Walk, m: Walk, k: Walk, held: Ring, place: Address, *, opens: bool = False) -> None:
        """What a product takes of rows that stay, to its ``place`` among them; or to a slot that it ``opens``."""
        size, row = self.shape.dtype.size, self.layout.a_row
        base = self.a_base + _start(m) * row + size(k.start)
        where = affine(base, (batch.loop, self.a_bytes), *_steps(m, row), (k.loop, size(k.step)))
        self.nest.load(
            held,
            m.size,
            size(k.size),
            row,
            where,
            opens=opens,
            within=place,
            local_pitch=int(self.layout.a_local(k.size)),
            fills=True,
        )

    def _walk(self, over_n: bool) -> Iterator[Walk]:
        if over_n:
            yield from self.nest.walk(self.shape.n, self.tiling.n, lead=self._lead(self.shape.n, self.tiling.n))
        elif self.layout.blocks and self.tiling.m < self.layout.rows < self.shape.m:
            for block in self.nest.walk(self.shape.m, self.layout.rows):  # parts of one block at a time
                for part in self.nest.walk(block.size, self.tiling.m):
                    yield BlockPart(part.segment, part.loop, block)
        else:
            size = (2 if self.pairs else 1) * self.tiling.m
            lead = self._lead(self.shape.m, size)
            yield from self.nest.walk(self.shape.m, size, lead=lead, sequence=self.tiling.sequence)

    def _lead(self, total: int, size: int) -> int:
        """What of a dimension is written before its loop, so that the first tile of weights stands apart."""
        return size if self.apart and size < total else 0

    def _enter(self, batch: Walk, outer: Walk, tiles: Sequence[Walk]) -> None:
        """Load what stays while the inner loop runs."""
        builder, rings = self.context.builder, self.context.rings
        if self.scales == "outer":
            self._open_scales(batch, outer)
        if self.tiling.resident:
            if self.n_outer:
                self._load_b(batch, outer, None, rings.weights)
            for tile in () if self.n_outer else tiles:
                self.nest.within(tile, lambda tile: self._load_a(batch, tile, None))
            for _ in tiles:
                builder.barrier(Unit.MATMUL, wait=(rings.weights if self.n_outer else rings.moving).full_bit)

    def _leave(self, tiles: Sequence[Walk]) -> None:
        builder, rings = self.context.builder, self.context.rings
        if self.tiling.resident:
            ring = rings.weights if self.n_outer else rings.moving
            for _ in tiles:
                builder.barrier(Unit.MATMUL, release=ring.free_bit)
                ring.read()
        if self.scales == "outer":
            self._close_scales()

    def _product(self, batch: Walk, n: Walk, m: Walk, k: Walk, second: Ring, *, opens: bool, closes: bool) -> None:
        """One tile product, added to the result tile; operands that are not resident are loaded for it.

        Of several with the same columns the one that ``opens`` loads these, and the one that ``closes`` frees them.
        """
        rings, waits, releases = self.context.rings, 0, 0
        if not (self.tiling.resident and self.n_outer):
            if opens:
                self._load_b(batch, n, k, second)
                waits |= second.full_bit
            releases |= second.free_bit if closes else 0
        if not (self.tiling.resident and not self.n_outer):
            self._load_a(batch, m, k)
            waits, releases = waits | rings.moving.full_bit, releases | rings.moving.free_bit
        self._multiply(n, m, k, rings.moving, second, waits, releases)
        if releases & second.free_bit:
            second.read()
        if releases & rings.moving.free_bit or not (opens and closes):  # the other one of a pair is next
            rings.moving.read()

    def _multiply(
        self, n: Walk, m: Walk, k: Walk, moved: Ring, second: Ring, waits: int, releases: int, place: Address = NOWHERE
    ) -> None:
        """One tile product, or one for each half that is gated; rows begin at ``place`` in their slot."""
        rings = self.context.rings
        first_wait, first = when(k.first, rings.partial.free_bit)
        last_post, last = when(k.last, rings.partial.full_bit)
        halves, layout = self.shape.halves, self.layout
        half = n.size // halves
        split = layout.split(half)
        apart = bool(layout.apart(half))
        for number in range(halves if apart else 1):
            begins, ends = number == 0, number == halves - 1 or not apart
            self.context.builder.matmul(
                m.size,
                half if apart else self.shape.whole_n(layout.array, n.size),
                k.size,
                self.shape.dtype,
                moved,
                second,
                rings.partial,
                wait=waits if begins else 0,
                release=releases if ends else 0,
                first_wait=first_wait if begins else 0,
                first=first,
                last_post=last_post if ends else 0,
                last=last if ends else 0,
                accumulate=k.first is None,
                a_offset=place,
                packing=self.shape.packing,
                b_offset=number * layout.b_tile(n.size, k.size) // halves,
                c_offset=Address(base=number * int(layout.sums(m.size, half))),
                split=split,
            )

    def _load_a(self, batch: Walk, m: Walk, k: Walk | None) -> None:
        if self.layout.blocks:
            self._load_blocks(batch, m, k)
            return
        size, row = self.shape.dtype.size, self.layout.a_row
        terms = [(batch.loop, self.a_bytes), *_steps(m, row)]
        base, width = self.a_base + _start(m) * row, self.shape.k
        if k is not None:
            base, width = base + size(k.start), k.size
            terms.append((k.loop, size(k.step)))
        local = self.layout.a_local(width)
        where, moving = affine(base, *terms), self.context.rings.moving
        self.nest.load(moving, m.size, size(width), row, where, local_pitch=local, fills=True)

    def _load_blocks(self, batch: Walk, m: Walk, k: Walk | None) -> None:
        """A tile of rows that lie in blocks, each transposed: whole ones, then the last, or a part of one."""
        layout, rows, ring, size = self.layout, self.layout.rows, self.context.rings.moving, self.shape.dtype.size
        plane, deep, start = layout.a_pitch, self.shape.k if k is None else k.size, _start(m)
        whole, rest = divmod(m.size, rows)
        terms, base = [(batch.loop, self.a_bytes)], self.a_base + start // rows * plane

        def place(line: int, more: int, steps: list[tuple[Loop, int]]) -> Address:
            """In a block whose lines are so long."""
            deeper = [] if k is None else [(k.loop, k.step * line)]
            return affine(base + more + (0 if k is None else k.start * line), *terms, *steps, *deeper)

        if whole:
            width = int(layout.a_block(deep))
            where = place(size(rows), 0, [(m.loop, whole * plane)])
            self.nest.load(ring, whole, width, plane, where, closes=not rest)
        if not rest:
            return
        block = (
            rows
            if isinstance(m, BlockPart) and m.block.size == rows
            else self.shape.m - (start + whole * rows) // rows * rows
        )
        line, local = int(layout.a_line(min(block, rows))), int(layout.a_line(rest))
        steps = [(m.loop, size(m.size))] if not whole and m.size < block else []
        if isinstance(m, BlockPart):
            steps.append((m.block.loop, plane))
        where = place(line, whole * plane + size(start % rows if not whole else 0), steps)
        offset = int(layout.a_block(deep)) * whole
        if line == local and m.size - whole * rows == block:
            self.nest.load(ring, 1, deep * line, deep * line, where, opens=not whole, offset=offset)
        else:
            self.nest.load(ring, deep, size(rest), line, where, opens=not whole, offset=offset, local_pitch=local)

    def _load_b(self, batch: Walk, n: Walk, k: Walk | None, ring: Ring) -> None:
        self.apart = False
        shape, layout, size = self.shape, self.layout, self.shape.dtype.size
        k_start, k_size, k_step = (0, shape.k, 0) if k is None else (k.start, k.size, k.step)
        terms = [(batch.loop, self.b_bytes)]
        if shape.packed:
            tile, panels = self.panels.pitch(n.size), self.panels
            before = n.start // self.tiling.n * panels.pitch(self.tiling.n)
            base = self.b_base + before + panels.tile(n.size, k_start)
            step = panels.tile(n.size, k_step)
            terms.append((n.loop, tile))
            if shape.weight:
                terms.append((self.context.layer, shape.batch * self.b_bytes))
            parts = panels.parts(n.size, k_size)
        else:
            pitch = layout.b_row
            terms.append((n.loop, size(n.size)))
            base, step = self.b_base + size(n.start) + k_start * pitch, k_step * pitch
            parts = [PanelPart(0, 0, k_size, size(n.size), layout.b_local(n.size))]
        if k is not None:
            terms.append((k.loop, step))
        for part in parts:
            where, opens, closes = affine(base + part.memory, *terms), part is parts[0], part is parts[-1]
            if self._is_cut(part):
                self.nest.load_in_chunks(
                    ring, part.width, self.chunk, where, opens=opens, closes=closes, offset=part.local
                )
                continue
            self.nest.load(
                ring,
                part.rows,
                part.width,
                part.width if shape.packed else layout.b_row,
                where,
                depends=not shape.weight,
                opens=opens,
                closes=closes,
                offset=part.local,
                local_pitch=part.pitch,
                compression=shape.compression,
            )

    def _is_cut(self, part: PanelPart) -> bool:
        """Whether a transfer of weights comes in chunks."""
        shape = self.shape
        return 0 < self.chunk < part.width and part.rows == 1 and shape.weight and shape.compression is None

    def _open_scales(self, batch: Walk, n: Walk | None) -> None:
        self._load_scales(batch, n)
        self.context.builder.barrier(Unit.VECTOR, wait=self.context.rings.constants.full_bit)

    def _close_scales(self) -> None:
        ring = self.context.rings.constants
        self.context.builder.barrier(Unit.VECTOR, post=ring.free_bit)
        ring.read()

    def _load_scales(self, batch: Walk, n: Walk | None) -> None:
        layout, constants = self.layout, self.context.rings.constants
        start, cols = (0, self.shape.stored_n) if n is None else self._stored(n)
        width, tile = layout.columns(cols), min(self.tiling.n, self.shape.n) // (2 if self.shape.output_halved else 1)
        terms = [(self.context.layer, self.scale_bytes), (batch.loop, self.column_bytes)]
        if n is not None:
            terms.append((n.loop, width))
        address = affine(self.scale_base + layout.scales_at(start, tile), *terms)
        more = layout.function_bytes
        self.nest.load(constants, 1, width, width, address, depends=False, closes=not more)
        if more:
            address, offset = affine(self.table_base, (self.context.layer, more)), int(layout.functions_at(cols))
            self.nest.load(constants, 1, more, more, address, depends=False, opens=False, offset=offset)

    def _stored(self, n: Walk) -> tuple[int, int]:
        """First column that is stored of a tile, and how many."""
        return (n.start // 2, n.size // 2) if self.shape.output_halved else (n.start, n.size)

    def _epilogue(self, batch: Walk, n: Walk, m: Walk) -> None:
        """Requantise, activate, add the residual; then store: the whole result tile, or its columns part by part."""
        rings, shape, size = self.context.rings, self.shape, self.shape.dtype.size
        start, cols = self._stored(n)
        row, per_tile = self.layout.c_row, self.scales == "tile" and not self.keeps
        where = [(batch.loop, self.c_bytes), *_steps(m, row), (n.loop, size(cols))]
        if per_tile:
            self._load_scales(batch, n)
        for part in self._parts_of_columns(cols):
            local, at = self.layout.c_local(part.size), [*where, (part.loop, size(part.step))]
            fills = bool(self.layout.c_fills(part.size))
            offset = _start(m) * row + size(start + part.start)
            if shape.residual:
                added = affine(self.residual_base + offset, *at)
                self.nest.load(rings.second, m.size, size(part.size), row, added, local_pitch=local, fills=fills)
            self._passes(m.size, cols, part, rings.constants if per_tile else None)
            rings.results.written()
            place = affine(self.c_base + offset, *at)
            self.nest.store(rings.results, m.size, size(part.size), row, place, local_pitch=local, fills=fills)
        if 0 < self.tiling.passing < cols:
            self.context.builder.barrier(Unit.VECTOR, release=rings.partial.free_bit)
        rings.partial.written()
        rings.partial.read()
        if per_tile:
            rings.constants.read()

    def _parts_of_columns(self, cols: int) -> Iterator[Walk]:
        """Columns of a result tile that pass at a time; written out where all levels of loops are taken."""
        size = min(self.tiling.passing or cols, cols)
        if size == cols or self.context.builder.depth < LEVELS:
            yield from self.nest.walk(cols, size)
            return
        for start in range(0, cols, size):
            segment = Segment(start, 1, min(size, cols - start), start == 0, start + size >= cols)
            self.nest.walks.append(Walk(segment, STILL))
            yield self.nest.walks[-1]
            self.nest.walks.pop()

    def _passes(self, rows: int, every: int, columns: Walk, constants: Ring | None) -> None:
        """The vector unit's instructions on a result tile of so many rows and ``every`` column: on a part of these.

        The first waits for room for results, and that of the first part for sums, and for parameters that come with the
        tile (``constants``); the last of all posts. Where there is one part the last that reads sums releases them.
        """
        rings, layout, passes, cols = self.context.rings, self.layout, self.shape.passes, columns.size
        waits, frees = rings.partial.full_bit, constants.free_bit if constants else 0
        if constants:
            waits |= constants.full_bit
        whole = cols == every
        first_wait, first = (0, 0) if whole else when(columns.first, waits)
        last_post, last = (0, 0) if whole else when(columns.last, frees)
        parameters = 0
        half, split = int(layout.sums(rows, every)), int(layout.split(cols))
        sums = max(index for index, each in enumerate(passes) if each.source == "partial")
        for index, each in enumerate(passes):
            added, ends = each.second == "second", index == len(passes) - 1
            if parameters == layout.columns(every):  # of functions, behind those of columns
                parameters = int(layout.functions_at(every))
            own = parameter_bytes(layout.tile, each.function, every, narrow=1)
            line = layout.line_of_parameters(each.function)
            from_sums = each.source == "partial"
            self.context.builder.vector(
                each.function,
                rows,
                cols,
                self.shape.dtype,
                getattr(rings, each.source),
                getattr(rings, each.target),
                second=getattr(rings, each.second) if each.second else None,
                parameters=rings.constants if own else None,
                inputs=2 if each.second else 1,
                wait=((rings.results.free_bit | (waits if whole else 0)) if index == 0 else 0)
                | (rings.second.full_bit if added else 0),
                release=(rings.partial.free_bit if index == sums and whole else 0)
                | (rings.second.free_bit if added else 0),
                post=(rings.results.full_bit | (frees if whole else 0)) if ends else 0,
                first_wait=first_wait if index == 0 else 0,
                first=first if index == 0 else 0,
                last_post=last_post if ends else 0,
                last=last if ends else 0,
                source_offset=each.half * half,
                source_within=self._within(columns, layout.line_of_sums(rows)) if from_sums else NOWHERE,
                parameter_offset=parameters,
                parameter_within=self._within(columns, line) if own else NOWHERE,
                split=split if from_sums else 0,
            )
            parameters += own
            if added:
                rings.second.read()

    def _within(self, columns: Walk, line: tuple[int, int]) -> Address:
        """How far into its slot a part of columns begins: so many bytes for each line of so many columns."""
        taken, of = line
        return affine(columns.start // of * taken, (columns.loop, columns.step // of * taken))
