"""Control of the array inside an NPU tile: what is read, in which order, and where the sums go.

Layouts in local memory (`arch.layout`), for C[m,n] = A[m,k] B[k,n] on an array of R rows and C columns that loads p
rows a beat:

- weight stationary: A row by row, each row filled up to whole units of the tile (`arch.layout.row_unit`) or d bytes
  from the one before; B in the
  order of its folds (panels of C columns outermost, then blocks of R rows), each fold as lines of p x C, filled with
  zeros; sums as panels of m lines of C.
- input stationary: the same with A and B, m and n exchanged: B transposed row by row, A transposed in folds, sums
  transposed.
  Of a narrow instruction the last panel, and rows of less than a unit, lie in narrow lines (`arch.layout.line_values`).
- output stationary: A as blocks of R rows, each k lines of R (a column of the block), or its transpose row by row, d
  bytes from one to the next; B as panels of C columns, each k lines of C; sums as panels of m lines of C. Of a narrow
  instruction the last block and the last panel lie in narrow lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from siliconloom.arch import timing
from siliconloom.arch.layout import fold_beats, is_power
from siliconloom.arch.vector import ROW_LIMIT
from siliconloom.rtl.array.arithmetic import Narrowing
from siliconloom.rtl.array.tile import OutputTile, StationaryTile
from siliconloom.rtl.array.weights import kind_bits, weight_marks
from siliconloom.rtl.cells.plumbing import RegisterSlice
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.entries import MATMUL_ENTRY
from siliconloom.rtl.npu.geometry import LOCAL_BITS, SIZE_BITS, Geometry, log2
from siliconloom.rtl.npu.interfaces import local_read, sums_write
from siliconloom.rtl.npu.narrow import begins_within, line_mask, line_width, row_pitch, shifted, spread
from siliconloom.rtl.npu.weights import packed_reads

BUFFER = 4
"""Beats that wait between a memory and the array; three keep it supplied in every cycle."""


def blocks(value: Value, size: int, most: int) -> Value:
    """Blocks of ``size`` that hold ``value``, which is at most ``most`` where the size is no power of two."""
    if is_power(size):
        return (value + (size - 1)) >> log2(size)
    return sum((value > begin for begin in range(0, most, size)), start=Const(0))


def needs(port: Any, count: Value | int) -> list[Any]:
    """Bytes that an access needs, told where the port asks for it."""
    return [port.bytes.eq(count)] if "bytes" in port.signature.members else []


class ReadStream:
    """Turns reads of a memory with one cycle of latency into a stream; a read begins only when its beat has a place."""

    def __init__(self, parent: Circuit, m: Module, name: str, width: int) -> None:
        self.fire = Signal(name=f"{name}_fire")
        self.payload = Signal(width, name=f"{name}_payload")
        self.room = Signal(name=f"{name}_room")
        pushed = Signal(name=f"{name}_pushed")
        queue = parent.place(m, parent.library.make(Queue, width, BUFFER), f"{name}_buffer")
        m.d.sync += pushed.eq(self.fire)
        m.d.comb += [
            queue.i.valid.eq(pushed),
            queue.i.payload.eq(self.payload),
            self.room.eq((queue.level + pushed) < BUFFER),
        ]
        self.beats = queue.o


class MatmulOperands(NamedTuple):
    """An instruction, and the addresses of what is loaded, which stays in a stationary array, and of what moves.

    ``outer`` is the size that has a panel per C of it, ``beats`` the one that has a beat each, and a line of sums.
    ``slot`` is the one that what moves is in.
    """

    entry: Any
    stays: Value
    moves: Value
    outer: Value
    beats: Value
    slot: Value


@dataclass(frozen=True)
class Pairs:
    """Reads of both operands in step.

    Parameters
    ----------
    active, left
        An instruction is read; beats left of a fold.
    narrow
        The last block and the last panel may be.
    a_base, a_here, b_base, b_here
        Addresses of a block of rows and of the panels of columns: where they begin, and of the next line.
    pitched, a_step
        Whether blocks of rows lie beside one another, and from line to line of one then.
    k, columns, columns_left, rows_left
        Sizes: beats of a fold, columns, columns left for this block, rows left.
    reads, fold_ends, ends
        A beat of both is read; it is the last of a fold, of the instruction.
    """

    active: Signal
    left: Signal
    narrow: Signal
    a_base: Signal
    a_here: Signal
    b_base: Signal
    b_here: Signal
    pitched: Signal
    a_step: Signal
    k: Signal
    columns: Signal
    columns_left: Signal
    rows_left: Signal
    reads: Signal
    fold_ends: Signal
    ends: Signal


class MatmulControl(Circuit):
    """Runs matmul instructions back to back on the array, the next one's operands loading behind the present one.

    Members
    -------
    instruction : In(stream.Signature(MATMUL_ENTRY))
        Instructions.
    read, done : Out(1)
        Pulses: the last operands enter the array; the last sums are being written.
    beats : Out(1)
        A beat of the moving operand is being read (as many cycles as the array is busy).
    loaded, moving : Out(local_read)
        Scratchpad reads of what stays in the array, or of B (output stationary), and of what moves.
    sums : Out(sums_write)
        To the accumulator.
    illegal : Out(1)
        Pulse at issue: sums of too many rows are to be rescaled, or weights have a format that the array does not.
    misaligned : Out(1)
        Pulse at issue: an operand whose lines are a power of two does not begin with one.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        ports = {
            "instruction": In(stream.Signature(MATMUL_ENTRY)),
            "read": Out(1),
            "done": Out(1),
            "loaded": Out(local_read(geometry.stationary)),
            "moving": Out(local_read(geometry.moving)),
            "beats": Out(1),
            "sums": Out(sums_write(geometry)),
            "illegal": Out(1),
            "misaligned": Out(1),
        }
        super().__init__(library, library.name("matmul"), ports, reset=True)
        self.taken = Signal()
        self.packed = packed_reads(geometry)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        geometry, operands = self.geometry, self._operands()
        odd = [operands.entry.c[: log2(geometry.sums_pitch)].any(), *self._inside(m, operands)]
        m.d.comb += [
            self.taken.eq(self.instruction.valid & self.instruction.ready),
            self.beats.eq(self.moving.enable),
            self.misaligned.eq(self.taken & Cat(*odd).any()),
            self.illegal.eq(
                self.taken & ((operands.entry.rescale & (operands.beats > ROW_LIMIT)) | self._refused(operands.entry))
            ),
        ]
        timing.confirm(
            "OPERAND_LATENCY",
            address=1,
            scratchpad=SramWrapper.LATENCY,
            buffer=Queue.LATENCY,
            register_slice=RegisterSlice.LATENCY,
        )
        timing.confirm("LOADER_GAP", count_of_waiting_tiles=1)
        kind = OutputTile if self.geometry.array.dataflow == "output_stationary" else StationaryTile
        tile = self.library.make(kind, self.geometry.array, self.library.name("array"))
        if self.geometry.array.dataflow == "output_stationary":
            self._output_stationary(m, tile)
        else:
            self._stationary(m, tile)
        return m

    def _inside(self, m: Module, operands: MatmulOperands) -> list[Value]:
        """Operands, and the pitch, that lie within a line: of those whose whole lines are powers of two."""
        geometry, entry = self.geometry, operands.entry
        array, element = geometry.array, geometry.element
        across = operands.beats if array.dataflow == "output_stationary" else entry.k
        loads = geometry.stationary // (element * array.cols)
        found: list[Value] = []
        if is_power(geometry.stationary):
            mask = line_mask(m, "stays", operands.outer, array.cols, entry.narrow)
            found.append(begins_within(operands.stays, mask, element * loads) & (entry.weights == 0))
            if self.packed is not None:
                found += self.packed.odd(entry, operands.stays)
        if is_power(geometry.moving):
            mask = line_mask(m, "moves", across, array.rows, entry.narrow)
            found += [begins_within(address, mask, element) for address in (operands.moves, entry.d)]
        return found

    def _read_line(self, m: Module, port: Any, size: int) -> Value:
        """What a port has read, from the beginning of its line on: a narrow one lies within a whole one."""
        if not is_power(size) or size == 1:  # what begins anywhere is read from there on
            return cast(Value, port.data)
        begins = Signal(log2(size))
        m.d.sync += begins.eq(port.address[: log2(size)])
        return shifted(port.data, begins)

    def _panel(self, m: Module, name: str, left: Value, narrow: Value) -> tuple[Value, Signal]:
        """Of what is loaded with so many columns left: bytes from line to line, and the line, whole and one later."""
        array, element = self.geometry.array, self.geometry.element
        rows = self.geometry.stationary // (element * array.cols)
        mask = line_mask(m, name, left, array.cols, narrow)
        step = line_width(mask, array.cols) * (rows * element)
        read = Signal.like(mask, name=f"{name}_mask_read")
        m.d.sync += read.eq(mask)
        word = Signal(8 * self.geometry.stationary, name=f"{name}_word")
        m.d.comb += word.eq(self._read_line(m, self.loaded, self.geometry.stationary))
        return step, spread(m, f"{name}_line", word, read, rows, array.cols, 8 * element)

    def _operands(self) -> MatmulOperands:
        """The instruction in front, and which of its operands stays and which moves."""
        entry = self.instruction.payload
        if self.geometry.array.dataflow == "input_stationary":
            return MatmulOperands(entry, stays=entry.a, moves=entry.b, outer=entry.m, beats=entry.n, slot=entry.b_slot)
        return MatmulOperands(entry, stays=entry.b, moves=entry.a, outer=entry.n, beats=entry.m, slot=entry.a_slot)

    # Weight and input stationary -----------------------------------------------------------------------------------

    def _stationary(self, m: Module, tile: Circuit) -> None:
        operands = self._operands()
        load = ReadStream(self, m, "stationary", self._load_bits)
        move = ReadStream(self, m, "moving", self.geometry.operand.bits * self.geometry.array.rows + 1)
        swaps = self._load(m, operands, load)
        fold_ends, ends = self._move(m, operands, move)
        placed = self.place(m, tile, "array")
        wiring.connect(m, load.beats, placed.stationary)
        wiring.connect(m, move.beats, placed.moving)
        m.d.comb += [placed.output.ready.eq(1), swaps.eq(placed.fold_begins)]
        self._release(m, self.moving.enable & fold_ends, ends, placed.fold_ends)
        self._write_folds(m, operands, placed.output)

    def _refused(self, entry: Any) -> Value:
        """Whether an instruction's weights are packed in a way that the array has no circuit for."""
        return entry.weights != 0 if self.packed is None else self.packed.refuses(entry)

    @property
    def _load_bits(self) -> int:
        """Of a beat that is loaded: its data, whether it ends a fold, and what else it says of itself."""
        return 8 * self.geometry.operand_line + 1 + sum(weight_marks(self.geometry.array).values())

    def _lines(self, k: Value) -> Value:
        """Lines of the fold that begins with ``k`` rows left."""
        array = self.geometry.array
        return Mux(k > array.rows, fold_beats(array, array.rows), blocks(k, array.load_rows, array.rows))

    def _load(self, m: Module, operands: MatmulOperands, load: ReadStream) -> Signal:
        """The loader: every line of the stationary operand, in order.

        Returns the signal that must pulse when the array begins with a fold that was waiting.
        """
        array, entry = self.geometry.array, operands.entry
        active, address, narrow = Signal(), Signal(LOCAL_BITS), Signal(name="load_narrow")
        outer_left, k_all, k_left, lines_left = (
            Signal(SIZE_BITS, name=f"load_{n}") for n in ("outer", "k", "left", "lines")
        )
        waiting = Signal(range(BUFFER + 8))
        fold_read = Signal()
        tags, last_line, counts = Signal(), Signal(), Signal()
        step, spread_out = self._panel(m, "load", outer_left, narrow)
        line = self._rounded(m, "stationary", spread_out)
        marks: list[Value] = []
        width, following = step, address + step
        if self.packed is not None:
            self.packed.begin(m, self.taken, entry)
            reading = self.packed.reading()
            panel_ends = last_line & (k_left <= array.rows)
            ends = self.packed.advance(m, self.loaded.enable, reading, panel_ends)
            plain = self.packed.kind == 0
            following = Mux(plain, following, self.packed.next(m, address, reading, ends))
            width = Mux(plain, step, reading.bytes)
            part, is_packed = self.packed.part(m, address, self.loaded.data), Signal(name="load_packed")
            m.d.sync += is_packed.eq(self.packed.kind != 0)
            line = Mux(is_packed, part[: len(line)], line)
            kind = Signal(kind_bits(array), name="load_mark")
            m.d.sync += kind.eq(reading.kind)
            m.d.comb += counts.eq(~reading.head)
        else:
            m.d.comb += counts.eq(1)
        if array.weights is not None:
            marks = [kind, *([self._used(m, last_line, k_left)] if array.load_rows > 1 else [])]
        else:
            line = self._of_fold(m, line, last_line, k_left)
        m.d.comb += [
            self.loaded.enable.eq(active & load.room),
            self.loaded.address.eq(address),
            *needs(self.loaded, width),
            load.fire.eq(self.loaded.enable),
            last_line.eq((lines_left == 1) & counts),
            fold_read.eq(self.loaded.enable & last_line),
            load.payload.eq(Cat(line[: 8 * self.geometry.operand_line], tags, *marks)),
        ]
        m.d.sync += tags.eq(last_line)
        with m.If(self.loaded.enable):
            m.d.sync += [address.eq(following), lines_left.eq(lines_left - counts)]
            with m.If(last_line):
                rest = Mux(k_left > array.rows, k_left - array.rows, k_all)
                m.d.sync += [k_left.eq(rest), lines_left.eq(self._lines(rest))]
                with m.If(k_left <= array.rows):
                    m.d.sync += outer_left.eq(outer_left - array.cols)
                    with m.If(outer_left <= array.cols):
                        m.d.sync += active.eq(0)
        swaps = Signal()
        m.d.sync += waiting.eq(waiting + fold_read - swaps)
        m.d.comb += self.instruction.ready.eq(~active & (waiting == 0))
        with m.If(self.taken):
            m.d.sync += [
                active.eq(1),
                narrow.eq(entry.narrow),
                address.eq(operands.stays),
                outer_left.eq(operands.outer),
                k_all.eq(entry.k),
                k_left.eq(entry.k),
                lines_left.eq(self._lines(entry.k)),
            ]
        return swaps

    def _rounded(self, m: Module, name: str, line: Value) -> Value:
        """Operands of a line of elements, which are rounded where they are wider."""
        if not self.geometry.rounds:
            return line
        kind, width = self.library.make(Narrowing, self.geometry.operand), 8 * self.geometry.element
        elements = (line[at : at + width] for at in range(0, len(line), width))
        return Cat(*(self.place(m, kind, f"{name}_{number}", i=each).o for number, each in enumerate(elements)))

    def _of_fold(self, m: Module, line: Value, last_line: Value, k_left: Value) -> Value:
        """The line that is read, without the rows that fill up the last one of a fold.

        What fills them up may be anything. Of integers it does not count, as nothing moves past it; in floating point
        nothing times infinity is no number, so it is made zero.
        """
        array = self.geometry.array
        if self.geometry.dtype.is_integer or array.load_rows == 1:
            return line
        used = self._used(m, last_line, k_left)
        width = self.geometry.operand.bits * array.cols
        rows = (line[width * row : width * (row + 1)] for row in range(array.load_rows))
        return Cat(*(Mux(row < used, each, 0) for row, each in enumerate(rows)))

    def _used(self, m: Module, last_line: Value, k_left: Value) -> Signal:
        """Rows of the line that is read: those that whole lines leave of a fold that has not all of the array's."""
        array = self.geometry.array
        left = Signal(range(array.rows + 1), name="load_rows_left")
        whole = range(array.load_rows, array.rows, array.load_rows)
        begun = sum((Mux(k_left > rows, array.load_rows, 0) for rows in whole), start=Const(0))
        used = Signal(range(array.load_rows + 1), name="load_used")
        m.d.comb += left.eq(Mux(k_left > array.rows, array.rows, k_left))
        m.d.sync += used.eq(Mux(last_line, left - begun, array.load_rows))
        return used

    def _move(self, m: Module, operands: MatmulOperands, move: ReadStream) -> tuple[Signal, Signal]:
        """The mover: per fold, one line of every row; returns what ends a fold, and what ends an instruction."""
        array = self.geometry.array
        sizes = dict.fromkeys(("outer", "beats", "k"), SIZE_BITS)
        layout = data.StructLayout({"address": LOCAL_BITS, "pitch": LOCAL_BITS, **sizes})
        entry, unit = operands.entry, self.geometry.row_unit
        element = self.geometry.element
        row = line_mask(m, "row", entry.k, unit, entry.narrow)
        adjoining = row_pitch(entry.k, row, unit) << log2(element)
        fields = {
            "address": operands.moves,
            "pitch": Mux(entry.d == 0, adjoining, entry.d),
            "outer": operands.outer,
            "beats": operands.beats,
            "k": entry.k,
        }
        job = self._job(m, "move", layout, 2, fields)
        tags = Signal(name="move_tags")
        inside = Signal(name="move_inside")
        outer, beat, k_now = (Signal(SIZE_BITS, name=f"move_{n}") for n in ("outer", "beat", "k"))
        start, here = Signal(LOCAL_BITS, name="move_start"), Signal(LOCAL_BITS, name="move_here")
        now = {
            "outer": Mux(inside, outer, job.view.outer),
            "beat": Mux(inside, beat, job.view.beats),
            "k": Mux(inside, k_now, job.view.k),
            "start": Mux(inside, start, job.view.address),
            "here": Mux(inside, here, job.view.address),
        }
        fold_ends, panel_ends, ends = Signal(), Signal(), Signal()
        using, used = Signal(range(array.rows + 1), name="move_using"), Signal(range(array.rows + 1), name="move_used")
        m.d.comb += [
            self.moving.enable.eq(job.valid & move.room),
            self.moving.address.eq(now["here"]),
            using.eq(Mux(now["k"] > array.rows, array.rows, now["k"])),
            *needs(self.moving, using << log2(element)),
            move.fire.eq(self.moving.enable),
            fold_ends.eq(now["beat"] == 1),
            panel_ends.eq(fold_ends & (now["k"] <= array.rows)),
            ends.eq(panel_ends & (now["outer"] <= array.cols)),
            job.take.eq(self.moving.enable & ends),
        ]
        m.d.sync += [used.eq(using), tags.eq(fold_ends)]
        width = self.geometry.operand.bits
        line = Signal(8 * self.geometry.moving, name="move_line")
        m.d.comb += line.eq(self._read_line(m, self.moving, self.geometry.moving))
        operands_read = self._rounded(m, "moving", line)
        lanes = (operands_read[width * row : width * (row + 1)] for row in range(array.rows))
        masked = Cat(*(Mux(row < used, lane, 0) for row, lane in enumerate(lanes)))
        m.d.comb += move.payload.eq(Cat(masked, tags))
        with m.If(self.moving.enable):
            m.d.sync += [
                inside.eq(~ends),
                outer.eq(now["outer"]),
                k_now.eq(now["k"]),
                start.eq(now["start"]),
                beat.eq(now["beat"] - 1),
                here.eq(now["here"] + job.view.pitch),
            ]
            with m.If(fold_ends):
                m.d.sync += [
                    beat.eq(job.view.beats),
                    k_now.eq(now["k"] - array.rows),
                    start.eq(now["start"] + self.geometry.moving),
                    here.eq(now["start"] + self.geometry.moving),
                ]
            with m.If(panel_ends):
                m.d.sync += [
                    k_now.eq(job.view.k),
                    outer.eq(now["outer"] - array.cols),
                    start.eq(job.view.address),
                    here.eq(job.view.address),
                ]
        return fold_ends, ends

    def _write_folds(self, m: Module, operands: MatmulOperands, output: Any) -> None:
        """The writer: panel by panel, every block of k adds to the same lines."""
        array, entry = self.geometry.array, operands.entry
        layout = data.StructLayout(
            {"line": LOCAL_BITS, "outer": SIZE_BITS, "beats": SIZE_BITS, "k": SIZE_BITS}
            | dict.fromkeys(("add", "rescale", "slot"), 1)
        )
        job = self._job(
            m,
            "write",
            layout,
            array.output_latency // 6 + 4,
            {
                "line": entry.c >> log2(self.geometry.sums_pitch),
                "outer": operands.outer,
                "beats": operands.beats,
                "k": entry.k,
                "add": entry.add,
                "rescale": entry.rescale,
                "slot": operands.slot,
            },
        )
        inside = Signal(name="write_inside")
        outer, beat, k = (Signal(SIZE_BITS, name=f"write_{n}") for n in ("outer", "beat", "k"))
        base = Signal(LOCAL_BITS, name="write_base")
        now = {
            "outer": Mux(inside, outer, job.view.outer),
            "beat": Mux(inside, beat, 0),
            "k": Mux(inside, k, job.view.k),
            "base": Mux(inside, base, job.view.line),
        }
        fold_ends, panel_ends, ends = Signal(), Signal(), Signal()
        m.d.comb += [
            self.sums.enable.eq(output.valid),
            self.sums.data.eq(output.payload.data),
            self.sums.line.eq(now["base"] + now["beat"]),
            self.sums.add.eq(job.view.add | (now["k"] != job.view.k)),
            # once: what the first fold has added is in steps of the new peaks
            self.sums.rescale.eq(job.view.rescale & (now["k"] == job.view.k)),
            self.sums.slot.eq(job.view.slot),
            self.sums.row.eq(now["beat"][: len(self.sums.row)]),
            fold_ends.eq(now["beat"] + 1 == job.view.beats),
            panel_ends.eq(fold_ends & (now["k"] <= array.rows)),
            ends.eq(panel_ends & (now["outer"] <= array.cols)),
            job.take.eq(self.sums.enable & ends),
        ]
        self._finish(m, job.take)
        with m.If(self.sums.enable):
            m.d.sync += [
                inside.eq(~ends),
                outer.eq(now["outer"]),
                k.eq(now["k"]),
                base.eq(now["base"]),
                beat.eq(now["beat"] + 1),
            ]
            with m.If(fold_ends):
                m.d.sync += [beat.eq(0), k.eq(now["k"] - array.rows)]
            with m.If(panel_ends):
                m.d.sync += [
                    k.eq(job.view.k),
                    outer.eq(now["outer"] - array.cols),
                    base.eq(now["base"] + job.view.beats),
                ]

    def _finish(self, m: Module, last: Signal) -> None:
        """The end of an instruction is told when the accumulator holds the ``last`` of its sums."""
        for stage in range(timing.ACCUMULATOR_WRITE):
            held = Signal(name=f"sums_held_{stage}")
            m.d.sync += held.eq(last)
            last = held
        m.d.comb += self.done.eq(last)

    # Output stationary ---------------------------------------------------------------------------------------------

    def _output_stationary(self, m: Module, tile: Circuit) -> None:
        entry = self.instruction.payload
        a = ReadStream(self, m, "a", 8 * self.geometry.moving + 1)
        b = ReadStream(self, m, "b", 8 * self.geometry.stationary)
        pairs = self._read_pairs(m, a, b)
        entering = Signal(range(BUFFER + 8))
        placed = self.place(m, tile, "array")
        wiring.connect(m, a.beats, placed.a)
        wiring.connect(m, b.beats, placed.b)
        m.d.comb += [placed.output.ready.eq(1), self.instruction.ready.eq(~pairs.active & (entering == 0))]
        m.d.sync += entering.eq(entering + (pairs.reads & pairs.fold_ends) - placed.fold_ends)
        self._begin_pairs(m, entry, pairs)
        self._release(m, pairs.reads & pairs.fold_ends, pairs.ends, placed.fold_ends)
        self._write_panels(m, entry, placed.output)

    def _read_pairs(self, m: Module, a: ReadStream, b: ReadStream) -> Pairs:
        """Reads of both operands in step: a column of a block of rows, and a row of a panel of columns."""
        array = self.geometry.array
        tag = Signal()
        active, left, narrow = Signal(), Signal(SIZE_BITS), Signal(name="pairs_narrow")
        a_base, a_here, b_base, b_here = (Signal(LOCAL_BITS, name=n) for n in ("a_base", "a_here", "b_base", "b_here"))
        k, columns, columns_left, rows_left = (
            Signal(SIZE_BITS, name=n) for n in ("k", "columns", "columns_left", "rows_left")
        )
        pitched, a_step, a_next = Signal(), Signal(LOCAL_BITS), Signal(LOCAL_BITS)
        reads, fold_ends, ends = Signal(), Signal(), Signal()
        loaded, line = self._panel(m, "b_panel", columns_left, narrow)
        block = line_width(line_mask(m, "a_block", rows_left, array.rows, narrow), array.rows) * self.geometry.element
        m.d.comb += [
            # the next block of rows lies beside this one, or behind its last line
            a_next.eq(Mux(pitched, a_base, a_here) + self.geometry.moving),
            reads.eq(active & a.room & b.room),
            self.moving.enable.eq(reads),
            self.loaded.enable.eq(reads),
            a.fire.eq(reads),
            b.fire.eq(reads),
            self.moving.address.eq(a_here),
            self.loaded.address.eq(b_here),
            *needs(self.moving, block),
            *needs(self.loaded, loaded),
            fold_ends.eq(left == 1),
            ends.eq(fold_ends & (columns_left <= array.cols) & (rows_left <= array.rows)),
            a.payload.eq(Cat(self._read_line(m, self.moving, self.geometry.moving), tag)),
            b.payload.eq(line),
        ]
        m.d.sync += tag.eq(fold_ends)
        with m.If(reads):
            m.d.sync += [a_here.eq(a_here + Mux(pitched, a_step, block)), b_here.eq(b_here + loaded), left.eq(left - 1)]
            with m.If(fold_ends):
                m.d.sync += [left.eq(k), columns_left.eq(columns_left - array.cols), a_here.eq(a_base)]
                with m.If(columns_left <= array.cols):
                    m.d.sync += [
                        columns_left.eq(columns),
                        rows_left.eq(rows_left - array.rows),
                        b_here.eq(b_base),
                        a_here.eq(a_next),
                        a_base.eq(a_next),
                    ]
                with m.If(ends):
                    m.d.sync += active.eq(0)
        addresses = (a_base, a_here, b_base, b_here, pitched, a_step)
        return Pairs(active, left, narrow, *addresses, k, columns, columns_left, rows_left, reads, fold_ends, ends)

    def _begin_pairs(self, m: Module, entry: Any, pairs: Pairs) -> None:
        """The issue of an instruction."""
        with m.If(self.taken):
            m.d.sync += [
                pairs.active.eq(1),
                pairs.narrow.eq(entry.narrow),
                pairs.left.eq(entry.k),
                pairs.k.eq(entry.k),
                pairs.a_base.eq(entry.a),
                pairs.a_here.eq(entry.a),
                pairs.pitched.eq(entry.d != 0),
                pairs.a_step.eq(entry.d),
                pairs.b_base.eq(entry.b),
                pairs.b_here.eq(entry.b),
                pairs.columns.eq(entry.n),
                pairs.columns_left.eq(entry.n),
                pairs.rows_left.eq(entry.m),
            ]

    def _write_panels(self, m: Module, entry: Any, output: Any) -> None:
        """The writer: by blocks of rows, panel by panel within each, as many rows as there are."""
        array = self.geometry.array
        layout = data.StructLayout(
            {"line": LOCAL_BITS, "n": SIZE_BITS, "m": SIZE_BITS} | dict.fromkeys(("add", "rescale", "a_slot"), 1)
        )
        job = self._job(
            m,
            "write",
            layout,
            array.output_latency // 6 + 4,
            {
                "line": entry.c >> log2(self.geometry.sums_pitch),
                "n": entry.n,
                "m": entry.m,
                "add": entry.add,
                "rescale": entry.rescale,
                "a_slot": entry.a_slot,
            },
        )
        inside, row = Signal(name="write_inside"), Signal(range(array.rows))
        left, block, base = Signal(SIZE_BITS, name="write_left"), Signal(SIZE_BITS), Signal(LOCAL_BITS)
        now = {
            "left": Mux(inside, left, job.view.n),
            "block": Mux(inside, block, 0),
            "base": Mux(inside, base, job.view.line),
        }
        # Rows beyond m leave the array too; they are dropped, also after the instruction has ended.
        needed, valid, last_needed, ends = Signal(), Signal(), Signal(), Signal()
        drop = Signal(name="write_drop")
        m.d.comb += [
            valid.eq(output.valid),
            needed.eq(valid & ~drop),
            self.sums.enable.eq(needed),
            self.sums.data.eq(output.payload.data),
            self.sums.line.eq(now["base"] + now["block"] + row),
            self.sums.add.eq(job.view.add),
            self.sums.rescale.eq(job.view.rescale),
            self.sums.slot.eq(job.view.a_slot),
            self.sums.row.eq((now["block"] + row)[: len(self.sums.row)]),
            last_needed.eq(needed & ((now["block"] + row + 1 == job.view.m) | (row == array.rows - 1))),
            ends.eq(last_needed & (now["left"] <= array.cols) & (now["block"] + row + 1 == job.view.m)),
            job.take.eq(ends),
        ]
        self._finish(m, ends)
        with m.If(valid):
            m.d.sync += row.eq(Mux(row == array.rows - 1, 0, row + 1))
            with m.If(row == array.rows - 1):
                m.d.sync += drop.eq(0)
            with m.Elif(last_needed):
                m.d.sync += drop.eq(1)
        with m.If(last_needed):
            m.d.sync += [
                inside.eq(~ends),
                block.eq(now["block"]),
                base.eq(now["base"] + job.view.m),
                left.eq(now["left"] - array.cols),
            ]
            with m.If(now["left"] <= array.cols):
                m.d.sync += [left.eq(job.view.n), block.eq(now["block"] + array.rows), base.eq(job.view.line)]

    # Shared --------------------------------------------------------------------------------------------------------

    def _release(self, m: Module, fold_read: Signal, ends: Signal, entered: Signal) -> None:
        """Pulse ``read`` when the last fold of an instruction has entered the array."""
        queue = self.place(m, self.library.make(Queue, 1, BUFFER + 4), "folds")
        m.d.comb += [
            queue.i.valid.eq(fold_read),
            queue.i.payload.eq(ends),
            queue.o.ready.eq(entered),
            self.read.eq(entered & queue.o.payload),
        ]

    def _job(self, m: Module, name: str, layout: data.StructLayout, depth: int, fields: dict[str, Signal]) -> _Job:
        """A queue of what a part has to do for each instruction, filled at issue."""
        fresh, take = Signal(layout, name=f"{name}_fresh"), Signal(name=f"{name}_take")
        for field, value in fields.items():
            m.d.comb += fresh[field].eq(value)
        queue = self.place(m, self.library.make(Queue, layout.size, depth), f"{name}_jobs")
        m.d.comb += [queue.i.valid.eq(self.taken), queue.i.payload.eq(fresh), queue.o.ready.eq(take)]
        return _Job(data.View(layout, queue.o.payload), queue.o.valid, take)


class _Job:
    def __init__(self, view: data.View, valid: Signal, take: Signal) -> None:
        self.view, self.valid, self.take = view, valid, take
