"""What the vector unit does in a cycle, and at which place of the operand it is."""

from __future__ import annotations

from typing import Any

from amaranth import Const, Module, Mux, Signal
from amaranth.hdl import Value
from msgspec import Struct

from siliconloom.arch.vector import COLUMN_LINES, INPUT_LIMIT
from siliconloom.rtl.npu.geometry import LOCAL_BITS, SIZE_BITS
from siliconloom.rtl.npu.vector.conditions import VectorConditions
from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


class VectorPhase(Struct, frozen=True):
    """What the unit does in this cycle.

    Parameters
    ----------
    once, setup
        Lines of parameters still to be read: of the instruction, of the block of columns.
    active, reducing
        An instruction sends out addresses; in the first pass of a row function.
    draining, timer
        The pipeline empties; cycles until it has.
    reads_once, sets_up, slots
        The address of this cycle is one of the instruction's parameters, of a block's, of operands.
    rounds, selecting, opening
        Rounds that choose are still to be made; there are some; it is the first one.
    whole
        All elements of a row are chosen.
    indexing
        Bytes of what was found are written.
    """

    once: Signal
    setup: Signal
    active: Signal
    reducing: Signal
    draining: Signal
    timer: Signal
    reads_once: Signal
    sets_up: Signal
    slots: Signal
    rounds: Signal
    selecting: Signal
    opening: Signal
    whole: Signal
    indexing: Signal


class PlacesAhead(Struct, frozen=True):
    """What tells of a place whether it is the last one, a slot before it: comparisons then end in one register.

    Parameters
    ----------
    row, block, beat
        The next one after that of this slot is the last one.
    one_row, one_block, one_weight
        There is one only, of a pass, so that the first one is the last.
    one_beat
        So it is with beats.
    rows, weights
        Rows less two, and rows of weights less two.
    first_beat, beat_last
        This slot is the first beat; if not, it is the last one.
    """

    row: Signal
    block: Signal
    beat: Signal
    one_row: Signal
    one_block: Signal
    one_weight: Signal
    one_beat: Signal
    rows: Signal
    weights: Signal
    first_beat: Signal
    beat_last: Signal


class BlockPlace(Struct, frozen=True):
    """Where in the operand a slot is: ``row``, first ``column`` of its block, ``beat`` of what it takes there.

    ``row_last``, ``block_last`` and ``beat_last`` say that it is the last one; ``inner_last`` and ``outer_last`` the
    same of the inner and of the outer of the loops over rows and blocks. ``offset`` is the block's first column in its
    panel of sums, ``panels`` the lines of sums from there to the next block's.

    Where rows are transposed together a slot has ``taken`` of them: in as many beats it ``reads`` one each, in the
    others column number ``turned`` of all of them is written.
    """

    row: Signal
    column: Signal
    beat: Signal
    row_last: Signal
    block_last: Signal
    beat_last: Signal
    inner_last: Signal
    outer_last: Signal
    offset: Signal
    panels: Signal
    taken: Value
    reads: Value
    turned: Value
    ahead: PlacesAhead


def phases(m: Module, unit: VectorUnitCircuit, what: VectorConditions) -> tuple[VectorPhase, BlockPlace]:
    """Phases: parameters that are read once; passes, a block's parameters ahead of each block; draining."""
    entry, cols = what.entry, unit.geometry.lanes
    once, setup, active, reducing = Signal(range(512)), Signal(range(COLUMN_LINES + 1)), Signal(), Signal()
    draining, timer = Signal(), Signal(range(unit.geometry.vector_latency + 1))
    together = unit.geometry.transpose_rows
    beats = max(INPUT_LIMIT, cols + together if together > 1 else 0)
    row, column, beat = Signal(SIZE_BITS), Signal(SIZE_BITS), Signal(range(beats))
    rounds = Signal(SIZE_BITS, name="rounds")
    selecting, opening, whole, indexing = (Signal(name=name) for name in ("selecting", "opening", "whole", "indexing"))
    reads_once, sets_up, slots = Signal(), Signal(), Signal()
    left, taken, reads, turned = taken_together(m, entry.m, row, beat, together)
    ahead = places_ahead(m, what, row, column, beat, left, taken, together, cols)
    row_last, block_last, beat_last, inner_last, outer_last = (
        Signal(name=n) for n in ("row_last", "block_last", "beat_last", "inner_last", "outer_last")
    )
    m.d.comb += [
        unit.instruction.ready.eq(~active & ~draining),
        unit.working.eq(active | draining),
        reads_once.eq(active & (once != 0)),
        sets_up.eq(active & (once == 0) & (setup != 0)),
        slots.eq(weights_apart(m, unit, what, active & (once == 0) & (setup == 0))),
        beat_last.eq(Mux(ahead.first_beat, ahead.one_beat, ahead.beat_last)),
        indexing.eq(what.indexes & ~reducing),
        inner_last.eq(Mux(reducing, block_last, row_last)),
        outer_last.eq(Mux(reducing, row_last, block_last)),
    ]
    phase = VectorPhase(
        once,
        setup,
        active,
        reducing,
        draining,
        timer,
        reads_once,
        sets_up,
        slots,
        rounds,
        selecting,
        opening,
        whole,
        indexing,
    )
    offset, panels = panels_of(m, unit, entry, column)
    place = BlockPlace(
        row,
        column,
        beat,
        row_last,
        block_last,
        beat_last,
        inner_last,
        outer_last,
        offset,
        panels,
        taken,
        reads,
        turned,
        ahead,
    )
    return phase, place


def weights_apart(m: Module, unit: VectorUnitCircuit, what: VectorConditions, streams: Value) -> Value:
    """Cycles in which operands' addresses go out: ahead of each weight its addition's stages but the last pass."""
    stages = unit.geometry.sum_stages
    if stages == 1:
        return streams
    left, passes = Signal(range(stages), name="stages_left", init=stages - 1), Signal(name="stage_passes")
    m.d.comb += passes.eq(streams & what.weighs & (left != 0))
    m.d.sync += left.eq(Mux(passes, left - 1, stages - 1))
    return streams & ~passes


def places_ahead(
    m: Module,
    what: VectorConditions,
    row: Signal,
    column: Signal,
    beat: Signal,
    left: Value,
    taken: Value,
    together: int,
    cols: int,
) -> PlacesAhead:
    """What is known of places ahead of them; registers are set where an instruction, a pass and a slot begin."""
    entry, transposes = what.entry, what.is_["transpose"]
    row_ahead, block_ahead, beat_ahead, one_beat = (
        Signal(name=name) for name in ("row_ahead", "block_ahead", "beat_ahead", "one_beat")
    )
    one_row, one_block, one_weight = (Signal(name=name) for name in ("one_row", "one_block", "one_weight"))
    rows_ahead, weights_ahead = Signal(SIZE_BITS, name="rows_ahead"), Signal(len(beat), name="weights_ahead")
    turned = beat == cols - 2 if together == 1 else beat + 2 == cols + taken
    m.d.comb += [
        row_ahead.eq(row == rows_ahead if together == 1 else left <= Mux(transposes, 2 * together, 2)),
        block_ahead.eq(column + 2 * cols >= entry.n),
        beat_ahead.eq(Mux(transposes, turned, ~what.weighs | (beat == weights_ahead))),
        one_beat.eq(~(transposes | what.turns | (what.weighs & ~one_weight))),
    ]
    first_beat, beat_last = Signal(init=1, name="first_beat"), Signal(name="beat_ahead_last")
    return PlacesAhead(
        row_ahead,
        block_ahead,
        beat_ahead,
        one_row,
        one_block,
        one_weight,
        one_beat,
        rows_ahead,
        weights_ahead,
        first_beat,
        beat_last,
    )


def taken_together(
    m: Module, total: Value, row: Signal, beat: Signal, together: int
) -> tuple[Value, Value, Value, Value]:
    """Rows that are left from this one on, and `BlockPlace.taken`, ``reads`` and ``turned`` of so many together."""
    if together == 1:
        return Const(0), Const(1), Const(1), beat
    left, taken = Signal(SIZE_BITS, name="left"), Signal(range(together + 1), name="taken")
    reads, turned = Signal(name="reads"), Signal.like(beat, name="turned")
    m.d.comb += [
        left.eq(total - row),
        taken.eq(Mux(left < together, left, together)),
        reads.eq(beat < taken),
        turned.eq(beat - taken),
    ]
    return left, taken, reads, turned


def panels_of(m: Module, unit: VectorUnitCircuit, entry: Any, column: Signal) -> tuple[Signal, Signal]:
    """Where a block begins in its panel of sums, and lines from there to where the next one does."""
    cols, lanes = unit.geometry.array.cols, unit.geometry.lanes
    offset, panels = Signal(range(max(cols, 2)), name="offset"), Signal(LOCAL_BITS, name="panels")
    whole, rest = divmod(lanes, cols)
    onward = Mux(offset + rest >= cols, entry.m, 0) if rest else 0
    m.d.comb += panels.eq(entry.m * whole + onward)
    return offset, panels


def next_offset(unit: VectorUnitCircuit, offset: Signal) -> Value:
    """The `BlockPlace.offset` of the next block."""
    cols, rest = unit.geometry.array.cols, unit.geometry.lanes % unit.geometry.array.cols
    return Mux(offset + rest >= cols, offset + rest - cols, offset + rest) if rest else Const(0)


__all__ = ["BlockPlace", "VectorPhase", "next_offset", "phases"]
