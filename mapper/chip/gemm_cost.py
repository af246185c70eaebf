"""What a GEMM's tilings should take: many at once, with the durations that the simulator itself uses.

Every unit's own work is exact: the sums, over full tiles and the rests at the edges, of `sim.timing`'s durations. What
is estimated is how they go together: the unit, or the turn-around of a double buffer, that needs the longest sets the
pace, and before and behind its work come the stages that nothing hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.description import Chip
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.timing import BARRIER, LOAD_WRITE, QUEUE_POP, STORE_WRITE, TRANSFER_START
from siliconloom.mapper.chip.gemm_layout import GemmShape
from siliconloom.mapper.chip.gemm_moves import GemmMemories
from siliconloom.mapper.chip.gemm_work import TileWork
from siliconloom.mapper.chip.rings import SLOTS
from siliconloom.sim.timing.units import fetch_cycles

Int = NDArray[np.int64]
Order = Literal["n_outer", "m_outer", "m_pairs", "m_kept"]
ORDERS: tuple[Order, ...] = ("n_outer", "m_outer", "m_pairs")
"""Outer loops: over tiles of columns, over tiles of rows, over pairs of those, both of which stay in their slots."""
KEPT: tuple[Order, ...] = ("m_kept",)
"""The outer loop is over as many rows as both slots hold; result tiles have all of them or some."""

LONGEST = 2.0**53
"""Cycles that a cost may have: slow memories give more than its numbers hold."""


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
    work: TileWork,
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


class _Paces(NamedTuple):
    """What sets the pace of a tiling: transfers in bytes and cycles, all of them and of one tile; stages; turns.

    ``first`` are cycles from a tile's last transfer to its first product, ``waited`` those for which a slot is waited
    for, ``behind`` those that all transfers have before and behind them; ``queued`` are the result tiles whose
    instructions the units' queues hold, ``store`` the cycles that one's transfer takes; ``worked`` is the pace of
    array, sequencer and sums, and ``rest`` the last tile's product of a depth that is no multiple of theirs.
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
    a_again: Int
    """Bytes of A that come for every tile of columns where a part of the depth stays, and cycles of these."""
    again_time: Int
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
    store: Int
    queued: NDArray[np.float64]
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


def _paces(chip: Chip, memories: GemmMemories, work: TileWork) -> _Paces:
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
    turns = np.where(work.alone, times * results - 1, _waits(times * results))
    partial_turn = result + turns * (first + result + out + epilogue)
    passed, drains = epilogue / work.drains, work.drains
    result_turn = passed + _waits(times * results * drains) * (passed + c_one / drains + start)
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
        work.again.bytes,
        work.again.cycles(chip, memories.a),
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
        c_one,
        (depth + 1) / np.maximum(stores, drains * len(shape.passes)),
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
    a_bytes, a_time = at.a_bytes + at.a_again * (n_tiles - 1), at.a_time + at.again_time * (n_tiles - 1)
    reads = a_bytes + at.b_bytes * b_times + at.p_bytes * p_times + at.c_bytes * at.shape.residual
    port = a_time + at.b_time * b_times + at.p_time * p_times + at.c_time * (1 + at.shape.residual)
    opening = at.a_one + at.b_one + at.p_one + at.arrive + BARRIER + at.first
    stay = parts * at.result
    stay_turn = stay + _waits(times * rounds * n_tiles) * (at.b_one + at.arrive + BARRIER + at.first + stay)
    # of rows whose depth stays in part both operands come for some of the products
    passing = at.again_time / np.maximum(at.a_time, 1) * at.a_one
    load_turn = at.product + _waits(times * at.products) * (at.b_one + passing + at.arrive + at.first + at.waited)
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
    # Columns of the whole depth pass as result tiles of all rows, one behind the other. Instructions are issued in
    # order: the next columns are loaded once the queues hold what is left of those before, whose stores come first.
    pace = np.maximum(np.maximum(at.result, at.vector / at.results), at.store)
    left = np.minimum(at.queued, parts)
    ahead, column = (parts - left) * pace, at.b_one + at.arrive + BARRIER + at.first
    filled = np.maximum(at.a_time / rounds - ahead, 0)
    turn = ahead + np.maximum(column + left * at.store, left * pace)
    issued = np.where(parts > left, column + (n_tiles - 1) * turn + filled + parts * pace, 0)
    # and behind the last load are all of these
    last = np.maximum(parts * pace - at.product - at.c_time / (rounds * n_tiles), 0)
    in_order = np.where(at.whole_k, np.maximum(times * rounds * issued, at.behind + times * port + last), 0)
    cycles = np.maximum(np.maximum(at.lead + at.p_one + steps + at.tail, at.drained), at.behind + times * port)
    return at.costs(reads, port, np.maximum(cycles, in_order))


def _waits(uses: Int) -> Int:
    """How often a slot of a double buffer is waited for, one use behind the other."""
    return np.maximum(-(-uses // SLOTS) - 1, 0)


__all__ = ["KEPT", "ORDERS", "GemmCosts", "Order", "gemm_costs"]
