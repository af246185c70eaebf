"""The command sequencer of a channel: two streams of macros in, at most one DRAM command a cycle out, all timing kept.

Its rules are those of ``sim.pim.channel``; every command goes out in the cycle that the model says.
"""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from siliconloom.arch.pim import Command
from siliconloom.rtl.library import Circuit, Library, Placed
from siliconloom.rtl.pim.computation import Computation
from siliconloom.rtl.pim.geometry import CODE_BITS, PimGeometry, width
from siliconloom.rtl.pim.machine import BankMachine
from siliconloom.rtl.pim.macros import compute_macro, transfer_macro
from siliconloom.rtl.pim.timers import activation_window, elapsed

POSTPONED_BITS = 8
"""Of the number of refreshes that are due."""


class CommandSequencer(Circuit):
    """Takes macros, emits commands.

    Members
    -------
    transfer : In(stream of `transfer_macro`)
        READ and WRITE macros. Whether one is taken depends on its bank and, in a tile without dual row buffers, on
        whether the other stream has one.
    compute : In(stream of `compute_macro`)
        GWRITE and GEMV macros.
    command_valid : Out(1)
        A command goes out in this cycle.
    command_code, command_place, command_row, command_column : Out
        The command, as ``sim.pim.channel.ChannelRun.commands`` has it; row and column are 0 where it has none.
    address, segment, first, number : Out
        Of a dot product, as of `Computation`.
    hold, restart, rests : In(1), In(1), Out(1)
        As of `PimCircuit`.
    """

    def __init__(self, library: Library, geometry: PimGeometry) -> None:
        self.geometry = geometry
        g = geometry
        ports: dict[str, Any] = {
            "transfer": In(stream.Signature(transfer_macro(g))),
            "compute": In(stream.Signature(compute_macro(g))),
            "command_valid": Out(1),
            "command_code": Out(CODE_BITS),
            "command_place": Out(g.place_bits),
            "command_row": Out(g.row_bits),
            "command_column": Out(g.column_bits),
            "address": Out(g.address_bits),
            "segment": Out(g.segment_bits),
            "first": Out(1),
            "number": Out(1),
        }
        if g.driven:
            ports |= {"hold": In(1), "restart": In(1), "rests": Out(1)}
        super().__init__(library, geometry.name(library, "sequencer"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        g, tile, t = self.geometry, self.geometry.tile, self.geometry.timing
        count = tile.bank_machines
        go = [Signal(name=f"go_{number}") for number in range(count)]
        compute_goes, refreshes = Signal(), Signal(g.domains)
        newest = Signal()  # the machine that took the last macro
        shared = _Shared(m, g)

        machine_inputs = [{n: Signal(name=f"{n}_{i}") for n in ("may_open", "may_move")} for i in range(count)]
        compute_opens = Signal()
        made = self.library.make(BankMachine, g)
        machines = [
            self.place(
                m,
                made,
                f"machine_{i}",
                rank_opens=shared.one_opens,
                may_read=shared.may_read,
                may_write=shared.may_write,
                others=shared.rank_drives,
                **machine_inputs[i],
            )
            for i in range(count)
        ]
        computation = self.place(
            m,
            self.library.make(Computation, g),
            "computation",
            rank_opens=shared.group_opens,
            may_open=compute_opens,
            may_read=shared.may_read & shared.pim_drives,
            may_write=shared.may_write & shared.pim_drives,
        )

        # refresh: due every tREFI, for all ranks or in turn, when no row that it reaches is open
        domain_of = [machine.bank // tile.refreshed_banks for machine in machines]
        quiet = Signal(g.domains)
        for domain in range(g.domains):
            inside = [own == domain for own in domain_of]
            any_open = computation.open | Cat(*[x.open & i for x, i in zip(machines, inside, strict=True)]).any()
            due = self._refresh_due(m, domain, refreshes[domain])
            rests = elapsed(m, f"refresh_{domain}", refreshes[domain], t.tRFC)
            closings = [go[i] & (machines[i].command.payload.code == Command.PRE) & inside[i] for i in range(count)]
            closings.append(compute_goes & (computation.command.payload.code == Command.PIM_PRE))
            closed = elapsed(m, f"closed_{domain}", Cat(*closings).any(), t.tRP)
            m.d.comb += [
                refreshes[domain].eq(due & ~any_open & rests & closed & ~refreshes[:domain].any()),
                quiet[domain].eq(~due & rests),
            ]

        # rows are opened, and data moved, in the order in which transfers were taken
        older = [Const(0, 1)] * count
        if count == 2:
            older = [newest == i for i in range(2)]  # the other one is older, if it is busy
        for i in range(count):
            other = machines[count - 1 - i]
            allowed = quiet.bit_select(domain_of[i], 1) if g.domains > 1 else quiet
            if not tile.dual_row_buffer:
                allowed = allowed & computation.reopens
            m.d.comb += [
                machine_inputs[i]["may_open"].eq(allowed & ~(older[i] & other.waiting)),
                machine_inputs[i]["may_move"].eq(~(older[i] & (other.waiting | other.moving))),
            ]
        others_closed = Const(1, 1) if tile.dual_row_buffer else Cat(*[x.reopens for x in machines]).all()
        m.d.comb += compute_opens.eq(quiet.all() & others_closed)

        # one command a cycle
        for i in range(count):
            before = older[i] & machines[count - 1 - i].command.valid
            command = machines[i].command
            m.d.comb += [
                command.ready.eq(~before & ~computation.command.valid & ~refreshes.any()),
                go[i].eq(command.valid & command.ready),
            ]
        m.d.comb += [
            computation.command.ready.eq(~refreshes.any()),
            compute_goes.eq(computation.command.valid & computation.command.ready),
        ]
        self._send(m, refreshes, go, machines, compute_goes, computation)
        shared.connect(m, go, machines, compute_goes, computation)
        self._take(m, newest, machines, computation)
        if g.driven:
            m.d.comb += self.rests.eq(elapsed(m, "settling", self.command_valid, g.settled))
        m.d.comb += [
            getattr(self, name).eq(getattr(computation, name)) for name in ("address", "segment", "first", "number")
        ]
        return m

    def _refresh_due(self, m: Module, domain: int, refreshes: Value) -> Value:
        """Whether refreshes of a rank, or of all, are due: every tREFI, those of different ranks evenly apart."""
        g, t = self.geometry, self.geometry.timing
        if g.tile.dram.controller.refresh == "none":
            return Const(0, 1)
        start = (t.tREFI - (domain + 1) * t.tREFI // g.domains) % t.tREFI
        interval = Signal(range(t.tREFI), init=start, name=f"interval_{domain}")
        postponed = Signal(POSTPONED_BITS, name=f"postponed_{domain}")
        another = interval == t.tREFI - 1
        m.d.sync += [
            interval.eq(Mux(another, 0, interval + 1)),
            postponed.eq(postponed + (another & ~postponed.all()) - refreshes),
        ]
        due = Signal(name=f"due_{domain}")
        held = self.hold if g.driven else Const(0, 1)
        m.d.comb += due.eq(postponed.any() & ~held)
        if g.driven:
            with m.If(self.restart):
                m.d.sync += [interval.eq(start), postponed.eq(0)]
        return due

    def _send(
        self,
        m: Module,
        refreshes: Signal,
        go: list[Signal],
        machines: list[Placed],
        compute_goes: Signal,
        computation: Placed,
    ) -> None:
        m.d.comb += self.command_valid.eq(refreshes.any() | compute_goes | Cat(*go).any())
        with m.If(refreshes.any()):
            m.d.comb += self.command_code.eq(Command.REF)
        for domain in range(1, self.geometry.domains):
            with m.If(refreshes[domain]):
                m.d.comb += self.command_place.eq(domain)
        for chosen, agent in zip([*go, compute_goes], [*machines, computation], strict=True):
            command = agent.command.payload
            with m.If(chosen):
                m.d.comb += [
                    self.command_code.eq(command.code),
                    self.command_place.eq(command.place),
                    self.command_row.eq(command.row),
                    self.command_column.eq(command.column),
                ]

    def _take(self, m: Module, newest: Signal, machines: list[Placed], computation: Placed) -> None:
        """Whose macro is taken: each agent its own; with one row buffer only one stream's, computation first."""
        tile, count = self.geometry.tile, len(machines)
        transfer, compute = self.transfer, self.compute
        number: Value = transfer.payload.bank[0] if count == 2 else Const(0, 1)
        idle = [machine.macro.ready for machine in machines]
        other_rests: tuple[Value, Value] = (Const(1, 1), Const(1, 1))
        if not tile.dual_row_buffer:
            other_rests = computation.macro.ready & ~compute.valid, Cat(*idle).all()
        m.d.comb += [
            transfer.ready.eq(Mux(number, idle[-1], idle[0]) & other_rests[0]),
            compute.ready.eq(computation.macro.ready & other_rests[1]),
            computation.macro.valid.eq(compute.valid & other_rests[1]),
            computation.macro.payload.eq(compute.payload),
        ]
        for i, machine in enumerate(machines):
            m.d.comb += [
                machine.macro.valid.eq(transfer.valid & other_rests[0] & (number == i)),
                machine.macro.payload.eq(transfer.payload),
            ]
        if count == 2:
            with m.If(transfer.valid & transfer.ready):
                m.d.sync += newest.eq(number)


class _Shared:
    """Timing that all agents share: activations of each rank, and the data bus."""

    def __init__(self, m: Module, geometry: PimGeometry) -> None:
        g = self.geometry = geometry
        self.one_opens, self.group_opens = Signal(g.ranks, name="one_opens"), Signal(g.ranks, name="group_opens")
        self.rank_drives, self.pim_drives = Signal(g.ranks, name="rank_drives"), Signal(name="pim_drives")
        self.may_read, self.may_write = Signal(name="may_read"), Signal(name="may_write")

    def connect(
        self, m: Module, go: list[Signal], machines: list[Placed], compute_goes: Signal, computation: Placed
    ) -> None:
        """Count from the commands that went out."""
        g, t, burst = self.geometry, self.geometry.timing, self.geometry.burst
        ranks = width(g.ranks)
        rank_of = [machine.bank // g.tile.banks_per_rank for machine in machines]
        for rank in range(g.ranks):
            ones = [
                strobe & (machine.command.payload.code == Command.ACT) & (own == rank)
                for strobe, machine, own in zip(go, machines, rank_of, strict=True)
            ]
            group = compute_goes & (computation.command.payload.code == Command.PIM_ACT)
            if g.ranks > 1:
                group = group & (computation.command.payload.place[:ranks] == rank)
            one, many = Signal(name=f"activates_{rank}"), Signal(name=f"activates_group_{rank}")
            m.d.comb += [one.eq(Cat(*ones).any()), many.eq(group)]
            opens = (self.one_opens[rank], one, 1), (self.group_opens[rank], many, g.tile.activate_group)
            together = [opens] if g.tile.activations == "shared" else [opens[:1], opens[1:]]
            for number, sharing in enumerate(together):
                name = f"{rank}" if len(together) == 1 else f"{rank}_{('transfers', 'computation')[number]}"
                strobes = [(strobe, banks) for _, strobe, banks in sharing]
                apart = elapsed(m, f"activated_{name}", Cat(*(s for s, _ in strobes)).any(), t.tRRD_L)
                window = activation_window(m, f"rank_{name}", strobes, t.tFAW, max(banks for _, banks in strobes))
                m.d.comb += [allowed.eq(apart & window[int(banks > 1)]) for allowed, _, banks in sharing]

        def moves(transfer: Command, compute: Command, name: str) -> Signal:
            strobe = Signal(name=name)
            found = [s & (machine.command.payload.code == transfer) for s, machine in zip(go, machines, strict=True)]
            m.d.comb += strobe.eq(Cat(*found, compute_goes & (computation.command.payload.code == compute)).any())
            return strobe

        reads = moves(Command.RD, Command.PIM_READ, "reads")
        writes = moves(Command.WR, Command.PIM_WRITE, "writes")
        gap = max(burst, t.tCCD_L)
        m.d.comb += [
            self.may_read.eq(
                elapsed(m, "read_read", reads, gap) & elapsed(m, "write_read", writes, t.CWL + burst + t.tWTR_L)
            ),
            self.may_write.eq(
                elapsed(m, "write_write", writes, gap)
                & elapsed(m, "read_write", reads, max(t.CL + burst - t.CWL + t.tRTRS, 1))
            ),
        ]
        if g.ranks == 1:
            m.d.comb += [self.rank_drives.eq(1), self.pim_drives.eq(1)]
            return
        driver = Signal(range(g.ranks + 1))  # the PIM comes after the ranks
        switched = elapsed(m, "driver", reads | writes, burst + t.tRTRS)
        with m.If(reads | writes):
            m.d.sync += driver.eq(g.ranks)
            for strobe, own in zip(go, rank_of, strict=True):
                with m.If(strobe):
                    m.d.sync += driver.eq(own)
        m.d.comb += [
            self.pim_drives.eq(switched | (driver == g.ranks)),
            *(self.rank_drives[rank].eq(switched | (driver == rank)) for rank in range(g.ranks)),
        ]
