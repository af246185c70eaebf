"""Registers that a vector unit has beyond those of its stages, where its description lets results take longer.

At the least a unit takes ``arch.timing.VECTOR_STAGES`` cycles from an operand's address to its row's state. Each cycle
that ``tile.vector.latency`` has beyond that is a register which divides a stage, the longest one first: the clock may
be faster, and no cycle changes, since units wait for the latency that is described and not for the registers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from amaranth import Module, Signal
from amaranth.hdl import Value
from msgspec import Struct

Division = tuple[str, int]
"""Which stage a register divides: of a ``lane``, or of what makes a ``row``'s state of its sums."""


class Depth(Struct, frozen=True):
    """Registers that divide stages.

    Parameters
    ----------
    lane
        By the stage of a lane whose way to the next one they divide; of stage 0 they stand behind the memories.
    row
        By the stage of a row's state that they divide, from 1 on.
    """

    lane: tuple[int, ...]
    row: tuple[int, ...]

    @classmethod
    def of(cls, order: Sequence[Division], spare: int, lane: int, row: int) -> Depth:
        """So many cycles spent in an order, on so many stages of a lane and of a row's state."""
        spent = Counter(order[:spare])
        of_lane = tuple(spent["lane", stage] for stage in range(lane))
        return cls(of_lane, tuple(spent["row", stage] for stage in range(1, row + 1)))

    def at(self, stage: int) -> int:
        """Cycles from an operand's address to a stage of its lane."""
        return stage + sum(self.lane[:stage])

    def late(self, stage: int, lines: int) -> int:
        """Cycles by which parameters come into use later than they arrive, for the stage that reads them last.

        A block's arrive in the cycles of ``lines`` lines between its last operand and the next one, and are read up
        to a stage later than that many only where registers stand between.
        """
        return max(self.at(stage) - self.lane[0] - lines - 1, 0)


def delayed(m: Module, name: str, value: Value, cycles: int) -> Value:
    """A value so many cycles later; its last register has the name."""
    for left in reversed(range(cycles)):
        later = Signal(value.shape(), name=f"{name}_before_{left}" if left else name)
        m.d.sync += later.eq(value)
        value = later
    return value


__all__ = ["Depth", "Division", "delayed"]
