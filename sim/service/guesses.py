"""Which guessed tokens are right, drawn for every request by itself, and whose next guesses are there already."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.costs import GuessedAhead
from siliconloom.sim.service.live import LiveRequest

Rights = NDArray[np.bool_]


class Guesses:
    """Draws of one replica.

    Parameters
    ----------
    settings, index
        Chances and the seed, and the replica's number.

    Members
    -------
    places
        Tokens that are guessed in a row.
    checks, ready
        Checks of a request's guesses, and those whose guesses had been made during the check before.
    """

    def __init__(self, settings: ServeSettings, index: int) -> None:
        self._chances = np.array(settings.chances)
        self._ahead, self.places = settings.draft_ahead, len(self._chances)
        self._random = np.random.default_rng((settings.seed, index))
        self.checks = self.ready = 0

    def drawn(self, requests: Sequence[LiveRequest]) -> Rights:
        """Which guesses are right if those before them are: (requests, places), and one column more with guesses ahead.

        That is the first token of these: what the model itself says behind all that were right.
        """
        if not requests:
            return np.zeros((0, self.places), np.bool_)
        chances = np.append(self._chances, self._chances[-1]) if self._ahead else self._chances
        return np.asarray(self._random.random((len(requests), len(chances))) < chances, np.bool_)

    def ahead(self, requests: Sequence[LiveRequest], drawn: Rights, made: Callable[[LiveRequest], int]) -> GuessedAhead:
        """Whose guesses are ready, and whose will be behind this step; ``made`` are tokens of a request's answer."""
        if not self._ahead or not requests:
            return GuessedAhead()
        ready = sum(each.ready for each in requests)
        self.checks += len(requests)
        self.ready += ready
        whole: list[bool] = np.asarray(drawn.all(axis=1)).tolist()
        for each, right in zip(requests, whole, strict=True):
            each.ready = right and each.output - made(each) > self.places + 1
        return GuessedAhead(ready, sum(each.ready for each in requests))

    def right(self, drawn: Rights) -> list[int]:
        """Of each request the guesses that are right, up to the first that is not."""
        found: list[int] = np.cumprod(drawn[:, : self.places], axis=1).sum(axis=1).tolist()
        return found


__all__ = ["Guesses"]
