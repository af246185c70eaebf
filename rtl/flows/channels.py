"""Reads the handshakes of a circuit off its port names, for whatever must work with any top module."""

from __future__ import annotations

from msgspec import Struct

from siliconloom.rtl.library import Circuit


class ChannelPort(Struct, frozen=True):
    """A port of a circuit: name, bits, and whether it is an input."""

    name: str
    width: int
    is_input: bool


class Channel(Struct, frozen=True):
    """A valid/ready handshake: a stream, or one of the five channels of an AXI port.

    Parameters
    ----------
    prefix
        What its port names begin with: ``moving_``, ``m_axi_aw``.
    is_input
        The circuit receives its beats.
    payload
        The other ports, the first in the low bits of a packed beat.
    """

    prefix: str
    is_input: bool
    payload: tuple[ChannelPort, ...]

    @property
    def name(self) -> str:
        """The prefix without a trailing underscore."""
        return self.prefix.rstrip("_")

    @property
    def valid(self) -> str:
        return f"{self.prefix}valid"

    @property
    def ready(self) -> str:
        return f"{self.prefix}ready"

    @property
    def width(self) -> int:
        """Bits of a beat."""
        return sum(port.width for port in self.payload)

    def pack(self, values: dict[str, int]) -> int:
        """A beat as one number from the values of its ports, by port name."""
        beat, low = 0, 0
        for port in self.payload:
            value = values[port.name]
            if not 0 <= value < 1 << port.width:
                raise ValueError(f"{port.name} must fit in {port.width} bits (got {value})")
            beat |= value << low
            low += port.width
        return beat

    def unpack(self, beat: int) -> dict[str, int]:
        """The values of a beat's ports."""
        values, low = {}, 0
        for port in self.payload:
            values[port.name] = beat >> low & ((1 << port.width) - 1)
            low += port.width
        return values


class Interface(Struct, frozen=True):
    """The ports of a circuit beside clock and reset.

    Parameters
    ----------
    channels
        Handshakes, in the order of their ``valid`` ports.
    levels
        Everything else, an interrupt for example.
    """

    channels: tuple[Channel, ...]
    levels: tuple[ChannelPort, ...]

    @property
    def inputs(self) -> tuple[Channel, ...]:
        """Channels whose beats the circuit receives."""
        return tuple(c for c in self.channels if c.is_input)

    @property
    def outputs(self) -> tuple[Channel, ...]:
        """Channels whose beats the circuit sends."""
        return tuple(c for c in self.channels if not c.is_input)


def interface_of(circuit: Circuit) -> Interface:
    """Sort the ports of ``circuit`` into channels and levels.

    A port ``<prefix>valid`` with a port ``<prefix>ready`` of the other direction makes a channel; ports in the
    direction of ``valid`` belong to the longest prefix that they begin with.
    """
    ports = {
        name: ChannelPort(name, port.width, port.is_input)
        for name, port in circuit.ports().items()
        if name not in ("clk", circuit.library.reset_port)
    }
    prefixes = {}
    for name, port in ports.items():
        prefix = name.removesuffix("valid")
        ready = ports.get(f"{prefix}ready")
        if prefix != name and ready is not None and ready.is_input != port.is_input:
            prefixes[prefix] = port.is_input
    payloads: dict[str, list[ChannelPort]] = {prefix: [] for prefix in prefixes}
    levels = []
    handshakes = {f"{prefix}{end}" for prefix in prefixes for end in ("valid", "ready")}
    for name, port in ports.items():
        if name in handshakes:
            continue
        owners = [p for p, is_input in prefixes.items() if name.startswith(p) and port.is_input == is_input]
        if owners:
            payloads[max(owners, key=len)].append(port)
        else:
            levels.append(port)
    channels = tuple(Channel(p, is_input, tuple(payloads[p])) for p, is_input in prefixes.items())
    return Interface(channels, tuple(levels))
