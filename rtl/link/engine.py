"""The ring engine of a chip: reduce-scatter and all-gather over its two links, begun chunk by chunk."""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from siliconloom.arch.datatype import DataType
from siliconloom.arch.ring import ADDRESS_BITS, READ_AHEAD, WORDS_BITS, RingEngine
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.link.sender import flit


class RingEngineCircuit(Circuit):
    """Sends and receives the chunks of `arch.ring`; what arrives is added to memory, then put in its place.

    A message is a chunk and ends with ``tlast``. A flit taken from the link in cycle t is written in t + 1, its operand
    read in between; the chunk may be sent from t + 2 on. What is to be added waits on the link until the chip's own
    results of that chunk are complete, since they would overwrite it.

    Parameters
    ----------
    chips
        In the ring; at least 2.
    engine
        What is added, and chunks per share.
    flit_bits
        Width of links and memory.

    Members
    -------
    start : In(1)
        Begin: counters are cleared. Not while busy.
    rank, base, words
        Place in the ring, first address of the buffer, flits of a chunk (at least 1); held while busy.
    produced, produced_chunk, produced_words
        Track: so many flits of a chunk were written to memory by the chip itself.
    send_read, send_address, send_data; sum_read, sum_address, sum_data
        Two read ports of memory: data a cycle after the address.
    write, write_address, write_data
        A write port of memory.
    m_axis, s_axis : Out, In(stream of `rtl.link.sender.flit`)
        To the next chip's link and from the previous chip's.
    busy, done : Out(1)
        Under way; ended since the last start.
    misframed : Out(1)
        A message was longer or shorter than a chunk; stays until the next start.
    """

    axi_streams = ("m_axis", "s_axis")

    def __init__(self, library: Library, chips: int, engine: RingEngine, flit_bits: int) -> None:
        self.chips, self.engine, self.flit_bits = chips, engine, flit_bits
        self.chunks = engine.chunks(chips)
        ports = {
            "start": In(1),
            "rank": In(range(chips)),
            "base": In(ADDRESS_BITS),
            "words": In(WORDS_BITS),
            "produced": In(1),
            "produced_chunk": In(range(self.chunks)),
            "produced_words": In(WORDS_BITS),
            "send_read": Out(1),
            "send_address": Out(ADDRESS_BITS),
            "send_data": In(flit_bits),
            "sum_read": Out(1),
            "sum_address": Out(ADDRESS_BITS),
            "sum_data": In(flit_bits),
            "write": Out(1),
            "write_address": Out(ADDRESS_BITS),
            "write_data": Out(flit_bits),
            "m_axis": Out(stream.Signature(flit(flit_bits))),
            "s_axis": In(stream.Signature(flit(flit_bits))),
            "busy": Out(1),
            "done": Out(1),
            "misframed": Out(1),
        }
        super().__init__(library, library.name("ring_engine"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        chips, pieces = self.chips, self.engine.pieces
        messages = self.engine.messages(chips)
        full = Signal(self.chunks)
        running = Signal()
        arrived = Signal(range(messages + 1))
        before_rank = Signal(range(chips))
        m.d.comb += before_rank.eq(Mux(self.rank == 0, chips - 1, self.rank - 1))

        # Track: the chip's own flits of each chunk.
        for chunk in range(self.chunks):
            count = Signal(WORDS_BITS, name=f"tracked_{chunk}")
            following = Signal(WORDS_BITS, name=f"following_{chunk}")
            m.d.comb += following.eq(
                count + Mux(self.produced & (self.produced_chunk == chunk), self.produced_words, 0)
            )
            with m.If(self.start):
                m.d.sync += [count.eq(0), full[chunk].eq(0)]
            with m.Elif(running):
                m.d.sync += [count.eq(following), full[chunk].eq(full[chunk] | (following >= self.words))]

        # Trigger, and send.
        out = _Walk(m, "sent", chips, pieces, messages)
        triggered, issue, last, pop = Signal(), Signal(), Signal(), Signal()
        under_way = Signal(range(READ_AHEAD + 1))
        reading, reading_last = Signal(), Signal()
        m.d.comb += [
            triggered.eq(Mux(out.message < pieces, out.of(full), arrived + pieces > out.message)),
            issue.eq(running & ~out.over & (triggered | (out.position != 0)) & (under_way != READ_AHEAD)),
            last.eq(out.position == self.words - 1),
            self.send_read.eq(issue),
            self.send_address.eq(self.base + out.chunk * self.words + out.position),
        ]
        out.step(m, issue, last)
        m.d.sync += [reading.eq(issue), reading_last.eq(last), under_way.eq(under_way + issue - pop)]
        queue = self.place(m, self.library.make(Queue, self.flit_bits + 1, READ_AHEAD), "ahead")
        wiring.connect(m, queue.o, wiring.flipped(self.m_axis))
        m.d.comb += [
            queue.i.valid.eq(reading),
            queue.i.payload.eq(Cat(self.send_data, reading_last)),
            pop.eq(self.m_axis.valid & self.m_axis.ready),
        ]

        # Receive: add or replace.
        into = _Walk(m, "received", chips, pieces, messages)
        adds, take, ends = Signal(), Signal(), Signal()
        writing, adding, ending = Signal(), Signal(), Signal()
        address, word = Signal(ADDRESS_BITS), Signal(self.flit_bits)
        m.d.comb += [
            adds.eq(into.message < (chips - 1) * pieces),
            self.s_axis.ready.eq(running & ~into.over & (~adds | into.of(full))),
            take.eq(self.s_axis.valid & self.s_axis.ready),
            ends.eq(into.position == self.words - 1),
            self.sum_read.eq(take),
            self.sum_address.eq(self.base + into.chunk * self.words + into.position),
            self.write.eq(writing),
            self.write_address.eq(address),
            self.write_data.eq(Mux(adding, self.added(m, self.sum_data, word), word)),
        ]
        into.step(m, take, ends)
        m.d.sync += [
            writing.eq(take),
            adding.eq(adds),
            address.eq(self.sum_address),
            word.eq(self.s_axis.payload.data),
            ending.eq(take & ends),
            arrived.eq(arrived + ending),
        ]
        with m.If(take & (ends != self.s_axis.payload.last)):
            m.d.sync += self.misframed.eq(1)

        # The run.
        m.d.comb += self.busy.eq(running)
        with m.If(running & out.over & (arrived == messages) & (under_way == 0)):
            m.d.sync += [running.eq(0), self.done.eq(1)]
        with m.If(self.start):
            m.d.sync += [running.eq(1), self.done.eq(0), self.misframed.eq(0), arrived.eq(0)]
            out.begin(m, self.rank)
            into.begin(m, before_rank)
        return m

    def added(self, m: Module, a: Value, b: Value) -> Value:
        """Lane by lane ``a`` + ``b``."""
        bits = 8 if self.engine.operand == DataType.INT8 else 32
        lanes = []
        for lane in range(self.flit_bits // bits):
            x, y = (v[lane * bits : (lane + 1) * bits].as_signed() for v in (a, b))
            total = Signal(signed(bits + 1), name=f"total_{lane}")
            m.d.comb += total.eq(x + y)
            if self.engine.operand == DataType.INT8:
                over = total[bits] ^ total[bits - 1]
                bound = Cat(*[~total[bits]] * (bits - 1), total[bits])
                lanes.append(Mux(over, bound, total[:bits]))
            else:
                lanes.append(total[:bits])
        return Cat(*lanes)


class _Walk:
    """Which chunk of which message, and which flit of it: the same walk for sending and receiving."""

    def __init__(self, m: Module, name: str, chips: int, pieces: int, messages: int) -> None:
        self.chips, self.pieces, self.messages = chips, pieces, messages
        self.message = Signal(range(messages + 1), name=f"{name}_message")
        self.share = Signal(range(chips), name=f"{name}_share")
        self.piece = Signal(range(max(pieces, 2)), name=f"{name}_piece")
        self.position = Signal(WORDS_BITS, name=f"{name}_position")
        self.chunk = Signal(range(chips * pieces), name=f"{name}_chunk")
        self.over = Signal(name=f"{name}_over")
        m.d.comb += [self.over.eq(self.message == messages), self.chunk.eq(self.share * pieces + self.piece)]

    def of(self, bits: Signal) -> Value:
        """The bit of this chunk."""
        return bits.bit_select(self.chunk, 1)

    def step(self, m: Module, move: Value, last: Value) -> None:
        """Go one flit on."""
        with m.If(move):
            m.d.sync += self.position.eq(Mux(last, 0, self.position + 1))
            with m.If(last):
                m.d.sync += self.message.eq(self.message + 1)
                wrapped = self.piece == self.pieces - 1
                m.d.sync += self.piece.eq(Mux(wrapped, 0, self.piece + 1))
                with m.If(wrapped):
                    m.d.sync += self.share.eq(Mux(self.share == 0, self.chips - 1, self.share - 1))

    def begin(self, m: Module, share: Value) -> None:
        """Back to the first flit, of this share."""
        m.d.sync += [self.message.eq(0), self.position.eq(0), self.piece.eq(0), self.share.eq(share)]
