"""Local search: small changes of a whole mapping, each of which is simulated and kept where it is better.

What is found before (`mapper.chip.mapping`) divides the buffers in few ways, costs tiles of few sizes by estimates, and
simulates the best of these. Here any tile of any size may take the place of another one, alone, with that of its
neighbour, or with smaller ones of the others, and the buffers are divided anew, into slots of just what all tiles take.
Weights may be loaded earlier or later, too (`mapper.chip.ahead`); what a change leaves no slot for has its turn again.
A change is kept where the whole program costs less, or as much with fewer bytes, so that a search that ends early has
the best mapping that it has found. The same seed and number of trials give the same mapping.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import asdict, replace

from siliconloom.arch.description import Chip
from siliconloom.arch.document import Document
from siliconloom.arch.errors import LoomError
from siliconloom.arch.interrupts import CompilationInterrupted
from siliconloom.arch.isa import Program
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.ahead import NotAhead
from siliconloom.mapper.chip.attention_cost import AttentionTiling, attention_tiling
from siliconloom.mapper.chip.bounds import least_bytes, mean_bound
from siliconloom.mapper.chip.budget import Budget
from siliconloom.mapper.chip.chosen import INTERRUPTED, Chosen, LocalEffort, Tiling
from siliconloom.mapper.chip.chunks import MOST_CHUNKS, chunk_of, loaded_as, longest_transfer
from siliconloom.mapper.chip.described import mapping_of
from siliconloom.mapper.chip.gemm_cost import KEPT, ORDERS
from siliconloom.mapper.chip.gemm_layout import GemmLayout
from siliconloom.mapper.chip.gemm_moves import GemmMemories
from siliconloom.mapper.chip.known import KnownTasks
from siliconloom.mapper.chip.layout import LARGE, Layout, slots_of
from siliconloom.mapper.chip.moves import LOOPS, SIZES, Moves, Needs, Sample, exact_fit
from siliconloom.mapper.chip.objective import Objective
from siliconloom.mapper.chip.orientation import oriented
from siliconloom.mapper.chip.pool import candidate
from siliconloom.mapper.chip.program import MappedWorkload, checked, draft
from siliconloom.mapper.chip.program import Mapping as WholeMapping
from siliconloom.mapper.chip.sharing import Share, shares
from siliconloom.mapper.chip.sooner import may_go_ahead
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import GemmTiling, gemm_tiling
from siliconloom.mapper.chip.transfers import LONGEST_ROW
from siliconloom.mapper.chip.vector_cost import VectorTiling, choose_vector_tilings
from siliconloom.mapper.chip.vector_shape import VectorLayout, vector_shape
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.workloads import Attention, Gemm, Vector

LOOKED_AT = 40
"""Changes that are looked at for each that is simulated, at most."""
EXHAUSTED = 4000
"""After so many in a row that are no news the search is over."""
HOPELESS = 1.5
"""A change whose estimate is so many times that of what it would take the place of is not simulated."""
EARLY, WORSE = 0.5, 1.05
"""Where there are several mappings to begin with they share this part of the changes; those that cost at most so many
times as much as the best."""
ANEW = 0.15
"""This part of the changes are tiles at random."""
PAIRS, SQUEEZED, RINGS, EARLIER, CUT = 0.2, 0.2, 0.03, 0.1, 0.4
"""These parts of the changes are of two neighbours; take room from the others' tiles; turn the ring of values; are of
how weights are loaded, the last part of these of their chunks and not of what goes ahead."""
SMALLER = 30
"""How often another task's tile is made smaller to make room, at most."""
DONE = 1.001
"""A mapping that is so close to what no mapping beats is good enough."""
FORGOTTEN = 500
"""After so many changes what is known of lowered tasks is forgotten, so that memory does not fill with it."""
Place = tuple[int, str]
"""A task: the number of its part, and its name."""


def improved(
    plan: MappedWorkload, objective: Objective, budget: Budget, others: Sequence[MappedWorkload] = ()
) -> MappedWorkload:
    """The best mapping found by changing ``plan``'s, or that itself, with what came of it in ``searched.local``.

    Where there are ``others`` to begin with that are not much worse, all of them have a part of the budget; what they
    became the rest: a division of the buffers that is left behind is hard to come back to.
    """
    if plan.mapping is None or plan.searched is None or plan.searched.interrupted:
        return plan
    done, interrupted, best = LocalEffort(seed=budget.seed), False, plan
    try:
        starts = _starts(plan, objective, others)
        done.first = done.last = starts[0][1]
        share = EARLY / len(starts) if len(starts) > 1 else 0.0
        turns = [(*each, number * share, (number + 1) * share) for number, each in enumerate(starts) if share]
        for start, cost, begin, end in [*turns, (None, 0, share * len(starts), 1.0)]:
            asked = (best, done.last) if start is None else (start, cost)
            search = _LocalSearch(*asked, objective, budget.portion(begin, end))
            try:
                search.run()
            finally:
                done.tried += search.effort.tried
                done.refused += search.effort.refused
                done.kept += search.effort.kept
                done.seconds += search.effort.seconds
                if search.effort.last < done.last or start is None:  # in the end of as many cycles with fewer bytes
                    best, done.last = search.found, search.effort.last
    except CompilationInterrupted:
        raise
    except KeyboardInterrupt:
        interrupted = True
    notes = (*plan.notes, INTERRUPTED) if interrupted else plan.notes
    searched = replace(plan.searched, local=done, interrupted=interrupted)
    return replace(best, notes=notes, searched=searched, objective=plan.objective, placed=plan.placed)


def _starts(
    plan: MappedWorkload, objective: Objective, others: Sequence[MappedWorkload]
) -> list[tuple[MappedWorkload, int]]:
    """Mappings to begin with, and what each costs: ``plan``, and different ones that are not much worse."""
    starts = [(plan, objective.measure(plan.program))]
    for other in others:
        if all(other.program != each.program for each, _ in starts):
            cost = objective.measure(other.program)
            starts += [(other, cost)] if cost <= WORSE * starts[0][1] else []
    return starts


class _Fixed(NamedTuple):
    """What does not change about a task: which memory levels its tiling is for, and how often it is executed."""

    task: Task
    levels: tuple[str, ...]
    times: int
    floor: float
    """What one execution costs at least."""
    moves: Moves | None
    """Of products and attention."""
    shares: list[Share]


class _State(Struct, frozen=True):
    """A mapping in hand."""

    layout: Layout
    chosen: Mapping[Place, Chosen]
    needs: Mapping[Place, Needs]
    """Bytes of a slot of each ring, for each task."""
    moved: float
    """Bytes of main memory, by the estimates."""


class _LocalSearch:
    """The search of one workload on one chip; ``found`` is the best so far."""

    def __init__(self, plan: MappedWorkload, cost: float, objective: Objective, budget: Budget) -> None:
        assert plan.mapping is not None
        assert isinstance(plan.chip.tile, NpuTile)
        self.plan, self.objective, self.budget, self.found = plan, objective, budget, plan
        self.chip, self.tile, self.mapping = plan.chip, plan.chip.tile, plan.mapping
        self.random = random.Random(budget.seed)
        self.effort = LocalEffort(first=cost, last=cost, seed=budget.seed)
        self.known, self.lowered = KnownTasks(), 0
        self.room: Callable[[Needs], bool] = bool
        self.tilings: dict[tuple[object, ...], Chosen | None] = {}
        self.vectors: dict[tuple[object, ...], list[Chosen]] = {}
        self.seen: set[tuple[object, ...]] = set()
        """What was simulated since the last change was kept."""
        self.shapes: dict[Place, _Fixed] = {}
        self.state: _State = _State(self.mapping.choice[0], {}, {}, 0.0)

    def run(self) -> None:
        """Look until the budget is spent, or nothing new is found."""
        began, effort, objective = time.perf_counter(), self.effort, self.objective
        self._begin()
        bound = self.plan.bound
        least = objective.of(bound.lower_bound_cycles, least_bytes(self.chip, bound) if objective.per_byte else 0)
        limit, stale = LOOKED_AT * self.budget.trials, 0
        try:
            while effort.last > DONE * least and limit > 0 and stale < EXHAUSTED:
                limit -= self.budget.seconds is None
                spent = effort.tried / max(self.budget.trials, 1)
                if self.budget.seconds is not None:
                    spent = (time.perf_counter() - began) / max(self.budget.seconds, 1e-9)
                self.budget.advance(min(spent, 1.0))
                if spent >= 1:
                    break
                stale = 0 if self._try(self._proposed()) else stale + 1
        finally:
            effort.seconds = time.perf_counter() - began

    def _begin(self) -> None:
        """Take down the plan's mapping."""
        layout, tiled = self.mapping.choice
        chosen, needs = {}, {}
        for number, part in enumerate(self.mapping.parts):
            for task in part.tasks:
                name, operator = task.operator.name, task.operator
                bound = mean_bound(self.chip, operator, self.mapping.placement, task.fused)
                moved = least_bytes(self.chip, bound) if self.objective.per_byte else 0
                floor = self.objective.of(bound.lower_bound_cycles, moved)
                moves, ways = None, []
                if isinstance(operator, Vector):
                    ways = [share for _, share in shares(self.chip, operator, task.fused)]
                else:
                    moves = Moves(self.chip, task, self.random, lambda needs: self.room(needs), (*ORDERS, *KEPT))
                    ways = moves.shares
                at = number, name
                self.shapes[at] = _Fixed(task, part.levels[name], part.count, floor, moves, ways)
                chosen[at] = tiled[number][name]
                needs[at] = self._needs(at, chosen[at], layout)
        self.state = _State(layout, chosen, needs, self._moved(chosen))

    def _moved(self, chosen: Mapping[Place, Chosen]) -> float:
        return sum(
            self.shapes[at].times * each.share.tiles * (each.tiling.read_bytes + each.tiling.write_bytes)
            for at, each in chosen.items()
        )

    def _try(self, proposed: tuple[Layout, dict[Place, Chosen]] | None) -> bool:
        """Simulate a proposed change, and keep it if it is better; whether it was news."""
        if proposed is None:
            return False
        layout, changes = proposed
        decided = ((id(new.tiling), id(new.share), new.ahead, new.chunk, new.divided) for new in changes.values())
        key = layout.values, *zip(changes, decided, strict=True)
        if key in self.seen or self._hopeless(changes):
            return False
        self.seen.add(key)
        self.effort.tried += 1
        chosen = {**self.state.chosen, **changes}
        moved = self._moved(chosen)
        try:
            whole, mapping = self._measured(layout, chosen)
            if (whole, moved) >= (self.effort.last, self.state.moved):
                return True
            made = checked(self.chip, self.plan.graph, draft(self.chip, self.plan.graph, mapping), self.plan.notes)
            mapping_of(Document.parse(mapping_text(made)), self.chip, self.plan.graph)  # keeps every rule
            whole = self.objective.measure(made.program)
            if (whole, moved) >= (self.effort.last, self.state.moved):
                return True
        except LoomError:
            self.effort.refused += 1
            return True
        chosen = {
            (number, name): each for number, made_of in enumerate(mapping.choice[1]) for name, each in made_of.items()
        }
        self.found, self.effort.last, self.effort.kept = made, whole, self.effort.kept + 1
        needs = {at: self._needs(at, each, layout) for at, each in chosen.items()}
        self.state = _State(layout, chosen, needs, moved)
        self.seen.clear()
        return True

    def _measured(self, layout: Layout, chosen: Mapping[Place, Chosen]) -> tuple[float, WholeMapping]:
        """What a mapping costs; what no slot is left for ahead is loaded in its turn."""
        tiled: list[dict[str, Chosen]] = [{} for _ in self.mapping.parts]
        for (number, name), each in chosen.items():
            early = each.ahead if layout.values else replace(each.ahead, values=0)
            tiled[number][name] = each if early == each.ahead else replace(each, ahead=early)
        mapping = replace(self.mapping, choice=(layout, tiled))
        while True:
            try:
                return self.objective.measure(self._lowered(mapping)), mapping
            except NotAhead as error:
                for made in tiled:
                    if error.operator in made:
                        made[error.operator] = made[error.operator].ahead_by(error.ring, 0)

    def _lowered(self, mapping: WholeMapping) -> Program:
        """The program of a mapping, for its time; raises `LoomError` where no tile has room for it."""
        self.lowered += 1
        if self.lowered % FORGOTTEN == 0:
            self.known = KnownTasks()
        layout, tiled = mapping.choice
        ample = replace(mapping, choice=(self._ample(layout), tiled))
        program = draft(self.chip, self.plan.graph, ample, self.known).program
        words = self.tile.sequencer.program_words
        if len(program.instructions) > words:
            raise LoomError(f"a program of more than {words} instructions")
        return program

    def _ample(self, layout: Layout) -> Layout:
        """Slots of any size where size makes no difference to the time: what was lowered under others is known then."""
        sizes = {ring: size and self.tile.scratchpad.capacity for ring, size in asdict(layout).items()}
        sizes["values"] = layout.values
        if slots_of(self.tile, "constants", layout.constants) > 1:
            sizes["constants"] = self.tile.scratchpad.capacity // LARGE
        return Layout(**sizes)

    def _hopeless(self, changes: Mapping[Place, Chosen]) -> bool:
        """Whether estimates say that a change is much worse."""
        before = after = 0.0
        for at, new in changes.items():
            old, count = self.state.chosen[at], self.shapes[at].times
            before += count * self.objective.of_tiling(old.tiling, old.share.tiles)
            after += count * self.objective.of_tiling(new.tiling, new.share.tiles)
        return after > HOPELESS * before

    def _proposed(self) -> tuple[Layout, dict[Place, Chosen]] | None:
        """A change: other tilings of a task or several, and the division of the buffers in which they have room."""
        way = self.random.random()
        if way < RINGS:
            return self._turned_ring()
        if way > 1 - EARLIER:
            return self._earlier()
        gaps = [
            shape.times * max(self.state.chosen[at].cost - shape.floor, 0) + self.effort.last / 1000
            for at, shape in self.shapes.items()
        ]
        places = list(self.shapes)
        (at,) = self.random.choices(places, gaps)
        if way < RINGS + PAIRS and len(places) > 1:
            other = places[places.index(at) - 1]
            return self._changed([at, other])
        if way < RINGS + PAIRS + SQUEEZED and self.shapes[at].moves is not None:
            return self._squeezed(at)
        return self._changed([at])

    def _changed(self, places: Iterable[Place]) -> tuple[Layout, dict[Place, Chosen]] | None:
        """Other tilings of these tasks, which have room beside what all others take."""
        layout, needs = self.state.layout, dict(self.state.needs)
        changes: dict[Place, Chosen] = {}
        for at in places:
            others = _together(each for place, each in needs.items() if place != at)
            shape, old = self.shapes[at], self.state.chosen[at]
            self.room = partial(self._has_room, others)
            if shape.moves is None:
                new = self._vector(at, layout)
            else:
                before = self._sample(at, old, layout)
                sample = self._moved_from(shape.moves, before)
                new = None if sample == before else self._tiling(at, sample, layout.values)
            if new is None:
                return None
            needs[at], changes[at] = self._needs(at, new, layout), new
        changes = {at: self._loaded(at, new) for at, new in changes.items() if not _same(new, self.state.chosen[at])}
        divided = self._divided(needs.values())
        return None if divided is None or not changes else (divided, changes)

    def _earlier(self) -> tuple[Layout, dict[Place, Chosen]] | None:
        """Weights of a product earlier or later, or in other chunks."""
        layout, r = self.state.layout, self.random
        products = [at for at, shape in self.shapes.items() if may_go_ahead(self.tile, shape.task)]
        if not products:
            return None
        number, name = at = r.choice(products)
        now = self.state.chosen[at]
        if r.random() < CUT:
            longest = longest_transfer(self.chip, self.shapes[at].task, now)
            size = chunk_of(self.chip, self.shapes[at].task, now, longest >> r.randint(0, MOST_CHUNKS.bit_length()))
            return None if size == now.chunk else (layout, {at: replace(now, chunk=size)})
        place = [task.operator.name for task in self.mapping.parts[number].tasks].index(name)
        ring = r.choice(["weights", "values"] if layout.values else ["weights"])
        new = now.ahead_by(ring, r.randint(0, place + 1))
        return None if new.ahead == now.ahead else (layout, {at: new})

    def _squeezed(self, at: Place) -> tuple[Layout, dict[Place, Chosen]] | None:
        """Another tile of a task, as large as there is room for at all, and smaller ones of those in its way."""
        layout, shape, samples = self.state.layout, self.shapes[at], dict[Place, Sample]()
        needs = dict(self.state.needs)
        fixed = _together(needs[place] for place, other in self.shapes.items() if other.moves is None)
        self.room = partial(self._has_room, fixed)
        assert shape.moves is not None
        before = self._sample(at, self.state.chosen[at], layout)
        samples[at] = self._moved_from(shape.moves, before)
        needs[at] = shape.moves.needs(samples[at])
        for _ in range(SMALLER):
            divided = self._divided(needs.values())
            if divided is not None:
                break
            rings = _together(needs.values())
            tallest = [max(needs, key=lambda place: needs[place].get(ring, 0)) for ring in rings]
            others = [place for place in dict.fromkeys(tallest) if place != at and self.shapes[place].moves]
            if not others:
                return None
            place = self.random.choice(others)
            moves = self.shapes[place].moves
            assert moves is not None
            old = samples.get(place) or self._sample(place, self.state.chosen[place], layout)
            samples[place] = moves.shrunk(old)
            needs[place] = moves.needs(samples[place])
        else:
            return None
        changes = dict[Place, Chosen]()
        for place, sample in samples.items():
            new = self._tiling(place, sample, layout.values)
            if new is None:
                return None
            if not _same(new, self.state.chosen[place]):
                changes[place] = self._loaded(place, new)
        return (divided, changes) if changes else None

    def _turned_ring(self) -> tuple[Layout, dict[Place, Chosen]] | None:
        """The same tiles with a ring of values where there is none, or without the one that there is."""
        layout, samples = self.state.layout, dict[Place, Sample]()
        if oriented(self.tile).array.dataflow == "output_stationary":
            return None
        apart = not layout.values
        tiles = []
        for at, shape in self.shapes.items():
            if shape.moves is not None:
                old = self._sample(at, self.state.chosen[at], layout)
                samples[at] = replace(old, apart=apart and shape.moves.may_lie_apart)
                if isinstance(shape.task.operator, Gemm) and old.sizes["k"] < shape.moves.limits(old.share)["k"][0]:
                    tiles.append(int(shape.moves.needs(old)["weights"]))
        needs = {
            at: self.shapes[at].moves.needs(samples[at])  # type: ignore[union-attr]
            if at in samples
            else need
            for at, need in self.state.needs.items()
        }
        values = 0
        if apart:
            own = max((int(each.get("values", 0)) for each in needs.values()), default=0)
            values = max(own, self.random.choice(tiles) if tiles and (not own or self.random.random() < 0.5) else 0)
            if not values:
                return None
        divided = self._divided([{k: v for k, v in each.items() if k != "values"} for each in needs.values()], values)
        if divided is None:
            return None
        changes = {at: self._tiling(at, sample, divided.values) for at, sample in samples.items()}
        made = {at: self._loaded(at, new) for at, new in changes.items() if new is not None}
        return (divided, made) if len(made) == len(changes) else None

    def _loaded(self, at: Place, new: Chosen) -> Chosen:
        """Another tiling of a task, weights loaded as they are."""
        return loaded_as(self.chip, self.shapes[at].task, new, self.state.chosen[at])

    def _has_room(self, others: Needs, needs: Needs) -> bool:
        return self._divided([others, needs]) is not None

    def _moved_from(self, moves: Moves, sample: Sample) -> Sample:
        if self.random.random() < ANEW:
            return moves.drawn(apart=sample.apart)
        return moves.changed(sample, rings=False)

    def _divided(self, needs: Iterable[Needs], values: int | None = None) -> Layout | None:
        """The buffers as they are, if that is room enough, or divided anew; a ring of values is as large as it was."""
        layout = self.state.layout
        taken = _together(needs)
        own = layout.values if values is None else values
        if own == layout.values and all(need <= getattr(layout, ring) for ring, need in taken.items()):
            return layout
        if own:
            taken["values"] = max(taken.get("values", 0), own)
        slots = exact_fit(self.tile, taken)
        return Layout(**(dict.fromkeys(Layout.__struct_fields__, 0) | slots)) if slots else None

    def _sample(self, at: Place, chosen: Chosen, layout: Layout) -> Sample:
        """What is decided about a product or attention."""
        shape, kind = self.shapes[at], self.shapes[at].task.operator.kind
        assert shape.moves is not None
        sizes = {key: getattr(chosen.tiling, key) for key in (*SIZES[kind], *LOOPS[kind])}
        return Sample(chosen.share, sizes, layout.values > 0 and shape.moves.may_lie_apart)

    def _needs(self, at: Place, chosen: Chosen, layout: Layout) -> dict[str, int]:
        shape = self.shapes[at]
        if chosen.divided is not None:  # it takes nothing of what the others share
            return {}
        if shape.moves is not None:
            return {ring: int(need) for ring, need in shape.moves.needs(self._sample(at, chosen, layout)).items()}
        tiling, part = chosen.tiling, chosen.share.operator
        assert isinstance(part, Vector)
        assert isinstance(tiling, VectorTiling)
        needs = VectorLayout(self.tile, vector_shape(self.tile, part, shape.task)).needs(tiling.rows, tiling.cols)
        return {ring: int(need) for ring, need in needs.items()}

    def _tiling(self, at: Place, sample: Sample, values: int) -> Chosen | None:
        """A sample with what it should cost, as far as a transfer can load its tile."""
        key = at, sample.share.cut, tuple(sample.sizes.values()), values
        if key not in self.tilings:
            made = self._estimated(at, sample, values)
            self.tilings[key] = None if made is None else self._chosen(made, sample.share)
        return self.tilings[key]

    def _chosen(self, tiling: Tiling, share: Share) -> Chosen:
        return candidate(tiling, share, self.objective)

    def _working(self, at: Place, share: Share) -> Chip:
        chip = self.chip.model_copy(update={"tile_count": share.tiles})
        return chip if isinstance(share.operator, Gemm) else chip.seen_from(self.shapes[at].levels[0])

    def _estimated(self, at: Place, sample: Sample, values: int) -> GemmTiling | AttentionTiling | None:
        part, sizes, chip = sample.share.operator, sample.sizes, self._working(at, sample.share)
        task, levels = self.shapes[at].task, self.shapes[at].levels
        if isinstance(part, Gemm):
            shape = gemm_shape(part, task)
            mnk = sizes["m"], sizes["n"], sizes["k"]
            if shape.packed and GemmLayout(self.tile, shape).needs_in(sizes["order"], *mnk)["weights"] > LONGEST_ROW:
                return None
            a, b, c = (chip.memory[name] for name in levels) if len(chip.memory) > 1 else (chip.nearest,) * 3
            memories, loops = GemmMemories(a, b, c), (sizes["order"], sizes["resident"])
            return gemm_tiling(chip, shape, memories, mnk, *loops, values, sizes["held"])
        assert isinstance(part, Attention)
        tokens = (sizes[key] for key in (*SIZES["attention"], *LOOPS["attention"]))
        return attention_tiling(chip, part, task.held_by(part), *tokens, apart=values > 0)

    def _vector(self, at: Place, layout: Layout) -> Chosen | None:
        """Another one of the tilings that are costed for a function of the vector unit."""
        share, task = self.random.choice(self.shapes[at].shares), self.shapes[at].task
        part = share.operator
        assert isinstance(part, Vector)
        key = at, share.cut, layout
        if key not in self.vectors:
            shape = vector_shape(self.tile, part, task)
            (tilings,) = choose_vector_tilings(self._working(at, share), [layout], shape, self.objective)
            self.vectors[key] = [self._chosen(tiling, share) for tiling in tilings]
        ways = self.vectors[key]
        return self.random.choice(ways) if ways else None


def _together(needs: Iterable[Needs]) -> dict[str, int]:
    """What tasks take of a slot of each ring: the most that any does."""
    taken: dict[str, int] = {}
    for each in needs:
        for ring, need in each.items():
            taken[ring] = max(taken.get(ring, 0), int(need))
    return taken


def _same(one: Chosen, other: Chosen) -> bool:
    """Whether both are the same tiles, whatever is known of their time."""
    if one.share.cut != other.share.cut or type(one.tiling) is not type(other.tiling):
        return False
    keys = {GemmTiling: (*SIZES["gemm"], *LOOPS["gemm"]), AttentionTiling: (*SIZES["attention"], *LOOPS["attention"])}
    return all(getattr(one.tiling, k) == getattr(other.tiling, k) for k in keys.get(type(one.tiling), ("rows", "cols")))


__all__ = ["Budget", "improved"]
