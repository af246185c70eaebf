"""The one error that bad input raises, with everything a reader needs to mend it."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

from msgspec import Struct

MAX_MESSAGE = 480
"""Characters of an error message; of a longer one the middle is left out."""


def one_line(text: str) -> str:
    """The text on one line, with what would move a terminal's cursor, colour it or hide text written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or unicodedata.category(c) == "Zs" else _escaped(c) for c in text)


def shortened(text: str, most: int) -> str:
    """The text, at most so many characters of it: of a longer one the middle is left out."""
    if len(text) <= most:
        return text
    end = (most - 5) // 3
    return f"{text[: most - 5 - end]} ... {text[len(text) - end :]}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class LoomError(Exception):
    """Bad input or an unsupported request: one clear line, exit status 2 on the command line."""

    def __init__(self, text: str) -> None:
        super().__init__(shortened(one_line(text), MAX_MESSAGE))


class NotSupported(LoomError):
    """Something the tool does not build yet; the text starts with ``not supported:``."""

    def __init__(self, what: str) -> None:
        super().__init__(f"not supported: {what}")


class CheckFailed(LoomError):
    """A check that the user asked for did not hold: exit status 1 on the command line."""


class Position(Struct, frozen=True):
    """Where a value was written: a file with one-based line and column, or a command-line override."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"


class DescriptionError(LoomError):
    """A description that breaks a rule.

    Parameters
    ----------
    rule
        What must hold, in words.
    position
        File, line and column of the offending value.
    path
        Key path from the top of the document, such as ``tile.array.rows``.
    value
        The offending value as written; left out when ``None``.
    nearest
        Valid name nearest to what was written.
    """

    def __init__(
        self, rule: str, *, position: Position, path: str = "", value: object = None, nearest: str | None = None
    ) -> None:
        self.rule, self.position, self.path, self.value, self.nearest = rule, position, path, value, nearest
        parts = [str(position)]
        if path:
            parts.append(path)
        text = rule
        if value is not None:
            shown = repr(value) if isinstance(value, str) else str(value)
            text += f" (got {shown if len(shown) <= 60 else shown[:57] + '...'})"
        if nearest:
            text += f"; did you mean '{nearest}'?"
        parts.append(text)
        super().__init__(": ".join(parts))


def nearest_name(name: str, valid: Iterable[str]) -> str | None:
    """Valid name that ``name`` abbreviates, else the closest by edit similarity; ``None`` when none comes near."""
    names = list(valid)
    longer = [n for n in names if len(name) > 2 and n.lower().startswith(name.lower())]
    if len(longer) == 1:
        return longer[0]
    found = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.5)
    if not found:
        return None
    return next(n for n in names if n.lower() == found[0])
