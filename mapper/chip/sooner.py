"""The search of what is loaded ahead (`mapper.chip.ahead`), for a mapping of which everything else is decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from siliconloom.arch.description import Chip
from siliconloom.arch.interrupts import CompilationInterrupted
from siliconloom.arch.isa import Program
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.ahead import Ahead, NotAhead
from siliconloom.mapper.chip.choice import ways_of
from siliconloom.mapper.chip.chosen import Choice, Part, SearchEffort
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
STARTS, CLOSE = 4, 1.06
"""So many drafts are tried where the first one gains, of those that cost at most so many times as much."""
FRUITLESS = 6
"""After so many products in a row of which none saves anything, the others are not tried."""
TRIED = 20_000
"""Most instructions of whole programs that are simulated with other loads ahead."""


def sooner(
    chip: Chip,
    parts: Sequence[Part],
    made: Sequence[Drafted],
    lower: Callable[[Choice], Drafted],
    cost: Callable[[Program], int],
    bound: int,
    searched: SearchEffort,
) -> Drafted:
    """A draft with weights loaded ahead where that costs less, product by product; or the first of those ``made``.

    Where the first one gains, a few others that are near it are tried, too, as the best without need not be the best.

    Parameters
    ----------
    chip, parts, made
        What is mapped, how it is cut, and drafts of everything that is decided; the best first.
    lower, cost
        The draft of a choice, and what a program costs.
    bound
        What no program costs less than.
    searched
        Whether the search was interrupted is put down there; the best draft of what was run is taken then.
    """
    best = _Search(parts, made[0], lower, cost, chip, cost(made[0].program))
    before, tried = best.least, [best]
    try:
        best.run(bound)
        if GAINS * best.least < before:
            for least, draft in _others(made, cost, CLOSE * before, best.tile.sequencer.program_words):
                tried.append(_Search(parts, draft, lower, cost, chip, least))
                tried[-1].run(bound)
    except CompilationInterrupted:
        raise
    except KeyboardInterrupt:
        searched.interrupted = True
    for each in tried:
        best = each if GAINS * each.least < best.least else best
    return best.found


def _others(
    made: Sequence[Drafted], cost: Callable[[Program], int], most: float, words: int
) -> Sequence[tuple[int, Drafted]]:
    """A few drafts beside the first and what they cost, less than ``most``; those of other ways first.

    None is of more than so many ``words``.
    """
    near = sorted(((cost(each.program), number) for number, each in enumerate(made[1:], 1)))
    met, unlike, alike = ways_of(made[0].mapping.choice), list[tuple[int, Drafted]](), list[tuple[int, Drafted]]()
    for least, number in near:
        if least < most and len(made[number].program.instructions) <= words:
            ways = ways_of(made[number].mapping.choice)
            (alike if ways <= met else unlike).append((least, made[number]))
            met |= ways
    return [*unlike, *alike][: STARTS - 1]


class _Search(Struct):
    """The best draft so far, and what it costs; how many more are tried."""

    parts: Sequence[Part]
    found: Drafted
    lower: Callable[[Choice], Drafted]
    cost: Callable[[Program], int]
    chip: Chip
    least: int
    left: int = 0

    @property
    def tile(self) -> NpuTile:
        assert isinstance(self.chip.tile, NpuTile)
        return self.chip.tile

    def run(self, bound: int) -> None:
        """Go through all products once."""
        self.left, fruitless = TRIED // len(self.found.program.instructions), 0
        for number, place in self.places():
            if self.least <= NEAR * bound or fruitless == FRUITLESS:
                return
            if self.hides(number, place):
                before = self.least
                for ring in Ahead.__struct_fields__:
                    self.advance(number, place, ring)
                fruitless = fruitless + 1 if self.least == before else 0

    def places(self) -> Iterator[tuple[int, int]]:
        """Products of weights: numbers of their parts, and their own in these; the most frequent ones first."""
        for number in sorted(range(len(self.parts)), key=lambda number: -self.parts[number].count):
            for place, task in enumerate(self.parts[number].tasks):
                if may_go_ahead(self.tile, task):
                    yield number, place

    def hides(self, number: int, place: int) -> bool:
        """Whether it may pay to load the first weights of a product ahead, which take their part of its time."""
        part = self.parts[number]
        chosen = self.found.mapping.choice[1][number][part.tasks[place].operator.name]
        product, tiling = chosen.share.operator, chosen.tiling
        assert isinstance(product, Gemm)
        assert isinstance(tiling, GemmTiling)
        first = tiling.memory_cycles / (-(-product.n // tiling.n) * -(-product.k // tiling.k))
        latency = self.chip.cycles(self.chip.nearest.latency)
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
