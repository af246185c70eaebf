"""How an instruction of the vector unit begins, goes on from slot to slot, and ends."""

from __future__ import annotations

from amaranth import Const, Module, Mux, Signal
from amaranth.hdl import Value

from siliconloom.arch.datatype import DataType
from siliconloom.arch.vector import COLUMN_LINES, INDEX_BYTES, Parameters
from siliconloom.rtl.npu.decoding import one_of
from siliconloom.rtl.npu.geometry import log2
from siliconloom.rtl.npu.narrow import row_pitch
from siliconloom.rtl.npu.vector.addresses import Addresses, fetches
from siliconloom.rtl.npu.vector.conditions import VectorConditions
from siliconloom.rtl.npu.vector.kept import shorter
from siliconloom.rtl.npu.vector.lines import LineMasks, index_pitches, parts_mask
from siliconloom.rtl.npu.vector.phases import BlockPlace, VectorPhase, next_offset
from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


def begin(
    m: Module,
    unit: VectorUnitCircuit,
    what: VectorConditions,
    phase: VectorPhase,
    place: BlockPlace,
    addresses: Addresses,
    by_row: Signal,
    lines_of: LineMasks,
) -> None:
    """The issue of an instruction.

    What is kept of it is kept of whatever is offered while the unit is free, which is known long before whether it is
    taken.
    """
    new, cols, row = what.new, unit.geometry.lanes, unit.geometry.row_unit
    lines = Signal.like(phase.once)
    for function in sorted(what.functions):
        count = function.spec.cost_in(what.dtype).once_lines(cols)
        if count:
            with m.If(new.function == function.code):
                m.d.comb += lines.eq(count)
    built, element = what.built, log2(unit.geometry.element)
    streamed = built(lambda spec: Parameters.COLUMNS in spec.parameters_in(what.dtype) and not spec.cost.by_row)
    chooses = Signal(name="new_chooses")
    m.d.comb += chooses.eq(one_of(built(lambda spec: spec.chooses), new) & (new.k < new.n))
    indexes = one_of(built(lambda spec: spec.indexes), new)
    # of rows that are transposed together, and where they have scales, several values of a line are written at once
    several = unit.geometry.transpose_rows > 1 or unit.geometry.array.cache_scaled
    turned = one_of(built(lambda spec: spec.transposes), new) if several else 0
    ahead, together = place.ahead, unit.geometry.transpose_rows
    rows = Mux(one_of(built(lambda spec: spec.transposes), new), together, 1) if together > 1 else 1
    one_row = new.m <= rows
    with m.If(unit.taken):
        m.d.sync += [
            phase.active.eq(~unit.illegal),
            phase.draining.eq(unit.illegal),
            phase.timer.eq(1),
            phase.reducing.eq(by_row & ~unit.illegal),
            phase.rounds.eq(Mux(unit.illegal, 0, Mux(chooses, new.k, indexes))),
            phase.selecting.eq(~unit.illegal & Mux(chooses, new.k != 0, indexes)),
        ]
    with m.If(unit.instruction.ready):
        m.d.sync += [
            what.entry.eq(new),
            phase.opening.eq(1),
            phase.whole.eq(~chooses),
            phase.once.eq(lines),
            place.row.eq(0),
            place.column.eq(0),
            place.offset.eq(0),
            place.beat.eq(0),
            *(flag.eq(one_row) for flag in (place.row_last, ahead.one_row)),
            *(flag.eq(new.n <= cols) for flag in (place.block_last, ahead.one_block)),
            ahead.one_weight.eq((new.k - 1)[: len(place.beat)] == 0),
            ahead.rows.eq(new.m - 2),
            ahead.weights.eq(new.k - 2),
            ahead.first_beat.eq(1),
            phase.setup.eq(Mux(one_of(streamed, new), COLUMN_LINES, 0)),
            addresses.parameters.eq(new.d),
            addresses.skip.eq(0),
            unit.line_mask.eq(Mux(turned, lines_of.line_rows, lines_of.line_columns)),
            addresses.pitch.eq(row_pitch(new.n, lines_of.row_columns, row) << element),
            addresses.result_pitch.eq(row_pitch(new.m, lines_of.row_rows, row) << element),
            addresses.weight_pitch.eq(row_pitch(new.k, lines_of.row_weights, row) << element),
        ]
        for walk, at in ((addresses.source, new.a), (addresses.operand, new.b), (addresses.target, new.c)):
            m.d.sync += [register.eq(at) for register in walk]
        m.d.sync += [register.eq(new.a >> log2(unit.geometry.part)) for register in addresses.line]


def advance(
    m: Module,
    unit: VectorUnitCircuit,
    what: VectorConditions,
    phase: VectorPhase,
    place: BlockPlace,
    addresses: Addresses,
) -> None:
    """From one address to the next, until the pass is over."""
    cols, setup, skip = unit.geometry.lanes, phase.setup, addresses.skip
    line = unit.geometry.vector_line
    row, column, beat, beat_last, ahead = place.row, place.column, place.beat, place.beat_last, place.ahead
    with m.If(phase.reads_once):
        m.d.sync += phase.once.eq(phase.once - 1)
    with m.If(phase.sets_up):
        m.d.sync += setup.eq(setup - 1)
    narrow = (unit.line_mask + 1) << log2(unit.geometry.element)
    with m.If(phase.reads_once | fetches(unit, phase)):
        m.d.sync += addresses.parameters.eq(addresses.parameters + Mux(phase.sets_up, narrow, line))
    together, still = unit.geometry.transpose_rows, beat_last | what.turns | what.weighs
    rows: Value = Const(1)
    if together > 1:
        still |= place.reads
        rows = Mux(what.is_["transpose"], together, 1)
    onward = shorter(m, unit, addresses.result_pitch)
    if DataType.INT4 in unit.kept:  # two columns of a pair go to one line
        onward = Mux(unit.pairs & ~place.turned[0], 0, onward)
    with m.If(phase.slots):
        m.d.sync += [beat.eq(Mux(beat_last, 0, beat + 1)), skip.eq(Mux(still, 0, skip + onward))]
        m.d.sync += [ahead.first_beat.eq(beat_last), ahead.beat_last.eq(ahead.beat)]
        with m.If(beat_last):
            m.d.sync += [
                place.row_last.eq(
                    Mux(
                        phase.reducing & ~place.block_last,
                        place.row_last,
                        Mux(place.row_last, ahead.one_row, ahead.row),
                    )
                ),
                place.block_last.eq(
                    Mux(
                        phase.reducing | place.row_last,
                        Mux(phase.reducing & place.block_last, ahead.one_block, ahead.block),
                        place.block_last,
                    )
                ),
            ]
            with m.If(phase.reducing):
                m.d.sync += [column.eq(Mux(place.block_last, 0, column + cols)), row.eq(row + place.block_last)]
                m.d.sync += place.offset.eq(Mux(place.block_last, 0, next_offset(unit, place.offset)))
            with m.Else():
                m.d.sync += [
                    row.eq(Mux(place.row_last, 0, row + rows)),
                    column.eq(Mux(place.row_last, column + cols, column)),
                    place.offset.eq(Mux(place.row_last, next_offset(unit, place.offset), place.offset)),
                ]
                with m.If(place.row_last & what.has_columns):
                    m.d.sync += setup.eq(COLUMN_LINES)
            with m.If(place.inner_last & place.outer_last):
                m.d.sync += [phase.active.eq(0), phase.draining.eq(1), phase.timer.eq(unit.geometry.vector_latency)]


def drain(
    m: Module,
    unit: VectorUnitCircuit,
    what: VectorConditions,
    phase: VectorPhase,
    place: BlockPlace,
    addresses: Addresses,
) -> None:
    """The end of a pass: the next round, the second pass after that in which a row function reduces, or the end."""
    element = unit.geometry.element
    parts = INDEX_BYTES // element
    with m.If(phase.draining):
        m.d.sync += phase.timer.eq(phase.timer - 1)
        with m.If(phase.timer == 1):
            m.d.sync += phase.draining.eq(0)
            with m.If(phase.reducing):
                m.d.comb += addresses.restart.eq(1)
                with m.If(phase.selecting):
                    m.d.sync += [
                        phase.rounds.eq(phase.rounds - 1),
                        phase.selecting.eq(phase.rounds != 1),
                        phase.opening.eq(0),
                    ]
                with m.If(what.indexes):
                    m.d.sync += [
                        what.entry.n.eq(parts),
                        addresses.pitch.eq(Mux(what.entry.narrow, *index_pitches(unit)) * element),
                        unit.line_mask.eq(parts_mask(unit, what.entry.narrow)),
                    ]
                one_block = Mux(what.indexes, int(parts <= unit.geometry.lanes), place.ahead.one_block)
                m.d.sync += [
                    place.row_last.eq(place.ahead.one_row),
                    place.block_last.eq(one_block),
                    place.ahead.one_block.eq(one_block),
                    phase.active.eq(1),
                    phase.reducing.eq(phase.selecting & ~what.indexes),
                    place.row.eq(0),
                    place.column.eq(0),
                    place.offset.eq(0),
                    phase.setup.eq(Mux(what.row_columns & ~phase.selecting, COLUMN_LINES, 0)),
                ]
            with m.Else():
                m.d.comb += unit.done.eq(1)


__all__ = ["advance", "begin", "drain"]
