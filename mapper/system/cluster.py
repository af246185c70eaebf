"""What a plan needs to know of a system: its chips, and what joins them."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.network import Wiring
from siliconloom.mapper.system.contracts import Fabric, Machine


class Cluster(Struct, frozen=True):
    """Chips, what joins them, and which rank each one takes.

    Parameters
    ----------
    kinds
        Machines and how many of each, in the order of the chips.
    fabrics
        As each kind sees it.
    per_node
        Chips that are nearer to each other than to the rest.
    places
        Chip of each rank.
    wiring
        Links, where messages are simulated one by one.
    digest
        SHA-256 of the descriptions it was read from.
    """

    name: str
    kinds: tuple[tuple[Machine, int], ...]
    fabrics: tuple[Fabric, ...]
    per_node: int
    places: tuple[int, ...]
    wiring: Wiring | None = None
    digest: str = ""

    @property
    def chips(self) -> int:
        return sum(count for _, count in self.kinds)

    @property
    def uneven(self) -> bool:
        """Whether it matters which chip takes which rank."""
        wiring = self.wiring
        if len(self.kinds) > 1:
            return True
        if wiring is None:
            return False
        alike = len(set(wiring.bandwidth.tolist())) == 1 and len(set(wiring.latency.tolist())) == 1
        return not alike or bool(wiring.topology.edges)

    def placed(self, places: tuple[int, ...]) -> Cluster:
        """The same chips with other ranks."""
        fabrics = tuple(fabric.placed(places) for fabric in self.fabrics)
        return replace(self, places=places, fabrics=fabrics)

    def part(self, chips: int) -> Cluster:
        """The first ``chips`` of the chips, which are all of one kind."""
        (machine, _), *others = self.kinds
        assert not others
        assert chips <= self.chips
        places = tuple(range(chips))
        return replace(self, kinds=((machine, chips),), places=places).placed(places)

    @property
    def machine(self) -> Machine:
        """The only kind, or the first."""
        return self.kinds[0][0]

    @property
    def capacity(self) -> float:
        """Bytes of the smallest memory."""
        return min(machine.capacity for machine, _ in self.kinds)

    def kinds_between(self, first: int, last: int) -> list[int]:
        """Kinds of the chips that ranks from ``first`` to before ``last`` are."""
        if len(self.kinds) == 1:
            return [0]
        ends = list(accumulate(count for _, count in self.kinds))
        return sorted({bisect_right(ends, chip) for chip in self.places[first:last]})
