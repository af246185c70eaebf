"""Transfers as a DMA takes them: rows that adjoin are one long row, and what does not begin where it must is cut.

A row begins where `arch.layout.window_of` says, in main memory as in local memory. *Places* are all that decide where a
transfer begins, its address' base and strides on both sides, joined by ``or``: their lowest bit says what all of them
are multiples of.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.layout import window_of

Int = NDArray[np.int64]

LONGEST_ROW = 2**24 - 1
"""Bytes that a transfer's row may have, and rows that it may have."""
ANYWHERE = 1 << 62
"""What nothing but zeros is a multiple of."""


class TransferPiece(Struct, frozen=True):
    """One transfer of those that an operand takes: where it begins in main and in local memory, and its shape."""

    memory: int
    local: int
    fields: dict[str, int]


class MovedRows(NamedTuple):
    """Rows of all transfers that an operand takes, and bytes of each; and those that take the rest, where it is cut.

    The last is the number of transfers.
    """

    rows: Int
    width: Int
    rest_rows: Int
    rest: Int
    transfers: Int


@lru_cache(maxsize=1 << 14)
def pieces(
    bus: int | None,
    rows: int,
    width: int,
    pitch: int,
    local_pitch: int,
    places: int,
    *,
    joins: bool = True,
    fills: bool = False,
) -> tuple[TransferPiece, ...]:
    """Transfers that move ``rows`` x ``width`` bytes.

    Parameters
    ----------
    bus
        Bytes of the DMA's data buses; nothing is cut for a bus that is no power of two, or none.
    rows, width, pitch, local_pitch
        The operand in bytes, and from row to row in main memory and in local memory.
    places
        See above.
    joins
        Rows that adjoin may become one.
    fills
        What fills rows up on both sides may be moved, too: nobody reads it.
    """
    adjoin = rows == 1 or (joins and pitch == width == local_pitch)
    total = rows * width
    long = adjoin and total <= LONGEST_ROW
    as_it_is = TransferPiece(0, 0, _fields(rows, width, pitch, local_pitch))
    if bus is None or bus & bus - 1:
        return (TransferPiece(0, 0, _fields(1, total, 0, 0)) if long else as_it_is,)
    if long and not places & window_of(bus, total) - 1:
        return (TransferPiece(0, 0, _fields(1, total, 0, 0)),)
    by_row = rows > 1 and not (places | pitch | local_pitch) & window_of(bus, width) - 1
    if adjoin:
        part = min(lowest(places), bus)
        parts = -(-total // part)
        if parts <= LONGEST_ROW and not (by_row and rows * -(-width // bus) <= parts):
            return tuple(_cut(total, part))
    if by_row:
        return (as_it_is,)
    part = min(lowest(places | (pitch | local_pitch if rows > 1 else 0)), bus)
    if fills and joins and width < pitch == local_pitch and rows > 1:
        filled = pieces(bus, rows, pitch, pitch, pitch, places)
        if sum(piece.fields["m"] * -(-piece.fields["n"] // bus) for piece in filled) <= rows * -(-width // part):
            return filled
    if rows * len(_lengths(width, part)) < -(-width // part):
        return tuple(
            TransferPiece(row * pitch + piece.memory, row * local_pitch + piece.local, piece.fields)
            for row in range(rows)
            for piece in _cut(width, part)
        )
    return tuple(
        TransferPiece(at, at, _fields(rows, min(part, width - at), pitch, local_pitch)) for at in range(0, width, part)
    )


def _cut(total: int, part: int) -> Iterator[TransferPiece]:
    """Bytes that adjoin, in rows of ``part`` and one of the rest."""
    at = 0
    for rows, width in _lengths(total, part):
        yield TransferPiece(at, at, _fields(rows, width, width, width))
        at += rows * width


def _lengths(total: int, part: int) -> list[tuple[int, int]]:
    """Rows of ``part``, and one of the rest, that so many bytes are: number and width."""
    whole, rest = divmod(total, part)
    return [each for each in ((whole, part), (1, rest)) if each[0] and each[1]]


_NONE, _ONE = np.zeros(1, np.int64), np.ones(1, np.int64)


def moved_rows(
    bus: int, rows: Int, width: Int, pitch: Int, local_pitch: Int, places: Int, *, fills: Any = False
) -> MovedRows:
    """What the transfers of `pieces` move in all, of many operands at once; for what transfers cost.

    Of each operand ``fills`` says whether what fills rows up may be moved, too.
    """
    adjoin = (rows == 1) | ((pitch == width) & (width == local_pitch))
    total = rows * width
    if bus & bus - 1:
        return MovedRows(np.where(adjoin, 1, rows), np.where(adjoin, total, width), _NONE, _NONE, _ONE)
    # a row of so many bytes may begin where all is a multiple of a power of two that is no smaller, or of the bus
    joined, parted = places | bus, places | bus | np.where(rows > 1, pitch | local_pitch, 0)
    joined, parted = joined & -joined, parted & -parted
    whole = adjoin & (joined >= np.minimum(total, bus))
    by_row = (rows > 1) & (parted >= np.minimum(width, bus))
    by_row &= ~adjoin | (rows * -(-width // bus) <= -(-total // joined))
    long, lines = np.where(whole, total, width), np.where(whole, 1, rows)
    kept = whole | by_row
    if kept.all():
        return MovedRows(lines, long, _NONE, _NONE, _ONE)
    # what is cut: where all adjoins, in rows of a part, else every row in columns of one; and what is left over
    part = np.where(adjoin, joined, parted)
    parts, rest = np.divmod(np.where(adjoin, total, width), part)
    each, ends = np.where(adjoin, 1, rows), rest > 0
    transfers = np.where(kept, 1, np.where(adjoin, 1 + ends, np.minimum(parts + ends, rows * (1 + ends))))
    rest_rows = np.where(~kept & ends, each, 0)
    moved = MovedRows(np.where(kept, lines, each * parts), np.where(kept, long, part), rest_rows, rest, transfers)
    if not np.any(fills):
        return moved
    full = moved_rows(bus, rows, pitch, pitch, pitch, places)
    fewer = full.rows * -(-full.width // bus) + full.rest_rows <= moved.rows + moved.rest_rows
    filled = np.asarray(fills, np.bool_) & (width < pitch) & (pitch == local_pitch) & (rows > 1) & ~by_row & fewer
    return MovedRows(*(np.where(filled, *both) for both in zip(full, moved, strict=True)))


def lowest(places: int) -> int:
    """The largest power of two that all places are multiples of."""
    return places & -places or ANYWHERE


def _fields(rows: int, width: int, pitch: int, local_pitch: int) -> dict[str, int]:
    return {"m": rows, "n": width, "pitch": pitch if rows > 1 else 0, "local_pitch": local_pitch if rows > 1 else 0}


__all__ = ["LONGEST_ROW", "TransferPiece", "MovedRows", "lowest", "moved_rows", "pieces"]
