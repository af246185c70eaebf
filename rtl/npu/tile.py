"""The NPU tile: sequencer, queues, semaphores and units put together, with AXI4 and AXI4-Lite ports."""

from __future__ import annotations

from typing import Any, NamedTuple

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data
from amaranth.lib.wiring import In, Out, connect, flipped
from msgspec import Struct

from siliconloom.arch import timing
from siliconloom.arch.word import READ_BITS, SEMAPHORES, stored_bits, stored_grain
from siliconloom.rtl.cells.arbiter import FirstComeArbiter
from siliconloom.rtl.cells.arithmetic import stepped
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.cells.semaphore import SemaphoreCounter
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit, Library, Placed
from siliconloom.rtl.npu.circuits import (
    engines,
    rises_writers,
    sharers,
    sums_readers,
    sums_writers,
    unit_circuit,
    unit_circuits,
)
from siliconloom.rtl.npu.completion import Completion
from siliconloom.rtl.npu.decoding import joined
from siliconloom.rtl.npu.entries import queues
from siliconloom.rtl.npu.float_ways import float_ways
from siliconloom.rtl.npu.geometry import SIZE_BITS, Geometry, log2
from siliconloom.rtl.npu.ports import INCREMENTING, Ports, axi_master, axi_read, prefixes
from siliconloom.rtl.npu.registers import COUNTERS, SEMAPHORE_BITS, Cause, Registers, axi_lite
from siliconloom.rtl.npu.scratchpad import AccumulatorCircuit, ScratchpadCircuit
from siliconloom.rtl.npu.sequencer import Fetch, SequencerCircuit
from siliconloom.rtl.npu.sharing import FetchSharing, ReadSharing, WriteSharing
from siliconloom.rtl.npu.ways import lane_ways

PATIENCE = 8
"""Cycles without any progress after which a tile in which nothing is under way is stuck."""


class RunState(Struct, frozen=True):
    """State of the run, as the registers show it.

    Parameters
    ----------
    running, draining
        Instructions are begun; something went wrong, and those under way come to their end.
    ended
        Pulse: the run is over.
    cause, number
        What went wrong, and the place of the instruction concerned.
    cycles
        Cycles since the run began.
    asked
        A run has been asked for, and waits for a unit that has to rest first; ``None`` where there is none such.
    """

    running: Signal
    draining: Signal
    ended: Signal
    cause: Signal
    number: Signal
    cycles: Signal
    asked: Signal | None = None

    @property
    def busy(self) -> Value:
        """Whether a run is asked for, or under way."""
        under_way = self.running | self.draining
        return under_way if self.asked is None else under_way | self.asked


class Front(Struct, frozen=True):
    """A unit, its queue, and the track of what the unit has begun.

    Parameters
    ----------
    unit, queue
        As they were placed.
    entry
        The instruction in front, as `rtl.npu.entries` lays it out.
    clear
        Something stands in front, the run goes on, and what it waits for is there.
    issue
        It leaves the queue.
    read, done
        What has been issued and has not read its operands, is not complete; see `Completion`.
    """

    unit: Placed
    queue: Placed
    entry: Any
    clear: Signal
    issue: Signal
    read: Placed
    done: Placed

    @property
    def work(self) -> Value:
        """What leaves is no barrier, so the unit takes it."""
        return self.issue & ~self.entry.barrier

    @property
    def room(self) -> Value:
        """Whatever takes part in an issue is ready for one."""
        return self.unit.instruction.ready & self.read.issued.ready & self.done.issued.ready


class Semaphores(NamedTuple):
    """A bit per semaphore: it can be taken, is taken, is given; and whether the count of any overflows."""

    available: Signal
    take: Signal
    give: Signal
    overflow: Value


class Progress(NamedTuple):
    """Whether nothing is under way, all queues are empty, the program has ended; for how long nothing has moved."""

    quiet: Signal
    nothing_queued: Value
    program_over: Signal
    patience: Signal


class FirstFault(NamedTuple):
    """Whether something went wrong in the cycle before, what, and the place of the instruction concerned.

    Registers, since what can go wrong is seen all over the tile: a unit may begin one more instruction meanwhile. What
    is ``coming`` went wrong in the present cycle, or is known already and told in the next one.
    """

    happens: Signal
    cause: Signal
    number: Signal
    coming: Value


class Parts(Struct, frozen=True):
    """The tile's parts, for what looks at all of them: ``fronts`` by the units' names, ``start`` when a run begins."""

    control: Placed
    start: Value
    fetch: Placed
    sequencer: Placed
    semaphores: Semaphores
    fronts: dict[str, Front]
    accumulator: Placed
    scratchpad: Placed


class NpuTileCircuit(Circuit):
    """The whole tile.

    Members
    -------
    s_axi_* :
        AXI4-Lite slave: `rtl.npu.registers`.
    m_axi_* :
        AXI4 master for data; one identifier, so responses keep their order. Several, ``m_axi_<number>_*``, when the DMA
        is wider than one port, see `Ports`.
    m_axi_program_* :
        AXI4 master, reads only, for instructions.
    irq : Out(1)
        Interrupt, see the status register.
    trace_issue, trace_done : Out
        One bit per unit, in the order of their codes (load, store, matmul, vector): an instruction that is no barrier
        leaves its queue; it is complete from the next cycle on.
    trace_cycle : Out(64)
        Cycles since the run began.
    <unit>_<pin> :
        What a unit has outside of the tile (`UnitCircuit.pins`).
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        # refuse what has no circuit, or not a whole one, before anything is elaborated
        if geometry.dtype.is_integer:
            lane_ways()
        else:
            float_ways()
        self.circuits = unit_circuits(geometry)
        for unit in self.circuits:
            unit_circuit(library, unit, geometry)
        ports: dict[str, Any] = {
            "s_axi": In(axi_lite()),
            **{prefix: Out(axi_master(geometry.port_bytes, geometry.id_bits)) for prefix in prefixes(geometry)},
            "m_axi_program": Out(axi_read(geometry.port_bytes, geometry.id_bits)),
            "irq": Out(1),
            "trace_issue": Out(len(self.circuits)),
            "trace_done": Out(len(self.circuits)),
            "trace_cycle": Out(64),
        }
        for unit, circuit in self.circuits.items():
            ports |= {f"{unit}_{name}": member for name, member in circuit.pins(geometry).items()}
        super().__init__(library, library.prefix, ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        running, draining = Signal(), Signal()
        waiting = [u for u, circuit in self.circuits.items() if circuit.holds_start]
        asked = Signal(name="asked") if waiting else None
        run = RunState(running, draining, Signal(), Signal(4), Signal(SIZE_BITS), Signal(64), asked)
        counts = {f"{u}_{c}": Signal(64, name=f"{u}_{c}") for u in self.circuits for c in COUNTERS}
        control = self._registers(m, run, counts)
        start = control.start if asked is None else Signal(name="begin")
        fetch = self._fetch(m, control, start)
        sequencer = self._sequencer(m, run, start, fetch)
        semaphores = self._semaphores(m, control, start)
        units = {
            u: self.place(m, unit_circuit(self.library, u, self.geometry), u, **self._inputs(u, asked, start))
            for u in self.circuits
        }
        fronts = {u: self._front(m, u, unit, run, sequencer, semaphores) for u, unit in units.items()}
        self._issue(m, run, fronts)
        m.d.comb += [
            semaphores.take.eq(joined([Mux(front.issue, front.entry.wait, 0) for front in fronts.values()])),
            semaphores.give.eq(joined([track.give for f in fronts.values() for track in (f.read, f.done)])),
        ]
        if asked is not None:
            self._hold_start(m, control, asked, start, [units[u] for u in waiting])
        self._memory_port(m, units)
        self._pins(m, units)
        accumulator, scratchpad = self._memories(m, units)
        parts = Parts(control, start, fetch, sequencer, semaphores, fronts, accumulator, scratchpad)
        progress = self._progress(m, run, parts)
        fault = self._faults(m, run, parts, progress)
        self._course(m, run, parts, progress, fault)
        self._count(m, run, parts, counts)
        return m

    def _registers(self, m: Module, run: RunState, counts: dict[str, Signal]) -> Placed:
        """The registers behind the slave port, and the interrupt."""
        control = self.place(
            m,
            self.library.make(Registers, self.geometry),
            "registers",
            busy=run.busy,
            ended=run.ended,
            cause=run.cause,
            number=run.number,
            cycles=run.cycles,
            **counts,
        )
        connect(m, flipped(self.s_axi), control.s_axi)
        m.d.comb += self.irq.eq(control.irq)
        return control

    def _hold_start(self, m: Module, control: Placed, asked: Signal, begin: Signal, units: list[Placed]) -> None:
        """Let a run that was asked for begin when the units that it has to wait for rest, and keep them at rest."""
        timing.confirm("PIM_REFRESH", counters_that_begin_anew=1)
        m.d.comb += begin.eq(asked & Cat(*(unit.rests for unit in units)).all())
        with m.If(control.start):
            m.d.sync += asked.eq(1)
        with m.Elif(begin):
            m.d.sync += asked.eq(0)

    def _inputs(self, u: str, asked: Signal | None, begin: Value) -> dict[str, Any]:
        """What a unit is told that is not part of what every unit has."""
        circuit = self.circuits[u]
        pins = {
            name: getattr(self, f"{u}_{name}")
            for name, member in circuit.pins(self.geometry).items()
            if member.flow is In
        }
        return pins | ({"hold": asked, "restart": begin} if circuit.holds_start else {})

    def _fetch(self, m: Module, control: Placed, start: Value) -> Placed:
        """What reads the program from main memory."""
        fetch = self.place(
            m,
            self.library.make(Fetch, self.geometry),
            "fetch",
            start=start,
            base=control.program,
            words=Mux(control.words > self.geometry.program_words, 0, control.words),
        )
        port, burst, beat = self.m_axi_program, fetch.memory.burst, fetch.memory.beat
        m.d.comb += [
            port.arvalid.eq(burst.valid),
            burst.ready.eq(port.arready),
            port.araddr.eq(burst.payload.address),
            port.arlen.eq(burst.payload.length),
            port.arsize.eq(log2(self.geometry.port_bytes)),
            port.arburst.eq(INCREMENTING),
            beat.valid.eq(port.rvalid),
            beat.payload.data.eq(port.rdata),
            beat.payload.error.eq(port.rresp[1] | port.rid.any()),
            beat.payload.last.eq(port.rlast),
            port.rready.eq(beat.ready),
        ]
        return fetch

    def _sequencer(self, m: Module, run: RunState, start: Value, fetch: Placed) -> Placed:
        """The sequencer and the memory that holds the program for it."""
        geometry = self.geometry
        word, beat = Signal(READ_BITS), 8 * geometry.port_bytes
        width, grain = stored_bits(geometry.port_bytes), stored_grain(geometry.port_bytes)
        sequencer = self.place(
            m,
            self.library.make(SequencerCircuit, geometry),
            "sequencer",
            start=start,
            halt=run.draining,
            fetched=fetch.fetched,
            word=word,
        )
        depth = geometry.program_words
        index = range(depth).stop.bit_length() if depth & (depth - 1) else log2(depth)
        memory = self.place(
            m,
            self.library.make(SramWrapper, width, depth, grain),
            "program",
            ren=sequencer.read,
            raddr=sequencer.read_address[:index],
            wen=Cat(fetch.write[bit // beat] for bit in range(0, width, grain)),
            waddr=fetch.write_address[:index],
            wdata=Cat(*[fetch.write_data] * -(-width // beat))[:width],
        )
        m.d.comb += word.eq(memory.rdata[:READ_BITS])
        return sequencer

    def _semaphores(self, m: Module, control: Placed, start: Value) -> Semaphores:
        """A counter per semaphore, loaded from its register at the start of a run."""
        available, take, give = Signal(SEMAPHORES), Signal(SEMAPHORES), Signal(SEMAPHORES)
        counters = [
            self.place(
                m,
                self.library.make(SemaphoreCounter, SEMAPHORE_BITS),
                f"semaphore_{i}",
                load=start,
                initial=control.initial[SEMAPHORE_BITS * i : SEMAPHORE_BITS * (i + 1)],
                take=take[i],
                give=give[i],
            )
            for i in range(SEMAPHORES)
        ]
        m.d.comb += available.eq(Cat(*(c.available for c in counters)))
        return Semaphores(available, take, give, Cat(*(c.overflow for c in counters)).any())

    def tracked(self, u: str) -> int:
        """Instructions of a unit that may be under way at once."""
        return self.geometry.outstanding if u in engines() else self.circuits[u].in_flight(self.geometry)

    def _front(
        self, m: Module, u: str, unit: Placed, run: RunState, sequencer: Placed, semaphores: Semaphores
    ) -> Front:
        """The queue of a unit, and the track of what the unit has begun."""
        timing.confirm("QUEUE_POP", next_entry=Queue.LATENCY)
        timing.confirm("QUEUE_REFILL", place=Queue.LATENCY, entry=Queue.LATENCY)
        layout, row = queues(self.geometry)[u], self.circuits[u]
        queue = self.place(m, self.library.make(Queue, layout.size, self.geometry.queue_depth), f"{u}_queue")
        connect(m, getattr(sequencer, f"to_{u}"), queue.i)
        entry = data.View(layout, queue.o.payload)
        depth = self.tracked(u)
        tracks = []
        for kind, mask, pulse in (("read", entry.release, row.read), ("done", entry.post, row.done)):
            track = self.place(m, self.library.make(Completion, depth), f"{u}_{kind}", pulse=getattr(unit, pulse))
            m.d.comb += [track.issued.payload.barrier.eq(entry.barrier), track.issued.payload.mask.eq(mask)]
            tracks.append(track)
        clear, issue = Signal(name=f"{u}_clear"), Signal(name=f"{u}_issue")
        m.d.comb += [
            clear.eq(run.running & queue.o.valid & ((entry.wait & ~semaphores.available) == 0)),
            unit.instruction.payload.eq(queue.o.payload),
        ]
        return Front(unit, queue, entry, clear, issue, *tracks)

    def _issue(self, m: Module, run: RunState, fronts: dict[str, Front]) -> None:
        """Which instructions leave their queues.

        One goes to its unit and to both tracks at once, so each of these is offered it when the others are ready; a
        barrier leaves in the same way, but not to the unit.
        """
        may = {u: front.clear for u, front in fronts.items()} | self._port_order(m, fronts)
        for u, front in fronts.items():
            offered = Signal(name=f"{u}_offered")
            unit, read, done = front.unit.instruction, front.read.issued, front.done.issued
            m.d.comb += [
                offered.eq(may[u]),
                unit.valid.eq(offered & ~front.entry.barrier & read.ready & done.ready),
                read.valid.eq(offered & unit.ready & done.ready),
                done.valid.eq(offered & unit.ready & read.ready),
                front.issue.eq(offered & front.room),
                front.queue.o.ready.eq(front.issue | run.draining),
            ]

    def _port_order(self, m: Module, fronts: dict[str, Front]) -> dict[str, Value]:
        """Which engines of the memory port may be offered what stands in front of them.

        The port serves one transfer at a time, whoever asked first, on a tie the unit with the lower code.
        """
        names = list(engines())
        asks, rivals, flies = {}, {}, {}
        for u in names:
            front = fronts[u]
            flying = Signal(range(self.geometry.outstanding + 1), name=f"{u}_flying")
            asks[u] = Signal(name=f"{u}_asks")
            flies[u] = front.clear & (flying < self.geometry.outstanding)
            m.d.sync += flying.eq(stepped(flying, front.issue, front.done.left))
            rivals[u] = flies[u] & front.read.issued.ready & front.done.issued.ready & ~front.entry.barrier
            m.d.comb += asks[u].eq(flies[u] & front.room & ~front.entry.barrier)
        if len(names) < 2:
            return flies
        order = self.place(
            m,
            self.library.make(FirstComeArbiter, len(names)),
            "port_order",
            asks=Cat(*asks.values()),
            # nobody leaves unless all engines are free, which is known last
            rivals=Cat(*rivals.values()),
            taken=Cat(*(fronts[u].work for u in names)),
        )
        found = {}
        for number, u in enumerate(names):
            others_rest = Cat(*(fronts[other].unit.instruction.ready for other in names if other != u)).all()
            found[u] = flies[u] & (fronts[u].entry.barrier | (others_rest & order.first[number]))
        return found

    def _pins(self, m: Module, units: dict[str, Placed]) -> None:
        """Outputs of units that are outputs of the tile."""
        for u, circuit in self.circuits.items():
            for name, member in circuit.pins(self.geometry).items():
                if member.flow is Out:
                    m.d.comb += getattr(self, f"{u}_{name}").eq(getattr(units[u], name))

    def _memory_port(self, m: Module, units: dict[str, Placed]) -> None:
        """The AXI4 ports, and the engines that share them."""
        split = self.place(m, self.library.make(Ports, self.geometry), "ports")
        for prefix in prefixes(self.geometry):
            connect(m, getattr(split, prefix), flipped(getattr(self, prefix)))
        for side, kind in (("read", ReadSharing), ("write", WriteSharing)):
            channels = [units[u].memory for u, use in engines().items() if use == side]
            if len(channels) == 1:
                connect(m, channels[0], getattr(split, side))
            elif channels:
                shared = self.place(m, self.library.make(kind, self.geometry, len(channels)), f"{side}_sharing")
                for number, each in enumerate(channels):
                    connect(m, each, getattr(shared, f"engine_{number}"))
                connect(m, shared.port, getattr(split, side))

    def _memories(self, m: Module, units: dict[str, Placed]) -> tuple[Placed, Placed]:
        """The accumulator and the scratchpad, with the ports that the units' rows name."""
        accumulator = self.place(m, self.library.make(AccumulatorCircuit, self.geometry), "accumulator")
        sides = {
            "reads": sums_readers(self.geometry),
            "writes": sums_writers(self.geometry),
            "rises": rises_writers(self.geometry),
        }
        for side, users in sides.items():
            for u, own in users.items():
                connect(m, getattr(units[u], own), getattr(accumulator, f"{u}_{side}"))
        scratchpad = self.place(m, self.library.make(ScratchpadCircuit, self.geometry), "scratchpad")
        for u, circuit in self.circuits.items():
            for name, port in circuit.writes.items():
                connect(m, getattr(units[u], port.own), getattr(scratchpad, name))
        for name, sharing in sharers(self.geometry).items():
            readers = [getattr(units[u], port.own) for u, port in sharing]
            if len(readers) == 1:
                connect(m, readers[0], getattr(scratchpad, name))
                continue
            sizes = tuple(port.size(self.geometry) for _, port in sharing)
            shared = self.place(m, self.library.make(FetchSharing, sizes), f"{name}_sharing")
            for number, each in enumerate(readers):
                connect(m, each, getattr(shared, f"user_{number}"))
            connect(m, shared.port, getattr(scratchpad, name))
        return accumulator, scratchpad

    def _progress(self, m: Module, run: RunState, parts: Parts) -> Progress:
        """Whether anything is under way, or waits, and for how long the tile has been stuck."""
        patience = Signal(range(PATIENCE + 1))
        quiet, program_over, stuck = (Signal() for _ in range(3))
        fronts = parts.fronts.values()
        nothing_queued = ~Cat(*(front.queue.o.valid for front in fronts)).any()
        issued = Cat(*(front.issue for front in fronts)).any()
        m.d.comb += [
            quiet.eq(Cat(*(track.empty for front in fronts for track in (front.read, front.done))).all()),
            stuck.eq(run.running & quiet & ~nothing_queued & ~issued & (parts.sequencer.blocked | program_over)),
        ]
        m.d.sync += patience.eq(Mux(stuck, Mux(patience == PATIENCE, patience, patience + 1), 0))
        return Progress(quiet, nothing_queued, program_over, patience)

    def _faults(self, m: Module, run: RunState, parts: Parts, progress: Progress) -> FirstFault:
        """What went wrong in the cycle before: the first of these that did."""
        words, start, sequencer = parts.control.words, parts.start, parts.sequencer
        accumulator, scratchpad = parts.accumulator, parts.scratchpad
        movers = engines()
        others = [(u, front) for u, front in parts.fronts.items() if u not in movers]
        moving = [parts.fronts[u] for u in movers]
        conflicts = [each.conflict for each in (scratchpad, accumulator) if "conflict" in each.signature.members]
        conflict = joined(conflicts)  # of the cycle before
        faults = (
            (Cause.PROGRAM_SIZE, start & ((words == 0) | (words > self.geometry.program_words)), 0),
            (Cause.ILLEGAL_INSTRUCTION, sequencer.illegal, sequencer.number),
            *(
                (Cause.ILLEGAL_INSTRUCTION, f.unit.illegal, f.entry.number)
                for u, f in others
                if self.circuits[u].illegal
            ),
            *((Cause.MISALIGNED_OPERAND, f.unit.misaligned, f.entry.number) for _, f in reversed(others)),
            *((Cause.MISALIGNED_TRANSFER, f.unit.misaligned, f.entry.number) for f in moving),
            (Cause.LOCAL_ADDRESS, scratchpad.outside | accumulator.outside, 0),
            (Cause.BANK_CONFLICT, conflict, 0),
            (Cause.SEMAPHORE_OVERFLOW, parts.semaphores.overflow, 0),
            (Cause.BUS_ERROR, joined([parts.fetch.failed, *(f.unit.failed for f in moving)]), 0),
            (Cause.PROGRAM_SIZE, sequencer.running & (sequencer.number == words), sequencer.number),
            (Cause.DEADLOCK, progress.patience == PATIENCE, 0),
        )
        coming = conflict | parts.semaphores.overflow
        fault = FirstFault(Signal(name="fault"), Signal(4), Signal(SIZE_BITS), coming)
        watched = Signal()
        m.d.sync += watched.eq(run.running | start)
        for number, (code, happens, where) in reversed([*enumerate(faults)]):
            happened, there = Signal(name=f"fault_{number}"), Signal(SIZE_BITS, name=f"fault_{number}_at")
            m.d.sync += [happened.eq(happens), there.eq(where)]
            with m.If(happened & watched):
                m.d.comb += [fault.cause.eq(code), fault.number.eq(there), fault.happens.eq(1)]
        return fault

    def _course(self, m: Module, run: RunState, parts: Parts, progress: Progress, fault: FirstFault) -> None:
        """The run from its start to its end, good or bad, and what is traced of it."""
        start, sequencer, fronts = parts.start, parts.sequencer, parts.fronts.values()
        # words still on their way after a fault would be taken for those of the next run
        resting = progress.quiet & progress.nothing_queued & parts.fetch.idle
        over = Signal()
        m.d.comb += [
            # the last instruction may have lifted a count too high: that is a fault of the next cycle
            over.eq(
                run.running & (progress.program_over | sequencer.ended) & resting & ~(fault.happens | fault.coming)
            ),
            run.ended.eq(over | (run.draining & resting)),
            self.trace_cycle.eq(run.cycles),
            self.trace_issue.eq(Cat(*(front.work for front in fronts))),
            self.trace_done.eq(Cat(*(front.done.finished for front in fronts))),
        ]
        with m.If(run.running | run.draining):
            m.d.sync += run.cycles.eq(run.cycles + 1)
        with m.If(sequencer.ended):
            m.d.sync += progress.program_over.eq(1)
        with m.If(over):
            m.d.sync += [run.running.eq(0), run.cycles.eq(run.cycles)]
        with m.If(run.draining & resting):
            m.d.sync += [run.draining.eq(0), run.cycles.eq(run.cycles)]
        with m.If(start):
            m.d.sync += [
                run.cycles.eq(1),
                run.cause.eq(0),
                run.number.eq(0),
                run.running.eq(1),
                progress.program_over.eq(0),
            ]
        with m.If(fault.happens & ~run.draining):
            m.d.sync += [run.running.eq(0), run.draining.eq(1), run.cause.eq(fault.cause), run.number.eq(fault.number)]

    def _count(self, m: Module, run: RunState, parts: Parts, counts: dict[str, Signal]) -> None:
        """The counters of the units, by the names of their registers."""
        for u, circuit in self.circuits.items():
            front = parts.fronts[u]
            works = getattr(front.unit, circuit.busy)
            for name, counts_now in (
                ("busy", works | front.work if circuit.counts_issue else works),
                ("waiting", run.running & front.queue.o.valid & ~front.issue),
                ("completed", front.done.finished),
            ):
                counter = counts[f"{u}_{name}"]
                with m.If(parts.start):
                    m.d.sync += counter.eq(0)
                with m.Elif(counts_now):
                    m.d.sync += counter.eq(counter + 1)
