"""FLAT's attention as events: products, softmax and memory take tile after tile as operands and room are there.

A row of tiles is 256 queries against all keys. The 2D array makes its scores tile by tile, the 1D array passes them
by three times (maximum; exponential and sum; division), the 2D array multiplies each tile of probabilities by values
as it is divided. A tile of the buffer takes the next row's scores when the product has read its probabilities. Memory
brings operands one tile ahead, and takes and brings back what finds no room, in the order in which it is asked for.
Nothing here uses the closed form.
"""

from __future__ import annotations

import math
from functools import cache

from msgspec import Struct

from siliconloom.reproduce.fusemax_events import Array
from siliconloom.reproduce.fusemax_model import (
    BANDWIDTH,
    CLOCK,
    SIDE,
    VALUE_BYTES,
    attention,
    on_arrays,
    spilled,
    tiles,
)
from siliconloom.reproduce.fusemax_tables import Model, flat_mapping

ROWS = 5
"""Rows of tiles that are run; the time between the second and the third is that of all others."""
AHEAD = 4
"""Tiles of scores that memory brings ahead, and that the first product stays behind the second, at most."""
GAPS = 16
"""Idle times of memory that are remembered."""


class TileBytes(Struct, frozen=True):
    """Bytes that a tile of scores has memory bring or take.

    Parameters
    ----------
    first, second
        Operands of its first and of its second product.
    scores
        Of the tile itself, each time that it is handed from array to array.
    through
        All scores go through memory: what an array reads has been written there and has come back.
    """

    first: float
    second: float
    scores: float
    through: bool


def tile_bytes(model: Model, length: int) -> TileBytes:
    """Operands and scores of one tile by FLAT's mapping."""
    mapping, operand = flat_mapping(model.head_dim, length), SIDE * model.head_dim * VALUE_BYTES
    count, scores = length // SIDE, SIDE * SIDE * VALUE_BYTES
    if not mapping.scores:  # queries and results stay, keys and values pass by once a block of rows
        again = SIDE / mapping.rows
        return TileBytes(operand * (again + 1 / count), operand * (again + 1 / count), scores, through=True)
    share = spilled(model, length, mapping)

    def often(stays: bool) -> float:
        return 1.0 if not stays else 1 / count + share * (1 - 1 / count)

    first = operand * (often(mapping.q) + often(mapping.k))
    return TileBytes(first, operand * (often(mapping.v) + 1 / count), scores * share, through=False)


def row_ends(model: Model, length: int, rows: int) -> list[float]:
    """End of each row of tiles, in cycles of a lane (256 to touch every score of a tile)."""
    of = on_arrays(attention("attention-3-pass", model.head_dim, 1, length), ("QK", "AV"), None)
    moves = tile_bytes(model, length)
    return (_through_memory if moves.through else _on_chip)(of, moves, length // SIDE, rows)


class ByteServer(Struct):
    """Memory as a server of bytes: what waits for its operand lets others pass.

    ``gaps`` are idle times, the last of which has no end; of those long past only the latest are kept.
    """

    gaps: list[tuple[float, float]]

    def move(self, size: float, ready: float = 0.0) -> float:
        """When so many bytes that may go from ``ready`` on have passed, in the earliest idle times there are."""
        left = size * CLOCK / BANDWIDTH
        kept, done = list[tuple[float, float]](), ready
        for place, (start, end) in enumerate(self.gaps):
            begins = max(start, ready)
            if left <= 0:
                kept += self.gaps[place:]
                break
            if begins >= end:
                kept.append((start, end))
                continue
            done = min(end, begins + left)
            left -= done - begins
            kept += [gap for gap in ((start, begins), (done, end)) if gap[1] > gap[0]]
        self.gaps = kept[-GAPS:]
        return done


def idle_memory() -> ByteServer:
    """A memory that nobody has asked for anything."""
    return ByteServer([(0.0, math.inf)])


def _on_chip(of: dict[str, float], moves: TileBytes, count: int, rows: int) -> list[float]:
    """Rows whose scores stay on chip, but for the share that finds no room."""
    grid, lanes, memory = Array(), Array(), idle_memory()
    ends, ahead = list[float](), max(1, min(AHEAD, count // 4))
    made = [_scores(grid, memory, of["QK"], moves, 0.0) for _ in range(count)]
    for row in range(rows):
        scores, maximum = made, 0.0
        for ready in scores:
            maximum = lanes.run(of["GM"], ready)
        total, coming = maximum, memory.move(moves.scores, maximum)
        for tile in range(count):  # a tile's share comes back while the one before is worked on
            ready, coming = coming, memory.move(moves.scores * (tile + 1 < count), maximum)
            total = lanes.run(of["SN"] + of["SD"], ready)
            memory.move(moves.scores, maximum)  # exponentials, a tile behind
        product, made = total, list[float]()
        back = [memory.move(moves.scores, total) for _ in range(ahead)]
        operand = memory.move(moves.second, total)
        free = list[float]()
        for tile in range(count):
            divided = lanes.run(of["A"], back[tile])
            if tile + ahead < count:
                back.append(memory.move(moves.scores, divided))
            brought, operand = operand, memory.move(moves.second * (tile + 1 < count), product)
            product = grid.run(of["AV"], memory.move(2 * moves.scores, divided), brought)
            free.append(product)
            if row + 1 < rows and tile >= ahead:  # products first: their probabilities make room
                made.append(_scores(grid, memory, of["QK"], moves, free[tile - ahead]))
        if row + 1 < rows:
            made += [_scores(grid, memory, of["QK"], moves, at) for at in free[len(made) :]]
        ends.append(product)
    return ends


def _scores(grid: Array, memory: ByteServer, cycles: float, moves: TileBytes, free: float) -> float:
    """Make a tile of scores where room is free; what has none goes to memory, and comes for its maximum."""
    arrived = memory.move(moves.first, max(0.0, free - 2 * cycles))  # the operands, while the tile before is made
    return memory.move(2 * moves.scores, grid.run(cycles, arrived, free))


def _through_memory(of: dict[str, float], moves: TileBytes, count: int, rows: int) -> list[float]:
    """Rows whose scores go through memory: three kernels, each a row behind the one before.

    The softmax takes a query's scores at a time, so a tile comes, is passed by four times, and goes.
    """
    grid, lanes, memory = Array(), Array(), idle_memory()
    written, divided = [0.0] * (count * rows), [0.0] * (count * rows)
    ends, made, ahead = list[float](), 0.0, 0.0
    total = count * rows
    for step in range(total + 2 * count):
        if step < total:
            ahead, made = made, grid.run(of["QK"], memory.move(moves.first, ahead))
            written[step] = memory.move(moves.scores, made)
        if count <= step < total + count:
            softmax = lanes.run(
                of["GM"] + of["SN"] + of["SD"] + of["A"], memory.move(moves.scores, written[step - count])
            )
            divided[step - count] = memory.move(moves.scores, softmax)
        if step >= 2 * count:
            brought = memory.move(moves.scores + moves.second, divided[step - 2 * count])
            product = grid.run(of["AV"], brought)
            if (step + 1) % count == 0:
                ends.append(product)
    return ends


@cache
def _ends(head_dim: int, length: int) -> list[float]:
    """Ends of the rows that are run; they depend on a head's width and the length alone."""
    return row_ends(Model("any", head_dim, head_dim, 1, head_dim), length, ROWS)


def flat_event_latency(model: Model, length: int) -> float:
    """Seconds of a layer's attention, rows of tiles of all heads and sequences one after the other."""
    ends = _ends(model.head_dim, length)
    rows = tiles(model, length) / (length // SIDE)
    return (ends[-1] + (rows - ROWS) * (ends[2] - ends[1])) / CLOCK


__all__ = ["flat_event_latency", "row_ends", "tile_bytes"]
