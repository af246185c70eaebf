"""The one error that bad input raises, with everything a reader needs to mend it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path

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
    """Where a value was written: a file with one-based line and column, or a command-line override.

    ``above`` is what comes before its key path there, where another description changes one.
    """

    source: str
    line: int | None = None
    column: int | None = None
    above: str = ""

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
        path = f"{position.above}{path}" if path else ""
        self.rule, self.position, self.path, self.value, self.nearest = rule, position, path, value, nearest
        parts = [str(position)]
        if path:
            parts.append(path)
        text = rule
        if value is not None:
            shown = repr(value) if isinstance(value, str) else str(value)
            if isinstance(value, bool):
                shown = shown.lower()  # as YAML and JSON have it
            text += f" (got {shown if len(shown) <= 60 else shown[:57] + '...'})"
        if nearest:
            text += f"; did you mean '{nearest}'?"
        parts.append(text)
        super().__init__(": ".join(parts))


ALIASES = Path(__file__).resolve().parent / "library" / "names" / "aliases.yaml"
"""Other words for what the library has."""
LONGEST_NAME = 200
"""Characters of a name above which none is looked for: it is no slip of the keyboard."""
ALIKE = 0.6
"""Share of a name's letters that must be right for a suggestion,"""
ALMOST = 0.8
"""and where one of the two names has a number that the other one leaves out."""
_WORD = re.compile(r"[^0-9a-z]+")
_NUMBER = re.compile(r"[0-9]+")
_DOUBLED = re.compile(r"([a-z])\1+")


def nearest_name(name: str, valid: Iterable[str]) -> str | None:
    """Valid name that is meant by ``name``; ``None`` when none comes near.

    In this order: the same but for case and punctuation, another word for it (`ALIASES`), what it abbreviates, the
    closest by letters, the one whose words it has or that has its words. Numbers are meant as written: a ``rtx3090``
    is no ``rtx-4090``, and a misspelt name has the numbers of the right one, or some of them.
    """
    if len(name) > LONGEST_NAME or not name.strip():
        return None
    names = list(dict.fromkeys(valid))
    given = _plain(name)
    for each in names:
        if given and _plain(each) == given:
            return each
    for word, each in _aliases():
        if _plain(word) == given and each in names:
            return each
    longer = [n for n in names if len(name) > 2 and _abbreviates(name.lower(), n.lower())]
    if len(longer) == 1:
        return longer[0]
    return _by_letters(name.lower(), names) or _by_words(name, names)


def require_name(where: str, name: str, valid: Iterable[str]) -> str:
    """``name``, one of ``valid``; raises `LoomError` that begins with ``where`` and ends with the nearest one."""
    names = list(valid)
    if name not in names:
        near = nearest_name(name, names)
        hint = f"; did you mean '{near}'?" if near else ""
        raise LoomError(f"{where}: must be one of {', '.join(names)} (got '{name}'){hint}")
    return name


def _plain(name: str) -> str:
    return _WORD.sub("", name.lower())


@cache
def _aliases() -> list[tuple[str, str]]:
    """Other words, each with the name that it is a word for."""
    import yaml  # only where a name is wrong

    found = yaml.safe_load(ALIASES.read_text(encoding="utf-8"))
    return [(str(word).lower(), str(name)) for name, words in found.items() for word in words]


def _abbreviates(name: str, other: str) -> bool:
    """Whether ``name`` is the beginning of ``other``, and no number goes on where it ends."""
    rest = other.removeprefix(name)
    return rest != other and not (name[-1].isdigit() and rest[:1].isdigit())


def _by_words(name: str, names: list[str]) -> str | None:
    """The only name that has all words of this one, or the longest of those whose words are all in this one."""
    given = set(_WORD.split(name.lower())) - {""}
    words = {each: set(_WORD.split(each.lower())) - {""} for each in names}
    having = [each for each in names if given and given <= words[each]]
    if len(having) == 1 and sum(map(len, given)) > 2:
        return having[0]
    held = [each for each in names if words[each] <= given and sum(map(len, words[each])) > 2]
    return max(held, key=lambda each: len(words[each]), default=None)


def _by_letters(given: str, names: list[str]) -> str | None:
    """The name with the fewest letters to change, itself or another word for it, whose numbers are the same.

    One of the two may leave some numbers out, where nearly all letters are the same.
    """
    letters, numbers = _letters(given), _numbers(given)
    words = [(each.lower(), each, ALIKE) for each in names]
    words += [(word, each, ALMOST) for word, each in _aliases() if each in names]
    best: tuple[float, str | None] = (0.0, None)
    for word, each, least in words:
        theirs = _numbers(word)
        if not (_within(numbers, theirs) or (least == ALIKE and _within(theirs, numbers))):
            continue
        other = _letters(word)
        alike = max(_alike(letters, other), ALMOST * (_DOUBLED.sub(r"\1", letters) == _DOUBLED.sub(r"\1", other)))
        if alike >= (least if numbers == theirs else ALMOST) and alike > best[0]:
            best = alike, each
    return best[1]


def _letters(word: str) -> str:
    return _NUMBER.sub("", _plain(word))


def _numbers(word: str) -> list[str]:
    """The numbers in a word, their digits in order: two of them swapped are a slip of the keyboard."""
    return ["".join(sorted(number)) for number in _NUMBER.findall(word)]


def _within(some: list[str], all_of: list[str]) -> bool:
    """Whether ``some`` are among ``all_of``, in their order."""
    rest = iter(all_of)
    return all(each in rest for each in some)


def _alike(a: str, b: str) -> float:
    """Share of the longer text that need not be changed to get the other; two neighbours swapped are one change."""
    longest = max(len(a), len(b))
    if not longest or abs(len(a) - len(b)) > (1 - ALIKE) * longest:
        return 0.0
    before: list[int] = []
    last, row = before, list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        before, last, row = last, row, [i]
        for j, other in enumerate(b, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
    return 1 - row[-1] / longest
