"""LoRA adapters of a replica: those on its chips, those that running requests use, and what a new one takes."""

from __future__ import annotations


class AdapterSlots:
    """Adapters that lie beside a model's weights (S-LoRA, vLLM): the one that was used longest ago goes first.

    Parameters
    ----------
    slots
        How many there is room for; one that a running request uses stays.
    load_s, read_s
        Seconds to bring one from the host, and to read one in a step.
    """

    def __init__(self, slots: int, load_s: float, read_s: float) -> None:
        self.slots, self.load_s, self.read_s = slots, load_s, read_s
        self.loads = 0
        self._users: dict[int, int] = {}
        """Requests that use each adapter on the chips, in the order in which they were used."""
        self.used = 0
        """Adapters that running requests use."""

    def fits(self, adapter: int) -> bool:
        """Whether a request with ``adapter`` may run: it needs none, it is there, or there is room."""
        return adapter < 0 or adapter in self._users or self.used < self.slots

    def enter(self, adapter: int) -> float:
        """A request begins to run; returns the seconds until its adapter is there."""
        if adapter < 0:
            return 0.0
        loaded = adapter in self._users
        if not loaded and len(self._users) >= self.slots:
            del self._users[next(name for name, users in self._users.items() if not users)]
        users = self._users.pop(adapter, 0)
        self._users[adapter] = users + 1
        self.used += users == 0
        self.loads += not loaded
        return 0.0 if loaded else self.load_s

    def leave(self, adapter: int) -> None:
        """A request no longer runs."""
        if adapter >= 0:
            self._users[adapter] -= 1
            self.used -= self._users[adapter] == 0

    def clear(self) -> None:
        """The chips have none any more; nobody runs."""
        self._users.clear()
        self.used = 0

    @property
    def step_s(self) -> float:
        """Seconds that a step takes longer for the adapters of its requests."""
        return self.used * self.read_s


__all__ = ["AdapterSlots"]
