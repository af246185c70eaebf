"""Messages written down block by block, as the algorithms of collectives do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.transfers import Transfers

Int = NDArray[np.signedinteger[Any]]

NONE = -1
"""In place of a message's number: nothing to wait for."""


@dataclass
class Book:
    """Messages written down block by block; a block is one step, or several at once."""

    blocks: list[tuple[Int, Int, Int, bool, list[Int], Int]] = field(default_factory=list)
    count: int = 0

    def add(
        self, source: Int, target: Int, size: float | NDArray[np.float64], adds: bool, step: int | Int, *waits: Int,
        last: int | None = None,
    ) -> Int:  # fmt: skip
        """Messages that each wait for one of every array of ``waits`` (`NONE`: for nothing); the last ones' numbers."""
        number = self.count + np.arange(0 if last is None else len(source) - last, len(source))
        sizes = np.broadcast_to(np.asarray(size, np.float64), source.shape)
        steps = np.broadcast_to(np.asarray(step), source.shape)
        self.blocks.append((source, target, sizes, adds, list(waits), steps))  # type: ignore[arg-type]
        self.count += len(source)
        return number

    def transfers(self) -> Transfers:
        counts: list[NDArray[np.int64]] = []
        waits: list[Int] = []
        for source, _, _, _, needed, _ in self.blocks:
            if not needed:
                counts.append(np.zeros(len(source), np.int64))
                continue
            table = needed[0] if len(needed) == 1 else np.stack(needed, axis=1).reshape(-1)
            there = table != NONE
            counts.append(there.astype(np.int64) if len(needed) == 1 else there.reshape(-1, len(needed)).sum(axis=1))
            waits.append(table if there.all() else table[there])
        first = np.zeros(self.count + 1, np.int64)
        np.cumsum(np.concatenate(counts), out=first[1:])
        return Transfers(
            _column([b[0] for b in self.blocks], np.int32),
            _column([b[1] for b in self.blocks], np.int32),
            _column([b[2] for b in self.blocks], np.float64),
            np.concatenate([np.full(len(b[0]), b[3]) for b in self.blocks]),
            first,
            _column(waits, np.int32) if waits else np.zeros(0, np.int32),
            _column([b[5] for b in self.blocks], np.int32),
        )


def _column(parts: list[Any], dtype: Any) -> Any:
    return np.concatenate([np.asarray(part, dtype) for part in parts])
