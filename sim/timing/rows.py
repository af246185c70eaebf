"""Rows of integers, which states and transitions are kept as: compared, copied, and found again by a hash."""

from __future__ import annotations

from typing import Any

from siliconloom.arch.kernels import part

_SHORT, _THIRTY, _FORTY = (1 << 24) - 1, (1 << 30) - 1, (1 << 40) - 1
"""Bits of hashes that are multiplied: as many as the product still fits."""


@part()
def same_rows(a: Any, b: Any, length: Any) -> Any:
    """Whether two rows begin with the same ``length`` numbers."""
    at = 0
    while at < length and a[at] == b[at]:
        at += 1
    return at == length


@part()
def copy_row(row: Any, into: Any, length: Any) -> None:
    """Copy the first ``length`` numbers of a row."""
    for at in range(length):
        into[at] = row[at]


@part()
def mixed(hash: Any, number: Any) -> Any:
    """A hash of what ``hash`` is of, and of one number more."""
    return (((hash ^ number) & _FORTY) * 1000003 + 12345) & _FORTY


@part()
def hashed(row: Any, length: Any) -> Any:
    """A hash of the first ``length`` numbers of a row, at most 2^15 of them.

    The sum of products of two numbers each, after a key was added to both (the NH of Black, Halevi, Krawczyk, Krovetz
    and Rogaway's UMAC, 1999): no number waits for the one before, and none but the sum is longer than 48 bits.
    """
    half = length >> 1
    one, other, hash = row[:half], row[half : 2 * half], 0
    for at in range(half):
        key = (at + 1) * 0x61C88647
        hash += (one[at] + key & _SHORT) * (other[at] + 3 * key & _SHORT)
    return mixed(mixed(hash, hash >> 40), row[length - 1] if length & 1 else length)


@part()
def slot_of(hash: Any, slots: Any) -> Any:
    """The first slot to look at of an open hash table, whose length is a power of two."""
    return ((hash ^ hash >> 30) & _THIRTY) * 0x2545F491 >> 30 & len(slots) - 1
