"""An FPGA top whose pins fit: a byte stream in and a byte stream out, whatever the ports of the design are.

A message in is the number of a channel, then one beat of its payload, low byte first. A message out is the same. Ports
that belong to no channel (an interrupt, say) share one message in each direction, ``levels``, whose number follows
those of the channels: towards the design it sets the inputs among them, and is answered by the outputs as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from amaranth import Cat, Const, Module, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out
from msgspec import Struct

from siliconloom.rtl.flows.channels import Channel, ChannelPort, Interface, interface_of
from siliconloom.rtl.library import Circuit, Library

BYTE = 8
LEVELS = "levels"


class Message(Struct, frozen=True):
    """One kind of message.

    Parameters
    ----------
    number
        Its first byte.
    name
        Of the channel, or ``levels`` for the ports of none.
    ports
        What it carries, the first in the low bits.
    """

    number: int
    name: str
    ports: tuple[ChannelPort, ...]

    @property
    def width(self) -> int:
        """Bits that count."""
        return sum(port.width for port in self.ports)

    @property
    def bytes(self) -> int:
        """Bytes after the number."""
        return max(1, -(-self.width // BYTE))


class Protocol(Struct, frozen=True):
    """The messages of an FPGA top: towards the design and from it."""

    inbound: tuple[Message, ...]
    outbound: tuple[Message, ...]

    def encode(self, name: str, beat: int) -> bytes:
        """The bytes of a message towards the design; raises `KeyError` for a name that is no message."""
        message = {m.name: m for m in self.inbound}[name]
        return bytes([message.number]) + beat.to_bytes(message.bytes, "little")

    def encode_result(self, name: str, beat: int) -> bytes:
        """The bytes of a message from the design."""
        message = {m.name: m for m in self.outbound}[name]
        return bytes([message.number]) + beat.to_bytes(message.bytes, "little")

    def decode(self, stream: bytes) -> Iterator[tuple[str, int]]:
        """Name and beat of every message from the design; raises `ValueError` for a stream that ends within one."""
        numbered = {m.number: m for m in self.outbound}
        position = 0
        while position < len(stream):
            message = numbered[stream[position]]
            end = position + 1 + message.bytes
            if end > len(stream):
                raise ValueError(f"the stream ends within a message of {message.name}")
            yield message.name, int.from_bytes(stream[position + 1 : end], "little")
            position = end


def byte_beats(
    protocol: Protocol, ordered: Sequence[tuple[str, int]], results: Sequence[tuple[str, int]]
) -> dict[str, list[int]]:
    """Beats of the FPGA top's own two channels, ``i`` and ``o``, that carry these beats and results of the design."""
    sent = b"".join(protocol.encode(name, beat) for name, beat in ordered)
    due = b"".join(protocol.encode_result(name, beat) for name, beat in results)
    return {"i": list(sent), "o": list(due)}


def protocol_of(interface: Interface) -> Protocol:
    """The messages that carry an interface."""

    def messages(channels: tuple[Channel, ...], inwards: bool) -> tuple[Message, ...]:
        made = [Message(number, c.name, c.payload) for number, c in enumerate(channels)]
        if interface.levels:
            made.append(Message(len(made), LEVELS, tuple(p for p in interface.levels if p.is_input == inwards)))
        return tuple(made)

    return Protocol(messages(interface.inputs, True), messages(interface.outputs, False))


class FpgaTop(Circuit):
    """A design behind two byte streams.

    Beats go in in the order of their messages: one that the design does not take holds up those behind it. Of several
    results that wait, that with the lowest number leaves first. A number that is no message is skipped.

    Parameters
    ----------
    library
        With the reset style of the design; its own library or another.
    design
        The circuit inside.

    Members
    -------
    i : In(stream of ``data``)
        Bytes of messages towards the design.
    o : Out(stream of ``data``)
        Bytes of messages from the design.
    """

    def __init__(self, library: Library, design: Circuit) -> None:
        self.design, self.interface = design, interface_of(design)
        self.protocol = protocol_of(self.interface)
        byte = stream.Signature(data.StructLayout({"data": BYTE}))
        ports: dict[str, Any] = {"i": In(byte), "o": Out(byte)}
        super().__init__(library, f"{design.module_name}_fpga", ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        inputs: dict[str, Any] = {}
        offers, received = self._receive(m)
        messages = self.protocol.inbound
        for message, channel in zip(messages, self.interface.inputs, strict=False):
            inputs |= _parts(_payload(received, message), message.ports)
            inputs[channel.valid] = offers[message.number]
        asked: Any = Const(0, 1)
        if self.interface.levels:
            message = messages[-1]
            asked = offers[message.number]
            if message.width:
                levels = Signal(message.width, name="levels_in")
                with m.If(asked):
                    m.d.sync += levels.eq(_payload(received, message))
                inputs |= _parts(levels, message.ports)
        takes = {channel.ready: Signal(name=f"take_{channel.name}") for channel in self.interface.outputs}
        inputs |= takes
        members = self.design.signature.members
        single = {name: inputs.pop(name) for name in [*inputs] if name in members}
        core = self.place(m, self.design, "core", **single).flat
        m.d.comb += [core[name].eq(value) for name, value in inputs.items()]
        answered = self._send(m, core, takes, asked)
        accepted = [core[channel.ready] for channel in self.interface.inputs]
        with m.If((offers & Cat(*accepted, *([answered] if self.interface.levels else []))).any()):
            m.d.sync += offers.eq(0)
        return m

    def _receive(self, m: Module) -> tuple[Signal, Signal]:
        """Collect messages; returns a bit per message, set when it is complete, and its bytes, which end at the top."""
        messages = self.protocol.inbound
        most = max((message.bytes for message in messages), default=1)
        offers, chosen = (Signal(max(1, len(messages)), name=name) for name in ("offers", "chosen"))
        within = Signal(name="within")
        more = Signal(range(most), name="more_bytes")
        received = Signal(most * BYTE, name="received", reset_less=True)
        m.d.comb += self.i.ready.eq(~offers.any())
        with m.If(self.i.valid & self.i.ready):
            with m.If(within):
                m.d.sync += received.eq(Cat(received[BYTE:], self.i.payload.data))
                with m.If(more.any()):
                    m.d.sync += more.eq(more - 1)
                with m.Else():
                    m.d.sync += [within.eq(0), offers.eq(chosen)]
            for message in messages:
                with m.If(~within & _is(self.i.payload.data, message.number)):
                    m.d.sync += [chosen.eq(1 << message.number), more.eq(message.bytes - 1), within.eq(1)]
        return offers, received

    def _send(self, m: Module, core: dict[str, Any], takes: dict[str, Signal], asked: Any) -> Signal:
        """Send a beat of every output channel as it comes, and the levels when asked; tells when those are taken."""
        messages = self.protocol.outbound
        most = 1 + max((message.bytes for message in messages), default=1)
        line = Signal(most * BYTE, name="sending", reset_less=True)
        more = Signal(range(most), name="more_to_send")
        busy, answered = Signal(name="busy"), Signal(name="levels_answered")
        m.d.comb += [self.o.valid.eq(busy), self.o.payload.data.eq(line[:BYTE])]
        with m.If(busy & self.o.ready):
            m.d.sync += line.eq(Cat(line[BYTE:], Const(0, BYTE)))
            with m.If(more.any()):
                m.d.sync += more.eq(more - 1)
            with m.Else():
                m.d.sync += busy.eq(0)
        handshakes: list[tuple[Any, Signal]] = [(core[c.valid], takes[c.ready]) for c in self.interface.outputs]
        if self.interface.levels:
            handshakes.append((asked, answered))
        # who may send is a register: what one channel offers reaches no other within a cycle
        grants, earlier = Signal(len(handshakes), name="grants"), Const(0, 1)
        m.d.sync += grants.eq(0)
        for (message, (valid, take)), grant in zip(zip(messages, handshakes, strict=True), grants, strict=True):
            beat = Cat(Const(message.number, BYTE), *[core[port.name] for port in message.ports])
            m.d.comb += take.eq(grant)
            with m.If(valid & ~earlier & ~busy & ~grants.any()):
                m.d.sync += grant.eq(1)
            with m.If(grant):  # what is offered stays
                m.d.sync += [line.eq(Cat(beat, Const(0, len(line) - len(beat)))), more.eq(message.bytes), busy.eq(1)]
            earlier = earlier | valid
        return answered


def _is(byte: Signal, value: int) -> Any:
    """The byte has this value; written bit by bit, since linters want both sides of a comparison equally wide."""
    return Cat(*[bit if value >> place & 1 else ~bit for place, bit in enumerate(byte)]).all()


def _payload(received: Signal, message: Message) -> Any:
    """The bits of a message in the bytes received, which end at the top."""
    return received[len(received) - message.bytes * BYTE :][: message.width]


def _parts(bits: Any, ports: tuple[ChannelPort, ...]) -> dict[str, Any]:
    """The value of each port, the first in the low bits."""
    made, low = {}, 0
    for port in ports:
        made[port.name] = bits[low : low + port.width]
        low += port.width
    return made
