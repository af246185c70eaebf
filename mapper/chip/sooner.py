"""The search of what is loaded ahead (`mapper.chip.ahead`), for a mapping of which everything else is decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.description import Chip
from siliconloom.arch.interrupts import CompilationInterrupted
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.ahead import RINGS, NotAhead
from siliconloom.mapper.chip.choice import ways_of
from siliconloom.mapper.chip.chosen import Choice, Chosen, Part, Rivals, SearchEffort
from siliconloom.mapper.chip.chunks import chunk_of, loaded_as
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
CHUNKS = (32 << 10, 8 << 10)
"""Bytes of chunks in which all weights are tried to come."""
CUTTING = 1.001
"""Chunks of all weights must save this much of the whole time."""
OTHERS = 8
"""So many other tilings of a product whose weights go ahead are tried: as what it loads first waits no more, fewer or
larger loads may be better than those that were best in turn."""

Place = tuple[int, int]
"""A task: the number of its part, and its own in that."""


def sooner(
    chip: Chip,
    parts: Sequence[Part],
    rivals: Rivals,
    made: Sequence[Drafted],
    lower: Callable[[Choice], Drafted],
    cost: Callable[[Drafted], int],
    bound: int,
    searched: SearchEffort,
) -> Drafted:
    """A draft whose weights are loaded ahead, and in chunks, where that costs less; or the first of those ``made``.

    Where the first one gains, a few others that are near it are tried, too, as the best without need not be the best,
    and the first one from its last product on.

    Parameters
    ----------
    chip, parts, rivals, made
        What is mapped, how it is cut, what else there is for each task, and drafts of everything that is decided; the
        best first.
    lower, cost
        The draft of a choice, and what a program costs.
    bound
        What no program costs less than.
    searched
        Whether the search was interrupted is put down there; the best draft of what was run is taken then.
    """
    best = _Search(parts, made[0], lower, cost, chip, cost(made[0]))
    before, tried = best.least, [best]
    try:
        best.run(bound)
        if GAINS * best.least < before:
            tried.append(_Search(parts, made[0], lower, cost, chip, before, backward=True))
            tried[-1].run(bound)
            for least, draft in _others(made, cost, CLOSE * before, best.tile.sequencer.program_words):
                tried.append(_Search(parts, draft, lower, cost, chip, least))
                tried[-1].run(bound)
            for each in tried:
                each.exchange(rivals, bound)
            best = _least(tried)
            best.run(bound)  # once more, of the other tiles
            best.exchange(rivals, bound)
    except CompilationInterrupted:
        raise
    except KeyboardInterrupt:
        searched.interrupted = True
    return _least(tried).found


def _others(
    made: Sequence[Drafted], cost: Callable[[Drafted], int], most: float, words: int
) -> Sequence[tuple[int, Drafted]]:
    """A few drafts beside the first and what they cost, less than ``most``; those of other ways first.

    None is of more than so many ``words``.
    """
    near = sorted(((cost(each), number) for number, each in enumerate(made[1:], 1)))
    met, unlike, alike = ways_of(made[0].mapping.choice), list[tuple[int, Drafted]](), list[tuple[int, Drafted]]()
    for least, number in near:
        if least < most and len(made[number].program.instructions) <= words:
            ways = ways_of(made[number].mapping.choice)
            (alike if ways <= met else unlike).append((least, made[number]))
            met |= ways
    return [*unlike, *alike][: STARTS - 1]


def _least(tried: Sequence[_Search]) -> _Search:
    """The best one, of those that are hardly worse than others the first."""
    best = tried[0]
    for each in tried:
        best = each if GAINS * each.least < best.least else best
    return best


class _Search(Struct):
    """The best draft so far, and what it costs; how many more are tried."""

    parts: Sequence[Part]
    found: Drafted
    lower: Callable[[Choice], Drafted]
    cost: Callable[[Drafted], int]
    chip: Chip
    least: int
    left: int = 0
    backward: bool = False
    """Products of a block are gone through from the last one on: what one has ahead leaves others no slot."""

    @property
    def tile(self) -> NpuTile:
        assert isinstance(self.chip.tile, NpuTile)
        return self.chip.tile

    def run(self, bound: int) -> None:
        """Go through all products once: in which chunks all come, then how far each goes ahead, then its own chunks."""
        self.left = TRIED // len(self.found.program.instructions)
        places = list(self.places())
        if self.least > NEAR * bound:
            for chunk in CHUNKS:
                cut = {at: replace(self.chosen(at), chunk=self.chunk_of(at, chunk)) for at in places}
                self._take(cut, CUTTING)
        for turn in (self.earlier, self.in_chunks):
            fruitless = 0
            for place in places:
                if self.least <= NEAR * bound or fruitless == FRUITLESS:
                    break
                before = self.least
                turn(place)
                fruitless = fruitless + 1 if self.least == before else 0

    def places(self) -> Iterator[Place]:
        """Products of weights: numbers of their parts, and their own in these; the most frequent ones first."""
        for number in sorted(range(len(self.parts)), key=lambda number: -self.parts[number].count):
            tasks = list(enumerate(self.parts[number].tasks))
            for place, task in reversed(tasks) if self.backward else tasks:
                if may_go_ahead(self.tile, task):
                    yield number, place

    def task(self, at: Place) -> Task:
        return self.parts[at[0]].tasks[at[1]]

    def chosen(self, at: Place) -> Chosen:
        """How a task is computed so far."""
        return self.found.mapping.choice[1][at[0]][self.task(at).operator.name]

    def earlier(self, at: Place) -> None:
        """Load the first weights of a product, in each ring, as early as pays."""
        if self.hides(at):
            for ring in RINGS:
                self.advance(at, ring)

    def hides(self, at: Place) -> bool:
        """Whether it may pay to load the first weights of a product ahead, which take their part of its time."""
        chosen = self.chosen(at)
        product, tiling = chosen.share.operator, chosen.tiling
        assert isinstance(product, Gemm)
        assert isinstance(tiling, GemmTiling)
        first = tiling.memory_cycles / (-(-product.n // tiling.n) * -(-product.k // tiling.k))
        latency = self.chip.cycles(self.chip.nearest.latency)
        return self.parts[at[0]].count * HIDDEN * (latency + first) > (GAINS - 1) * self.least

    def advance(self, at: Place, ring: str) -> None:
        """Load the first weights of a product in one ring as early as pays."""
        if ring == "values" and not self.found.mapping.choice[0].values:
            return
        for reach in range(getattr(self.chosen(at).ahead, ring) + 1, at[1] + 2):
            if self.left <= 0:
                return
            try:
                self._take({at: self.chosen(at).ahead_by(ring, reach)})
            except NotAhead as error:
                if error.ends:
                    return

    def in_chunks(self, at: Place) -> None:
        """Load weights of a product in chunks of another size, as long as smaller ones, or larger ones, pay."""
        for smaller in (True, False):
            while self.left > 0:
                now = self.chosen(at)
                size = self.chunk_of(at, now.chunk // 2 if smaller else 2 * now.chunk)
                if not now.chunk or size == now.chunk or not self._take({at: replace(now, chunk=size)}):
                    break

    def chunk_of(self, at: Place, size: int) -> int:
        """Chunks of about so many bytes for the weights of a product."""
        return chunk_of(self.chip, self.task(at), self.chosen(at), size)

    def exchange(self, rivals: Rivals, bound: int) -> None:
        """Compute products whose weights go ahead otherwise where that costs less."""
        self.left = TRIED // len(self.found.program.instructions)
        for at in self.places():
            levels, now = self.parts[at[0]].levels, self.chosen(at)
            if not (now.ahead or now.chunk):
                continue
            name = self.task(at).operator.name
            others = sorted(rivals(self.found.mapping.choice[0], name, levels[name]), key=lambda other: other.cost)
            for other in [each for each in others if (each.share, each.tiling) != (now.share, now.tiling)][:OTHERS]:
                if self.left <= 0 or self.least <= NEAR * bound:
                    return
                try:
                    self._take({at: loaded_as(self.chip, self.task(at), other, now)})
                except NotAhead:
                    continue

    def _take(self, changes: Mapping[Place, Chosen], gains: float = GAINS) -> bool:
        """Compute tasks so where that costs less, so much at least, and say whether it does."""
        layout, tiled = self.found.mapping.choice
        changes = {at: new for at, new in changes.items() if new != self.chosen(at)}
        if not changes:
            return False
        made = [dict(each) for each in tiled]
        for at, new in changes.items():
            made[at[0]][self.task(at).operator.name] = new
        draft = self.lower((layout, made))
        if len(draft.program.instructions) > self.tile.sequencer.program_words:
            return False
        self.left -= 1
        taken = self.cost(draft)
        better = gains * taken < self.least
        if better:
            self.found, self.least = draft, taken
        return better


def may_go_ahead(tile: NpuTile, task: Task) -> bool:
    """Whether a task has weights, and operators are not launched one by one."""
    return isinstance(task.operator, Gemm) and task.operator.weight and not tile.sequencer.launch_cycles


__all__ = ["may_go_ahead", "sooner"]
