"""Local search: small changes of a whole mapping, each of which is simulated and kept where it is better.

What is found before (`mapper.chip.mapping`) divides the buffers in few ways, costs tiles of few sizes by estimates, and
simulates the best of these. Here any tile of any size may take the place of another one, and the buffers are divided
anew, into slots of just what all tiles take, where it has no room. A change is kept where the whole program costs less,
so that a search that ends early has the best mapping that it has found. The same seed and number of trials give the
same mapping.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from siliconloom.arch.description import Chip, NpuTile
from siliconloom.arch.document import Document
from siliconloom.arch.errors import LoomError
from siliconloom.mapper.chip.attention_cost import AttentionTiling, attention_tiling
from siliconloom.mapper.chip.bounds import least_bytes, operator_bound
from siliconloom.mapper.chip.choice import Chosen, LocalEffort, Tiling, executions
from siliconloom.mapper.chip.described import mapping_of, mapping_text
from siliconloom.mapper.chip.gemm_cost import GemmMemories
from siliconloom.mapper.chip.gemm_layout import GemmLayout
from siliconloom.mapper.chip.known import KnownTasks
from siliconloom.mapper.chip.layout import Layout
from siliconloom.mapper.chip.mapping import INTERRUPTED, alone
from siliconloom.mapper.chip.moves import LOOPS, SIZES, Moves, Needs, Sample, exact_fit
from siliconloom.mapper.chip.objective import Objective
from siliconloom.mapper.chip.program import MappedWorkload, Mapping, checked, draft
from siliconloom.mapper.chip.sharing import Share, shares
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import GemmTiling, gemm_tiling
from siliconloom.mapper.chip.transfers import LONGEST_ROW
from siliconloom.mapper.chip.vector_cost import choose_vector_tilings
from siliconloom.mapper.chip.vector_shape import VectorLayout, vector_shape
from siliconloom.workloads import Attention, Gemm, Vector

TRIALS = 300
"""Changes that are simulated where nothing else is said."""
LOOKED_AT = 40
"""Changes that are looked at for each that is simulated, at most."""
HOPELESS = 1.5
"""A change whose estimate is so many times that of what it would take the place of is not simulated."""
ANEW = 0.15
"""This part of the changes are tiles at random."""
DONE = 1.001
"""A mapping that is so close to what no mapping beats is good enough."""
Place = tuple[int, str]
"""A task: the number of its part, and its name."""


def _nobody(share: float) -> None:
    """Nobody wants to know how far the search is."""


class Budget(Struct, frozen=True):
    """How long is looked.

    Parameters
    ----------
    trials
        Changes that are simulated at most.
    seconds
        Wall time at most; with it the number of trials is no limit.
    seed
        Of the changes.
    advance
        Is told which share of the budget is spent, from 0 to 1.
    """

    trials: int = TRIALS
    seconds: float | None = None
    seed: int = 0
    advance: Callable[[float], None] = _nobody


def improved(plan: MappedWorkload, objective: Objective, budget: Budget) -> MappedWorkload:
    """The best mapping found by changing ``plan``'s, or that itself."""
    if plan.mapping is None or plan.searched is None or plan.searched.interrupted:
        return plan
    search = _LocalSearch(plan, objective, budget)
    interrupted = False
    try:
        search.run()
    except KeyboardInterrupt:
        interrupted = True
    effort = replace(plan.searched, local=search.effort, interrupted=interrupted)
    notes = (*plan.notes, search.said(), *((INTERRUPTED,) if interrupted else ()))
    found = plan if search.found is None else search.found
    return replace(found, notes=notes, searched=effort, objective=plan.objective)


class _LocalSearch(Struct):
    """The mapping in hand, and what is known of it."""

    plan: MappedWorkload
    objective: Objective
    budget: Budget
    effort: LocalEffort = field(default_factory=LocalEffort)
    found: MappedWorkload | None = None
    """The best mapping, where it is another than the plan's."""
    known: KnownTasks = field(default_factory=KnownTasks)
    tasks: dict[Place, Task] = field(default_factory=dict)
    costs: dict[Place, int] = field(default_factory=dict)
    """What one execution of each task costs by itself, in units of the objective."""
    mapping: Mapping = None  # type: ignore[assignment]
    random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        assert self.plan.mapping is not None
        self.mapping, self.random = self.plan.mapping, random.Random(self.budget.seed)
        for number, part in enumerate(self.mapping.parts):
            for task in part.tasks:
                self.tasks[number, task.operator.name] = task

    @property
    def chip(self) -> Chip:
        return self.plan.chip

    @property
    def tile(self) -> NpuTile:
        assert isinstance(self.chip.tile, NpuTile)
        return self.chip.tile

    def run(self) -> None:
        """Look until the budget is spent."""
        began, effort = time.perf_counter(), self.effort
        parts = self.mapping.parts
        self.costs = {at: self._alone(at, self._chosen(at), self.mapping.choice[0]) for at in self.tasks}
        effort.first = effort.last = self.objective.measure(self.plan.program)
        count = {at: parts[at[0]].count for at in self.tasks}
        bounds = {at: operator_bound(self.chip, t.operator, t.fused) for at, t in self.tasks.items()}
        floors = {at: self.objective.of(b.lower_bound_cycles, least_bytes(self.chip, b)) for at, b in bounds.items()}
        whole = sum(count[at] * floor for at, floor in floors.items())
        limit = LOOKED_AT * self.budget.trials
        try:
            while effort.last > DONE * whole and limit > 0:
                limit -= self.budget.seconds is None
                spent = effort.tried / self.budget.trials
                if self.budget.seconds is not None:
                    spent = (time.perf_counter() - began) / self.budget.seconds
                self.budget.advance(min(spent, 1.0))
                if spent >= 1:
                    break
                gaps = [count[at] * max(self.costs[at] - floors[at], 0) + whole / 1000 for at in self.tasks]
                (at,) = self.random.choices(list(self.tasks), gaps)
                self._change(at, count)
        finally:
            effort.seconds = time.perf_counter() - began

    def said(self) -> str:
        """What came of it, in a line."""
        done = self.effort
        gain = 1 - done.last / done.first if done.first else 0.0
        tries = f"local search: {done.tried:,} changes of the mapping simulated (seed {self.budget.seed})"
        return f"{tries}, {done.better} kept: {gain:.2%} less {self.objective.name}"

    def _chosen(self, at: Place) -> Chosen:
        return self.mapping.choice[1][at[0]][at[1]]

    def _levels(self, at: Place) -> tuple[str, ...]:
        return self.mapping.parts[at[0]].levels[at[1]]

    def _alone(self, at: Place, chosen: Chosen, layout: Layout) -> int:
        many = executions(self.mapping.parts)
        return alone(self.chip, self.plan.graph, self.objective, many, self.tasks[at], self._levels(at), layout, chosen)

    def _change(self, at: Place, count: dict[Place, int]) -> None:
        """Try one change of a task."""
        old, task = self._chosen(at), self.tasks[at]
        proposed = self._proposed(at, task, old)
        if proposed is None:
            return
        new, layout = proposed
        estimate = self.objective.of_tiling
        if estimate(new.tiling, new.share.tiles) > HOPELESS * estimate(old.tiling, old.share.tiles):
            return
        self.effort.tried += 1
        try:
            cost = self._alone(at, new, layout)
            overlap = sum(count[each] * cost for each, cost in self.costs.items()) - self.effort.last
            if count[at] * (cost - self.costs[at]) > max(overlap, 0):
                return  # more than neighbours could hide
            tiled = [dict(each) for each in self.mapping.choice[1]]
            tiled[at[0]][at[1]] = replace(new, cost=cost)
            mapping = replace(self.mapping, choice=(layout, tiled))
            program = draft(self.chip, self.plan.graph, mapping, self.known).program
            if len(program.instructions) > self.tile.sequencer.program_words:
                return
            whole = self.objective.measure(program)
            if whole >= self.effort.last:
                return
            made = checked(self.chip, self.plan.graph, draft(self.chip, self.plan.graph, mapping), self.plan.notes)
            mapping_of(Document.parse(mapping_text(made)), self.chip, self.plan.graph)  # keeps every rule
        except LoomError:
            self.effort.refused += 1
            return
        self.effort.last, self.effort.better = whole, self.effort.better + 1
        self.mapping, self.costs[at], self.found = mapping, cost, made

    def _proposed(self, at: Place, task: Task, old: Chosen) -> tuple[Chosen, Layout] | None:
        """Another tiling of a task, and the division of the buffers in which it has room."""
        layout = self.mapping.choice[0]
        if isinstance(task.operator, Vector):
            vector = self._vector(task, self._levels(at), layout)
            return None if vector is None or vector == old else (vector, layout)
        others = self._others(at)

        def divided(needs: Needs) -> Layout | None:
            """The buffers as they are, or divided anew."""
            if all(need <= getattr(layout, ring) for ring, need in needs.items()):
                return layout
            slots = exact_fit(self.tile, {r: max(needs.get(r, 0), others.get(r, 0)) for r in {**others, **needs}})
            return Layout(**(dict.fromkeys(Layout.__struct_fields__, 0) | slots)) if slots else None

        moves = Moves(self.chip, task, self.random, lambda needs: divided(needs) is not None)
        apart = layout.values > 0
        kind = task.operator.kind
        sizes = {key: getattr(old.tiling, key) for key in (*SIZES[kind], *LOOPS[kind])}
        before = Sample(old.share, sizes, apart)
        sample = moves.drawn(apart=apart) if self.random.random() < ANEW else moves.changed(before, rings=False)
        needs = moves.needs(sample)
        found = divided(needs)
        if found is None or sample == before:
            return None
        tiling = self._tiling(task, sample, self._levels(at), found)
        return None if tiling is None else (Chosen(tiling, sample.share, 0, self.objective.name == "time"), found)

    def _others(self, at: Place) -> dict[str, int]:
        """What the tiles of all other tasks take of a slot of each ring; values have the ring that they have."""
        needs: dict[str, int] = {}
        for place, task in self.tasks.items():
            if place == at:
                continue
            for ring, need in self._needs(task, self._chosen(place)).items():
                needs[ring] = max(needs.get(ring, 0), int(need))
        if self.mapping.choice[0].values:
            needs["values"] = max(needs.get("values", 0), self.mapping.choice[0].values)
        return needs

    def _needs(self, task: Task, chosen: Chosen) -> Needs:
        tiling, part = chosen.tiling, chosen.share.operator
        if isinstance(tiling, GemmTiling):
            assert isinstance(part, Gemm)
            return GemmLayout(self.tile, gemm_shape(part, task)).needs(tiling.m, tiling.n, tiling.k)
        if isinstance(tiling, AttentionTiling):
            moves = Moves(self.chip, task, self.random, bool)
            sizes = {key: getattr(tiling, key) for key in (*SIZES["attention"], *LOOPS["attention"])}
            return moves.needs(Sample(chosen.share, sizes, self.mapping.choice[0].values > 0))
        assert isinstance(part, Vector)
        return VectorLayout(self.tile, vector_shape(self.tile, part, task)).needs(tiling.rows, tiling.cols)

    def _working(self, share: Share, levels: tuple[str, ...]) -> Chip:
        chip = self.chip.model_copy(update={"tile_count": share.tiles})
        return chip if isinstance(share.operator, Gemm) else chip.seen_from(levels[0])

    def _tiling(self, task: Task, sample: Sample, levels: tuple[str, ...], layout: Layout) -> Tiling | None:
        """A sample's tiling, as far as a transfer can load its tile."""
        part, sizes, chip = sample.share.operator, sample.sizes, self._working(sample.share, levels)
        if isinstance(part, Gemm):
            shape = gemm_shape(part, task)
            mnk = sizes["m"], sizes["n"], sizes["k"]
            if shape.packed and GemmLayout(self.tile, shape).needs(*mnk)["weights"] > LONGEST_ROW:
                return None
            a, b, c = (chip.memory[name] for name in levels) if len(chip.memory) > 1 else (chip.nearest,) * 3
            memories = GemmMemories(a, b, c)
            return gemm_tiling(chip, shape, memories, mnk, sizes["order"], sizes["resident"], layout.values)
        assert isinstance(part, Attention)
        tokens = (sizes[key] for key in (*SIZES["attention"], *LOOPS["attention"]))
        return attention_tiling(chip, part, task.held_by(part), *tokens, apart=layout.values > 0)

    def _vector(self, task: Task, levels: tuple[str, ...], layout: Layout) -> Chosen | None:
        """Another one of the tilings that are costed for a function of the vector unit."""
        ways = [share for _, share in shares(self.chip, task.operator, task.fused)]
        share = self.random.choice(ways)
        part = share.operator
        assert isinstance(part, Vector)
        shape = vector_shape(self.tile, part, task)
        (tilings,) = choose_vector_tilings(self._working(share, levels), [layout], shape, self.objective)
        if not tilings:
            return None
        return Chosen(self.random.choice(tilings), share, 0, self.objective.name == "time")


__all__ = ["TRIALS", "Budget", "improved"]
