"""Rows of integers: compared, copied, and found again by a hash.

What the jumps of a tile (`sim.chip.recurrence`) and of a DRAM (`sim.dram.repeat`) have in common; ``docs/engine.md``
says what they have not, and why.
"""

from __future__ import annotations

from typing import Any

from siliconloom.arch.kernels import part


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
    return ((hash ^ number) * 1000003 + 12345) & 0xFFFFFFFFFF


@part()
def slot_of(hash: Any, slots: Any) -> Any:
    """The first slot to look at of an open hash table, whose length is a power of two."""
    return (hash ^ hash >> 20) & (len(slots) - 1)
