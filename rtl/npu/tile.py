"""The NPU tile: sequencer, queues, semaphores and units put together, with AXI4 and AXI4-Lite ports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from siliconloom.arch import timing
from siliconloom.arch.isa import SEMAPHORES, WORD_BITS
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.cells.semaphore import SemaphoreCounter
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.circuits import readers, unit_circuits
from siliconloom.rtl.npu.completion import Completion
from siliconloom.rtl.npu.decoding import joined
from siliconloom.rtl.npu.entries import QUEUES
from siliconloom.rtl.npu.geometry import SIZE_BITS, Geometry, log2
from siliconloom.rtl.npu.ports import INCREMENTING, Ports, axi_read, axi_write, prefixes
from siliconloom.rtl.npu.registers import COUNTERS, SEMAPHORE_BITS, UNITS, Cause, Registers, slave_ports
from siliconloom.rtl.npu.scratchpad import AccumulatorCircuit, ScratchpadCircuit
from siliconloom.rtl.npu.sequencer import Fetch, SequencerCircuit
from siliconloom.rtl.npu.ways import lane_ways

PATIENCE = 8
"""Cycles without any progress after which a tile in which nothing is under way is stuck."""

Placed = dict[str, Signal]
"""Outputs of a circuit that was placed, by the names of its ports."""


@dataclass(frozen=True)
class Run:
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
    """

    running: Signal
    draining: Signal
    ended: Signal
    cause: Signal
    number: Signal
    cycles: Signal


@dataclass(frozen=True)
class Front:
    """What passes between a unit and its queue.

    Parameters
    ----------
    issue, entry
        The instruction in front leaves the queue; that instruction, as `rtl.npu.entries` lays it out.
    ready
        The queue has a place for an instruction of the sequencer's.
    read, done
        Pulses of the unit, see `UnitCircuit`.
    free
        The unit takes an instruction.
    """

    issue: Signal
    entry: Signal
    ready: Signal
    read: Signal
    done: Signal
    free: Signal

    @classmethod
    def of(cls, unit: str) -> Front:
        """Fresh signals for a unit."""
        return cls(
            issue=Signal(name=f"{unit}_issue"),
            entry=Signal(QUEUES[unit].size, name=f"{unit}_entry"),
            ready=Signal(name=f"{unit}_ready"),
            read=Signal(name=f"{unit}_read_pulse"),
            done=Signal(name=f"{unit}_done_pulse"),
            free=Signal(name=f"{unit}_free"),
        )


@dataclass(frozen=True)
class Waiting:
    """What a unit's queue, and the track of what the unit has begun, tell the rest of the tile.

    Parameters
    ----------
    valid, barrier, number
        Something stands in front; it is a barrier; its place in the program.
    wants, work
        It could leave as far as its own unit is concerned; it leaves and is no barrier, so the unit takes it.
    takes, gives
        Semaphores that are taken by what leaves, and given by what has been read and by what is done.
    empty
        Nothing is left to be read, and nothing to be done.
    finished, left
        Instructions that are complete, without and with barriers, see `Completion`.
    """

    valid: Value
    barrier: Value
    number: Value
    wants: Value
    work: Value
    takes: Value
    gives: tuple[Value, Value]
    empty: tuple[Value, Value]
    finished: Value
    left: Value


class Engine(NamedTuple):
    """Outputs of an engine of the DMA, see `rtl.npu.dma`."""

    free: Signal
    held: Signal
    read: Signal
    done: Signal
    misaligned: Signal
    failed: Signal


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


class Fault(NamedTuple):
    """Whether something goes wrong in this cycle, what, and the place of the instruction concerned."""

    happens: Signal
    cause: Signal
    number: Signal


@dataclass(frozen=True)
class Parts:
    """The tile's parts, for what looks at all of them: outputs of the circuits, and by unit what else belongs to it."""

    control: Placed
    fetch: Placed
    sequencer: Placed
    semaphores: Semaphores
    fronts: dict[str, Front]
    waiting: dict[str, Waiting]
    engines: dict[str, Engine]
    units: dict[str, Placed]
    accumulator: Placed
    scratchpad: Placed

    @property
    def others(self) -> list[str]:
        """Units that are no engines of the DMA."""
        return [u for u in self.fronts if u not in self.engines]


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
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        lane_ways()  # refuses a function, and below a unit, without a circuit before anything is made
        self.circuits = unit_circuits()
        ports: dict[str, Any] = {
            **slave_ports(),
            **{k: v for prefix in prefixes(geometry) for k, v in axi_read(geometry.port_bytes, prefix).items()},
            **{k: v for prefix in prefixes(geometry) for k, v in axi_write(geometry.port_bytes, prefix).items()},
            **axi_read(geometry.port_bytes, "m_axi_program"),
            "irq": Out(1),
            "trace_issue": Out(len(UNITS)),
            "trace_done": Out(len(UNITS)),
            "trace_cycle": Out(64),
        }
        super().__init__(library, library.prefix, ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        running, draining = Signal(), Signal()
        run = Run(running, draining, Signal(), Signal(4), Signal(SIZE_BITS), Signal(64))
        fronts = {u: Front.of(u) for u in UNITS}
        counts = {f"{u}_{c}": Signal(64, name=f"{u}_{c}") for u in UNITS for c in COUNTERS}
        control = self._registers(m, run, counts)
        fetch = self._fetch(m, control)
        sequencer = self._sequencer(m, run, control, fetch, fronts)
        semaphores = self._semaphores(m, control)
        waiting = {u: self._queue(m, u, run, fronts[u], sequencer, semaphores) for u in UNITS}
        m.d.comb += [
            semaphores.take.eq(joined([waiting[u].takes for u in UNITS])),
            semaphores.give.eq(joined([mask for u in UNITS for mask in waiting[u].gives])),
        ]
        engines = {u: Engine(*(Signal(name=f"{u}_engine_{n}") for n in Engine._fields)) for u in ("load", "store")}
        self._issue(m, fronts, waiting, engines)
        words = {n: Signal(8 * s, name=f"{n}_word") for n, s in readers(self.geometry).items()}
        units = self._transfers(m, fronts, waiting, engines, words["store"])
        sums = Signal(8 * self.geometry.results, name="sums_data")
        units |= self._computing_units(m, fronts, waiting, words, sums)
        accumulator, scratchpad = self._memories(m, units, words, sums)
        parts = Parts(control, fetch, sequencer, semaphores, fronts, waiting, engines, units, accumulator, scratchpad)
        self._answers(m, parts)
        progress = self._progress(m, run, parts)
        fault = self._faults(m, parts, progress)
        self._course(m, run, parts, progress, fault)
        self._count(m, run, parts, counts)
        return m

    def _registers(self, m: Module, run: Run, counts: dict[str, Signal]) -> Placed:
        """The registers behind the slave port, and the interrupt."""
        slave = {p: getattr(self, p) for p in self.signature.members if p.startswith("s_axi_")}
        registers = self.library.make(Registers, self.geometry)
        inputs = {p: s for p, s in slave.items() if self.signature.members[p].flow == In}
        control = self.place(
            m,
            registers,
            "registers",
            **inputs,
            busy=run.running | run.draining,
            ended=run.ended,
            cause=run.cause,
            number=run.number,
            cycles=run.cycles,
            **counts,
        )
        for port, signal in slave.items():
            if self.signature.members[port].flow == Out:
                m.d.comb += signal.eq(control[port])
        m.d.comb += self.irq.eq(control["irq"])
        return control

    def _fetch(self, m: Module, control: Placed) -> Placed:
        """What reads the program from main memory."""
        fetch = self.place(
            m,
            self.library.make(Fetch, self.geometry),
            "fetch",
            start=control["start"],
            base=control["program"],
            words=control["words"],
            ar_ready=self.m_axi_program_arready,
            r_valid=self.m_axi_program_rvalid,
            r_data=self.m_axi_program_rdata,
            r_error=self.m_axi_program_rresp[1],
        )
        for name, value in (
            ("arvalid", fetch["ar_valid"]),
            ("araddr", fetch["ar_addr"]),
            ("arlen", fetch["ar_len"]),
            ("arsize", log2(self.geometry.port_bytes)),
            ("arburst", INCREMENTING),
            ("rready", 1),
        ):
            m.d.comb += getattr(self, f"m_axi_program_{name}").eq(value)
        return fetch

    def _sequencer(self, m: Module, run: Run, control: Placed, fetch: Placed, fronts: dict[str, Front]) -> Placed:
        """The sequencer and the memory that holds the program for it."""
        geometry = self.geometry
        word = Signal(WORD_BITS)
        sequencer = self.place(
            m,
            self.library.make(SequencerCircuit, geometry),
            "sequencer",
            start=control["start"],
            halt=run.draining,
            fetched=fetch["fetched"],
            word=word,
            **{f"{u}_ready": front.ready for u, front in fronts.items()},
        )
        depth = geometry.program_words
        index = range(depth).stop.bit_length() if depth & (depth - 1) else log2(depth)
        m.d.comb += word.eq(
            self.place(
                m,
                self.library.make(SramWrapper, WORD_BITS, depth, 8 * geometry.port_bytes),
                "program",
                ren=1,
                raddr=sequencer["read_address"][:index],
                wen=fetch["write"],
                waddr=fetch["write_address"][:index],
                wdata=Cat(*[fetch["write_data"]] * (WORD_BITS // (8 * geometry.port_bytes))),
            )["rdata"]
        )
        return sequencer

    def _semaphores(self, m: Module, control: Placed) -> Semaphores:
        """A counter per semaphore, loaded from its register at the start of a run."""
        available, take, give = Signal(SEMAPHORES), Signal(SEMAPHORES), Signal(SEMAPHORES)
        counters = [
            self.place(
                m,
                self.library.make(SemaphoreCounter, SEMAPHORE_BITS),
                f"semaphore_{i}",
                load=control["start"],
                initial=control["initial"][SEMAPHORE_BITS * i : SEMAPHORE_BITS * (i + 1)],
                take=take[i],
                give=give[i],
            )
            for i in range(SEMAPHORES)
        ]
        m.d.comb += available.eq(Cat(*(c["available"] for c in counters)))
        return Semaphores(available, take, give, Cat(*(c["overflow"] for c in counters)).any())

    def _queue(self, m: Module, u: str, run: Run, front: Front, sequencer: Placed, semaphores: Semaphores) -> Waiting:
        """The queue of a unit, and the track of what the unit has begun."""
        timing.confirm("QUEUE_POP", next_entry=Queue.LATENCY)
        timing.confirm("QUEUE_REFILL", place=Queue.LATENCY, entry=Queue.LATENCY)
        layout = QUEUES[u]
        queue = self.place(
            m,
            self.library.make(Queue, layout.size, self.geometry.queue_depth),
            f"{u}_queue",
            i_valid=sequencer[f"{u}_valid"],
            i_payload=sequencer[f"{u}_entry"],
            o_ready=front.issue | run.draining,
        )
        view = data.View(layout, queue["o_payload"])
        m.d.comb += [front.ready.eq(queue["i_ready"]), front.entry.eq(queue["o_payload"])]
        read, done = (
            self.place(
                m,
                self.library.make(Completion, self.circuits[u].in_flight(self.geometry)),
                f"{u}_{kind}",
                issue=front.issue,
                barrier=view.barrier,
                mask=mask,
                pulse=pulse,
            )
            for kind, mask, pulse in (("read", view.release, front.read), ("done", view.post, front.done))
        )
        wants = (
            run.running
            & queue["o_valid"]
            & ((view.wait & ~semaphores.available) == 0)
            & read["ready"]
            & done["ready"]
            & front.free
        )
        return Waiting(
            valid=queue["o_valid"],
            barrier=view.barrier,
            number=view.number,
            wants=wants,
            work=front.issue & ~view.barrier,
            takes=Mux(front.issue, view.wait, 0),
            gives=(read["give"], done["give"]),
            empty=(read["empty"], done["empty"]),
            finished=done["finished"],
            left=done["left"],
        )

    def _issue(
        self, m: Module, fronts: dict[str, Front], waiting: dict[str, Waiting], engines: dict[str, Engine]
    ) -> None:
        """Which instructions leave their queues.

        The memory port serves one transfer at a time, whoever asked first, loads before stores on a tie.
        """
        port_free, older = Signal(), Signal()
        asks = {}
        for u, engine in engines.items():
            flying = Signal(range(self.geometry.outstanding + 1), name=f"{u}_flying")
            asks[u] = Signal(name=f"{u}_asks")
            m.d.sync += flying.eq(flying + fronts[u].issue - waiting[u].left)
            m.d.comb += [
                fronts[u].free.eq(engine.free & (flying < self.geometry.outstanding)),
                asks[u].eq(waiting[u].wants & ~waiting[u].barrier),
            ]
        load, store = waiting["load"], waiting["store"]
        m.d.comb += [
            port_free.eq(engines["load"].free & engines["store"].free),
            fronts["load"].issue.eq(load.wants & (load.barrier | (port_free & ~(asks["store"] & older)))),
            fronts["store"].issue.eq(store.wants & (store.barrier | (port_free & (~asks["load"] | older)))),
        ]
        put_off = {u: asks[u] & ~fronts[u].issue for u in engines}
        m.d.sync += older.eq(put_off["store"] & (~put_off["load"] | older))
        for u, front in fronts.items():
            if u not in engines:
                m.d.comb += front.issue.eq(waiting[u].wants)

    def _transfers(
        self,
        m: Module,
        fronts: dict[str, Front],
        waiting: dict[str, Waiting],
        engines: dict[str, Engine],
        stored: Signal,
    ) -> dict[str, Placed]:
        """The engines of the DMA, and the AXI4 ports that they share; ``stored`` is what the store engine has read."""
        geometry = self.geometry
        wide = {name: Signal(width, name=f"port_{name}") for name, width in port_inputs(geometry).items()}
        load = self.place(
            m,
            self.library.make(self.circuits["load"].make, geometry),
            "load",
            issue=waiting["load"].work,
            entry=fronts["load"].entry,
            **{name: signal for name, signal in wide.items() if name.startswith(("ar", "r_"))},
        )
        store = self.place(
            m,
            self.library.make(self.circuits["store"].make, geometry),
            "store",
            issue=waiting["store"].work,
            entry=fronts["store"].entry,
            fetch_data=stored,
            **{name: signal for name, signal in wide.items() if name.startswith(("aw", "w_", "b_"))},
        )
        names = [name for p in prefixes(geometry) for name in (*axi_read(1, p), *axi_write(1, p))]
        split = self.place(
            m,
            self.library.make(Ports, geometry),
            "ports",
            **{name: load[name] for name in ("ar_valid", "ar_addr", "ar_len")},
            **{
                name: store[name] for name in ("aw_valid", "aw_addr", "aw_len", "w_valid", "w_data", "w_strb", "w_last")
            },
            **{name: getattr(self, name) for name in names if self.signature.members[name].flow == In},
        )
        m.d.comb += [signal.eq(split[name]) for name, signal in wide.items()]
        for name in names:
            if self.signature.members[name].flow == Out:
                m.d.comb += getattr(self, name).eq(split[name])
        placed = {"load": load, "store": store}
        for u, engine in engines.items():
            for name, signal in engine._asdict().items():
                m.d.comb += signal.eq(placed[u][name])
        return placed

    def _computing_units(
        self, m: Module, fronts: dict[str, Front], waiting: dict[str, Waiting], words: dict[str, Signal], sums: Signal
    ) -> dict[str, Placed]:
        """The units that are no engines: ``words`` is what readers of the scratchpad have read, by their names."""
        matmul = self.place(
            m,
            self.library.make(self.circuits["matmul"].make, self.geometry),
            "matmul",
            issue=waiting["matmul"].work,
            entry=fronts["matmul"].entry,
            loaded_data=words["loaded"],
            moving_data=words["moving"],
        )
        vector = self.place(
            m,
            self.library.make(self.circuits["vector"].make, self.geometry),
            "vector",
            issue=waiting["vector"].work,
            entry=fronts["vector"].entry,
            first_data=words["first"],
            second_data=words["second"],
            sums_data=sums,
        )
        placed = {"matmul": matmul, "vector": vector}
        for u, circuit in self.circuits.items():
            if u not in ("load", "store", *placed):
                read = {f"{port.own}_data": words[name] for name, port in circuit.reads.items()}
                kind = self.library.make(circuit.make, self.geometry)
                placed[u] = self.place(m, kind, u, issue=waiting[u].work, entry=fronts[u].entry, **read)
        return placed

    def _memories(
        self, m: Module, units: dict[str, Placed], words: dict[str, Signal], sums: Signal
    ) -> tuple[Placed, Placed]:
        """The accumulator and the scratchpad, and what is read from them."""
        matmul, vector = units["matmul"], units["vector"]
        accumulator = self.place(
            m,
            self.library.make(AccumulatorCircuit, self.geometry),
            "accumulator",
            valid=matmul["sums_valid"],
            line=matmul["sums_line"],
            add=matmul["sums_add"],
            sums=matmul["sums"],
            read=vector["sums"],
            read_line=vector["sums_line"],
        )
        m.d.comb += sums.eq(accumulator["read_data"])
        scratchpad = self.place(
            m, self.library.make(ScratchpadCircuit, self.geometry), "scratchpad", **self._local_ports(units)
        )
        for name, signal in words.items():
            m.d.comb += signal.eq(scratchpad[f"{name}_data"])
        return accumulator, scratchpad

    def _local_ports(self, units: dict[str, dict[str, Signal]]) -> dict[str, Signal]:
        """Inputs of the scratchpad: the units' ports by the names that these have there."""
        found: dict[str, Signal] = {}
        for u, circuit in self.circuits.items():
            for name, port in (*circuit.reads.items(), *circuit.writes.items()):
                found |= {name: units[u][port.own], f"{name}_address": units[u][f"{port.own}_address"]}
                if name in circuit.writes:
                    found[f"{name}_data"] = units[u][f"{port.own}_data"]
        return found

    def _answers(self, m: Module, parts: Parts) -> None:
        """What the units tell their queues: that they are free, have read, are done."""
        m.d.comb += [parts.fronts[u].free.eq(parts.units[u]["free"]) for u in parts.others]
        for u in parts.others:
            circuit, front, unit = self.circuits[u], parts.fronts[u], parts.units[u]
            m.d.comb += [front.read.eq(unit[circuit.read]), front.done.eq(unit[circuit.done])]
        for u, engine in parts.engines.items():
            m.d.comb += [parts.fronts[u].read.eq(engine.read), parts.fronts[u].done.eq(engine.done)]

    def _progress(self, m: Module, run: Run, parts: Parts) -> Progress:
        """Whether anything is under way, or waits, and for how long the tile has been stuck."""
        patience = Signal(range(PATIENCE + 1))
        quiet, program_over, stuck = (Signal() for _ in range(3))
        waiting, sequencer = parts.waiting.values(), parts.sequencer
        nothing_queued = ~Cat(*(w.valid for w in waiting)).any()
        issued = Cat(*(front.issue for front in parts.fronts.values())).any()
        m.d.comb += [
            quiet.eq(Cat(*(empty for w in waiting for empty in w.empty)).all()),
            stuck.eq(run.running & quiet & ~nothing_queued & ~issued & (sequencer["blocked"] | program_over)),
        ]
        m.d.sync += patience.eq(Mux(stuck, Mux(patience == PATIENCE, patience, patience + 1), 0))
        return Progress(quiet, nothing_queued, program_over, patience)

    def _faults(self, m: Module, parts: Parts, progress: Progress) -> Fault:
        """What goes wrong in this cycle: the first of these that does."""
        words, start, sequencer = parts.control["words"], parts.control["start"], parts.sequencer
        units, engines, others = parts.units, parts.engines, parts.others
        accumulator, scratchpad = parts.accumulator, parts.scratchpad
        numbers = {u: w.number for u, w in parts.waiting.items()}
        faults = (
            (Cause.PROGRAM_SIZE, start & ((words == 0) | (words > self.geometry.program_words)), 0),
            (Cause.ILLEGAL_INSTRUCTION, sequencer["illegal"], sequencer["number"]),
            *((Cause.ILLEGAL_INSTRUCTION, units[u]["illegal"], numbers[u]) for u in others if self.circuits[u].illegal),
            *((Cause.MISALIGNED_OPERAND, units[u]["misaligned"], numbers[u]) for u in reversed(others)),
            (Cause.MISALIGNED_TRANSFER, engines["load"].misaligned, numbers["load"]),
            (Cause.MISALIGNED_TRANSFER, engines["store"].misaligned, numbers["store"]),
            (Cause.LOCAL_ADDRESS, scratchpad["outside"] | accumulator["outside"], 0),
            (Cause.BANK_CONFLICT, scratchpad["conflict"], 0),
            (Cause.SEMAPHORE_OVERFLOW, parts.semaphores.overflow, 0),
            (Cause.BUS_ERROR, parts.fetch["failed"] | engines["load"].failed | engines["store"].failed, 0),
            (Cause.PROGRAM_SIZE, sequencer["running"] & (sequencer["number"] == words), sequencer["number"]),
            (Cause.DEADLOCK, progress.patience == PATIENCE, 0),
        )
        wrong, found, place = Signal(), Signal(4), Signal(SIZE_BITS)
        for code, happens, where in reversed(faults):
            with m.If(happens):
                m.d.comb += [found.eq(code), place.eq(where), wrong.eq(1)]
        return Fault(wrong, found, place)

    def _course(self, m: Module, run: Run, parts: Parts, progress: Progress, fault: Fault) -> None:
        """The run from its start to its end, good or bad, and what is traced of it."""
        start, sequencer, waiting = parts.control["start"], parts.sequencer, parts.waiting.values()
        quiet, nothing_queued = progress.quiet, progress.nothing_queued
        over = Signal()
        m.d.comb += [
            over.eq(run.running & (progress.program_over | sequencer["ended"]) & quiet & nothing_queued),
            run.ended.eq(over | (run.draining & quiet & nothing_queued)),
            self.trace_cycle.eq(run.cycles),
            self.trace_issue.eq(Cat(*(w.work for w in waiting))),
            self.trace_done.eq(Cat(*(w.finished for w in waiting))),
        ]
        with m.If(run.running | run.draining):
            m.d.sync += run.cycles.eq(run.cycles + 1)
        with m.If(sequencer["ended"]):
            m.d.sync += progress.program_over.eq(1)
        with m.If(over):
            m.d.sync += [run.running.eq(0), run.cycles.eq(run.cycles)]
        with m.If(run.draining & quiet & nothing_queued):
            m.d.sync += [run.draining.eq(0), run.cycles.eq(run.cycles)]
        with m.If(start):
            m.d.sync += [
                run.cycles.eq(1),
                run.cause.eq(0),
                run.number.eq(0),
                run.running.eq(1),
                progress.program_over.eq(0),
            ]
        with m.If(fault.happens & (run.running | start)):
            m.d.sync += [run.running.eq(0), run.draining.eq(1), run.cause.eq(fault.cause), run.number.eq(fault.number)]

    def _count(self, m: Module, run: Run, parts: Parts, counts: dict[str, Signal]) -> None:
        """The counters of the units, by the names of their registers."""
        for u, circuit in self.circuits.items():
            waiting, issue = parts.waiting[u], parts.fronts[u].issue
            works = getattr(parts.engines[u], circuit.busy) if u in parts.engines else parts.units[u][circuit.busy]
            for name, counts_now in (
                ("busy", works | waiting.work if circuit.counts_issue else works),
                ("waiting", run.running & waiting.valid & ~issue),
                ("completed", waiting.finished),
            ):
                counter = counts[f"{u}_{name}"]
                with m.If(parts.control["start"]):
                    m.d.sync += counter.eq(0)
                with m.Elif(counts_now):
                    m.d.sync += counter.eq(counter + 1)


def port_inputs(geometry: Geometry) -> dict[str, int]:
    """Widths of what the engines of the DMA hear from the memory port, by name."""
    return {
        "ar_ready": 1,
        "r_valid": 1,
        "r_data": 8 * geometry.bus,
        "r_error": 1,
        "aw_ready": 1,
        "w_ready": 1,
        "b_valid": 1,
        "b_error": 1,
    }
