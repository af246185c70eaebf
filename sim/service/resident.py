"""What of many alike lies on a replica's chips, LoRA adapters or whole models, and what bringing another one takes."""

from __future__ import annotations


class ResidentSlots:
    """Adapters that lie beside a model's weights (S-LoRA, vLLM), or models beside each other: the one that was used
    longest ago goes first.

    Parameters
    ----------
    slots
        How many there is room for; one that a running request uses stays.
    load_s, read_s
        Seconds to bring one from where all of them are, and to read one in a step.
    """

    def __init__(self, slots: int, load_s: float, read_s: float = 0.0) -> None:
        self.slots, self.load_s, self.read_s = slots, load_s, read_s
        self.loads = 0
        self._users: dict[int, int] = {}
        """Requests that use each one on the chips, in the order in which they were used."""
        self.used = 0
        """Those that running requests use."""

    @property
    def held(self) -> int:
        """How many are there."""
        return len(self._users)

    def holds(self, wanted: int) -> bool:
        """Whether what a request uses is there, or it uses none."""
        return wanted < 0 or wanted in self._users

    def fits(self, wanted: int) -> bool:
        """Whether a request that uses ``wanted`` may run: it uses none, it is there, or there is room."""
        return self.holds(wanted) or self.used < self.slots

    def enter(self, wanted: int) -> float:
        """A request begins to run; returns the seconds until what it uses is there."""
        if wanted < 0:
            return 0.0
        loaded = wanted in self._users
        if not loaded and len(self._users) >= self.slots:
            del self._users[next(name for name, users in self._users.items() if not users)]
        users = self._users.pop(wanted, 0)
        self._users[wanted] = users + 1
        self.used += users == 0
        self.loads += not loaded
        return 0.0 if loaded else self.load_s

    def leave(self, wanted: int) -> None:
        """A request no longer runs."""
        if wanted >= 0:
            self._users[wanted] -= 1
            self.used -= self._users[wanted] == 0

    def clear(self) -> None:
        """The chips have none any more; nobody runs."""
        self._users.clear()
        self.used = 0

    @property
    def step_s(self) -> float:
        """Seconds that a step takes longer for what its requests use."""
        return self.used * self.read_s


__all__ = ["ResidentSlots"]
