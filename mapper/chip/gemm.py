"""Lowering of a GEMM and its epilogue to a looped, double-buffered stretch of Program."""

from __future__ import annotations

from collections.abc import Iterator

from siliconloom.arch.isa import Unit
from siliconloom.arch.vector import VectorFunction
from siliconloom.mapper.chip.builder import affine
from siliconloom.mapper.chip.gemm_cost import PARAMETER_BYTES, GemmShape
from siliconloom.mapper.chip.lowering import Context, Nest, Walk, when
from siliconloom.mapper.chip.tasks import GATED, Task
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.workloads import Gemm


class GemmLowering:
    """Writes one GEMM: for every result tile the partial sums over k, then the epilogue, then the store.

    Loop nest, outermost first: batch, then n and m in the order of the tiling, then k. The operand of the outer loop
    is *resident* when its tile spans all of k: it is loaded once and kept while the inner loop runs. Parameters lie in
    memory tile by tile (they are rearranged once, off line); everything else lies row by row. What requantising needs
    of each column (its bias among it) is loaded once for each tile of columns, or for each result tile when those take
    turns.
    """

    def __init__(self, context: Context, task: Task, shape: GemmShape, tiling: GemmTiling) -> None:
        self.context, self.task, self.shape, self.tiling = context, task, shape, tiling
        self.nest = Nest(context, task.depends)
        self.n_outer = tiling.order == "n_outer"
        self.scales = "outer" if self.n_outer else "batch" if tiling.n >= shape.n else "tile"
        size, memory, name, whole = shape.dtype.size, context.memory, task.operator.name, task.operator
        assert isinstance(whole, Gemm)
        self.a_bytes, self.b_bytes, self.c_bytes = (
            size(shape.m * shape.k),
            size(shape.k * shape.n),
            size(shape.m * shape.stored_n),
        )
        self.a_base = context.input_of(task.operator, size(whole.batch * whole.m * whole.k))
        if shape.weight:
            self.b_base = context.parameters(task.operator)
        else:
            self.b_base = memory.take(name, "operand 1", size(whole.batch * whole.k * whole.n))
        self.scale_bytes = PARAMETER_BYTES * whole.batch * whole.n
        self.scale_base = memory.take(name, "scales", self.scale_bytes, task.operator.repeat)
        self.c_base = context.output_of(task, shape.batch * self.c_bytes)
        # of the same size for every share: parts of a task in several memory levels may be shared differently
        added = max(
            size(whole.batch * whole.m * whole.n) // (2 if shape.output_halved else 1), shape.batch * self.c_bytes
        )
        self.residual_base = memory.take(name, "residual", added) if shape.residual else 0

    def emit(self) -> None:
        """Write the task."""
        for batch in self.nest.walk(self.shape.batch, 1):
            if self.scales == "batch":
                self._open_scales(batch, None)
            for outer in self._walk(self.n_outer):
                self._enter(batch, outer)
                for inner in self._walk(not self.n_outer):
                    n, m = (outer, inner) if self.n_outer else (inner, outer)
                    for k in self.nest.walk(self.shape.k, self.tiling.k):
                        self._product(batch, n, m, k)
                    self._epilogue(batch, n, m)
                self._leave()
            if self.scales == "batch":
                self._close_scales()

    def _walk(self, over_n: bool) -> Iterator[Walk]:
        return self.nest.walk(self.shape.n, self.tiling.n) if over_n else self.nest.walk(self.shape.m, self.tiling.m)

    def _enter(self, batch: Walk, outer: Walk) -> None:
        """Load what stays while the inner loop runs."""
        builder, rings = self.context.builder, self.context.rings
        if self.scales == "outer":
            self._open_scales(batch, outer)
        if self.tiling.resident:
            if self.n_outer:
                self._load_b(batch, outer, None)
            else:
                self._load_a(batch, outer, None)
            builder.barrier(Unit.MATMUL, wait=(rings.weights if self.n_outer else rings.moving).full_bit)

    def _leave(self) -> None:
        builder, rings = self.context.builder, self.context.rings
        if self.tiling.resident:
            ring = rings.weights if self.n_outer else rings.moving
            builder.barrier(Unit.MATMUL, release=ring.free_bit)
            ring.read()
        if self.scales == "outer":
            self._close_scales()

    def _product(self, batch: Walk, n: Walk, m: Walk, k: Walk) -> None:
        """One tile product, added to the result tile; operands that are not resident are loaded for it."""
        rings, waits, releases = self.context.rings, 0, 0
        if not (self.tiling.resident and self.n_outer):
            self._load_b(batch, n, k)
            waits, releases = waits | rings.weights.full_bit, releases | rings.weights.free_bit
        if not (self.tiling.resident and not self.n_outer):
            self._load_a(batch, m, k)
            waits, releases = waits | rings.moving.full_bit, releases | rings.moving.free_bit
        first_wait, first = when(k.first, rings.partial.free_bit)
        last_post, last = when(k.last, rings.partial.full_bit)
        self.context.builder.matmul(
            m.size,
            n.size,
            k.size,
            self.shape.dtype,
            rings.moving,
            rings.weights,
            rings.partial,
            wait=waits,
            release=releases,
            first_wait=first_wait,
            first=first,
            last_post=last_post,
            last=last,
            accumulate=k.first is None,
        )
        if releases & rings.weights.free_bit:
            rings.weights.read()
        if releases & rings.moving.free_bit:
            rings.moving.read()

    def _load_a(self, batch: Walk, m: Walk, k: Walk | None) -> None:
        size, row = self.shape.dtype.size, self.shape.dtype.size(self.shape.k)
        terms, base, width = (
            [(batch.loop, self.a_bytes), (m.loop, m.size * row)],
            self.a_base + m.start * row,
            self.shape.k,
        )
        if k is not None:
            base, width = base + size(k.start), k.size
            terms.append((k.loop, size(k.size)))
        self.nest.load(self.context.rings.moving, m.size, size(width), row, affine(base, *terms))

    def _load_b(self, batch: Walk, n: Walk, k: Walk | None) -> None:
        shape, size, ring = self.shape, self.shape.dtype.size, self.context.rings.weights
        k_start, k_size = (0, shape.k) if k is None else (k.start, k.size)
        if shape.weight:
            terms = [
                (self.context.layer, shape.batch * self.b_bytes),
                (batch.loop, self.b_bytes),
                (n.loop, size(shape.k * n.size)),
            ]
            base, step = self.b_base + size(n.start * shape.k) + size(k_start * n.size), size(k_size * n.size)
            rows, width, pitch = 1, step, step
        else:
            row = size(shape.n)
            terms = [(batch.loop, self.b_bytes), (n.loop, size(n.size))]
            base, step = self.b_base + size(n.start) + k_start * row, k_size * row
            rows, width, pitch = k_size, size(n.size), row
        if k is not None:
            terms.append((k.loop, step))
        self.nest.load(ring, rows, width, pitch, affine(base, *terms), depends=not shape.weight)

    def _open_scales(self, batch: Walk, n: Walk | None) -> None:
        self._load_scales(batch, n)
        self.context.builder.barrier(Unit.VECTOR, wait=self.context.rings.constants.full_bit)

    def _close_scales(self) -> None:
        ring = self.context.rings.constants
        self.context.builder.barrier(Unit.VECTOR, post=ring.free_bit)
        ring.read()

    def _load_scales(self, batch: Walk, n: Walk | None) -> None:
        start, cols = (0, self.shape.n) if n is None else (n.start, n.size)
        width = PARAMETER_BYTES * cols
        terms = [(self.context.layer, self.scale_bytes), (batch.loop, PARAMETER_BYTES * self.shape.n)]
        if n is not None:
            terms.append((n.loop, width))
        address = affine(self.scale_base + PARAMETER_BYTES * start, *terms)
        self.nest.load(self.context.rings.constants, 1, width, width, address, depends=False)

    def _epilogue(self, batch: Walk, n: Walk, m: Walk) -> None:
        """Requantise, activate, add the residual; then store the tile."""
        builder, rings, shape, size = self.context.builder, self.context.rings, self.shape, self.shape.dtype.size
        cols = n.size // 2 if shape.output_halved else n.size
        start = n.start // 2 if shape.output_halved else n.start
        row = size(shape.stored_n)
        where = [(batch.loop, self.c_bytes), (m.loop, m.size * row), (n.loop, size(cols))]
        offset = m.start * row + size(start)
        wait, release = rings.partial.full_bit | rings.results.free_bit, rings.partial.free_bit
        per_tile = self.scales == "tile"
        if per_tile:
            self._load_scales(batch, n)
            wait |= rings.constants.full_bit
        functions = shape.functions
        for index, function in enumerate(functions):
            second = None
            if function == VectorFunction.ADD:
                self.nest.load(rings.vector, m.size, size(cols), row, affine(self.residual_base + offset, *where))
                second, wait, release = rings.vector, wait | rings.vector.full_bit, release | rings.vector.free_bit
            last = index == len(functions) - 1
            post = rings.results.full_bit | (rings.constants.free_bit if per_tile else 0)
            builder.vector(
                function,
                m.size,
                n.size if function in GATED else cols,
                shape.dtype,
                rings.partial if index == 0 else None,
                rings.results,
                second=second,
                inputs=2 if second else 1,
                wait=wait,
                release=release,
                post=post if last else 0,
            )
            wait = release = 0
            if second:
                second.read()
        rings.partial.written()
        rings.partial.read()
        rings.results.written()
        if per_tile:
            rings.constants.read()
        self.nest.store(rings.results, m.size, size(cols), row, affine(self.c_base + offset, *where))
