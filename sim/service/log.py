"""What became of every request, and what a replica did when: columns, filled as time goes on."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]

MOST_RECORDS = 32768
"""Records of a replica's activity; where there are more, every two become one."""
FINE = 1.005
"""Ratio of neighbouring bins of intervals between tokens."""
SHORTEST, LONGEST = 1e-7, 1e5
"""Seconds of the intervals that have bins of their own."""


class RequestLog:
    """Of every request, seconds at which something happened to it, or NaN; (requests,).

    Parameters
    ----------
    arrival
        When it came to its replica; of a turn of a conversation, not before the answer to the one before.
    """

    def __init__(self, arrival: Float) -> None:
        count = len(arrival)
        self.arrival = arrival.copy()
        self.scheduled, self.first, self.finished = (np.full(count, np.nan) for _ in range(3))
        self.replica = np.full(count, -1, np.int64)
        self.cached, self.preempted = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.lost = np.zeros(count, np.int64)
        """Times that the replica which had the request was lost."""
        self.moved = np.zeros(count, np.int64)
        """Times that it moved to another replica as it ran."""
        self.turns = False
        """Whether ends of requests are beginnings of others, in conversations."""

    @property
    def complete(self) -> bool:
        return not bool(np.isnan(self.finished).any())


class Intervals:
    """Seconds between a token and the next one of the same request, counted in bins of half a percent."""

    def __init__(self) -> None:
        count = math.ceil(math.log(LONGEST / SHORTEST) / math.log(FINE)) + 2
        self.bins = np.zeros(count)
        self.total = self.most = 0.0

    def add(self, seconds: float, tokens: int) -> None:
        """So many tokens came ``seconds`` after the ones before."""
        if tokens > 0:
            at = int(math.log(max(seconds, SHORTEST) / SHORTEST) / math.log(FINE))
            self.bins[min(at, len(self.bins) - 1)] += tokens
            self.total += seconds * tokens
            self.most = max(self.most, seconds)

    def add_all(self, seconds: Float, tokens: int) -> None:
        """The same for steps in a row."""
        at = (np.log(np.maximum(seconds, SHORTEST) / SHORTEST) / math.log(FINE)).astype(np.int64)
        np.add.at(self.bins, np.minimum(at, len(self.bins) - 1), tokens)
        self.total += float(seconds.sum()) * tokens
        self.most = max(self.most, float(seconds.max()))

    def merge(self, other: Intervals) -> None:
        self.bins += other.bins
        self.total += other.total
        self.most = max(self.most, other.most)

    @property
    def count(self) -> int:
        return round(float(self.bins.sum()))

    def quantile(self, share: float) -> float:
        """Seconds that ``share`` of the intervals do not exceed, to a quarter of a percent."""
        if not self.count:
            return math.nan
        at = int(np.searchsorted(np.cumsum(self.bins), share * float(self.bins.sum()) - 1e-9))
        if at == 0:  # tokens that come together
            return 0.0
        return min(SHORTEST * float(FINE ** (at + 0.5)), self.most)


RECORD = ("start_s", "seconds", "steps", "busy_s", "decoding", "prompt_tokens", "tokens", "blocks", "waiting", "joules")
"""Columns of an activity; from ``decoding`` on sums over steps, but ``blocks`` and ``waiting``, the most."""


class Activity:
    """What a replica did, from step to step, in at most `MOST_RECORDS` rows of `RECORD`."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []
        self._each = 1
        self._pending = 0

    def add(self, row: list[float]) -> None:
        """One row more; it joins the last one where rows stand for several."""
        if self._pending and self.rows:
            self.rows[-1] = _joined(self.rows[-1], row)
        else:
            self.rows.append(row)
        self._pending = (self._pending + 1) % self._each
        if len(self.rows) >= MOST_RECORDS:
            pairs = zip(self.rows[::2], self.rows[1::2], strict=True)
            self.rows = [_joined(a, b) for a, b in pairs]
            self._each *= 2
            self._pending = 0

    def table(self) -> dict[str, Float]:
        """Columns by name."""
        columns = np.array(self.rows, np.float64).reshape(-1, len(RECORD)).T
        return dict(zip(RECORD, columns, strict=True))


def _joined(a: list[float], b: list[float]) -> list[float]:
    blocks, waiting = RECORD.index("blocks"), RECORD.index("waiting")
    found = [x + y for x, y in zip(a, b, strict=True)]
    found[0] = a[0]
    found[1] = b[0] + b[1] - a[0]
    found[blocks], found[waiting] = max(a[blocks], b[blocks]), max(a[waiting], b[waiting])
    return found


__all__ = ["RECORD", "Activity", "Intervals", "RequestLog"]
