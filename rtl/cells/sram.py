"""The memory wrapper: the one place where a design holds a memory, so that an SRAM macro can take its place."""

from __future__ import annotations

from typing import Any

from amaranth import Module
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.library import Circuit, Library

WIDEST = 65536
DEEPEST = 1 << 32


class SramWrapper(Circuit):
    """A memory with one synchronous read port and one write port, as a module of its own.

    A read takes one cycle: ``rdata`` holds the word of the last cycle with ``ren``, and keeps it while ``ren`` is low.
    A word read in the cycle in which it is written is the OLD word. ``rdata`` is undefined before the first read,
    words are undefined before they are written: nothing has an initial value and nothing is reset, as in a macro.

    Parameters
    ----------
    width
        Bits of a word.
    depth
        Words; addresses from ``depth`` on must not be used.
    write_granularity
        Bits that share a write enable, a divisor of ``width``; the whole word when ``None``.

    Members
    -------
    clk : In(1)
        Clock of both ports.
    ren : In(1)
        Read the word at ``raddr``.
    raddr, waddr : In
        Addresses, ``ceil(log2(depth))`` bits and at least one.
    rdata : Out(width)
        The word read, one cycle later.
    wen : In(width // write_granularity)
        Write enables, bit i for bits ``i * write_granularity`` and up.
    wdata : In(width)
        The word to write.

    Raises
    ------
    ValueError
        When a parameter is out of range.
    """

    LATENCY = 1
    """Cycles from a read's address to its word."""

    def __init__(self, library: Library, width: int, depth: int, write_granularity: int | None = None) -> None:
        if not 1 <= width <= WIDEST:
            raise ValueError(f"width must be between 1 and {WIDEST} (got {width})")
        if not 1 <= depth <= DEEPEST:
            raise ValueError(f"depth must be between 1 and {DEEPEST} (got {depth})")
        granularity = width if write_granularity is None else write_granularity
        if granularity < 1 or width % granularity:
            raise ValueError(f"write_granularity must divide the width {width} (got {granularity})")
        self.width, self.depth, self.write_granularity = width, depth, granularity
        self.granules = width // granularity
        self.address_bits = max(1, (depth - 1).bit_length())
        ports: dict[str, Any] = {
            "ren": In(1),
            "raddr": In(self.address_bits),
            "rdata": Out(width),
            "wen": In(self.granules),
            "waddr": In(self.address_bits),
            "wdata": In(width),
        }
        shape = f"{width}x{depth}" + (f"_g{granularity}" if granularity < width else "")
        super().__init__(library, library.name("sram", shape), ports)

    def elaborate(self, platform: object) -> Module:
        raise TypeError(f"{self.module_name} is written as Verilog; simulate it with a Verilog simulator")

    def written(self) -> str:
        """Verilog of the wrapper; Amaranth would list an initial value of every word."""
        if self.granules == 1:
            loop, write = "", "    if (wen) mem[waddr] <= wdata;\n"
        else:
            part = f"[granule * {self.write_granularity} +: {self.write_granularity}]"
            loop = "  integer granule;\n"
            write = (
                f"    for (granule = 0; granule < {self.granules}; granule = granule + 1)\n"
                f"      if (wen[granule]) mem[waddr]{part} <= wdata{part};\n"
            )
        return (
            f"module {self.module_name}(clk, ren, raddr, rdata, wen, waddr, wdata);\n"
            "  // To use an SRAM macro, replace the body of this module, or this file, and keep the ports:\n"
            "  //   read   ren and raddr in one cycle, rdata in the next; rdata holds while ren is low\n"
            f"  //   write  wen, waddr and wdata in one cycle; wen[i] writes {self.write_granularity} bits of wdata\n"
            "  //   both   a word that is read in the cycle in which it is written is the old word\n"
            "  // Nothing is initialised and nothing is reset.\n"
            "  input wire clk;\n"
            "  input wire ren;\n"
            f"  input wire {_range(self.address_bits)}raddr;\n"
            f"  output reg {_range(self.width)}rdata;\n"
            f"  input wire {_range(self.granules)}wen;\n"
            f"  input wire {_range(self.address_bits)}waddr;\n"
            f"  input wire {_range(self.width)}wdata;\n"
            f"  reg {_range(self.width)}mem [0:{self.depth - 1}];\n"
            f"{loop}"
            "  always @(posedge clk) begin\n"
            "    if (ren) rdata <= mem[raddr];\n"
            f"{write}"
            "  end\n"
            "endmodule\n"
        )


def _range(width: int) -> str:
    return f"[{width - 1}:0] " if width > 1 else ""
