"""Adapters that are trained in what a replica's steps leave over (FlexLLM, Oliaro et al., 2024).

A sequence goes forward in windows, as a prompt does in chunks, and then back from its end, window by window. Every step
has one, as large as lets the step end in time (one of `costs.COUNTS`, or all that is left); where no request is there,
steps are of windows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct

from siliconloom.sim.service.costs import COUNTS, EQUAL, Chunk, Float, RequestLengths, StepCosts

NOBODY = np.zeros(1)
"""Contexts of a step in which nobody has a next token."""


class TrainedCosts(StepCosts, Protocol):
    """Costs of steps that may have windows of training."""

    def backward(self, new: int, known: int) -> tuple[float, float]:
        """Seconds and joules by which a window takes longer back than forward: one of so many tokens, behind others."""


class TunedStep(Struct, frozen=True):
    """A step with a window of ``size`` tokens; of none, where it would end too late with any."""

    size: int
    seconds: Float
    joules: Float


IDLE = TunedStep(0, np.zeros(1), np.zeros(1))
"""No step at all."""


class Tuning(Struct, frozen=True):
    """What is trained, and how.

    Parameters
    ----------
    sequence
        Tokens of every sequence.
    limit_s
        Seconds that a step with a window may take.
    read_s
        Seconds to read the adapter, in each window.
    update_s
        Seconds of the optimizer, behind each sequence.
    """

    costs: TrainedCosts
    sequence: int
    limit_s: float
    read_s: float = 0.0
    update_s: float = 0.0


class Tuner:
    """The training of one replica, whose steps have at most ``budget`` tokens.

    Members
    -------
    tokens, sequences
        That have gone forward and back.
    """

    def __init__(self, tuning: Tuning, budget: int) -> None:
        self.tuning, self.budget = tuning, budget
        self.tokens = self.sequences = 0
        self._forward = True
        self._at = 0
        """Tokens before the next window where it goes forward; those that are left where it goes back."""
        self._alone: dict[tuple[bool, int], TunedStep] = {}
        self._since: list[float] | None = None
        """Steps, seconds and joules of windows alone since a sequence began; none where others came between."""
        self._sequence: tuple[int, float, float] | None = None
        """Of a whole sequence of windows alone."""

    @property
    def fits(self) -> bool:
        """Whether a step that is nothing else has time for a token, whichever of a sequence it is."""
        sequence = self.tuning.sequence
        tried = self._ahead(1, sequence - 1), self._back(1, 1, IDLE), self._back(1, sequence, IDLE)
        return all(float(each.seconds[0]) <= self.tuning.limit_s for each in tried)

    def step(
        self,
        chunks: Sequence[Chunk] = (),
        ended: int = 0,
        count: int = 0,
        contexts: Float = NOBODY,
        lengths: RequestLengths = EQUAL,
        *,
        beside_s: float = 0.0,
    ) -> TunedStep:
        """What a step takes with the largest window that it has time for; takes it.

        So many seconds of the step are for what its costs leave out, ``beside_s``.
        """
        alone, key = not chunks and not count, (self._forward, self._at)
        if not alone:
            self._since = None
        found = self._alone.get(key) if alone else None
        if found is None:
            found = self._largest(chunks, ended, count, contexts, lengths, self.tuning.limit_s - beside_s)
            if alone:
                self._alone[key] = found
        self._take(found.size)
        return found

    def alone(self, room_s: float) -> tuple[int, float, float]:
        """How many steps of windows alone are taken at once, their seconds and joules: one, or all of some sequences.

        Sequences are alike, so those that end within ``room_s`` are counted and not gone through; none of no time.
        """
        if self._forward and self._at == 0 and self._sequence is not None:
            steps, seconds, joules = self._sequence
            many = int(room_s / seconds) if seconds > 0 else 0
            if many > 1:
                self.sequences += many - 1
                self.tokens += (many - 1) * self.tuning.sequence
                return steps * (many - 1), seconds * (many - 1), joules * (many - 1)
        begins = self._forward and self._at == 0
        done = self.step()
        if begins:
            self._since = [0, 0.0, 0.0]
        if self._since is not None:
            taken = 1, float(done.seconds[0]), float(done.joules[0])
            self._since = [a + b for a, b in zip(self._since, taken, strict=True)]
            if self._forward and self._at == 0 and done.size:
                self._sequence = int(self._since[0]), self._since[1], self._since[2]
        return (1 if done.size else 0), float(done.seconds[0]), float(done.joules[0])

    def _largest(
        self, chunks: Sequence[Chunk], ended: int, count: int, contexts: Float, lengths: RequestLengths, limit_s: float
    ) -> TunedStep:
        room = self.budget - count - sum(size for size, _ in chunks)
        left = min(self.tuning.sequence - self._at if self._forward else self._at, room)
        sizes = [*(size for size in COUNTS if size < left), *([left] if left > 0 else [])]
        best = IDLE
        if chunks or count:
            best = TunedStep(0, *self.tuning.costs.steps(chunks, ended, count, contexts, lengths))
        plain, low, high = best, 0, len(sizes)
        while low < high:  # those before ``low`` have time, and those from ``high`` on have none
            middle = (low + high) // 2
            if self._forward:
                found = self._ahead(sizes[middle], self._at, chunks, ended, count, contexts, lengths)
            else:
                found = self._back(sizes[middle], self._at, plain)
            if float(found.seconds[0]) <= limit_s:
                best, low = found, middle + 1
            else:
                high = middle
        return best

    def _ahead(
        self,
        size: int,
        known: int,
        chunks: Sequence[Chunk] = (),
        ended: int = 0,
        count: int = 0,
        contexts: Float = NOBODY,
        lengths: RequestLengths = EQUAL,
    ) -> TunedStep:
        """A step with a window that goes forward, as one more chunk of a prompt of whose tokens each has logits."""
        window: Chunk = size, known
        seconds, joules = self.tuning.costs.steps([*chunks, window], ended + size, count, contexts, lengths)
        return TunedStep(size, seconds + self.tuning.read_s, joules)

    def _back(self, size: int, left: int, step: TunedStep) -> TunedStep:
        """A step, and behind it a pass of its own of a window that goes back; ``left`` tokens are to go."""
        tuning, known = self.tuning, left - size
        seconds, joules = tuning.costs.steps([(size, known)], size, 0, NOBODY, EQUAL)
        more_s, more_j = tuning.costs.backward(size, known)
        more_s += tuning.read_s + (0.0 if known else tuning.update_s)
        return TunedStep(size, step.seconds + seconds + more_s, step.joules + joules + more_j)

    def _take(self, size: int) -> None:
        """A window of so many tokens is done."""
        if self._forward:
            self._at += size
            self._forward = self._at < self.tuning.sequence
            return
        self._at -= size
        self.tokens += size
        if self._at == 0:
            self._forward = True
            self.sequences += 1


__all__ = ["TrainedCosts", "TunedStep", "Tuner", "Tuning"]
