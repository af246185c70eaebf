"""What a GEMM's tilings should take: many at once, with the durations that the simulator itself uses.

Every unit's own work is exact: the sums, over full tiles and the rests at the edges, of `sim.timing`'s durations. What
is estimated is how they go together: the unit, or the turn-around of a double buffer, that needs the longest sets the
pace, and before and behind its work come the stages that nothing hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.description import Chip
from siliconloom.arch.kernels import UNCOUNTED, kernel, part
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.timing import BARRIER, LOAD_WRITE, QUEUE_POP, STORE_WRITE, TRANSFER_START
from siliconloom.mapper.chip.gemm_moves import GemmMemories
from siliconloom.mapper.chip.gemm_work import (
    A_BYTES,
    A_ONE,
    A_TIME,
    AGAIN_BYTES,
    AGAIN_TIME,
    ALONE,
    B_BYTES,
    B_ONE,
    B_TILE,
    B_TIME,
    C_BYTES,
    C_ONE,
    C_TIME,
    COMPUTE,
    DRAINS,
    EPILOGUE,
    F_TIME,
    FIRST,
    HELD,
    K_TILES,
    LAST_EPILOGUE,
    LAST_STORE,
    M_TILES,
    N_TILES,
    P_BYTES,
    P_ONE,
    P_TIME,
    PRODUCT,
    REST,
    SEQUENCER,
    STORES,
    VECTOR,
    WHOLE_K,
    M,
    TileColumns,
)
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

READS, WRITES, ARRAY, PORT, VECTORS, CYCLES, COST_ROWS = range(7)
"""Rows of costs, a column for each tiling: bytes moved, each unit's own cycles, and what all together should take."""
_N_OUTER, _M_OUTER, _M_PAIRS, _M_KEPT = range(4)
_NUMBERS: dict[Order, int] = {"n_outer": _N_OUTER, "m_outer": _M_OUTER, "m_pairs": _M_PAIRS, "m_kept": _M_KEPT}


def gemm_costs(
    chip: Chip,
    memories: GemmMemories,
    work: TileColumns,
    orders: Sequence[Order] = ORDERS,
    values: Sequence[int] = (0,),
) -> list[dict[Order, Int]]:
    """Cost tilings with each of these orders of the outer loops that there is: rows of `READS` and so on.

    Tiles of the second operand take turns in two rings where they fit a slot of so many bytes (`gemm.takes_turns`):
    there is an answer for each of ``values``. With `KEPT` as orders work has the rows that stay, and the tilings'
    rows are those of a result tile.
    """
    stages, held = _stages(chip, memories, work), work.moved.cycles(chip, memories, work.places)
    tiles = _Tiles(work.whole, work.real, held)
    turning = bool((work.whole[WHOLE_K] == 0).any())
    if "m_pairs" in orders:
        pairs = not work.blocks and bool(((work.whole[WHOLE_K] > 0) & (work.whole[M_TILES] > 1)).any())
        orders = [order for order in orders if order != "m_pairs" or pairs]
    known: dict[tuple[Order, int], Int] = {}
    for size in values:
        for order in orders:
            key = order, size if turning else 0
            if key not in known:
                known[key] = np.empty((COST_ROWS, work.whole.shape[1]), np.int64)
                cost_tiles(_NUMBERS[order], size, stages, tiles, known[key])
    return [{order: known[order, size if turning else 0] for order in orders} for size in values]


class _Stages(NamedTuple):
    """What is the same for all tilings of a product: cycles of stages, and counts.

    ``arrive`` are cycles from the end of a load's transfer to what reads it, ``away`` from a store's to where it is
    known, ``out`` those in which sums leave the array; ``depth`` instructions wait in a unit's queue.
    """

    batch: int
    residual: int
    passes: int
    depth: int
    fetch: int
    start: int
    arrive: int
    away: int
    out: int


class _Tiles(NamedTuple):
    """Arrays of a column for each tiling."""

    whole: Any
    """`TileColumns.whole`"""
    real: Any
    """`TileColumns.real`"""
    time: Any
    """`MovedTiles.cycles`"""


class _Pace(NamedTuple):
    """What sets the pace of a tiling.

    ``first`` are cycles from a tile's last transfer to its first product, ``waited`` those for which a slot is waited
    for, ``behind`` those that all transfers have before and behind them; ``queued`` are the result tiles whose
    instructions the units' queues hold; ``worked`` is the pace of array, sequencer and sums.
    """

    result: Any
    """Cycles of all products of a result tile."""
    waited: Any
    queued: Any
    worked: Any
    lead: Any
    tail: Any
    drained: Any
    behind: Any


def _stages(chip: Chip, memories: GemmMemories, work: TileColumns) -> _Stages:
    tile, start = chip.tile, QUEUE_POP + TRANSFER_START
    assert isinstance(tile, NpuTile)
    return _Stages(
        work.shape.batch,
        int(work.shape.residual),
        len(work.shape.passes),
        tile.sequencer.queue_depth,
        fetch_cycles(chip)[0],
        start,
        chip.cycles(max(memories.a.latency, memories.b.latency)) + start + LOAD_WRITE,
        chip.cycles(memories.c.latency) + start + STORE_WRITE,
        work.out,
    )


@kernel(**UNCOUNTED, error_model="numpy")
def cost_tiles(order: Any, values: Any, stages: _Stages, tiles: _Tiles, found: Any) -> None:
    """Fill ``found`` with the costs of all tilings in one order of the loops."""
    whole, batch = tiles.whole, stages.batch
    for i in range(whole.shape[1]):
        pace = _paced(stages, tiles, i, values)
        if order == _M_KEPT:
            reads, port, cycles = _kept(stages, tiles, i, pace)
        else:
            reads, port, cycles = _reloaded(order, stages, tiles, i, pace)
        found[READS, i], found[WRITES, i] = batch * reads, batch * whole[C_BYTES, i]
        found[ARRAY, i], found[PORT, i] = batch * whole[COMPUTE, i], batch * port
        found[VECTORS, i], found[CYCLES, i] = batch * whole[VECTOR, i], np.int64(np.ceil(min(cycles, LONGEST)))


@part()
def _paced(at: _Stages, tiles: _Tiles, i: Any, values: Any) -> Any:
    """What sets the pace of tiling ``i``, whose tiles of the second operand take turns where they fit ``values``."""
    whole, real, time, batch = tiles.whole, tiles.real, tiles.time, at.batch
    product, first, epilogue, drains = real[PRODUCT, i], whole[FIRST, i], whole[EPILOGUE, i], whole[DRAINS, i]
    results = whole[M_TILES, i] * whole[N_TILES, i]
    # A slot of a double buffer is taken from the start of its load until the product that reads it is done, so each
    # pair of products but the first waits that long; the same holds for sums and results.
    result = product * whole[K_TILES, i]
    turns = batch * results - 1 if whole[ALONE, i] else _waits(batch * results)
    partial_turn = result + turns * (first + result + at.out + epilogue)
    passed, c_one = epilogue / drains, time[C_ONE, i]
    result_turn = passed + _waits(batch * results * drains) * (passed + c_one / drains + at.start)
    # Each pace, with what comes before the first of its steps and behind the last, whose tile is the rest at the edges.
    last_store = time[LAST_STORE, i]
    lead = at.fetch + time[A_ONE, i] + time[B_ONE, i] + at.arrive + first
    ending = at.out + whole[LAST_EPILOGUE, i]
    # Instructions are issued in order: what does not fit the store unit's queue keeps the next tile's products behind.
    stores, held_up = whole[STORES, i], 0.0
    if stores > at.depth:
        behind_stores = at.arrive + first + result + at.out + epilogue + c_one * max(stores - at.depth, 0) / stores
        held_up = batch * results * behind_stores
    worked = max(max(batch * max(whole[COMPUTE, i], whole[SEQUENCER, i]), partial_turn), held_up)
    turning = whole[WHOLE_K, i] == 0 and whole[B_TILE, i] <= values
    return _Pace(
        result,
        0.0 if turning else product,
        (at.depth + 1) / max(stores, drains * at.passes),
        worked,
        lead,
        ending + last_store + at.away,
        lead + result + at.out + max(batch * whole[VECTOR, i], result_turn) + last_store + at.away,
        at.fetch + at.arrive + first + product + ending + at.away,
    )


@part()
def _reloaded(order: Any, at: _Stages, tiles: _Tiles, i: Any, pace: _Pace) -> Any:
    """Bytes read, cycles of the port, and all cycles, where tiles of both operands lie in slots.

    That of the outer loop may stay.
    """
    whole, time, batch = tiles.whole, tiles.time, at.batch
    n_outer, pairs = order == _N_OUTER, order == _M_PAIRS
    whole_k, m_tiles, n_tiles = whole[WHOLE_K, i] > 0, whole[M_TILES, i], whole[N_TILES, i]
    a_one, b_one, p_one = time[A_ONE, i], time[B_ONE, i], time[P_ONE, i]
    results, product, arrive, first = m_tiles * n_tiles, tiles.real[PRODUCT, i], at.arrive, whole[FIRST, i]
    products = results * whole[K_TILES, i]
    rounds = -(-m_tiles // 2) if pairs else m_tiles
    if n_outer:
        a_times, b_times, parameter_times = n_tiles, 1 if whole_k else m_tiles, 1
    else:
        a_times, b_times, parameter_times = 1 if whole_k else n_tiles, rounds, 1 if n_tiles == 1 else m_tiles
    reads = whole[A_BYTES, i] * a_times + whole[B_BYTES, i] * b_times + whole[P_BYTES, i] * parameter_times
    reads += whole[C_BYTES, i] * at.residual
    port = time[A_TIME, i] * a_times + time[B_TIME, i] * b_times
    port += (time[P_TIME, i] + time[F_TIME, i]) * parameter_times + time[C_TIME, i] * (1 + at.residual)
    kept, moving, outer = (b_one, a_one, n_tiles) if n_outer else (a_one, b_one, rounds)
    if pairs:  # two tiles stay, and what moves meets both
        kept, moving = 2 * a_one, b_one
    inner = results // outer
    stay = inner * product
    operand_turn = product + _waits(batch * products) * (
        (moving if whole_k else a_one + b_one) + arrive + first + pace.waited
    )
    kept_turn = stay + _waits(batch * outer) * (kept + arrive + BARRIER + first + stay)
    # Loads go in order: that of the operand which stays comes behind those for the products before it, and those
    # wait for one another's slots.
    ahead = max(inner - SLOTS, 0) * product + (moving if inner > 1 else 0)
    opening = kept + moving + arrive + BARRIER + first
    if n_outer:  # what requantises is loaded first of all, and kept until the last sums have passed
        opening = opening + p_one
        scale_turn = inner * pace.result + _waits(batch * outer) * (
            p_one + a_one + b_one + arrive + first + inner * pace.result + at.out + whole[EPILOGUE, i]
        )
    elif n_tiles == 1:
        scale_turn = 0.0
    else:
        scale_turn = 1.0 * (_waits(batch * results) * (p_one + arrive + whole[EPILOGUE, i]))
    queue_turn = stay + (batch * outer - 1) * (ahead + opening)
    if pairs:  # nothing is loaded for the next pair before this one is done
        kept_turn = 1.0 * (batch * (whole[COMPUTE, i] + outer * (kept + moving + arrive + BARRIER + first)))
        both_products = moving + arrive + first + 2 * product
        operand_turn = 2 * product + _waits(-(-batch * products // 2)) * both_products
    turns = max(operand_turn, max(kept_turn, queue_turn)) if whole_k else max(operand_turn, 0.0)
    steps = max(max(pace.worked, turns), scale_turn)
    return reads, port, max(max(pace.lead + steps + pace.tail, pace.drained), pace.behind + batch * port)


@part()
def _kept(at: _Stages, tiles: _Tiles, i: Any, pace: _Pace) -> Any:
    """The same where as many rows as both slots hold stay, in parts, each the rows of a result tile.

    Nothing is loaded for the next rows before these are done; parts of them are as the first columns need them.
    """
    whole, time, batch = tiles.whole, tiles.time, at.batch
    whole_k, m_tiles, n_tiles = whole[WHOLE_K, i] > 0, whole[M_TILES, i], whole[N_TILES, i]
    a_one, b_one, p_one, c_one = time[A_ONE, i], time[B_ONE, i], time[P_ONE, i], time[C_ONE, i]
    product, rest, first, result = tiles.real[PRODUCT, i], tiles.real[REST, i], whole[FIRST, i], pace.result
    results, parts, epilogue = m_tiles * n_tiles, whole[HELD, i] // whole[M, i], whole[EPILOGUE, i]
    products = results * whole[K_TILES, i]
    rounds = -(-m_tiles // parts)
    b_times = rounds if whole_k else m_tiles
    p_times = 1 if n_tiles == 1 else rounds
    a_bytes = whole[A_BYTES, i] + whole[AGAIN_BYTES, i] * (n_tiles - 1)
    reads = a_bytes + whole[B_BYTES, i] * b_times + whole[P_BYTES, i] * p_times + whole[C_BYTES, i] * at.residual
    port = time[A_TIME, i] + time[AGAIN_TIME, i] * (n_tiles - 1) + time[B_TIME, i] * b_times
    port += (time[P_TIME, i] + time[F_TIME, i]) * p_times + time[C_TIME, i] * (1 + at.residual)
    opening = a_one + b_one + p_one + at.arrive + BARRIER + first
    stay, uses = parts * result, _waits(batch * rounds * n_tiles)
    stay_turn = stay + uses * (b_one + at.arrive + BARRIER + first + stay)
    # of rows whose depth stays in part both operands come for some of the products
    passing = time[AGAIN_TIME, i] / max(time[A_TIME, i], 1) * a_one
    load_turn = product + _waits(batch * products) * (b_one + passing + at.arrive + first + pace.waited)
    scale_turn = stay + uses * (
        p_one + (0 if whole_k else b_one) + at.arrive + BARRIER + first + stay + at.out + epilogue
    )
    # behind the rest of the depth the next tile is waited for, which came no sooner than that began
    behind_rest = max(b_one + at.arrive + first - rest, 0.0) if rest < pace.waited else 0.0
    worked = pace.worked + batch * results * behind_rest
    # with the first columns all rows come
    filling = max((time[A_TIME, i] + time[B_TIME, i] / n_tiles) / rounds - stay, 0.0)
    turns = max(stay_turn if whole_k else load_turn, 0.0 if n_tiles == 1 else scale_turn)
    steps = max(worked, turns) + (batch * rounds - 1) * opening + batch * rounds * filling
    cycles = max(max(pace.lead + p_one + steps + pace.tail, pace.drained), pace.behind + batch * port)
    if not whole_k:
        return reads, port, max(cycles, 0.0)
    # Columns of the whole depth pass as result tiles of all rows, one behind the other. Instructions are issued in
    # order: the next columns are loaded once the queues hold what is left of those before, whose stores come first.
    each = max(max(result, whole[VECTOR, i] / results), c_one)
    left, issued = min(pace.queued, parts), 0.0
    if parts > left:
        ahead, column = (parts - left) * each, b_one + at.arrive + BARRIER + first
        filled = max(time[A_TIME, i] / rounds - ahead, 0.0)
        turn = ahead + max(column + left * c_one, left * each)
        issued = column + (n_tiles - 1) * turn + filled + parts * each
    # and behind the last load are all of these
    last = max(parts * each - product - time[C_TIME, i] / (rounds * n_tiles), 0.0)
    return reads, port, max(cycles, max(batch * rounds * issued, pace.behind + batch * port + last))


@part()
def _waits(uses: Any) -> Any:
    """How often a slot of a double buffer is waited for, one use behind the other."""
    return max(-(-uses // SLOTS) - 1, 0)


@kernel(**UNCOUNTED)
def pick_cheapest(among: Any, taken: Any, moved: Any, cycles: Any, found: Any) -> None:
    """Of the tilings in each row of ``among`` the numbers of a few; -1 where there are no more.

    First the one that costs the least, as ``taken`` says, and of equals moves the fewest bytes, and of these takes the
    fewest cycles; last the fastest, of equals the cheapest; between them the cheapest, in order.
    """
    kept = found.shape[1] - 2
    for row in range(among.shape[0]):
        picks, fits = found[row], among[row]
        picks[:] = -1
        frugal, fastest = -1, -1
        least, limit, fewest = np.inf, np.inf, 0
        for i in range(fits.shape[0]):
            if not fits[i]:
                continue
            cost, taking = taken[i], cycles[i]
            if cost <= least:
                fewer = cost < least or moved[i] < moved[frugal]
                if fewer or (moved[i] == moved[frugal] and taking < cycles[frugal]):
                    frugal, least = i, cost
            if fastest < 0 or taking < fewest or (taking == fewest and cost < taken[fastest]):
                fastest, fewest = i, taking
            if cost < limit:
                place = kept
                while place > 1 and (picks[place - 1] < 0 or cost < taken[picks[place - 1]]):
                    picks[place] = picks[place - 1]
                    place -= 1
                picks[place] = i
                if picks[kept] >= 0:
                    limit = taken[picks[kept]]
        picks[0], picks[kept + 1] = frugal, fastest


__all__ = ["CYCLES", "KEPT", "ORDERS", "READS", "WRITES", "Order", "gemm_costs", "pick_cheapest"]
