"""Units that only tests know and that use what units share: the accumulator, and the port to main memory."""

from contextlib import contextmanager

import numpy as np
from amaranth import Mux, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect, flipped
from msgspec import Struct

from siliconloom.arch.access import SUM_BYTES, Access
from siliconloom.arch.isa import Opcode, Unit, transfer_operands
from siliconloom.arch.opcodes import Format, OpcodeSpec, UnitSpec
from siliconloom.arch.timing import ACCUMULATOR_WRITE, LOAD_WRITE, STORE_WRITE
from siliconloom.arch.units.dma import ENTRY, check_alignment
from siliconloom.rtl.library import Circuit
from siliconloom.rtl.npu.circuits import UNIT_CIRCUITS, Port, UnitCircuit
from siliconloom.rtl.npu.dma import LoadEngine, StoreEngine
from siliconloom.rtl.npu.entries import TRANSFER_ENTRY, entry_layout
from siliconloom.rtl.npu.geometry import LOCAL_BITS, log2
from siliconloom.rtl.npu.interfaces import local_read, local_write, read_channels, sums_read, sums_write, write_channels
from siliconloom.sim.chip.opcodes import TIMINGS, Counter, Timing
from siliconloom.sim.golden.opcodes import EXECUTIONS, executes
from siliconloom.sim.timing.units import access_cycles, moved_bytes
from tests.arch.test_units import registered

# The accumulator ----------------------------------------------------------------------------------------------------

READING = 2
"""Cycles from a tally leaving its queue to its first line of sums being there: address, memory."""
SOW = 1 << 8
"""Set in ``k`` of a tally that writes sums; the rest of k is what they are."""
TALLY = UnitSpec(
    name="tally",
    code=7,
    entry=("m", "k", "a", "c", "add"),
    opcodes=(
        OpcodeSpec(
            name="tally",
            code=20,
            format=Format.COMPUTE,
            sizes=("m",),
            operands=lambda i: [f"{i.m} of {i.k}"],
            accesses=lambda i, tile: touched(i, tile.vector.lanes),
            multiples=lambda i, tile: {"a": SUM_BYTES * tile.vector.lanes, "c": tile.vector.lanes},
            adds=lambda i: True,
            result="the low bytes of m lines of sums, or m lines of sums that are k",
        ),
    ),
)


def touched(i, lanes):
    yield Access("sums", bool(i.k & SOW), i.a, i.m * SUM_BYTES * lanes)
    if not i.k & SOW:
        yield Access("tally", True, i.c, i.m * lanes)


class TallyUnit(Circuit):
    """Reads a line of sums a cycle and writes their low bytes to the scratchpad; or writes a line of sums a cycle."""

    def __init__(self, library, geometry):
        self.geometry = geometry
        ports = {
            "instruction": In(stream.Signature(entry_layout(Unit.TALLY))),
            "read": Out(1),
            "done": Out(1),
            "working": Out(1),
            "misaligned": Out(1),
            "lines": Out(sums_read(geometry)),
            "results": Out(sums_write(geometry)),
            "bytes": Out(local_write(geometry.array.cols)),
        }
        super().__init__(library, library.name("tally"), ports, reset=True)

    def elaborate(self, platform):
        m = self.module()
        cols, new = self.geometry.array.cols, self.instruction.payload
        taken, left, sows, adds = Signal(), Signal(24), Signal(), Signal()
        value, line, address = Signal(8), Signal(LOCAL_BITS), Signal(LOCAL_BITS)
        asks, comes, ends = Signal(), Signal(), Signal(2)
        inside = new.c[: log2(cols)].any() | new.a[: log2(self.geometry.results)].any()
        m.d.comb += [
            taken.eq(self.instruction.valid & self.instruction.ready),
            asks.eq(left != 0),
            self.instruction.ready.eq(~asks & ~comes),
            self.misaligned.eq(taken & inside),
            self.working.eq(asks | comes),
            self.lines.enable.eq(asks & ~sows),
            self.lines.line.eq(line),
            self.bytes.enable.eq((comes & ~sows).replicate(cols)),
            self.bytes.address.eq(address),
            self.results.enable.eq(comes & sows),
            self.results.line.eq(address),
            self.results.add.eq(adds),
            self.read.eq(ends[0]),
            self.done.eq(ends[1]),
        ]
        for lane in range(cols):
            m.d.comb += [
                self.bytes.data[8 * lane : 8 * lane + 8].eq(self.lines.data[32 * lane : 32 * lane + 8]),
                self.results.data[32 * lane : 32 * lane + 32].eq(value),
            ]
        m.d.comb += ends[0].eq(comes & ~asks)
        m.d.sync += [comes.eq(asks), ends[1].eq(ends[0])]
        with m.If(comes):
            m.d.sync += address.eq(address + Mux(sows, 1, cols))
        with m.If(taken):
            m.d.sync += [
                left.eq(new.m),
                sows.eq(new.k[8]),
                adds.eq(new.add),
                value.eq(new.k[:8]),
                line.eq(new.a >> log2(self.geometry.results)),
                address.eq(Mux(new.k[8], new.a >> log2(self.geometry.results), new.c)),
            ]
        with m.Elif(asks):
            m.d.sync += [left.eq(left - 1), line.eq(line + 1)]
        return m


def tally(machine, i, indices):
    line, first = i.a.at(indices) // (SUM_BYTES * machine.lanes), i.c.at(indices)
    lines = machine.sums[line : line + i.m]
    if i.k & SOW:
        lines[:] = (i.k & 255) + (lines if i.accumulate else 0)
    else:
        machine.scratchpad[first : first + i.m * machine.lanes] = (lines & 255).astype(np.uint8).reshape(-1)


TALLY_TIMING = Timing(
    times=lambda work: {"duration": work.instruction.m + READING, "completion": ACCUMULATOR_WRITE},
    counts=lambda work: {Counter.ACCUMULATOR_READ: SUM_BYTES * work.instruction.m * work.npu.vector.lanes},
)
TALLY_CIRCUIT = UnitCircuit(
    make=TallyUnit,
    writes={"tally": Port("bytes", lambda geometry: geometry.array.cols, 15)},
    reads_sums="lines",
    writes_sums="results",
    read="read",
)


# The port to main memory --------------------------------------------------------------------------------------------


def engine_spec(name, memory, accesses):
    return UnitSpec(
        name=name,
        code=7,
        entry=ENTRY,
        memory=memory,
        opcodes=(
            OpcodeSpec(
                name=name,
                code=20,
                format=Format.TRANSFER,
                sizes=("m", "n"),
                operands=transfer_operands,
                accesses=accesses,
                check=check_alignment,
                result="a transfer that inverts its bytes",
            ),
        ),
    )


def rows(port, writes):
    return lambda i, tile: [Access(port, writes, i.a, (i.m - 1) * i.local_pitch + i.n)]


class InvertingEngine(Circuit):
    """An engine with one that exists inside, and inverters between that and the scratchpad."""

    def __init__(self, library, geometry, name, inner, ports):
        self.geometry, self.inner = geometry, inner
        flags = dict.fromkeys(("held", "read", "done", "misaligned", "failed"), Out(1))
        ports = {"instruction": In(stream.Signature(TRANSFER_ENTRY)), **flags, **ports}
        super().__init__(library, library.name(name), ports, reset=True)

    def elaborate(self, platform):
        m = self.module()
        inner = self.place(m, self.library.make(self.inner, self.geometry), "inner")
        connect(m, flipped(self.instruction), inner.instruction)
        connect(m, inner.memory, flipped(self.memory))
        for flag in ("held", "read", "done", "misaligned", "failed"):
            m.d.comb += getattr(self, flag).eq(getattr(inner, flag))
        self.invert(m, inner)
        return m


class InvertingLoad(InvertingEngine):
    def __init__(self, library, geometry):
        ports = {"memory": Out(read_channels(geometry.bus)), "write": Out(local_write(geometry.bus))}
        super().__init__(library, geometry, "inverting_load", LoadEngine, ports)

    def invert(self, m, inner):
        m.d.comb += [
            self.write.enable.eq(inner.write.enable),
            self.write.address.eq(inner.write.address),
            self.write.data.eq(~inner.write.data),
        ]


class InvertingStore(InvertingEngine):
    def __init__(self, library, geometry):
        ports = {"memory": Out(write_channels(geometry.bus)), "fetch": Out(local_read(geometry.bus))}
        super().__init__(library, geometry, "inverting_store", StoreEngine, ports)

    def invert(self, m, inner):
        m.d.comb += [
            self.fetch.enable.eq(inner.fetch.enable),
            self.fetch.address.eq(inner.fetch.address),
            inner.fetch.data.eq(~self.fetch.data),
        ]


def inverted(into_memory):
    def move(machine, i, indices):
        memory, local = i.memory.at(indices), i.a.at(indices)
        for row in range(i.m):
            far = machine.memory[memory + row * i.pitch :][: i.n]
            near = machine.scratchpad[local + row * i.local_pitch :][: i.n]
            if into_memory:
                far[:] = ~near
            else:
                near[:] = ~far

    return move


def engine_timing(pipeline, moved, useful):
    return Timing(
        times=lambda work: {
            "duration": access_cycles(work.chip, work.memory, work.instruction.m, work.instruction.n),
            "completion": work.chip.cycles(work.memory.latency) + pipeline,
        },
        counts=lambda work: {
            moved: moved_bytes(work.memory, work.instruction.m, work.instruction.n),
            useful: work.instruction.m * work.instruction.n,
        },
    )


def engine_circuit(make, **ports):
    return UnitCircuit(make=make, read="read", busy="held", counts_issue=False, **ports)


class Plug(Struct):
    """A unit with its halves."""

    spec: UnitSpec
    timing: Timing
    execution: object
    circuit: UnitCircuit

    @contextmanager
    def in_place(self):
        with registered(self.spec) as unit:
            (opcode,) = (each for each in Opcode if each.unit is unit)
            TIMINGS.add(opcode, self.timing)
            executes(opcode)(self.execution)
            UNIT_CIRCUITS.add(unit, self.circuit)
            try:
                yield opcode
            finally:
                UNIT_CIRCUITS.remove(unit)
                EXECUTIONS.remove(opcode)
                TIMINGS.remove(opcode)


def bus(geometry):
    return geometry.bus


PLUGS = {
    "tally": Plug(TALLY, TALLY_TIMING, tally, TALLY_CIRCUIT),
    "fill": Plug(
        engine_spec("fill", "read", rows("fill", True)),
        engine_timing(LOAD_WRITE, Counter.READ_BYTES, Counter.USEFUL_READ_BYTES),
        inverted(into_memory=False),
        engine_circuit(InvertingLoad, writes={"fill": Port("write", bus, 5)}),
    ),
    "spill": Plug(
        engine_spec("spill", "write", rows("spill", False)),
        engine_timing(STORE_WRITE, Counter.WRITE_BYTES, Counter.USEFUL_WRITE_BYTES),
        inverted(into_memory=True),
        engine_circuit(InvertingStore, reads={"spill": Port("fetch", bus, 45)}),
    ),
}
