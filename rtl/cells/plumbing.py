"""Register slice, delay line and skew triangle: the parts that are not arithmetic."""

from __future__ import annotations

from amaranth import Cat, Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.library import Circuit, Library

WIDEST = 32768
"""Bits of the widest register; Amaranth has a limit of 65535."""


class RegisterSlice(Circuit):
    """Two-entry stream buffer: registered in both directions, one beat per cycle, one cycle of latency.

    Parameters
    ----------
    width
        Bits of the payload.

    Members
    -------
    i : In(stream.Signature(width))
        Incoming beats; ``i.ready`` is a register.
    o : Out(stream.Signature(width))
        Outgoing beats; ``o.valid`` and ``o.payload`` are registers.
    """

    LATENCY = 1
    """Cycles from a beat being accepted to its being offered."""

    def __init__(self, library: Library, width: int) -> None:
        self.width = width
        ports = {"i": In(stream.Signature(width)), "o": Out(stream.Signature(width))}
        super().__init__(library, library.name("slice", width), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        spare_valid = Signal()
        spare = Signal(self.width, reset_less=True)
        front_valid = Signal()
        front = Signal(self.width, reset_less=True)
        m.d.comb += [self.i.ready.eq(~spare_valid), self.o.valid.eq(front_valid), self.o.payload.eq(front)]
        with m.If(~front_valid | self.o.ready):
            m.d.sync += [spare_valid.eq(0), front_valid.eq(spare_valid | self.i.valid)]
            with m.If(spare_valid):
                m.d.sync += front.eq(spare)
            with m.Else():
                m.d.sync += front.eq(self.i.payload)
        with m.Elif(self.i.valid & ~spare_valid):
            m.d.sync += [spare.eq(self.i.payload), spare_valid.eq(1)]
        return m


class Delay(Circuit):
    """Data delayed by ``depth`` enabled cycles; no reset, the data is qualified elsewhere.

    Members
    -------
    en : In(1)
        Advance.
    i, o : width bits
        ``o`` is ``i`` of ``depth`` enabled cycles ago.
    """

    def __init__(self, library: Library, width: int, depth: int) -> None:
        self.width, self.depth = width, depth
        ports = {"en": In(1), "i": In(width), "o": Out(width)}
        super().__init__(library, library.name("delay", f"{width}x{depth}"), ports)

    @property
    def splits(self) -> bool:
        """Whether it is made of two narrower ones."""
        return self.width * self.depth > WIDEST and self.width > 1

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        if not self.splits:
            raise TypeError(f"{self.module_name} is written as Verilog; simulate it with a Verilog simulator")
        low = -(-self.width // 2)
        halves = []
        for name, data in (("low", self.i[:low]), ("high", self.i[low:])):
            half = self.library.make(Delay, len(data), self.depth)
            halves.append(self.place(m, half, name, en=self.en, i=data).o)
        m.d.comb += self.o.eq(Cat(*halves))
        return m

    def written(self) -> str | None:
        """Verilog of the circuit: one line, where an elaborated one has thousands of bits."""
        if self.splits:
            return None
        width, total = self.width, self.width * self.depth
        shape = f"[{width - 1}:0] " if width > 1 else ""
        rest = f"{{line[{total - width - 1}:0], i}}" if self.depth > 1 else "i"
        return (
            f"module {self.module_name}(clk, en, i, o);\n"
            "  input wire clk;\n"
            "  input wire en;\n"
            f"  input wire {shape}i;\n"
            f"  output wire {shape}o;\n"
            f"  reg [{total - 1}:0] line;\n"
            f"  always @(posedge clk) if (en) line <= {rest};\n"
            f"  assign o = line[{total - 1}:{total - width}];\n"
            "endmodule\n"
        )


class FlagDelay(Circuit):
    """As `Delay`, with a reset: for the control bits that qualify data."""

    def __init__(self, library: Library, width: int, depth: int) -> None:
        self.width, self.depth = width, depth
        ports = {"en": In(1), "i": In(width), "o": Out(width)}
        super().__init__(library, library.name("flags", f"{width}x{depth}"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        line = Signal(self.width * self.depth)
        with m.If(self.en):
            m.d.sync += line.eq(Cat(self.i, line[: -self.width]) if self.depth > 1 else self.i)
        m.d.comb += self.o.eq(line[-self.width :])
        return m


class Skew(Circuit):
    """Triangle of registers: lane i is delayed by i hops of enabled cycles. Built by halving, so it stays small.

    Parameters
    ----------
    lanes, width
        How many lanes of how many bits.
    hop
        Cycles from lane to lane.

    Members
    -------
    en : In(1)
        Advance.
    i, o : lanes * width bits
        Lane 0 in the low bits.
    """

    def __init__(self, library: Library, lanes: int, width: int, hop: int = 1) -> None:
        self.lanes, self.width, self.hop = lanes, width, hop
        ports = {"en": In(1), "i": In(lanes * width), "o": Out(lanes * width)}
        super().__init__(library, library.name("skew", f"{lanes}x{width}" + f"x{hop}" * (hop > 1)), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        low = -(-self.lanes // 2)
        high, split = self.lanes - low, low * self.width
        parts = []
        for name, lanes, source, depth in (
            ("low", low, self.i[:split], 0),
            ("high", high, self.i[split:], low * self.hop),
        ):
            data = source
            if depth:
                delay = self.library.make(Delay, lanes * self.width, depth)
                data = self.place(m, delay, f"{name}_delay", en=self.en, i=data).o
            if lanes > 1:
                skew = self.library.make(Skew, lanes, self.width, self.hop)
                data = self.place(m, skew, name, en=self.en, i=data).o
            parts.append(data)
        m.d.comb += self.o.eq(Cat(*parts))
        return m


def skewed(
    parent: Circuit, m: Module, name: str, en: Signal, data: Signal, lanes: int, width: int, hop: int = 1
) -> Signal:
    """``data`` with lane i delayed by i hops of so many enabled cycles; a single lane needs no circuit."""
    if lanes == 1:
        return data
    return parent.place(m, parent.library.make(Skew, lanes, width, hop), name, en=en, i=data).o


def reversed_lanes(data: Signal, lanes: int, width: int) -> Cat:
    """Lanes in the opposite order."""
    return Cat(*[data[lane * width : (lane + 1) * width] for lane in reversed(range(lanes))])


def delayed(
    parent: Circuit, m: Module, name: str, en: Signal, data: Signal, depth: int, *, flags: bool = False
) -> Signal:
    """``data`` delayed by ``depth`` enabled cycles; ``flags`` are cleared by reset."""
    if depth == 0:
        return data
    kind = FlagDelay if flags else Delay
    return parent.place(m, parent.library.make(kind, len(data), depth), name, en=en, i=data).o
