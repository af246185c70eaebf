"""A communication written out: every message, and which messages must have arrived before it leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
Short = NDArray[np.int32]
Float = NDArray[np.float64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class Transfers:
    """Messages as columns; a message's number is its place.

    Parameters
    ----------
    source, target
        Nodes.
    size
        Bytes.
    adds
        The target adds the message to what it holds, before anything that waits for it.
    first, waits
        Message i leaves when all of ``waits[first[i]:first[i + 1]]`` have arrived; at once when there are none.
    step
        Step of the algorithm, for its cost model and for reports.
    work
        Picoseconds that each entry from a chip to itself takes: no message, but what the chip does between messages,
        or with 0 a place where others meet. `None` where all are 0.
    """

    source: Short
    target: Short
    size: Float
    adds: Bool
    first: Int
    waits: NDArray[np.signedinteger]
    step: Short
    work: Int | None = None

    def __len__(self) -> int:
        return len(self.source)


def join(parts: list[Transfers]) -> Transfers:
    """All messages of several communications that do not wait for each other."""
    offset, waited = 0, 0
    firsts, waits = [np.zeros(1, np.int64)], []
    for part in parts:
        firsts.append(part.first[1:] + waited)
        waits.append(part.waits + offset)
        offset += len(part)
        waited += len(part.waits)
    return Transfers(
        np.concatenate([p.source for p in parts]),
        np.concatenate([p.target for p in parts]),
        np.concatenate([p.size for p in parts]),
        np.concatenate([p.adds for p in parts]),
        np.concatenate(firsts),
        np.concatenate(waits),
        np.concatenate([p.step for p in parts]),
        np.concatenate([np.zeros(len(p), np.int64) if p.work is None else p.work for p in parts]),
    )
