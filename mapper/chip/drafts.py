"""Drafts of programs that this process keeps from one map to the next, such as those of a sweep's points.

A lowering reads little of a chip: its tile, with few of the sizes of local memory, how many tiles there are, what
memory moves at least, and where it takes less time to load a part of a block of keys than all of it. Chips that agree
in that have the same program for the same mapping, whatever their clock, and their memory's bandwidth and latency:
`lowering_key` is all of it, and `tests/mapper/chip/test_drafts.py` holds programs of random chips beside it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any

from siliconloom.arch.description import Chip
from siliconloom.arch.isa import Program
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.attention_layout import AttentionLayout
from siliconloom.mapper.chip.banked import is_banked
from siliconloom.mapper.chip.builder import ProgramBuilder
from siliconloom.mapper.chip.chosen import Chosen, Part
from siliconloom.mapper.chip.divisions import Divisions
from siliconloom.mapper.chip.known import KnownTasks
from siliconloom.mapper.chip.layout import Layout, declare_rings
from siliconloom.mapper.chip.tasks import Task
from siliconloom.workloads import Attention, Graph

MOST_INSTRUCTIONS = 400_000
"""Instructions that are kept, of all workloads and chips together; what was asked for the longest ago goes first."""


def lowering_key(chip: Chip, graph: Graph) -> Hashable:
    """All that a lowering for ``chip`` reads of it, of a chip with one memory level.

    Of the sizes of local memories, which are not in it, that is what `known.form_of` says.
    """
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    attentions = {o.head_dim: o for o in graph.operators() if isinstance(o, Attention)}
    return (
        (tile.array, tile.vector, tile.dma, tile.pim and tile.pim.model_dump_json()),
        (chip.tile_count, tile.sequencer.launch_cycles > 0),
        chip.nearest.access_bytes,
        tuple(_rests(chip, attention) for attention in dict.fromkeys(attentions.values())),
    )


def _rests(chip: Chip, attention: Attention) -> tuple[int, ...]:
    """Of each number of positions that a last block of keys has, whether its rows are loaded one by one."""
    layout = AttentionLayout.of(chip, attention)
    return tuple(layout.key_rest(some + rest) for some in (0, layout.block) for rest in range(1, layout.block))


def workload_key(graph: Graph, parts: Sequence[Part]) -> Hashable:
    """All that a lowering reads of a workload, cut into such parts."""
    tasks = tuple((part.first, part.count, part.tasks) for part in parts)
    return graph.phase, tuple(graph.operators()), tuple(graph.dataflow.edges()), graph.resting, tasks


class KnownDrafts:
    """Drafts of one workload, for chips of one `lowering_key`: of its tasks by themselves, and of the whole.

    ``divisions`` are those of such chips' buffers that were tried.
    """

    def __init__(self) -> None:
        self.tasks = KnownTasks()
        self.divisions: Divisions = {}
        self._made: dict[Hashable, Any] = {}
        self._instructions = 0

    @property
    def instructions(self) -> int:
        """How many are kept; drafts of the whole have those of tasks."""
        return self.tasks.instructions + self._instructions

    def recall(self, key: Hashable, find: Callable[[], Any], program: Callable[[Any], Program]) -> Any:
        """What ``find`` returned before, which has a program."""
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = find()
            self._instructions += len(program(found).instructions)
        return found


class DraftsOf:
    """Drafts that are known, as one map asks for them: of its chip and its layouts."""

    def __init__(self, chip: Chip, known: KnownDrafts, *, banked: bool = False) -> None:
        assert isinstance(chip.tile, NpuTile)
        self.chip, self.tile, self.known, self.banked = chip, chip.tile, known, banked
        self._rings: dict[Layout, Hashable] = {}

    def rings(self, layout: Layout) -> Hashable:
        """What a draft reads of a division of the buffers: which rings there are, and what cuts their transfers."""
        found = self._rings.get(layout)
        if found is None:
            builder = ProgramBuilder(self.tile.dma.bytes_per_cycle)
            declare_rings(builder, self.tile, layout, banked=self.banked)
            found = self._rings[layout] = builder.kinds_of_rings, tuple(builder.semaphores)
        return found

    def form(self, task: Task, chosen: Chosen, layout: Layout) -> Hashable:
        """`KnownTasks.form` of a task on this chip, whose buffers are divided so but where it has its own division."""
        return self.known.tasks.form(self.tile, task, chosen, (chosen.divided or layout).values)


_KEPT: OrderedDict[Hashable, KnownDrafts] = OrderedDict()
_LOCK = Lock()


def drafts_of(chip: Chip, graph: Graph, parts: Sequence[Part]) -> DraftsOf | None:
    """Drafts that are known for this workload on chips like this one; nothing of chips with several memory levels."""
    if len(chip.memory) != 1:
        return None
    key = lowering_key(chip, graph), workload_key(graph, parts)
    with _LOCK:
        known = _KEPT.pop(key, None) or KnownDrafts()
        while _KEPT and known.instructions + sum(each.instructions for each in _KEPT.values()) > MOST_INSTRUCTIONS:
            _KEPT.popitem(last=False)
        if known.instructions > MOST_INSTRUCTIONS:
            known = KnownDrafts()
        _KEPT[key] = known
    return DraftsOf(chip, known, banked=is_banked(graph))


def forget() -> None:
    """Keep none of them."""
    with _LOCK:
        _KEPT.clear()


__all__ = ["DraftsOf", "KnownDrafts", "drafts_of", "forget", "lowering_key"]
