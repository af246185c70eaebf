"""From a `Mapping`, which is data, to the Program: a function of that data and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping as NamedValues
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import FieldTooWide, Program
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.ahead import NotAhead, go_ahead
from siliconloom.mapper.chip.append import AppendLowering
from siliconloom.mapper.chip.attention import AttentionLowering
from siliconloom.mapper.chip.attention_cost import AttentionTiling
from siliconloom.mapper.chip.banked import ChannelTiling, is_banked, room_beside
from siliconloom.mapper.chip.bounds import Bound, graph_bound
from siliconloom.mapper.chip.builder import FENCE, ProgramBuilder
from siliconloom.mapper.chip.channel import ChannelAppend, ChannelAttention
from siliconloom.mapper.chip.chosen import Choice, Chosen, Part, SearchEffort, Tiling
from siliconloom.mapper.chip.drafts import DraftsOf
from siliconloom.mapper.chip.gather import GatherLowering
from siliconloom.mapper.chip.gemm import GemmLowering, takes_turns
from siliconloom.mapper.chip.gemm_layout import gemm_layout_of
from siliconloom.mapper.chip.known import Course, KnownTasks
from siliconloom.mapper.chip.layout import Layout, NotDivided, Rings, declare_rings, divided_anew
from siliconloom.mapper.chip.lowering import Context, Stored
from siliconloom.mapper.chip.memory import Kept, Key, MemoryMap
from siliconloom.mapper.chip.operands import updated
from siliconloom.mapper.chip.orientation import exchanges
from siliconloom.mapper.chip.pipelined import MOST_WRITTEN
from siliconloom.mapper.chip.placement import Placement, PlacementChoice
from siliconloom.mapper.chip.recurrence import RecurrenceLowering
from siliconloom.mapper.chip.sharing import Cut
from siliconloom.mapper.chip.tasks import Task, block_tasks, gemm_shape, refuse_training
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.mapper.chip.vector import VectorLowering
from siliconloom.mapper.chip.vector_shape import vector_shape
from siliconloom.workloads import Attention, Gemm, Graph


class Mapping(Struct, frozen=True):
    """All that is decided about a workload on a chip.

    Parameters
    ----------
    parts
        Blocks with their tasks (which operators are computed together), cut where objects change their memory level.
    choice
        Division of the buffers; for every task of each part how tiles share it and how its part is tiled.
    placement
        Which memory level holds what; ``None`` where there is one level.
    """

    parts: tuple[Part, ...]
    choice: Choice
    placement: Placement | None = None


class MappedTask(Struct, frozen=True):
    """A task and the tiling chosen for it; cycles and bytes are for one execution on one tile.

    Where memory levels differ between repetitions, ``runs`` has how many of them use which tiling, in order, and
    ``tiling`` is the first of those, ``tiles`` how many of the chip's tiles share it, ``cut`` the parts along its
    dimensions.
    """

    task: Task
    repeat: int
    tiling: Tiling | None
    runs: tuple[tuple[int, Tiling], ...] = ()
    tiles: int = 1
    cut: Cut = (1, 1, 1)

    @property
    def estimated_cycles(self) -> int:
        """The mapper's estimate of one execution, the mean over all of them."""
        return -(-sum(count * tiling.cycles for count, tiling in self.runs) // self.repeat)


class MappedWorkload(Struct, frozen=True):
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
    mapping
        What the program is lowered from; ``None`` on a bare array.
    memory
        Where every object lies in main memory; ``None`` on a bare array.
    results
        Where the result of every operator lies, of its last execution; of those that are computed together, that of
        the last of them.
    apart
        Operators that do not read what the graph says they read, and why: their values are not the model's.
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
    mapping: Mapping | None = None
    memory: MemoryMap | None = None
    results: NamedValues[str, Stored] = field(default_factory=dict)
    apart: NamedValues[str, str] = field(default_factory=dict)
    objective: str = "time"
    """What the search minimised, see `objective.OBJECTIVES`."""
    searched: SearchEffort | None = None
    """How the mapping was looked for; nothing where it was given."""
    short: frozenset[str] = frozenset()
    """Tasks of attention whose pipelines are as short as can be, see `lower_tasks`."""
    placed: PlacementChoice | None = None
    """Which placements were looked at, where it was not the heuristic's alone."""

    @property
    def estimated_cycles(self) -> int:
        """The sum of its tasks' estimates, by which they were chosen; `composition` counts overlaps, too."""
        return sum(count * tiling.cycles for task in self.tasks for count, tiling in task.runs)


class Drafted(Struct, frozen=True):
    """A lowered workload that is not checked yet.

    One that is only ``timed`` has addresses that are not its own, and no tasks.
    """

    mapping: Mapping
    program: Program
    tasks: tuple[MappedTask, ...]
    memory: MemoryMap
    results: NamedValues[str, Stored]
    apart: NamedValues[str, str]
    timed: bool = False
    short: frozenset[str] = frozenset()
    """Tasks of attention whose pipelines are as short as can be, see `lower_tasks`."""


class Lowered(NamedTuple):
    """A Program with its tasks, where every result lies, and which operators do not read the model's operands."""

    program: Program
    runs: list[tuple[Task, list[tuple[int, Chosen]]]]
    """Every task, and in each part that it stands in how often it is executed and what is chosen for it."""
    results: NamedValues[str, Stored]
    apart: NamedValues[str, str]

    def tasks(self) -> tuple[MappedTask, ...]:
        """Every task with its tilings; one of several parts is one."""
        return tuple(_mapped(task, run) for task, run in self.runs)


def _mapped(task: Task, run: Sequence[tuple[int, Chosen]]) -> MappedTask:
    count, share = sum(count for count, _ in run), run[0][1].share
    runs = tuple((times, chosen.timed) for times, chosen in run)
    return MappedTask(task, count, runs[0][1], runs, share.tiles, share.cut)


def uses_values(tile: NpuTile, mapping: Mapping) -> bool:
    """Whether a ring of values has a use: for attention, or for products of which every other tile lies in it."""
    layout, choices = mapping.choice
    every = (
        (task, each[task.operator.name])
        for part, each in zip(mapping.parts, choices, strict=True)
        for task in part.tasks
    )
    return any(chosen.divided is None and takes_values(tile, layout, task, chosen) for task, chosen in every)


def takes_values(tile: NpuTile, layout: Layout, task: Task, chosen: Chosen) -> bool:
    """Whether a task has a use for a division's ring of values; see `uses_values`."""
    part, tiling = chosen.share.operator, chosen.tiling
    if isinstance(part, Gemm) and isinstance(tiling, GemmTiling):
        return takes_turns(layout.values, gemm_layout_of(tile, gemm_shape(part, task)), tiling)
    return isinstance(part, Attention) and not part.values_in_keys


def lower(
    chip: Chip, graph: Graph, mapping: Mapping, notes: tuple[str, ...] = (), kept: Kept | None = None
) -> MappedWorkload:
    """The Program of a mapping, checked; what is ``kept`` lies in memory already.

    Raises
    ------
    LoomError
        When the main memory is too small, or a field of an instruction.
    """
    return checked(chip, graph, draft(chip, graph, mapping, kept=kept), notes, kept)


def draft(
    chip: Chip, graph: Graph, mapping: Mapping, known: KnownTasks | None = None, kept: Kept | None = None
) -> Drafted:
    """The same without checks, for what is only timed; with tasks that are ``known`` it is good for nothing else.

    Where a program would be longer than the memory of the sequencer, pipelines of attention are as short as can be: of
    as few tasks as is enough, those first that save the most instructions.
    """
    assert isinstance(chip.tile, NpuTile)
    room = chip.tile.sequencer.program_words
    made = _draft(chip, graph, mapping, known, kept, frozenset())
    if len(made.program.instructions) <= room:
        return made
    attending = frozenset(o.name for o in graph.operators() if isinstance(o, Attention))
    shortest = _draft(chip, graph, mapping, None, kept, attending)
    saved = _lengths(made.program)
    saved.subtract(_lengths(shortest.program))
    length, short = len(made.program.instructions), set[str]()
    for name, instructions in saved.most_common():
        if length <= room:
            break
        length -= instructions
        short.add(name)
    return (
        shortest if length > room or short >= attending else _draft(chip, graph, mapping, None, kept, frozenset(short))
    )


def known_draft(drafts: DraftsOf, graph: Graph, mapping: Mapping) -> Drafted:
    """As `draft`, for its time: of a mapping that is known the program that was made before."""
    layout, made = mapping.choice
    forms = (
        drafts.form(task, tiled[task.operator.name], layout)
        for part, tiled in zip(mapping.parts, made, strict=True)
        for task in part.tasks
    )
    room = drafts.tile.sequencer.program_words
    key = "whole", *forms, drafts.rings(layout)
    found: Drafted = drafts.known.recall(
        key, lambda: _draft(drafts.chip, graph, mapping, drafts.known.tasks, None, frozenset()), attrgetter("program")
    )
    if len(found.program.instructions) > room:
        return draft(drafts.chip, graph, mapping, drafts.known.tasks)
    return replace(found, mapping=mapping)


def _lengths(program: Program) -> Counter[str]:
    """Instructions of each operator."""
    return Counter(program.operators[each.operator] for each in program.instructions)


def _draft(
    chip: Chip, graph: Graph, mapping: Mapping, known: KnownTasks | None, kept: Kept | None, short: frozenset[str]
) -> Drafted:
    placement = mapping.placement
    memory = MemoryMap(chip, None if placement is None else placement.homes)
    if kept is not None:
        memory.add(kept.taken)
    lowered = lower_tasks(chip, graph, mapping.parts, mapping.choice, memory, draft=True, known=known, short=short)
    timed = known is not None
    tasks = () if timed else lowered.tasks()
    return Drafted(mapping, lowered.program, tasks, memory, lowered.results, lowered.apart, timed, short)


def _checked_program(chip: Chip, program: Program) -> Program:
    """A draft as a program that is checked; an operator whose fields do not fit its instructions is named."""
    try:
        return Program(program.instructions, program.semaphores, program.operators, program.tiles)
    except FieldTooWide as error:
        operator = program.operators[error.operator]
        what = "addresses" if error.is_address else "counts"
        raise LoomError(
            f"{chip.name}: {operator} is too large: its {what} are beyond what a program's words reach ({error})"
        ) from None


def checked(
    chip: Chip, graph: Graph, drafted: Drafted, notes: tuple[str, ...], kept: Kept | None = None
) -> MappedWorkload:
    """What the mapper decided, with its bound."""
    if drafted.timed:
        drafted = draft(chip, graph, drafted.mapping, kept=kept)
    program, memory, mapping = drafted.program, drafted.memory, drafted.mapping
    memory.check()
    whole = _checked_program(chip, program)
    if mapping.placement is not None:
        placed = {demand.item for demand in mapping.placement.demands}
        if not placed.issuperset(memory.items.values()):
            raise AssertionError("an object is not as large as its place: a bug")
    used = memory.used if mapping.placement is None else sum(mapping.placement.used.values())
    bound = graph_bound(chip, graph, mapping.placement)
    return MappedWorkload(
        chip,
        graph,
        whole,
        drafted.tasks,
        mapping.choice[0],
        used,
        bound,
        notes,
        mapping.placement,
        mapping,
        memory,
        drafted.results,
        drafted.apart,
        short=drafted.short,
    )


def lower_tasks(
    chip: Chip,
    graph: Graph,
    parts: Sequence[Part],
    choice: Choice,
    memory: MemoryMap,
    *,
    draft: bool = False,
    known: KnownTasks | None = None,
    short: frozenset[str] = frozenset(),
) -> Lowered:
    """The Program, and every task with what is chosen for it; a task of several parts stands in the tables once.

    Tiles of attention are written out for the sake of a long pipeline, but for tasks that are to be ``short``.
    """
    layout, tilings = choice
    assert isinstance(chip.tile, NpuTile)
    tile = room_beside(chip.tile, graph)
    builder = ProgramBuilder(tile.dma.bytes_per_cycle, exchanges=exchanges(tile))
    builder.tiles, builder.narrow = chip.tile_count, 1
    rings: dict[Layout | None, Rings] = {None: declare_rings(builder, tile, layout, banked=is_banked(graph))}
    divisions = divisions_in(parts, tilings)
    for other in dict.fromkeys(each for part in divisions for each in part if each is not None):
        if is_banked(graph):
            raise NotDivided("attention in a channel of memory has banks of its own")
        try:
            rings[other] = divided_anew(builder, tile, rings[None], other)
        except NotDivided as error:
            error.layout = other
            raise
    stored = builder.semaphore("stored", 1, "dependency")
    if len(rings) > 1:
        builder.semaphore(FENCE, 0, "dependency")
    numbers, outputs, apart = dict[str, int](), dict[str, Stored](), dict[str, str]()
    in_place = updated(graph)
    course = Course()
    runs = list[tuple[Task, list[tuple[int, Chosen]]]]()
    for number, (part, tiled) in enumerate(zip(parts, tilings, strict=True)):
        memory.repetition = part.first
        begins = list[int]()
        with builder.loop(part.count) as layer:
            context = Context(
                builder, chip, tile, layout, rings[None], memory, layer, stored, graph, in_place, outputs, apart
            )
            for place, task in enumerate(part.tasks):
                name, divided = task.operator.name, divisions[number][place]
                context.layout, context.rings = divided or layout, rings[divided]
                context.anew = len(rings) > 1 and is_divided_anew(parts, divisions, number, place)
                if name not in numbers:
                    numbers[name] = len(numbers)
                    runs.append((task, []))
                builder.operator = numbers[name]
                begins.append(len(builder.drafts))
                context.written = 1 if name in short else MOST_WRITTEN
                runs[builder.operator][1].append((part.count, tiled[name]))
                emit = partial(_lower, context, task, tiled[name])
                emit() if known is None else known.lower(course, context, task, tiled[name], emit)
            names = [task.operator.name for task in part.tasks]
            wanted = [tiled[name].ahead for name in names]
            own = rings[None]
            weights = {"weights": own.weights} | ({"values": own.values} if layout.values else {})
            anew = [len(rings) > 1 and is_divided_anew(parts, divisions, number, place) for place in range(len(names))]
            try:
                go_ahead(builder, [*begins, len(builder.drafts)], names, wanted, weights, stored, anew)
            except NotAhead as error:
                error.repetition = part.first
                raise
    memory.repetition = 0
    for operator in graph.resting:  # nothing reads them, and they take room
        memory.take(operator.name, "parameters", operator.weight_bytes, operator.repeat)
    return Lowered(builder.finish(tuple(numbers), draft=draft), runs, outputs, apart)


def divisions_in(parts: Sequence[Part], tilings: Sequence[dict[str, Chosen]]) -> list[list[Layout | None]]:
    """Of every part's tasks how the buffers are divided for them; nothing where as the program has it."""
    return [
        [tiled[task.operator.name].divided for task in part.tasks] for part, tiled in zip(parts, tilings, strict=True)
    ]


def is_divided_anew(parts: Sequence[Part], divisions: Sequence[Sequence[Layout | None]], part: int, place: int) -> bool:
    """Whether the buffers are divided otherwise for a task than for one that may come before it."""
    before = [(part, place - 1)] if place else [(part - 1, len(parts[part - 1].tasks) - 1)] if part else []
    if not place and parts[part].count > 1:
        before.append((part, len(parts[part].tasks) - 1))
    return any(divisions[other][last] != divisions[part][place] for other, last in before)


def _lower(context: Context, task: Task, chosen: Chosen) -> None:
    tiling, part = chosen.tiling, chosen.share.operator
    if context.anew:
        context.builder.tiles = context.chip.tile_count
        context.builder.fence()
    context.builder.tiles = chosen.share.tiles
    if isinstance(tiling, ChannelTiling):
        if isinstance(part, Attention):
            ChannelAttention(context, task, part).emit()
        else:
            ChannelAppend(context, task).emit()
    elif isinstance(tiling, GemmTiling):
        GemmLowering(context, task, gemm_shape(part, task), tiling, apart=bool(chosen.ahead), chunk=chosen.chunk).emit()
    elif isinstance(tiling, AttentionTiling):
        assert isinstance(part, Attention)
        AttentionLowering(context, task, part, tiling).emit()
    else:
        shape = vector_shape(context.tile, part, task)
        lowering = (
            RecurrenceLowering
            if shape.recurrent is not None
            else AppendLowering
            if task.cached is not None
            else GatherLowering
            if shape.gathers
            else VectorLowering
        )
        lowering(context, task, shape, tiling).emit()


def blocks_of(
    chip: Chip,
    graph: Graph,
    placement: Placement | None,
    fused: NamedValues[str, int] | None = None,
    rows: NamedValues[str, int] = MappingProxyType({}),
) -> tuple[Part, ...]:
    """Blocks in program order, cut where an object goes on in another memory level.

    ``fused`` says of products how many of the operators after them are computed with them at most; all that can be
    where it says nothing. ``rows`` are what `Task.block` is of products.
    """
    refuse_training(chip, graph)
    tile, nearest = chip.tile, next(iter(chip.memory))
    assert isinstance(tile, NpuTile)
    parts = []
    results: dict[str, Key] = {}
    in_place = updated(graph)
    for _, repeat, operators in graph.blocks():
        tasks = tuple(block_tasks(graph, operators, tile, fused, rows))
        names = [task.operator.name for task in tasks]
        for task in tasks:
            every = (task.operator, *task.fused)
            own = task.operator.name, "result"
            results |= dict.fromkeys((o.name for o in every), results.get(in_place.get(every[-1].name, ""), own))
        if placement is None:
            parts.append(Part(0, repeat, tasks, dict.fromkeys(names, (nearest,) * 3)))
            continue
        cuts = [cut for cut in placement.cuts(names) if cut < repeat]
        for first, end in zip(cuts, [*cuts[1:], repeat], strict=True):
            levels = {task.operator.name: _levels(chip, graph, placement, results, task, first) for task in tasks}
            parts.append(Part(first, end - first, tasks, levels))
    return tuple(parts)


def _levels(
    chip: Chip, graph: Graph, placement: Placement, results: dict[str, Key], task: Task, repetition: int
) -> tuple[str, ...]:
    """Levels that a task's tiling is chosen for, in one repetition."""
    operator = task.operator
    if not isinstance(operator, Gemm):
        return (placement.slowest_share(chip, operator.name, repetition, operator.repeat),)
    makes = [results[name] for name in graph.dataflow.predecessors(operator.name) if name in results]
    keys = [
        (operator.name, "input") if (operator.name, "input") in placement.homes else makes[0],
        (operator.name, "parameters" if operator.weight else "operand 1"),
        results[operator.name],
    ]
    return tuple(placement.level(key, repetition) for key in keys)


__all__ = [
    "Drafted",
    "MappedTask",
    "MappedWorkload",
    "Mapping",
    "blocks_of",
    "checked",
    "draft",
    "known_draft",
    "lower",
    "lower_tasks",
]
