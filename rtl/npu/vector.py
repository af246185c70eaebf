"""The vector unit: one block of C elements a cycle, for everything that is not a matrix product.

An int8 operand lies row by row, each row ceil(n / C) lines of C bytes; sums lie as panels of m lines of C words, as
the array leaves them. Results are int8, saturated, zero beyond column n. Halves round to even. Parameters lie at ``d``
as `arch.vector.Parameters` says.

What the functions are is registered in `arch.vector`, and listed in ``docs/npu.md``; how a lane computes each, in
`rtl.npu.ways`. The unit asks a function's spec what it reads, in what order, and where results go.

With ``k`` = 2, softmax masks: row r sees columns up to b + r. A row function first reduces, row by row; `RowScalars`
turns what it finds of a row into the row's state, which the second pass, block by block, reads. Functions of one pass
stream block by block: blocks of columns outermost, rows within.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from amaranth import Cat, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from siliconloom.arch import timing
from siliconloom.arch.vector import BUILT, COLUMN_LIMIT, COLUMN_LINES, ROW_LIMIT, SCALAR_BYTES, FunctionSpec, Parameters
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.decoding import any_of, built, joined, one_of
from siliconloom.rtl.npu.entries import VECTOR_ENTRY
from siliconloom.rtl.npu.geometry import LOCAL_BITS, SIZE_BITS, Geometry, log2
from siliconloom.rtl.npu.lane import NEED_BITS, PLANES, STATE, Lane, Largest, RowScalars, total_of
from siliconloom.rtl.npu.ways import CIRCUITS, functions_of, lane_ways

LAST_STAGE = Lane.STAGES
"""Stage in which a lane's result, or what a row adds up to, is there."""


class VectorUnitCircuit(Circuit):
    """Runs one vector instruction at a time.

    Members
    -------
    issue, entry, free : In, In, Out
        Take an instruction; only while ``free``.
    done : Out(1)
        Pulse: operands have been read and results stand in the scratchpad from the next cycle on.
    working : Out(1)
        An instruction is under way.
    first, first_address, first_data; second, ...
        Scratchpad reads.
    sums, sums_line, sums_data
        Accumulator read.
    write, write_address, write_data
        Scratchpad write.
    illegal : Out(1)
        Pulse at issue: the function has no circuit, a size is zero, or a row function's size is too large.
    misaligned : Out(1)
        Pulse at issue: an operand does not begin with a line.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        cols = geometry.array.cols
        ports = {
            "issue": In(1),
            "entry": In(VECTOR_ENTRY.size),
            "free": Out(1),
            "done": Out(1),
            "working": Out(1),
            "first": Out(1),
            "first_address": Out(LOCAL_BITS),
            "first_data": In(8 * cols),
            "second": Out(1),
            "second_address": Out(LOCAL_BITS),
            "second_data": In(8 * cols),
            "sums": Out(1),
            "sums_line": Out(LOCAL_BITS),
            "sums_data": In(8 * geometry.results),
            "write": Out(cols),
            "write_address": Out(LOCAL_BITS),
            "write_data": Out(8 * cols),
            "illegal": Out(1),
            "misaligned": Out(1),
        }
        super().__init__(library, library.name("vector"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        geometry, cols = self.geometry, self.geometry.array.cols
        wide = log2(cols)
        new = data.View(VECTOR_ENTRY, self.entry)
        entry = Signal(VECTOR_ENTRY, name="instruction")

        timing.confirm("VECTOR_START", address=1)
        timing.confirm("VECTOR_STAGES", lane=Lane.STAGES, row_state=RowScalars.STAGES)

        # What the instruction is.
        ways = lane_ways()
        groups = {way.name: functions_of(way) for way in ways}
        from_sums, transposes, by_rows = (
            built(lambda spec: spec.from_sums),
            built(lambda spec: spec.transposes),
            built(lambda spec: spec.cost.by_row),
        )
        groups |= {"from_sums": from_sums, "transpose": transposes, "by_row": by_rows}
        is_ = {
            name: Signal(name=f"is_{name}")
            for name in (*(way.name for way in ways), "from_sums", "by_row", "transpose")
        }
        for name, functions in groups.items():
            m.d.comb += is_[name].eq(any_of(functions, entry))

        def asks(condition: Callable[[FunctionSpec], bool]) -> Value:
            """Whether the instruction's function is one of those, of its ways where these tell."""
            wanted = built(condition)
            told = [way.name for way in ways if groups[way.name] and groups[way.name] <= wanted]
            told.sort(key=lambda name: min(function.code for function in groups[name]))
            rest = wanted.difference(*(groups[name] for name in told))
            return joined([is_[name] for name in told] + ([any_of(rest, entry)] if rest else []))

        by_row = Signal(name="new_by_row")
        m.d.comb += [
            by_row.eq(any_of(by_rows, new)),
            self.illegal.eq(
                self.issue
                & (
                    (new.m == 0)
                    | (new.n == 0)
                    | ~any_of(BUILT, new)
                    | (by_row & ((new.m > ROW_LIMIT) | (new.n > COLUMN_LIMIT)))
                )
            ),
        ]

        masks = built(lambda spec: spec.masks)
        inside = (
            Mux(any_of(from_sums, new), new.a[: log2(geometry.results)], new.a[:wide])
            | Mux(one_of(masks, new), 0, new.b[:wide])
            | new.c[:wide]
            | new.d[:wide]
        )
        m.d.comb += self.misaligned.eq(self.issue & inside.any())

        turns, seconds = asks(lambda spec: spec.second > 1), asks(lambda spec: spec.second > 0)
        has_columns = asks(lambda spec: Parameters.COLUMNS in spec.parameters)
        row_columns = asks(lambda spec: spec.cost.by_row and Parameters.COLUMNS in spec.parameters)

        # Phases: parameters that are read once; passes, a block's parameters ahead of each block; draining.
        once, setup, active, reducing = Signal(range(512)), Signal(range(COLUMN_LINES + 1)), Signal(), Signal()
        draining, timer = Signal(), Signal(range(geometry.vector_latency + 1))
        row, column, beat = Signal(SIZE_BITS), Signal(SIZE_BITS), Signal(max(wide, 1))
        reads_once, sets_up, slots = Signal(), Signal(), Signal()
        row_last, block_last, beat_last, inner_last, outer_last = (
            Signal(name=n) for n in ("row_last", "block_last", "beat_last", "inner_last", "outer_last")
        )
        m.d.comb += [
            self.free.eq(~active & ~draining),
            self.working.eq(active | draining),
            reads_once.eq(active & (once != 0)),
            sets_up.eq(active & (once == 0) & (setup != 0)),
            slots.eq(active & (once == 0) & (setup == 0)),
            row_last.eq(row == entry.m - 1),
            block_last.eq(column + cols >= entry.n),
            beat_last.eq(Mux(is_["transpose"], beat == cols - 1, ~turns | beat[0])),
            inner_last.eq(Mux(reducing, block_last, row_last)),
            outer_last.eq(Mux(reducing, row_last, block_last)),
        ]

        # Addresses: within a block of columns row by row; while reducing, within a row block by block.
        pitch, result_pitch = Signal(LOCAL_BITS), Signal(LOCAL_BITS)
        steps = {
            "source": (entry.a, pitch, cols),
            "operand": (entry.b, Mux(turns, pitch << 1, pitch), Mux(turns, 2 * cols, cols)),
            "target": (entry.c, Mux(is_["transpose"], 1, pitch), Mux(is_["transpose"], result_pitch << wide, cols)),
            "line": (entry.a >> log2(geometry.results), 1, entry.m),
        }
        walks, starts = {}, {}
        parameters, skip = Signal(LOCAL_BITS), Signal(LOCAL_BITS)
        restart = Signal()
        for name, (begin, by_one_row, by_one_block) in steps.items():
            now, outer, inner_step, outer_step, onward = (
                Signal(LOCAL_BITS, name=f"{name}_{part}")
                for part in ("now", "outer", "inner_step", "outer_step", "onward")
            )
            walks[name], starts[name] = now, (now, outer)
            m.d.comb += [
                inner_step.eq(Mux(reducing, by_one_block, by_one_row)),
                outer_step.eq(Mux(reducing, by_one_row, by_one_block)),
                onward.eq(outer + outer_step),
            ]
            with m.If(restart):
                m.d.sync += [now.eq(begin), outer.eq(begin)]
            with m.Elif(slots & beat_last):
                m.d.sync += now.eq(Mux(inner_last, onward, now + inner_step))
                with m.If(inner_last):
                    m.d.sync += outer.eq(onward)
        m.d.comb += [
            self.first.eq(slots & ~is_["from_sums"]),
            self.first_address.eq(walks["source"]),
            self.second.eq(reads_once | sets_up | (slots & seconds)),
            self.second_address.eq(Mux(slots, walks["operand"] + Mux(turns & beat[0], cols, 0), parameters)),
            self.sums.eq(slots & is_["from_sums"]),
            self.sums_line.eq(walks["line"]),
        ]
        with m.If(reads_once):
            m.d.sync += once.eq(once - 1)
        with m.If(sets_up):
            m.d.sync += setup.eq(setup - 1)
        with m.If(reads_once | sets_up):
            m.d.sync += parameters.eq(parameters + cols)
        with m.If(slots):
            m.d.sync += [beat.eq(Mux(beat_last, 0, beat + 1)), skip.eq(Mux(beat_last | turns, 0, skip + result_pitch))]
            with m.If(beat_last):
                with m.If(reducing):
                    m.d.sync += [column.eq(Mux(block_last, 0, column + cols)), row.eq(row + block_last)]
                with m.Else():
                    m.d.sync += [row.eq(Mux(row_last, 0, row + 1)), column.eq(Mux(row_last, column + cols, column))]
                    with m.If(row_last & has_columns):
                        m.d.sync += setup.eq(COLUMN_LINES)
                with m.If(inner_last & outer_last):
                    m.d.sync += [active.eq(0), draining.eq(1), timer.eq(geometry.vector_latency)]
        with m.If(draining):
            m.d.sync += timer.eq(timer - 1)
            with m.If(timer == 1):
                m.d.sync += draining.eq(0)
                with m.If(reducing):
                    m.d.comb += restart.eq(1)
                    m.d.sync += [
                        active.eq(1),
                        reducing.eq(0),
                        row.eq(0),
                        column.eq(0),
                        setup.eq(Mux(row_columns, COLUMN_LINES, 0)),
                    ]
                with m.Else():
                    m.d.comb += self.done.eq(1)
        lines = Signal.like(once)
        for function in sorted(BUILT):
            count = function.spec.cost.once_lines(cols)
            if count:
                with m.If(new.function == function.code):
                    m.d.comb += lines.eq(count)
        streamed = built(lambda spec: Parameters.COLUMNS in spec.parameters and not spec.cost.by_row)
        with m.If(self.issue):
            m.d.sync += [
                entry.eq(new),
                active.eq(~self.illegal),
                draining.eq(self.illegal),
                timer.eq(1),
                reducing.eq(by_row & ~self.illegal),
                once.eq(lines),
                row.eq(0),
                column.eq(0),
                beat.eq(0),
                setup.eq(Mux(one_of(streamed, new), COLUMN_LINES, 0)),
                parameters.eq(new.d),
                skip.eq(0),
                pitch.eq(((new.n + (cols - 1)) >> wide) << wide),
                result_pitch.eq(((new.m + (cols - 1)) >> wide) << wide),
            ]
            for name, at in (("source", new.a), ("operand", new.b), ("target", new.c)):
                m.d.sync += [register.eq(at) for register in starts[name]]
            m.d.sync += [register.eq(new.a >> log2(geometry.results)) for register in starts["line"]]

        # What goes with each slot down the pipeline.
        limit, remaining, used = Signal(SIZE_BITS + 6), Signal(signed(SIZE_BITS + 8)), Signal(range(cols + 1))
        m.d.comb += [
            limit.eq(entry.n),
            remaining.eq(limit - column),
            used.eq(Mux(remaining < 0, 0, Mux(remaining > cols, cols, remaining))),
        ]
        with m.If(asks(lambda spec: spec.masks) & (entry.k == 2) & (entry.b + row + 1 < entry.n)):
            m.d.comb += limit.eq(entry.b + row + 1)
        opens, last_of_block = Signal(), Signal()
        m.d.comb += [opens.eq(column == 0), last_of_block.eq(block_last)]
        carried = {
            "result": slots & beat_last & ~reducing & ~is_["transpose"],
            "byte": slots & is_["transpose"] & (beat < used),
            "reduce": slots & reducing,
            "opens": opens,
            "closes": slots & reducing & last_of_block,
            "used": used,
            "row": row[: log2(ROW_LIMIT)],
            "lane": row[: max(wide, 1)],
            "beat": beat,
            "target": walks["target"] + skip,
        }
        stages = [carried]
        for stage in range(1, LAST_STAGE + 1):
            later = {}
            for name, value in stages[-1].items():
                later[name] = Signal(len(value), name=f"{name}_{stage}")
                m.d.sync += later[name].eq(value)
            stages.append(later)
        keep = [Signal(cols, name=f"keep_{stage}") for stage in range(LAST_STAGE)]
        m.d.comb += keep[1].eq(Cat(*((stages[1]["used"] > lane) | is_["transpose"] for lane in range(cols))))
        for stage in range(2, LAST_STAGE):
            m.d.sync += keep[stage].eq(keep[stage - 1])

        # Parameters arrive one cycle after their address.
        scalar_lines, arriving, line_number, of_block, bytes_in, swap = (
            -(-SCALAR_BYTES // cols),
            Signal(),
            Signal(range(512)),
            Signal(),
            Signal(COLUMN_LINES),
            Signal(),
        )
        taken = Signal(range(512))
        scalars = Signal(8 * SCALAR_BYTES)
        to_table = Signal()
        m.d.sync += [arriving.eq(reads_once), of_block.eq(sets_up)]
        with m.If(self.issue):
            m.d.sync += taken.eq(0)
        with m.Elif(reads_once):
            m.d.sync += taken.eq(taken + 1)
        m.d.sync += [line_number.eq(taken), bytes_in.eq(Mux(sets_up, 1 << (COLUMN_LINES - setup)[:3], 0))]
        has_scalars, table_line = Signal(), Signal(range(512))
        m.d.comb += [
            has_scalars.eq(asks(lambda spec: Parameters.SCALARS in spec.parameters)),
            to_table.eq(
                arriving
                & asks(lambda spec: Parameters.TABLE in spec.parameters)
                & (~has_scalars | (line_number >= scalar_lines))
            ),
            table_line.eq(line_number - Mux(has_scalars, scalar_lines, 0)),
            swap.eq(of_block & bytes_in[COLUMN_LINES - 1]),
        ]
        for number in range(scalar_lines):
            with m.If(arriving & has_scalars & (line_number == number)):
                m.d.sync += scalars[8 * cols * number : 8 * cols * (number + 1)].eq(
                    self.second_data[: 8 * SCALAR_BYTES]
                )
        m0, m1, shift = scalars[:16], scalars[16:32], scalars[32:38]

        # The row memory.
        bits = sum(STATE.values())
        row_state = self.library.make(RowScalars)
        write_row = [stages[LAST_STAGE]["row"]]
        closed = [stages[LAST_STAGE]["closes"]]
        for stage in range(RowScalars.STAGES):
            at, is_closed = Signal(log2(ROW_LIMIT), name=f"row_state_{stage}"), Signal(name=f"closed_{stage}")
            m.d.sync += [at.eq(write_row[-1]), is_closed.eq(closed[-1])]
            write_row.append(at)
            closed.append(is_closed)
        first, second, peak_10 = Signal(24), Signal(32), Signal(NEED_BITS)
        state = self.place(
            m,
            row_state,
            "row_scalars",
            softmax=is_["softmax"],
            centred=one_of({f for f in BUILT if CIRCUITS[f].centred}, entry),
            count=entry.n[:16],
            first=first,
            second=second,
            peak=peak_10,
        )["state"]
        read = self.place(
            m,
            self.library.make(SramWrapper, bits, ROW_LIMIT),
            "rows",
            ren=1,
            raddr=carried["row"],
            wen=closed[-1],
            waddr=write_row[-1],
            wdata=state,
        )["rdata"]
        states = [read, read]
        for stage in range(2, LAST_STAGE):
            later_state = Signal(bits, name=f"state_{stage}")
            m.d.sync += later_state.eq(states[-1])
            states.append(later_state)

        def part(stage: int, name: str) -> Value:
            start = list(STATE).index(name)
            low = sum(list(STATE.values())[:start])
            return states[stage][low : low + STATE[name]]

        # The lanes.
        low_bytes = Signal(8 * cols)
        m.d.sync += low_bytes.eq(self.second_data)
        kind, one = Cat(*(is_[way.name] for way in ways)), Signal(8)
        m.d.comb += one.eq(self.first_data.word_select(stages[1]["beat"], 8))
        peak_7 = Signal(NEED_BITS)
        lane_kind = self.library.make(Lane, cols)
        lanes = []
        for lane in range(cols):
            pair, low, high = lane ^ 1, lane & ~1, lane | 1
            turns = [Cat(byte(low_bytes, at), byte(self.second_data, at)) for at in (low, high)]
            lanes.append(
                self.place(
                    m,
                    lane_kind,
                    f"lane_{lane}",
                    kind=kind,
                    reduce=stages[2]["reduce"],
                    a=Mux(is_["transpose"], one, byte(self.first_data, lane)),
                    pair=byte(self.first_data, pair),
                    b=byte(self.second_data, lane),
                    cosine=turns[0],
                    sine=turns[1],
                    negative=1 - lane % 2,
                    sum=self.sums_data[32 * lane : 32 * lane + 32],
                    m0=m0,
                    m1=m1,
                    shift=shift,
                    plane=bytes_in[:PLANES],
                    plane_data=byte(self.second_data, lane),
                    swap=swap,
                    table_write=to_table,
                    table_line=table_line,
                    table_data=self.second_data,
                    scale=part(2, "scale"),
                    offset=part(3, "offset"),
                    places=part(4, "places"),
                    keep_5=keep[5][lane],
                    keep_7=keep[7][lane],
                    keep_9=keep[9][lane],
                    peak=peak_7,
                    late_scale=part(8, "scale"),
                    late_places=part(9, "places"),
                )
            )
        m.d.comb += self.write_data.eq(Cat(*(each["result"] for each in lanes)))

        # Reductions over a row.
        highest, peak, higher = Signal(signed(NEED_BITS)), Signal(signed(NEED_BITS)), Signal(signed(NEED_BITS))
        fall, falls = Signal(6), [Signal(6, name=f"fall_{stage}") for stage in (7, 8, 9)]
        largest = self.place(m, self.library.make(Largest, cols), "largest", i=Cat(*(each["need"] for each in lanes)))[
            "o"
        ]
        rise = Signal(NEED_BITS + 1)
        m.d.sync += highest.eq(largest)
        m.d.comb += [
            higher.eq(Mux(stages[6]["opens"] | (highest > peak), highest, peak)),
            rise.eq(higher - peak),
            fall.eq(Mux(stages[6]["opens"] | ~is_["softmax"], 0, Mux(rise > 63, 63, rise))),
        ]
        with m.If(stages[6]["reduce"]):
            m.d.sync += peak.eq(higher)
        m.d.sync += [peak_7.eq(Mux(stages[6]["reduce"], higher, part(6, "offset")[:NEED_BITS])), falls[0].eq(fall)]
        peaks = [peak_7, Signal(NEED_BITS, name="peak_8"), Signal(NEED_BITS, name="peak_9"), peak_10]
        m.d.sync += [later.eq(earlier) for earlier, later in pairwise(peaks)]
        m.d.sync += [later.eq(earlier) for earlier, later in pairwise(falls)]
        firsts, parts = Signal(signed(9 + wide)), Signal(16 + wide)
        m.d.sync += [
            firsts.eq(total_of([each["first"].as_signed() for each in lanes])),
            parts.eq(total_of([each["part"] for each in lanes])),
        ]
        m.d.sync += [
            first.eq(firsts + Mux(stages[9]["opens"], 0, first.as_signed())),
            second.eq(parts + Mux(stages[9]["opens"], 0, second >> falls[2])),
        ]

        # Results.
        end = stages[LAST_STAGE]
        m.d.comb += self.write_address.eq(end["target"])
        with m.If(end["result"]):
            m.d.comb += self.write.eq((1 << cols) - 1)
        with m.Elif(end["byte"]):
            m.d.comb += self.write.eq(1 << end["lane"])
        return m


def byte(word: Value, lane: int) -> Value:
    """Byte ``lane`` of a word."""
    return word[8 * lane : 8 * lane + 8]
