"""The vector unit of a tile that computes in int8: its lanes, and what they add up over a row."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value

from siliconloom.arch import timing
from siliconloom.arch.vector import BUILT, INDEX_BYTES, TOTAL_BITS
from siliconloom.rtl.cells.arithmetic import Held
from siliconloom.rtl.library import Placed
from siliconloom.rtl.npu.choice import key, none, order_of
from siliconloom.rtl.npu.decoding import one_of
from siliconloom.rtl.npu.depth import delayed
from siliconloom.rtl.npu.entries import VECTOR_ENTRY
from siliconloom.rtl.npu.geometry import log2
from siliconloom.rtl.npu.lane import DIVIDED, NEED_BITS, PLANES, STATE, Lane, Largest, RowScalars, total_of
from siliconloom.rtl.npu.vector.conditions import VectorConditions
from siliconloom.rtl.npu.vector.control import control
from siliconloom.rtl.npu.vector.lines import write_line, write_results
from siliconloom.rtl.npu.vector.parameters import Arriving, arriving_parameters
from siliconloom.rtl.npu.vector.phases import BlockPlace, VectorPhase
from siliconloom.rtl.npu.vector.rows import Rows, peaks_of, row_memory
from siliconloom.rtl.npu.vector.slots import LAST_STAGE, Slot, choice_of, kept_columns
from siliconloom.rtl.npu.vector.sums import sums_of
from siliconloom.rtl.npu.vector.turned import turned_elements
from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit
from siliconloom.rtl.npu.ways import CIRCUITS, functions_of, lane_ways


class IntegerVectorUnit(VectorUnitCircuit):
    """The vector unit of a tile that computes in int8."""

    planes = PLANES
    divided = DIVIDED
    stages = (Lane.STAGES, RowScalars.STAGES)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        timing.confirm("VECTOR_START", address=1)
        timing.confirm("VECTOR_STAGES", lane=Lane.STAGES, row_state=RowScalars.STAGES)
        entry = Signal(VECTOR_ENTRY, name="instruction")
        m.d.comb += self.taken.eq(self.instruction.valid & self.instruction.ready)
        ways = {way.name: functions_of(way) for way in lane_ways()}
        what = VectorConditions(m, entry, self.instruction.payload, ways, set(BUILT), free=self.instruction.ready)
        phase, place, slots = control(m, self, what)
        column, highest = self.later(m, "column_1", place.column, 0), Signal(signed(NEED_BITS), name="highest")
        choice = choice_of(m, self, phase, slots, column, highest)
        keep = kept_columns(m, self, what, phase, slots, choice)
        arriving = arriving_parameters(m, self, what, phase)
        rows = self._rows(m, what, phase, slots)
        peak_7 = Signal(NEED_BITS)
        index = Signal(8 * INDEX_BYTES)
        m.d.comb += index.eq(choice.index)
        bytes_found = [self._index_byte(index, column, lane) for lane in range(self.geometry.lanes)]
        lanes = self._lanes(m, what, phase, place, slots, keep, arriving, rows, peak_7, bytes_found)
        self._reduce(m, what, phase, slots, rows, lanes, peak_7, keep, highest)
        end = slots[LAST_STAGE]
        write_results(m, self, end, 1 << (end.lane | end.target[: self.wide]))
        return m

    def _rows(self, m: Module, what: VectorConditions, phase: VectorPhase, slots: list[Slot]) -> Rows:
        """The row memory, and what the states in it are made of."""
        first, second, peak_10 = Signal(24), Signal(TOTAL_BITS), Signal(NEED_BITS)
        states = row_memory(
            m,
            self,
            what,
            phase,
            slots,
            self.library.make(RowScalars, self.depth),
            softmax=what.is_["softmax"],
            online=what.carries,
            centred=one_of({f for f in BUILT if CIRCUITS[f].centred}, what.entry),
            count=what.entry.n[:16],
            first=first,
            second=second,
            peak=peak_10,
        )
        return Rows(first, second, peak_10, states, STATE)

    def _lanes(
        self,
        m: Module,
        what: VectorConditions,
        phase: VectorPhase,
        place: BlockPlace,
        slots: list[Slot],
        keep: list[Value],
        arriving: Arriving,
        rows: Rows,
        peak_7: Signal,
        found: list[Value],
    ) -> list[Placed]:
        """The lanes, one per column, and the line that they write."""
        cols = self.geometry.lanes
        low_bytes = Signal(8 * cols)
        m.d.sync += low_bytes.eq(self.second_line)  # of the slot before, a line of each of which comes a cycle
        ways = Cat(*(what.is_[name] for name in what.ways))
        kind = Mux(phase.selecting, 0, ways)
        place_of_beat = slots[1].beat[: self.wide]
        weight, adds = Signal(8), Signal()
        m.d.comb += [
            weight.eq(self.second_line.word_select(place_of_beat, 8)),
            adds.eq(what.weighs & (slots[7].beat != 0)),
        ]
        turned = turned_elements(m, self, slots[1].beat, slots[1].held, 8)
        lane_kind = self.library.make(Lane, cols, self.depth)
        lanes, sums = [], sums_of(m, self, place)
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
                    a=Mux(
                        what.is_["transpose"],
                        turned[lane],
                        Mux(phase.indexing, found[lane], byte(self.first_line, lane)),
                    ),
                    pair=byte(self.first_line, pair),
                    b=Mux(what.weighs, weight, byte(self.second_line, lane)),
                    cosine=angle[0],
                    sine=angle[1],
                    negative=1 - lane % 2,
                    sum=sums[32 * lane : 32 * lane + 32],
                    m0=arriving.scalars[:16],
                    m1=arriving.scalars[16:32],
                    shift=arriving.scalars[32:38],
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
                    late_scale=rows.part(7, "scale"),
                    late_places=rows.part(9, "places"),
                )
            )
        write_line(m, self, [each.result for each in lanes])
        return lanes

    def _index_byte(self, index: Value, column: Value, lane: int) -> Value:
        """The byte of an index that a lane writes, where a block begins at a column."""
        if self.geometry.lanes >= INDEX_BYTES:
            return byte(index, lane % INDEX_BYTES)
        return index.word_select((column + lane)[: log2(INDEX_BYTES)], 8)

    def _reduce(
        self,
        m: Module,
        what: VectorConditions,
        phase: VectorPhase,
        slots: list[Slot],
        rows: Rows,
        lanes: list[Placed],
        peak_7: Signal,
        keep: list[Value],
        highest: Signal,
    ) -> None:
        """Reductions over a row: the largest exponent, and sums that shrink when it grows."""
        wide, dtype = self.wide, self.geometry.dtype
        keys = [
            Mux(keep[5][lane], key(order_of(each.value, dtype), lane), Const(none(dtype), signed(NEED_BITS)))[
                :NEED_BITS
            ]
            for lane, each in enumerate(lanes)
        ]
        compared = Cat(*(Mux(phase.selecting, own, each.need) for own, each in zip(keys, lanes, strict=True)))
        kind = self.library.make(Largest, self.geometry.lanes, NEED_BITS, self.depth.lane[5])
        m.d.sync += highest.eq(self.place(m, kind, "largest", i=compared).o)
        peaks, falls = peaks_of(m, self, what, slots, rows, highest)
        m.d.comb += peak_7.eq(peaks[1])
        firsts, parts = Signal(signed(9 + wide)), Signal(16 + wide)
        first, second = Signal.like(rows.first), Signal.like(rows.second)
        trees = {"firsts": [each.first.as_signed() for each in lanes], "parts": [each.part for each in lanes]}
        first_of, part_of = (total_of(values, self._between(m, name)) for name, values in trees.items())
        m.d.sync += [
            firsts.eq(first_of),
            parts.eq(part_of),
            first.eq(firsts + Mux(slots[9].opens, 0, first.as_signed())),
            second.eq(parts + (Mux(slots[9].opens, Mux(what.goes_on, rows.total(9), 0), second) >> falls[2])),
        ]
        behind = self.depth.lane[9]
        m.d.comb += [
            rows.first.eq(delayed(m, "first_10", first, behind)),
            rows.second.eq(delayed(m, "second_10", second, behind)),
        ]

    def _between(self, m: Module, name: str) -> Held:
        """What holds the values of a tree in its middle, where registers divide its stage."""
        registers = self.depth.lane[8]
        return lambda values: [delayed(m, f"{name}_{i}", value, registers) for i, value in enumerate(values)]


def byte(word: Value, lane: int) -> Value:
    """Byte ``lane`` of a word."""
    return word[8 * lane : 8 * lane + 8]


__all__ = ["IntegerVectorUnit"]
