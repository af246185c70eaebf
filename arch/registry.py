"""Registries: tables that modules fill in, each with its own rows, so that nothing lists them all.

A folder whose modules register what they define is read by `discover`: a new file in it is found without being named
anywhere. What is registered elsewhere, by a test or a package of its own, is used in the same way.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Generic, TypeVar

from siliconloom.arch.errors import LoomError

Key = TypeVar("Key")
Row = TypeVar("Row")
Member = TypeVar("Member")


class Registry(Mapping[Key, Row], Generic[Key, Row]):
    """Rows by key, in the order in which they were added.

    Parameters
    ----------
    what
        What a row is, for messages.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._rows: dict[Key, Row] = {}

    def __getitem__(self, key: Key) -> Row:
        return self._rows[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, key: Key, row: Row) -> None:
        """Register a row; raises `LoomError` when its key is taken."""
        if key in self._rows:
            raise LoomError(f"{self.what} {key} is registered twice")
        self._rows[key] = row

    def remove(self, key: Key) -> None:
        """Take a row back; raises `LoomError` when there is none."""
        if key not in self._rows:
            raise LoomError(f"{self.what} {key} is not registered")
        del self._rows[key]


class Live(Set[Member], Generic[Member]):
    """Those of some members for which a condition holds, asked anew each time."""

    def __init__(self, members: Callable[[], Iterator[Member]], condition: Callable[[Member], bool]) -> None:
        self._members, self._condition = members, condition

    @classmethod
    def _from_iterable(cls, it: object) -> frozenset[Member]:  # type: ignore[override]
        return frozenset(it)  # type: ignore[call-overload, no-any-return]

    def __contains__(self, member: object) -> bool:
        return any(member == each for each in self)

    def __iter__(self) -> Iterator[Member]:
        return filter(self._condition, self._members())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __hash__(self) -> int:
        raise TypeError("a live set changes")


def discover(folder: str) -> None:
    """Import every module of the package ``folder``, in the order of their names."""
    package = importlib.import_module(folder)
    for module in sorted(each.name for each in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"{folder}.{module}")


__all__ = ["Live", "Registry", "discover"]
