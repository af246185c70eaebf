"""Steps in which tokens are guessed by a small model and checked by the large one, on the same chips."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from siliconloom.evaluate.step_costs import ReplicaCosts
from siliconloom.sim.service.costs import EQUAL, Chunk, RequestLengths

Float = NDArray[np.float64]


class SpeculatedCosts:
    """The checking step of ``target``, and before it so many steps of ``draft`` as there are guesses.

    The draft model has prompts, too: their chunks are in its first step. The host's share is counted once.
    """

    def __init__(self, target: ReplicaCosts, draft: ReplicaCosts, guesses: int) -> None:
        self.target, self.draft, self.guesses = target, draft, guesses

    def steps(
        self, chunks: Sequence[Chunk], ended: int, count: int, contexts: Float, lengths: RequestLengths = EQUAL
    ) -> tuple[Float, Float]:
        """See `siliconloom.sim.service.costs.StepCosts`."""
        seconds, joules = self.target.steps(chunks, ended, count, contexts, lengths)
        first_s, first_j, _ = self.draft.kernels(chunks, ended, count, contexts, lengths)
        seconds, joules = seconds + first_s, joules + first_j
        if count and self.guesses > 1:
            more_s, more_j, _ = self.draft.kernels((), 0, count, contexts, lengths)
            seconds, joules = seconds + more_s * (self.guesses - 1), joules + more_j * (self.guesses - 1)
        return seconds, joules


__all__ = ["SpeculatedCosts"]
