"""The PIM tile: command sequencer, global buffer, bank-side units, read-out; its DRAM array stays outside."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from siliconloom.arch.pim import Command
from siliconloom.rtl.cells.plumbing import delayed
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit, Library, Placed
from siliconloom.rtl.pim.bank import RESULT_BITS, BankUnit, pick_bits
from siliconloom.rtl.pim.geometry import CODE_BITS, PimGeometry
from siliconloom.rtl.pim.macros import compute_macro, transfer_macro
from siliconloom.rtl.pim.sequencer import CommandSequencer

ALWAYS = Const(1, 1)


class PimCircuit(Circuit):
    """One channel.

    Members
    -------
    transfer, compute : In(stream of `transfer_macro`, of `compute_macro`)
        Two streams of macros, as of `CommandSequencer`.
    command_valid, command_code, command_place, command_row, command_column : Out
        To the DRAM array, as of `CommandSequencer`.
    column_data : In(banks * burst)
        CL cycles after a dot product's command: the burst of every bank, or, with ``commands: per_bank``, of the bank
        of that command; bank 0 in the low bits.
    array_read : In(burst)
        CL cycles after RD: the burst.
    array_write_valid, array_write_data : Out
        CWL cycles and a burst after WR: the burst.
    write : In(stream of ``data``)
        Bursts of WRITE macros. A burst is taken CWL cycles after its WR, ready or not: the DRAM does not wait.
    vector : In(stream of ``data``)
        Bursts of GWRITE macros, likewise, CWL cycles after PIM_WRITE.
    read_valid, read_data : Out
        CL cycles and a burst after RD.
    result_valid, result_data : Out
        CL cycles and a burst after PIM_READ: results of 32 bits, bank by bank of one segment after the other.
    underrun : Out(1)
        A burst to be written was not there when it was taken; stays until reset.
    hold, restart : In(1)
        Of a channel that a tile drives: no refresh begins; pulse, refresh falls due as after a reset.
    rests : Out(1)
        Nothing waits for a command that went out before.
    vector_arrived : Out(1)
        A burst of a GWRITE is written into the global buffer in this cycle.
    """

    def __init__(self, library: Library, geometry: PimGeometry) -> None:
        self.geometry = geometry
        g = geometry
        burst = data.StructLayout({"data": g.burst_bits})
        ports: dict[str, Any] = {
            "transfer": In(stream.Signature(transfer_macro(g))),
            "compute": In(stream.Signature(compute_macro(g))),
            **self.array_ports(g),
            "write": In(stream.Signature(burst)),
            "vector": In(stream.Signature(burst)),
            "read_valid": Out(1),
            "read_data": Out(g.burst_bits),
            "result_valid": Out(1),
            "result_data": Out(g.burst_bits),
            "underrun": Out(1),
        }
        if g.driven:
            ports |= {"hold": In(1), "restart": In(1), "rests": Out(1), "vector_arrived": Out(1)}
        super().__init__(library, library.name("channel") if g.driven else library.prefix, ports, reset=True)

    @staticmethod
    def array_ports(g: PimGeometry) -> dict[str, Any]:
        """Ports to the DRAM array and from it."""
        return {
            "command_valid": Out(1),
            "command_code": Out(CODE_BITS),
            "command_place": Out(g.place_bits),
            "command_row": Out(g.row_bits),
            "command_column": Out(g.column_bits),
            "column_data": In(g.tile.banks * g.burst_bits),
            "array_read": In(g.burst_bits),
            "array_write_valid": Out(1),
            "array_write_data": Out(g.burst_bits),
        }

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        g = self.geometry
        driven = {"hold": self.hold, "restart": self.restart} if g.driven else {}
        sequencer = self.place(m, self.library.make(CommandSequencer, g), "sequencer", **driven)
        if g.driven:
            m.d.comb += self.rests.eq(sequencer.rests)
        for name in ("transfer", "compute"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(sequencer, name))
        for name in ("command_valid", "command_code", "command_place", "command_row", "command_column"):
            m.d.comb += getattr(self, name).eq(getattr(sequencer, name))
        strobes = {
            code: sequencer.command_valid & (sequencer.command_code == code)
            for code in (Command.RD, Command.WR, Command.PIM_DOT, Command.PIM_READ, Command.PIM_WRITE)
        }
        written = self._write(m, strobes, sequencer.command_column)
        vector = self._buffer(m, strobes[Command.PIM_DOT], sequencer.address, *written)
        self._read(m, strobes, sequencer.command_column, self._banks(m, strobes[Command.PIM_DOT], sequencer, vector))
        return m

    def _write(self, m: Module, strobes: dict[Command, Any], column: Signal) -> tuple[Signal, Signal, Signal]:
        """Take bursts CWL after their commands; returns those of the global buffer: strobe, address and data."""
        g = self.geometry
        when = Cat(strobes[Command.WR], strobes[Command.PIM_WRITE])
        flags = delayed(self, m, "write_flags", ALWAYS, when, g.timing.CWL, flags=True)
        address = delayed(self, m, "write_address", ALWAYS, column[: g.address_bits], g.timing.CWL + g.burst)
        m.d.comb += [self.write.ready.eq(flags[0]), self.vector.ready.eq(flags[1])]
        taken = Signal(g.burst_bits, name="taken")
        m.d.comb += taken.eq(Mux(flags[1], self.vector.payload.data, self.write.payload.data))
        with m.If((flags[0] & ~self.write.valid) | (flags[1] & ~self.vector.valid)):
            m.d.sync += self.underrun.eq(1)
        arrived = delayed(self, m, "arrived_flags", ALWAYS, flags, g.burst, flags=True)
        burst = delayed(self, m, "arrived", ALWAYS, taken, g.burst)
        m.d.comb += [self.array_write_valid.eq(arrived[0]), self.array_write_data.eq(burst)]
        if g.driven:
            m.d.comb += self.vector_arrived.eq(arrived[1])
        return arrived[1], address, burst

    def _buffer(self, m: Module, dot: Any, address: Signal, wen: Signal, waddr: Signal, wdata: Signal) -> Signal:
        """The global buffer; returns the burst that a dot product multiplies, CL cycles after its command."""
        g = self.geometry
        memory = self.library.make(SramWrapper, g.burst_bits, g.buffer_words)
        ahead = g.timing.CL - 1
        strobe = delayed(self, m, "vector_flag", ALWAYS, dot, ahead, flags=True)
        place = delayed(self, m, "vector_address", ALWAYS, address, ahead)
        return self.place(m, memory, "global_buffer", ren=strobe, raddr=place, wen=wen, waddr=waddr, wdata=wdata).rdata

    def _banks(self, m: Module, dot: Any, sequencer: Placed, vector: Signal) -> list[Signal]:
        """A unit beside every bank; returns the results that each offers."""
        g = self.geometry
        latency = g.timing.CL
        valid = delayed(self, m, "dot_flag", ALWAYS, dot, latency, flags=True)
        tags = Cat(sequencer.first, sequencer.number, sequencer.segment, sequencer.command_place)
        late = delayed(self, m, "dot_tags", ALWAYS, tags, latency)
        segment, place = late[2 : 2 + g.segment_bits], late[2 + g.segment_bits :]
        self.pick = Signal(pick_bits(g), name="pick")
        results = []
        for bank in range(g.tile.banks):
            own = valid if g.singles == 1 else valid & (place == bank)
            results.append(
                self.place(
                    m,
                    self.library.make(BankUnit, g),
                    f"bank_{bank}",
                    valid=own,
                    vector=vector,
                    column=self.column_data[bank * g.burst_bits :][: g.burst_bits],
                    first=late[0],
                    integer=late[1],
                    segment=segment,
                    pick=self.pick,
                ).results
            )
        return results

    def _read(self, m: Module, strobes: dict[Command, Any], column: Signal, results: list[Signal]) -> None:
        """Data and results leave CL cycles and a burst after their commands."""
        g = self.geometry
        when = Cat(strobes[Command.RD], strobes[Command.PIM_READ])
        flags = delayed(self, m, "read_flags", ALWAYS, when, g.timing.CL, flags=True)
        number = delayed(self, m, "read_number", ALWAYS, column, g.timing.CL)
        chosen = Signal(g.burst_bits, name="chosen")
        if g.parts == 1:
            # several segments of all banks: segment by segment
            words = [
                results[bank][RESULT_BITS * i :][:RESULT_BITS] for i in range(g.picked) for bank in range(len(results))
            ]
            m.d.comb += [self.pick.eq(number), chosen.eq(Cat(*words))]
        else:
            bits = (g.parts - 1).bit_length()
            m.d.comb += [self.pick.eq(number[bits:]), chosen.eq(Cat(*results).word_select(number[:bits], g.burst_bits))]
        line = delayed(self, m, "read_line", ALWAYS, Mux(flags[1], chosen, self.array_read), g.burst)
        leaves = delayed(self, m, "leaving_flags", ALWAYS, flags, g.burst, flags=True)
        m.d.comb += [
            self.read_valid.eq(leaves[0]),
            self.read_data.eq(line),
            self.result_valid.eq(leaves[1]),
            self.result_data.eq(line),
        ]
