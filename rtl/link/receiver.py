"""The receiving end of a link: packets are checked, taken in order, and answered."""

from __future__ import annotations

from amaranth import Cat, Module, Signal
from amaranth.lib import stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from siliconloom.arch.link import (
    CONTROL_BITS,
    COUNT_BITS,
    CRC_BITS,
    EPISODE_BITS,
    LENGTH_BITS,
    SEQUENCE_BITS,
    SYMBOL_BITS,
    LinkProtocol,
    Symbol,
)
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.link.crc import BEGIN, next_crc
from siliconloom.rtl.link.sender import COUNTER_BITS, flit


class LinkReceiver(Circuit):
    """Takes packets whose CRC, length and number are right; asks for all from the awaited one on at the first other.

    Payload is written to the buffer as it comes and counts from the tail on. A packet that was taken before is dropped
    without a word. After asking once, it does not ask again before a packet was taken: the sender's timer does.

    Parameters
    ----------
    protocol
        Sizes and times.

    Members
    -------
    wire_symbol, wire_flit
        From the other chip.
    control_word : Out(64)
        To the other chip, a register, every cycle: awaited packet, flits freed, episode, CRC.
    m_axis : Out(stream of `flit`)
        What was sent.
    errors, duplicates, overflows : Out(32)
        Bad packets and symbols; packets dropped as taken before; flits that found no room; modulo 2^32.
    """

    axi_streams = ("m_axis",)

    def __init__(self, library: Library, protocol: LinkProtocol) -> None:
        self.protocol = protocol
        ports = {
            "wire_symbol": In(SYMBOL_BITS),
            "wire_flit": In(protocol.flit_bits),
            "control_word": Out(CONTROL_BITS),
            "m_axis": Out(stream.Signature(flit(protocol.flit_bits))),
            "errors": Out(COUNTER_BITS),
            "duplicates": Out(COUNTER_BITS),
            "overflows": Out(COUNTER_BITS),
        }
        super().__init__(library, library.name("link_receiver"), ports, reset=True)
        self.expected = Signal(SEQUENCE_BITS)
        # Members, so that proofs can speak of them.
        self.taken, self.freed = Signal(COUNT_BITS), Signal(COUNT_BITS)
        self.inside, self.spoilt, self.mine = Signal(), Signal(), Signal()
        self.count = Signal(LENGTH_BITS)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        p = self.protocol
        slot_bits = (p.credits - 1).bit_length()
        expected, taken, freed = self.expected, self.taken, self.freed
        wire = self.wire_flit
        inside, spoilt, mine, last = self.inside, self.spoilt, self.mine, Signal()
        sequence, length, count = Signal(SEQUENCE_BITS), Signal(LENGTH_BITS), self.count
        crc = Signal(CRC_BITS)
        wrong, asked = Signal(), Signal()
        episode = Signal(EPISODE_BITS)
        room, right = Signal(), Signal()

        m.submodules.buffer = buffer = Memory(shape=p.flit_bits + 1, depth=max(p.credits, 2), init=[])
        write, read = buffer.write_port(), buffer.read_port(domain="comb")
        place = Signal(COUNT_BITS)
        m.d.comb += [
            place.eq(taken + count),
            room.eq((place - freed)[:COUNT_BITS] < p.credits),
            write.addr.eq(place[:slot_bits]),
            write.data.eq(Cat(wire, last & (count + 1 == length))),
            right.eq(~spoilt & (count == length) & (wire == (~crc)[:CRC_BITS])),
            read.addr.eq(freed[:slot_bits]),
            self.m_axis.valid.eq(taken != freed),
            self.m_axis.payload.data.eq(read.data[: p.flit_bits]),
            self.m_axis.payload.last.eq(read.data[p.flit_bits]),
        ]
        with m.If(self.m_axis.valid & self.m_axis.ready):
            m.d.sync += freed.eq(freed + 1)

        with m.If(self.wire_symbol.xor()):
            m.d.comb += wrong.eq(1)
            m.d.sync += inside.eq(0)
        with m.Elif(self.wire_symbol == Symbol.HEAD):
            m.d.comb += wrong.eq(inside)
            m.d.sync += [
                inside.eq(1),
                spoilt.eq(0),
                count.eq(0),
                crc.eq(next_crc(BEGIN, wire)),
                Cat(sequence, length, last).eq(wire),
                mine.eq(wire[:SEQUENCE_BITS] == expected),
            ]
        with m.Elif((self.wire_symbol == Symbol.BODY) & inside):
            m.d.sync += crc.eq(next_crc(crc, wire))
            with m.If(count == length):
                m.d.sync += spoilt.eq(1)
            with m.Else():
                m.d.sync += count.eq(count + 1)
                with m.If(mine & room):
                    m.d.comb += write.en.eq(1)
                with m.Elif(mine):
                    m.d.sync += [spoilt.eq(1), self.overflows.eq(self.overflows + 1)]
        with m.Elif((self.wire_symbol == Symbol.TAIL) & inside):
            m.d.sync += inside.eq(0)
            with m.If(right & mine):
                m.d.sync += [taken.eq(place), expected.eq(expected + 1), asked.eq(0)]
            with m.Elif(right & ((expected - sequence)[:SEQUENCE_BITS] <= 1 << (SEQUENCE_BITS - 1))):
                m.d.sync += self.duplicates.eq(self.duplicates + 1)
            with m.Else():
                m.d.comb += wrong.eq(1)
        with m.If(wrong):
            m.d.sync += [self.errors.eq(self.errors + 1), asked.eq(1), episode.eq(episode + ~asked)]

        state = Signal(32)
        m.d.comb += state.eq(Cat(expected, freed, episode))
        m.d.sync += self.control_word.eq(Cat(state, ~next_crc(BEGIN, state)))
        return m
