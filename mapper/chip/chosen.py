"""What was decided for tasks, and how the search for it went."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from siliconloom.mapper.chip.ahead import IN_TURN, Ahead
from siliconloom.mapper.chip.attention_cost import AttentionTiling
from siliconloom.mapper.chip.banked import ChannelTiling
from siliconloom.mapper.chip.layout import Layout
from siliconloom.mapper.chip.sharing import Share
from siliconloom.mapper.chip.tasks import Task
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.mapper.chip.vector_cost import VectorTiling

INTERRUPTED = "the search was interrupted: this is the best mapping that it had found"
"""Said of what a search had found until then."""

Tiling = GemmTiling | AttentionTiling | VectorTiling | ChannelTiling


class Chosen(Struct, frozen=True):
    """What was decided for a task: each tile's part of it, how that is tiled, and what it costs.

    ``cost`` is in the objective's units, which are cycles where time counts, of which ``priced`` are the price of its
    bytes; it is measured where the candidate was simulated, and else estimated. Of other objectives ``priced`` is none.
    Of products there is ``ahead``, how early their first weights are loaded, and
    ``chunk``, the most bytes of weights that are one transfer, 0 where a tile is. ``divided`` is how the buffers are
    divided for this task, where it is not as for the others.
    """

    tiling: Tiling
    share: Share
    cost: int
    priced: int | None = 0
    ahead: Ahead = IN_TURN
    chunk: int = 0
    divided: Layout | None = None

    @property
    def timed(self) -> Tiling:
        """The tiling with the cycles that are known of it."""
        return self.tiling if self.priced is None else replace(self.tiling, cycles=self.cost - self.priced)

    @property
    def bytes_moved(self) -> int:
        """Bytes of main memory's traffic of one execution, on all tiles that share it."""
        return self.share.tiles * (self.tiling.read_bytes + self.tiling.write_bytes)

    def ahead_by(self, ring: str, reach: int) -> Chosen:
        """The same with weights in one ring loaded before so many loads that wait (`Ahead`)."""
        return replace(self, ahead=replace(self.ahead, **{ring: reach}))


class Effort(Struct):
    """What was looked at for a task, those of its kind together.

    Parameters
    ----------
    candidates, simulated
        Ways to compute it that were costed, and those of them that were lowered by themselves and run.
    seconds
        Wall time of that.
    """

    candidates: int = 0
    simulated: int = 0
    seconds: float = 0.0


class LocalEffort(Struct):
    """How a local search went.

    Parameters
    ----------
    tried, refused, kept
        Changes that were lowered, those of them that broke a rule, and those that were kept.
    first, last
        What the whole program cost before and in the end: cycles, joules, joule-seconds or bytes, as the objective has
        it; within a search in the units of its `objective.Objective`.
    seconds
        Wall time of that.
    seed
        Of its changes.
    """

    tried: int = 0
    refused: int = 0
    kept: int = 0
    first: int | float = 0
    last: int | float = 0
    seconds: float = 0.0
    seed: int = 0


class SearchEffort(Struct):
    """How a search went: the effort by task, and whether it was interrupted before it was through.

    ``local`` says what a local search made of what was found; ``remembered`` that it was done earlier, and what was
    found is known since.
    """

    tasks: dict[str, Effort] = field(default_factory=dict)
    interrupted: bool = False
    local: LocalEffort | None = None
    remembered: bool = False


class Part(Struct, frozen=True):
    """Repetitions of a block in which every object stays in its memory level.

    ``levels`` names, per operator, the levels that its tiling is chosen for: those of operands and results of a
    product; for others the one it spends the most time with.
    """

    first: int
    count: int
    tasks: tuple[Task, ...]
    levels: dict[str, tuple[str, ...]]


Choice = tuple[Layout, list[dict[str, Chosen]]]
"""Division of the buffers, and what is chosen for every task in each part."""
Rivals = Callable[[Layout, str, tuple[str, ...]], list["Chosen"]]
"""For a task, by name and `Part.levels`: its candidates under a layout, the best of each kind first."""
Measure = Callable[[Task, tuple[str, ...], Layout, Chosen], int]
"""Cycles of one execution of a task by itself, its objects in the levels that `Part.levels` lists."""


__all__ = [
    "INTERRUPTED",
    "Choice",
    "Chosen",
    "Effort",
    "LocalEffort",
    "Measure",
    "Part",
    "Rivals",
    "SearchEffort",
    "Tiling",
]
