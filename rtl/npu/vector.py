"""The vector unit: one block of C elements a cycle, for everything that is not a matrix product.

Blocks of columns outermost, rows within. An int8 operand lies row by row, each row ceil(n / C) lines of C bytes; sums lie
as panels of m lines of C words, as the array leaves them. Results are int8, zero beyond column n.

- copy: y = a
- relu: y = max(a, 0)
- add: y = clip(a + b) to -128..127
- requantize: y = clip(round_half_even((a + bias) * multiplier / 2^shift)), a a sum of 32 bits; per column an int32
  bias, an int16 multiplier and a shift of 0..63 bits, kept at ``d`` as 8 lines per block of columns: the four bytes of
  the biases, low first, the two of the multipliers, the shifts, and one unused.
"""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from siliconloom.arch.isa import FUNCTIONS
from siliconloom.arch.vector import VectorFunction, vector_cost
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.dma import log2
from siliconloom.rtl.npu.entries import VECTOR_ENTRY
from siliconloom.rtl.npu.geometry import LOCAL_BITS, SIZE_BITS, Geometry

BUILT = (VectorFunction.COPY, VectorFunction.ADD, VectorFunction.RELU, VectorFunction.REQUANTIZE)
"""Functions that have a circuit."""
PARAMETER_LINES = vector_cost(VectorFunction.REQUANTIZE).setup


def code(function: VectorFunction) -> int:
    """Code of a function in the instruction word."""
    return FUNCTIONS.index(function)


class VectorUnit(Circuit):
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
        Pulse at issue: the function has no circuit, or a size is zero.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        cols = geometry.array.cols
        ports = {
            "issue": In(1), "entry": In(VECTOR_ENTRY.size), "free": Out(1), "done": Out(1), "working": Out(1),
            "first": Out(1), "first_address": Out(LOCAL_BITS), "first_data": In(8 * cols),
            "second": Out(1), "second_address": Out(LOCAL_BITS), "second_data": In(8 * cols),
            "sums": Out(1), "sums_line": Out(LOCAL_BITS), "sums_data": In(8 * geometry.results),
            "write": Out(cols), "write_address": Out(LOCAL_BITS), "write_data": Out(8 * cols), "illegal": Out(1),
        }  # fmt: skip
        super().__init__(library, library.name("vector"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        geometry, cols = self.geometry, self.geometry.array.cols
        shift = log2(cols)
        new = data.View(VECTOR_ENTRY, self.entry)
        entry = Signal(VECTOR_ENTRY, name="instruction")
        requantize = Signal()
        active, ending, end_timer = Signal(), Signal(), Signal(range(geometry.vector_latency + 1))
        setup, row, left = Signal(range(PARAMETER_LINES + 1)), Signal(SIZE_BITS), Signal(SIZE_BITS)
        pitch = Signal(LOCAL_BITS)
        source, operand, target, line, parameters = (
            Signal(LOCAL_BITS, name=n) for n in ("source", "operand", "target", "line", "parameters")
        )
        a_block, b_block, c_block = (Signal(LOCAL_BITS, name=n) for n in ("a_block", "b_block", "c_block"))
        m.d.comb += [
            requantize.eq(entry.function == code(VectorFunction.REQUANTIZE)),
            self.free.eq(~active & ~ending),
            self.working.eq(active | ending),
            self.illegal.eq(
                self.issue & ((new.m == 0) | (new.n == 0) | ~Cat(*(new.function == code(f) for f in BUILT)).any())
            ),
        ]
        sets_up, rows_now = Signal(), Signal()
        m.d.comb += [
            sets_up.eq(active & (setup != 0)),
            rows_now.eq(active & (setup == 0)),
            self.first.eq(rows_now & ~requantize),
            self.first_address.eq(source),
            self.second.eq(sets_up | (rows_now & (entry.function == code(VectorFunction.ADD)))),
            self.second_address.eq(Mux(sets_up, parameters, operand)),
            self.sums.eq(rows_now & requantize),
            self.sums_line.eq(line),
        ]
        row_last, block_last = Signal(), Signal()
        m.d.comb += [row_last.eq(row == 1), block_last.eq(left <= cols)]
        with m.If(sets_up):
            m.d.sync += [setup.eq(setup - 1), parameters.eq(parameters + cols)]
        with m.If(rows_now):
            m.d.sync += [
                row.eq(row - 1), source.eq(source + pitch), operand.eq(operand + pitch), target.eq(target + pitch),
                line.eq(line + 1),
            ]  # fmt: skip
            with m.If(row_last):
                m.d.sync += [
                    row.eq(entry.m), left.eq(left - cols), setup.eq(Mux(requantize, PARAMETER_LINES, 0)),
                    a_block.eq(a_block + cols), b_block.eq(b_block + cols), c_block.eq(c_block + cols),
                    source.eq(a_block + cols), operand.eq(b_block + cols), target.eq(c_block + cols),
                ]  # fmt: skip
                with m.If(block_last):
                    m.d.sync += [active.eq(0), ending.eq(1), end_timer.eq(geometry.vector_latency)]
        with m.If(ending):
            m.d.sync += end_timer.eq(end_timer - 1)
            with m.If(end_timer == 1):
                m.d.comb += self.done.eq(1)
                m.d.sync += ending.eq(0)
        with m.If(self.issue):
            m.d.sync += [
                entry.eq(new), active.eq(1), row.eq(new.m), left.eq(new.n), source.eq(new.a), operand.eq(new.b),
                target.eq(new.c), a_block.eq(new.a), b_block.eq(new.b), c_block.eq(new.c),
                line.eq(new.a >> log2(geometry.results)), parameters.eq(new.d),
                pitch.eq(((new.n + (cols - 1)) >> shift) << shift),
                setup.eq(Mux(new.function == code(VectorFunction.REQUANTIZE), PARAMETER_LINES, 0)),
            ]  # fmt: skip

        # Parameters arrive one cycle after their address, one line a cycle.
        plane, arrives = Signal(range(PARAMETER_LINES + 1)), Signal()
        planes = [Signal(8 * cols, name=f"plane_{i}", reset_less=True) for i in range(PARAMETER_LINES - 1)]
        m.d.sync += [arrives.eq(sets_up), plane.eq(PARAMETER_LINES - setup)]
        for number, held in enumerate(planes):
            with m.If(arrives & (plane == number)):
                m.d.sync += held.eq(self.second_data)

        # The pipeline: operands; sum; product; rounding; result.
        used = Signal(range(cols + 1))
        m.d.comb += used.eq(Mux(left < cols, left, cols))
        valid = Signal(4)
        m.d.sync += valid.eq(Cat(rows_now, valid[:-1]))
        address, count = target, used
        for stage in range(4):
            later, fewer = Signal(LOCAL_BITS, name=f"target_{stage}"), Signal.like(used, name=f"used_{stage}")
            m.d.sync += [later.eq(address), fewer.eq(count)]
            address, count = later, fewer
        results = []
        for lane in range(cols):
            a, b = byte(self.first_data, lane), byte(self.second_data, lane)
            word = self.sums_data[32 * lane : 32 * lane + 32].as_signed()
            bias = Cat(*(byte(planes[i], lane) for i in range(4))).as_signed()
            multiplier = Cat(byte(planes[4], lane), byte(planes[5], lane)).as_signed()
            places = byte(planes[6], lane)[:6]
            simple, total = Signal(9, name=f"simple_{lane}"), Signal(33, name=f"total_{lane}")
            simple_2, product = Signal(9, name=f"simple_{lane}_2"), Signal(49, name=f"product_{lane}")
            rounded, result = Signal(50, name=f"rounded_{lane}"), Signal(8, name=f"result_{lane}")
            plus = Signal(9, name=f"plus_{lane}")
            with m.Switch(entry.function):
                with m.Case(code(VectorFunction.ADD)):
                    m.d.comb += plus.eq(a.as_signed() + b.as_signed())
                with m.Case(code(VectorFunction.RELU)):
                    m.d.comb += plus.eq(Mux(a[7], 0, a))
                with m.Default():
                    m.d.comb += plus.eq(a.as_signed())
            m.d.sync += [
                simple.eq(plus), total.eq(word + bias),
                simple_2.eq(simple), product.eq(total.as_signed() * multiplier),
                rounded.eq(Mux(requantize, half_even(product, places), simple_2.as_signed())),
            ]  # fmt: skip
            m.d.comb += result.eq(clipped(rounded.as_signed()))
            results.append(result)
        finished = Signal(8 * cols, reset_less=True)
        keep = Cat(*(Mux(lane < count, result, 0) for lane, result in enumerate(results)))
        write_address = Signal(LOCAL_BITS)
        written = Signal()
        m.d.sync += [finished.eq(keep), write_address.eq(address), written.eq(valid[3])]
        m.d.comb += [
            self.write.eq(Cat(*[written] * cols)), self.write_address.eq(write_address), self.write_data.eq(finished),
        ]  # fmt: skip
        return m


def byte(word: Value, lane: int) -> Value:
    """Byte ``lane`` of a word."""
    return word[8 * lane : 8 * lane + 8]


def half_even(value: Signal, places: Value) -> Value:
    """A signed value over a power of two, rounded to the nearest, halves to even."""
    floor = value.as_signed() >> places
    extended = Cat(value, value[-1].replicate(64 - len(value)))
    rest = extended & ((1 << places) - 1)
    half = (1 << places) >> 1
    up = (places != 0) & ((rest > half) | ((rest == half) & floor[0]))
    return floor + up


def clipped(value: Value) -> Value:
    """Saturate to -128..127."""
    return Mux(value > 127, 127, Mux(value < -128, -128, value))[:8]
