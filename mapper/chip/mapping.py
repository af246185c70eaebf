"""From a workload and a chip to a Plan: the Program, how it was chosen, and the bound it cannot beat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product, zip_longest

from siliconloom.arch.description import Chip, NpuTile, SystolicTile
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.isa import Instruction, Opcode, Program
from siliconloom.mapper.chip.attention import AttentionLowering
from siliconloom.mapper.chip.attention_cost import AttentionTiling
from siliconloom.mapper.chip.bounds import Bound, graph_bound
from siliconloom.mapper.chip.builder import ProgramBuilder
from siliconloom.mapper.chip.choice import (
    FEW,
    WORTH,
    Choice,
    Chosen,
    Part,
    Rivals,
    Tiling,
    choose_layouts,
    executions,
    finalists,
)
from siliconloom.mapper.chip.gemm import GemmLowering
from siliconloom.mapper.chip.layout import Layout, declare_rings
from siliconloom.mapper.chip.lowering import Context
from siliconloom.mapper.chip.memory import MemoryMap
from siliconloom.mapper.chip.placement import Placement, measure, place
from siliconloom.mapper.chip.tasks import Task, block_tasks, gemm_shape
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.mapper.chip.vector import VectorLowering, vector_shape
from siliconloom.workloads import Attention, Gemm, Graph
from siliconloom.workloads.graph import is_optimizer

IN_A_ROW = 4
"""Executions of a task that are simulated to learn what one of them takes among neighbours."""
OVERLAP = 0.007
"""Among more than few tasks rivals are tried where operators that overlap save at least this part of the time."""
TRIED, FEW_TRIED = 5000, 20000
"""Most instructions of whole workloads that are simulated with rivals of single tasks; among few tasks."""
PAIRED = 16
"""Among few tasks: rivals of each of two neighbours that are tried together, the fastest pairs first."""


@dataclass(frozen=True)
class MappedTask:
    """A task and the tiling chosen for it; cycles and bytes are for one execution on one tile.

    Where memory levels differ between repetitions, ``runs`` has how many of them use which tiling, in order, and
    ``tiling`` is the first of those, ``tiles`` how many of the chip's tiles share it.
    """

    task: Task
    repeat: int
    tiling: Tiling | None
    runs: tuple[tuple[int, Tiling], ...] = ()
    tiles: int = 1

    @property
    def estimated_cycles(self) -> int:
        """The mapper's estimate of one execution, the mean over all of them."""
        return -(-sum(count * tiling.cycles for count, tiling in self.runs) // self.repeat)


@dataclass(frozen=True)
class MappedWorkload:
    """What the mapper decided.

    Parameters
    ----------
    program
        Instructions for one tile; all tiles of the chip run it on their share.
    tasks
        Tasks in program order.
    layout
        Division of the tile's memories; ``None`` on a bare array.
    memory_bytes
        Main memory that parameters, cache and intermediate results occupy.
    placement
        Which memory level holds what; ``None`` where there is one level at most.
    """

    chip: Chip
    graph: Graph
    program: Program
    tasks: tuple[MappedTask, ...]
    layout: Layout | None
    memory_bytes: int
    bound: Bound
    notes: tuple[str, ...] = ()
    placement: Placement | None = None

    @property
    def estimated_cycles(self) -> int:
        """The mapper's own estimate, to be compared with the simulator's answer."""
        return sum(count * tiling.cycles for task in self.tasks for count, tiling in task.runs)


def map_workload(
    chip: Chip,
    graph: Graph,
    cycles: Callable[[Program], int] | None = None,
    placement: Placement | None = None,
    *,
    search: bool = True,
) -> MappedWorkload:
    """Tile and lower ``graph`` for ``chip``.

    Parameters
    ----------
    chip, graph
        What to map, and onto what.
    cycles
        What a program takes on the chip, such as `sim.chip.costs.CostService` answers: the few best candidates of a
        task are then lowered and the fastest taken. By default the mapper's own estimates decide.
    search
        With ``cycles``: lower the whole workload for every way to share out the buffers, too, and take the fastest.
    placement
        Where everything lies on a chip with several memory levels; by default `placement.place` decides.

    Raises
    ------
    LoomError
        When a tile's buffers or the main memory are too small, or a stated precision is not the chip's.
    NotSupported
        For tiles and operators that have no lowering.
    """
    graph, notes = fit_precision(chip, graph)
    if isinstance(chip.tile, SystolicTile):
        return _map_bare(chip, graph, notes)
    if not isinstance(chip.tile, NpuTile):
        raise NotSupported("mapping a workload to a pim tile")
    parts = _parts(chip, graph, None)
    simulated = None if cycles is None else partial(_alone, chip, chip.tile, graph, cycles, executions(parts))
    if len(chip.memory) > 1:
        if placement is None:
            draft, _ = choose_layouts(chip, chip.tile, graph, parts, None)
            placement = _place(chip, chip.tile, graph, parts, draft[0])
        parts = _parts(chip, graph, placement)
    choices, rivals = choose_layouts(chip, chip.tile, graph, parts, simulated)
    if cycles is None:
        return _plan(chip, graph, _draft(chip, graph, parts, choices[0], placement), notes, placement)
    found = [(0, choice) for choice in choices] if search else finalists(parts, choices, rivals)
    return _plan(chip, graph, _fastest(chip, graph, parts, found, rivals, placement, cycles), notes, placement)


@dataclass(frozen=True)
class _Draft:
    """A lowered workload that is not checked yet."""

    choice: Choice
    program: Program
    tasks: tuple[MappedTask, ...]
    memory: MemoryMap


def _draft(chip: Chip, graph: Graph, parts: Sequence[Part], choice: Choice, placement: Placement | None) -> _Draft:
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    memory = MemoryMap(chip, None if placement is None else placement.homes)
    program, mapped = _lower_all(chip, tile, graph, parts, choice, memory, draft=True)
    return _Draft(choice, program, mapped, memory)


def _fastest(
    chip: Chip,
    graph: Graph,
    parts: Sequence[Part],
    choices: Sequence[tuple[int, Choice]],
    rivals: Rivals,
    placement: Placement | None,
    cycles: Callable[[Program], int],
) -> _Draft:
    """Of choices, each with the sum of its operators' cycles, the one whose whole program takes the least.

    Operators overlap with their neighbours. None is looked at that would have to gain twice as much by that as the
    first one does. Where the overlap is a good part of the time, rivals of single tasks are tried, too: the one that
    is the fastest by itself need not be the fastest between its neighbours.
    """
    first = _draft(chip, graph, parts, choices[0][1], placement)
    if len(choices) == len(parts) == len(parts[0].tasks) == 1:
        return first
    runs = [(cycles(first.program), 0, first)]
    overlap = abs(choices[0][0] - runs[0][0])
    for number, (total, choice) in enumerate(choices[1:], 1):
        if total - 2 * overlap < min(run[0] for run in runs) * (1 - WORTH):
            other = _draft(chip, graph, parts, choice, placement)
            runs.append((cycles(other.program), number, other))
    runs.sort(key=lambda run: run[:2])
    few = executions(parts) <= FEW
    if few or overlap >= OVERLAP * runs[0][0]:
        budget = (FEW_TRIED if few else TRIED) // len(first.program.instructions)
        trials = _Trials(parts, rivals, partial(_draft, chip, graph, parts, placement=placement), cycles, overlap)
        for place, (least, number, draft) in enumerate(runs):
            trials.left = budget * (place + 1) // len(runs) - trials.spent
            best, changed = trials.exchange(draft, least, pairs=few)
            runs[place] = (best, number, changed)
    return min(runs, key=lambda run: run[:2])[2]


Place = tuple[int, str]
"""A task: the number of its part, and its name."""


@dataclass
class _Trials:
    """Whole workloads in which rivals of tasks take their place.

    What tasks take does not depend on where their buffers lie, so that nothing is tried again under another layout.
    """

    parts: Sequence[Part]
    rivals: Rivals
    lower: Callable[[Choice], _Draft]
    cycles: Callable[[Program], int]
    overlap: int
    left: int = 0
    spent: int = 0
    seen: set[tuple[object, ...]] = field(default_factory=set)

    def exchange(self, best: _Draft, least: int, *, pairs: bool) -> tuple[int, _Draft]:
        """The cycles and the draft after tasks were exchanged for rivals where that makes the whole faster.

        One by one, the best rival of every task first; with ``pairs`` then neighbours together, as what one does in the
        other's shade depends on both.
        """
        layout = best.choice[0]
        tasks = [(part, name) for part, tiled in enumerate(self.parts) for name in tiled.levels]
        self._is_new(best.choice[1])
        longest = sorted(tasks, key=lambda at: -best.choice[1][at[0]][at[1]].cycles)
        each = [[(task, rival) for rival in self._rivals(layout, task)] for task in longest]
        for task, rival in (way for ways in zip_longest(*each) for way in ways if way is not None):
            best, least = self._try(best, least, {task: rival})
        for first, second in pairwise(tasks) if pairs else ():
            both = product(self._rivals(layout, first)[:PAIRED], self._rivals(layout, second)[:PAIRED])
            counts = self.parts[first[0]].count, self.parts[second[0]].count
            for one, other in sorted(both, key=lambda two: counts[0] * two[0].cycles + counts[1] * two[1].cycles):
                best, least = self._try(best, least, {first: one, second: other})
        return least, best

    def _rivals(self, layout: Layout, task: Place) -> list[Chosen]:
        return self.rivals(layout, task[1], self.parts[task[0]].levels[task[1]])

    def _try(self, best: _Draft, least: int, changes: dict[Place, Chosen]) -> tuple[_Draft, int]:
        """The better one of a draft and the same with changes; these must not lose more than overlaps hide."""
        layout, made = best.choice
        loses = sum(self.parts[p].count * (new.cycles - made[p][name].cycles) for (p, name), new in changes.items())
        if loses > self.overlap or self.left <= 0:
            return best, least
        changed = [dict(tiled) for tiled in made]
        for (part, name), rival in changes.items():
            changed[part][name] = rival
        if not self._is_new(changed):
            return best, least
        self.left -= 1
        self.spent += 1
        other = self.lower((layout, changed))
        taken = self.cycles(other.program)
        return (other, taken) if taken < least else (best, least)

    def _is_new(self, made: Sequence[dict[str, Chosen]]) -> bool:
        key = tuple(part for tiled in made for each in tiled.values() for part in (id(each.share), id(each.tiling)))
        new = key not in self.seen
        self.seen.add(key)
        return new


def _parts(chip: Chip, graph: Graph, placement: Placement | None) -> list[Part]:
    """Blocks in program order, cut where an object goes on in another memory level."""
    tile, nearest = chip.tile, next(iter(chip.memory))
    assert isinstance(tile, NpuTile)
    parts = []
    makers: dict[str, str] = {}
    for _, repeat, operators in graph.blocks():
        tasks = tuple(block_tasks(graph, operators, tile))
        names = [task.operator.name for task in tasks]
        makers |= {o.name: task.operator.name for task in tasks for o in (task.operator, *task.fused)}
        if placement is None:
            parts.append(Part(0, repeat, tasks, dict.fromkeys(names, (nearest,) * 3)))
            continue
        cuts = [cut for cut in placement.cuts(names) if cut < repeat]
        for first, end in zip(cuts, [*cuts[1:], repeat], strict=True):
            levels = {task.operator.name: _levels(chip, graph, placement, makers, task, first) for task in tasks}
            parts.append(Part(first, end - first, tasks, levels))
    return parts


def _levels(
    chip: Chip, graph: Graph, placement: Placement, makers: dict[str, str], task: Task, repetition: int
) -> tuple[str, ...]:
    """Levels that a task's tiling is chosen for, in one repetition."""
    operator = task.operator
    if not isinstance(operator, Gemm):
        return (placement.slowest_share(chip, operator.name, repetition, operator.repeat),)
    makes = [makers[name] for name in graph.dataflow.predecessors(operator.name) if name in makers]
    keys = [
        (operator.name, "input") if (operator.name, "input") in placement.homes else (makes[0], "result"),
        (operator.name, "parameters" if operator.weight else "operand 1"),
        (operator.name, "result"),
    ]
    return tuple(placement.level(key, repetition) for key in keys)


def _place(chip: Chip, tile: NpuTile, graph: Graph, parts: Sequence[Part], choice: Choice) -> Placement:
    memory = MemoryMap(chip)
    program, _ = _lower_all(chip, tile, graph, parts, choice, memory)
    return place(chip, measure(program, memory))


def _plan(
    chip: Chip, graph: Graph, draft: _Draft, notes: tuple[str, ...], placement: Placement | None
) -> MappedWorkload:
    program, memory = draft.program, draft.memory
    checked = Program(program.instructions, program.semaphores, program.operators, program.tiles)
    memory.check()
    used = memory.used if placement is None else sum(placement.used.values())
    bound = graph_bound(chip, graph, placement)
    return MappedWorkload(chip, graph, checked, draft.tasks, draft.choice[0], used, bound, notes, placement)


def _lower_all(
    chip: Chip,
    tile: NpuTile,
    graph: Graph,
    parts: Sequence[Part],
    choice: Choice,
    memory: MemoryMap,
    *,
    draft: bool = False,
) -> tuple[Program, tuple[MappedTask, ...]]:
    """The Program, and every task with its tilings; a task of several parts stands in the tables once."""
    layout, tilings = choice
    builder = ProgramBuilder()
    builder.tiles = chip.tile_count
    rings = declare_rings(builder, layout)
    stored = builder.semaphore("stored", 1, "dependency")
    numbers, outputs = dict[str, int](), dict[str, tuple[int, int]]()
    tasks, runs = list[Task](), list[list[tuple[int, Tiling, int]]]()
    for part, tiled in zip(parts, tilings, strict=True):
        memory.repetition = part.first
        with builder.loop(part.count) as layer:
            context = Context(builder, chip, tile, layout, rings, memory, layer, stored, graph, outputs)
            for task in part.tasks:
                name = task.operator.name
                if name not in numbers:
                    numbers[name] = len(numbers)
                    tasks.append(task)
                    runs.append([])
                builder.operator = numbers[name]
                runs[builder.operator].append((part.count, tiled[name].timed, tiled[name].share.tiles))
                _lower(context, task, tiled[name])
    mapped = tuple(
        MappedTask(task, sum(count for count, _, _ in run), run[0][1], tuple(r[:2] for r in run), run[0][2])
        for task, run in zip(tasks, runs, strict=True)
    )
    return builder.finish(tuple(numbers), draft=draft), mapped


def fit_precision(chip: Chip, graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Take the chip's preferred format for a model that states none of its own accord."""
    operands = chip.tile.operands if not isinstance(chip.tile, NpuTile | SystolicTile) else chip.tile.array.operands
    accepts = chip.tile.array.accepts if isinstance(chip.tile, NpuTile | SystolicTile) else operands.__contains__
    unfit = sorted({o.precision for o in graph.operators() if not accepts(o.precision) and not is_optimizer(o)})
    if not unfit:
        return graph, ()
    wanted = ", ".join(d.value for d in operands)
    if graph.explicit_precision:
        raise LoomError(
            f"{graph.name}: {unfit[0].value} operands are not among those of {chip.name} ({wanted}); "
            f"set workload.precision to one of them"
        )
    note = f"{graph.name} is stored as {unfit[0].value}; {chip.name} computes it in {operands[0].value}"
    return graph.with_precision(operands[0]), (note,)


def _map_bare(chip: Chip, graph: Graph, notes: tuple[str, ...]) -> MappedWorkload:
    """One matmul instruction per GEMM: a bare array gets its operands from outside, in order, without delay."""
    drafts: list[Instruction] = []
    names: list[str] = []
    mapped: list[MappedTask] = []
    for operator in graph.operators():
        if not isinstance(operator, Gemm):
            raise NotSupported(
                f"{operator.kind} operators on a bare systolic tile (operator {operator.name}); "
                "use a chip with an npu tile"
            )
        count = operator.batch * operator.repeat
        product = Instruction(
            opcode=Opcode.MATMUL,
            m=operator.m,
            n=operator.n,
            k=operator.k,
            dtype=operator.precision,
            operator=len(names),
        )
        loop = [Instruction(opcode=Opcode.LOOP, m=count)], [Instruction(opcode=Opcode.NEXT)]
        drafts += [*loop[0], product, *loop[1]] if count > 1 else [product]
        names.append(operator.name)
        mapped.append(MappedTask(Task(operator, depends=False), operator.repeat, None, (), chip.tile_count))
    program = Program((*drafts, Instruction(opcode=Opcode.END)), (), tuple(names))
    return MappedWorkload(chip, graph, program, tuple(mapped), None, 0, graph_bound(chip, graph), notes)


def _alone(
    chip: Chip,
    tile: NpuTile,
    graph: Graph,
    cycles: Callable[[Program], int],
    graph_tasks: int,
    task: Task,
    levels: tuple[str, ...],
    layout: Layout,
    chosen: Chosen,
) -> int:
    """Cycles of one execution of a task.

    One among several has neighbours that it overlaps with: it is run a few times in a row then, and is its own one.
    """
    times = 1 if graph_tasks == 1 else IN_A_ROW
    once = replace(task, operator=replace(task.operator, repeat=times))
    name = task.operator.name
    part = Part(0, times, (once,), {name: levels})
    memory = MemoryMap(chip, levels=levels)
    program, _ = _lower_all(chip, tile, graph, [part], (layout, [{name: chosen}]), memory, draft=True)
    if len(chip.memory) > 1 and memory.used > min(chip.memory[level].total_capacity for level in levels):
        return chosen.cycles  # it streams from a level that its objects fill: the estimate has to do
    return -(-cycles(program) // times)


def _lower(context: Context, task: Task, chosen: Chosen) -> None:
    tiling, part = chosen.tiling, chosen.share.operator
    context.builder.tiles = chosen.share.tiles
    if isinstance(tiling, GemmTiling):
        GemmLowering(context, task, gemm_shape(part, task), tiling).emit()
    elif isinstance(tiling, AttentionTiling):
        assert isinstance(part, Attention)
        AttentionLowering(context, task, part, tiling).emit()
    else:
        VectorLowering(context, task, vector_shape(part), tiling).emit()


__all__ = ["MappedTask", "MappedWorkload", "Tiling", "fit_precision", "map_workload"]
