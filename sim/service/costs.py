"""What a service asks of the machine below it: how long a step takes, and what it draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Float = NDArray[np.float64]
Chunk = tuple[int, int]
"""New tokens of a prompt, and those of it that lie in the cache."""


COUNTS = tuple(sorted({1, *(each for k in range(1, 20) for each in (2**k, 2**k * 3 // 2))}))
"""Numbers of tokens or requests where not all of them are looked at: two to every doubling."""


class SharedPart(Struct, frozen=True):
    """Tokens that lie in the cache once for several requests, one after the other in each."""

    tokens: int
    requests: int


class GuessedAhead(Struct, frozen=True):
    """Requests of a step whose guesses were made while the last ones were checked.

    Parameters
    ----------
    ready
        They are there when the step begins: what they stand behind turned out right.
    right
        What is guessed during the step will turn out so.
    """

    ready: int = 0
    right: int = 0


class RequestLengths(Struct, frozen=True):
    """How many requests have how many tokens in the cache, less ``step``; of none it is not known: all are alike.

    ``shared`` is what their attention may read once for several of them. A request may have several such parts.
    ``ahead`` is of requests whose tokens are guessed.
    """

    offsets: Mapping[int, int]
    step: int = 0
    shared: tuple[SharedPart, ...] = ()
    ahead: GuessedAhead = GuessedAhead()

    @property
    def distinct(self) -> int:
        """How many different lengths there are."""
        return max(len(self.offsets), 1)

    def within(self, window: int, contexts: Float) -> Float:
        """Tokens that each attends to in steps in a row where it sees the last ``window`` alone, in the mean; (steps,).

        ``contexts`` are those of `StepCosts.steps`.
        """
        if not self.offsets:
            return np.minimum(contexts, window)
        at = np.fromiter(self.offsets, np.int64, len(self.offsets)) + self.step + 1
        many = np.fromiter(self.offsets.values(), np.int64, len(at))
        steps = len(contexts)
        if int(at.max()) + steps - 1 <= window:
            return contexts
        grown = np.clip(window - at, 0, steps)  # steps after which it is as long as the window
        ends = np.bincount(grown, many, steps + 1)[:steps]
        growing = many.sum() - np.cumsum(ends)  # requests that are longer in the next step
        total = float((np.minimum(at, window) * many).sum()) + np.append(0.0, np.cumsum(growing)[:-1])
        return np.asarray(total / many.sum(), np.float64)


EQUAL = RequestLengths({})


class StepPassage(Struct, frozen=True):
    """A step's way through the stages of a pipeline, in seconds.

    Parameters
    ----------
    host
        Of the host, before the first stage.
    stages
        Of each stage's chips.
    hop
        From one stage to the next.
    """

    host: float
    stages: tuple[float, ...]
    hop: float

    @property
    def seconds(self) -> float:
        """From the first to the last, where it waits for nobody."""
        return self.host + sum(self.stages) + self.hop * (len(self.stages) - 1)


class StepCosts(Protocol):
    """Seconds and joules of the steps of one replica."""

    def steps(
        self, chunks: Sequence[Chunk], ended: int, count: int, contexts: Float, lengths: RequestLengths = EQUAL
    ) -> tuple[Float, Float]:
        """So many steps in a row as there are ``contexts``.

        Parameters
        ----------
        chunks
            Of prompts, in the first step; there is one step only where there are any.
        ended
            Prompts whose last token is among them, and which so have a first token of their answer.
        count
            Requests that get their next token.
        contexts
            Tokens that each of them attends to in each step, its own among them, in the mean, not decreasing; (steps,).

        lengths
            Those of the requests in the first step.

        Returns
        -------
        seconds, joules
            Of each step, of all chips of the replica; (steps,).
        """


@runtime_checkable
class LayeredCosts(StepCosts, Protocol):
    """The same where it is known what a layer takes: no head, and nothing of the host."""

    def layer_seconds(
        self, chunks: Sequence[Chunk], ended: int, count: int, contexts: Float, lengths: RequestLengths = EQUAL
    ) -> Float:
        """Of the same steps the seconds of one layer, in the mean; (steps,)."""


@runtime_checkable
class StagedCosts(StepCosts, Protocol):
    """The same of a replica whose chips are the stages of a pipeline; `steps` are of steps that wait for nobody."""

    def passage(
        self, chunks: Sequence[Chunk], ended: int, count: int, context: float, lengths: RequestLengths = EQUAL
    ) -> StepPassage:
        """One such step's way through the stages."""
