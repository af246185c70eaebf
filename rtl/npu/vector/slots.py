"""What goes with a slot down the vector unit's pipeline, and which of its columns count."""

from __future__ import annotations

from typing import NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value

from siliconloom.arch.datatype import DataType
from siliconloom.arch.vector import ROW_LIMIT
from siliconloom.rtl.library import Placed
from siliconloom.rtl.npu.choice import Choice
from siliconloom.rtl.npu.depth import delayed
from siliconloom.rtl.npu.geometry import SIZE_BITS, log2
from siliconloom.rtl.npu.lane import Lane
from siliconloom.rtl.npu.vector.addresses import Addresses
from siliconloom.rtl.npu.vector.conditions import VectorConditions
from siliconloom.rtl.npu.vector.phases import BlockPlace, VectorPhase
from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit

LAST_STAGE = Lane.STAGES
"""Stage in which a lane's result, or what a row adds up to, is there."""


class Slot(NamedTuple):
    """What goes with a slot down the pipeline.

    ``result``, ``byte``: a line, or a byte of a transposed one, is written; ``reduce``: the operand counts for its row,
    which ``opens`` and ``closes`` with it; ``used`` columns of the block; ``row``, ``lane``: the row's lower bits;
    ``beat``, of what is transposed its column; ``target``: address of the result. Of rows that are transposed together
    ``taken`` are there, and one is ``held``, by the beat's number.
    """

    result: Value
    byte: Value
    reduce: Value
    opens: Value
    closes: Value
    used: Value
    row: Value
    lane: Value
    beat: Value
    target: Value
    taken: Value
    held: Value


def slots_of(
    m: Module,
    unit: VectorUnitCircuit,
    what: VectorConditions,
    phase: VectorPhase,
    place: BlockPlace,
    addresses: Addresses,
) -> list[Slot]:
    """What goes with each slot down the pipeline, by the stage."""
    entry, cols, slots = what.entry, unit.geometry.lanes, phase.slots
    together = unit.geometry.transpose_rows > 1
    limit, remaining = Signal(signed(SIZE_BITS + 7)), Signal(signed(SIZE_BITS + 8))
    used, seen = Signal(range(cols + 1)), Signal.like(limit, name="seen")
    # where registers stand behind the memories, they stand also before how much of a block is used
    early = unit.depth.lane[0]
    m.d.comb += [
        limit.eq(entry.n),
        seen.eq(entry.b.as_signed() + place.row + 1),  # none, where the mask is below zero
        remaining.eq(delayed(m, "limit_0", limit, early) - delayed(m, "column_0", place.column, early)),
        used.eq(Mux(remaining < 0, 0, Mux(remaining > cols, cols, remaining))),
    ]
    with m.If(what.asks(lambda spec: spec.masks) & (entry.k == 2) & (seen < entry.n)):
        m.d.comb += limit.eq(seen)
    opens, last_of_block = Signal(), Signal()
    m.d.comb += [opens.eq(place.column == 0), last_of_block.eq(place.block_last)]
    byte = slots & what.is_["transpose"] & (~place.reads if together else 1)
    if DataType.INT4 in unit.kept:  # of a pair of columns the second one is written, with the first
        byte = byte & (~unit.pairs | place.turned[0])
    byte = delayed(m, "byte_0", byte, early) & (delayed(m, "turned_0", place.turned, early) < used)
    stages = [
        Slot(
            result=slots & place.beat_last & ~phase.reducing & ~what.is_["transpose"],
            byte=byte,
            reduce=slots & phase.reducing,
            opens=opens,
            closes=slots & phase.reducing & last_of_block,
            used=used,
            row=place.row[: log2(ROW_LIMIT)],
            lane=place.row[: max(unit.wide, 1)],
            beat=Mux(what.is_["transpose"], place.turned, place.beat) if together else place.beat,
            target=addresses.target.now + addresses.skip,
            taken=place.taken,
            held=slots & what.is_["transpose"] & place.reads if together else Const(0),
        )
    ]
    for stage in range(1, LAST_STAGE + 1):
        later = {}
        for name, value in stages[-1]._asdict().items():
            cycles = unit.depth.at(stage) - unit.depth.at(stage - 1)
            if stage == 1 and name in ("used", "byte"):
                cycles -= early
            later[name] = value if isinstance(value, Const) else delayed(m, f"{name}_{stage}", value, cycles)
        stages.append(Slot(**later))
    return stages


def choice_of(
    m: Module, unit: VectorUnitCircuit, phase: VectorPhase, slots: list[Slot], column: Value, highest: Signal
) -> Placed:
    """Where the largest elements of rows stand; one is known a cycle after its row's last key, in stage 6."""
    closes, closed_row = slots[7].closes, slots[7].row
    if unit.depth.lane[6]:
        closes, closed_row = delayed(m, "chosen", slots[6].closes, 1), delayed(m, "chosen_row", slots[6].row, 1)
    return unit.place(
        m,
        unit.library.make(Choice, unit.geometry.lanes, unit.geometry.dtype, unit.depth.lane[0]),
        "choice",
        reads=phase.slots,
        row=slots[0].row,
        line=unit.first_line,
        column=column,
        reduces=slots[6].reduce & phase.selecting,
        opens=slots[6].opens,
        key=highest,
        closes=closes & phase.selecting,
        closed_row=closed_row,
    )


def kept_columns(
    m: Module, unit: VectorUnitCircuit, what: VectorConditions, phase: VectorPhase, slots: list[Slot], choice: Placed
) -> list[Value]:
    """Columns that are the row's, and are chosen or to be chosen from, a bit each, by the stage."""
    lanes = unit.geometry.lanes
    keep: list[Value] = [Signal(lanes, name=f"keep_{stage}") for stage in (0, 1)]
    whole = phase.whole.replicate(lanes)
    kept = ((slots[1].used > lane) | what.is_["transpose"] for lane in range(unit.geometry.lanes))
    chosen = Mux(phase.selecting, phase.opening.replicate(lanes) | choice.behind, whole | ~choice.behind)
    m.d.comb += keep[1].eq(Cat(*kept) & chosen)
    for stage in range(2, LAST_STAGE):
        keep.append(unit.later(m, f"keep_{stage}", keep[-1], stage - 1))
    return keep


__all__ = ["LAST_STAGE", "Slot", "choice_of", "kept_columns", "slots_of"]
