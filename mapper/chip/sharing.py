"""How the tiles of a chip share an operator: along which dimensions it is cut, and how many of them take part.

All tiles that take part run the same program on equal shares; what a cut does not divide, each of them reads for
itself. So more tiles can mean more bytes, and one tile with all of the memory's bandwidth can be faster than several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.description import Chip
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import vector_cost
from siliconloom.mapper.chip.bounds import data_bytes
from siliconloom.mapper.chip.floors import array_floor, vector_floor
from siliconloom.mapper.chip.layout import Room
from siliconloom.mapper.chip.orientation import oriented
from siliconloom.mapper.chip.rings import SLOTS
from siliconloom.workloads import Attention, Gemm, Operator, Vector
from siliconloom.workloads.recurrence import Recurrence

EVERY = 16
"""Up to this many tiles every number of them may take part; above, so many steps from a power of two to the next."""


Cut = tuple[int, int, int]
"""Parts along three dimensions of an operator, see `CUT_DIMENSIONS`."""

CUT_DIMENSIONS = {
    "gemm": ("batch", "m", "n"),
    "attention": ("pairs", "queries", "group"),
    "vector": ("", "rows", "cols"),
}
"""Of operators by kind; ``pairs`` are sequences with key-value heads, ``group`` the heads that share one of these."""


class Share(Struct, frozen=True):
    """What each of ``tiles`` tiles computes of an operator that is cut so."""

    operator: Operator
    tiles: int
    cut: Cut = (1, 1, 1)


def shares(
    chip: Chip, operator: Operator, fused: tuple[Vector, ...] = (), layouts: Sequence[Room] = ()
) -> list[tuple[float, Share]]:
    """Ways to share an operator among the tiles, or some of them, with the least time each can take.

    The soonest first. What gives tiles the same work as fewer tiles do is left out: these read less in all. Buffers of
    the ``layouts``' sizes, where there are any, make a product read its operands more than once.
    """
    room = Rooms(*(max((getattr(each, ring) for each in layouts), default=0) for ring in Rooms._fields))
    found: dict[Operator, Share] = {}
    for tiles in _counts(chip.tile_count):
        for cut in _factors(tiles):
            part = part_of(operator, cut)
            if part is not None:
                found.setdefault(part, Share(part, tiles, cut))
    after = (data_bytes(operator, fused) - operator.input_bytes) / max(operator.output_bytes, 1)
    least = ((_least(chip, share, fused, after, room), share) for share in found.values())
    return sorted(least, key=lambda f: (f[0], -f[1].tiles))


def _counts(tiles: int) -> list[int]:
    """How many tiles may take part, ascending: any up to `EVERY`, then some; all, half of them and so on."""
    some = {(EVERY // 2 + n) << shift for n in range(EVERY // 2 + 1) for shift in range(tiles.bit_length())}
    halves = {-(-tiles // (1 << n)) for n in range(tiles.bit_length() + 1)}
    return sorted(n for n in {*range(1, EVERY + 1), *some, *halves} if n <= tiles)


class Rooms(NamedTuple):
    """The largest slots of the rings that bound a product's tiles, in bytes; nothing where they are not known yet."""

    weights: int
    moving: int
    partial: int


def _least(chip: Chip, share: Share, fused: tuple[Vector, ...], after: float, room: Rooms) -> float:
    """Cycles of the unit of a tile that needs the longest; each tile reads all that its share works on.

    Of results ``after`` times as many bytes are moved as the operator has: ``fused`` may halve them, or add others.
    """
    tile, part = chip.tile, share.operator
    assert isinstance(tile, NpuTile)
    moved = part.input_bytes + after * part.output_bytes
    if isinstance(part, Gemm) and part.weight:
        moved += part.batch * part.matrix_bytes
    if isinstance(part, Gemm) and all(room):
        moved += part.batch * _read_again(part, room)
    rate = min(chip.nearest.total_bandwidth / chip.clock / share.tiles, tile.dma.bytes_per_cycle)
    own = vector_floor(tile, part) if not fused else 0  # the passes of what is fused count later
    return max(array_floor(oriented(tile).array, part), own, moved / rate)


def _read_again(part: Gemm, room: Rooms) -> float:
    """Bytes of both operands of one product that tiles in slots of these sizes read beyond reading each once.

    Where tiles of one operand stay, the other one is read for each of them, or for as many rows of A as both slots
    hold; where none does, A for every column of result tiles and B for every row of them, of which there are at least
    as many as make the sums of one fit.
    """
    a, b = part.precision.size(part.m * part.k), part.matrix_bytes
    tiles = max(part.precision.accumulator.size(part.m * part.n) / room.partial, 1)
    across = min(max(sqrt(b * tiles / a), 1), tiles)
    return min(
        a * (-(-b // room.weights) - 1),
        b * (-(-a // (SLOTS * room.moving)) - 1),
        a * (across - 1) + b * (tiles / across - 1),
    )


def part_of(operator: Operator, cut: Cut) -> Operator | None:
    """What the busiest of the tiles has of an operator that is cut so; nothing where it cannot be."""
    first, second, third = cut
    if cut == (1, 1, 1):
        return operator
    if isinstance(operator, Gemm):
        if first > operator.batch or second > operator.m or third > operator.n:
            return None
        n = -(-operator.n // third)
        n += n % 2 if operator.n % 2 == 0 else 0  # a gated activation takes columns in pairs
        return replace(operator, batch=-(-operator.batch // first), m=-(-operator.m // second), n=n)
    if isinstance(operator, Attention):
        pairs, group = operator.batch * operator.kv_heads, operator.heads // operator.kv_heads
        if first > pairs or second > operator.q_len or third > group:
            return None
        kept, heads = -(-pairs // first), -(-group // third)
        return replace(operator, batch=1, kv_heads=kept, heads=kept * heads, q_len=-(-operator.q_len // second))
    assert isinstance(operator, Vector)
    if isinstance(operator, Recurrence):
        return _part_of_recurrence(operator, second, third) if first == 1 else None
    divisible = third == 1 or not vector_cost(operator.function).by_row
    if first > 1 or second > operator.rows or third > operator.cols or not divisible:
        return None
    return replace(operator, rows=-(-operator.rows // second), cols=-(-operator.cols // third))


def _part_of_recurrence(operator: Recurrence, second: int, third: int) -> Recurrence | None:
    """Whole sequences, where rows depend on one another, and some of the columns."""
    runs = operator.sequences if operator.apart else operator.rows
    if second > runs or third > operator.cols:
        return None
    cols = -(-operator.cols // third)
    weights = -(-operator.weights * cols // operator.cols)
    each = operator.rows // runs
    sequences = -(-runs // second)
    return replace(
        operator, rows=sequences * each, cols=cols, weights=weights, sequences=sequences if operator.apart else 1
    )


def _factors(total: int) -> Iterator[Cut]:
    for first in range(1, total + 1):
        for second in range(1, total // first + 1):
            if total % (first * second) == 0:
                yield first, second, total // (first * second)


__all__ = ["CUT_DIMENSIONS", "Cut", "Share", "part_of", "shares"]
