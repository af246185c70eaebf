"""Slots of local memory that operands pass through in turn, with the semaphores that say when one is full or free."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct, field
from msgspec.structs import replace

from siliconloom.arch.isa import Address
from siliconloom.arch.word import LEVELS

SLOTS = 2
NOBODY = -1
"""Semaphore of slots that nobody waits for."""


class Loop(Struct, frozen=True):
    """An open hardware loop; ``level`` is ``None`` when a single iteration needed no loop."""

    level: int | None
    count: int

    @property
    def mask(self) -> int:
        return 0 if self.level is None else 1 << self.level


NOWHERE = Address()
"""At the beginning of a slot."""


@lru_cache(maxsize=1 << 14)
def address(base: int, strides: tuple[int, ...], slot: int = 0, parity: int = 0, odd: int = 0) -> Address:
    """An `Address`: one for all instructions that have it, in whatever draft of a program."""
    return Address(base=base, strides=strides, slot=slot, parity=parity, odd=odd)


class LocalSlot(Struct):
    """A local address whose parity mask is completed when the loops around it close."""

    base: int
    slot: int
    odd: int
    parity: int = 0
    strides: tuple[int, ...] = (0,) * LEVELS

    def move(self, by: Address) -> None:
        """Begin further on, by ``by`` at each turn of the loops."""
        self.base, self.strides = self.base + by.base, by.strides

    def freeze(self) -> Address:
        return address(self.base, self.strides, self.slot, self.parity, self.odd)


class RingSide(Struct):
    """Cursor of one side of a ring."""

    count: int = 0
    uses: list[LocalSlot] = field(default_factory=list)
    """Those inside of open loops."""


class Ring(Struct):
    """Two slots of local memory between a producing and a consuming unit."""

    name: str
    base: int
    slot_bytes: int
    full: int
    free: int
    producer: RingSide = field(default_factory=RingSide)
    consumer: RingSide = field(default_factory=RingSide)
    slots: int = SLOTS
    spare: int = 0
    """Slots that its semaphores count and that are not there: whoever uses it takes them first, and gives them back."""
    full_bit: int = 0
    free_bit: int = 0

    def __post_init__(self) -> None:
        self.full_bit, self.free_bit = (0 if each == NOBODY else 1 << each for each in (self.full, self.free))

    def write_slot(self) -> LocalSlot:
        """Slot that the producer fills now."""
        return self._use(self.producer)

    def read_slot(self) -> LocalSlot:
        """Slot that the consumer reads now."""
        return self._use(self.consumer)

    def last_slot(self) -> LocalSlot:
        """Slot that the consumer has read last."""
        local = self.read_slot()
        local.odd ^= 1
        return local

    def written(self) -> None:
        """Move the producer to the other slot."""
        self.producer.count += 1

    def read(self) -> None:
        """Move the consumer to the other slot."""
        self.consumer.count += 1

    def moved(self, base: int, slot_bytes: int) -> Ring:
        """The same slots, cursors and semaphores elsewhere, and of another size."""
        size = slot_bytes if self.slots > 1 else 0
        return Ring(self.name, base, size, self.full, self.free, self.producer, self.consumer, self.slots)

    def as_one(self, base: int) -> Ring:
        """One slot elsewhere, under the same cursors and semaphores."""
        return Ring(
            self.name, base, 0, self.full, self.free, self.producer, self.consumer, slots=1, spare=self.slots - 1
        )

    @property
    def whole(self) -> Ring:
        """Both slots as one, under the same semaphores: whoever fills it has waited for either slot to be free."""
        return Ring(self.name, self.base, 0, self.full, self.free)

    def _use(self, side: RingSide) -> LocalSlot:
        local = LocalSlot(self.base, self.slot_bytes, side.count & 1)
        side.uses.append(local)
        return local


class Region(Struct, frozen=True):
    """One slot of local memory that a unit both fills and empties: its instructions go one after the other."""

    base: int

    def write_slot(self) -> LocalSlot:
        """Where a result goes."""
        return LocalSlot(self.base, 0, 0)

    def read_slot(self) -> LocalSlot:
        """Where it lies."""
        return LocalSlot(self.base, 0, 0)


def affine(base: int, *terms: tuple[Loop, int]) -> Address:
    """Address ``base + sum(index * stride)`` over open loops."""
    strides: list[int] | None = None
    for loop, stride in terms:
        level = loop.level
        if level is not None:
            strides = strides or [0] * LEVELS
            strides[level] += stride
    return address(base, tuple(strides) if strides else NOWHERE.strides)


def affine_more(address: Address, *terms: tuple[Loop, int]) -> Address:
    """The same address, which also moves with these loops."""
    strides = list(address.strides)
    for loop, stride in terms:
        if loop.level is not None:
            strides[loop.level] += stride
    return replace(address, strides=tuple(strides))
