"""The search of what is loaded ahead (`mapper.chip.ahead`), for a mapping of which everything else is decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from siliconloom.arch.description import Chip
from siliconloom.arch.isa import Program
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.ahead import Ahead, NotAhead
from siliconloom.mapper.chip.chosen import Choice, Part
from siliconloom.mapper.chip.program import Drafted
from siliconloom.mapper.chip.tasks import Task
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.workloads import Gemm

NEAR = 1.01
"""Nothing is tried of a program that is so close to what no mapping beats."""
GAINS = 1.0005
"""What is loaded ahead must save this much of the whole time: it may make a program longer."""
HIDDEN = 2
"""So many times what its first weights take to come a product may save at most, roughly: those behind them come
earlier, too. Where that is not worth it nothing is tried."""
FRUITLESS = 6
"""After so many products in a row of which none saves anything, the others are not tried."""
TRIED = 20_000
"""Most instructions of whole programs that are simulated with other loads ahead."""


def sooner(
    chip: Chip,
    parts: Sequence[Part],
    found: Drafted,
    lower: Callable[[Choice], Drafted],
    cost: Callable[[Program], int],
    bound: int,
) -> Drafted:
    """A draft with weights loaded ahead where that costs less, product by product; or the one that was ``found``.

    Parameters
    ----------
    chip, parts, found
        What is mapped, how it is cut, and the draft of everything that is decided.
    lower, cost
        The draft of a choice, and what a program costs.
    bound
        What no program costs less than.
    """
    assert isinstance(chip.tile, NpuTile)
    search = _Search(parts, found, lower, cost, chip.tile, cost(found.program))
    search.left = TRIED // len(found.program.instructions)
    latency = chip.cycles(chip.nearest.latency)
    fruitless = 0
    for number, place in search.places():
        if search.least <= NEAR * bound or fruitless == FRUITLESS:
            break
        if search.hides(number, place, latency):
            before = search.least
            for ring in Ahead.__struct_fields__:
                search.advance(number, place, ring)
            fruitless = fruitless + 1 if search.least == before else 0
    return search.found


class _Search(Struct):
    """The best draft so far, and what it costs; how many more are tried."""

    parts: Sequence[Part]
    found: Drafted
    lower: Callable[[Choice], Drafted]
    cost: Callable[[Program], int]
    tile: NpuTile
    least: int
    left: int = 0

    def places(self) -> Iterator[tuple[int, int]]:
        """Products of weights: numbers of their parts, and their own in these; the most frequent ones first."""
        for number in sorted(range(len(self.parts)), key=lambda number: -self.parts[number].count):
            for place, task in enumerate(self.parts[number].tasks):
                if may_go_ahead(self.tile, task):
                    yield number, place

    def hides(self, number: int, place: int, latency: int) -> bool:
        """Whether it may pay to load the first weights of a product ahead, which take their part of its time."""
        part = self.parts[number]
        chosen = self.found.mapping.choice[1][number][part.tasks[place].operator.name]
        product, tiling = chosen.share.operator, chosen.tiling
        assert isinstance(product, Gemm)
        assert isinstance(tiling, GemmTiling)
        first = tiling.memory_cycles / (-(-product.n // tiling.n) * -(-product.k // tiling.k))
        return part.count * HIDDEN * (latency + first) > (GAINS - 1) * self.least

    def advance(self, number: int, place: int, ring: str) -> None:
        """Load the first weights of a product in one ring as early as pays."""
        layout, tiled = self.found.mapping.choice
        if ring == "values" and not layout.values:
            return
        name = self.parts[number].tasks[place].operator.name
        for reach in range(getattr(tiled[number][name].ahead, ring) + 1, place + 2):
            if self.left <= 0:
                return
            try:
                self._try(number, name, ring, reach)
            except NotAhead as error:
                if error.ends:
                    return

    def _try(self, number: int, name: str, ring: str, reach: int) -> None:
        layout, tiled = self.found.mapping.choice
        made = [dict(each) for each in tiled]
        made[number][name] = made[number][name].ahead_by(ring, reach)
        draft = self.lower((layout, made))
        if len(draft.program.instructions) > self.tile.sequencer.program_words:
            return
        self.left -= 1
        taken = self.cost(draft.program)
        if GAINS * taken < self.least:
            self.found, self.least = draft, taken


def may_go_ahead(tile: NpuTile, task: Task) -> bool:
    """Whether a task has weights, and operators are not launched one by one."""
    return isinstance(task.operator, Gemm) and task.operator.weight and not tile.sequencer.launch_cycles


__all__ = ["may_go_ahead", "sooner"]
