"""Registers that a vector unit has beyond those of its stages, where its description lets results take longer.

At the least a unit takes ``arch.timing.VECTOR_STAGES`` cycles from an operand's address to its row's state. Each cycle
that ``tile.vector.latency`` has beyond that is a register which divides a stage, the longest one first: the clock may
be faster, and no cycle changes, since units wait for the latency that is described and not for the registers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from amaranth import Module, Signal
from amaranth.hdl import Value
from msgspec import Struct

from siliconloom.arch import timing
from siliconloom.rtl.cells.floating import Cut

Division = tuple[str, int]
"""Which stage a register divides: of a ``lane``, or of what makes a ``row``'s state of its sums."""

SUM = 4
"""The stage of a lane that adds to what was there before, in floating point."""


class Depth(Struct, frozen=True):
    """Registers that divide stages.

    Parameters
    ----------
    lane
        By the stage of a lane whose way to the next one they divide; of stage 0 they stand behind the memories.
    row
        By the stage of a row's state that they divide, from 1 on.
    sum_stages
        Of an addition in floating point; those of a lane's sum are among the registers of its stage.
    """

    lane: tuple[int, ...]
    row: tuple[int, ...]
    sum_stages: int = 1

    @classmethod
    def of(cls, order: Sequence[Division], latency: int, lane: int, row: int, sum_stages: int = 1) -> Depth:
        """What a latency has beyond the least, spent in an order, on so many stages of a lane and of a row's state."""
        spent = Counter(order[: latency - timing.vector_stages(sum_stages)])
        spent["lane", SUM] += sum_stages - 1
        of_lane = tuple(spent["lane", stage] for stage in range(lane))
        return cls(of_lane, tuple(spent["row", stage] for stage in range(1, row + 1)), sum_stages)

    @property
    def sums(self) -> int:
        """Cycles by which the sum over a row comes later than in one addition a cycle."""
        return timing.sum_cycles(self.sum_stages)

    def at(self, stage: int) -> int:
        """Cycles from an operand's address to a stage of its lane."""
        return stage + sum(self.lane[:stage])

    def late(self, stage: int, lines: int) -> int:
        """Cycles by which parameters come into use later than they arrive, for the stage that reads them last.

        A block's arrive in the cycles of ``lines`` lines between its last operand and the next one, and are read up
        to a stage later than that many only where registers stand between.
        """
        return max(self.at(stage) - self.lane[0] - lines - 1, 0)

    def copies(self, stage: int, lines: int) -> list[int]:
        """When they are copied to come as much later, cycles after they arrive: each before others may follow."""
        late = self.late(stage, lines)
        return [*range(lines, late, lines), late] if late else []


def delayed(m: Module, name: str, value: Value, cycles: int) -> Value:
    """A value so many cycles later; its last register has the name."""
    for left in reversed(range(cycles)):
        later = Signal(value.shape(), name=f"{name}_before_{left}" if left else name)
        m.d.sync += later.eq(value)
        value = later
    return value


def dividing(m: Module, name: str, places: tuple[int, ...], cycles: int) -> Cut:
    """So many registers in a sum or a product: at the places one after the other, and what is left at the first one."""

    def cut(place: int, values: list[Value]) -> list[Value]:
        spent = Counter([*places[:cycles], *places[:1] * max(cycles - len(places), 0)])[place]
        if not spent:
            return values
        return [delayed(m, f"{name}_{place}_{number}", value, spent) for number, value in enumerate(values)]

    return cut


def cut_at(m: Module, name: str, places: Collection[int]) -> Cut:
    """A register at each of these places of a product or a sum."""

    def cut(place: int, values: list[Value]) -> list[Value]:
        if place not in places:
            return values
        return [delayed(m, f"{name}_{place}_{number}", value, 1) for number, value in enumerate(values)]

    return cut


__all__ = ["SUM", "Depth", "Division", "cut_at", "delayed", "dividing"]
