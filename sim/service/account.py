"""What a replica has done: steps, tokens and the time between them, joules, and who was there how long."""

from __future__ import annotations

from collections.abc import Sequence

from siliconloom.sim.service.costs import Chunk, Float
from siliconloom.sim.service.log import Activity, Intervals


class ReplicaAccount:
    """Counts of one scheduler, filled as its time goes on.

    Members
    -------
    joules, steps, prompt_tokens, tokens
        Of its steps, above standing power; how many; tokens of prompts that were computed, and of answers.
    guessed, accepted
        Tokens that were guessed for requests that could take them all, and those that were right.
    present_s
        Sum over time of the requests that wait or run (Little's law: of all requests, their times here).
    activity, intervals
        What it did when, and the time between a token and the next.
    samples
        Some of the steps: chunks, prompts that ended, and tokens that each other request attended to.
    """

    def __init__(self) -> None:
        self.joules = self.present_s = 0.0
        self.steps = self.prompt_tokens = self.tokens = 0
        self.guessed = self.accepted = 0
        self.activity, self.intervals = Activity(), Intervals()
        self.samples: list[tuple[list[Chunk], int, list[int]]] = []
        self._next_sample = 1
        self._joined: dict[int, float] = {}
        self._last_token_s = self._looked_s = 0.0
        self._recent: list[tuple[float, float, float]] | None = None

    def present(self, requests: int, at: float) -> None:
        """Add the requests that were here since somebody looked."""
        if at >= self._looked_s:
            self.present_s += requests * (at - self._looked_s)
            self._looked_s = at
        else:  # a request that came while a step was under way
            self.present_s += self._looked_s - at

    def samples_next(self) -> bool:
        """Whether the next step is to be among the samples."""
        if self.steps < self._next_sample:
            return False
        self._next_sample = self.steps + 1 + self.steps // 4
        return True

    def joins(self, number: int, told_s: float) -> None:
        """A request gets its next tokens with all others from here on; its last one came at ``told_s``."""
        self._joined[number] = told_s

    def leaves(self, number: int) -> float:
        """It no longer does; returns when its last token came."""
        return self._joined.pop(number, self._last_token_s)

    def tell(self, seconds: Float, extra_s: float, count: int, start: float) -> None:
        """Count the intervals between the tokens of these steps and the ones before."""
        first_end = start + float(seconds[0]) + extra_s
        self.intervals.add(first_end - self._last_token_s, count - len(self._joined))
        for when in self._joined.values():
            self.intervals.add(first_end - when, 1)
        self._joined.clear()
        if len(seconds) > 1:
            self.intervals.add_all(seconds[1:], count)
        self._last_token_s = start + float(seconds.sum()) + extra_s

    def took(self, start: float, end: float, number: int, joules: float, prompt_tokens: int, tokens: int) -> None:
        """So many steps were taken in a row."""
        self.joules += joules
        self.steps += number
        self.prompt_tokens += prompt_tokens
        self.tokens += tokens
        if self._recent is not None:
            self._recent.append((start, end, joules))

    def watch_power(self) -> None:
        """Keep what steps draw, for `drawn`."""
        self._recent = []

    def drawn(self, begin: float, end: float) -> float:
        """Joules above standing power between two times, of which the first never goes back."""
        recent: Sequence[tuple[float, float, float]] = [each for each in self._recent or () if each[1] > begin]
        self._recent = list(recent)
        return sum(j * (min(b, end) - max(a, begin)) / (b - a) for a, b, j in recent if a < end)


__all__ = ["ReplicaAccount"]
