"""The loader of an array that keeps weights or inputs: its folds, line by line."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value

from siliconloom.arch.layout import fold_beats, is_power
from siliconloom.arch.word import CODES
from siliconloom.rtl.array.arithmetic import Narrowing
from siliconloom.rtl.array.shared import shared_marks
from siliconloom.rtl.array.weights import BeatKind, kind_bits, weight_marks
from siliconloom.rtl.npu.geometry import LOCAL_BITS, SIZE_BITS, log2
from siliconloom.rtl.npu.matmul.reads import BUFFER, ReadStream, needs, read_panel
from siliconloom.rtl.npu.matmul.unit import MatmulOperands, MatmulUnitCircuit
from siliconloom.rtl.npu.narrow import line_mask


def load_folds(m: Module, unit: MatmulUnitCircuit, operands: MatmulOperands, load: ReadStream) -> Signal:
    """The loader: every line of the stationary operand, in order.

    Returns the signal that must pulse when the array begins with a fold that was waiting.
    """
    array, entry = unit.geometry.array, operands.entry
    active, address, narrow = Signal(), Signal(LOCAL_BITS), Signal(name="load_narrow")
    outer_left, k_all, k_left, lines_left = (
        Signal(SIZE_BITS, name=f"load_{n}") for n in ("outer", "k", "left", "lines")
    )
    waiting = Signal(range(BUFFER + 8 + array.unpack_stages))
    fold_read = Signal()
    tags, last_line, counts = Signal(), Signal(), Signal()
    step, spread_out = read_panel(m, unit, "load", outer_left, narrow)
    line = rounded(m, unit, "stationary", spread_out)
    marks: list[Value] = []
    width, following = step, address + step
    if unit.packed is not None:
        unit.packed.begin(m, unit.instruction.ready, entry)
        lies_in = line_mask(m, "load_own", outer_left, array.cols, narrow)
        reading = unit.packed.reading(lies_in)
        panel_ends = last_line & (k_left <= array.rows)
        ends = unit.packed.advance(m, unit.loaded.enable, reading, panel_ends)
        plain = unit.packed.kind == 0
        following = Mux(plain, following, unit.packed.next(m, address, reading, ends))
        width = Mux(plain, step, reading.bytes)
        part, is_packed = unit.packed.part(m, address, unit.loaded.data, lies_in), Signal(name="load_packed")
        m.d.sync += is_packed.eq(unit.packed.kind != 0)
        line = Mux(is_packed, part[: len(line)], line)
        kind = Signal(kind_bits(array), name="load_mark")
        m.d.sync += kind.eq(reading.kind)
        m.d.comb += counts.eq(~reading.head)
    else:
        m.d.comb += counts.eq(1)
    if unit.geometry.shares:
        what = is_packed if array.weights is None else own_or(m, unit, kind)
        used = [used_rows(m, unit, last_line, k_left)] if array.load_rows > 1 else []
        marks = [what, *used, used_columns(m, unit, outer_left)]
    elif array.has_edge:
        marks = [kind, *([used_rows(m, unit, last_line, k_left)] if array.load_rows > 1 else [])]
    else:
        line = of_fold(m, unit, line, last_line, k_left)
    m.d.comb += [
        unit.loaded.enable.eq(active & load.room),
        unit.loaded.address.eq(address),
        *needs(unit.loaded, width),
        load.fire.eq(unit.loaded.enable),
        last_line.eq((lines_left == 1) & counts),
        fold_read.eq(unit.loaded.enable & last_line),
        load.payload.eq(Cat(line[: 8 * unit.geometry.operand_line], tags, *marks)),
    ]
    m.d.sync += tags.eq(last_line)
    with m.If(unit.loaded.enable):
        m.d.sync += [address.eq(following), lines_left.eq(lines_left - counts)]
        with m.If(last_line):
            rest = Mux(k_left > array.rows, k_left - array.rows, k_all)
            m.d.sync += [k_left.eq(rest), lines_left.eq(fold_lines(unit, rest))]
            with m.If(k_left <= array.rows):
                m.d.sync += outer_left.eq(outer_left - array.cols)
                with m.If(outer_left <= array.cols):
                    m.d.sync += active.eq(0)
    swaps = Signal()
    m.d.sync += waiting.eq(waiting + fold_read - swaps)
    m.d.comb += unit.instruction.ready.eq(~active & (waiting == 0))
    with m.If(unit.taken):
        m.d.sync += active.eq(1)
    with m.If(unit.instruction.ready):  # whatever is offered: whether it is taken is known late
        m.d.sync += [
            narrow.eq(entry.narrow),
            address.eq(operands.stays),
            outer_left.eq(operands.outer),
            k_all.eq(entry.k),
            k_left.eq(entry.k),
            lines_left.eq(fold_lines(unit, entry.k)),
        ]
    return swaps


def load_bits(unit: MatmulUnitCircuit) -> int:
    """Of a beat that is loaded: its data, whether it ends a fold, and what else it says of itself."""
    marks = shared_marks(unit.geometry.array) if unit.geometry.shares else weight_marks(unit.geometry.array)
    return 8 * unit.geometry.operand_line + 1 + sum(marks.values())


def blocks(value: Value, size: int, most: int) -> Value:
    """Blocks of ``size`` that hold ``value``, which is at most ``most`` where the size is no power of two."""
    if is_power(size):
        return (value + (size - 1)) >> log2(size)
    return sum((value > begin for begin in range(0, most, size)), start=Const(0))


def fold_lines(unit: MatmulUnitCircuit, k: Value) -> Value:
    """Lines of the fold that begins with ``k`` rows left."""
    array = unit.geometry.array
    return Mux(k > array.rows, fold_beats(array, array.rows), blocks(k, array.load_rows, array.rows))


def of_fold(m: Module, unit: MatmulUnitCircuit, line: Value, last_line: Value, k_left: Value) -> Value:
    """The line that is read, without the rows that fill up the last one of a fold.

    What fills them up may be anything, or, in a memory that nobody wrote, nothing that a simulator knows. Nothing moves
    past it; but nothing times infinity is no number, and nothing times unknown is unknown, so it is made zero.
    """
    array = unit.geometry.array
    if array.load_rows == 1:
        return line
    used = used_rows(m, unit, last_line, k_left)
    width = unit.geometry.operand.bits * array.cols
    rows = (line[width * row : width * (row + 1)] for row in range(array.load_rows))
    return Cat(*(Mux(row < used, each, 0) for row, each in enumerate(rows)))


def own_or(m: Module, unit: MatmulUnitCircuit, kind: Signal) -> Value:
    """The kind of the beat that is read: of whole numbers as the array takes them that of such codes."""
    assert unit.packed is not None
    own = Signal(name="load_own")
    m.d.sync += own.eq(unit.packed.kind == CODES.index(unit.geometry.operand))
    return Mux(own, Const(BeatKind.INT8, len(kind)), kind)


def used_columns(m: Module, unit: MatmulUnitCircuit, outer_left: Value) -> Signal:
    """Columns that the panel of the line that is read has."""
    cols = unit.geometry.array.cols
    wide = Signal(range(cols + 1), name="load_wide")
    m.d.sync += wide.eq(Mux(outer_left > cols, cols, outer_left))
    return wide


def used_rows(m: Module, unit: MatmulUnitCircuit, last_line: Value, k_left: Value) -> Signal:
    """Rows of the line that is read: those that whole lines leave of a fold that has not all of the array's."""
    array = unit.geometry.array
    left = Signal(range(array.rows + 1), name="load_rows_left")
    whole = range(array.load_rows, array.rows, array.load_rows)
    begun = sum((Mux(k_left > rows, array.load_rows, 0) for rows in whole), start=Const(0))
    used = Signal(range(array.load_rows + 1), name="load_used")
    m.d.comb += left.eq(Mux(k_left > array.rows, array.rows, k_left))
    m.d.sync += used.eq(Mux(last_line, left - begun, array.load_rows))
    return used


def rounded(m: Module, unit: MatmulUnitCircuit, name: str, line: Value) -> Value:
    """Operands of a line of elements, which are rounded where they are wider, but for those that share an exponent."""
    if not unit.geometry.rounds or unit.geometry.shares:
        return line
    kind, width = unit.library.make(Narrowing, unit.geometry.operand), 8 * unit.geometry.element
    elements = (line[at : at + width] for at in range(0, len(line), width))
    return Cat(*(unit.place(m, kind, f"{name}_{number}", i=each).o for number, each in enumerate(elements)))


__all__ = ["load_bits", "load_folds", "rounded"]
