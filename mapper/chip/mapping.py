"""The search of the fastest mapping of a workload to a chip; `mapper.chip.program` lowers what is proposed here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

from msgspec.structs import replace

from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.interrupts import CompilationInterrupted
from siliconloom.arch.isa import Instruction, Opcode, Program
from siliconloom.arch.packing import has_groups
from siliconloom.arch.tile import NpuTile, SystolicTile
from siliconloom.mapper.chip.banked import array_alone, in_banks, is_banked, room_beside
from siliconloom.mapper.chip.block_sizes import Blocks, in_best_blocks
from siliconloom.mapper.chip.bounds import graph_bound
from siliconloom.mapper.chip.choice import choose_layouts, cost_of, estimated, executions, finalists
from siliconloom.mapper.chip.chosen import INTERRUPTED, Choice, Chosen, Part, SearchEffort
from siliconloom.mapper.chip.divided import divide_anew, gains_much, is_better
from siliconloom.mapper.chip.drafts import DraftsOf, drafts_of
from siliconloom.mapper.chip.exchange import best_first
from siliconloom.mapper.chip.gemm_layout import smaller_blocks
from siliconloom.mapper.chip.known import KnownTasks
from siliconloom.mapper.chip.layout import Layout
from siliconloom.mapper.chip.memory import Kept, MemoryMap
from siliconloom.mapper.chip.objective import ESTIMATED, Objective, in_time
from siliconloom.mapper.chip.placement import Demand, Placement, measure, place
from siliconloom.mapper.chip.price import fewest_bytes, price_of_byte
from siliconloom.mapper.chip.program import (
    Drafted,
    Lowered,
    MappedTask,
    MappedWorkload,
    Mapping,
    blocks_of,
    checked,
    draft,
    known_draft,
    lower,
    lower_tasks,
    uses_values,
)
from siliconloom.mapper.chip.sooner import sooner
from siliconloom.mapper.chip.tasks import Task, refuse_training
from siliconloom.workloads import Attention, Gemm, Graph, Vector
from siliconloom.workloads.dealt import dealt
from siliconloom.workloads.separated import separated

IN_A_ROW = 4
"""Executions of a task that are simulated to learn what one of them takes among neighbours."""
LIMIT = 1.005
"""Most that the price of bytes may cost of the time."""
PRICES = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
"""Parts of that price that are tried; the first one that keeps to the limit is taken, or the last one."""
SEARCHED = "searches of mappings and other objectives than time"
"""What is not built for attention in a channel."""


def map_workload(
    chip: Chip,
    graph: Graph,
    cycles: Callable[[Program], int] | None = None,
    placement: Placement | None = None,
    *,
    search: bool = True,
    kept: Kept | None = None,
    objective: Objective | None = None,
    stay: bool = True,
    channel: bool = True,
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
    objective
        What to minimise instead of ``cycles``.
    kept
        What an earlier program has left in the one memory level: parameters lie in its tiles.
    stay
        Rows of products may stay in both slots, and tiles be half a fold deep, which takes more instructions: where the
        program is longer than its memory with them it is looked for without.
    channel
        Attention may be computed in a channel beside the tile (`banked.in_banks`): where the chip says so, or where
        that takes fewer cycles. Searches and other objectives than time have the array do it.

    Raises
    ------
    LoomError
        When a tile's buffers or the main memory are too small, or a stated precision is not the chip's.
    NotSupported
        For tiles and operators that have no lowering, for training, and for other objectives than time where there are
        several memory levels.
    """
    timed = objective is None or objective.name == "time"
    if not timed and len(chip.memory) != 1:
        raise NotSupported(f"objectives other than time on {chip.name}, which has {len(chip.memory)} memory levels")
    graph, notes = fit_precision(chip, graph)
    if isinstance(chip.tile, SystolicTile):
        return _map_bare(chip, graph, notes)
    if not isinstance(chip.tile, NpuTile):
        raise NotSupported("mapping a workload to a pim tile")
    tile, products = chip.tile, [operator.name for operator in graph.operators() if isinstance(operator, Gemm)]
    if objective is None and cycles is not None:
        objective = in_time(cycles, price_of_byte(chip, graph, blocks_of(chip, graph, None)))

    def mapped(graph: Graph, notes: tuple[str, ...]) -> MappedWorkload:
        def in_blocks(blocks: Blocks) -> MappedWorkload:
            return _in_blocks(chip, graph, objective, placement, blocks, notes, search=search, kept=kept, stay=stay)

        if objective is None:
            return in_blocks({})
        sizes, words = smaller_blocks(tile.array), tile.sequencer.program_words
        return in_best_blocks(sizes, products, in_blocks, objective, words)

    if not channel:
        return mapped(graph, notes)
    if not timed or (search and objective is not None):
        alone = array_alone(chip, graph, SEARCHED)
        return mapped(graph, (*notes, *alone))
    banked, rests = in_banks(chip, graph)
    notes = (*notes, *rests)
    if not is_banked(banked):
        return mapped(graph, notes)
    if chip.attention == "channel":
        there = mapped(banked, notes)
        return replace(there, notes=(*there.notes, "attention is computed in the channel (tile.pim), as described"))
    try:
        there = mapped(banked, notes)
    except LoomError as error:  # the array may have room where what is left beside the channel's banks has none
        rests = (f"attention is computed by the array, and the channel (tile.pim) rests: {error}",)
        return mapped(graph, (*notes, *rests))
    if there.searched is not None and there.searched.interrupted:
        return there
    try:
        beside = mapped(graph, notes)
    except LoomError as error:  # keys and values in main memory may be too many for it
        note = f"attention is computed in the channel (tile.pim); by the array: {error}"
        return replace(there, notes=(*there.notes, note))
    return _faster(there, beside, objective, tile.sequencer.program_words)


def _faster(there: MappedWorkload, beside: MappedWorkload, objective: Objective | None, words: int) -> MappedWorkload:
    """The workload with attention in the channel or on the array, whichever takes fewer cycles, and a note of both.

    A program that is longer than the sequencer's memory loses against one that is not.
    """

    def cycles(made: MappedWorkload) -> int:
        return made.estimated_cycles if objective is None else objective.measure(made.program)

    def is_long(made: MappedWorkload) -> bool:
        return len(made.program.instructions) > words

    def told(made: MappedWorkload) -> str:
        return f"{cycles(made):,}" + (" (more instructions than the sequencer holds)" if is_long(made) else "")

    if (is_long(there), cycles(there)) < (is_long(beside), cycles(beside)):
        note = f"attention is computed in the channel (tile.pim): {told(there)} cycles in all, by the array "
        return replace(there, notes=(*there.notes, f"{note}{told(beside)}"))
    note = f"attention is computed by the array, and the channel (tile.pim) rests: {told(beside)} cycles in all, there "
    return replace(beside, notes=(*beside.notes, f"{note}{told(there)}"))


def _in_blocks(
    chip: Chip,
    graph: Graph,
    objective: Objective | None,
    placement: Placement | None,
    blocks: Blocks,
    notes: tuple[str, ...],
    *,
    search: bool,
    kept: Kept | None,
    stay: bool,
) -> MappedWorkload:
    """As `map_workload`, with first operands of products in blocks of so many rows (`Task.block`)."""
    assert isinstance(chip.tile, NpuTile)
    parts = blocks_of(chip, graph, None, rows=blocks)
    drafts = drafts_of(chip, graph, parts)
    simulated = None if objective is None else partial(_alone, chip, graph, objective, executions(parts), drafts)
    if len(chip.memory) > 1:
        if placement is None:
            placement = place(chip, first_demands(chip, graph, parts))
        parts = blocks_of(chip, graph, placement, rows=blocks)
    if kept is not None and placement is not None:
        raise NotSupported(f"programs that share several memory levels ({', '.join(chip.memory)})")
    decided = {} if kept is None else kept.tiles
    searched = SearchEffort()
    weighed = objective or replace(ESTIMATED, per_byte=price_of_byte(chip, graph, parts))
    tile = room_beside(chip.tile, graph)
    beside = chip.model_copy(update={"tile": tile}) if tile is not chip.tile else chip
    known = None if drafts is None else drafts.known.divisions
    ranked = choose_layouts(beside, tile, graph, parts, simulated, decided, weighed, searched, stay, known)
    choices, rivals, again = ranked
    if objective is None:
        if weighed.per_byte:
            _, choices = _worth_it(choices, again, partial(estimated, parts), searched)
        made = lower(chip, graph, Mapping(parts, choices[0], placement), notes, kept)
        return replace(made, searched=searched)
    words = chip.tile.sequencer.program_words

    own = KnownTasks() if drafts is None or kept is not None else None

    def drafted(choice: Choice) -> Drafted:
        """The whole program, to be timed."""
        mapping = Mapping(parts, choice, placement)
        if own is not None or drafts is None:
            return draft(chip, graph, mapping, own, kept)
        return known_draft(drafts, graph, mapping)

    timed = objective.measure
    if objective.name == "time" and objective.per_byte and not searched.interrupted:
        of_price, choices = _worth_it(choices, again, lambda choice: timed(drafted(choice).program), searched)
        objective = replace(objective, per_byte=of_price * objective.per_byte)
    cost = partial(cost_of, objective)
    runs = best_first(parts, *finalists(parts, choices, rivals), rivals, drafted, objective, searched, words)
    if search:  # every choice, whatever its estimate; what is found without is one of them
        every = [(0, choice) for choice in choices]
        other = best_first(parts, every, len(every), rivals, drafted, objective, searched, words)
        better = cost(other[0]) < cost(runs[0])
        runs = other + runs if better else runs + other
    found = divided = runs[0]
    if kept is None and len(chip.memory) == 1 and not searched.interrupted and not is_banked(graph):
        divided = divide_anew(beside, graph, parts, found, choices, drafted, objective, searched)
    if objective.name != "traffic" and not searched.interrupted:
        bound = int(objective.of(graph_bound(chip, graph, placement).lower_bound_cycles, fewest_bytes(chip, parts)))
        if not gains_much(divided, found, objective):
            found = sooner(chip, parts, rivals, runs, drafted, cost, bound, searched)
        if divided is not runs[0] and not searched.interrupted:
            divided = sooner(chip, parts, rivals, [divided], drafted, cost, bound, searched)
    if divided is not runs[0] and is_better(divided, found, objective):
        found = divided
    if stay and len(found.program.instructions) > words and not searched.interrupted:
        return _in_blocks(chip, graph, objective, placement, blocks, notes, search=search, kept=kept, stay=False)
    if searched.interrupted:
        notes = (*notes, INTERRUPTED)
    layout, chosen = found.mapping.choice
    if layout.values and not uses_values(chip.tile, found.mapping):
        found = draft(chip, graph, replace(found.mapping, choice=(replace(layout, values=0), chosen)), kept=kept)
    return replace(checked(chip, graph, found, notes, kept), searched=searched, objective=objective.name)


def _worth_it(
    choices: list[Choice],
    again: Callable[[float], list[Choice]],
    cycles: Callable[[Choice], int],
    searched: SearchEffort,
) -> tuple[float, list[Choice]]:
    """How much of the price of bytes lets the best choice take no more than `LIMIT` times as long as the fastest.

    And the choices by that price. Where ``cycles`` are those of whole programs neighbours hide what tasks take alone.
    Once the search
    is interrupted those by all of the price, which are known.
    """
    try:
        fastest = again(0.0)
        if _alike(fastest[0], choices[0]):
            return 1.0, again(1.0)
        least = cycles(fastest[0])
        for of_price in PRICES:
            choices = again(of_price)
            if of_price == PRICES[-1] or cycles(choices[0]) <= LIMIT * least:
                return of_price, choices
    except CompilationInterrupted:
        raise
    except KeyboardInterrupt:
        searched.interrupted = True
    return 1.0, again(1.0)


def _alike(one: Choice, other: Choice) -> bool:
    """Whether all tasks are computed alike in two choices, whatever they are taken to cost."""
    return one[0] == other[0] and all(
        (mine[name].share, mine[name].tiling) == (its[name].share, its[name].tiling)
        for mine, its in zip(one[1], other[1], strict=True)
        for name in mine
    )


def demands(chip: Chip, graph: Graph, parts: Sequence[Part], choice: Choice) -> list[Demand]:
    """What the objects of a workload cost, were the nearest level large enough for all of them."""
    memory = MemoryMap(chip)
    return measure(lower_tasks(chip, graph, parts, choice, memory).program, memory)


def first_demands(chip: Chip, graph: Graph, parts: Sequence[Part] | None = None) -> list[Demand]:
    """The same of the mapping that is estimated to be the fastest; ``graph`` is as `fit_precision` makes it."""
    assert isinstance(chip.tile, NpuTile)
    parts = blocks_of(chip, graph, None) if parts is None else parts
    estimated = choose_layouts(chip, chip.tile, graph, parts, None).choices[0]
    return demands(chip, graph, parts, estimated)


def fit_precision(chip: Chip, graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Take the chip's preferred format for a model that states none of its own accord; see `refuse_training`, too."""
    refuse_training(chip, graph)
    check_packing(chip, graph)
    graph = dealt(graph)
    fitted, notes = _fit_formats(chip, separated(graph) if chip.attention == "separate" else graph)
    fitted = fit_cache(chip, fitted)
    expands = "compressed weights are expanded on the way to the scratchpad; what that needs of energy is not counted"
    return fitted, (*notes, expands) if graph.compressions else notes


def _fit_formats(chip: Chip, graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """As `fit_precision`, of a graph whose weights the chip takes as they are stored."""
    if isinstance(chip.tile, NpuTile) and chip.tile.rounds and not _as_stated(chip.tile, graph):
        return _fit_elements(chip, chip.tile, graph)
    operands = chip.tile.operands if not isinstance(chip.tile, NpuTile | SystolicTile) else chip.tile.array.operands
    accepts = chip.tile.array.accepts if isinstance(chip.tile, NpuTile | SystolicTile) else operands.__contains__
    unfit = sorted({o.precision for o in graph.operators() if not accepts(o.precision)})
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


def _as_stated(tile: NpuTile, graph: Graph) -> bool:
    """Whether a format is stated that the array takes, though no circuit computes in it."""
    own = tile.array.circuit_format
    return graph.explicit_precision and all(
        o.precision is not own and tile.array.accepts(o.precision) for o in graph.operators()
    )


def _fit_elements(chip: Chip, tile: NpuTile, graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """A graph in the elements of a tile whose array rounds them, with weights in the array's own format."""
    own, wide = tile.array.circuit_format, tile.circuit_format
    assert own is not None
    notes = (f"{chip.name} multiplies in {own.value}; all else is in {wide.value}",)
    if graph.precision is wide and graph.packings:
        return graph, notes
    other = next((o for o in graph.operators() if o.precision not in (graph.precision, own)), None)
    if other is not None:
        raise NotSupported(
            f"{other.name} in {other.precision.value} among others in {graph.precision.value} on {chip.name}, which "
            f"multiplies in {own.value} (operator_precision)"
        )
    stated = sorted({o.precision for o in graph.operators() if o.precision is not own})
    if stated and graph.explicit_precision:
        listed = ", ".join(tile.array.operands)
        raise LoomError(
            f"{graph.name}: {stated[0].value} operands are not among those of {chip.name} ({listed}); "
            f"set workload.precision to {own.value}{', or pack weights' if tile.array.weights is not None else ''}"
        )
    stored = (f"{graph.name} is stored as {stated[0].value}",) if stated else ()
    return graph.in_elements(wide, Packing(own, 0)), (*stored, *notes)


def fit_cache(chip: Chip, graph: Graph) -> Graph:
    """A graph whose attention reads keys and values as they are kept; refuses formats that a chip has no circuit for.

    A tile has them in memory alone: those of a prompt come from there, too.
    """
    own = chip.tile.array.cache if isinstance(chip.tile, NpuTile) and chip.pim is None else ()
    for cached in graph.cache_formats:
        if cached.dtype not in own:
            attention = next(o for o in graph.operators() if isinstance(o, Attention))
            besides = f", or in {' or '.join(own)} (tile.array.cache)" if own else ""
            raise NotSupported(
                f"keys and values in {cached} on {chip.name}, which keeps them in {attention.precision.value} as it "
                f"computes{besides} (workload.cache_precision)"
            )
        if cached.dtype is DataType.INT4 and cached.group % 2:
            raise NotSupported(
                f"keys and values in int4 of heads of {cached.group} columns on {chip.name}, which keeps pairs of them "
                "in a byte (workload.cache_precision)"
            )
    stated = any(isinstance(o, Vector) and o.cached is not None for o in graph.operators())
    if stated and isinstance(chip.tile, NpuTile):
        graph = graph.with_scales(chip.tile.array.cols)
    return graph.read_as_kept() if stated else graph


def check_packing(chip: Chip, graph: Graph) -> None:
    """Refuse weights that are packed in a way that a chip has no circuit for, or compressed where nothing expands."""
    if graph.compressions and not (isinstance(chip.tile, NpuTile) and chip.tile.dma.decompression is not None):
        raise NotSupported(f"compressed weights; {chip.name} has no decompressor of them (tile.dma.decompression)")
    check_sparsity(chip, graph)
    for packing in graph.packings:
        tile = chip.tile
        own = tile.weight_formats if isinstance(tile, NpuTile) else ()
        if packing.dtype not in own:
            have = f"those of {chip.name} are {', '.join(own)}" if own else f"{chip.name} has none"
            raise NotSupported(f"weights packed in {packing.dtype.value}; {have} (tile.array.weights)")
        if isinstance(tile, NpuTile) and packing.group and not has_groups(tile.array, packing.dtype):
            raise NotSupported(
                f"weights in {packing.dtype.value} in groups; those of {chip.name} have a scale for each column "
                f"(workload.precision {packing.dtype.value})"
            )
        if isinstance(tile, NpuTile) and packing.group % tile.array.load_rows:
            raise NotSupported(
                f"groups of {packing.group} rows of weights, which are no whole beats of {chip.name} "
                f"(tile.array.load_rows {tile.array.load_rows})"
            )


def check_sparsity(chip: Chip, graph: Graph) -> None:
    """Refuse patterns of zeros that a chip's array is not described to take, and blocks that its lines cut."""
    for sparsity in graph.sparsities:
        array = chip.tile.array if isinstance(chip.tile, NpuTile) else None
        name = "2of4" if sparsity.block == 1 else "block"
        if array is None or array.sparsity is None or name not in array.sparsity.patterns:
            raise NotSupported(f"sparse weights ({name}); {chip.name} takes none (tile.array.sparsity)")
        if graph.packings:
            raise NotSupported(f"weights that are packed and sparse on {chip.name} (weight_sparsity)")
        if sparsity.block > 1 and (sparsity.block % array.cols or sparsity.block % array.load_rows):
            raise NotSupported(
                f"blocks of {sparsity.block} weights on {chip.name}: they must be whole panels of {array.cols} columns "
                f"and whole beats of {array.load_rows} rows (weight_block)"
            )


def _map_bare(chip: Chip, graph: Graph, notes: tuple[str, ...]) -> MappedWorkload:
    """One matmul instruction per GEMM: a bare array gets its operands from outside, in order, without delay."""
    if chip.tile_count > 1:
        raise NotSupported(
            f"{chip.tile_count} bare arrays, which nothing joins (tile_count); use a chip with an npu tile"
        )
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
    graph: Graph,
    objective: Objective,
    graph_tasks: int,
    drafts: DraftsOf | None,
    task: Task,
    levels: tuple[str, ...],
    layout: Layout,
    chosen: Chosen,
) -> int:
    """Cost of one execution of a task.

    One among several has neighbours that it overlaps with: it is run a few times in a row then, and is its own one.
    """
    times = 1 if graph_tasks == 1 else IN_A_ROW
    if drafts is not None:
        key = times, drafts.form(task, chosen, layout), drafts.rings(layout)
        find = partial(_in_a_row, chip, graph, times, task, levels, layout, chosen)
        made: Lowered = drafts.known.recall(key, find, attrgetter("program"))
        return -(-objective.of_program(made.program, times * chosen.bytes_moved) // times)
    memory = MemoryMap(chip, levels=levels)
    program = _in_a_row(chip, graph, times, task, levels, layout, chosen, memory).program
    if len(chip.memory) > 1 and memory.used > min(chip.memory[level].total_capacity for level in levels):
        return chosen.cost  # it streams from a level that its objects fill: the estimate has to do
    return -(-objective.of_program(program, times * chosen.bytes_moved) // times)


def _in_a_row(
    chip: Chip,
    graph: Graph,
    times: int,
    task: Task,
    levels: tuple[str, ...],
    layout: Layout,
    chosen: Chosen,
    memory: MemoryMap | None = None,
) -> Lowered:
    """A task by itself, so many times in a row, for its time."""
    cached = task.cached
    if cached is not None:
        cached = cached.of(repeat=times)
    once = replace(task, operator=replace(task.operator, repeat=times), cached=cached)
    name = task.operator.name
    part = Part(0, times, (once,), {name: levels})
    memory = MemoryMap(chip, levels=levels) if memory is None else memory
    return lower_tasks(chip, graph, [part], (layout, [{name: chosen}]), memory, draft=True)


__all__ = ["check_packing", "demands", "first_demands", "fit_precision", "map_workload"]
