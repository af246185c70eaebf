"""What a GEMM's tilings should take: many at once, with the durations that the simulator itself uses.

Every unit's own work is exact: the sums, over full tiles and the rests at the edges, of `sim.timing`'s durations. What
is estimated is how they go together: the unit, or the turn-around of a double buffer, that needs the longest sets the
pace, and before and behind its work come the stages that nothing hides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.description import Chip
from siliconloom.arch.memory import Memory
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.timing import ACCUMULATOR_WRITE, BARRIER, LOAD_WRITE, QUEUE_POP, STORE_WRITE, TRANSFER_START
from siliconloom.mapper.chip.gemm_layout import GemmLayout, GemmShape, gemm_layout_of
from siliconloom.mapper.chip.orientation import oriented
from siliconloom.mapper.chip.panels import PanelLayout
from siliconloom.mapper.chip.rings import SLOTS
from siliconloom.mapper.chip.transfers import moved_rows
from siliconloom.sim.timing.pace import first_load, matmul_pace
from siliconloom.sim.timing.units import (
    decompressing_cycles,
    fetch_cycles,
    moved_bytes,
    passing_cycles,
    stored_bytes,
    striped_bytes,
    vector_cycles,
)

Int = NDArray[np.int64]
Order = Literal["n_outer", "m_outer", "m_pairs", "m_kept"]
ORDERS: tuple[Order, ...] = ("n_outer", "m_outer", "m_pairs")
"""Outer loops: over tiles of columns, over tiles of rows, over pairs of those, both of which stay in their slots."""
KEPT: tuple[Order, ...] = ("m_kept",)
"""The outer loop is over as many rows as both slots hold; result tiles have all of them or some."""

LONGEST = 2.0**53
"""Cycles that a cost may have: slow memories give more than its numbers hold."""


class GemmMemories(Struct, frozen=True):
    """Memory levels of the moving operand A, of B, and of results and residual."""

    a: Memory
    b: Memory
    c: Memory


class GemmCosts(Struct, frozen=True):
    """Of each tiling: bytes moved, each unit's own cycles, and what all of it together should take."""

    reads: Int
    writes: Int
    array: Int
    port: Int
    vector: Int
    cycles: Int


def gemm_costs(
    chip: Chip,
    memories: GemmMemories,
    work: GemmWork,
    orders: Sequence[Order] = ORDERS,
    values: Sequence[int] = (0,),
    held: Int | None = None,
) -> list[dict[Order, GemmCosts]]:
    """Cost tilings with each of these orders of the outer loops that there is.

    Tiles of the second operand take turns in two rings where they fit a slot of so many bytes (`gemm.takes_turns`):
    there is an answer for each of ``values``. With `KEPT` as orders ``held`` are the rows that stay, and the tilings'
    rows those of a result tile.
    """
    at = _paces(chip, memories, work)
    found = []
    for turns in (at.taking_turns(size) for size in values):
        if held is not None:
            found.append({KEPT[0]: _kept(turns, held // work.m)})
            continue
        pairs = not work.blocks and np.any(work.whole_k & (work.m_tiles > 1))
        found.append({order: _reloaded(turns, order) for order in orders if order != "m_pairs" or pairs})
    return found


class GemmWork(NamedTuple):
    """What tiles of sizes ``m`` x ``n`` x ``k`` compute and move, whatever the clock and however fast memory is.

    The sizes are broadcast: what depends on two of them is worked out for those two only. Cycles of array, vector unit
    and sequencer are of all products of one batch; transfers those of all tiles of an operand, of one whole tile
    (``_one``) and of the last results. ``rest`` is the last tile's product of a depth that is no multiple of theirs.
    """

    shape: GemmShape
    m: Int
    blocks: bool
    m_tiles: Int
    n_tiles: Int
    k_tiles: Int
    whole_k: Int
    a: _AllMoved
    b: _AllMoved
    c: _AllMoved
    p: _AllMoved
    f: _AllMoved
    a_one: _Moved
    b_one: _Moved
    c_one: _Moved
    p_one: _Moved
    c_last: _Moved
    stores: Int
    compute: Int
    vector: Int
    sequencer: Int
    product: Int
    rest: Int
    first: Int
    out: int
    epilogue: Int
    last_epilogue: Int
    b_tile: Int
    """Bytes of a tile of the second operand."""


def gemm_work(chip: Chip, memories: GemmMemories, shape: GemmShape, sizes: tuple[Int, Int, Int]) -> GemmWork:
    """Of tiles of these sizes; of the memories it matters what an access moves, and how addresses are striped."""
    m, n, k = sizes
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    array = oriented(tile).array
    layout = gemm_layout_of(tile, shape)
    columns = np.maximum(n // shape.halves, 1)
    m_parts, n_parts, k_parts = _parts(shape.m, m), _parts(shape.n, n), _parts(shape.k, k)
    m_tiles, n_tiles, k_tiles = (-(-total // size) for total, size in ((shape.m, m), (shape.n, n), (shape.k, k)))
    a, b, c, p, extra = _operands(chip, memories, shape, layout, (m, n, k), (m_tiles, n_tiles, k_tiles))
    c_parts, one = _parts(shape.stored_n, columns), np.ones_like(n)
    compute, vector = _work(tile, array, shape, m_parts, n_parts, k_parts)
    results = m_tiles * n_tiles
    product = compute / (results * k_tiles)
    last_m, last_n = (np.where(rest > 0, rest, size) for (size, _), (rest, _) in (m_parts, n_parts))
    return GemmWork(
        shape,
        m,
        layout.blocks,
        m_tiles,
        n_tiles,
        k_tiles,
        k_tiles == 1,
        a.total(m_parts, k_parts),
        b.total(k_parts, n_parts),
        c.total(m_parts, c_parts),
        p.total([(one, one)], c_parts),
        extra.total([(one, n_tiles)], [(np.full_like(n, layout.function_bytes), one)]),
        a.one(m, k),
        b.one(k, n),
        c.one(m, columns),
        p.one(one, columns),
        c.one(last_m, np.maximum(last_n // shape.halves, 1)),
        c.instructions(m, columns),
        compute,
        vector,
        results * _issued(tile, shape, k_tiles, 1 + layout.apart(columns)),
        product,
        np.where(shape.k % k > 0, product * k_tiles * (shape.k % k) / shape.k, product),
        first_load(array, k, shape.packing),
        array.output_latency + ACCUMULATOR_WRITE,
        _epilogue(shape, tile, m, n) + QUEUE_POP,
        _epilogue(shape, tile, last_m, last_n) + QUEUE_POP,
        np.asarray(layout.b_tile(n, k)),
    )


class _Paces(NamedTuple):
    """What sets the pace of a tiling: transfers in bytes and cycles, all of them and of one tile; stages; turns.

    ``first`` are cycles from a tile's last transfer to its first product, ``waited`` those for which a slot is waited
    for, ``behind`` those that all transfers have before and behind them; ``worked`` is the pace of array, sequencer and
    sums, and ``rest`` the last tile's product of a depth that is no multiple of theirs.
    """

    shape: GemmShape
    blocks: bool
    m_tiles: Int
    n_tiles: Int
    k_tiles: Int
    whole_k: Int
    a_bytes: Int
    b_bytes: Int
    c_bytes: Int
    p_bytes: Int
    a_time: Int
    b_time: Int
    c_time: Int
    p_time: Int
    a_one: Int
    b_one: Int
    p_one: Int
    compute: Int
    vector: Int
    product: Int
    rest: Int
    result: Int
    arrive: int
    first: Int
    waited: Int
    out: int
    epilogue: Int
    worked: Int
    lead: Int
    tail: Int
    drained: Int
    behind: Int
    b_tile: Int
    """Bytes of a tile of the second operand."""

    def taking_turns(self, values: int) -> _Paces:
        """Where those tiles take turns that fit so many bytes: slots are waited for until the one before is done."""
        turning = ~self.whole_k & (self.b_tile <= values)
        return self._replace(waited=np.where(turning, 0, self.waited)) if turning.any() else self

    @property
    def results(self) -> Int:
        """Result tiles."""
        return self.m_tiles * self.n_tiles

    @property
    def products(self) -> Int:
        """Tile products."""
        return self.results * self.k_tiles

    def costs(self, reads: Int, port: Int, cycles: Int) -> GemmCosts:
        """Of all products of a batch."""
        batch = self.shape.batch
        whole = np.ceil(np.minimum(cycles, LONGEST)).astype(np.int64)
        return GemmCosts(
            batch * reads, batch * self.c_bytes, batch * self.compute, batch * port, batch * self.vector, whole
        )


def _paces(chip: Chip, memories: GemmMemories, work: GemmWork) -> _Paces:
    """Of tiles that do so much work."""
    shape, tile = work.shape, chip.tile
    assert isinstance(tile, NpuTile)
    m_tiles, n_tiles, k_tiles, first, out, epilogue = (
        *(work.m_tiles, work.n_tiles, work.k_tiles),
        *(work.first, work.out, work.epilogue),
    )
    a_time, b_time = work.a.cycles(chip, memories.a), work.b.cycles(chip, memories.b)
    c_time = work.c.cycles(chip, memories.c)
    p_bytes = work.p.bytes + work.f.bytes
    p_time = work.p.cycles(chip, memories.b) + work.f.cycles(chip, memories.b)
    results = m_tiles * n_tiles

    # What one tile takes at each stage.
    start = QUEUE_POP + TRANSFER_START
    a_one, b_one = work.a_one.cycles(chip, memories.a), work.b_one.cycles(chip, memories.b)
    c_one, p_one = work.c_one.cycles(chip, memories.c), work.p_one.cycles(chip, memories.b)
    arrive = chip.cycles(max(memories.a.latency, memories.b.latency)) + start + LOAD_WRITE
    away = chip.cycles(memories.c.latency) + start + STORE_WRITE
    product = work.product
    # A slot of a double buffer is taken from the start of its load until the product that reads it is done, so each
    # pair of products but the first waits that long; the same holds for sums and results.
    times = shape.batch
    result = product * k_tiles
    partial_turn = result + _waits(times * results) * (first + result + out + epilogue)
    result_turn = epilogue + _waits(times * results) * (epilogue + c_one + start)
    # Each pace, with what comes before the first of its steps and behind the last, whose tile is the rest at the edges.
    fetch, _ = fetch_cycles(chip)
    last_store = work.c_last.cycles(chip, memories.c)
    lead = fetch + a_one + b_one + arrive + first
    ending = out + work.last_epilogue
    tail = ending + last_store + away
    # Instructions are issued in order: what does not fit the store unit's queue keeps the next tile's products behind.
    stores, depth = work.stores, tile.sequencer.queue_depth
    behind_stores = arrive + first + result + out + epilogue + c_one * np.maximum(stores - depth, 0) / stores
    held_up = np.where(stores > depth, times * results * behind_stores, 0)
    worked = np.maximum(np.maximum(times * np.maximum(work.compute, work.sequencer), partial_turn), held_up)
    drained = lead + result + out + np.maximum(times * work.vector, result_turn) + last_store + away
    behind = fetch + arrive + first + product + ending + away
    return _Paces(
        shape,
        work.blocks,
        m_tiles,
        n_tiles,
        k_tiles,
        work.whole_k,
        work.a.bytes,
        work.b.bytes,
        work.c.bytes,
        p_bytes,
        a_time,
        b_time,
        c_time,
        p_time,
        a_one,
        b_one,
        p_one,
        work.compute,
        work.vector,
        product,
        work.rest,
        result,
        arrive,
        first,
        product,
        out,
        epilogue,
        worked,
        lead,
        tail,
        drained,
        behind,
        work.b_tile,
    )


def _reloaded(at: _Paces, order: Order) -> GemmCosts:
    """Costs where tiles of both operands lie in slots, and that of the outer loop may stay."""
    n_outer, pairs = order == "n_outer", order == "m_pairs"
    shape, times, whole_k, m_tiles, n_tiles = at.shape, at.shape.batch, at.whole_k, at.m_tiles, at.n_tiles
    results, product, arrive, first = at.results, at.product, at.arrive, at.first
    rounds = -(-m_tiles // 2) if pairs else m_tiles
    a_times = n_tiles if n_outer else np.where(whole_k, 1, n_tiles)
    b_times = np.where(whole_k, 1, m_tiles) if n_outer else rounds
    parameter_times = np.ones_like(n_tiles) if n_outer else np.where(n_tiles == 1, 1, m_tiles)
    reads = at.a_bytes * a_times + at.b_bytes * b_times + at.p_bytes * parameter_times + at.c_bytes * shape.residual
    port = at.a_time * a_times + at.b_time * b_times + at.p_time * parameter_times + at.c_time * (1 + shape.residual)
    kept, moving, outer = (at.b_one, at.a_one, n_tiles) if n_outer else (at.a_one, at.b_one, rounds)
    if pairs:  # two tiles stay, and what moves meets both
        kept, moving = 2 * at.a_one, at.b_one
    inner = results // outer
    stay = inner * product
    operand_turn = product + _waits(times * at.products) * (
        np.where(whole_k, moving, at.a_one + at.b_one) + arrive + first + at.waited
    )
    kept_turn = stay + _waits(times * outer) * (kept + arrive + BARRIER + first + stay)
    # Loads go in order: that of the operand which stays comes behind those for the products before it, and those
    # wait for one another's slots.
    ahead = np.maximum(inner - SLOTS, 0) * product + np.where(inner > 1, moving, 0)
    opening = kept + moving + arrive + BARRIER + first
    if n_outer:  # what requantises is loaded first of all, and kept until the last sums have passed
        opening = opening + at.p_one
        scale_turn = inner * at.result + _waits(times * outer) * (
            at.p_one + at.a_one + at.b_one + arrive + first + inner * at.result + at.out + at.epilogue
        )
    else:
        scale_turn = np.where(n_tiles == 1, 0, _waits(times * results) * (at.p_one + arrive + at.epilogue))
    queue_turn = stay + (times * outer - 1) * (ahead + opening)
    if pairs:  # nothing is loaded for the next pair before this one is done
        kept_turn = times * (at.compute + outer * (kept + moving + arrive + BARRIER + first))
        both_products = moving + arrive + first + 2 * product
        operand_turn = 2 * product + _waits(-(-times * at.products // 2)) * both_products
    turns = np.maximum(operand_turn, np.where(whole_k, np.maximum(kept_turn, queue_turn), 0))
    steps = np.maximum(np.maximum(at.worked, turns), scale_turn)
    cycles = np.maximum(np.maximum(at.lead + steps + at.tail, at.drained), at.behind + times * port)
    return at.costs(reads, port, cycles)


def _kept(at: _Paces, parts: Int) -> GemmCosts:
    """Costs where as many rows as both slots hold stay, in so many ``parts``, each the rows of a result tile.

    Nothing is loaded for the next rows before these are done; parts of them are as the first columns need them.
    """
    times, n_tiles = at.shape.batch, at.n_tiles
    rounds = -(-at.m_tiles // parts)
    b_times = np.where(at.whole_k, rounds, at.m_tiles)
    p_times = np.where(n_tiles == 1, 1, rounds)
    reads = at.a_bytes + at.b_bytes * b_times + at.p_bytes * p_times + at.c_bytes * at.shape.residual
    port = at.a_time + at.b_time * b_times + at.p_time * p_times + at.c_time * (1 + at.shape.residual)
    opening = at.a_one + at.b_one + at.p_one + at.arrive + BARRIER + at.first
    stay = parts * at.result
    stay_turn = stay + _waits(times * rounds * n_tiles) * (at.b_one + at.arrive + BARRIER + at.first + stay)
    load_turn = at.product + _waits(times * at.products) * (at.b_one + at.arrive + at.first + at.waited)
    scale_turn = stay + _waits(times * rounds * n_tiles) * (
        at.p_one + np.where(at.whole_k, 0, at.b_one) + at.arrive + BARRIER + at.first + stay + at.out + at.epilogue
    )
    # behind the rest of the depth the next tile is waited for, which came no sooner than that began
    behind_rest = np.where(at.rest < at.waited, np.maximum(at.b_one + at.arrive + at.first - at.rest, 0), 0)
    worked = at.worked + times * at.results * behind_rest
    # with the first columns all rows come
    filling = np.maximum((at.a_time + at.b_time / n_tiles) / rounds - stay, 0)
    turns = np.maximum(np.where(at.whole_k, stay_turn, load_turn), np.where(n_tiles == 1, 0, scale_turn))
    steps = np.maximum(worked, turns) + (times * rounds - 1) * opening + times * rounds * filling
    cycles = np.maximum(np.maximum(at.lead + at.p_one + steps + at.tail, at.drained), at.behind + times * port)
    return at.costs(reads, port, cycles)


def _work(
    tile: NpuTile, array: SystolicArray, shape: GemmShape, m_parts: Parts, n_parts: Parts, k_parts: Parts
) -> tuple[Int, Int]:
    """Cycles of the array and of the vector unit for all tiles, whole ones and rests."""
    compute = vector = np.zeros((1, 1, 1), np.int64)
    m_some, n_some, k_some = ([part for part in parts if part[1].any()] for parts in (m_parts, n_parts, k_parts))
    for tall, m_count in m_some:
        for wide, n_count in n_some:
            for deep, k_count in k_some:
                pace = matmul_pace(array, tall, shape.whole_n(array, wide), np.maximum(deep, 1), shape.packing)
                compute = compute + m_count * n_count * k_count * pace
            vector = vector + m_count * n_count * _epilogue(shape, tile, tall, wide)
    return compute, vector


def _issued(tile: NpuTile, shape: GemmShape, k_tiles: Int, products: Int) -> Int:
    """Cycles of the sequencer for a result tile, of so many products for each tile along the depth."""
    issue, loop, whole = tile.sequencer.issue_cycles, tile.sequencer.loop_cycles, k_tiles == 1
    loads = 2 - whole.astype(np.int64)
    for_tiles = k_tiles * ((products + loads) * issue + np.where(whole, 0, loop))
    return np.asarray(for_tiles + (len(shape.passes) + 1 + shape.residual) * issue + loop, np.int64)


class _Operands(NamedTuple):
    """Transfers of both operands, results, parameters of columns, and parameters of functions."""

    a: _Transfers
    b: _Transfers
    c: _Transfers
    p: _Transfers
    extra: _Transfers


def _operands(
    chip: Chip,
    memories: GemmMemories,
    shape: GemmShape,
    layout: GemmLayout,
    sizes: tuple[Int, Int, Int],
    tiles: tuple[Int, Int, Int],
) -> _Operands:
    """Where the tiles of each operand begin, of so many tiles of these sizes along m, n and k."""
    (m, n, k), (m_tiles, n_tiles, k_tiles), bits = sizes, tiles, shape.dtype.bits
    a_places: Any
    b_places: Any
    c_places: Any
    columns = np.maximum(n // (2 if shape.output_halved else 1), 1)
    c_tiles = -(-shape.stored_n // columns)
    if layout.blocks:
        line, within = layout.a_line(np.minimum(m, shape.m)), layout.a_line(min(shape.m, layout.rows))
        part = m < min(shape.m, layout.rows)  # of a block, whose lines are not all its own
        a_places = np.where(m_tiles > 1, np.where(part, layout.size(m), layout.a_pitch), 0)
        a_places = a_places | np.where(k_tiles > 1, np.where(part, within, line) * k, 0)
        a: _Transfers = _Blocks(chip, memories.a, layout, a_places, m)
    else:
        a_places = np.where(m_tiles > 1, m * layout.a_row, 0) | np.where(k_tiles > 1, layout.size(k), 0)
        a = _Transfers(chip, memories.a, bits, layout.a_row, layout.a_local, a_places, fills=True)
    c_places = np.where(m_tiles > 1, m * layout.c_row, 0) | np.where(c_tiles > 1, layout.size(columns), 0)
    if shape.packed:
        panels = PanelLayout(chip, layout)
        b_places = np.where(n_tiles > 1, panels.pitch(n), 0)
        b: _Transfers = _Panels(
            chip, memories.b, panels, lambda wide: b_places | np.where(k_tiles > 1, panels.tile(wide, k), 0)
        )
    else:
        b_places = np.where(n_tiles > 1, layout.size(n), 0) | np.where(k_tiles > 1, k * layout.b_row, 0)
        b = _Transfers(chip, memories.b, bits, layout.b_row, layout.b_local, b_places)
    p_places = np.where(c_tiles > 1, layout.columns(columns), 0)
    return _Operands(
        a,
        b,
        _Transfers(chip, memories.c, bits, layout.c_row, layout.c_local, c_places),
        _Tiles(chip, memories.b, lambda _, wide: layout.columns(wide), lambda _: p_places),
        _Tiles(chip, memories.b, lambda _, size: size, np.zeros_like),
    )


def _waits(uses: Int) -> Int:
    """How often a slot of a double buffer is waited for, one use behind the other."""
    return np.maximum(-(-uses // SLOTS) - 1, 0)


def _epilogue(shape: GemmShape, tile: NpuTile, m: Int, n: Int) -> Int:
    """Vector cycles of one result tile of ``m`` rows and ``n`` columns of sums."""
    total, columns = np.zeros((1, 1, 1), np.int64), n // (2 if shape.output_halved else 1)
    for each in shape.passes:
        total = total + vector_cycles(tile.vector, each.function, m, columns, dtype=tile.parameter_format)
    return total


class _Transfer(NamedTuple):
    """Transfers of one kind that a tile takes, ``where`` it takes any: bytes that they move.

    ``busiest`` are bytes that all ports of the memory could have moved meanwhile, where it has several; ``made`` cycles
    of what decompresses them.
    """

    moved: Int
    busiest: Int | None = None
    made: Int | None = None
    where: NDArray[np.bool_] | None = None

    def within(self, where: NDArray[np.bool_]) -> _Transfer:
        """Where it is the other, too."""
        return self._replace(where=where if self.where is None else self.where & where)

    @property
    def bytes(self) -> Int:
        return self.moved if self.where is None else np.where(self.where, self.moved, 0)

    def cycles(self, chip: Chip, memory: Memory) -> Int:
        """For which they hold the memory port."""
        held: Int = np.asarray(passing_cycles(chip, memory, self.moved, self.busiest))
        if self.made is not None:
            held = np.maximum(held, self.made)
        return held if self.where is None else np.where(self.where, held, 0)


class _Moved:
    """What moves one tile."""

    def __init__(self, transfers: Sequence[_Transfer]) -> None:
        self.transfers = transfers
        self._last: tuple[tuple[int, int], Int] | None = None
        """What was answered last: of which bandwidth, and cycles a second of all tiles."""

    @property
    def bytes(self) -> Int:
        first, *others = (each.bytes for each in self.transfers)
        return sum(others, first)

    def cycles(self, chip: Chip, memory: Memory) -> Int:
        """For which it holds the memory port."""
        asked = memory.total_bandwidth, chip.clock * chip.tile_count
        if self._last is None or self._last[0] != asked:
            first, *others = (each.cycles(chip, memory) for each in self.transfers)
            self._last = asked, sum(others, first)
        return self._last[1]


class _AllMoved:
    """What moves all tiles of an operand: of each kind of tile how many there are."""

    def __init__(self, parts: Sequence[tuple[Int, _Moved]]) -> None:
        self.parts = parts
        self.bytes: Int = sum((many * each.bytes for many, each in parts), np.zeros((1, 1, 1), np.int64))

    def cycles(self, chip: Chip, memory: Memory) -> Int:
        """For which they hold the memory port."""
        return sum((many * each.cycles(chip, memory) for many, each in self.parts), np.zeros((1, 1, 1), np.int64))


class _Transfers:
    """Transfers of the tiles of one operand that lies row by row.

    ``pitch`` is from row to row in memory, ``local`` gives that of a tile's columns in local memory; tiles begin at
    multiples of ``places``.
    """

    def __init__(
        self,
        chip: Chip,
        memory: Memory,
        bits: int,
        pitch: int,
        local: Callable[[Int], Int],
        places: Int,
        *,
        fills: bool = False,
    ) -> None:
        assert isinstance(chip.tile, NpuTile)
        self.fills = fills
        self.dma, self.memory, self.bits = chip.tile.dma, memory, bits
        self.pitch, self.local, self.places = pitch, local, places
        self._known: dict[tuple[int, int], tuple[Int, Int, _Moved]] = {}
        """What was asked of which sizes: by their places in Python's memory, so they are kept, too."""

    def instructions(self, rows: Int, cols: Int) -> Int:
        """Instructions that move one tile: several where it is cut."""
        width, local, bus = -(-cols * self.bits // 8), self.local(cols), self.dma.bytes_per_cycle
        made = moved_rows(bus, rows, width, np.asarray(self.pitch), local, self.places, fills=self.fills)
        return made.transfers + np.zeros_like(rows * cols)

    def total(self, row_parts: Parts, col_parts: Parts) -> _AllMoved:
        """Of all tiles."""
        return _AllMoved(
            [
                (many * count, self.one(tall, wide))
                for tall, many in row_parts
                for wide, count in col_parts
                if many.any() and count.any()
            ]
        )

    def one(self, rows: Int, cols: Int) -> _Moved:
        """Of one tile: the whole ones are asked for twice."""
        known = self._known.get((id(rows), id(cols)))
        if known is None:
            known = self._known[id(rows), id(cols)] = rows, cols, _Moved(self._both(rows, cols))
        return known[2]

    def _both(self, rows: Int, cols: Int) -> list[_Transfer]:
        return self._moved(rows, -(-cols * self.bits // 8), np.asarray(self.pitch), self.local(cols), self.places)

    def _moved(self, rows: Int, width: Int, pitch: Int, local: Int, places: Int) -> list[_Transfer]:
        """Rows that adjoin are one row, as the builder makes them."""
        made = moved_rows(self.dma.bytes_per_cycle, rows, width, pitch, local, places, fills=self.fills)
        found = [self._priced(made.rows, made.width)]
        if made.rest_rows.any():
            found.append(self._priced(made.rest_rows, made.rest).within(made.rest_rows > 0))
        return found

    def _priced(self, rows: Int, width: Int) -> _Transfer:
        moved: Int = np.asarray(moved_bytes(self.memory, rows, width))
        return _Transfer(
            moved, None if self.memory.channels == 1 else np.asarray(striped_bytes(self.memory, rows, width))
        )


class _Tiles(_Transfers):
    """Transfers of the tiles of one operand that lies tile by tile.

    ``size`` gives the bytes of one of so many rows and columns, ``begins`` what those of so many columns begin at
    multiples of.
    """

    def __init__(
        self, chip: Chip, memory: Memory, size: Callable[[Int, Int], Int], begins: Callable[[Int], Int]
    ) -> None:
        super().__init__(chip, memory, 8, 0, lambda cols: cols, np.zeros(1, np.int64))
        self.size, self.begins = size, begins

    def _both(self, rows: Int, cols: Int) -> list[_Transfer]:
        width = self.size(rows, cols)
        return self._moved(np.ones_like(width), width, width, width, self.begins(cols))


class _Blocks(_Transfers):
    """Transfers of the tiles of a first operand in blocks of rows, each transposed, of ``many`` rows but for the last.

    Of the last tile, too, sizes are asked for by a table of their own.
    """

    def __init__(self, chip: Chip, memory: Memory, layout: GemmLayout, places: Int, many: Int) -> None:
        super().__init__(chip, memory, layout.shape.dtype.bits, layout.a_pitch, lambda width: width, places)
        self.layout, self.within = layout, layout.a_line(min(layout.shape.m, layout.rows))
        self.many = many

    def _both(self, rows: Int, cols: Int) -> list[_Transfer]:
        """Whole blocks, and the lines of another one: all of that one, or those of a part of the array's rows."""
        layout = self.layout
        whole, rest = rows // layout.rows, rows % layout.rows
        width = np.asarray(layout.a_block(cols))
        moved = self._moved(np.maximum(whole, 1), width, np.asarray(self.pitch), width, self.places)
        found = [each.within(whole > 0) for each in moved]
        if not np.any(rest):
            return found
        local = layout.a_line(rest)
        # lines of a block that is read as a whole adjoin: of the last one, too, where a tile begins with it
        ends = rows is not self.many and rest == layout.shape.m % layout.rows
        part = (whole == 0) & (rest < layout.shape.m) & np.logical_not(ends)
        wide, pitch = np.where(part, layout.size(rest), local), np.where(part, self.within, local)
        # behind whole blocks, in main memory as in local memory
        places = self.places | np.where(whole > 0, whole * (width | self.pitch), 0)
        more = self._moved(np.maximum(cols, 1), np.maximum(wide, 1), pitch, local, places)
        return [*found, *(each.within((rest > 0) & (cols > 0)) for each in more)]


class _Panels(_Tiles):
    """Transfers of the tiles of parameters, whose last panels may lie in narrower rows."""

    def __init__(self, chip: Chip, memory: Memory, panels: PanelLayout, begins: Callable[[Int], Int]) -> None:
        super().__init__(chip, memory, lambda deep, wide: panels.tile(wide, deep), begins)
        self.panels = panels

    def _both(self, rows: Int, cols: Int) -> list[_Transfer]:
        ratio = self.panels.layout.shape.compression
        if ratio is not None:
            local = np.asarray(self.panels.layout.b_tile(cols, rows))
            whole = np.ones_like(local)
            made: Int = np.asarray(decompressing_cycles(self.dma, whole, local))
            return [self._priced(*stored_bytes(self.memory, whole, local, ratio))._replace(made=made)]
        if not self.panels.ends:
            return super()._both(rows, cols)
        whole, others = self.panels.spread(cols, rows)
        found = [
            each.within(whole > 0) for each in self._moved(np.ones_like(whole), whole, whole, whole, self.begins(cols))
        ]
        for lines, width, local in others:
            more = self._moved(np.maximum(lines, 1), width, width, local, width | local)
            found += [each.within(lines > 0) for each in more]
        return found


Parts = list[tuple[Int, Int]]


def _parts(total: int, size: Int) -> Parts:
    """Size and number of the full tiles along a dimension, and of the rest."""
    full, rest = total // size, total % size
    return [(size, full), (rest, (rest > 0).astype(np.int64))]


__all__ = ["GemmCosts", "GemmMemories", "GemmWork", "ORDERS", "Order", "gemm_costs", "gemm_work"]
