"""What a reproduced publication consists of: rows of ours against published."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Sense = Literal["equal", "at least", "at most"]
Verdict = Literal["inside", "explained", "bound", "not modelled", "moved", "outside"]
DRIFT = 0.02
"""How far our figure may move, relatively, where only `CardRow.expected` holds it."""


class CardRow(Struct, frozen=True):
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
    expected
        The error of a row that its tolerance does not hold: one with a cause, or a bound that is respected from afar.
        Our figure must stay within `DRIFT` of it. It stands in ``expected.csv`` and changes only on purpose.
    """

    name: str
    ours: float | None
    published: float
    tolerance: float
    cause: str = ""
    sense: Sense = "equal"
    expected: float | None = None

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
    def pinned(self) -> bool:
        """Tell whether only an expected error can make this row fail: it is explained, or a bound."""
        return (
            self.ours is not None and (self.sense != "equal" or not self.within) and (self.within or bool(self.cause))
        )

    @property
    def verdict(self) -> Verdict:
        """Say how the row stands.

        ``inside`` its tolerance; ``explained`` or ``bound`` where it lies where it is expected to lie; ``moved`` where
        it does not; ``not modelled`` where nothing of ours gives a figure and the cause says so; else ``outside``.
        """
        if self.ours is None:
            return "not modelled" if self.cause else "outside"
        if not self.pinned:
            return "inside" if self.within else "outside"
        assert self.error is not None
        if self.expected is None or abs((1 + self.error) / (1 + self.expected) - 1) > DRIFT:
            return "moved"
        return "bound" if self.within else "explained"

    @property
    def holds(self) -> bool:
        """Tell whether the figure is reproduced, or lies where a named cause puts it."""
        return self.verdict not in ("moved", "outside")

    @property
    def kind(self) -> str:
        """The name without what stands in brackets at its end."""
        return self.name.partition(" [")[0]


class Card(Struct, frozen=True):
    """A publication: short name, title, where it appeared, the rows."""

    name: str
    title: str
    source: str
    rows: tuple[CardRow, ...]

    @property
    def holds(self) -> bool:
        """Tell whether every row holds."""
        return all(row.holds for row in self.rows)
