"""Tasks that were lowered before: programs that differ in a task have the instructions of all others in common.

What a task is lowered to follows from its tiling and share, from which rings there are and what their slots begin at
multiples of, and from the results that were made before it, with what their addresses are multiples of. Two drafts
that agree in these have the same instructions there, but for addresses: where slots lie is the division of the buffers,
which of them has its turn follows from everything before and around a task (`arch.isa.Stretch`), and objects lie in
main memory behind those of all tasks before. Nobody's time depends on any of these, but where there are several levels
of memory, or a channel that computes. So what is found here serves drafts, whose time is asked for, and no program that
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import count
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Struct

from siliconloom.arch.isa import Stretch
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction
from siliconloom.mapper.chip.attention_cost import AttentionTiling
from siliconloom.mapper.chip.banked import ChannelTiling
from siliconloom.mapper.chip.chosen import Chosen
from siliconloom.mapper.chip.gemm_layout import gemm_layout_of
from siliconloom.mapper.chip.layout import index_bytes, most_indices
from siliconloom.mapper.chip.lowering import Context, Stored
from siliconloom.mapper.chip.memory import Taken
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.mapper.chip.vector_cost import VectorTiling
from siliconloom.workloads import Vector

_FORMS: dict[type, Callable[[Any], Hashable]] = {
    GemmTiling: attrgetter("m", "n", "k", "order", "resident", "sequence", "passing", "held"),
    AttentionTiling: attrgetter("queries", "keys", "heads", "whole", "resident"),
    VectorTiling: attrgetter("rows", "cols"),
    ChannelTiling: lambda tiling: (),
}
"""Of tilings what is lowered: all but what they cost."""


def form_of(tile: NpuTile, task: Task, chosen: Chosen, values: int) -> Hashable:
    """All that is decided of a task and that its lowering reads, with what that reads of the sizes of local memories.

    Those are rows of a result tile where rows of the first operand stay, whether tiles of the second one take turns
    with a ring of ``values``, of so many bytes a slot, and how many indices of rows that are gathered are loaded at a
    time. What is loaded ahead is a part of it, as that decides about loops and whole programs.
    """
    tiling, part = chosen.tiling, chosen.share.operator
    own = _FORMS[type(tiling)](tiling), chosen.share, chosen.ahead, chosen.chunk, chosen.divided
    if isinstance(tiling, GemmTiling):
        layout = gemm_layout_of(tile, gemm_shape(part, task))
        rows = layout.result_rows(tiling.m, tiling.n, tiling.k) if tiling.order == "m_kept" else 0
        return int(rows), layout.turns(tiling.n, tiling.k, values), *own
    if isinstance(part, Vector) and part.function is VectorFunction.GATHER:
        return most_indices(tile), index_bytes(tile), _FORMS[VectorTiling](tiling), chosen.share
    return own


class _Told(NamedTuple):
    """What lowering a task did."""

    stretch: Stretch
    taken: Taken
    outputs: dict[str, Stored]
    apart: dict[str, str]


class Course(Struct):
    """One program as its tasks are lowered, one after the other: a number for all that was made so far."""

    made: int = 0
    rings: Hashable = None
    """Which rings there are, as far as transfers are cut by it."""


MOST_ASKED = 1 << 14
"""Candidates whose forms are kept by what they are in Python's memory."""


class KnownTasks:
    """Lowered tasks of one workload, on chips of which a lowering reads the same; blocks and placement are the same.

    See `mapper.chip.drafts.lowering_key` for what that is.
    """

    def __init__(self) -> None:
        self.instructions = 0
        """How many are kept."""
        self._told: dict[tuple[object, ...], _Told] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._next = count(1)
        self._forms: dict[Hashable, int] = {}
        self._asked: dict[Hashable, tuple[NpuTile, Chosen, int]] = {}

    def form(self, tile: NpuTile, task: Task, chosen: Chosen, values: int) -> int:
        """The number of `form_of` a task, by its name: that takes long to compare."""
        own = chosen.ahead, chosen.chunk, chosen.divided, values
        key = id(tile), id(chosen.tiling), id(chosen.share), own, task.operator.name
        found = self._asked.get(key)
        if found is None:  # what is asked for is kept, so that nothing else has its place in Python's memory
            if len(self._asked) >= MOST_ASKED:
                self._asked.clear()
            form = task.operator.name, form_of(tile, task, chosen, values)
            found = self._asked[key] = tile, chosen, self._forms.setdefault(form, next(self._next))
        return found[2]

    def lower(self, course: Course, context: Context, task: Task, chosen: Chosen, emit: Callable[[], None]) -> None:
        """Do what ``emit``, which lowers the task that is chosen so, would do."""
        builder, memory = context.builder, context.memory
        exact = len(context.chip.memory) != 1 or context.tile.pim is not None
        used = memory.used if exact else 0
        at = builder.operator, context.layer.level, memory.repetition, used, course.made
        if course.rings is None:
            rings = context.layout.values > 0, builder.kinds_of_rings
            course.rings = self._numbers.setdefault(rings, next(self._next))
        key = self.form(context.tile, task, chosen, context.layout.values), course.rings, context.anew, *at
        told = self._told.get(key)
        if told is None:
            told = self._told[key] = self._listen(context, emit)
            self.instructions += len(told.stretch.instructions)
        else:
            memory.add(told.taken)
            context.outputs.update(told.outputs)
            for name, reason in told.apart.items():
                context.apart.setdefault(name, reason)
        builder.add(told.stretch)
        made: tuple[object, ...] = course.made, *told.outputs.items()
        if not exact:
            kinds = ((name, s.address % memory.alignment, s.size, s.row) for name, s in told.outputs.items())
            made = course.made, *kinds
        course.made = self._numbers.setdefault(made, next(self._next))

    def _listen(self, context: Context, emit: Callable[[], None]) -> _Told:
        """Lower a task and write down what that does; its instructions are left to be added."""
        builder, memory, first = context.builder, context.memory, len(context.builder.drafts)
        before, made, apart = memory.taken(), dict(context.outputs), set(context.apart)
        emit()
        stretch = builder.take(first)
        outputs = {name: stored for name, stored in context.outputs.items() if made.get(name) is not stored}
        reasons = {name: reason for name, reason in context.apart.items() if name not in apart}
        return _Told(stretch, memory.since(before), outputs, reasons)


__all__ = ["Course", "KnownTasks", "form_of"]
