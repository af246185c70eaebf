"""What was decided about a workload on a chip, as a text of plain numbers, and the same mapping from it.

Tasks, parts of tiles and the Program follow from the chip and the graph; they are made anew, and what is decided is
lowered as what a search says is. Sizes are not checked: a decision belongs to one chip and graph, and whoever keeps it
keeps it with a hash of these.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from msgspec import Struct, field
from msgspec.structs import astuple, replace

from siliconloom.arch.description import Chip
from siliconloom.mapper.chip.ahead import Ahead
from siliconloom.mapper.chip.banked import is_banked
from siliconloom.mapper.chip.chosen import Chosen, Effort, LocalEffort, Part, SearchEffort, Tiling
from siliconloom.mapper.chip.layout import Layout
from siliconloom.mapper.chip.program import MappedWorkload, Mapping, blocks_of, lower
from siliconloom.mapper.chip.sharing import Cut, Share, part_of
from siliconloom.mapper.chip.tasks import Task
from siliconloom.workloads import Gemm, Graph

TILINGS: dict[str, type[Tiling]] = {kind.__name__: kind for kind in get_args(Tiling)}


class DecidedTask(Struct, frozen=True, array_like=True):
    """A `Chosen` of a task, but for the operator of its share, which `sharing.part_of` has."""

    operator: str
    tiling: str
    sizes: tuple[Any, ...]
    tiles: int
    cut: Cut
    cost: int
    priced: int | None
    block: int
    fused: int | None
    """Of a product: how many operators are computed with it."""
    ahead: tuple[int, int]
    chunk: int
    divided: tuple[int, ...] | None = None


class Decision(Struct, frozen=True):
    """A mapping on a chip with one memory level, by the array alone."""

    layout: tuple[int, ...]
    parts: tuple[tuple[DecidedTask, ...], ...]
    objective: str
    notes: tuple[str, ...]
    """Without those of the format that was taken, which name the workload."""
    efforts: dict[str, Effort] = field(default_factory=dict)
    local: LocalEffort | None = None


def decision_of(mapped: MappedWorkload, fitted: tuple[str, ...] = ()) -> str | None:
    """What was decided; nothing of what is not kept so: several memory levels, channels that compute, half a search.

    ``fitted`` are the notes with which `mapping.fit_precision` took a format.
    """
    mapping, searched = mapped.mapping, mapped.searched
    if mapping is None or mapping.placement is not None or is_banked(mapped.graph):
        return None
    if searched is None or searched.interrupted or mapped.notes[: len(fitted)] != fitted:
        return None
    layout, chosen = mapping.choice
    decision = Decision(
        astuple(layout),
        tuple(
            tuple(_decided(task, made[task.operator.name]) for task in part.tasks)
            for part, made in zip(mapping.parts, chosen, strict=True)
        ),
        mapped.objective,
        mapped.notes[len(fitted) :],
        searched.tasks,
        searched.local,
    )
    return msgspec.json.encode(decision, enc_hook=int).decode()


def _decided(task: Task, made: Chosen) -> DecidedTask:
    share, fused = made.share, len(task.fused) if isinstance(task.operator, Gemm) else None
    kind, sizes = type(made.tiling).__name__, astuple(made.tiling)
    return DecidedTask(
        task.operator.name,
        kind,
        sizes,
        share.tiles,
        share.cut,
        made.cost,
        made.priced,
        task.block,
        fused,
        (made.ahead.weights, made.ahead.values),
        made.chunk,
        None if made.divided is None else astuple(made.divided),
    )


def mapped_as(decided: str, chip: Chip, graph: Graph, fitted: tuple[str, ...] = ()) -> MappedWorkload | None:
    """The workload, in the format that was taken, as it was mapped before; nothing where a text is no such decision.

    Raises
    ------
    LoomError
        As `program.lower` does.
    """
    try:
        decision = msgspec.json.decode(decided, type=Decision)
        mapping = _mapping(decision, chip, graph)
    except (msgspec.DecodeError, KeyError, ValueError, TypeError):
        return None
    searched = SearchEffort(decision.efforts, local=decision.local, remembered=True)
    made = lower(chip, graph, mapping, (*fitted, *decision.notes))
    return replace(made, searched=searched, objective=decision.objective)


def _mapping(decision: Decision, chip: Chip, graph: Graph) -> Mapping:
    tasks = [task for part in decision.parts for task in part]
    rows = {task.operator: task.block for task in tasks if task.block}
    parts = blocks_of(chip, graph, None, {t.operator: t.fused for t in tasks if t.fused is not None}, rows)
    chosen = [_chosen(part, made) for part, made in zip(parts, decision.parts, strict=True)]
    return Mapping(parts, (Layout(*decision.layout), chosen))


def _chosen(part: Part, decided: tuple[DecidedTask, ...]) -> dict[str, Chosen]:
    found = {}
    for task, made in zip(part.tasks, decided, strict=True):
        name, operator = task.operator.name, part_of(task.operator, made.cut)
        if name != made.operator or operator is None:
            raise ValueError(f"{made.operator} is not what is computed here")
        kind = TILINGS[made.tiling]
        tiling = msgspec.convert(dict(zip(kind.__struct_fields__, made.sizes, strict=True)), kind)
        share, ahead = Share(operator, made.tiles, made.cut), Ahead(*made.ahead)
        divided = None if made.divided is None else Layout(*made.divided)
        found[name] = Chosen(tiling, share, made.cost, made.priced, ahead, made.chunk, divided)
    return found


__all__ = ["Decision", "decision_of", "mapped_as"]
