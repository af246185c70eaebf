"""What a workload keeps in main memory, object by object, and at which address."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError
from siliconloom.arch.layout import padded
from siliconloom.arch.memory import Held
from siliconloom.arch.quantity import format_bytes
from siliconloom.arch.tile import NpuTile

ALIGNMENT = 64
"""Bytes that objects begin at multiples of, at least."""


def alignment_of(chip: Chip) -> int:
    """Bytes that objects begin at multiples of: where a long row of a transfer may."""
    bus = chip.tile.dma.bytes_per_cycle if isinstance(chip.tile, NpuTile) else 1
    return max(ALIGNMENT, bus if bus & bus - 1 == 0 else 1)


Key = tuple[str, str]
"""Operator and role of an object: ``("layer.qkv", "parameters")``."""


class Item(Struct, frozen=True):
    """An object in main memory.

    Parameters
    ----------
    operator, role
        Whose it is, and what: ``parameters``, ``keys``, ``values``, ``scales``, ``functions``, ``table``, ``indices``,
        ``input``, ``operand N``, ``residual`` or ``result``.
    units, unit_bytes
        Equal parts that may lie in different levels, such as the parameters of each layer.
    """

    operator: str
    role: str
    units: int
    unit_bytes: int

    @property
    def key(self) -> Key:
        return self.operator, self.role

    @property
    def held(self) -> Held:
        """What a memory level must hold for the object to lie there."""
        if self.role in ("parameters", "scales", "functions", "table"):
            return "parameters"
        return "cache" if self.role in ("keys", "values", "state") else "activations"

    @property
    def size(self) -> int:
        """Bytes of all units."""
        return self.units * self.unit_bytes


class Home(Struct, frozen=True):
    """Consecutive units of an object in one memory level, one behind the other from ``address`` on."""

    level: str
    first: int
    count: int
    address: int


Homes = Mapping[Key, tuple[Home, ...]]


class Taken(NamedTuple):
    """Objects that were made room for, where they begin, and the bytes in use after the last of them."""

    items: dict[Key, Item]
    starts: dict[Key, int]
    used: int


class Kept(Struct, frozen=True):
    """What is in memory before a program: objects at their addresses, and tiles of the parameters among them.

    ``tiles`` has columns and depth of the tiles of every product with parameters: so these lie in memory.
    """

    taken: Taken
    tiles: Mapping[str, tuple[int, int]]


class MemoryMap:
    """Addresses of objects: one behind the other in the nearest level, or where ``homes`` says.

    ``levels`` puts the objects of a single task where its tiling was chosen for: one level for all of them, or one each
    for the first operand, for the second and what belongs to it, and for results.

    ``repetition`` is the first execution of the block that is being lowered; objects with a unit per execution are
    addressed from that unit on.
    """

    def __init__(self, chip: Chip, homes: Homes | None = None, levels: Sequence[str] = ()) -> None:
        self.chip, self.homes, self.repetition = chip, homes, 0
        bases = dict(zip(chip.memory, chip.level_bases, strict=True)) if levels else {}
        self._level_bases = [bases[name] for name in levels]
        self.alignment = alignment_of(chip)
        self.items: dict[Key, Item] = {}
        self.used = 0
        self._starts: dict[Key, int] = {}

    def take(self, operator: str, role: str, unit_bytes: int, units: int = 1) -> int:
        """Address of an object, or of its unit for the current repetition; the first call makes room for it."""
        item = Item(operator, role, units, unit_bytes)
        known = self.items.setdefault(item.key, item)
        if known != item:
            raise AssertionError(f"{operator}: {role} taken twice with different sizes")
        if item.key not in self._starts:
            self._starts[item.key] = self.used
            self.used += padded(item.size, self.alignment)
        unit = self.repetition if units > 1 else 0
        if self.homes is None:
            return self._base(role) + self._starts[item.key] + unit * unit_bytes
        home = next(h for h in self.homes[item.key] if h.first <= unit < h.first + h.count)
        return home.address + (unit - home.first) * unit_bytes

    def taken(self) -> Taken:
        """All that was taken so far."""
        return Taken(dict(self.items), dict(self._starts), self.used)

    def since(self, before: Taken) -> Taken:
        """What was taken since then."""
        items = {key: item for key, item in self.items.items() if key not in before.items}
        return Taken(items, {key: at for key, at in self._starts.items() if key not in before.starts}, self.used)

    def add(self, taken: Taken) -> None:
        """Take what was taken in another map of the same size."""
        self.items |= taken.items
        self._starts |= taken.starts
        self.used = taken.used

    def _base(self, role: str) -> int:
        if len(self._level_bases) < 2:
            return sum(self._level_bases)
        return self._level_bases[0 if role == "input" else 2 if role in ("result", "residual") else 1]

    def objects(self) -> Iterator[tuple[int, Item]]:
        """Every object with its address, where all lie one behind the other."""
        for key, start in self._starts.items():
            yield self._base(key[1]) + start, self.items[key]

    def owner(self) -> Owner:
        """Find objects by address, where all lie one behind the other."""
        return Owner([(start, self.items[key]) for key, start in self._starts.items() if self.items[key].size])

    def check(self) -> None:
        """Refuse a workload that is larger than the memory."""
        room = {name: memory.total_capacity for name, memory in self.chip.memory.items()}
        if self.used > sum(room.values()):
            raise no_room(self.chip, self.used)


class Owner:
    """Which object holds an address."""

    def __init__(self, starts: list[tuple[int, Item]]) -> None:
        self.starts = sorted(starts, key=lambda s: s[0])
        self.bases = [start for start, _ in self.starts]

    def of(self, address: int) -> Item:
        """Return the object at ``address``."""
        return self.starts[bisect_right(self.bases, address) - 1][1]


def no_room(chip: Chip, needed: int) -> LoomError:
    """Make the error for a workload that no level, nor all of them together, can hold."""
    levels = [
        f"memory.{name}, which has {format_bytes(m.total_capacity)} (memory.{name}.capacity)"
        for name, m in chip.memory.items()
    ]
    return LoomError(f"the workload needs {format_bytes(needed)} of {chip.name}'s " + " and ".join(levels))


__all__ = ["Home", "Homes", "Item", "Kept", "Key", "MemoryMap", "Owner", "Taken", "alignment_of", "no_room"]
