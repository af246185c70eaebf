"""A communication written out: every message, and which messages must have arrived before it leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.budget import require_memory
from siliconloom.arch.kernels import kernel

Int = NDArray[np.int64]
Short = NDArray[np.int32]
Float = NDArray[np.float64]
Bool = NDArray[np.bool_]


NONE = -1
"""In place of a message's number: nothing to wait for."""
MESSAGE_BYTES = 64
"""Of a message that is written out with what it waits for, and of what is known of it while it is run."""


class Transfers(Struct, frozen=True):
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
    waits: Short
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


class Pattern(Struct, frozen=True):
    """Messages that come again, turn after turn, written down once: rounds of a ring, pieces that follow each other.

    The slots ``begin[g]`` to ``begin[g + 1]`` are group g, and all of them come ``turns[g]`` times. Messages are
    numbered group by group, in it turn by turn, in it slot by slot.

    Parameters
    ----------
    turns, begin
        Of each group: how often it comes, and its first slot; behind the last group the number of slots.
    slots
        Every slot once. Its ``waits`` are slots: of its own group those of the same turn, of earlier groups those of
        their last turn. ``step`` is that of turn 0, and one more with every turn.
    previous
        Slot of the same group whose message one turn before must have arrived, or `NONE`.
    always
        Of each group: its messages wait for those of earlier groups in every turn, not only in the first.
    whole
        Of each group: who waits for its last turn also waits for all turns before. They can be no later, so that
        nothing changes but what is written out.
    """

    turns: Int
    begin: Int
    slots: Transfers
    previous: Int
    always: Bool
    whole: Bool

    def __len__(self) -> int:
        """Messages, those from a chip to itself with them."""
        return int((self.turns * np.diff(self.begin)).sum())

    @property
    def sent(self) -> int:
        """Messages that leave their chip."""
        there = self.slots.source != self.slots.target
        return int(np.add.reduceat(there, self.begin[:-1]).astype(np.int64) @ self.turns) if len(there) else 0

    @property
    def volume(self) -> float:
        """Bytes of all messages."""
        return float(np.add.reduceat(self.slots.size, self.begin[:-1]) @ self.turns) if len(self.slots) else 0.0

    def once(self, groups: list[int]) -> Pattern:
        """One turn of some groups alone, all in step 0 and without waits."""
        spans = [np.arange(self.begin[g], self.begin[g + 1]) for g in groups]
        slots = np.concatenate(spans)
        s, count = self.slots, len(slots)
        cut = Transfers(
            s.source[slots],
            s.target[slots],
            s.size[slots],
            s.adds[slots],
            np.zeros(count + 1, np.int64),
            np.zeros(0, np.int32),
            np.zeros(count, np.int32),
            None if s.work is None else s.work[slots],
        )
        return pattern_of(cut)

    def transfers(self) -> Transfers:
        """Every message written out; see `written`."""
        return self.written()[0]

    def written(self) -> tuple[Transfers, NDArray[np.signedinteger[Any]]]:
        """Every message written out, and the slot of each.

        Raises
        ------
        LoomError
            When that takes more memory than there may be.
        """
        s = self.slots
        if (self.turns == 1).all():
            return s, np.arange(len(s))
        count = len(self)
        require_memory(
            f"{count:,} messages written out", count * MESSAGE_BYTES, "fewer chips or smaller sizes need less"
        )
        group = np.repeat(np.arange(len(self.turns)), np.diff(self.begin))
        first = np.zeros(count + 1, np.int64)
        args = (self.turns, self.begin, s.first, s.waits, self.previous, self.always, self.whole, group)
        nothing = np.zeros(0, np.int32)
        _write(*args, first, nothing, nothing, False)
        np.cumsum(first, out=first)
        waits, slot = np.empty(first[-1], np.int32), np.empty(count, np.int32)
        _write(*args, first, waits, slot, True)
        widths = np.diff(self.begin)
        turn = np.concatenate(
            [
                np.repeat(np.arange(turns, dtype=np.int32), width)
                for turns, width in zip(self.turns.tolist(), widths.tolist(), strict=True)
            ]
        )
        return Transfers(
            s.source[slot],
            s.target[slot],
            s.size[slot],
            s.adds[slot],
            first,
            waits,
            s.step[slot] + turn,
            None if s.work is None else s.work[slot],
        ), slot


def pattern_of(transfers: Transfers) -> Pattern:
    """Messages of which none comes again."""
    count, one = len(transfers), np.ones(1, np.int64)
    return Pattern(one, np.array([0, count]), transfers, np.full(count, NONE), one == 0, one == 0)


@kernel()
def _write(
    turns: Any,
    begin: Any,
    wait_first: Any,
    wait: Any,
    previous: Any,
    always: Any,
    whole: Any,
    group: Any,
    first: Any,
    waits: Any,
    slot: Any,
    write: bool,
) -> None:
    """How many messages each one waits for, into ``first`` one further; then which, and of which slot each one is."""
    base = np.zeros(turns.size + 1, np.int64)
    for g in range(turns.size):
        base[g + 1] = base[g] + turns[g] * (begin[g + 1] - begin[g])
    for g in range(turns.size):
        width = begin[g + 1] - begin[g]
        for turn in range(turns[g]):
            for s in range(begin[g], begin[g + 1]):
                message = base[g] + turn * width + s - begin[g]
                if write:
                    slot[message] = s
                count = 0
                for at in range(wait_first[s], wait_first[s + 1]):
                    other = wait[at]
                    home = group[other]
                    if home == g:
                        if write:
                            waits[first[message] + count] = base[g] + turn * width + other - begin[g]
                        count += 1
                    elif turn == 0 or always[g]:
                        far = begin[home + 1] - begin[home]
                        for there in range(0 if whole[home] else turns[home] - 1, turns[home]):
                            if write:
                                waits[first[message] + count] = base[home] + there * far + other - begin[home]
                            count += 1
                if turn > 0 and previous[s] >= 0:
                    if write:
                        waits[first[message] + count] = base[g] + (turn - 1) * width + previous[s] - begin[g]
                    count += 1
                if not write:
                    first[message + 1] = count
