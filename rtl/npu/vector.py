"""The vector unit: one block of C elements a cycle, for everything that is not a matrix product.

An int8 operand lies row by row, each row ceil(n / C) lines of C bytes; sums lie as panels of m lines of C words, as
the array leaves them. Results are int8, saturated, zero beyond column n. Halves round to even. Parameters lie at ``d``
as `arch.vector.Parameters` says.

What the functions are is registered in `arch.vector`, and listed in ``docs/npu.md``; how a lane computes each, in
`rtl.npu.ways`. The unit asks a function's spec what it reads, in what order, and where results go.

With ``k`` = 2, softmax masks: row r sees columns up to b + r. A row function first reduces, row by row; `RowScalars`
turns what it finds of a row into the row's state, which the second pass, block by block, reads. Functions of one pass
stream block by block: blocks of columns outermost, rows within.

A function that chooses has rounds ahead of its passes, in which values go through the lanes as they are, and
`rtl.npu.choice` finds one element of every row. One that weighs takes a beat for each of the k rows that it adds: a
row of the first operand, and a byte of the second for all lanes; a result leaves with the last of them. One that
indexes has one round, and a pass over the four bytes of what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from typing import Any, NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from siliconloom.arch import timing
from siliconloom.arch.datatype import DataType
from siliconloom.arch.layout import padded
from siliconloom.arch.vector import (
    BUILT,
    COLUMN_LIMIT,
    COLUMN_LINES,
    INDEX_BYTES,
    INDEX_LIMIT,
    INPUT_LIMIT,
    RISE_LIMIT,
    ROW_LIMIT,
    SCALAR_BYTES,
    TOTAL_BITS,
    FunctionSpec,
    Parameters,
    VectorFunction,
    column_lines,
)
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit, Library, Placed
from siliconloom.rtl.npu.bytes import WindowSelect
from siliconloom.rtl.npu.choice import Choice, key, none, order_of
from siliconloom.rtl.npu.decoding import any_of, joined, one_of
from siliconloom.rtl.npu.entries import VECTOR_ENTRY
from siliconloom.rtl.npu.geometry import LOCAL_BITS, SIZE_BITS, SLOTS, Geometry, log2
from siliconloom.rtl.npu.interfaces import local_read, local_write, rises_write, sums_read
from siliconloom.rtl.npu.lane import NEED_BITS, PLANES, STATE, Lane, Largest, RowScalars, total_in, total_of
from siliconloom.rtl.npu.narrow import begins_within, enables, line_mask, repeated, row_pitch, shifted
from siliconloom.rtl.npu.ways import CIRCUITS, functions_of, lane_ways

LAST_STAGE = Lane.STAGES
"""Stage in which a lane's result, or what a row adds up to, is there."""


class VectorConditions:
    """What the instruction under way is, as conditions; ``is_`` has them by the names of ways and of other groups.

    ``entry`` is the instruction under way, ``new`` the one that is offered; ``ways`` are the functions that each way of
    the lanes takes part in, ``functions`` all of the unit. ``turns``: it reads two lines of the second operand for one
    of the first; ``seconds``: it reads that operand at all; ``has_columns``: columns have parameters;
    ``row_columns``: they do, and it is a row function; ``weighs``, ``indexes``, ``carries``: see
    `arch.vector.FunctionSpec`, as ``divides``; ``goes_on``: rows begin with the peaks and totals that are there.
    """

    def __init__(
        self,
        m: Module,
        entry: Any,
        new: Any,
        ways: Mapping[str, set[VectorFunction]],
        functions: Set[VectorFunction],
        dtype: DataType = DataType.INT8,
    ) -> None:
        self.entry, self.new, self.functions, self.dtype = entry, new, functions, dtype
        self.ways = tuple(ways)
        self.groups = dict(ways)
        self.from_sums, transposes, self.by_rows = (
            self.built(lambda spec: spec.from_sums),
            self.built(lambda spec: spec.transposes),
            self.built(lambda spec: spec.cost.by_row),
        )
        self.groups |= {"from_sums": self.from_sums, "transpose": transposes, "by_row": self.by_rows}
        self.is_ = {name: Signal(name=f"is_{name}") for name in (*self.ways, "from_sums", "by_row", "transpose")}
        for name, functions in self.groups.items():
            m.d.comb += self.is_[name].eq(any_of(functions, entry))
        self.turns, self.seconds = self.asks(lambda spec: spec.second > 1), self.asks(lambda spec: spec.reads_second)
        self.weighs, self.indexes = self.asks(lambda spec: spec.weighs), self.asks(lambda spec: spec.indexes)
        self.carries = self.asks(lambda spec: spec.carries)
        self.goes_on = self.carries & entry.add
        self.divides = self.asks(lambda spec: spec.divides)
        self.has_columns = self.asks(lambda spec: Parameters.COLUMNS in spec.parameters_in(dtype))
        self.row_columns = self.asks(lambda spec: spec.cost.by_row and Parameters.COLUMNS in spec.parameters_in(dtype))

    def built(self, condition: Callable[[FunctionSpec], bool]) -> set[VectorFunction]:
        """Functions of the unit whose spec meets a condition."""
        return {function for function in self.functions if condition(function.spec)}

    def asks(self, condition: Callable[[FunctionSpec], bool]) -> Value:
        """Whether the instruction's function is one of those, of its ways where these tell."""
        wanted = self.built(condition)
        told = [name for name in self.ways if self.groups[name] and self.groups[name] <= wanted]
        told.sort(key=lambda name: min(function.code for function in self.groups[name]))
        rest = wanted.difference(*(self.groups[name] for name in told))
        return joined([self.is_[name] for name in told] + ([any_of(rest, self.entry)] if rest else []))


class LineMasks(NamedTuple):
    """Widths of the lines of an instruction, see `rtl.npu.narrow`: of its columns, its rows, and what k counts.

    Those of a ``line`` are at most as wide as the unit, those of a ``row`` as `arch.layout.row_unit`.
    """

    line_columns: Signal
    line_rows: Signal
    line_weights: Signal
    row_columns: Signal
    row_rows: Signal
    row_weights: Signal


@dataclass(frozen=True)
class VectorPhase:
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


@dataclass(frozen=True)
class BlockPlace:
    """Where in the operand a slot is: ``row``, first ``column`` of its block, ``beat`` of what it takes there.

    ``row_last``, ``block_last`` and ``beat_last`` say that it is the last one; ``inner_last`` and ``outer_last`` the
    same of the inner and of the outer of the loops over rows and blocks. ``offset`` is the block's first column in its
    panel of sums, ``panels`` the lines of sums from there to the next block's.
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


class BlockWalk(NamedTuple):
    """An address that moves with the slots, and where the outer loop is."""

    now: Signal
    outer: Signal


@dataclass(frozen=True)
class Addresses:
    """Addresses of the slots, and what they move by.

    Parameters
    ----------
    source, operand, target, line
        Of the first operand, of the second, of the result, and in the accumulator.
    pitch, result_pitch, weight_pitch
        Bytes of a row, of a row of the transposed result, and of a row of weights.
    parameters
        Address of the next line of parameters.
    skip
        Bytes from the result's address to that of the present beat.
    restart
        Pulse: from the beginning, for the second pass.
    """

    source: BlockWalk
    operand: BlockWalk
    target: BlockWalk
    line: BlockWalk
    pitch: Signal
    result_pitch: Signal
    weight_pitch: Signal
    parameters: Signal
    skip: Signal
    restart: Signal


class Slot(NamedTuple):
    """What goes with a slot down the pipeline.

    ``result``, ``byte``: a line, or a byte of a transposed one, is written; ``reduce``: the operand counts for its row,
    which ``opens`` and ``closes`` with it; ``used`` columns of the block; ``row``, ``lane``: the row's lower bits;
    ``beat``; ``target``: address of the result.
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


@dataclass(frozen=True)
class Arriving:
    """Parameters on their way into the lanes, see `Lane`: planes, the table, the scalars."""

    planes: Signal
    swap: Signal
    to_table: Signal
    table_line: Signal
    m0: Value
    m1: Value
    shift: Value


@dataclass(frozen=True)
class Rows:
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
    states: list[Signal]
    layout: Mapping[str, int]

    def total(self, stage: int) -> Value:
        """The total of a softmax in the state that a stage reads."""
        return total_in(self.part(stage, "scale"), self.part(stage, "offset"))

    def part(self, stage: int, name: str) -> Value:
        """A part of the state that a stage reads."""
        start = list(self.layout).index(name)
        low = sum(list(self.layout.values())[:start])
        return self.states[stage][low : low + self.layout[name]]


class VectorUnitCircuit(Circuit):
    """Runs one vector instruction at a time.

    Members
    -------
    instruction : In(stream.Signature(VECTOR_ENTRY))
        Instructions.
    done : Out(1)
        Pulse: operands have been read and results stand in the scratchpad from the next cycle on.
    working : Out(1)
        An instruction is under way.
    first, second : Out(local_read)
        Scratchpad reads.
    sums : Out(sums_read)
        Accumulator read.
    write : Out(local_write)
        Scratchpad write.
    rises : Out(rises_write)
        By how much the peaks of rows that are carried have risen.
    illegal : Out(1)
        Pulse at issue: the function has no circuit, a size is zero, or one is too large for the function.
    misaligned : Out(1)
        Pulse at issue: an operand does not begin with a line.
    """

    planes = PLANES
    """Lines of a block's parameters that mean something."""

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        ports = {
            "instruction": In(stream.Signature(VECTOR_ENTRY)),
            "done": Out(1),
            "working": Out(1),
            "first": Out(local_read(geometry.vector_line)),
            "second": Out(local_read(geometry.vector_line)),
            "sums": Out(sums_read(geometry, geometry.lines_of_block)),
            "write": Out(local_write(geometry.vector_line)),
            "rises": Out(rises_write()),
            "illegal": Out(1),
            "misaligned": Out(1),
        }
        super().__init__(library, library.name("vector"), ports, reset=True)
        self.taken = Signal()
        line = 8 * geometry.vector_line
        self.first_line, self.second_line = Signal(line, name="first_line"), Signal(line, name="second_line")
        self._line_mask = Signal(self._wide, name="line_mask")

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        timing.confirm("VECTOR_START", address=1)
        timing.confirm("VECTOR_STAGES", lane=Lane.STAGES, row_state=RowScalars.STAGES)
        entry = Signal(VECTOR_ENTRY, name="instruction")
        m.d.comb += self.taken.eq(self.instruction.valid & self.instruction.ready)
        ways = {way.name: functions_of(way) for way in lane_ways()}
        what = VectorConditions(m, entry, self.instruction.payload, ways, set(BUILT))
        phase, place, slots = self._control(m, what)
        column, highest = Signal(SIZE_BITS, name="column_1"), Signal(signed(NEED_BITS), name="highest")
        m.d.sync += column.eq(place.column)
        choice = self._choice(m, phase, slots, column, highest)
        keep = self._keep(m, what, phase, slots, choice)
        arriving = self._parameters(m, what, phase)
        rows = self._rows(m, what, slots)
        peak_7 = Signal(NEED_BITS)
        index = Signal(8 * INDEX_BYTES)
        m.d.comb += index.eq(choice.index)
        bytes_found = [self._index_byte(index, column, lane) for lane in range(self.geometry.lanes)]
        lanes = self._lanes(m, what, phase, place, slots, keep, arriving, rows, peak_7, bytes_found)
        self._reduce(m, what, phase, slots, rows, lanes, peak_7, keep, highest)
        self._results(m, slots[LAST_STAGE])
        return m

    def _control(self, m: Module, what: VectorConditions) -> tuple[VectorPhase, BlockPlace, list[Slot]]:
        """What does not depend on the numbers: phases, addresses, and what goes with each slot down the pipeline."""
        self._read_lines(m)
        masks = self._masks(m, what)
        by_row = self._refuse(m, what, masks)
        phase, place = self._phases(m, what)
        addresses = self._addresses(m, what, phase, place)
        self._advance(m, what, phase, place, addresses)
        self._drain(m, what, phase, place, addresses)
        self._begin(m, what, phase, place, addresses, by_row, masks)
        slots = self._slots(m, what, phase, place, addresses)
        return phase, place, slots

    @property
    def _wide(self) -> int:
        """Binary logarithm of the number of lanes."""
        return log2(self.geometry.lanes)

    def _read_lines(self, m: Module) -> None:
        """What was read, from the beginning of its line on: a narrow one lies within a whole one."""
        bits = log2(self.geometry.vector_line)
        for port, line in ((self.first, self.first_line), (self.second, self.second_line)):
            begins = Signal(bits, name=f"{line.name}_begins")
            m.d.sync += begins.eq(port.address[:bits])
            m.d.comb += line.eq(shifted(port.data, begins))

    def _masks(self, m: Module, what: VectorConditions) -> LineMasks:
        """Widths of lines of the instruction that is offered."""
        new, lanes, unit = what.new, self.geometry.lanes, self.geometry.row_unit
        made = {
            f"{kind}_{name}": line_mask(m, f"{kind}_{name}", new[size], line, new.narrow)
            for kind, line in (("line", lanes), ("row", unit))
            for name, size in (("columns", "n"), ("rows", "m"), ("weights", "k"))
        }
        return LineMasks(**made)

    def _refuse(self, m: Module, what: VectorConditions, lines: LineMasks) -> Signal:
        """Instructions that the unit does not run; returns whether the one that is offered is a row function."""
        new, element, built = what.new, self.geometry.element, what.built
        by_row = Signal(name="new_by_row")
        counted = built(lambda spec: spec.chooses or spec.weighs)
        weighs, indexes = built(lambda spec: spec.weighs), built(lambda spec: spec.indexes)
        wider = Signal(name="new_wider")
        m.d.comb += wider.eq(Mux(one_of(indexes, new), new.n > INDEX_LIMIT, new.n > COLUMN_LIMIT))
        m.d.comb += [
            by_row.eq(any_of(what.by_rows, new)),
            self.illegal.eq(
                self.taken
                & (
                    (new.m == 0)
                    | (new.n == 0)
                    | ~any_of(what.functions, new)
                    | (any_of(built(lambda spec: spec.uses_rows), new) & ((new.m > ROW_LIMIT) | wider))
                    | (one_of(counted, new) & (new.k == 0))
                    | (one_of(weighs, new) & (new.k > INPUT_LIMIT))
                )
            ),
        ]
        masks = what.built(lambda spec: spec.masks)
        transposes = one_of(built(lambda spec: spec.transposes), new)
        setup = one_of(built(lambda spec: Parameters.COLUMNS in spec.parameters_in(what.dtype)), new)
        columns, parts = lines.line_columns, self._parts_mask(new.narrow)
        held = {
            "b": Mux(one_of(weighs, new), lines.line_weights, columns),
            "c": Mux(transposes, lines.line_rows, Mux(one_of(indexes, new), parts, columns)),
            "d": Mux(setup, columns, ~Const(0, len(columns))),
        }
        inside = Cat(
            Mux(
                any_of(what.from_sums, new),
                new.a[: log2(self.geometry.sums_pitch)].any(),
                begins_within(new.a, columns, element),
            ),
            Mux(one_of(masks, new), 0, begins_within(new.b, held["b"], element)),
            begins_within(new.c, held["c"], element),
            begins_within(new.d, held["d"], element),
        )
        m.d.comb += self.misaligned.eq(self.taken & inside.any())
        return by_row

    def _parts_mask(self, narrow: Value) -> Value:
        """The mask of lines in which the parts of an index lie."""
        bits = self._wide
        least = min(INDEX_BYTES // self.geometry.element, self.geometry.lanes) - 1
        return Mux(narrow, Const(least, bits), ~Const(0, bits))

    def _phases(self, m: Module, what: VectorConditions) -> tuple[VectorPhase, BlockPlace]:
        """Phases: parameters that are read once; passes, a block's parameters ahead of each block; draining."""
        entry, cols = what.entry, self.geometry.lanes
        once, setup, active, reducing = Signal(range(512)), Signal(range(COLUMN_LINES + 1)), Signal(), Signal()
        draining, timer = Signal(), Signal(range(self.geometry.vector_latency + 1))
        row, column, beat = Signal(SIZE_BITS), Signal(SIZE_BITS), Signal(range(INPUT_LIMIT))
        rounds = Signal(SIZE_BITS, name="rounds")
        selecting, opening, whole, indexing = (
            Signal(name=name) for name in ("selecting", "opening", "whole", "indexing")
        )
        reads_once, sets_up, slots = Signal(), Signal(), Signal()
        row_last, block_last, beat_last, inner_last, outer_last = (
            Signal(name=n) for n in ("row_last", "block_last", "beat_last", "inner_last", "outer_last")
        )
        m.d.comb += [
            self.instruction.ready.eq(~active & ~draining),
            self.working.eq(active | draining),
            reads_once.eq(active & (once != 0)),
            sets_up.eq(active & (once == 0) & (setup != 0)),
            slots.eq(active & (once == 0) & (setup == 0)),
            row_last.eq(row == entry.m - 1),
            block_last.eq(column + cols >= entry.n),
            beat_last.eq(
                Mux(
                    what.is_["transpose"],
                    beat == cols - 1,
                    Mux(what.weighs, beat == (entry.k - 1)[: len(beat)], ~what.turns | beat[0]),
                )
            ),
            selecting.eq(rounds != 0),
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
        offset, panels = self._panels(m, entry, column)
        place = BlockPlace(row, column, beat, row_last, block_last, beat_last, inner_last, outer_last, offset, panels)
        return phase, place

    def _panels(self, m: Module, entry: Any, column: Signal) -> tuple[Signal, Signal]:
        """Where a block begins in its panel of sums, and lines from there to where the next one does."""
        cols, lanes = self.geometry.array.cols, self.geometry.lanes
        offset, panels = Signal(range(max(cols, 2)), name="offset"), Signal(LOCAL_BITS, name="panels")
        whole, rest = divmod(lanes, cols)
        onward = Mux(offset + rest >= cols, entry.m, 0) if rest else 0
        m.d.comb += panels.eq(entry.m * whole + onward)
        return offset, panels

    def _onward(self, offset: Signal) -> Value:
        """The `BlockPlace.offset` of the next block."""
        cols, rest = self.geometry.array.cols, self.geometry.lanes % self.geometry.array.cols
        return Mux(offset + rest >= cols, offset + rest - cols, offset + rest) if rest else Const(0)

    def _addresses(self, m: Module, what: VectorConditions, phase: VectorPhase, place: BlockPlace) -> Addresses:
        """Addresses: within a block of columns row by row; while reducing, within a row block by block."""
        entry, cols, wide = what.entry, self.geometry.vector_line, self._wide
        turns, transposes, weighs = what.turns, what.is_["transpose"], what.weighs
        pitch, result_pitch, weight_pitch = Signal(LOCAL_BITS), Signal(LOCAL_BITS), Signal(LOCAL_BITS)
        steps = {
            "source": (entry.a, pitch, cols),
            "operand": (
                entry.b,
                Mux(turns, pitch << 1, Mux(weighs, weight_pitch, pitch)),
                Mux(turns, 2 * cols, Mux(weighs, 0, cols)),
            ),
            "target": (
                entry.c,
                Mux(transposes, self.geometry.element, pitch),
                Mux(transposes, result_pitch << wide, cols),
            ),
            "line": (entry.a >> log2(self.geometry.sums_pitch), 1, place.panels),
        }
        parameters, skip = Signal(LOCAL_BITS), Signal(LOCAL_BITS)
        restart = Signal()
        # rows that are added up adjoin, so their operand moves on with every beat
        moves = {"source": place.beat_last | weighs}
        walks = {
            name: self._walk(m, name, step, phase, place, restart, moves.get(name, place.beat_last))
            for name, step in steps.items()
        }
        within = place.beat[wide:] << (wide + log2(self.geometry.element))
        line = (self._line_mask + 1) << log2(self.geometry.element)
        second = walks["operand"].now + Mux(weighs, within, Mux(turns & place.beat[0], line, 0))
        m.d.comb += [
            self.first.enable.eq(phase.slots & ~what.is_["from_sums"] & ~phase.indexing),
            self.first.address.eq(walks["source"].now),
            self.second.enable.eq(phase.reads_once | self._fetches(phase) | (phase.slots & what.seconds)),
            self.second.address.eq(Mux(phase.slots, second, parameters)),
        ]
        self._ask_sums(m, phase.slots & what.is_["from_sums"], walks["line"].now, entry, place)
        return Addresses(
            **walks,
            pitch=pitch,
            result_pitch=result_pitch,
            weight_pitch=weight_pitch,
            parameters=parameters,
            skip=skip,
            restart=restart,
        )

    def _fetches(self, phase: VectorPhase) -> Value:
        """A line of a block's parameters is read: there may be fewer of them than cycles."""
        return phase.sets_up & (phase.setup > COLUMN_LINES - column_lines(self.geometry.dtype))

    def _ask_sums(self, m: Module, wanted: Value, line: Signal, entry: Any, place: BlockPlace) -> None:
        """Reads of the lines of sums in which a block's columns lie: one panel's, and those of the panels after it."""
        cols, wanted_columns = (
            self.geometry.array.cols,
            Mux(place.block_last, entry.n - place.column, self.geometry.lanes),
        )
        asked, lines = [wanted], [line]
        for number in range(1, self.geometry.lines_of_block):
            asked.append(wanted & ((place.offset + wanted_columns)[:SIZE_BITS] > number * cols))
            lines.append((line + entry.m * number)[:LOCAL_BITS])
        m.d.comb += [self.sums.enable.eq(Cat(*asked)), self.sums.line.eq(Cat(*lines))]

    def _walk(
        self,
        m: Module,
        name: str,
        step: tuple[Value, Any, Any],
        phase: VectorPhase,
        place: BlockPlace,
        restart: Signal,
        moves: Value,
    ) -> BlockWalk:
        """One address: ``step`` is where it begins, what it moves by from row to row, and from block to block.

        It moves on with the beats that ``moves`` says, the last one of every slot among them.
        """
        begin, by_one_row, by_one_block = step
        now, outer, inner_step, outer_step, onward = (
            Signal(LOCAL_BITS, name=f"{name}_{part}") for part in ("now", "outer", "inner_step", "outer_step", "onward")
        )
        m.d.comb += [
            inner_step.eq(Mux(phase.reducing, by_one_block, by_one_row)),
            outer_step.eq(Mux(phase.reducing, by_one_row, by_one_block)),
            onward.eq(outer + outer_step),
        ]
        with m.If(restart):
            m.d.sync += [now.eq(begin), outer.eq(begin)]
        with m.Elif(phase.slots & moves):
            m.d.sync += now.eq(Mux(place.inner_last & place.beat_last, onward, now + inner_step))
            with m.If(place.inner_last & place.beat_last):
                m.d.sync += outer.eq(onward)
        return BlockWalk(now, outer)

    def _advance(
        self, m: Module, what: VectorConditions, phase: VectorPhase, place: BlockPlace, addresses: Addresses
    ) -> None:
        """From one address to the next, until the pass is over."""
        cols, setup, skip = self.geometry.lanes, phase.setup, addresses.skip
        line = self.geometry.vector_line
        row, column, beat, beat_last = place.row, place.column, place.beat, place.beat_last
        with m.If(phase.reads_once):
            m.d.sync += phase.once.eq(phase.once - 1)
        with m.If(phase.sets_up):
            m.d.sync += setup.eq(setup - 1)
        narrow = (self._line_mask + 1) << log2(self.geometry.element)
        with m.If(phase.reads_once | self._fetches(phase)):
            m.d.sync += addresses.parameters.eq(addresses.parameters + Mux(phase.sets_up, narrow, line))
        with m.If(phase.slots):
            m.d.sync += [
                beat.eq(Mux(beat_last, 0, beat + 1)),
                skip.eq(Mux(beat_last | what.turns | what.weighs, 0, skip + addresses.result_pitch)),
            ]
            with m.If(beat_last):
                with m.If(phase.reducing):
                    m.d.sync += [column.eq(Mux(place.block_last, 0, column + cols)), row.eq(row + place.block_last)]
                    m.d.sync += place.offset.eq(Mux(place.block_last, 0, self._onward(place.offset)))
                with m.Else():
                    m.d.sync += [
                        row.eq(Mux(place.row_last, 0, row + 1)),
                        column.eq(Mux(place.row_last, column + cols, column)),
                        place.offset.eq(Mux(place.row_last, self._onward(place.offset), place.offset)),
                    ]
                    with m.If(place.row_last & what.has_columns):
                        m.d.sync += setup.eq(COLUMN_LINES)
                with m.If(place.inner_last & place.outer_last):
                    m.d.sync += [phase.active.eq(0), phase.draining.eq(1), phase.timer.eq(self.geometry.vector_latency)]

    def _drain(
        self, m: Module, what: VectorConditions, phase: VectorPhase, place: BlockPlace, addresses: Addresses
    ) -> None:
        """The end of a pass: the next round, the second pass after that in which a row function reduces, or the end."""
        element = self.geometry.element
        parts = INDEX_BYTES // element
        with m.If(phase.draining):
            m.d.sync += phase.timer.eq(phase.timer - 1)
            with m.If(phase.timer == 1):
                m.d.sync += phase.draining.eq(0)
                with m.If(phase.reducing):
                    m.d.comb += addresses.restart.eq(1)
                    with m.If(phase.selecting):
                        m.d.sync += [phase.rounds.eq(phase.rounds - 1), phase.opening.eq(0)]
                    with m.If(what.indexes):
                        m.d.sync += [
                            what.entry.n.eq(parts),
                            addresses.pitch.eq(Mux(what.entry.narrow, *self._index_pitches) * element),
                            self._line_mask.eq(self._parts_mask(what.entry.narrow)),
                        ]
                    m.d.sync += [
                        phase.active.eq(1),
                        phase.reducing.eq(phase.selecting & ~what.indexes),
                        place.row.eq(0),
                        place.column.eq(0),
                        place.offset.eq(0),
                        phase.setup.eq(Mux(what.row_columns & ~phase.selecting, COLUMN_LINES, 0)),
                    ]
                with m.Else():
                    m.d.comb += self.done.eq(1)

    def _begin(
        self,
        m: Module,
        what: VectorConditions,
        phase: VectorPhase,
        place: BlockPlace,
        addresses: Addresses,
        by_row: Signal,
        lines_of: LineMasks,
    ) -> None:
        """The issue of an instruction."""
        new, cols, unit = what.new, self.geometry.lanes, self.geometry.row_unit
        lines = Signal.like(phase.once)
        for function in sorted(what.functions):
            count = function.spec.cost_in(what.dtype).once_lines(cols)
            if count:
                with m.If(new.function == function.code):
                    m.d.comb += lines.eq(count)
        built, element = what.built, log2(self.geometry.element)
        streamed = built(lambda spec: Parameters.COLUMNS in spec.parameters_in(what.dtype) and not spec.cost.by_row)
        chooses = Signal(name="new_chooses")
        m.d.comb += chooses.eq(one_of(built(lambda spec: spec.chooses), new) & (new.k < new.n))
        indexes = one_of(built(lambda spec: spec.indexes), new)
        with m.If(self.taken):
            m.d.sync += [
                what.entry.eq(new),
                phase.active.eq(~self.illegal),
                phase.draining.eq(self.illegal),
                phase.timer.eq(1),
                phase.reducing.eq(by_row & ~self.illegal),
                phase.rounds.eq(Mux(self.illegal, 0, Mux(chooses, new.k, indexes))),
                phase.opening.eq(1),
                phase.whole.eq(~chooses),
                phase.once.eq(lines),
                place.row.eq(0),
                place.column.eq(0),
                place.offset.eq(0),
                place.beat.eq(0),
                phase.setup.eq(Mux(one_of(streamed, new), COLUMN_LINES, 0)),
                addresses.parameters.eq(new.d),
                addresses.skip.eq(0),
                self._line_mask.eq(lines_of.line_columns),
                addresses.pitch.eq(row_pitch(new.n, lines_of.row_columns, unit) << element),
                addresses.result_pitch.eq(row_pitch(new.m, lines_of.row_rows, unit) << element),
                addresses.weight_pitch.eq(row_pitch(new.k, lines_of.row_weights, unit) << element),
            ]
            for walk, at in ((addresses.source, new.a), (addresses.operand, new.b), (addresses.target, new.c)):
                m.d.sync += [register.eq(at) for register in walk]
            m.d.sync += [register.eq(new.a >> log2(self.geometry.sums_pitch)) for register in addresses.line]

    @property
    def _index_pitches(self) -> tuple[int, int]:
        """Elements from row to row of the parts of indices: of narrow results, and of others."""
        parts, unit = INDEX_BYTES // self.geometry.element, self.geometry.row_unit
        return padded(parts, min(parts, unit)), padded(parts, unit)

    def _slots(
        self, m: Module, what: VectorConditions, phase: VectorPhase, place: BlockPlace, addresses: Addresses
    ) -> list[Slot]:
        """What goes with each slot down the pipeline, by the stage."""
        entry, cols, slots = what.entry, self.geometry.lanes, phase.slots
        limit, remaining = Signal(signed(SIZE_BITS + 7)), Signal(signed(SIZE_BITS + 8))
        used, seen = Signal(range(cols + 1)), Signal.like(limit, name="seen")
        m.d.comb += [
            limit.eq(entry.n),
            seen.eq(entry.b.as_signed() + place.row + 1),  # none, where the mask is below zero
            remaining.eq(limit - place.column),
            used.eq(Mux(remaining < 0, 0, Mux(remaining > cols, cols, remaining))),
        ]
        with m.If(what.asks(lambda spec: spec.masks) & (entry.k == 2) & (seen < entry.n)):
            m.d.comb += limit.eq(seen)
        opens, last_of_block = Signal(), Signal()
        m.d.comb += [opens.eq(place.column == 0), last_of_block.eq(place.block_last)]
        stages = [
            Slot(
                result=slots & place.beat_last & ~phase.reducing & ~what.is_["transpose"],
                byte=slots & what.is_["transpose"] & (place.beat < used),
                reduce=slots & phase.reducing,
                opens=opens,
                closes=slots & phase.reducing & last_of_block,
                used=used,
                row=place.row[: log2(ROW_LIMIT)],
                lane=place.row[: max(self._wide, 1)],
                beat=place.beat,
                target=addresses.target.now + addresses.skip,
            )
        ]
        for stage in range(1, LAST_STAGE + 1):
            later = {}
            for name, value in stages[-1]._asdict().items():
                later[name] = Signal(len(value), name=f"{name}_{stage}")
                m.d.sync += later[name].eq(value)
            stages.append(Slot(**later))
        return stages

    def _choice(self, m: Module, phase: VectorPhase, slots: list[Slot], column: Signal, highest: Signal) -> Placed:
        """Where the largest elements of rows stand."""
        return self.place(
            m,
            self.library.make(Choice, self.geometry.lanes, self.geometry.dtype),
            "choice",
            row=slots[0].row,
            line=self.first_line,
            column=column,
            reduces=slots[6].reduce & phase.selecting,
            opens=slots[6].opens,
            key=highest,
            closes=slots[7].closes & phase.selecting,
            closed_row=slots[7].row,
        )

    def _keep(
        self, m: Module, what: VectorConditions, phase: VectorPhase, slots: list[Slot], choice: Placed
    ) -> list[Signal]:
        """Columns that are the row's, and are chosen or to be chosen from, a bit each, by the stage."""
        keep = [Signal(self.geometry.lanes, name=f"keep_{stage}") for stage in range(LAST_STAGE)]
        lanes = self.geometry.lanes
        whole = phase.whole.replicate(lanes)
        kept = ((slots[1].used > lane) | what.is_["transpose"] for lane in range(self.geometry.lanes))
        chosen = Mux(phase.selecting, phase.opening.replicate(lanes) | choice.behind, whole | ~choice.behind)
        m.d.comb += keep[1].eq(Cat(*kept) & chosen)
        for stage in range(2, LAST_STAGE):
            m.d.sync += keep[stage].eq(keep[stage - 1])
        return keep

    def _parameters(self, m: Module, what: VectorConditions, phase: VectorPhase) -> Arriving:
        """Parameters: they arrive one cycle after their address."""
        cols, bits = self.geometry.lanes, 8 * self.geometry.element
        scalar_lines, arriving, line_number, of_block, bytes_in, swap = (
            -(-SCALAR_BYTES // cols),
            Signal(),
            Signal(range(512)),
            Signal(),
            Signal(COLUMN_LINES),
            Signal(),
        )
        taken = Signal(range(512))
        scalars = Signal(bits * SCALAR_BYTES)
        to_table = Signal()
        m.d.sync += [arriving.eq(phase.reads_once), of_block.eq(phase.sets_up)]
        with m.If(self.taken):
            m.d.sync += taken.eq(0)
        with m.Elif(phase.reads_once):
            m.d.sync += taken.eq(taken + 1)
        m.d.sync += [line_number.eq(taken), bytes_in.eq(Mux(phase.sets_up, 1 << (COLUMN_LINES - phase.setup)[:3], 0))]
        has_scalars, table_line = Signal(), Signal(range(512))
        m.d.comb += [
            has_scalars.eq(what.asks(lambda spec: Parameters.SCALARS in spec.parameters_in(what.dtype))),
            to_table.eq(
                arriving
                & what.asks(lambda spec: Parameters.TABLE in spec.parameters_in(what.dtype))
                & (~has_scalars | (line_number >= scalar_lines))
            ),
            table_line.eq(line_number - Mux(has_scalars, scalar_lines, 0)),
            swap.eq(of_block & bytes_in[COLUMN_LINES - 1]),
        ]
        for number in range(scalar_lines):
            with m.If(arriving & has_scalars & (line_number == number)):
                m.d.sync += scalars[bits * cols * number : bits * cols * (number + 1)].eq(
                    self.second_line[: bits * SCALAR_BYTES]
                )
        return Arriving(bytes_in[: self.planes], swap, to_table, table_line, *self._scalars(m, scalars))

    def _scalars(self, m: Module, held: Signal) -> tuple[Value, Value, Value]:
        """Two multipliers and a shift."""
        return held[:16], held[16:32], held[32:38]

    def _rows(self, m: Module, what: VectorConditions, slots: list[Slot]) -> Rows:
        """The row memory, and what the states in it are made of."""
        first, second, peak_10 = Signal(24), Signal(TOTAL_BITS), Signal(NEED_BITS)
        states = self._row_memory(
            m,
            what,
            slots,
            self.library.make(RowScalars),
            softmax=what.is_["softmax"],
            online=what.carries,
            centred=one_of({f for f in BUILT if CIRCUITS[f].centred}, what.entry),
            count=what.entry.n[:16],
            first=first,
            second=second,
            peak=peak_10,
        )
        return Rows(first, second, peak_10, states, STATE)

    def _row_memory(
        self, m: Module, what: VectorConditions, slots: list[Slot], scalars: Circuit, **found: Value
    ) -> list[Signal]:
        """The states that rows' sums give, written when the row is closed; of each stage's slot the one of its row."""
        write_row = [slots[LAST_STAGE].row]
        closed = [slots[LAST_STAGE].closes]
        for stage in range(RowScalars.STAGES):
            at, is_closed = Signal(log2(ROW_LIMIT), name=f"row_state_{stage}"), Signal(name=f"closed_{stage}")
            m.d.sync += [at.eq(write_row[-1]), is_closed.eq(closed[-1])]
            write_row.append(at)
            closed.append(is_closed)
        state = self.place(m, scalars, "row_scalars", **found).state
        bits = len(state)
        # what is carried lies in the slot of its powers, and goes on from that in the other one
        read_slot = Signal()
        m.d.comb += read_slot.eq(
            Mux(what.divides, what.entry.b_slot, what.entry.c_slot ^ (what.goes_on & slots[0].reduce))
        )
        read = self.place(
            m,
            self.library.make(SramWrapper, bits, SLOTS * ROW_LIMIT),
            "rows",
            ren=1,
            raddr=Cat(slots[0].row, read_slot),
            wen=closed[-1],
            waddr=Cat(write_row[-1], what.entry.c_slot),
            wdata=state,
        ).rdata
        states = [read, read]
        for stage in range(2, LAST_STAGE):
            later_state = Signal(bits, name=f"state_{stage}")
            m.d.sync += later_state.eq(states[-1])
            states.append(later_state)
        return states

    def _lanes(
        self,
        m: Module,
        what: VectorConditions,
        phase: VectorPhase,
        place: BlockPlace,
        slots: list[Slot],
        keep: list[Signal],
        arriving: Arriving,
        rows: Rows,
        peak_7: Signal,
        found: list[Value],
    ) -> list[Placed]:
        """The lanes, one per column, and the line that they write."""
        cols = self.geometry.lanes
        low_bytes = Signal(8 * cols)
        m.d.sync += low_bytes.eq(self.second_line)
        ways = Cat(*(what.is_[name] for name in what.ways))
        kind = Mux(phase.selecting, 0, ways)
        place_of_beat = slots[1].beat[: self._wide]
        one, weight, adds = Signal(8), Signal(8), Signal()
        m.d.comb += [
            one.eq(self.first_line.word_select(place_of_beat, 8)),
            weight.eq(self.second_line.word_select(place_of_beat, 8)),
            adds.eq(what.weighs & (slots[7].beat != 0)),
        ]
        lane_kind = self.library.make(Lane, cols)
        lanes, sums = [], self._sums(m, place)
        for lane in range(cols):
            pair, low, high = lane ^ 1, lane & ~1, lane | 1
            angle = [Cat(byte(low_bytes, at), byte(self.second_line, at)) for at in (low, high)]
            lanes.append(
                self.place(
                    m,
                    lane_kind,
                    f"lane_{lane}",
                    kind=kind,
                    reduce=slots[2].reduce,
                    a=Mux(what.is_["transpose"], one, Mux(phase.indexing, found[lane], byte(self.first_line, lane))),
                    pair=byte(self.first_line, pair),
                    b=Mux(what.weighs, weight, byte(self.second_line, lane)),
                    cosine=angle[0],
                    sine=angle[1],
                    negative=1 - lane % 2,
                    sum=sums[32 * lane : 32 * lane + 32],
                    m0=arriving.m0,
                    m1=arriving.m1,
                    shift=arriving.shift,
                    plane=arriving.planes,
                    plane_data=byte(self.second_line, lane),
                    swap=arriving.swap,
                    table_write=arriving.to_table,
                    table_line=arriving.table_line,
                    table_data=self.second_line,
                    scale=rows.part(2, "scale"),
                    offset=rows.part(3, "offset"),
                    places=rows.part(4, "places"),
                    keep_5=keep[5][lane],
                    keep_7=keep[7][lane],
                    keep_9=keep[9][lane],
                    adds_7=adds,
                    peak=peak_7,
                    late_scale=rows.part(8, "scale"),
                    late_places=rows.part(9, "places"),
                )
            )
        self._write_line(m, [each.result for each in lanes])
        return lanes

    def _write_line(self, m: Module, values: list[Value]) -> None:
        """The line that is written; a narrow one stands wherever it may lie in a whole one."""
        m.d.comb += self.write.data.eq(Cat(*repeated(values, self._line_mask)))

    def _index_byte(self, index: Value, column: Value, lane: int) -> Value:
        """The byte of an index that a lane writes, where a block begins at a column."""
        if self.geometry.lanes >= INDEX_BYTES:
            return byte(index, lane % INDEX_BYTES)
        return index.word_select((column + lane)[: log2(INDEX_BYTES)], 8)

    def _sums(self, m: Module, place: BlockPlace) -> Value:
        """The sums of a block's columns, of all that their lines have."""
        cols, lanes = self.geometry.array.cols, self.geometry.lanes
        if lanes % cols == 0:
            return self.sums.data
        step, width = gcd(cols, lanes), 8 * self.geometry.lines_of_block * self.geometry.results
        select = self.library.make(WindowSelect, width, 32 * lanes, 32 * step)
        offset = Signal.like(place.offset, name="offset_read")
        m.d.sync += offset.eq(place.offset)
        return self.place(m, select, "sums_select", word=self.sums.data, first=offset[log2(step) :]).o

    def _reduce(
        self,
        m: Module,
        what: VectorConditions,
        phase: VectorPhase,
        slots: list[Slot],
        rows: Rows,
        lanes: list[Placed],
        peak_7: Signal,
        keep: list[Signal],
        highest: Signal,
    ) -> None:
        """Reductions over a row: the largest exponent, and sums that shrink when it grows."""
        wide, dtype = self._wide, self.geometry.dtype
        keys = [
            Mux(keep[5][lane], key(order_of(each.value, dtype), lane), Const(none(dtype), signed(NEED_BITS)))[
                :NEED_BITS
            ]
            for lane, each in enumerate(lanes)
        ]
        compared = Cat(*(Mux(phase.selecting, own, each.need) for own, each in zip(keys, lanes, strict=True)))
        largest = self.place(m, self.library.make(Largest, self.geometry.lanes), "largest", i=compared).o
        m.d.sync += highest.eq(largest)
        peaks, falls = self._peaks(m, what, slots, rows, highest)
        m.d.comb += peak_7.eq(peaks[1])
        firsts, parts = Signal(signed(9 + wide)), Signal(16 + wide)
        m.d.sync += [
            firsts.eq(total_of([each.first.as_signed() for each in lanes])),
            parts.eq(total_of([each.part for each in lanes])),
        ]
        m.d.sync += [
            rows.first.eq(firsts + Mux(slots[9].opens, 0, rows.first.as_signed())),
            rows.second.eq(parts + (Mux(slots[9].opens, Mux(what.goes_on, rows.total(9), 0), rows.second) >> falls[2])),
        ]

    def _peaks(
        self, m: Module, what: VectorConditions, slots: list[Slot], rows: Rows, highest: Signal
    ) -> tuple[list[Value], list[Signal]]:
        """The exponent that counts as zero in the stages from 6 on, and by how much it has risen, from 7 on."""
        peak, higher = Signal(signed(NEED_BITS)), Signal(signed(NEED_BITS))
        fall, falls = Signal(6), [Signal(6, name=f"fall_{stage}") for stage in (7, 8, 9)]
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
        m.d.sync += [
            self.rises.enable.eq(slots[6].closes & what.carries),
            self.rises.slot.eq(what.entry.c_slot),
            self.rises.row.eq(slots[6].row),
            self.rises.data.eq(Mux(what.goes_on, Mux(risen > RISE_LIMIT, RISE_LIMIT, risen), 0)),
        ]
        with m.If(slots[6].reduce):
            m.d.sync += peak.eq(higher)
        peaks: list[Value] = [Mux(slots[6].reduce, higher, rows.part(6, "offset")[:NEED_BITS])]
        peaks += [*(Signal(NEED_BITS, name=f"peak_{stage}") for stage in (7, 8, 9)), rows.peak]
        m.d.sync += [later.eq(earlier) for earlier, later in pairwise(peaks)]
        m.d.sync += [later.eq(earlier) for earlier, later in pairwise([fall, *falls])]
        return peaks, falls

    def _results(self, m: Module, end: Slot) -> None:
        """Where the lanes' line, or a byte of it, is written."""
        m.d.comb += self.write.address.eq(end.target)
        with m.If(end.result):
            m.d.comb += self.write.enable.eq(enables(end.target, self._line_mask, self.geometry.element))
        with m.Elif(end.byte):
            m.d.comb += self._write_element(end)

    def _write_element(self, end: Slot) -> Any:
        """Enable the bytes of one element of a line."""
        return self.write.enable.eq(1 << (end.lane | end.target[: self._wide]))


def byte(word: Value, lane: int) -> Value:
    """Byte ``lane`` of a word."""
    return word[8 * lane : 8 * lane + 8]
