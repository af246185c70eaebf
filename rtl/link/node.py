"""What a chip has of a ring: the engine and an end of the link on either side, and the tracker of its tile's stores."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Shape, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from siliconloom.arch.link import CONTROL_BITS, SYMBOL_BITS, LinkProtocol
from siliconloom.arch.ring import ADDRESS_BITS, WORDS_BITS, RingEngine
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.link.engine import RingEngineCircuit
from siliconloom.rtl.link.receiver import LinkReceiver
from siliconloom.rtl.link.sender import COUNTER_BITS, LinkSender
from siliconloom.rtl.npu.geometry import Geometry
from siliconloom.rtl.npu.tile import NpuTileCircuit

ENDS = {"sender": ("retries", "timeouts", "control_errors"), "receiver": ("errors", "duplicates", "overflows")}


class RingNode(Circuit):
    """An engine with the sender of the link to the next chip and the receiver of the one from the previous chip.

    Members
    -------
    start, rank, base, words, produced*, send_*, sum_*, write*, busy, done, misframed
        As `RingEngineCircuit`.
    next_symbol, next_flit, next_control
        To the next chip, and what it says.
    previous_symbol, previous_flit, previous_control
        From the previous chip, and what it is told.
    retries, timeouts, control_errors, errors, duplicates, overflows : Out(32)
        As `LinkSender` and `LinkReceiver`.
    """

    def __init__(self, library: Library, chips: int, engine: RingEngine, protocol: LinkProtocol) -> None:
        self.chips, self.engine, self.protocol = chips, engine, protocol
        width = protocol.flit_bits
        inner = library.make(RingEngineCircuit, chips, engine, width)
        own = {"clk", library.reset_port}
        ports = {
            name: member.flow(member.shape)
            for name, member in inner.signature.members.items()
            if member.is_port and name not in own
        } | {
            "next_symbol": Out(SYMBOL_BITS),
            "next_flit": Out(width),
            "next_control": In(CONTROL_BITS),
            "previous_symbol": In(SYMBOL_BITS),
            "previous_flit": In(width),
            "previous_control": Out(CONTROL_BITS),
            **{name: Out(COUNTER_BITS) for names in ENDS.values() for name in names},
        }
        super().__init__(library, library.name("ring_node"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        inner = self.library.make(RingEngineCircuit, self.chips, self.engine, self.protocol.flit_bits)
        inputs = {
            name: getattr(self, name)
            for name, member in inner.signature.members.items()
            if member.is_port and member.flow == In and name not in ("clk", self.library.reset_port)
        }
        engine = self.place(m, inner, "engine", **inputs)
        sender = self.place(m, self.library.make(LinkSender, self.protocol), "sender", control_word=self.next_control)
        receiver = self.place(
            m,
            self.library.make(LinkReceiver, self.protocol),
            "receiver",
            wire_symbol=self.previous_symbol,
            wire_flit=self.previous_flit,
        )
        wiring.connect(m, engine.m_axis, sender.s_axis)
        wiring.connect(m, receiver.m_axis, engine.s_axis)
        m.d.comb += [
            self.next_symbol.eq(sender.wire_symbol),
            self.next_flit.eq(sender.wire_flit),
            self.previous_control.eq(receiver.control_word),
        ]
        for name, member in inner.signature.members.items():
            if member.is_port and member.flow == Out:
                m.d.comb += getattr(self, name).eq(getattr(engine, name))
        for end, circuit in (("sender", sender), ("receiver", receiver)):
            for name in ENDS[end]:
                m.d.comb += getattr(self, name).eq(getattr(circuit, name))
        return m


class StoreTracker(Circuit):
    """Watches the write channels of an AXI4 port and reports, write by write, what is in memory of which chunk.

    A write is reported in the cycle in which its answer is taken. Writes outside the buffer are not reported; none may
    reach over the end of a chunk.

    Parameters
    ----------
    chunks
        Of the buffer.
    word_bytes
        Bytes of a word of memory, which is a beat of the port and a flit of the link.
    outstanding
        Most writes that await their answers.

    Members
    -------
    base, words
        First word of the buffer, words of a chunk.
    address : In(48), beats : In(8), write : In(1)
        A write address is taken: byte address, beats less one.
    answer : In(1)
        An answer is taken.
    produced, produced_chunk, produced_words
        The report.
    """

    def __init__(self, library: Library, chunks: int, word_bytes: int, outstanding: int) -> None:
        self.chunks, self.word_bytes, self.outstanding = chunks, word_bytes, outstanding
        ports = {
            "base": In(ADDRESS_BITS),
            "words": In(WORDS_BITS),
            "write": In(1),
            "address": In(48),
            "beats": In(8),
            "answer": In(1),
            "produced": Out(1),
            "produced_chunk": Out(range(chunks)),
            "produced_words": Out(WORDS_BITS),
        }
        super().__init__(library, library.name("store_tracker"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        shift = (self.word_bytes - 1).bit_length()
        word, offset = Signal(ADDRESS_BITS), Signal(ADDRESS_BITS)
        inside, chunk = Signal(), Signal(range(self.chunks))
        m.d.comb += [
            word.eq(self.address[shift : shift + ADDRESS_BITS]),
            offset.eq(word - self.base),
            inside.eq((word >= self.base) & (offset < self.words * self.chunks)),
            chunk.eq(sum((offset >= self.words * n for n in range(1, self.chunks)), start=Const(0))),
        ]
        layout = data.StructLayout({"inside": 1, "beats": 8, "chunk": len(chunk)})
        waiting = self.place(m, self.library.make(Queue, layout.size, self.outstanding), "waiting")
        oldest = data.View(layout, waiting.o.payload)
        m.d.comb += [
            waiting.i.valid.eq(self.write),
            waiting.i.payload.eq(Cat(inside, self.beats, chunk)),
            waiting.o.ready.eq(self.answer),
            self.produced.eq(self.answer & waiting.o.valid & oldest.inside),
            self.produced_words.eq(oldest.beats + 1),
            self.produced_chunk.eq(oldest.chunk),
        ]
        return m


def chip_ports(circuit: RingNode) -> dict[str, Any]:
    """Ports of a chip beside those of its tile: the node's, without what the tracker tells it."""
    return {
        f"ring_{name}": member.flow(Shape.cast(member.shape).width)
        for name, member in circuit.signature.members.items()
        if not name.startswith("produced") and name not in ("clk", circuit.library.reset_port)
    }


class RingChip(Circuit):
    """An npu tile, its ring node, and the tracker between them: a chip of a ring.

    Members
    -------
    s_axi_*, m_axi_*, irq, trace_*
        As `NpuTileCircuit`.
    ring_*
        As `RingNode`; addresses are those of the tile's memory, in words of a beat.
    """

    def __init__(
        self, library: Library, geometry: Geometry, chips: int, engine: RingEngine, protocol: LinkProtocol
    ) -> None:
        self.geometry, self.chips, self.engine, self.protocol = geometry, chips, engine, protocol
        own = {"clk", library.reset_port}
        tile = library.make(NpuTileCircuit, geometry)
        node = library.make(RingNode, chips, engine, protocol)
        assert isinstance(node, RingNode)
        ports = {name: member for name, member in tile.signature.members.items() if name not in own}
        ports |= chip_ports(node)
        super().__init__(library, library.name("chip"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        tile = self.library.make(NpuTileCircuit, self.geometry)
        node = self.library.make(RingNode, self.chips, self.engine, self.protocol)
        members = self.signature.members
        placed = self.place(m, tile, "tile")
        for name, member in placed.signature.members.items():
            if member.is_port:
                m.d.comb += getattr(self, name).eq(getattr(placed, name))
            else:
                wiring.connect(m, getattr(placed, name), wiring.flipped(getattr(self, name)))
        port = placed.m_axi
        tracker = self.place(
            m,
            self.library.make(
                StoreTracker, self.engine.chunks(self.chips), self.geometry.bus, 2 * self.geometry.outstanding + 64
            ),
            "tracker",
            base=self.ring_base,
            words=self.ring_words,
            write=port.awvalid & port.awready,
            address=port.awaddr,
            beats=port.awlen,
            answer=port.bvalid & port.bready,
        )
        told = {name: getattr(tracker, name) for name in ("produced", "produced_chunk", "produced_words")}
        ring_inputs = {
            name.removeprefix("ring_"): getattr(self, name)
            for name, member in members.items()
            if name.startswith("ring_") and member.flow == In
        }
        ring = self.place(m, node, "node", **ring_inputs, **told)
        for name, member in node.signature.members.items():
            if member.flow == Out:
                m.d.comb += getattr(self, f"ring_{name}").eq(getattr(ring, name))
        return m
