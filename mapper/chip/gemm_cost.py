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
    access_cycles,
    fetch_cycles,
    load_cycles,
    moved_bytes,
    stored_bytes,
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
    shape: GemmShape,
    m: Int,
    n: Int,
    k: Int,
    orders: Sequence[Order] = ORDERS,
    values: Sequence[int] = (0,),
    held: Int | None = None,
) -> list[dict[Order, GemmCosts]]:
    """Cost the tilings ``m`` x ``n`` x ``k`` with each of these orders of the outer loops that there is.

    Tiles of the second operand take turns in two rings where they fit a slot of so many bytes (`gemm.takes_turns`):
    there is an answer for each of ``values``. With `KEPT` as orders ``held`` are the rows that stay, and ``m`` those of
    a result tile.

    The sizes are broadcast: what depends on two of them is worked out for those two only.
    """
    at = _paces(chip, memories, shape, (m, n, k))
    found = []
    for turns in (at.taking_turns(size) for size in values):
        if held is not None:
            found.append({KEPT[0]: _kept(turns, held // m)})
            continue
        some = [o for o in orders if o != "m_pairs" or (not at.blocks and np.any(at.whole_k & (at.m_tiles > 1)))]
        found.append({order: _reloaded(turns, order) for order in some})
    return found


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


def _paces(chip: Chip, memories: GemmMemories, shape: GemmShape, sizes: tuple[Int, Int, Int]) -> _Paces:
    """Of tiles of these sizes."""
    m, n, k = sizes
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    array = oriented(tile).array
    sums = shape.halves
    layout = gemm_layout_of(tile, shape)
    columns = np.maximum(n // sums, 1)
    m_parts, n_parts, k_parts = _parts(shape.m, m), _parts(shape.n, n), _parts(shape.k, k)
    m_tiles, n_tiles, k_tiles = (-(-total // size) for total, size in ((shape.m, m), (shape.n, n), (shape.k, k)))
    whole_k = k_tiles == 1

    a, b, c, p, extra = _operands(chip, memories, shape, layout, (m, n, k), (m_tiles, n_tiles, k_tiles))
    c_parts, one = _parts(shape.stored_n, columns), np.ones_like(n)
    a_bytes, a_time = a.total(m_parts, k_parts)
    b_bytes, b_time = b.total(k_parts, n_parts)
    c_bytes, c_time = c.total(m_parts, c_parts)
    p_bytes, p_time = p.total([(one, one)], c_parts)
    f_bytes, f_time = extra.total([(one, n_tiles)], [(np.full_like(n, layout.function_bytes), one)])
    p_bytes, p_time = p_bytes + f_bytes, p_time + f_time

    compute, vector = _work(tile, array, shape, m_parts, n_parts, k_parts)
    results = m_tiles * n_tiles
    products = results * k_tiles
    sequencer = results * _issued(tile, shape, k_tiles, 1 + layout.apart(columns))

    # What one tile takes at each stage.
    start = QUEUE_POP + TRANSFER_START
    a_one, b_one, c_one, p_one = a.one(m, k), b.one(k, n), c.one(m, columns), p.one(one, columns)
    arrive = chip.cycles(max(memories.a.latency, memories.b.latency)) + start + LOAD_WRITE
    away = chip.cycles(memories.c.latency) + start + STORE_WRITE
    first = first_load(array, k, shape.packing)
    product = compute / products
    out = array.output_latency + ACCUMULATOR_WRITE
    epilogue = _epilogue(shape, tile, m, n) + QUEUE_POP
    # A slot of a double buffer is taken from the start of its load until the product that reads it is done, so each
    # pair of products but the first waits that long; the same holds for sums and results.
    times = shape.batch
    result = product * k_tiles
    partial_turn = result + _waits(times * results) * (first + result + out + epilogue)
    result_turn = epilogue + _waits(times * results) * (epilogue + c_one + start)
    # Each pace, with what comes before the first of its steps and behind the last, whose tile is the rest at the edges.
    fetch, _ = fetch_cycles(chip)
    last_m, last_n = (np.where(rest > 0, rest, size) for (size, _), (rest, _) in (m_parts, n_parts))
    last_store = c.one(last_m, np.maximum(last_n // sums, 1))
    lead = fetch + a_one + b_one + arrive + first
    ending = out + _epilogue(shape, tile, last_m, last_n) + QUEUE_POP
    tail = ending + last_store + away
    # Instructions are issued in order: what does not fit the store unit's queue keeps the next tile's products behind.
    stores, depth = c.instructions(m, columns), tile.sequencer.queue_depth
    behind_stores = arrive + first + result + out + epilogue + c_one * np.maximum(stores - depth, 0) / stores
    held_up = np.where(stores > depth, times * results * behind_stores, 0)
    worked = np.maximum(np.maximum(times * np.maximum(compute, sequencer), partial_turn), held_up)
    drained = lead + result + out + np.maximum(times * vector, result_turn) + last_store + away
    behind = fetch + arrive + first + product + ending + away
    return _Paces(
        shape,
        layout.blocks,
        m_tiles,
        n_tiles,
        k_tiles,
        whole_k,
        a_bytes,
        b_bytes,
        c_bytes,
        p_bytes,
        a_time,
        b_time,
        c_time,
        p_time,
        a_one,
        b_one,
        p_one,
        compute,
        vector,
        product,
        np.where(shape.k % k > 0, product * k_tiles * (shape.k % k) / shape.k, product),
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
        np.asarray(layout.b_tile(n, k)),
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
        self.fills = fills
        self.chip, self.memory, self.bits = chip, memory, bits
        self.pitch, self.local, self.places = pitch, local, places
        self._known: dict[tuple[int, int], tuple[Int, Int, tuple[Int, Int]]] = {}
        """What was asked of which sizes: by their places in Python's memory, so they are kept, too."""

    def one(self, rows: Int, cols: Int) -> Int:
        """Port cycles of one tile."""
        return self._bytes_and_cycles(rows, cols)[1]

    def instructions(self, rows: Int, cols: Int) -> Int:
        """Instructions that move one tile: several where it is cut."""
        width, local = -(-cols * self.bits // 8), self.local(cols)
        bus = self.chip.tile.dma.bytes_per_cycle  # type: ignore[union-attr]
        made = moved_rows(bus, rows, width, np.asarray(self.pitch), local, self.places, fills=self.fills)
        return made.transfers + np.zeros_like(rows * cols)

    def total(self, row_parts: Parts, col_parts: Parts) -> tuple[Int, Int]:
        """Bytes and port cycles of all tiles."""
        size = time = np.zeros((1, 1, 1), np.int64)
        for tall, many in row_parts:
            for wide, count in col_parts:
                if not (many.any() and count.any()):
                    continue
                moved, held = self._bytes_and_cycles(tall, wide)
                size, time = size + many * count * moved, time + many * count * held
        return size, time

    def _bytes_and_cycles(self, rows: Int, cols: Int) -> tuple[Int, Int]:
        """Of one tile: the whole ones are asked for twice."""
        known = self._known.get((id(rows), id(cols)))
        if known is None:
            known = self._known[id(rows), id(cols)] = rows, cols, self._both(rows, cols)
        return known[2]

    def _both(self, rows: Int, cols: Int) -> tuple[Int, Int]:
        return self._moved(rows, -(-cols * self.bits // 8), np.asarray(self.pitch), self.local(cols), self.places)

    def _moved(self, rows: Int, width: Int, pitch: Int, local: Int, places: Int) -> tuple[Int, Int]:
        """Rows that adjoin are one row, as the builder makes them."""
        bus = self.chip.tile.dma.bytes_per_cycle  # type: ignore[union-attr]
        made = moved_rows(bus, rows, width, pitch, local, places, fills=self.fills)
        moved, held = self._priced(made.rows, made.width)
        if not made.rest_rows.any():
            return moved, held
        more, longer = self._priced(made.rest_rows, made.rest)
        return moved + more, held + np.where(made.rest_rows > 0, longer, 0)

    def _priced(self, rows: Int, width: Int) -> tuple[Int, Int]:
        return moved_bytes(self.memory, rows, width), access_cycles(self.chip, self.memory, rows, width)


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

    def _both(self, rows: Int, cols: Int) -> tuple[Int, Int]:
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

    def _both(self, rows: Int, cols: Int) -> tuple[Int, Int]:
        """Whole blocks, and the lines of another one: all of that one, or those of a part of the array's rows."""
        layout = self.layout
        whole, rest = rows // layout.rows, rows % layout.rows
        width = np.asarray(layout.a_block(cols))
        moved, held = self._moved(np.maximum(whole, 1), width, np.asarray(self.pitch), width, self.places)
        moved, held = np.where(whole > 0, moved, 0), np.where(whole > 0, held, 0)
        if not np.any(rest):
            return moved, held
        local = layout.a_line(rest)
        # lines of a block that is read as a whole adjoin: of the last one, too, where a tile begins with it
        ends = rows is not self.many and rest == layout.shape.m % layout.rows
        part = (whole == 0) & (rest < layout.shape.m) & np.logical_not(ends)
        wide, pitch = np.where(part, layout.size(rest), local), np.where(part, self.within, local)
        # behind whole blocks, in main memory as in local memory
        places = self.places | np.where(whole > 0, whole * (width | self.pitch), 0)
        more, longer = self._moved(np.maximum(cols, 1), np.maximum(wide, 1), pitch, local, places)
        some = (rest > 0) & (cols > 0)
        return moved + np.where(some, more, 0), held + np.where(some, longer, 0)


class _Panels(_Tiles):
    """Transfers of the tiles of parameters, whose last panels may lie in narrower rows."""

    def __init__(self, chip: Chip, memory: Memory, panels: PanelLayout, begins: Callable[[Int], Int]) -> None:
        super().__init__(chip, memory, lambda deep, wide: panels.tile(wide, deep), begins)
        self.panels = panels

    def _both(self, rows: Int, cols: Int) -> tuple[Int, Int]:
        ratio = self.panels.layout.shape.compression
        if ratio is not None:
            local = np.asarray(self.panels.layout.b_tile(cols, rows))
            stored = stored_bytes(self.memory, np.ones_like(local), local, ratio)
            held: Int = np.asarray(load_cycles(self.chip, self.memory, np.ones_like(local), local, ratio))
            return np.asarray(moved_bytes(self.memory, *stored)), held
        if not self.panels.ends:
            return super()._both(rows, cols)
        whole, others = self.panels.spread(cols, rows)
        moved, held = self._moved(np.ones_like(whole), whole, whole, whole, self.begins(cols))
        moved, held = np.where(whole > 0, moved, 0), np.where(whole > 0, held, 0)
        for lines, width, local in others:
            more, longer = self._moved(np.maximum(lines, 1), width, width, local, width | local)
            moved, held = moved + np.where(lines, more, 0), held + np.where(lines, longer, 0)
        return moved, held


Parts = list[tuple[Int, Int]]


def _parts(total: int, size: Int) -> Parts:
    """Size and number of the full tiles along a dimension, and of the rest."""
    full, rest = total // size, total % size
    return [(size, full), (rest, (rest > 0).astype(np.int64))]


__all__ = ["GemmCosts", "GemmMemories", "ORDERS", "Order", "gemm_costs"]
