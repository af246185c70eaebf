"""The systolic tile: an array of elements, its skew, and the control that overlaps one fold with the next.

The timing of both tiles is that of ``sim.timing.systolic``, cycle for cycle; the benches compare the two.
"""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from siliconloom.arch import timing
from siliconloom.arch.array import SystolicArray
from siliconloom.arch.datatype import DataType
from siliconloom.arch.layout import fold_beats
from siliconloom.rtl.array.element import stationary_controls
from siliconloom.rtl.array.elements import arithmetic_of
from siliconloom.rtl.array.grid import GridFabric, grid_of
from siliconloom.rtl.array.recoding import DigitEdge
from siliconloom.rtl.array.shared import LEVEL, MovingCodes, SharedSum, StayingCodes, code_format, shared_marks
from siliconloom.rtl.array.weights import BeatKind, WeightEdge, any_kind, header_kind, held, weight_marks
from siliconloom.rtl.cells.floating import EXPONENT
from siliconloom.rtl.cells.plumbing import RegisterSlice, delayed, reversed_lanes, skewed
from siliconloom.rtl.library import Circuit, Library


def beat(width: int, *, last: bool = True, marks: dict[str, int] | None = None) -> data.StructLayout:
    """A beat of a stream of operands or results; ``last`` ends a fold, ``marks`` are what else it says of itself."""
    return data.StructLayout({"data": width} | ({"last": 1} if last else {}) | (marks or {}))


class SystolicTileCircuit(Circuit):
    """What both tiles share: input slices, the output with its skid buffer, and the enable of the whole array.

    The enable is a register: a result beat that is not taken moves into the skid buffer and stops the array from the
    next cycle on, so that no ready signal fans out combinationally.
    """

    def __init__(
        self, library: Library, array: SystolicArray, name: str | None, inputs: dict[str, int], unmarked: str = ""
    ) -> None:
        self.array, self.inputs, self.unmarked = array, inputs, unmarked
        self.arithmetic = arithmetic_of(array)
        self.result_bits = array.cols * self.sum_bits()
        ports: dict[str, Any] = {name: In(stream.Signature(self.layout(name))) for name in inputs}
        ports |= {"output": Out(stream.Signature(beat(self.result_bits)))}
        self.inner = name is not None
        if self.inner:
            ports |= {"fold_ends": Out(1)} | ({} if unmarked else {"fold_begins": Out(1)})
            ports |= {"product_ends": In(1)} if array.products_apart else {}
        super().__init__(library, library.prefix if name is None else name, ports, reset=True)

    def sum_bits(self) -> int:
        """Width of a sum as it leaves."""
        return self.arithmetic.sum_bits

    def marks(self) -> dict[str, int]:
        """What beats of an operand that stays say of themselves, with widths."""
        return weight_marks(self.array)

    def layout(self, name: str) -> data.StructLayout:
        """Of the beats of an input."""
        marks = self.marks() if name == "stationary" else {}
        return beat(self.inputs[name], last=name != self.unmarked, marks=marks)

    def slice_input(self, m: Module, name: str) -> tuple[Any, Any]:
        """Buffer an input stream; the stream that leaves the buffer, and the beat in front of it."""
        timing.confirm("INPUT_SLICE", register_slice=RegisterSlice.LATENCY)
        layout = self.layout(name)
        buffer = self.place(m, self.library.make(RegisterSlice, layout.size), f"{name}_slice")
        wiring.connect(m, wiring.flipped(getattr(self, name)), buffer.i)
        return buffer.o, data.View(layout, buffer.o.payload)

    def result_output(self, m: Module, en: Signal, valid: Value, results: Value, last: Value) -> None:
        """Drive the output stream from the array's end and derive the array's enable."""
        held = Signal()
        held_data = Signal(self.result_bits, reset_less=True)
        held_last = Signal(reset_less=True)
        output = self.output
        m.d.comb += [en.eq(~held), output.valid.eq(held | valid)]
        with m.If(held):
            m.d.comb += [output.payload.data.eq(held_data), output.payload.last.eq(held_last)]
            m.d.sync += held.eq(~output.ready)
        with m.Else():
            m.d.comb += [output.payload.data.eq(results), output.payload.last.eq(last)]
            m.d.sync += [held.eq(valid & ~output.ready), held_data.eq(results), held_last.eq(last)]

    def lined_up(self, m: Module, en: Signal, states: Value) -> Value:
        """Sums of all columns in one cycle, of states that leave the array column after column."""
        cols, wide = self.array.cols, self.arithmetic.state_bits
        lined_up = skewed(self, m, "result_skew", en, reversed_lanes(states, cols, wide), cols, wide)
        return self.arithmetic.resolved(self, m, en, reversed_lanes(lined_up, cols, wide), cols)


class StationaryTile(SystolicTileCircuit):
    """Weight- or input-stationary tile; the dataflow is what the user streams in which role.

    Parameters
    ----------
    elements
        Format of what comes to the edge of an array in whole numbers, where it is another one: fp32
        (`rtl.array.shared`).

    Members
    -------
    stationary : In(stream of `beat`)
        ``load_rows`` rows of C operands per beat, logical row order, row-major with column 0 in the low bits; the last
        beat of a fold's tile may come early when fewer rows are used. Where the array has packed weights a beat says
        what it is; headers take a cycle each and load nothing.
    moving : In(stream of `beat`)
        R operands per beat, logical row 0 in the low bits; zero in unused rows.
    output : Out(stream of `beat`)
        C sums per beat, of 32 bits (int16: 48, but for 32 as elements), one per moving beat.
    fold_begins, fold_ends, product_ends
        Only inside an NPU tile. Pulses: a loaded tile becomes the active one; the last moving beat of a fold enters
        the array; it is a matmul's last one, which is told where the accumulator adds in several cycles.
    """

    def __init__(
        self, library: Library, array: SystolicArray, name: str | None, elements: DataType | None = None
    ) -> None:
        self.elements, self.shares = elements, elements is not None
        bits = (elements or arithmetic_of(array).dtype).bits
        super().__init__(
            library, array, name, {"stationary": array.load_rows * array.cols * bits, "moving": array.rows * bits}
        )

    def sum_bits(self) -> int:
        return super().sum_bits() if self.elements is None else self.elements.bits

    def marks(self) -> dict[str, int]:
        return shared_marks(self.array) if self.shares else super().marks()

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        array, bits = self.array, self.arithmetic.bits
        rows, cols, groups, hop = array.rows, array.cols, array.load_rows, array.row_hop
        depth = rows // groups
        en, load_fires, moving_fires = (Signal(name=n) for n in ("en", "load_fires", "moving_fires"))
        load, loaded = self.slice_input(m, "stationary")
        move, moved = self.slice_input(m, "moving")
        moving_last = moved.last
        level: Value = Const(0, LEVEL + 1)
        if not self.shares:
            moving_data = self.arithmetic.entering(self, m, "moving_lane", moved.data)

        # Two states: a complete tile in the shadow registers, a tile in the active registers that still has beats.
        shadow_full, active, swap = (Signal(name=n) for n in ("shadow_full", "active", "swap"))
        m.d.comb += [
            move.ready.eq(en & active),
            moving_fires.eq(move.valid & move.ready),
            swap.eq(en & shadow_full & (~active | (moving_fires & moving_last)) & self._rested(m, en, swap)),
        ]
        load_data, loaded = self._loaded(m, load, loaded, load_fires, en & (~shadow_full | swap))
        load_last = loaded.last
        if self.shares:
            load_data, tops = self._staying(m, load_data, loaded, load_fires, swap)
            kind = self.library.make(MovingCodes, rows, code_format(array))
            made = self.place(m, kind, "moving_codes", data=moved.data, tops=tops)
            moving_data, level = made.o, Cat(made.level, made.odd)
        if self.inner:
            m.d.comb += [self.fold_begins.eq(swap), self.fold_ends.eq(moving_fires & moving_last)]
        with m.If(load_fires & load_last):
            m.d.sync += shadow_full.eq(1)
        with m.Elif(swap):
            m.d.sync += shadow_full.eq(0)
        with m.If(swap):
            m.d.sync += active.eq(1)
        with m.Elif(moving_fires & moving_last):
            m.d.sync += active.eq(0)

        # The moving operand: logical row i * groups + j feeds physical row j * depth + i.
        lanes = [
            moving_data[(i * groups + j) * bits : (i * groups + j + 1) * bits]
            for j in range(groups)
            for i in range(depth)
        ]
        moving = skewed(self, m, "moving_skew", en, Cat(*lanes), rows, bits, hop)
        swaps = self._wave(m, "swap_wave", en, swap, rows)

        fabric = GridFabric(self.arithmetic, output_stationary=False)
        sums: Signal = Const(0, cols * self.arithmetic.state_bits)
        width = cols * bits
        for j in range(groups):
            row = skewed(self, m, f"load_skew_{j}", en, load_data[j * width : (j + 1) * width], cols, bits)
            row = delayed(self, m, f"load_delay_{j}", en, row, j * depth * hop)
            marks = Cat(load_fires, load_last) if depth > 1 else load_fires
            flags = delayed(self, m, f"load_flags_{j}", en, marks, j * depth * hop, flags=True)
            captures, clears = self._captures(m, f"chain_{j}", en, flags[0], flags[1:], depth)
            controls = {"capture": captures, "swap": swaps[j * depth : (j + 1) * depth], "clear": clears}
            outputs = self.place(
                m,
                grid_of(self.library, fabric, depth, cols, below=False),
                f"grid_{j}",
                en=en,
                moving=moving[j * depth * bits : (j + 1) * depth * bits],
                load=row,
                sum=sums,
                **{each: controls[each] for each in stationary_controls(self.arithmetic)},
            )
            sums = outputs.sum_out
        results = self.lined_up(m, en, sums)
        latency = array.output_latency
        flags = delayed(self, m, "result_flags", en, Cat(moving_fires, moving_last), latency, flags=True)
        if self.shares:
            results = self._shared_sums(m, results, delayed(self, m, "result_level", en, level, latency))
        self.result_output(m, en, flags[0], results, flags[1])
        return m

    def _rested(self, m: Module, en: Signal, swap: Signal) -> Value:
        """Whether sums of a fold that begins now find those that they may be added to in the accumulator.

        Those are the same lines' of the fold before, and any of the matmul before, which the last moving beat ends.
        """
        apart = self.array.accumulate_stages
        if apart == 1:
            return Const(1, 1)
        left = Signal(range(apart), name="swap_rests")
        with m.If(swap):
            m.d.sync += left.eq(apart - 1)
        with m.Elif(self.product_ends):
            m.d.sync += left.eq(apart - 2)
        with m.Elif(en & left.any()):
            m.d.sync += left.eq(left - 1)
        return ~(left.any() | self.product_ends)

    def _staying(self, m: Module, elements: Value, loaded: Any, fires: Signal, swap: Signal) -> tuple[Value, Value]:
        """Codes of the beat in front, and exponents of the rows of the fold that is active.

        Those of a fold gather beside the ones in use, as its codes do; of rows that it has not they are none.
        """
        array = self.array
        kind = self.library.make(StayingCodes, array)
        coded = loaded.coded if array.weights is None else loaded.kind == BeatKind.INT8
        marks = {name: loaded[name] for name in self.marks() if name in ("rows", "columns")}
        codes = loaded.data[: self.arithmetic.bits * array.load_rows * array.cols]
        made = self.place(m, kind, "staying_codes", data=elements, codes=codes, coded=coded, **marks)
        beats = fold_beats(array, array.rows)
        place = Signal(range(max(beats, 2)), name="load_place")
        gathered, active = (Signal(EXPONENT * array.rows, name=f"tops_{name}") for name in ("gathered", "active"))
        with m.If(fires):
            m.d.sync += place.eq(Mux(loaded.last, 0, place + 1))
            for beat in range(beats):
                part = gathered.word_select(beat, EXPONENT * array.load_rows)
                with m.If(place == beat):
                    m.d.sync += part.eq(made.tops)
                with m.Elif(place == 0):
                    m.d.sync += part.eq(0)
        with m.If(swap):
            m.d.sync += active.eq(gathered)
        return made.o, active

    def _shared_sums(self, m: Module, results: Value, level: Value) -> Value:
        """Sums in fp32 of those of codes, whose row had this exponent."""
        bits = self.arithmetic.sum_bits
        kind = self.library.make(SharedSum, bits, code_format(self.array))
        lanes = (results[at : at + bits] for at in range(0, len(results), bits))
        return Cat(
            *(
                self.place(m, kind, f"shared_sum_{number}", i=lane, level=level[:LEVEL], odd=level[LEVEL]).o
                for number, lane in enumerate(lanes)
            )
        )

    def _loaded(self, m: Module, load: Any, loaded: Any, fires: Signal, ready: Value) -> tuple[Value, Any]:
        """Operands inside the array of a beat that `ready` takes, and the beat; headers are kept, others ``fires``."""
        if not self.array.has_edge:
            m.d.comb += [load.ready.eq(ready), fires.eq(load.valid & ready)]
            if self.shares:
                return loaded.data, loaded
            return self.arithmetic.entering(self, m, "stationary_lane", loaded.data), loaded
        edge = self.library.make(WeightEdge, self.array, *([self.elements] if self.elements else []))
        marks = {name: loaded[name] for name in weight_marks(self.array)}
        header: Value = Const(0, 1)
        en, valid = self._unpacking(m, load, ready)
        taken = load.valid & load.ready
        if self.array.weights is not None:
            header = any_kind(loaded.kind, sorted(set(map(header_kind, self.array.weights.formats))))
            marks |= {"keep": taken & header}
        if self.array.cache_scaled:
            marks |= {"taken": taken}
            header = header | (loaded.kind == BeatKind.CACHE_SCALES)
        if self.array.unpack_stages:
            marks |= {"en": en}
        bits = len(loaded.data)
        passes = [loaded.as_value()[0 if self.shares else bits :], header]
        beat, header = held(m, "unpacking", passes, en, self.array.unpack_stages)
        if not self.shares:  # nothing else is made of the data
            beat = Cat(Const(0, bits), beat)
        m.d.comb += fires.eq(valid & ready & ~header)
        return self.place(m, edge, "weights", data=loaded.data, **marks).o, data.View(self.layout("stationary"), beat)

    def _unpacking(self, m: Module, load: Any, ready: Value) -> tuple[Value, Value]:
        """Registers between the edge and the array; when they take on what is before them, and what the last one has.

        All do at once, when the last one has nothing or is taken: beats of a matmul come one after the other, so that
        none of them has nothing while that one waits.
        """
        en, valid = ready, load.valid
        if self.array.unpack_stages:
            en, full = Signal(name="unpacking_moves"), Signal(self.array.unpack_stages, name="unpacking_full")
            valid = full[-1]
            m.d.comb += en.eq(~valid | ready)
            with m.If(en):
                m.d.sync += full.eq(Cat(load.valid, full))
        m.d.comb += load.ready.eq(en)
        return en, valid

    def _wave(self, m: Module, name: str, en: Signal, start: Signal, rows: int) -> Signal:
        """A pulse that reaches row r after r times the cycles from row to row, all of them enabled."""
        hop = self.array.row_hop
        if rows == 1:
            return start
        passed = Signal((rows - 1) * hop, name=name)
        with m.If(en):
            m.d.sync += passed.eq(Cat(start, passed[:-1]) if len(passed) > 1 else start)
        return Cat(start, *[passed[row * hop - 1] for row in range(1, rows)])

    def _captures(self, m: Module, name: str, en: Signal, valid: Signal, last: Signal, depth: int) -> tuple[Any, Any]:
        """Let each row of a load chain take the first beat that it sees of a tile and forward the others.

        The bottom row takes whatever comes that far. Rows below the one that takes the last beat are cleared, each in
        the cycle before the one in which the earliest swap can reach it. Bit r of every vector belongs to row r of the
        chain: what captures, and what is cleared.
        """
        hop = self.array.row_hop
        if depth == 1:
            return valid, Const(0, 1)
        taken = Signal(depth - 1, name=f"{name}_taken")
        below_valid, below_last = Signal(depth - 1, name=f"{name}_valid"), Signal(depth - 1, name=f"{name}_last")
        valids, forwards = Cat(valid, below_valid), Cat(valid, below_valid)[:-1] & taken
        lasts = Cat(last, below_last)[:-1]
        takes = valids[:-1] & ~taken
        later = {"below_valid": (below_valid, forwards), "below_last": (below_last, lasts)}
        clears = Const(0, depth)
        if self.arithmetic.clears:
            below_clear = Signal(depth - 1, name=f"{name}_clear")
            later["below_clear"] = (below_clear, (takes & lasts) | Cat(Const(0, 1), below_clear)[:-1])
            clears = Cat(Const(0, 1), below_clear)
        with m.If(en):
            m.d.sync += taken.eq((taken | valids[:-1]) & ~(valids[:-1] & lasts))
        for part, (target, value) in later.items():
            for stage in range(hop - 1):
                register = Signal(depth - 1, name=f"{name}_{part}_{stage + 1}")
                with m.If(en):
                    m.d.sync += register.eq(value)
                value = register
            with m.If(en):
                m.d.sync += target.eq(value)
        return Cat(takes, valids[-1]), clears


class OutputTile(SystolicTileCircuit):
    """Output-stationary tile.

    Members
    -------
    a : In(stream of `beat`)
        One column of A, or as many side by side as elements are deep: R rows, row 0 in the low bits; ``last`` ends the
        sums of a fold.
    b : In(stream of `beat` without ``last``)
        As many rows of B: C columns, column 0 in the low bits; its beats go with those of A, one to one.
    output : Out(stream of `beat`)
        C sums per beat, of 32 bits (int16: 48), R beats per fold, row 0 first.
    fold_ends, product_ends
        Only inside an NPU tile. Pulses: the last beats of a fold enter the array; they are a matmul's last ones, as of
        `StationaryTile`.
    """

    def __init__(self, library: Library, array: SystolicArray, name: str | None) -> None:
        bits = arithmetic_of(array).dtype.bits * array.depth
        super().__init__(library, array, name, {"a": array.rows * bits, "b": array.cols * bits}, "b")

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        array, arithmetic = self.array, self.arithmetic
        rows, cols, stages = array.rows, array.cols, array.multiply_stages
        en, fires = Signal(name="en"), Signal(name="fires")

        # The drain chain moves one row per cycle, so last beats keep R enabled cycles apart.
        # A matmul's first ones are further apart from the matmul before: its sums may be added to any of those.
        apart = array.products_apart
        wait, rest = Signal(range(rows + apart + 1)), Mux(self.product_ends, apart, 0) if apart else 0
        first, ends = Signal(init=1), Signal()
        a_data, b_data = self._entering(m, en, fires, first, ends, ~wait.any())
        if self.inner:
            m.d.comb += self.fold_ends.eq(ends)
        with m.If(en):
            with m.If(ends):
                m.d.sync += wait.eq(rows - 1 + rest)
            with m.Elif(wait.any()):
                m.d.sync += wait.eq(wait - 1)

        # Logical row 0 lies at the bottom, where results leave first.
        a_bits, b_bits = arithmetic.a_bits, arithmetic.b_bits
        a = skewed(self, m, "a_skew", en, reversed_lanes(a_data, rows, a_bits), rows, a_bits)
        b = skewed(self, m, "b_skew", en, b_data, cols, b_bits)
        controls = self._control_waves(m, en, Cat(fires, first, ends), rows)

        # Row r takes r sums from above, all rows beginning in the cycle in which the bottom row's sum is finished.
        begins = delayed(self, m, "drain_begin", en, ends, rows + stages, flags=True)
        shifts, before = Signal(rows, name="shifts"), Signal(rows, name="shifts_before")
        with m.If(en):
            m.d.sync += before.eq(Cat(Const(0, 1), shifts[:-1]))
        m.d.comb += shifts.eq(Cat(*[begins] * rows) | before)
        outputs = self.place(
            m,
            grid_of(self.library, GridFabric(self.arithmetic, output_stationary=True), rows, cols, below=False),
            "grid",
            en=en,
            a=a,
            b=b,
            valid=controls[0],
            first=controls[1],
            last=controls[2],
            shift=Cat(Const(0, 1), shifts[:-1]),
            drain=Const(0, cols * arithmetic.state_bits),
        )
        results = self.lined_up(m, en, outputs.drain_out)
        leaving = delayed(self, m, "last_row", en, begins, rows - 1, flags=True)
        later = cols - 1 + array.resolve_stages
        flags = delayed(self, m, "result_flags", en, Cat(shifts[-1], leaving), later, flags=True)
        self.result_output(m, en, flags[0], results, flags[1])
        return m

    def _entering(
        self, m: Module, en: Signal, fires: Signal, first: Signal, ends: Signal, drained: Value
    ) -> tuple[Value, Value]:
        """Operands that enter the array when they fire: those of a beat, or digits of them while it has any left."""
        (a_in, a_beat), (b_in, b_beat) = self.slice_input(m, "a"), self.slice_input(m, "b")
        array, arithmetic, a_last = self.array, self.arithmetic, a_beat.last
        if array.recode_stages:
            lanes, bits = array.rows * array.depth, arithmetic.bits
            kind = self.library.make(DigitEdge, lanes, bits, len(b_beat.data))
            inputs = {"valid": a_in.valid & b_in.valid, "a": a_beat.data, "b": b_beat.data, "last": a_last}
            edge = self.place(m, kind, "digits", en=en, may_end=drained, **inputs)
            m.d.comb += [
                a_in.ready.eq(edge.ready & b_in.valid),
                b_in.ready.eq(edge.ready & a_in.valid),
                fires.eq(edge.fires),
                first.eq(edge.first),
                ends.eq(edge.ends),
            ]
            return edge.a_out, edge.b_out
        may_end = ~a_last | drained
        m.d.comb += [
            a_in.ready.eq(en & b_in.valid & may_end),
            b_in.ready.eq(en & a_in.valid & may_end),
            fires.eq(a_in.valid & a_in.ready),
            ends.eq(fires & a_last),
        ]
        with m.If(fires):
            m.d.sync += first.eq(a_last)
        return arithmetic.entering(self, m, "a_lane", a_beat.data), arithmetic.entering(self, m, "b_lane", b_beat.data)

    def _control_waves(self, m: Module, en: Signal, start: Cat, rows: int) -> list[Signal]:
        """Valid, first and last of row r: those of r enabled cycles ago."""
        waves = []
        for bit, signal in enumerate(start):
            passed = Signal(max(rows - 1, 1), name=f"control_{bit}")
            with m.If(en):
                m.d.sync += passed.eq(Cat(signal, passed[:-1]))
            waves.append(Cat(signal, passed)[:rows])
        return waves


def systolic_tile(library: Library, array: SystolicArray, name: str | None = None) -> SystolicTileCircuit:
    """The tile for the array's dataflow: the design itself, or a module ``name`` inside an NPU tile.

    Raises `NotSupported` for operands without RTL.
    """
    kind = OutputTile if array.dataflow == "output_stationary" else StationaryTile
    return kind(library, array, name)
