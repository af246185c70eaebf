"""Products fused with their collectives tile by tile: Flux (Chang et al., 2024).

A kernel's tiles go to the multiprocessors in turn. Fused with an all-gather, a tile waits only for the chunk of its
rows: the GPU's own chunk first, the others' as copy engines bring them. Fused with a reduce-scatter, a tile's result
leaves for the GPU that sums it as soon as it is there: the next GPU's rows first, the own ones last. Fused with an
all-reduce, tiles are summed as they come in, and sums go out to all. All GPUs do the same, each starting at itself,
so that one stands for all.

Tiles, chunks and sums are tasks on streams: one for each multiprocessor, one for the link out or in, one for sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.errors import NotSupported
from siliconloom.arch.gpu import Gpu
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.baselines.mechanism import mechanism
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.predict import predict
from siliconloom.sim.system.streams import Tasks, run_tasks

PICO = 1e12
TILE = (128, 256)
"""Rows and columns of a tile: the largest of the kernel libraries (`siliconloom.baselines.gemm.TILES`)."""


class Product(Struct, frozen=True):
    """A product of one GPU: ``groups`` of (rows, depth) by (depth, columns), side by side.

    Parameters
    ----------
    rows
        Of all groups together.
    """

    rows: int
    columns: int
    depth: int
    groups: int = 1
    dtype: str = "bf16"
    element: float = 2.0

    @property
    def tiles(self) -> int:
        """Tiles of all groups."""
        return self.groups * ceil(self.rows / self.groups / TILE[0]) * ceil(self.columns / TILE[1])

    @property
    def inputs(self) -> float:
        """Bytes of all rows."""
        return self.rows * self.depth * self.element

    @property
    def weights(self) -> float:
        """Bytes of all groups' columns."""
        return self.groups * self.columns * self.depth * self.element

    @property
    def results(self) -> float:
        """Bytes of the result."""
        return self.rows * self.columns * self.element


def kernel_seconds(gpu: Gpu, product: Product) -> float:
    """Seconds of a product's kernel on ``gpu``, by the mechanism alone, of which its tiles here are parts."""
    rows = -(-product.rows // product.groups)
    row = {
        "op": "gemm",
        "m": rows,
        "n": product.columns,
        "k": product.depth,
        "batch": product.groups,
        "dtype": product.dtype,
    }
    return float(mechanism(gpu, make_operations([row])).seconds[0])


class Overlap(Struct, frozen=True):
    """Seconds of a product with its collective.

    Parameters
    ----------
    product
        The product alone.
    transfer
        The messages alone, at the rate at which the fused kernel sends or fetches them.
    sequential
        Product's kernel and NCCL's collective, one after the other.
    chunked
        As many products as there are GPUs, each with its chunk's messages beside the next.
    fused
        Tile by tile.
    """

    product: float
    transfer: float
    sequential: float
    chunked: float
    fused: float

    @property
    def exposed(self) -> float:
        """Seconds that the fused kernel takes longer than the product alone."""
        return self.fused - self.product


class Wire(Struct, frozen=True):
    """A GPU's link as a fused kernel uses it: bytes per second in one direction, seconds until a flag is seen."""

    rate: float
    flag: float


def wire_of(gpu: Gpu) -> Wire:
    """The link at the share of its rate that NCCL's all-to-all reaches, flags at the pace of its small messages.

    Chunks and results go between their two GPUs directly, as an all-to-all's do, not around a ring.
    """
    fitted = load_efficiency(gpu.architecture).collective
    return Wire(gpu.link_bandwidth * fitted.share_direct, fitted.step_ll)


class TiledKernel:
    """A product's tiles on streams, after each other on the multiprocessors that it has."""

    def __init__(self, gpu: Gpu, product: Product, *, taken: int = 0) -> None:
        if taken >= gpu.multiprocessors:
            raise NotSupported(f"a product on none of {gpu.multiprocessors} multiprocessors")
        fitted = load_efficiency(gpu.architecture).gemm
        self.gpu = gpu.model_copy(update={"multiprocessors": gpu.multiprocessors - taken}) if taken else gpu
        self.width = self.gpu.multiprocessors
        self.launch = fitted.launch
        self.stream = gpu.memory_bandwidth * fitted.stream
        waves = ceil(product.tiles / self.width)
        self.tile = (kernel_seconds(self.gpu, product) - self.launch) / waves
        self.together = product.tiles / waves
        """Tiles that share the memory, on average."""
        self.just_made = product.inputs <= gpu.l2_bytes / 2
        self.tasks = Tasks()
        self.started = self.tasks.add("launch", self.width, round(self.launch * PICO))
        self.next = 0

    def add(
        self,
        part: Product,
        tiles: int,
        ready: int | None = None,
        lag: int = 0,
        *,
        again: float = 0.0,
        beside: float = 0.0,
    ) -> list[int]:
        """The next tiles of a part, each on the next multiprocessor, no faster than the memory brings their bytes.

        Parameters
        ----------
        ready, lag
            Task that they wait for, and picoseconds after it.
        again, beside
            Bytes of the part that earlier tiles have read, which the L2 may hold; bytes that others move meanwhile.
        """
        moved = part.weights + part.results + beside + (0.0 if self.just_made else part.inputs)
        if self.next and again <= self.gpu.l2_bytes / 2:
            moved = max(moved - again, 0.0)
        memory = moved / part.tiles * self.together / self.stream
        duration = round(max(self.tile, memory) * PICO)
        found = []
        for _ in range(tiles):
            task = self.tasks.add(f"tile {self.next}", self.next % self.width, duration)
            if self.next < self.width:
                self.tasks.wait(task, self.started)
            if ready is not None:
                self.tasks.wait(task, ready, lag)
            found.append(task)
            self.next += 1
        return found

    @property
    def link(self) -> int:
        """Stream of the link."""
        return self.width + 1

    @property
    def sums(self) -> int:
        """Stream of what is added besides the tiles."""
        return self.width + 2

    def finish(self) -> float:
        """Seconds until all is done."""
        return run_tasks(self.tasks).finish / PICO


def share_of(product: Product, chips: int) -> Product:
    """A chip's share of a product's rows."""
    if product.rows % (chips * product.groups):
        raise NotSupported(f"{product.rows} rows of {product.groups} groups, an equal part for each of {chips} GPUs")
    return replace(product, rows=product.rows // chips)


def _several(chips: int) -> None:
    if chips < 2:
        raise NotSupported("a product fused with a collective of one GPU")


def collective_seconds(gpu: Gpu, operation: str, chips: int, size: float) -> float:
    """Seconds of NCCL's collective, by the GPU model."""
    row = {"op": operation, "gpus": chips, "bytes": round(size)}
    return float(predict(gpu, make_operations([row])).seconds[0])


def gather_product(
    gpu: Gpu, product: Product, chips: int, *, size: float | None = None, passes: int = 0, taken: int = 0
) -> Overlap:
    """An all-gather of rows, and the product of all of them.

    Parameters
    ----------
    size
        Bytes of all rows that are gathered; those of the product's inputs, if not given (rows may be used twice).
    passes
        In how many parts the tiles become ready, a divisor of ``chips``: as many as there are chunks, if not given.
        Fewer read the weights less often.
    taken
        Multiprocessors that fetch the chunks; copy engines do, and take none, if not given.
    """
    _several(chips)
    passes = passes or chips
    wire = wire_of(gpu)
    size = product.inputs if size is None else size
    chunk = size / chips / wire.rate
    part = share_of(product, passes)
    kernel = TiledKernel(gpu, product, taken=taken)
    arrived: list[int | None] = [None]  # its own chunk is there
    for number in range(1, chips):
        arrived.append(kernel.tasks.add(f"chunk {number}", kernel.link, round(chunk * PICO)))
    for number in range(passes):
        last = arrived[(number + 1) * (chips // passes) - 1]
        kernel.add(part, part.tiles, last, round(wire.flag * PICO), again=part.weights)
    alone, each = kernel_seconds(gpu, product), kernel_seconds(gpu, share_of(product, chips))
    transfer = (chips - 1) * chunk
    return Overlap(
        product=alone,
        transfer=transfer,
        sequential=alone + collective_seconds(gpu, "all_gather", chips, size),
        chunked=_pipeline([0.0] + [chunk + wire.flag] * (chips - 1), [each] * chips),
        fused=kernel.finish(),
    )


def product_scatter(gpu: Gpu, product: Product, chips: int, *, taken: int = 0) -> Overlap:
    """A product whose results are summed over the GPUs, each keeping a part of the rows.

    Tiles are stored where they are summed; with ``taken`` as many multiprocessors send them instead.
    """
    _several(chips)
    wire = wire_of(gpu)
    size = product.results
    part = share_of(product, chips)
    kernel = TiledKernel(gpu, product, taken=taken)
    message = round(size / chips / part.tiles / wire.rate * PICO)
    sent = kernel.started
    for _ in range(chips - 1):
        for tile in kernel.add(part, part.tiles, again=part.weights):
            sent = kernel.tasks.add("result", kernel.link, message)
            kernel.tasks.wait(sent, tile)
    own = kernel.add(part, part.tiles, again=part.weights)
    add = kernel.launch + size / chips * (chips + 1) / kernel.stream  # all parts are read, the sum is written
    summed = kernel.tasks.add("sum", kernel.sums, round(add * PICO))
    for task in (sent, *own):
        kernel.tasks.wait(summed, task, round(wire.flag * PICO))
    alone, each = kernel_seconds(gpu, product), kernel_seconds(gpu, part)
    transfer = size * (chips - 1) / chips / wire.rate
    return Overlap(
        product=alone,
        transfer=transfer,
        sequential=alone + collective_seconds(gpu, "reduce_scatter", chips, size),
        chunked=_pipeline([each] * chips, [transfer / (chips - 1) + wire.flag] * (chips - 1) + [0.0]) + add,
        fused=kernel.finish(),
    )


def product_reduce(gpu: Gpu, product: Product, chips: int, *, taken: int = 0) -> Overlap:
    """A product whose results are summed over the GPUs for all of them: summed rows go out while others come in.

    Rows of all GPUs take turns, so that sums begin early. What is in flight from the others is as far as this GPU's
    own messages are. ``taken`` multiprocessors send and add.
    """
    _several(chips)
    wire = wire_of(gpu)
    size = product.results
    part = share_of(product, chips)
    kernel = TiledKernel(gpu, product, taken=taken)
    columns = ceil(product.columns / TILE[1])
    row_tiles = part.tiles // columns
    strip = size / chips / row_tiles  # a row of tiles

    def spread(summed: int) -> None:
        sent = kernel.tasks.add("spread", kernel.link, round((chips - 1) * strip / wire.rate * PICO))
        kernel.tasks.wait(sent, summed)

    own: list[int] = []
    waiting: int | None = None
    for _ in range(row_tiles):
        arrived = []
        for number in range(chips):
            own = kernel.add(part, columns, again=part.weights)
            if number < chips - 1:
                sent = kernel.tasks.add("results", kernel.link, round(strip / wire.rate * PICO))
                for tile in own:
                    kernel.tasks.wait(sent, tile)
                arrived.append(sent)
        if waiting is not None:  # the sum of the strip before goes out behind this one's results
            spread(waiting)
        waiting = kernel.tasks.add("sum", kernel.sums, round(strip * (chips + 1) / kernel.stream * PICO))
        for task in (*arrived, *own):
            kernel.tasks.wait(waiting, task, round(wire.flag * PICO))
    if waiting is not None:
        spread(waiting)
    alone, each = kernel_seconds(gpu, product), kernel_seconds(gpu, part)
    reduce = collective_seconds(gpu, "all_reduce", chips, size)
    return Overlap(
        product=alone,
        transfer=2 * size * (chips - 1) / chips / wire.rate,
        sequential=alone + reduce,
        chunked=_pipeline([each] * chips, [collective_seconds(gpu, "all_reduce", chips, size / chips)] * chips),
        fused=kernel.finish(),
    )


def _pipeline(first: Sequence[float], second: Sequence[float]) -> float:
    """Seconds of pairs of tasks, the second of each after the first, each kind one after the other."""
    tasks = Tasks()
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        before = tasks.add(f"first of {number}", 0, round(a * PICO))
        tasks.wait(tasks.add(f"second of {number}", 1, round(b * PICO)), before)
    return run_tasks(tasks).finish / PICO
