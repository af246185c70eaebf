"""The vector unit of a tile that computes in floating point: lines of short elements, fp32 between the multipliers.

Phases and addresses are those of the unit of integers, and so is every cycle. A line of parameters has an element for
each lane: where elements have two bytes, fp32 numbers take half as many lines, and the others are not used. What is
computed is `sim.golden.floating`, bit for bit. Sums over a row are taken block by block, of each block as a tree over
the lanes, adjacent pairs first.
"""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value, signed

from siliconloom.arch import timing
from siliconloom.arch.vector import BUILT_IN_FLOATS, INDEX_BYTES, RISE_LIMIT
from siliconloom.rtl.cells.float_functions import lowered, tree_level
from siliconloom.rtl.cells.floating import DIVIDED as DIVIDED_SUM
from siliconloom.rtl.cells.floating import float_sum
from siliconloom.rtl.library import Library, Placed
from siliconloom.rtl.npu.choice import key, key_bits, none
from siliconloom.rtl.npu.depth import delayed
from siliconloom.rtl.npu.entries import VECTOR_ENTRY
from siliconloom.rtl.npu.float_lane import DIVIDED, STATE, FloatLane, FloatRowScalars, fixed_cycles, planes_of
from siliconloom.rtl.npu.float_ways import float_ways, functions_in
from siliconloom.rtl.npu.geometry import Geometry, log2
from siliconloom.rtl.npu.lane import NEED_BITS, Largest
from siliconloom.rtl.npu.vector.conditions import VectorConditions
from siliconloom.rtl.npu.vector.control import control
from siliconloom.rtl.npu.vector.kept import tell_kept
from siliconloom.rtl.npu.vector.lines import write_line, write_results
from siliconloom.rtl.npu.vector.parameters import Arriving, arriving_parameters
from siliconloom.rtl.npu.vector.phases import BlockPlace, VectorPhase
from siliconloom.rtl.npu.vector.row_sum import FALL_BITS, RowSum
from siliconloom.rtl.npu.vector.rows import Rows, peaks_of, row_memory
from siliconloom.rtl.npu.vector.scales import shared_exponents
from siliconloom.rtl.npu.vector.slots import LAST_STAGE, Slot, choice_of, kept_columns
from siliconloom.rtl.npu.vector.sums import sums_of
from siliconloom.rtl.npu.vector.turned import turned_elements
from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


class FloatVectorUnit(VectorUnitCircuit):
    """As `IntegerVectorUnit`, in floating point; raises `LoomError` for a function that no way of the lane makes."""

    divided = DIVIDED
    stages = (FloatLane.STAGES, FloatRowScalars.STAGES)

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.ways = float_ways()
        super().__init__(library, geometry)
        self.planes = planes_of(geometry.dtype)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        timing.confirm("VECTOR_START", address=1)
        timing.confirm("VECTOR_STAGES", lane=FloatLane.STAGES, row_state=FloatRowScalars.STAGES)
        entry, dtype = Signal(VECTOR_ENTRY, name="instruction"), self.geometry.dtype
        m.d.comb += self.taken.eq(self.instruction.valid & self.instruction.ready)
        ways = {way.name: functions_in(way) for way in self.ways}
        what = VectorConditions(
            m, entry, self.instruction.payload, ways, set(BUILT_IN_FLOATS), dtype, free=self.instruction.ready
        )
        tell_kept(m, self, what)
        phase, place, slots = control(m, self, what)
        column = self.later(m, "column_1", place.column, 0)
        highest = Signal(signed(self._highest_bits), name="highest")
        choice = choice_of(m, self, phase, slots, column, highest)
        keep = kept_columns(m, self, what, phase, slots, choice)
        rows = self._float_rows(m, what, phase, slots)
        peak = Signal(NEED_BITS, name="peak_6")
        arriving = arriving_parameters(m, self, what, phase)
        lanes = self._float_lanes(m, what, phase, place, slots, keep, arriving, rows, peak)
        self._float_reduce(m, what, phase, slots, rows, lanes, peak, keep, highest)
        self._line(m, phase, lanes, choice.index, column, keep)
        write_results(m, self, slots[LAST_STAGE], self._element(slots[LAST_STAGE]))
        return m

    @property
    def _highest_bits(self) -> int:
        """Bits of what is compared over the lanes: exponents, or elements."""
        return max(NEED_BITS, key_bits(self.geometry.dtype))

    def _float_rows(self, m: Module, what: VectorConditions, phase: VectorPhase, slots: list[Slot]) -> Rows:
        """The row memory, and what the states in it are made of."""
        first, second, peak_10 = Signal(32), Signal(32), Signal(NEED_BITS)
        states = row_memory(
            m,
            self,
            what,
            phase,
            slots,
            self.library.make(FloatRowScalars, self.depth),
            softmax=what.is_["softmax"],
            centred=what.is_["centred"],
            count=what.entry.n[:16],
            epsilon=what.entry.k[:16],
            first=first,
            second=second,
            peak=peak_10,
        )
        return Rows(first, second, peak_10, states, STATE)

    def _float_lanes(
        self,
        m: Module,
        what: VectorConditions,
        phase: VectorPhase,
        place: BlockPlace,
        slots: list[Slot],
        keep: list[Value],
        arriving: Arriving,
        rows: Rows,
        peak: Signal,
    ) -> list[Placed]:
        """The lanes, one per column."""
        cache = self.geometry.array.cache
        count, kind = self.geometry.lanes, self.library.make(FloatLane, self.geometry.dtype, self.depth, cache)
        kept = {"kept": Cat(*self.kept.values())} if cache else {}
        shared = shared_exponents(m, self, what, slots) if self.geometry.array.cache_scaled else []
        self.scales = [self.later(m, f"scale_{lane}", each, 9) for lane, each in enumerate(shared)]
        bits = self.geometry.dtype.bits
        ways = Mux(phase.selecting, 0, Cat(*(what.is_[name] for name in what.ways)))
        transposes, sums = what.is_["transpose"], sums_of(m, self, place)
        place_of_beat = slots[1].beat[: self.wide]
        weight, adds = Signal(bits), Signal()
        m.d.comb += [
            weight.eq(self.second_line.word_select(place_of_beat, bits)),
            adds.eq(what.weighs & (slots[4].beat != 0)),
        ]
        turned = turned_elements(m, self, slots[1].beat, slots[1].held, bits)
        before = Signal(bits * count, name="second_before")
        m.d.sync += before.eq(self.second_line)
        return [
            self.place(
                m,
                kind,
                f"lane_{lane}",
                kind=ways,
                a=Mux(transposes, turned[lane], self.first_line[bits * lane : bits * (lane + 1)]),
                b=Mux(what.weighs, weight, self.second_line[bits * lane : bits * (lane + 1)]),
                sum=sums[32 * lane : 32 * lane + 32],
                pair=self.first_line[bits * (lane ^ 1) : bits * ((lane ^ 1) + 1)],
                cosine=self._angle(before, lane & ~1),
                sine=self._angle(before, lane | 1),
                negative=1 - lane % 2,
                reduce=slots[2].reduce,
                adds_4=adds,
                m0=arriving.scalars[:32],
                m1=arriving.scalars[32:64],
                plane=arriving.planes,
                plane_data=self.second_line[bits * lane : bits * (lane + 1)],
                swap=arriving.swap,
                scale=rows.part(2, "scale"),
                offset=rows.part(3, "offset"),
                peak=peak,
                late_scale=rows.part(8, "scale"),
                keep_5=keep[5][lane],
                keep_7=keep[7][lane],
                keep_9=keep[9][lane],
                **kept,
                **({"scale_9": shared[lane]} if shared else {}),
            )
            for lane in range(count)
        ]

    def _float_reduce(
        self,
        m: Module,
        what: VectorConditions,
        phase: VectorPhase,
        slots: list[Slot],
        rows: Rows,
        lanes: list[Placed],
        peak: Signal,
        keep: list[Value],
        highest: Signal,
    ) -> None:
        """Reductions over a row: the largest exponent or element, and sums that shrink when an exponent grows."""
        dtype, wide = self.geometry.dtype, signed(self._highest_bits)
        ahead, compared = fixed_cycles(self.depth), []
        # of the registers that are left one stands before the numbers are compared
        left = self.depth.lane[5] - ahead
        before = min(left, 1)
        kept = delayed(m, "keep_compared", keep[5], ahead)
        for lane, each in enumerate(lanes):
            own, widest = Signal(wide, name=f"key_{lane}"), Signal(wide, name=f"compared_{lane}")
            m.d.comb += [
                own.eq(Mux(kept[lane], key(each.key, lane), Const(none(dtype), signed(key_bits(dtype))))),
                widest.eq(Mux(phase.selecting, own, each.need.as_signed())),
            ]
            compared.append(delayed(m, f"compared_held_{lane}", widest, before))
        kind = self.library.make(Largest, self.geometry.lanes, self._highest_bits, left - before)
        m.d.sync += highest.eq(self.place(m, kind, "largest", i=Cat(*compared)).o)
        peaks, falls = peaks_of(m, self, what, slots, rows, highest)
        m.d.comb += peak.eq(peaks[0])
        first, second = (self._tree(m, name, [getattr(each, name) for each in lanes]) for name in ("first", "part"))
        firsts, seconds = Signal(32, name="firsts"), Signal(32, name="seconds")
        carried = Mux(what.goes_on, rows.part(9, "total"), 0)
        if self.depth.sum_stages == 1:
            older = Mux(slots[9].opens, carried, seconds)
            m.d.sync += [
                firsts.eq(float_sum(m, "values", Mux(slots[9].opens, 0, firsts), first)),
                seconds.eq(float_sum(m, "parts", lowered(older, falls[2]), second)),
            ]
        else:
            fall, late = self._falls(m, what, slots, peaks, falls)
            m.d.comb += [
                firsts.eq(self._row_sum(m, "values", i=first, opens=slots[9].opens, before=0)),
                seconds.eq(
                    self._row_sum(
                        m, "parts", i=second, opens=slots[9].opens, before=carried, fall=fall, late_falls=late
                    )
                ),
            ]
        behind = self.depth.lane[9]
        m.d.comb += [
            rows.first.eq(delayed(m, "first_10", firsts, behind)),
            rows.second.eq(delayed(m, "second_10", seconds, behind)),
        ]

    def _row_sum(self, m: Module, name: str, **given: Value) -> Value:
        """The sum over a row in partial sums."""
        kind = self.library.make(RowSum, self.depth.sum_stages, lowers="fall" in given)
        found: Value = self.place(m, kind, f"row_{name}", **given).o
        return found

    def _falls(
        self, m: Module, what: VectorConditions, slots: list[Slot], peaks: list[Value], falls: list[Value]
    ) -> tuple[Value, Value]:
        """By how much the peak of stage 9 has risen since the block that its sum is added to, and since those between.

        The latter come when that sum is there. ``peaks`` are by the stage from 6 on, ``falls`` from 7 on.
        """
        stages, found = self.depth.sum_stages, list[Value]()
        for ahead in range(1, stages + 1):
            rise, fall = Signal(NEED_BITS + 1, name=f"rise_{ahead}"), Signal(FALL_BITS, name=f"fall_of_{ahead}")
            m.d.comb += [
                rise.eq(peaks[1].as_signed() - delayed(m, f"peak_before_{ahead}", peaks[1], ahead).as_signed()),
                fall.eq(Mux(what.is_["softmax"], Mux(rise > RISE_LIMIT, RISE_LIMIT, rise), 0)),
            ]
            if ahead == stages:
                # of a row's first blocks what they are added to is nothing, and the peaks ahead of them another row's,
                # or unknown: of nothing, by nobody knows how much lower, a four-valued simulator knows nothing
                opened = (delayed(m, f"opened_{place}", slots[7].opens, place) for place in range(1, stages))
                fall = Mux(slots[7].opens, falls[0], Mux(Cat(*opened).any(), 0, fall))
            for stage in (7, 8):
                fall = self.later(m, f"fall_of_{ahead}_in_{stage + 1}", fall, stage)
            found.append(fall if ahead == stages else delayed(m, f"late_fall_{ahead}", fall, stages))
        return found[-1], Cat(*found[:-1])

    def _tree(self, m: Module, name: str, values: list[Value]) -> Value:
        """The sum over the lanes: what they have in stage 7 is added up in stage 9, one half of the levels in each."""
        levels = log2(len(values))
        halves = {7: range(levels - levels // 2), 8: range(levels - levels // 2, levels)}
        for stage, half in halves.items():
            registers, inside = self.depth.lane[stage], 0
            for level in half:
                inside = min(registers // len(half), len(DIVIDED_SUM))
                values = tree_level(m, self, f"{name}_{level}", values, inside)
            left = 1 + registers - inside * len(half)
            title = f"{name}_{half[-1]}" if half else f"{name}_late"
            values = [delayed(m, f"{title}_held_{place}", value, left) for place, value in enumerate(values)]
        return values[0]

    def _line(
        self, m: Module, phase: VectorPhase, lanes: list[Placed], index: Value, column: Signal, keep: list[Signal]
    ) -> None:
        """What is written: the lanes' results, or the parts of an index, which is no number of the format."""
        bits, count = self.geometry.dtype.bits, self.geometry.lanes
        parts, kept = 8 * INDEX_BYTES // bits, Signal(count, name="keep_10")
        found: Value = index
        at: Value = column[: log2(parts)] if parts > 1 else Const(0, 1)
        m.d.comb += kept.eq(self.later(m, "kept_10", keep[9], 9))
        for stage in range(2, LAST_STAGE + 1):
            found = self.later(m, f"index_{stage}", found, stage - 1)
            at = self.later(m, f"part_{stage}", at, stage - 1)
        values: list[Value] = []
        for lane, each in enumerate(lanes):
            part = found.word_select((at + lane)[: log2(parts)], bits) if parts > 1 else found
            values.append(Signal(bits, name=f"written_{lane}"))
            m.d.comb += values[-1].eq(Mux(phase.indexing, Mux(kept[lane], part, 0), each.result))
        write_line(m, self, values)

    def _angle(self, before: Signal, lane: int) -> Value:
        """The number whose parts a lane has in the line before this one, and in this one."""
        bits = self.geometry.dtype.bits
        low, high = (line[bits * lane : bits * (lane + 1)] for line in (before, self.second_line))
        if bits == 32:  # the second line says nothing
            return low
        return Cat(Const(0, 32 - 2 * bits), low, high)

    def _element(self, end: Slot) -> Value:
        """Bytes of one element of a line."""
        size = self.geometry.element
        within = end.target[log2(size) : log2(size) + self.wide]
        return Const((1 << size) - 1, size) << ((end.lane | within) << log2(size))


__all__ = ["FloatLane", "FloatVectorUnit"]
