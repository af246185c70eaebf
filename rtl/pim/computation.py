"""The agent of computation: fills the global buffer, and runs GEMVs over all banks."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from siliconloom.arch.pim import Command
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.pim.geometry import PimGeometry, width
from siliconloom.rtl.pim.macros import bank_command, compute_macro
from siliconloom.rtl.pim.timers import elapsed

BUFFER, ACTIVATE, DRAIN, MULTIPLY, PRECHARGE = range(5)


class Computation(Circuit):
    """GWRITE and GEMV macros, in order.

    Members
    -------
    macro : In(stream of `compute_macro`)
        GEMV and GWRITE macros; ready while there is none at work.
    command : Out(stream of `bank_command`)
        Commands, each of which goes out when it is taken.
    rank_opens : In(ranks)
        The activation of a group keeps the timing of that rank.
    may_open : In(1)
        Nothing else forbids the first activation of a row.
    may_read, may_write : In(1)
        The data bus takes a burst.
    open : Out(1)
        Rows are open.
    reopens : Out(1)
        tRC and tRP of the last row have passed.
    address, segment, first, number : Out
        Of a dot product: burst of the global buffer, accumulator, whether that begins anew, int8 operands or not.
    """

    def __init__(self, library: Library, geometry: PimGeometry) -> None:
        self.geometry = geometry
        g = geometry
        ports: dict[str, Any] = {
            "macro": In(stream.Signature(compute_macro(g))),
            "command": Out(stream.Signature(bank_command(g, g.place_bits))),
            "rank_opens": In(g.ranks),
            "may_open": In(1),
            "may_read": In(1),
            "may_write": In(1),
            "open": Out(1),
            "reopens": Out(1),
            "address": Out(g.address_bits),
            "segment": Out(g.segment_bits),
            "first": Out(1),
            "number": Out(1),
        }
        super().__init__(library, geometry.name(library, "computation"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        g = self.geometry
        held: dict[str, Any] = {
            name: Signal(field.width, name=f"held_{name}", reset_less=True) for name, field in compute_macro(g)
        }
        busy, step = Signal(), Signal(3)
        row = Signal(g.row_bits, reset_less=True)
        round_, chunk = Signal(g.count_bits), Signal(g.count_bits)
        place = Signal(width(max(g.groups, g.buffer_words) + 1))
        dots, within = Signal(g.columns_bits), Signal(g.columns_bits)
        segment, single = Signal(g.segment_bits), Signal(width(g.singles))
        pending, drained = Signal(width(g.drain_bursts + 1)), Signal(width(g.drain_bursts + 1))
        address, opened = Signal(g.address_bits, reset_less=True), Signal()

        last_chunk = Signal()
        columns = Signal(g.columns_bits)
        m.d.comb += [
            last_chunk.eq(chunk + 1 == held["chunks"]),
            columns.eq(Mux(last_chunk & held["last_columns"].any(), held["last_columns"], held["columns"])),
        ]
        events = {step_: Signal(name=f"now_{name}") for step_, name in enumerate(NAMES)}
        go = Signal()
        m.d.comb += go.eq(self.command.valid & self.command.ready)
        m.d.comb += [signal.eq(go & (step == each)) for each, signal in events.items()]
        self._offer(m, events, held, step, place, drained, dots, single, row)
        m.d.comb += [
            self.macro.ready.eq(~busy),
            self.open.eq(opened),
            self.address.eq(address),
            self.segment.eq(segment),
            self.first.eq(~within.any() & ~chunk.any()),
            self.number.eq(held["integer"]),
        ]

        with m.If(self.macro.valid & self.macro.ready):
            macro = self.macro.payload
            m.d.sync += [value.eq(macro[name]) for name, value in held.items()]
            m.d.sync += [
                busy.eq(1),
                step.eq(Mux(macro.gemv, ACTIVATE, BUFFER)),
                row.eq(macro.row),
                address.eq(macro.column),
                *(counter.eq(0) for counter in (round_, chunk, place, dots, within, segment, single, pending)),
            ]
        with m.If(events[BUFFER]):
            m.d.sync += place.eq(place + 1)
            with m.If(place + 1 == held["columns"]):
                m.d.sync += busy.eq(0)
        all_open = Signal()
        with m.If(events[ACTIVATE]):
            m.d.comb += all_open.eq(place + 1 == g.groups)
            m.d.sync += [place.eq(place + 1), opened.eq(1)]
            with m.If(~place.any() & pending.any()):
                m.d.sync += [step.eq(DRAIN), drained.eq(0)]
            with m.Elif(all_open):
                m.d.sync += step.eq(MULTIPLY)
        with m.If(events[DRAIN]):
            m.d.sync += drained.eq(drained + 1)
            with m.If(drained + 1 == pending):
                m.d.sync += pending.eq(0)
                with m.If(~opened):
                    m.d.sync += busy.eq(0)
                with m.Elif(place == g.groups):
                    m.d.sync += step.eq(MULTIPLY)
                with m.Else():
                    m.d.sync += step.eq(ACTIVATE)
        self._multiply(m, events, held, columns, step, dots, within, segment, single, address)
        with m.If(events[PRECHARGE]):
            m.d.sync += [opened.eq(0), place.eq(0), step.eq(ACTIVATE), row.eq(row + 1), chunk.eq(chunk + 1)]
            with m.If(last_chunk):
                m.d.sync += [
                    chunk.eq(0),
                    round_.eq(round_ + 1),
                    address.eq(held["column"]),
                    pending.eq(_bursts(g, held["segments"])),
                ]
                with m.If(round_ + 1 == held["rounds"]):
                    m.d.sync += [step.eq(DRAIN), drained.eq(0)]
        return m

    def _multiply(
        self,
        m: Module,
        events: dict[int, Signal],
        held: dict[str, Any],
        columns: Signal,
        step: Signal,
        dots: Signal,
        within: Signal,
        segment: Signal,
        single: Signal,
        address: Signal,
    ) -> None:
        """Count through the dot products of a row."""
        with m.If(events[MULTIPLY]):
            m.d.sync += single.eq(single + 1)
            with m.If(single == self.geometry.singles - 1):
                m.d.sync += [single.eq(0), dots.eq(dots + 1), within.eq(within + 1), address.eq(address + 1)]
                with m.If(within + 1 == columns):
                    m.d.sync += [within.eq(0), segment.eq(segment + 1)]
                    with m.If((held["segments"] != 1) & ~held["apart"]):
                        m.d.sync += address.eq(held["column"])
                    with m.If(segment + 1 == held["segments"]):
                        m.d.sync += [dots.eq(0), segment.eq(0), step.eq(PRECHARGE)]

    def _offer(
        self,
        m: Module,
        events: dict[int, Signal],
        held: dict[str, Any],
        step: Signal,
        place: Signal,
        drained: Signal,
        dots: Signal,
        single: Signal,
        row: Signal,
    ) -> None:
        """The next command, and whether its own timing and the shared resources allow it."""
        g, t, tile = self.geometry, self.geometry.timing, self.geometry.tile
        row_cycle = elapsed(m, "row_cycle", events[ACTIVATE], t.row_cycle)
        to_dot = elapsed(m, "to_dot", events[ACTIVATE], t.tRCD)
        active = elapsed(m, "active", events[ACTIVATE], t.tRAS)
        precharged = elapsed(m, "precharged", events[PRECHARGE], t.tRP)
        dot_closes = elapsed(m, "dot_closes", events[MULTIPLY], t.tRTP)
        # a bank is served again after its interval: the first of them was served `singles` - 1 cycles ago
        served = events[MULTIPLY] & (single == g.singles - 1)
        again = elapsed(m, "again", served, tile.dot_interval - (g.singles - 1))
        summed = elapsed(m, "summed", events[MULTIPLY], tile.dot_latency)
        filled = elapsed(m, "filled", events[BUFFER], t.CWL + g.burst)
        rank_opens: Value = self.rank_opens
        if g.ranks > 1:
            rank_opens = self.rank_opens.bit_select(place[: width(g.ranks)], 1)
        m.d.comb += self.reopens.eq(row_cycle & precharged)
        command = self.command.payload
        with m.Switch(Cat(step, self.macro.ready)):
            with m.Case(BUFFER):
                m.d.comb += [
                    self.command.valid.eq(self.may_write & summed),
                    command.code.eq(Command.PIM_WRITE),
                    command.column.eq(held["column"] + place),
                ]
            with m.Case(ACTIVATE):
                m.d.comb += [
                    self.command.valid.eq(rank_opens & (place.any() | (self.reopens & self.may_open))),
                    command.code.eq(Command.PIM_ACT),
                    command.place.eq(place),
                    command.row.eq(row),
                ]
            with m.Case(DRAIN):
                m.d.comb += [
                    self.command.valid.eq(self.may_read & summed),
                    command.code.eq(Command.PIM_READ),
                    command.column.eq(drained),
                ]
            with m.Case(MULTIPLY):
                m.d.comb += [
                    self.command.valid.eq(to_dot & again & filled),
                    command.code.eq(Command.PIM_DOT),
                    command.row.eq(row),
                    command.column.eq(dots),
                    command.place.eq(single),
                ]
            with m.Case(PRECHARGE):
                m.d.comb += [self.command.valid.eq(active & dot_closes), command.code.eq(Command.PIM_PRE)]


NAMES = ("buffer", "activate", "drain", "multiply", "precharge")


def _bursts(g: PimGeometry, segments: Value) -> Value:
    """Bursts of a round's results."""
    if g.picked == 1:
        return segments * g.parts
    shift = g.picked.bit_length() - 1
    return (segments + (g.picked - 1)) >> shift
