"""Which tile of queries, and which of keys, a step of attention is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from siliconloom.arch.isa import Address
from siliconloom.mapper.chip.lowering import Walk, joined
from siliconloom.mapper.chip.rings import Loop, affine


class QueryTile(NamedTuple):
    """Which tile of queries is meant: its walk over each dimension, the outermost first."""

    sequence: Walk
    head: Walk
    """Key-value heads."""
    subset: Walk
    """Heads that share a key-value head and are stacked as rows."""
    queries: Walk

    @property
    def rows(self) -> int:
        """Rows of the array: so many tokens of so many heads."""
        return self.queries.size * self.subset.size

    def within(self, base: int, sequence: int, head: int, *terms: tuple[Loop, int]) -> Address:
        """An address that moves on by so many bytes from sequence to sequence, and from head to head."""
        base += self.sequence.start * sequence + self.head.start * head
        return affine(base, (self.sequence.loop, sequence), (self.head.loop, head), *terms)


class KeyTile(NamedTuple):
    """Which tile of keys is meant: its walk, and where it is a part of a block, that of the block."""

    tile: Walk
    block: Walk | None = None

    @property
    def size(self) -> int:
        """Keys."""
        return self.tile.size

    @property
    def start(self) -> int:
        """The first one, in the first round of its loops."""
        return self.tile.start + (self.block.start if self.block else 0)

    @property
    def first(self) -> int | None:
        """Loop mask under which this is a query's first tile; ``None`` when it never is."""
        return joined((self.tile.first, self.block.first if self.block else 0))

    @property
    def last(self) -> int | None:
        """Loop mask under which this is a query's last tile; ``None`` when it never is."""
        return joined((self.tile.last, self.block.last if self.block else 0))

    def steps(self, place: Callable[[int], int], within: Callable[[int], int] | None = None) -> list[tuple[Loop, int]]:
        """What rounds of its loops add to where so many keys bring one to, ``within`` a block elsewhere."""
        own = self.tile.loop, (within or place)(self.size)
        return [own] if self.block is None else [(self.block.loop, place(self.block.size)), own]


__all__ = ["KeyTile", "QueryTile"]
