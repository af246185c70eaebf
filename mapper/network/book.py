"""Messages written down block by block, as the algorithms of collectives do."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from siliconloom.arch.budget import require_memory
from siliconloom.arch.transfers import NONE, Pattern, Transfers

__all__ = ["NONE", "Book", "Int"]

Int = NDArray[np.signedinteger[Any]]
ENTRY_BYTES = 16
"""Memory of a message, twice, and of one that it waits for, until all are columns."""


class Book(Struct):
    """Messages written down block by block; a block is one step, or several at once.

    Blocks stand in groups, and a group may come several times: see `arch.transfers.Pattern`.
    """

    blocks: list[tuple[Int, Int, Int, bool, list[Int], Int, Int | None]] = field(default_factory=list)
    count: int = 0
    groups: list[tuple[int, int, bool, bool]] = field(default_factory=list)
    entries: int = 0
    checked: int = 0

    def group(self, turns: int, *, always: bool = False, whole: bool = False) -> None:
        """What is added from here on comes ``turns`` times."""
        self.groups.append((self.count, turns, always, whole))

    def add(
        self,
        source: Int,
        target: Int,
        size: float | NDArray[np.float64],
        adds: bool,
        step: int | Int,
        *waits: Int,
        previous: Int | None = None,
    ) -> Int:
        """Messages that each wait for one of every array of ``waits`` (`NONE`: for nothing); their numbers.

        ``previous`` are numbers of the same group: each message waits for that one of the turn before.
        """
        if not self.groups:
            self.group(1)
        self.entries += len(source) * (2 + len(waits))
        if self.entries > 2 * self.checked:
            self.checked = self.entries
            require_memory(f"{self.count:,} messages and more", self.entries * ENTRY_BYTES, "fewer chips need less")
        number = self.count + np.arange(len(source))
        sizes = np.broadcast_to(np.asarray(size, np.float64), source.shape)
        steps = np.broadcast_to(np.asarray(step), source.shape)
        self.blocks.append((source, target, sizes, adds, list(waits), steps, previous))  # type: ignore[arg-type]
        self.count += len(source)
        return number

    def pattern(self) -> Pattern:
        """All that was written down.

        Raises
        ------
        TooLarge
            When that takes more memory than there may be.
        """
        require_memory(f"{self.count:,} messages", self.entries * ENTRY_BYTES, "fewer chips need less")
        counts: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        waits: list[Int] = [np.zeros(0, np.int32)]
        for source, _, _, _, needed, _, _ in self.blocks:
            if not needed:
                counts.append(np.zeros(len(source), np.int64))
                continue
            table = needed[0] if len(needed) == 1 else np.stack(needed, axis=1, dtype=np.int32).reshape(-1)
            there = table != NONE
            counts.append(there.astype(np.int64) if len(needed) == 1 else there.reshape(-1, len(needed)).sum(axis=1))
            waits.append(table if there.all() else table[there])
        first = np.zeros(self.count + 1, np.int64)
        np.cumsum(np.concatenate(counts), out=first[1:])
        slots = Transfers(
            _column([b[0] for b in self.blocks], np.int32),
            _column([b[1] for b in self.blocks], np.int32),
            _column([b[2] for b in self.blocks], np.float64),
            _column([np.full(len(b[0]), b[3]) for b in self.blocks], np.bool_),
            first,
            _column(waits, np.int32),
            _column([b[5] for b in self.blocks], np.int32),
        )
        found = [g for g, after in zip(self.groups, [*self.groups[1:], (self.count,)], strict=True) if g[0] < after[0]]
        return Pattern(
            np.array([turns for _, turns, _, _ in found], np.int64),
            np.array([*(begin for begin, _, _, _ in found), self.count], np.int64),
            slots,
            _column([np.full(len(b[0]), NONE) if b[6] is None else b[6] for b in self.blocks], np.int64),
            np.array([always for _, _, always, _ in found], np.bool_),
            np.array([whole for _, _, _, whole in found], np.bool_),
        )


def _column(parts: list[Any], dtype: Any) -> Any:
    return np.concatenate([np.zeros(0, dtype), *(np.asarray(part, dtype) for part in parts)])
