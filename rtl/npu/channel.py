"""The unit that drives a channel of memory that computes: instructions in, macros and bursts out, results back.

An instruction has the channel to itself (`arch.units.pim`): its macros are offered one after the other from the cycle
after it was taken on, and it is complete two cycles after its last command went out and its last datum arrived.
"""

from __future__ import annotations

from typing import Any

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from siliconloom.arch import timing
from siliconloom.arch.datatype import DataType
from siliconloom.arch.isa import Opcode, Unit
from siliconloom.arch.pim import CHANNEL_BYTES, RESULT_BYTES, Command
from siliconloom.rtl.cells.floating import narrowed
from siliconloom.rtl.library import Circuit, Library, Placed
from siliconloom.rtl.npu.entries import entry_layout
from siliconloom.rtl.npu.geometry import LOCAL_BITS, MEMORY_BITS, SIZE_BITS, Geometry, log2
from siliconloom.rtl.npu.interfaces import local_read, local_write
from siliconloom.rtl.pim.geometry import PimGeometry
from siliconloom.rtl.pim.tile import PimCircuit

WAITING = 4
"""Bursts that wait for the channel to take them: it takes one in two cycles, or in each."""


def channel_geometry(geometry: Geometry) -> PimGeometry:
    """Sizes of a tile's channel."""
    assert geometry.pim is not None
    return PimGeometry(geometry.pim, driven=True)


def burst_bytes(geometry: Geometry) -> int:
    """Bytes of the scratchpad that are a burst of the channel."""
    return channel_geometry(geometry).burst_bytes * geometry.element // CHANNEL_BYTES


def channel_pins(geometry: Geometry) -> dict[str, Any]:
    """What leaves the tile for the channel's DRAM array, and comes from it, as `PimCircuit` has it."""
    g = channel_geometry(geometry)
    return PimCircuit.array_ports(g)


class ChannelUnit(Circuit):
    """The unit.

    Members
    -------
    instruction, misaligned, illegal, working, done
        As of every unit (`rtl.npu.circuits`).
    vectors : Out(local_read)
        Reads what goes to the channel.
    results : Out(local_write)
        Writes what comes from it.
    hold, restart : In(1)
        No refresh begins; pulse: refresh is due as after a reset, from the next cycle on.
    rests : Out(1)
        Nothing has gone to the DRAM for so long that nothing waits for anything.
    command_*, column_data, array_* :
        To and from the DRAM array, as of `PimCircuit`.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry, self.g = geometry, channel_geometry(geometry)
        size = burst_bytes(geometry)
        ports: dict[str, Any] = {
            "instruction": In(stream.Signature(entry_layout(Unit.PIM))),
            "misaligned": Out(1),
            "illegal": Out(1),
            "working": Out(1),
            "done": Out(1),
            "vectors": Out(local_read(size)),
            "results": Out(local_write(size)),
            "hold": In(1),
            "restart": In(1),
            "rests": Out(1),
            **channel_pins(geometry),
        }
        super().__init__(library, library.name("pim"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        g, new = self.g, self.instruction.payload
        pins = channel_pins(self.geometry)
        inputs = {name: getattr(self, name) for name, member in pins.items() if member.flow is In}
        made = self.library.make(PimCircuit, g)
        channel = self.place(m, made, "channel", hold=self.hold, restart=self.restart, **inputs)
        m.d.comb += self.rests.eq(channel.rests)
        for name in pins.keys() - inputs.keys():
            m.d.comb += getattr(self, name).eq(getattr(channel, name))
        held = Signal(entry_layout(Unit.PIM), reset_less=True)
        busy, taken, begins = Signal(), Signal(), Signal()
        left = {name: Signal(SIZE_BITS, name=f"{name}_left") for name in ("macros", "closes", "arrivals", "reads")}
        writing, reading, vector, product = (
            new.opcode == each for each in (Opcode.PIM_WRITE, Opcode.PIM_READ, Opcode.PIM_VECTOR, Opcode.PIM)
        )
        moving = writing | reading
        m.d.comb += [
            taken.eq(self.instruction.valid & self.instruction.ready),
            self.instruction.ready.eq(~busy),
            self.working.eq(busy),
            self.misaligned.eq(taken & self._misaligned(m, new, moving, vector, product)),
            self.illegal.eq(taken & self._illegal(m, new, moving, vector, product)),
            begins.eq(taken & ~self.misaligned & ~self.illegal),  # what does not begin ends in the cycle after
        ]
        arrived = self._results(m, begins, channel)
        self._macros(m, begins, held, left["macros"], channel)
        self._operands(m, begins, left["reads"], channel)
        closed = channel.command_valid & (channel.command_code == Command.PRE)
        finished = Signal()
        timing.confirm("PIM_END", counted=1, complete=1)
        m.d.comb += [
            finished.eq(busy & ~Cat(*(each.any() for each in (*left.values(), arrived))).any()),
            self.done.eq(finished),
        ]
        with m.If(closed):
            m.d.sync += left["closes"].eq(left["closes"] - 1)
        with m.If(channel.vector_arrived):
            m.d.sync += left["arrivals"].eq(left["arrivals"] - 1)
        with m.If(begins):
            m.d.sync += [left["closes"].eq(Mux(moving, new.m, 0)), left["arrivals"].eq(Mux(vector, new.m, 0))]
        with m.If(taken):
            m.d.sync += [busy.eq(1), held.eq(new)]
        with m.Elif(finished):
            m.d.sync += busy.eq(0)
        return m

    def _misaligned(self, m: Module, new: Any, moving: Value, vector: Value, product: Value) -> Signal:
        """Whether an address of the scratchpad, or of the channel, is inside a burst."""
        size, burst = log2(burst_bytes(self.geometry)), log2(self.g.burst_bytes)
        results = size - log2(RESULT_BYTES // CHANNEL_BYTES)
        pitched, inside = moving & (new.m != 1), Signal()
        m.d.comb += inside.eq(
            ((moving | vector) & new.a[:size].any())
            | (product & new.c[:results].any())
            | (moving & (new.memory[:burst].any() | new.n[:burst].any()))
            | (pitched & (new.pitch[:burst].any() | new.local_pitch[:size].any()))
        )
        return inside

    def _illegal(self, m: Module, new: Any, moving: Value, vector: Value, product: Value) -> Signal:
        """Whether a size has no room in a macro."""
        rows, columns = self.g.tile.dram.organization.rows, self.g.tile.row_columns
        long, beyond = Signal(), (new.m > rows) | (new.n > self.g.tile.accumulators) | (new.k > rows * columns)
        m.d.comb += long.eq(
            (moving & (new.n > columns * self.g.burst_bytes))
            | (vector & (new.m > self.g.buffer_words))
            | (product & beyond)
        )
        return long

    def _macros(self, m: Module, begins: Signal, held: Any, left: Signal, channel: Placed) -> None:
        """Offer the macros of the instruction: one, or one for each row that is moved."""
        timing.confirm("PIM_OFFER", register=1)
        g = self.g
        columns, banks, burst = log2(g.tile.row_columns), log2(g.tile.banks), log2(g.burst_bytes)
        moving = (held.opcode == Opcode.PIM_WRITE) | (held.opcode == Opcode.PIM_READ)
        address = Signal(MEMORY_BITS, reset_less=True)
        place = address[burst:]
        transfer, compute = channel.transfer, channel.compute
        long = held.k > g.tile.row_columns
        chunks = (held.k + (g.tile.row_columns - 1)) >> columns
        rest = (held.k - 1)[:columns] if columns else Const(0, 1)
        m.d.comb += [
            transfer.valid.eq(moving & left.any()),
            transfer.payload.write.eq(held.opcode == Opcode.PIM_WRITE),
            transfer.payload.column.eq(place[:columns]),
            transfer.payload.bank.eq(place[columns : columns + banks]),
            transfer.payload.row.eq(place[columns + banks :]),
            transfer.payload.columns.eq(held.n >> burst),
            compute.valid.eq(~moving & left.any()),
            compute.payload.gemv.eq(held.opcode == Opcode.PIM),
            compute.payload.row.eq(held.d),
            compute.payload.rounds.eq(held.m),
            compute.payload.chunks.eq(chunks),
            compute.payload.segments.eq(held.n),
            compute.payload.columns.eq(Mux(held.opcode == Opcode.PIM, Mux(long, g.tile.row_columns, held.k), held.m)),
            compute.payload.last_columns.eq(Mux(long, rest + 1, 0)),
            compute.payload.column.eq(held.b),
            compute.payload.apart.eq(0),
            compute.payload.integer.eq(0),
        ]
        new = self.instruction.payload
        with m.If((transfer.valid & transfer.ready) | (compute.valid & compute.ready)):
            m.d.sync += [left.eq(left - 1), address.eq(address + held.pitch)]
        with m.If(begins):
            moves = (new.opcode == Opcode.PIM_WRITE) | (new.opcode == Opcode.PIM_READ)
            m.d.sync += [left.eq(Mux(moves, new.m, 1)), address.eq(new.memory)]

    def _operands(self, m: Module, begins: Signal, left: Signal, channel: Placed) -> None:
        """Read the bursts that the channel will take, as far ahead as there is room."""
        new, size, burst = self.instruction.payload, burst_bytes(self.geometry), log2(self.g.burst_bytes)
        bits = self.g.burst_bits
        row, address = Signal(LOCAL_BITS, reset_less=True), Signal(LOCAL_BITS, reset_less=True)
        width, within = Signal(SIZE_BITS, reset_less=True), Signal(SIZE_BITS, reset_less=True)
        pitch = Signal(LOCAL_BITS, reset_less=True)
        waiting = Array(Signal(bits, name=f"waiting_{number}", reset_less=True) for number in range(WAITING))
        count, front, back = Signal(range(WAITING + 1)), Signal(range(WAITING)), Signal(range(WAITING))
        asks, came, goes = Signal(), Signal(), Signal()
        m.d.comb += [
            asks.eq(left.any() & (count + came < WAITING)),
            self.vectors.enable.eq(asks),
            self.vectors.address.eq(address),
        ]
        m.d.sync += came.eq(asks)
        with m.If(asks):
            m.d.sync += [within.eq(within + 1), address.eq(address + size)]
            with m.If(within + 1 == width):
                m.d.sync += [within.eq(0), left.eq(left - 1), row.eq(row + pitch), address.eq(row + pitch)]
        with m.If(begins):
            writes, vector = new.opcode == Opcode.PIM_WRITE, new.opcode == Opcode.PIM_VECTOR
            m.d.sync += [
                left.eq(Mux(writes, new.m, vector)),
                width.eq(Mux(writes, new.n >> burst, new.m)),
                pitch.eq(new.local_pitch),
                within.eq(0),
                row.eq(new.a),
                address.eq(new.a),
            ]
        with m.If(came):
            m.d.sync += [waiting[back].eq(self._to_channel(m, self.vectors.data)), back.eq(back + 1)]
        with m.If(goes):
            m.d.sync += front.eq(front + 1)
        m.d.sync += count.eq(count + came - goes)
        m.d.comb += goes.eq((channel.write.ready | channel.vector.ready) & count.any())
        for side in (channel.write, channel.vector):
            m.d.comb += [side.valid.eq(count.any()), side.payload.data.eq(waiting[front])]

    def _results(self, m: Module, begins: Signal, channel: Placed) -> Signal:
        """Write what comes from the channel; returns the rows, or rounds, that are still to come."""
        new, size, burst = self.instruction.payload, burst_bytes(self.geometry), log2(self.g.burst_bytes)
        part = RESULT_BYTES // CHANNEL_BYTES
        rows, width, within = Signal(SIZE_BITS), Signal(SIZE_BITS, reset_less=True), Signal(SIZE_BITS, reset_less=True)
        row, address, pitch = (Signal(LOCAL_BITS, name=n, reset_less=True) for n in ("into_row", "into", "into_pitch"))
        sums = Signal(reset_less=True)
        comes, line, summed = Signal(), Signal(8 * size, reset_less=True), Signal(reset_less=True)
        at = Signal(LOCAL_BITS, reset_less=True)
        some = channel.read_valid | channel.result_valid
        m.d.sync += [comes.eq(some), at.eq(address), summed.eq(sums)]
        found = Mux(sums, self._of_sums(m, channel.result_data), self._of_elements(channel.read_data))
        m.d.sync += line.eq(found)
        chosen = at[log2(size // part) : log2(size)]
        parts = Cat(*(((~summed) | (chosen == number)).replicate(size // part) for number in range(part)))
        m.d.comb += [
            self.results.enable.eq(Mux(comes, parts, 0)),
            self.results.address.eq(at),
            self.results.data.eq(line),
        ]
        with m.If(some):
            m.d.sync += [within.eq(within + 1), address.eq(address + Mux(sums, size // part, size))]
            with m.If(within + 1 == width):
                m.d.sync += [within.eq(0), rows.eq(rows - 1)]
                with m.If(~sums):
                    m.d.sync += [row.eq(row + pitch), address.eq(row + pitch)]
        with m.If(begins):
            reads, product = new.opcode == Opcode.PIM_READ, new.opcode == Opcode.PIM
            m.d.sync += [
                rows.eq(Mux(reads | product, new.m, 0)),
                width.eq(Mux(product, new.n << log2(self.g.parts), new.n >> burst)),
                pitch.eq(new.local_pitch),
                within.eq(0),
                sums.eq(product),
                row.eq(new.a),
                address.eq(Mux(product, new.c, new.a)),
            ]
        return rows

    def _to_channel(self, m: Module, data: Value) -> Value:
        """A burst of elements as the channel has them."""
        if self.geometry.dtype is DataType.BF16:
            return data
        layout = DataType.BF16.layout
        words = [data[32 * number :][:32] for number in range(self.g.burst_bytes // CHANNEL_BYTES)]
        return Cat(*(narrowed(m, f"rounded_{number}", word, layout) for number, word in enumerate(words)))

    def _of_elements(self, data: Value) -> Value:
        """A burst of the channel as elements of the scratchpad."""
        if self.geometry.dtype is DataType.BF16:
            return data
        halves = [data[16 * number :][:16] for number in range(self.g.burst_bytes // CHANNEL_BYTES)]
        return Cat(*(Cat(Const(0, 16), half) for half in halves))

    def _of_sums(self, m: Module, data: Value) -> Value:
        """A burst of sums as elements of the scratchpad, in every part of the port's width."""
        words = [data[32 * number :][:32] for number in range(self.g.burst_results)]
        if self.geometry.dtype is DataType.BF16:
            layout = DataType.BF16.layout
            words = [narrowed(m, f"sum_{number}", word, layout) for number, word in enumerate(words)]
        return Cat(*words * (RESULT_BYTES // CHANNEL_BYTES))


__all__ = ["ChannelUnit", "burst_bytes", "channel_geometry", "channel_pins"]
