"""The memory wrapper: the one place where a design holds a memory, so that an SRAM macro can take its place."""

from __future__ import annotations

from textwrap import indent
from typing import Any

from amaranth import Module
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.library import Circuit, Library

WIDEST = 65536
DEEPEST = 1 << 32
NO_CHECK = '(* no_rw_check, rw_addr_collision = "no", ramstyle = "no_rw_check" *)'
"""What tells Yosys, Vivado and Quartus that no word is read while it is written, in their manuals' own words.

Without it they build what gives such a read the old word: a comparison of addresses, and registers for a word.
"""
READ_WHILE_WRITTEN = "is read while it is written"
"""What simulated memories say of a word that is."""
PART = 64
"""Bits of a part of a wide word that is written in granules (`SramWrapper.part`)."""


class SramWrapper(Circuit):
    """A memory with one synchronous read port and one write port, as a module of its own.

    A read takes one cycle: ``rdata`` holds the word of the last cycle with ``ren``, and keeps it while ``ren`` is low.
    A word must not be read in the cycle in which any part of it is written: what is read then is undefined, as it is
    in block RAM and in foundries' macros. Simulated, such a read prints an error and ends the run as failed. ``rdata``
    is undefined before the first read, words are undefined before they are written: nothing has an initial value and
    nothing is reset, as in a macro.

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

    @property
    def part(self) -> int:
        """Bits of a word that one memory in the wrapper holds; a word of several parts lies in as many memories.

        They are read and written together, and whoever puts a macro in the wrapper's place need not know of them. A
        simulator copies the whole element of a memory for each granule that is written into it: one of 4096 bits, of
        which 64 bytes are written in a cycle, takes 64 times as long as it does in parts.
        """
        if self.write_granularity >= PART:
            return self.write_granularity
        return self.width if self.width % PART or PART % self.write_granularity else PART

    def written(self) -> str:
        """Verilog of the wrapper; Amaranth would list an initial value of every word."""
        parts, granules = self.width // self.part, self.part // self.write_granularity
        memory = f"  {NO_CHECK}\n  reg {_range(self.part)}mem [0:{self.depth - 1}];\n"
        if parts == 1:
            body = memory + _ports(self.write_granularity, granules, wen="wen", bits="")
        else:
            wen = "wen[part]" if granules == 1 else f"wen[part * {granules} +: {granules}]"
            bits = f"[part * {self.part} +: {self.part}]"
            each = memory + _ports(self.write_granularity, granules, wen=wen, bits=bits)
            body = (
                "  genvar part;\n"
                "  generate\n"
                f"    for (part = 0; part < {parts}; part = part + 1) begin : parts\n"
                f"{indent(each, '    ')}"
                "    end\n"
                "  endgenerate\n"
            )
        return (
            f"module {self.module_name}(clk, ren, raddr, rdata, wen, waddr, wdata);\n"
            "  // To use an SRAM macro, replace the body of this module, or this file, and keep the ports:\n"
            "  //   read   ren and raddr in one cycle, rdata in the next; rdata holds while ren is low\n"
            f"  //   write  wen, waddr and wdata in one cycle; wen[i] writes {self.write_granularity} bits of wdata\n"
            "  //   both   a word is never read in the cycle in which a part of it is written\n"
            "  // Nothing is initialised and nothing is reset.\n"
            "  input wire clk;\n"
            "  input wire ren;\n"
            f"  input wire {_range(self.address_bits)}raddr;\n"
            f"  output reg {_range(self.width)}rdata;\n"
            f"  input wire {_range(self.granules)}wen;\n"
            f"  input wire {_range(self.address_bits)}waddr;\n"
            f"  input wire {_range(self.width)}wdata;\n"
            f"{body}"
            f"{collision(self.module_name)}"
            "endmodule\n"
        )


def collision(module: str) -> str:
    """Verilog inside the memory ``module`` that ends a simulation in which a word is read while it is written.

    Verilator is not asked for the name of the instance: it would write the code of whatever holds the memory anew for
    every instance of that, of 16 lanes 16 times.
    """
    return f"""\
`ifndef SYNTHESIS
  always @(posedge clk)
    if (ren && |wen && raddr == waddr) begin
`ifdef VERILATOR
      $display("ERROR: {module}: word %0d {READ_WHILE_WRITTEN}", raddr);
      $stop;
`else
      $display("ERROR: %m: word %0d {READ_WHILE_WRITTEN}", raddr);
      $fatal(1);
`endif
    end
`endif
"""


def _ports(granularity: int, granules: int, *, wen: str, bits: str) -> str:
    """Verilog of the two ports of a memory; ``bits`` of a word and ``wen`` of its enables are the memory's."""
    loop, write = "", f"    if ({wen}) mem[waddr] <= wdata{bits};\n"
    if granules > 1:
        loop = f"  wire {_range(granules)}enable = {wen};\n  wire {_range(granules * granularity)}word = wdata{bits};\n"
        loop += "  integer granule;\n"
        place = f"[granule * {granularity} +: {granularity}]"
        # a simulator passes by the loop in the many cycles that write nothing
        write = (
            "    if (|enable)\n"
            f"      for (granule = 0; granule < {granules}; granule = granule + 1)\n"
            f"        if (enable[granule]) mem[waddr]{place} <= word{place};\n"
        )
    return f"{loop}  always @(posedge clk) begin\n    if (ren) rdata{bits} <= mem[raddr];\n{write}  end\n"


def _range(width: int) -> str:
    return f"[{width - 1}:0] " if width > 1 else ""
