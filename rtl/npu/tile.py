"""The NPU tile: sequencer, queues, semaphores and units put together, with AXI4 and AXI4-Lite ports."""

from __future__ import annotations

from typing import Any

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
from siliconloom.rtl.npu.entries import QUEUES
from siliconloom.rtl.npu.geometry import SIZE_BITS, Geometry, log2
from siliconloom.rtl.npu.ports import INCREMENTING, Ports, axi_read, axi_write, prefixes
from siliconloom.rtl.npu.registers import COUNTERS, SEMAPHORE_BITS, UNITS, Cause, Registers, slave_ports
from siliconloom.rtl.npu.scratchpad import AccumulatorCircuit, ScratchpadCircuit
from siliconloom.rtl.npu.sequencer import Fetch, SequencerCircuit
from siliconloom.rtl.npu.ways import lane_ways

ENGINE = ("free", "held", "read", "done", "misaligned", "failed")
PATIENCE = 8
"""Cycles without any progress after which a tile in which nothing is under way is stuck."""


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
        geometry = self.geometry
        running, draining = Signal(), Signal()
        issue = {u: Signal(name=f"{u}_issue") for u in UNITS}
        entry = {u: Signal(QUEUES[u].size, name=f"{u}_entry") for u in UNITS}

        # Registers.
        cause, number, cycles, ended = Signal(4), Signal(SIZE_BITS), Signal(64), Signal()
        counts = {f"{u}_{c}": Signal(64, name=f"{u}_{c}") for u in UNITS for c in COUNTERS}
        slave = {p: getattr(self, p) for p in self.signature.members if p.startswith("s_axi_")}
        registers = self.library.make(Registers, geometry)
        inputs = {p: s for p, s in slave.items() if self.signature.members[p].flow == In}
        control = self.place(
            m,
            registers,
            "registers",
            **inputs,
            busy=running | draining,
            ended=ended,
            cause=cause,
            number=number,
            cycles=cycles,
            **counts,
        )
        for port, signal in slave.items():
            if self.signature.members[port].flow == Out:
                m.d.comb += signal.eq(control[port])
        start = control["start"]
        m.d.comb += self.irq.eq(control["irq"])

        # Program.
        fetch = self.place(
            m,
            self.library.make(Fetch, geometry),
            "fetch",
            start=start,
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
            ("arsize", log2(geometry.port_bytes)),
            ("arburst", INCREMENTING),
            ("rready", 1),
        ):
            m.d.comb += getattr(self, f"m_axi_program_{name}").eq(value)
        word = Signal(WORD_BITS)
        sequencer_inputs = {f"{u}_ready": Signal(name=f"{u}_ready") for u in UNITS}
        sequencer = self.place(
            m,
            self.library.make(SequencerCircuit, geometry),
            "sequencer",
            start=start,
            halt=draining,
            fetched=fetch["fetched"],
            word=word,
            **sequencer_inputs,
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

        # Queues, semaphores, completion.
        timing.confirm("QUEUE_POP", next_entry=Queue.LATENCY)
        timing.confirm("QUEUE_REFILL", place=Queue.LATENCY, entry=Queue.LATENCY)
        available, take, give = Signal(SEMAPHORES), Signal(SEMAPHORES), Signal(SEMAPHORES)
        counters = [
            self.place(
                m,
                self.library.make(SemaphoreCounter, SEMAPHORE_BITS),
                f"semaphore_{i}",
                load=start,
                initial=control["initial"][SEMAPHORE_BITS * i : SEMAPHORE_BITS * (i + 1)],
                take=take[i],
                give=give[i],
            )
            for i in range(SEMAPHORES)
        ]
        m.d.comb += available.eq(Cat(*(c["available"] for c in counters)))
        overflow = Cat(*(c["overflow"] for c in counters)).any()
        pulses = {u: {kind: Signal(name=f"{u}_{kind}_pulse") for kind in ("read", "done")} for u in UNITS}
        unit_free = {u: Signal(name=f"{u}_free") for u in UNITS}
        wants, barriers, valids, empties, gives, takes, places = {}, {}, {}, [], [], [], {}
        finished, left = {}, {}
        for u in UNITS:
            layout = QUEUES[u]
            queue = self.place(
                m,
                self.library.make(Queue, layout.size, geometry.queue_depth),
                f"{u}_queue",
                i_valid=sequencer[f"{u}_valid"],
                i_payload=sequencer[f"{u}_entry"],
                o_ready=issue[u] | draining,
            )
            view = data.View(layout, queue["o_payload"])
            m.d.comb += [sequencer_inputs[f"{u}_ready"].eq(queue["i_ready"]), entry[u].eq(queue["o_payload"])]
            valids[u], barriers[u], places[u] = queue["o_valid"], view.barrier, view.number
            track = {}
            for kind, mask in (("read", view.release), ("done", view.post)):
                track[kind] = self.place(
                    m,
                    self.library.make(Completion, self.circuits[u].in_flight(geometry)),
                    f"{u}_{kind}",
                    issue=issue[u],
                    barrier=view.barrier,
                    mask=mask,
                    pulse=pulses[u][kind],
                )
                gives.append(track[kind]["give"])
                empties.append(track[kind]["empty"])
            finished[u], left[u] = track["done"]["finished"], track["done"]["left"]
            wants[u] = (
                running
                & queue["o_valid"]
                & ((view.wait & ~available) == 0)
                & track["read"]["ready"]
                & track["done"]["ready"]
                & unit_free[u]
            )
            takes.append(Mux(issue[u], view.wait, 0))
        m.d.comb += [take.eq(_any_of(takes)), give.eq(_any_of(gives))]

        # The memory port serves one transfer at a time, whoever asked first, loads before stores on a tie.
        engines = {u: {n: Signal(name=f"{u}_engine_{n}") for n in ENGINE} for u in ("load", "store")}
        port_free, older = Signal(), Signal()
        asks = {}
        for u in ("load", "store"):
            flying = Signal(range(geometry.outstanding + 1), name=f"{u}_flying")
            asks[u] = Signal(name=f"{u}_asks")
            m.d.sync += flying.eq(flying + issue[u] - left[u])
            m.d.comb += [
                unit_free[u].eq(engines[u]["free"] & (flying < geometry.outstanding)),
                asks[u].eq(wants[u] & ~barriers[u]),
            ]
        m.d.comb += [
            port_free.eq(engines["load"]["free"] & engines["store"]["free"]),
            issue["load"].eq(wants["load"] & (barriers["load"] | (port_free & ~(asks["store"] & older)))),
            issue["store"].eq(wants["store"] & (barriers["store"] | (port_free & (~asks["load"] | older)))),
        ]
        put_off = {u: asks[u] & ~issue[u] for u in ("load", "store")}
        m.d.sync += older.eq(put_off["store"] & (~put_off["load"] | older))
        others = [u for u in UNITS if u not in engines]
        for u in others:
            m.d.comb += issue[u].eq(wants[u])
        works = {u: issue[u] & ~barriers[u] for u in UNITS}

        # Units.
        engine_inputs = {
            name: Signal(width, name=f"port_{name}")
            for name, width in (
                ("ar_ready", 1),
                ("r_valid", 1),
                ("r_data", 8 * geometry.bus),
                ("r_error", 1),
                ("aw_ready", 1),
                ("w_ready", 1),
                ("b_valid", 1),
                ("b_error", 1),
            )
        }
        load = self.place(
            m,
            self.library.make(self.circuits["load"].make, geometry),
            "load",
            issue=works["load"],
            entry=entry["load"],
            **{name: signal for name, signal in engine_inputs.items() if name.startswith(("ar", "r_"))},
        )
        fetched = {n: Signal(8 * s, name=f"{n}_word") for n, s in readers(geometry).items()}
        store = self.place(
            m,
            self.library.make(self.circuits["store"].make, geometry),
            "store",
            issue=works["store"],
            entry=entry["store"],
            fetch_data=fetched["store"],
            **{name: signal for name, signal in engine_inputs.items() if name.startswith(("aw", "w_", "b_"))},
        )
        wide = {name: load[name] for name in ("ar_valid", "ar_addr", "ar_len")} | {
            name: store[name] for name in ("aw_valid", "aw_addr", "aw_len", "w_valid", "w_data", "w_strb", "w_last")
        }
        names = [name for p in prefixes(geometry) for name in (*axi_read(1, p), *axi_write(1, p))]
        split = self.place(
            m,
            self.library.make(Ports, geometry),
            "ports",
            **wide,
            **{name: getattr(self, name) for name in names if self.signature.members[name].flow == In},
        )
        m.d.comb += [signal.eq(split[name]) for name, signal in engine_inputs.items()]
        for name in names:
            if self.signature.members[name].flow == Out:
                m.d.comb += getattr(self, name).eq(split[name])
        for u, engine in (("load", load), ("store", store)):
            for name in ENGINE:
                m.d.comb += engines[u][name].eq(engine[name])
        matmul = self.place(
            m,
            self.library.make(self.circuits["matmul"].make, geometry),
            "matmul",
            issue=works["matmul"],
            entry=entry["matmul"],
            loaded_data=fetched["loaded"],
            moving_data=fetched["moving"],
        )
        sums_data = Signal(8 * geometry.results)
        vector = self.place(
            m,
            self.library.make(self.circuits["vector"].make, geometry),
            "vector",
            issue=works["vector"],
            entry=entry["vector"],
            first_data=fetched["first"],
            second_data=fetched["second"],
            sums_data=sums_data,
        )
        units = {"load": load, "store": store, "matmul": matmul, "vector": vector}
        for u in others:
            if u not in units:
                words = {f"{port.own}_data": fetched[name] for name, port in self.circuits[u].reads.items()}
                kind = self.library.make(self.circuits[u].make, geometry)
                units[u] = self.place(m, kind, u, issue=works[u], entry=entry[u], **words)
        accumulator = self.place(
            m,
            self.library.make(AccumulatorCircuit, geometry),
            "accumulator",
            valid=matmul["sums_valid"],
            line=matmul["sums_line"],
            add=matmul["sums_add"],
            sums=matmul["sums"],
            read=vector["sums"],
            read_line=vector["sums_line"],
        )
        m.d.comb += sums_data.eq(accumulator["read_data"])
        scratchpad = self.place(
            m, self.library.make(ScratchpadCircuit, geometry), "scratchpad", **self._local_ports(units)
        )
        for name, signal in fetched.items():
            m.d.comb += signal.eq(scratchpad[f"{name}_data"])
        m.d.comb += [unit_free[u].eq(units[u]["free"]) for u in others]
        for u in others:
            circuit = self.circuits[u]
            m.d.comb += [pulses[u]["read"].eq(units[u][circuit.read]), pulses[u]["done"].eq(units[u][circuit.done])]
        for u in engines:
            m.d.comb += [pulses[u]["read"].eq(engines[u]["read"]), pulses[u]["done"].eq(engines[u]["done"])]

        # The run: its cycles, its end, what went wrong.
        quiet, stuck, program_over, wrong = Signal(), Signal(), Signal(), Signal()
        patience = Signal(range(PATIENCE + 1))
        nothing_queued = ~Cat(*valids.values()).any()
        m.d.comb += [
            quiet.eq(Cat(*empties).all()),
            stuck.eq(
                running & quiet & ~nothing_queued & ~Cat(*issue.values()).any() & (sequencer["blocked"] | program_over)
            ),
        ]
        m.d.sync += patience.eq(Mux(stuck, Mux(patience == PATIENCE, patience, patience + 1), 0))
        words = control["words"]
        numbers = {u: places[u] for u in UNITS}
        faults = (
            (Cause.PROGRAM_SIZE, start & ((words == 0) | (words > geometry.program_words)), 0),
            (Cause.ILLEGAL_INSTRUCTION, sequencer["illegal"], sequencer["number"]),
            *((Cause.ILLEGAL_INSTRUCTION, units[u]["illegal"], numbers[u]) for u in others if self.circuits[u].illegal),
            *((Cause.MISALIGNED_OPERAND, units[u]["misaligned"], numbers[u]) for u in reversed(others)),
            (Cause.MISALIGNED_TRANSFER, engines["load"]["misaligned"], numbers["load"]),
            (Cause.MISALIGNED_TRANSFER, engines["store"]["misaligned"], numbers["store"]),
            (Cause.LOCAL_ADDRESS, scratchpad["outside"] | accumulator["outside"], 0),
            (Cause.BANK_CONFLICT, scratchpad["conflict"], 0),
            (Cause.SEMAPHORE_OVERFLOW, overflow, 0),
            (Cause.BUS_ERROR, fetch["failed"] | engines["load"]["failed"] | engines["store"]["failed"], 0),
            (Cause.PROGRAM_SIZE, sequencer["running"] & (sequencer["number"] == words), sequencer["number"]),
            (Cause.DEADLOCK, patience == PATIENCE, 0),
        )
        found, place = Signal(4), Signal(SIZE_BITS)
        for code, happens, where in reversed(faults):
            with m.If(happens):
                m.d.comb += [found.eq(code), place.eq(where), wrong.eq(1)]
        over = Signal()
        m.d.comb += [
            over.eq(running & (program_over | sequencer["ended"]) & quiet & nothing_queued),
            ended.eq(over | (draining & quiet & nothing_queued)),
            self.trace_cycle.eq(cycles),
            self.trace_issue.eq(Cat(*(works[u] for u in UNITS))),
            self.trace_done.eq(Cat(*(finished[u] for u in UNITS))),
        ]
        with m.If(running | draining):
            m.d.sync += cycles.eq(cycles + 1)
        with m.If(sequencer["ended"]):
            m.d.sync += program_over.eq(1)
        with m.If(over):
            m.d.sync += [running.eq(0), cycles.eq(cycles)]
        with m.If(draining & quiet & nothing_queued):
            m.d.sync += [draining.eq(0), cycles.eq(cycles)]
        with m.If(start):
            m.d.sync += [cycles.eq(1), cause.eq(0), number.eq(0), running.eq(1), program_over.eq(0)]
        with m.If(wrong & (running | start)):
            m.d.sync += [running.eq(0), draining.eq(1), cause.eq(found), number.eq(place)]
        busy = {u: (engines[u] if u in engines else units[u])[circuit.busy] for u, circuit in self.circuits.items()}
        busy |= {u: busy[u] | works[u] for u, circuit in self.circuits.items() if circuit.counts_issue}
        for u in UNITS:
            for name, counts_now in (
                ("busy", busy[u]),
                ("waiting", running & valids[u] & ~issue[u]),
                ("completed", finished[u]),
            ):
                counter = counts[f"{u}_{name}"]
                with m.If(start):
                    m.d.sync += counter.eq(0)
                with m.Elif(counts_now):
                    m.d.sync += counter.eq(counter + 1)
        return m

    def _local_ports(self, units: dict[str, dict[str, Signal]]) -> dict[str, Signal]:
        """Inputs of the scratchpad: the units' ports by the names that these have there."""
        found: dict[str, Signal] = {}
        for u, circuit in self.circuits.items():
            for name, port in (*circuit.reads.items(), *circuit.writes.items()):
                found |= {name: units[u][port.own], f"{name}_address": units[u][f"{port.own}_address"]}
                if name in circuit.writes:
                    found[f"{name}_data"] = units[u][f"{port.own}_data"]
        return found


def _any_of(masks: list[Value]) -> Value:
    total = masks[0]
    for mask in masks[1:]:
        total = total | mask
    return total
