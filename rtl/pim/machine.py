"""The agent that carries out one transfer at a time: opens its row, reads or writes, closes the row."""

from __future__ import annotations

from amaranth import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.arch.pim import Command
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.pim.geometry import CODE_BITS, PimGeometry
from siliconloom.rtl.pim.timers import elapsed

IDLE, OPEN, COLUMNS, CLOSE = range(4)


class BankMachine(Circuit):
    """Transfers to the banks of one parity, in order.

    Members
    -------
    take : In(1)
        The macro below is taken in this cycle; only while ``idle``.
    write, bank, row, column, columns : In
        The macro, as ``arch.pim.Macro``.
    go : In(1)
        The command offered goes out in this cycle.
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
    idle, waiting, moving, open : Out(1)
        No macro; its row is still to be opened; its data are on the move; its row is open.
    reopens : Out(1)
        tRC and tRP of its last row have passed.
    ready : Out(1)
        A command is offered.
    code, where, next_row, next_column : Out
        The command.
    """

    def __init__(self, library: Library, geometry: PimGeometry) -> None:
        self.geometry = geometry
        g = geometry
        ports = {
            "take": In(1),
            "write": In(1),
            "bank": In(g.bank_bits),
            "row": In(g.row_bits),
            "column": In(g.column_bits),
            "columns": In(g.columns_bits),
            "go": In(1),
            "rank_opens": In(g.ranks),
            "may_open": In(1),
            "may_read": In(1),
            "may_write": In(1),
            "others": In(g.ranks),
            "may_move": In(1),
            "idle": Out(1),
            "waiting": Out(1),
            "moving": Out(1),
            "open": Out(1),
            "reopens": Out(1),
            "ready": Out(1),
            "code": Out(CODE_BITS),
            "where": Out(g.bank_bits),
            "next_row": Out(g.row_bits),
            "next_column": Out(g.column_bits),
        }
        super().__init__(library, library.name("bank_machine"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        g, t = self.geometry, self.geometry.timing
        phase = Signal(2)
        write, bank, row = Signal(), Signal(g.bank_bits, reset_less=True), Signal(g.row_bits, reset_less=True)
        column, left = Signal(g.column_bits, reset_less=True), Signal(g.columns_bits, reset_less=True)
        with m.If(self.take):
            m.d.sync += [
                phase.eq(OPEN),
                write.eq(self.write),
                bank.eq(self.bank),
                row.eq(self.row),
                column.eq(self.column),
                left.eq(self.columns),
            ]
        opening, moving, closing = (self.go & (phase == each) for each in (OPEN, COLUMNS, CLOSE))
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
            self.idle.eq(phase == IDLE),
            self.waiting.eq(phase == OPEN),
            self.moving.eq(phase == COLUMNS),
            self.open.eq(phase[1]),
            self.reopens.eq(row_cycle & precharged),
            self.where.eq(bank),
        ]
        with m.Switch(phase):
            with m.Case(OPEN):
                m.d.comb += [
                    self.ready.eq(self.reopens & rank_opens & self.may_open),
                    self.code.eq(Command.ACT),
                    self.next_row.eq(row),
                ]
            with m.Case(COLUMNS):
                m.d.comb += [
                    self.ready.eq(to_column & self.may_move & own_bus & Mux(write, self.may_write, self.may_read)),
                    self.code.eq(Mux(write, Command.WR, Command.RD)),
                    self.next_column.eq(column),
                ]
            with m.Case(CLOSE):
                m.d.comb += [self.ready.eq(active & read_closes & write_closes), self.code.eq(Command.PRE)]
        return m
