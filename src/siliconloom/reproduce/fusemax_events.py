"""FuseMax's attention as events: every stage of every tile starts when its array and its operands are ready.

The two arrays take their stages in a fixed order, one tile apart as in the published binding: while the 1D array adds
the product of one tile and corrects the result for the next, the 2D array works on the next and the scores after it.
Nothing here uses the closed form; one block of 256 queries is run tile by tile, then the next begins, with what
overlaps between them.
"""

from __future__ import annotations

from msgspec import Struct

from siliconloom.reproduce.fusemax_model import CLOCK, SIDE, stage_cycles, tiles
from siliconloom.reproduce.fusemax_tables import Model

BLOCKS = 4
"""Blocks of queries that are run; the time between the last two is that of all others."""


class Array(Struct):
    """One array: until when it is taken."""

    free: float = 0.0

    def run(self, cycles: float, *ready: float) -> float:
        """End of a stage that starts when the array and all operands are ready."""
        self.free = max((self.free, *ready)) + cycles
        return self.free


def block_ends(head_dim: int, count: int, blocks: int) -> list[float]:
    """End of each block of 256 queries against ``count`` tiles of keys, in cycles per row of a tile."""
    of = stage_cycles(head_dim, count * SIDE)
    divide = of["AV"] * count  # once a block, of all its results
    grid, lanes = Array(), Array()
    ends = list[float]()
    total = blocks * count
    scores = grid.run(of["QK"] + of["LM"])
    maximum = denominator = result = product = 0.0
    for tile in range(total):
        starts = tile % count == 0
        maximum = lanes.run(of["RM"], scores, 0.0 if starts else maximum)
        exponentials = grid.run(of["SLN"] + of["SLD"], maximum)
        if tile + 1 < total:
            scores = grid.run(of["QK"] + of["LM"])
        factor = lanes.run(of["PRM"], maximum)
        if tile:  # what the array multiplied for the tile before
            result = lanes.run(of["RNV"], product, result)
        if starts and tile:
            ends.append(lanes.run(divide, result, denominator))
        product = grid.run(of["SLNV"], exponentials)
        result = lanes.run(of["SPNV"], factor, result)
        scaled = lanes.run(of["SPD"], factor, denominator)
        denominator = lanes.run(of["RD"], scaled, exponentials)
    result = lanes.run(of["RNV"], product, result)
    ends.append(lanes.run(divide, result, denominator))
    return ends


def fusemax_event_latency(model: Model, length: int) -> float:
    """Seconds of a layer's attention, all blocks of all heads and sequences one after the other."""
    count = length // SIDE
    ends = block_ends(model.head_dim, count, BLOCKS)
    period = ends[-2] - ends[-3]
    blocks = tiles(model, length) / count
    return (ends[-1] + (blocks - BLOCKS) * period) / CLOCK


__all__ = ["block_ends", "fusemax_event_latency"]
