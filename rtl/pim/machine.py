"""The agent that carries out one transfer at a time: opens its row, reads or writes, closes the row."""

from __future__ import annotations

from amaranth import Module, Mux, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from siliconloom.arch.pim import Command
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.pim.geometry import PimGeometry
from siliconloom.rtl.pim.macros import bank_command, transfer_macro
from siliconloom.rtl.pim.timers import elapsed

IDLE, OPEN, COLUMNS, CLOSE = range(4)


class BankMachine(Circuit):
    """Transfers to the banks of one parity, in order.

    Members
    -------
    macro : In(stream of `transfer_macro`)
        READ and WRITE macros; ready while there is none at work.
    command : Out(stream of `bank_command`)
        Commands, each of which goes out when it is taken.
    rank_opens : In(ranks)
        An activation keeps the timing of that rank.
    may_open : In(1)
        Nothing else forbids an activation: refresh, an earlier transfer, or computation.
    may_read, may_write : In(1)
        The data bus takes a burst.
    others : In(ranks)
        A burst of that rank need not wait for the driver of the data bus to change.
    may_move : In(1)
        It is this transfer's turn to move data.
    waiting, moving, open : Out(1)
        The macro's row is still to be opened; its data are on the move; its row is open.
    bank : Out
        Of the macro at work.
    reopens : Out(1)
        tRC and tRP of its last row have passed.
    """

    def __init__(self, library: Library, geometry: PimGeometry) -> None:
        self.geometry = geometry
        g = geometry
        ports = {
            "macro": In(stream.Signature(transfer_macro(g))),
            "command": Out(stream.Signature(bank_command(g, g.bank_bits))),
            "rank_opens": In(g.ranks),
            "may_open": In(1),
            "may_read": In(1),
            "may_write": In(1),
            "others": In(g.ranks),
            "may_move": In(1),
            "waiting": Out(1),
            "moving": Out(1),
            "open": Out(1),
            "bank": Out(g.bank_bits),
            "reopens": Out(1),
        }
        super().__init__(library, geometry.name(library, "bank_machine"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        g, t = self.geometry, self.geometry.timing
        phase = Signal(2)
        write, bank, row = Signal(), Signal(g.bank_bits, reset_less=True), Signal(g.row_bits, reset_less=True)
        column, left = Signal(g.column_bits, reset_less=True), Signal(g.columns_bits, reset_less=True)
        macro, command = self.macro.payload, self.command.payload
        with m.If(self.macro.valid & self.macro.ready):
            m.d.sync += [
                phase.eq(OPEN),
                write.eq(macro.write),
                bank.eq(macro.bank),
                row.eq(macro.row),
                column.eq(macro.column),
                left.eq(macro.columns),
            ]
        go = Signal()
        m.d.comb += go.eq(self.command.valid & self.command.ready)
        opening, moving, closing = (go & (phase == each) for each in (OPEN, COLUMNS, CLOSE))
        row_cycle = elapsed(m, "row_cycle", opening, t.row_cycle)
        to_column = elapsed(m, "to_column", opening, t.tRCD)
        active = elapsed(m, "active", opening, t.tRAS)
        precharged = elapsed(m, "precharged", closing, t.tRP)
        read_closes = elapsed(m, "read_closes", moving & ~write, t.tRTP)
        write_closes = elapsed(m, "write_closes", moving & write, t.CWL + g.burst + t.tWR)
        with m.If(opening):
            m.d.sync += phase.eq(COLUMNS)
        with m.If(moving):
            m.d.sync += [column.eq(column + 1), left.eq(left - 1)]
            with m.If(left == 1):
                m.d.sync += phase.eq(CLOSE)
        with m.If(closing):
            m.d.sync += phase.eq(IDLE)

        rank = bank // g.tile.banks_per_rank
        rank_opens, own_bus = (
            (self.rank_opens.bit_select(rank, 1), self.others.bit_select(rank, 1))
            if g.ranks > 1
            else (self.rank_opens, self.others)
        )
        m.d.comb += [
            self.macro.ready.eq(phase == IDLE),
            self.waiting.eq(phase == OPEN),
            self.moving.eq(phase == COLUMNS),
            self.open.eq(phase[1]),
            self.reopens.eq(row_cycle & precharged),
            self.bank.eq(bank),
            command.place.eq(bank),
        ]
        with m.Switch(phase):
            with m.Case(OPEN):
                m.d.comb += [
                    self.command.valid.eq(self.reopens & rank_opens & self.may_open),
                    command.code.eq(Command.ACT),
                    command.row.eq(row),
                ]
            with m.Case(COLUMNS):
                m.d.comb += [
                    self.command.valid.eq(
                        to_column & self.may_move & own_bus & Mux(write, self.may_write, self.may_read)
                    ),
                    command.code.eq(Mux(write, Command.WR, Command.RD)),
                    command.column.eq(column),
                ]
            with m.Case(CLOSE):
                m.d.comb += [self.command.valid.eq(active & read_closes & write_closes), command.code.eq(Command.PRE)]
        return m
