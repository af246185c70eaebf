"""Circuits that move bytes within wide words.

They are written in Verilog: a word of a datacentre tile has thousands of bits, and what moves them is a line of it.
"""

from __future__ import annotations

from amaranth import Module
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.library import Circuit, Library


class Written(Circuit):
    """A circuit that is written in Verilog: a combinational one, or what joins others."""

    body = ""
    """What stands between the ports and ``endmodule``."""

    def elaborate(self, platform: object) -> Module:
        raise TypeError(f"{self.module_name} is written as Verilog; simulate it with a Verilog simulator")

    def written(self) -> str:
        """Verilog of the circuit."""
        ports = self.ports()
        lines = [f"module {self.module_name}({', '.join(ports)});"]
        for name, port in ports.items():
            width = f"[{port.width - 1}:0] " if port.width > 1 else ""
            lines.append(f"  {'input' if port.is_input else 'output'} wire {width}{name};")
            if name == "clk" and "(clk)" not in self.body:
                lines.append("  wire unused_clock = clk;")
        return "\n".join([*lines, *self.body.splitlines(), "endmodule", ""])


def bits(count: int) -> int:
    """Bits of a number below ``count``, at least one."""
    return max((count - 1).bit_length(), 1)


class ByteMask(Written):
    """One bit per byte of a bus: set for ``count`` bytes from byte ``first``.

    Members
    -------
    first, count : In
        Within the bus: ``first`` + ``count`` is at most its width.
    o : Out
        The bits.
    """

    def __init__(self, library: Library, bus: int) -> None:
        ports = {"first": In(bits(bus)), "count": In(bus.bit_length()), "o": Out(bus)}
        super().__init__(library, library.name("mask", bus), ports)
        self.body = f"  wire [{bus}:0] ones = ({bus + 1}'d1 << count) - {bus + 1}'d1;\n"
        self.body += f"  assign o = ones[{bus - 1}:0] << first;"


class Rotator(Written):
    """Rotates the bytes of a word towards higher lanes.

    Members
    -------
    word, left : In
        The word; by how many bytes.
    o : Out
        The rotated word.
    """

    def __init__(self, library: Library, bus: int) -> None:
        width = 8 * bus
        ports = {"word": In(width), "left": In(bits(bus)), "o": Out(width)}
        super().__init__(library, library.name("rotator", bus), ports)
        lines, word = [], "word"
        for step in range((bus - 1).bit_length()):
            by = 8 << step
            lines.append(f"  wire [{width - 1}:0] by_{1 << step};")
            select = f"left[{step}]" if bus > 2 else "left"
            parts = f"{{{word}[{width - by - 1}:0], {word}[{width - 1}:{width - by}]}}"
            lines.append(f"  assign by_{1 << step} = {select} ? {parts} : {word};")
            word = f"by_{1 << step}"
        self.body = "\n".join([*lines, f"  assign o = {word};"])


class WindowSelect(Written):
    """Bits of a word, from any multiple of ``step`` on.

    Members
    -------
    word, first : In
        The word; in steps, where the bits begin: all of them lie in the word.
    o : Out
        The bits.
    """

    def __init__(self, library: Library, width: int, window: int, step: int) -> None:
        places = (width - window) // step + 1
        ports = {"word": In(width), "first": In(bits(places)), "o": Out(window)}
        super().__init__(library, library.name("window", f"{window}of{width}by{step}"), ports)
        self.body = f"  assign o = word[first * {step} +: {window}];"


class PartSelect(Written):
    """One of the equal parts of a word.

    Members
    -------
    word, part : In
        The word, and which part.
    o : Out
        The part.
    """

    def __init__(self, library: Library, width: int, part: int) -> None:
        ports = {"word": In(width), "part": In(bits(width // part)), "o": Out(part)}
        super().__init__(library, library.name("part", f"{part}of{width}"), ports)
        self.body = f"  assign o = word[part * {part} +: {part}];"


class ByteShift(Written):
    """A word from any of its bytes on, filled up with zeros.

    Members
    -------
    word, first : In
        The word; the byte that comes first.
    o : Out
        As many bits as the word has.
    """

    def __init__(self, library: Library, bus: int) -> None:
        width, choices = 8 * bus, bits(bus)
        ports = {"word": In(width), "first": In(choices), "o": Out(width)}
        super().__init__(library, library.name("shift", bus), ports)
        # stage by stage: a shift by any number of bytes is synthesised for every one of them
        lines, word = [], "word"
        for step in range(choices):
            by = min(8 << step, width)
            lines.append(f"  wire [{width - 1}:0] by_{1 << step};")
            select = f"first[{step}]" if choices > 1 else "first"
            parts = f"{{{by}'d0, {word}[{width - 1}:{by}]}}" if by < width else f"{width}'d0"
            lines.append(f"  assign by_{1 << step} = {select} ? {parts} : {word};")
            word = f"by_{1 << step}"
        self.body = "\n".join([*lines, f"  assign o = {word};"])


class ByteGate(Written):
    """The bytes of a word that are meant, and zeros for the others.

    Members
    -------
    word, lanes : In
        The word; a bit for each of its bytes.
    o : Out
        As many bits as the word has.
    """

    def __init__(self, library: Library, bus: int) -> None:
        ports = {"word": In(8 * bus), "lanes": In(bus), "o": Out(8 * bus)}
        super().__init__(library, library.name("gate", bus), ports)
        self.body = (
            "  genvar lane;\n"
            f"  generate for (lane = 0; lane < {bus}; lane = lane + 1) begin : each\n"
            "    assign o[8 * lane +: 8] = word[8 * lane +: 8] & {8{lanes[lane]}};\n"
            "  end endgenerate"
        )
