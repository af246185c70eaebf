"""Which points have programs in common, so that they are evaluated one behind the other, by one process.

What a process learns of a machine helps it with the next one that has the same programs: those of chips that differ in
the clock or in their memory's pace alone, and much of those whose buffers alone differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import groupby

from siliconloom.sweeps.axes import Sets

Question = tuple[int, Sets]
PACES = ("clock", "*.clock", "*.bandwidth", "*.latency")
"""Keys that no program depends on."""
ROOMS = ("*.capacity",)
"""Keys that say how large a buffer is."""


def likeness(sets: Sets) -> tuple[Sets, Sets]:
    """Of a point's keys those that its programs depend on: all but sizes of buffers, and these."""
    parts: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    for path, text in sets:
        if not _matches(path, PACES):
            parts[_matches(path, ROOMS)].append((path, text))
    return tuple(parts[0]), tuple(parts[1])


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def in_groups(questions: Iterable[Question]) -> list[Question]:
    """Those that are alike one behind the other; else as they come."""
    groups: dict[Sets, dict[Sets, list[Question]]] = {}
    for question in questions:
        others, rooms = likeness(question[1])
        groups.setdefault(others, {}).setdefault(rooms, []).append(question)
    return [question for rooms in groups.values() for group in rooms.values() for question in group]


class Shares:
    """Questions dealt to workers as they ask for them: who began with points that are alike goes on with these.

    They come in groups (`in_groups`). A worker without any takes the next that nobody has begun, and then the last
    half of what another one has left.
    """

    def __init__(self, questions: Sequence[Question], workers: int) -> None:
        alike = groupby(questions, key=lambda question: likeness(question[1])[0])
        self._waiting = deque(deque(group) for _, group in alike)
        self._begun: list[deque[Question]] = [deque() for _ in range(workers)]

    def following(self, worker: int) -> Question | None:
        """The next question of a worker, or none."""
        own = self._begun[worker]
        if not own:
            own = self._begun[worker] = self._waiting.popleft() if self._waiting else self._half()
        return own.popleft() if own else None

    def _half(self) -> deque[Question]:
        """What is taken from whoever has the most left."""
        longest = max(self._begun, key=len)
        taken = [longest.pop() for _ in range(-(-len(longest) // 2))]
        return deque(reversed(taken))


__all__ = ["Question", "Shares", "in_groups", "likeness"]
