"""Steps in which tokens are guessed by a small model and checked by the large one, on its chips or on others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from siliconloom.evaluate.step_costs import ReplicaCosts
from siliconloom.sim.service.costs import EQUAL, Chunk, RequestLengths

Float = NDArray[np.float64]


class SpeculatedCosts:
    """The checking step of ``target``, and before it the steps of a draft model, one for each place of a guess.

    Parameters
    ----------
    target
        Steps that check.
    drafts
        Steps that guess: the first takes a request's last token, each further one all guesses for the place before it.
        The draft model has prompts, too: their chunks are in its first step. The host's share is counted once.
    """

    def __init__(self, target: ReplicaCosts, drafts: Sequence[ReplicaCosts]) -> None:
        self.target, self.drafts = target, drafts

    def steps(
        self, chunks: Sequence[Chunk], ended: int, count: int, contexts: Float, lengths: RequestLengths = EQUAL
    ) -> tuple[Float, Float]:
        """See `siliconloom.sim.service.costs.StepCosts`."""
        seconds, joules = self.target.steps(chunks, ended, count, contexts, lengths)
        first, *others = self.drafts
        first_s, first_j, _ = first.kernels(chunks, ended, count, contexts, lengths)
        seconds, joules = seconds + first_s, joules + first_j
        if count:
            for each in dict.fromkeys(others):
                more_s, more_j, _ = each.kernels((), 0, count, contexts, lengths)
                seconds, joules = seconds + more_s * others.count(each), joules + more_j * others.count(each)
        return seconds, joules


class ApartCosts(SpeculatedCosts):
    """The same where the draft model is on chips of its own, ``latency_s`` away, one way.

    Guesses come first, go over, and are checked while new chunks of prompts are in both models at once; what was right
    goes back. The host's share of the draft model's machine is not counted.
    """

    def __init__(self, target: ReplicaCosts, drafts: Sequence[ReplicaCosts], latency_s: float) -> None:
        super().__init__(target, drafts)
        self.latency_s = latency_s

    def steps(
        self, chunks: Sequence[Chunk], ended: int, count: int, contexts: Float, lengths: RequestLengths = EQUAL
    ) -> tuple[Float, Float]:
        """See `siliconloom.sim.service.costs.StepCosts`."""
        seconds, joules = self.target.steps(chunks, ended, count, contexts, lengths)
        if chunks:
            chunk_s, chunk_j, _ = self.drafts[0].kernels(chunks, ended, 0, contexts)
            seconds, joules = np.maximum(seconds, chunk_s), joules + chunk_j
        if count:
            seconds = seconds + 2 * self.latency_s
            for each in dict.fromkeys(self.drafts):
                more_s, more_j, _ = each.kernels((), 0, count, contexts, lengths)
                many = self.drafts.count(each)
                seconds, joules = seconds + more_s * many, joules + more_j * many
        return seconds, joules


__all__ = ["ApartCosts", "SpeculatedCosts"]
