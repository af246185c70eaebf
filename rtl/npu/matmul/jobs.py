"""What the parts of the array's control still have to do of each instruction, and when one is over."""

from __future__ import annotations

from typing import NamedTuple

from amaranth import Module, Signal
from amaranth.lib import data

from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.npu.matmul.reads import BUFFER
from siliconloom.rtl.npu.matmul.unit import MatmulUnitCircuit


class Job(NamedTuple):
    """What a part has to do: the instruction in front, whether there is one, and that the part is done with it."""

    view: data.View
    valid: Signal
    take: Signal


def job_of(
    m: Module, unit: MatmulUnitCircuit, name: str, layout: data.StructLayout, depth: int, fields: dict[str, Signal]
) -> Job:
    """A queue of what a part has to do for each instruction, filled at issue."""
    fresh, take = Signal(layout, name=f"{name}_fresh"), Signal(name=f"{name}_take")
    for field, value in fields.items():
        m.d.comb += fresh[field].eq(value)
    queue = unit.place(m, unit.library.make(Queue, layout.size, depth), f"{name}_jobs")
    m.d.comb += [queue.i.valid.eq(unit.taken), queue.i.payload.eq(fresh), queue.o.ready.eq(take)]
    return Job(data.View(layout, queue.o.payload), queue.o.valid, take)


def told(unit: MatmulUnitCircuit) -> dict[str, Signal]:
    """What the array is told of matmuls where the accumulator adds in several cycles: when one's last fold ends."""
    return {"product_ends": unit.read} if unit.geometry.array.products_apart else {}


def release(m: Module, unit: MatmulUnitCircuit, fold_read: Signal, ends: Signal, entered: Signal) -> None:
    """Pulse ``read`` when the last fold of an instruction has entered the array."""
    queue = unit.place(m, unit.library.make(Queue, 1, BUFFER + 4), "folds")
    m.d.comb += [
        queue.i.valid.eq(fold_read),
        queue.i.payload.eq(ends),
        queue.o.ready.eq(entered),
        unit.read.eq(entered & queue.o.payload),
    ]


def finish(m: Module, unit: MatmulUnitCircuit, last: Signal) -> None:
    """The end of an instruction is told when the accumulator holds the ``last`` of its sums."""
    for stage in range(unit.geometry.array.accumulator_write):
        held = Signal(name=f"sums_held_{stage}")
        m.d.sync += held.eq(last)
        last = held
    m.d.comb += unit.done.eq(last)


__all__ = ["Job", "finish", "job_of", "release", "told"]
