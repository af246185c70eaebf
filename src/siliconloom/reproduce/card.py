"""What a reproduced publication consists of: rows of ours against published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sense = Literal["equal", "at least", "at most"]


@dataclass(frozen=True)
class Row:
    """One published figure and ours.

    Parameters
    ----------
    name
        What is compared, with its unit; rows of one kind share the text before `` [`` and stand together in the table.
    ours
        Our figure; ``None`` where nothing of ours gives one.
    published
        The publication's.
    tolerance
        Relative error that counts as reproduced, such as 0.001.
    cause
        Why the row is outside its tolerance; empty where it is inside.
    sense
        ``equal``, or a published bound that our figure must respect (the tolerance still applies).
    """

    name: str
    ours: float | None
    published: float
    tolerance: float
    cause: str = ""
    sense: Sense = "equal"

    @property
    def error(self) -> float | None:
        """Ours over published, less one."""
        return None if self.ours is None else self.ours / self.published - 1

    @property
    def within(self) -> bool:
        """Tell whether the figure is reproduced."""
        if self.error is None:
            return False
        low, high = -self.tolerance, self.tolerance
        if self.sense == "at least":
            return self.error >= low
        return self.error <= high if self.sense == "at most" else low <= self.error <= high

    @property
    def holds(self) -> bool:
        """Tell whether the figure is reproduced, or why it is not is known."""
        return self.within or bool(self.cause)

    @property
    def kind(self) -> str:
        """The name without what stands in brackets at its end."""
        return self.name.partition(" [")[0]


@dataclass(frozen=True)
class Card:
    """A publication: short name, title, where it appeared, the rows."""

    name: str
    title: str
    source: str
    rows: tuple[Row, ...]

    @property
    def holds(self) -> bool:
        """Tell whether every row holds."""
        return all(row.holds for row in self.rows)
