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

    With ``ahead`` that machine goes on during the check (PEARL, Liu et al., ICLR 2025): it guesses what the check will
    say of the next place, and as many places behind it. Requests for which that is right need no guesses before their
    next step; where it is right for none, guessing ahead ends when that machine hears of it. It is one block of guesses
    ahead of what it has heard, so where requests are ready in a row, a step takes half of the way there and back, a
    check and the guesses at least: guesses begin when the result before the last one is there.
    """

    def __init__(
        self, target: ReplicaCosts, drafts: Sequence[ReplicaCosts], latency_s: float, *, ahead: bool = False
    ) -> None:
        super().__init__(target, drafts)
        self.latency_s, self.ahead = latency_s, ahead

    def slower(self, context: float) -> str | None:
        """A note where guesses ahead of one request with so many tokens take longer than the check beside them."""
        contexts = np.array([context])
        (one_s, *_), (check_s, _) = self.drafts[0].kernels((), 0, 1, contexts), self.target.steps((), 0, 1, contexts)
        places = len(self.drafts) + 1
        if not self.ahead or places * one_s[0] <= check_s[0]:
            return None
        return (
            f"{places} guesses ahead take {places * one_s[0] * 1e3:.3g} ms, and a check {check_s[0] * 1e3:.3g} ms, "
            "for which all requests of a step wait: serve.draft_ahead=false may be faster"
        )

    def steps(
        self, chunks: Sequence[Chunk], ended: int, count: int, contexts: Float, lengths: RequestLengths = EQUAL
    ) -> tuple[Float, Float]:
        """See `siliconloom.sim.service.costs.StepCosts`."""
        seconds, joules = self.target.steps(chunks, ended, count, contexts, lengths)
        chunk_s = np.zeros_like(seconds)
        if chunks:
            chunk_s, chunk_j, _ = self.drafts[0].kernels(chunks, ended, 0, contexts)
            seconds, joules = np.maximum(seconds, chunk_s), joules + chunk_j
        if count and self.ahead:
            seconds, more_j = self._ahead(seconds, chunk_s, count, contexts, lengths)
            joules = joules + more_j
            count -= lengths.ahead.ready
        if count:
            seconds = seconds + 2 * self.latency_s
            for each in dict.fromkeys(self.drafts):
                more_s, more_j, _ = each.kernels((), 0, count, contexts, lengths)
                many = self.drafts.count(each)
                seconds, joules = seconds + more_s * many, joules + more_j * many
        return seconds, joules

    def _ahead(
        self, checked: Float, begun: Float, count: int, contexts: Float, lengths: RequestLengths
    ) -> tuple[Float, Float]:
        """Seconds of the check and of guesses ahead beside it, which begin after ``begun``; joules of these alone."""
        one_s, one_j, _ = self.drafts[0].kernels((), 0, count, contexts, lengths)
        places, ways_s = len(self.drafts) + 1, 2 * self.latency_s
        if lengths.ahead.right:
            seconds = np.maximum(checked, begun + places * one_s)
            if lengths.ahead.ready:
                seconds = np.maximum(seconds, (ways_s + checked + begun + places * one_s) / 2)
            return seconds, places * one_j
        done = np.minimum((checked + ways_s - begun) / np.maximum(places * one_s, 1e-30), 1.0)
        return checked, done * places * one_j


__all__ = ["ApartCosts", "SpeculatedCosts"]
