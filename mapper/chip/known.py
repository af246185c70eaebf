"""Tasks that were lowered before: programs that differ in a task have the instructions of all others in common.

What a task is lowered to follows from its tiling and share, from which rings there are and what their slots begin at
multiples of, and from the addresses of what was made before it. Two drafts that agree in these have the same
instructions there, but for local addresses: where slots lie is the division of the buffers, and which of them has its
turn follows from everything before and around a task (`builder.Stretch`). Nobody's time depends on either. So what is
found here serves drafts, whose time is asked for, and no program that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from siliconloom.mapper.chip.builder import Stretch
from siliconloom.mapper.chip.choice import Chosen
from siliconloom.mapper.chip.layout import Layout
from siliconloom.mapper.chip.lowering import Context, Stored
from siliconloom.mapper.chip.memory import Taken


class _Told(NamedTuple):
    """What lowering a task did."""

    chosen: Chosen
    """Kept, as it is known by its place in Python's memory."""
    stretch: Stretch
    taken: Taken
    outputs: dict[str, Stored]
    apart: dict[str, str]


class KnownTasks:
    """Lowered tasks of one workload on one chip, whose blocks and placement are the same throughout."""

    def __init__(self) -> None:
        self._told: dict[tuple[object, ...], _Told] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._rings: dict[Layout, Hashable] = {}
        self._results = 0
        """Number of what was made so far, by whatever tasks."""

    def begin(self) -> None:
        """Another program begins: nothing was made."""
        self._results = 0

    def lower(self, context: Context, chosen: Chosen, emit: Callable[[], None]) -> None:
        """Do what ``emit``, which lowers the task that is chosen so, would do."""
        builder, memory = context.builder, context.memory
        at = builder.operator, context.layer.level, memory.repetition, memory.used, self._results
        rings = self._rings.get(context.layout)
        if rings is None:
            rings = self._rings[context.layout] = context.layout.values, builder.kinds_of_rings
        key = id(chosen.tiling), id(chosen.share), rings, *at
        told = self._told.get(key)
        if told is None:
            told = self._told[key] = self._listen(context, chosen, emit)
        else:
            memory.add(told.taken)
            context.outputs.update(told.outputs)
            for name, reason in told.apart.items():
                context.apart.setdefault(name, reason)
        builder.add(told.stretch)
        made = self._results, *told.outputs.items()
        self._results = self._numbers.setdefault(made, len(self._numbers) + 1)

    def _listen(self, context: Context, chosen: Chosen, emit: Callable[[], None]) -> _Told:
        """Lower a task and write down what that does; its instructions are left to be added."""
        builder, memory, first = context.builder, context.memory, len(context.builder.drafts)
        before, made, apart = memory.taken(), dict(context.outputs), set(context.apart)
        emit()
        stretch = builder.take(first)
        outputs = {name: stored for name, stored in context.outputs.items() if made.get(name) is not stored}
        reasons = {name: reason for name, reason in context.apart.items() if name not in apart}
        return _Told(chosen, stretch, memory.since(before), outputs, reasons)


__all__ = ["KnownTasks"]
