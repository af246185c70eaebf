"""How long a mapping is looked for."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

TRIALS = 300
"""Changes that are simulated where nothing else is said."""


def _nobody(share: float) -> None:
    """Nobody wants to know how far the search is."""


class Budget(Struct, frozen=True):
    """How long is looked.

    Parameters
    ----------
    trials
        Changes that are simulated at most.
    seconds
        Wall time at most; with it the number of trials is no limit.
    seed
        Of the changes.
    advance
        Is told which share of the budget is spent, from 0 to 1.
    """

    trials: int = TRIALS
    seconds: float | None = None
    seed: int = 0
    advance: Callable[[float], None] = _nobody

    def portion(self, begin: float, end: float) -> Budget:
        """That of a part of a search, from one share of the whole to another."""

        def advance(share: float) -> None:
            self.advance(begin + (end - begin) * share)

        seconds = None if self.seconds is None else self.seconds * (end - begin)
        trials = round(self.trials * end) - round(self.trials * begin)
        return replace(self, trials=trials, seconds=seconds, advance=advance)

    def part(self, number: int, of: int) -> Budget:
        """That of one of several searches, which share the time; each has all trials."""

        def advance(share: float) -> None:
            self.advance((number + share) / of)

        return replace(self, seconds=None if self.seconds is None else self.seconds / of, advance=advance)


__all__ = ["TRIALS", "Budget"]
