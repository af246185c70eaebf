"""The sending end of a link: a stream cut into packets, kept until acknowledged, sent while there are credits."""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream
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

COUNTER_BITS = 32


def flit(bits: int) -> data.StructLayout:
    """A flit of a stream; ``last`` ends a message."""
    return data.StructLayout({"data": bits, "last": 1})


class LinkSender(Circuit):
    """Cuts an AXI4-Stream into packets and sends them, again when asked to or when nothing is heard (go-back-N).

    A packet ends with ``tlast`` or when it is full, and may leave from the cycle after, once the receive buffer has
    room for all of its payload. It stays in its slot until the receiver awaits a later one.

    Parameters
    ----------
    protocol
        Sizes and times.

    Members
    -------
    s_axis : In(stream of `flit`)
        What is to be sent.
    wire_symbol, wire_flit
        To the other chip, registers.
    control_word : In(64)
        From the other chip: what its receiver awaits, has freed and asks for.
    retries, timeouts, control_errors : Out(32)
        Times gone back, those of them for want of an answer, control words with a wrong CRC; modulo 2^32.
    """

    axi_streams = ("s_axis",)

    def __init__(self, library: Library, protocol: LinkProtocol) -> None:
        self.protocol = protocol
        ports = {
            "s_axis": In(stream.Signature(flit(protocol.flit_bits))),
            "wire_symbol": Out(SYMBOL_BITS),
            "wire_flit": Out(protocol.flit_bits),
            "control_word": In(CONTROL_BITS),
            "retries": Out(COUNTER_BITS),
            "timeouts": Out(COUNTER_BITS),
            "control_errors": Out(COUNTER_BITS),
        }
        super().__init__(library, library.name("link_sender"), ports, reset=True)
        # Members, so that proofs can speak of them: packets by number, flits counted from reset on.
        self.closed, self.acked, self.next = (Signal(SEQUENCE_BITS, name=n) for n in ("closed", "acked", "next"))
        self.freed, self.total = Signal(COUNT_BITS), Signal(COUNT_BITS)
        self.limit = Signal(COUNT_BITS)
        self.start, self.heard = Signal(), Signal()

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        p = self.protocol
        slot_bits, flit_bits = (p.outstanding - 1).bit_length(), (p.packet_flits - 1).bit_length()
        closed, acked, next_ = self.closed, self.acked, self.next

        # Into the slots.
        count = Signal(range(p.packet_flits))
        take, final = Signal(), Signal()
        sizes = LENGTH_BITS + 1 + COUNT_BITS
        m.submodules.flits = flits = Memory(shape=p.flit_bits, depth=p.outstanding * p.packet_flits, init=[])
        m.submodules.packets = packets = Memory(shape=sizes, depth=max(p.outstanding, 2), init=[])
        write, read = flits.write_port(), flits.read_port(domain="comb")
        describe, look = packets.write_port(), packets.read_port(domain="comb")
        length = Signal(LENGTH_BITS)
        m.d.comb += [
            self.s_axis.ready.eq((closed - acked)[:SEQUENCE_BITS] < p.outstanding),
            take.eq(self.s_axis.valid & self.s_axis.ready),
            final.eq(self.s_axis.payload.last | (count == p.packet_flits - 1)),
            length.eq(count + 1),
            write.en.eq(take),
            write.addr.eq(Cat(count[:flit_bits], closed[:slot_bits])),
            write.data.eq(self.s_axis.payload.data),
            describe.en.eq(take & final),
            describe.addr.eq(closed[:slot_bits]),
            describe.data.eq(Cat(length, self.s_axis.payload.last, (self.total + length)[:COUNT_BITS])),
        ]
        with m.If(take):
            m.d.sync += count.eq(Mux(final, 0, count + 1))
            with m.If(final):
                m.d.sync += [closed.eq(closed + 1), self.total.eq(self.total + length)]

        # What the receiver says.
        heard = self.heard
        new_acked = Signal(SEQUENCE_BITS)
        episode, handled = Signal(EPISODE_BITS), Signal(EPISODE_BITS)
        fields = self.control_word[:32]
        low, middle = SEQUENCE_BITS, SEQUENCE_BITS + COUNT_BITS
        m.d.comb += [
            heard.eq(self.control_word[32:] == ~next_crc(BEGIN, fields)),
            new_acked.eq(Mux(heard, fields[:low], acked)),
        ]
        m.d.sync += acked.eq(new_acked)
        with m.If(heard):
            m.d.sync += [self.freed.eq(fields[low:middle]), episode.eq(fields[middle : middle + EPISODE_BITS])]
        with m.Else():
            m.d.sync += self.control_errors.eq(self.control_errors + 1)

        # Onto the wire.
        sending, ending = Signal(), Signal()
        back, late = Signal(), Signal()
        timer = Signal(range(p.timeout + 1))
        shown = Signal(SEQUENCE_BITS)
        position, left = Signal(range(p.packet_flits)), Signal(LENGTH_BITS)
        slot = Signal(max(slot_bits, 1))
        crc = Signal(CRC_BITS)
        head = Signal(p.flit_bits)
        next_length, next_last = look.data[:LENGTH_BITS], look.data[LENGTH_BITS]
        m.d.comb += [
            look.addr.eq(next_[:slot_bits]),
            self.limit.eq(look.data[LENGTH_BITS + 1 :]),
            late.eq(timer == p.timeout),
            back.eq(~sending & ~ending & (late | (episode != handled))),
            self.start.eq(
                ~sending & ~ending & ~back & (next_ != closed) & ((self.limit - self.freed)[:COUNT_BITS] <= p.credits)
            ),
            head.eq(Cat(next_, next_length, next_last)),
            read.addr.eq(Cat(position[:flit_bits], slot[:slot_bits])),
        ]
        m.d.sync += [self.wire_symbol.eq(Symbol.IDLE), self.wire_flit.eq(0)]
        with m.If(self.start):
            m.d.sync += [
                self.wire_symbol.eq(Symbol.HEAD),
                self.wire_flit.eq(head),
                crc.eq(next_crc(BEGIN, head)),
                sending.eq(1),
                position.eq(0),
                left.eq(next_length),
                slot.eq(next_[:slot_bits]),
            ]
        with m.If(sending):
            # The slot may be given up and filled anew meanwhile: only a packet that arrived, whose copy is dropped.
            m.d.sync += [
                self.wire_symbol.eq(Symbol.BODY),
                self.wire_flit.eq(read.data),
                crc.eq(next_crc(crc, read.data)),
                position.eq(position + 1),
                left.eq(left - 1),
                sending.eq(left != 1),
                ending.eq(left == 1),
            ]
        with m.If(ending):
            m.d.sync += [self.wire_symbol.eq(Symbol.TAIL), self.wire_flit.eq(~crc), ending.eq(0)]

        # Which packet is next.
        after = Signal(SEQUENCE_BITS)
        m.d.comb += [
            shown.eq(next_ + self.start),
            after.eq(
                Mux(back | ((new_acked - acked)[:SEQUENCE_BITS] > (shown - acked)[:SEQUENCE_BITS]), new_acked, shown)
            ),
        ]
        m.d.sync += next_.eq(after)
        with m.If(back):
            m.d.sync += [handled.eq(episode), self.retries.eq(self.retries + 1), self.timeouts.eq(self.timeouts + late)]
        with m.If(back | (new_acked != acked) | (next_ == acked)):
            m.d.sync += timer.eq(0)
        with m.Elif(~late):
            m.d.sync += timer.eq(timer + 1)
        return m
