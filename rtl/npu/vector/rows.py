"""The row memory: what a row function keeps of each row between its passes, and from tile to tile."""

from __future__ import annotations

from collections.abc import Mapping

from amaranth import Cat, Module, Mux, Signal, signed
from amaranth.hdl import Value
from msgspec import Struct

from siliconloom.arch.vector import RISE_LIMIT, ROW_LIMIT
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit
from siliconloom.rtl.npu.depth import delayed
from siliconloom.rtl.npu.geometry import SLOTS, log2
from siliconloom.rtl.npu.lane import NEED_BITS, RowScalars, total_in
from siliconloom.rtl.npu.vector.conditions import VectorConditions
from siliconloom.rtl.npu.vector.phases import VectorPhase
from siliconloom.rtl.npu.vector.slots import LAST_STAGE, Slot
from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


class Rows(Struct, frozen=True):
    """The row memory: what becomes of a row's sums, and the row's state by the stage that reads it.

    Parameters
    ----------
    first, second, peak
        What the reduction has found, see `RowScalars`.
    states
        State of the row of each stage's slot.
    layout
        Bits of its parts.
    """

    first: Signal
    second: Signal
    peak: Signal
    states: list[Value]
    layout: Mapping[str, int]

    def total(self, stage: int) -> Value:
        """The total of a softmax in the state that a stage reads."""
        return total_in(self.part(stage, "scale"), self.part(stage, "offset"))

    def part(self, stage: int, name: str) -> Value:
        """A part of the state that a stage reads."""
        start = list(self.layout).index(name)
        low = sum(list(self.layout.values())[:start])
        return self.states[stage][low : low + self.layout[name]]


def row_memory(
    m: Module,
    unit: VectorUnitCircuit,
    what: VectorConditions,
    phase: VectorPhase,
    slots: list[Slot],
    scalars: Circuit,
    **found: Value,
) -> list[Value]:
    """The states that rows' sums give, written when the row is closed; of each stage's slot the one of its row."""
    write_row = [slots[LAST_STAGE].row]
    closed = [slots[LAST_STAGE].closes]
    for stage in range(unit.depth.sums + RowScalars.STAGES + sum(unit.depth.row)):
        at, is_closed = Signal(log2(ROW_LIMIT), name=f"row_state_{stage}"), Signal(name=f"closed_{stage}")
        m.d.sync += [at.eq(write_row[-1]), is_closed.eq(closed[-1])]
        write_row.append(at)
        closed.append(is_closed)
    state = unit.place(m, scalars, "row_scalars", **found).state
    bits = len(state)
    # what is carried lies in the slot of its powers, and goes on from that in the other one
    read_slot = Signal()
    m.d.comb += read_slot.eq(Mux(what.divides, what.entry.b_slot, what.entry.c_slot ^ (what.goes_on & slots[0].reduce)))
    read = unit.place(
        m,
        unit.library.make(SramWrapper, bits, SLOTS * ROW_LIMIT),
        "rows",
        ren=phase.slots,
        raddr=Cat(slots[0].row, read_slot),
        wen=closed[-1],
        waddr=Cat(write_row[-1], what.entry.c_slot),
        wdata=state,
    ).rdata
    states = [read, unit.arrived(m, "state_1", read)]
    for stage in range(2, LAST_STAGE):
        states.append(unit.later(m, f"state_{stage}", states[-1], stage - 1))
    return states


def peaks_of(
    m: Module, unit: VectorUnitCircuit, what: VectorConditions, slots: list[Slot], rows: Rows, highest: Signal
) -> tuple[list[Value], list[Value]]:
    """The exponent that counts as zero in the stages from 6 on, and by how much it has risen, from 7 on."""
    peak, higher = Signal(signed(NEED_BITS)), Signal(signed(NEED_BITS))
    fall = Signal(6)
    before, carried = Signal(signed(NEED_BITS)), Signal(signed(NEED_BITS))
    fresh, rise, risen = Signal(), Signal(NEED_BITS + 1), Signal(NEED_BITS + 1)
    m.d.comb += [
        carried.eq(rows.part(6, "offset")),
        before.eq(Mux(slots[6].opens, carried, peak)),
        fresh.eq(slots[6].opens & ~what.goes_on),
        higher.eq(Mux(fresh | (highest > before), highest, before)),
        rise.eq(higher - before),
        fall.eq(Mux(fresh | ~what.is_["softmax"], 0, Mux(rise > RISE_LIMIT, RISE_LIMIT, rise))),
        risen.eq(higher - carried),
    ]
    # of a row that is carried: by how much its peak has risen since the instruction before
    risen_row = Signal(log2(ROW_LIMIT), name="risen_row")
    found, is_found = Signal.like(risen, name="risen_found"), Signal(name="risen_is_found")
    m.d.sync += [is_found.eq(slots[6].closes & what.carries), risen_row.eq(slots[6].row), found.eq(risen)]
    m.d.sync += [
        unit.rises.enable.eq(is_found),
        unit.rises.slot.eq(what.entry.c_slot),
        unit.rises.row.eq(risen_row),
        unit.rises.data.eq(Mux(what.goes_on, Mux(found > RISE_LIMIT, RISE_LIMIT, found), 0)),
    ]
    with m.If(slots[6].reduce):
        m.d.sync += peak.eq(higher)
    peaks: list[Value] = [Mux(slots[6].reduce, higher, rows.part(6, "offset")[:NEED_BITS])]
    falls: list[Value] = [fall]
    for stage in (7, 8, 9):
        peaks.append(unit.later(m, f"peak_{stage}", peaks[-1], stage - 1))
        falls.append(unit.later(m, f"fall_{stage}", falls[-1], stage - 1))
    m.d.comb += rows.peak.eq(delayed(m, "peak_of_row", unit.later(m, "peak_10", peaks[-1], 9), unit.depth.sums))
    return peaks, falls[1:]


__all__ = ["Rows", "peaks_of", "row_memory"]
