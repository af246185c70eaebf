"""The chip-to-chip link: packets, credits, retry, and every constant of its timing.

Both ends, the RTL (`rtl.link`) and the cycle model (`sim.network.link`), read these and nothing else. The wire carries
one flit a cycle and per direction, with a symbol of three bits beside it; the way back carries one control word a
cycle.

A packet is a head flit, 1 to ``packet_flits`` flits of payload, and a tail flit with the CRC of all before it.
"""

from __future__ import annotations

from enum import IntEnum

from pydantic import Field, model_validator

from siliconloom.arch.document import Description

CRC_POLYNOMIAL = 0x82F63B78
"""CRC-32C, bits reflected (Castagnoli et al., IEEE Trans. Communications 41(6), 1993; RFC 3720, section 12.1).

Any five wrong bits of a codeword of at most 5,243 data bits are detected (Koopman, DSN 2002, table 1: Hamming distance
6 there), and any burst of up to 32 bits.
"""
CRC_BITS = 32
PROTECTED_BITS = 5243
"""Data bits up to which `CRC_POLYNOMIAL` has a Hamming distance of six."""

SEQUENCE_BITS = 8
"""Of a packet's number."""
LENGTH_BITS = 8
"""Of the number of payload flits in a packet."""
COUNT_BITS = 16
"""Of the running count of flits that have left the receive buffer."""
EPISODE_BITS = 2
"""Of the number of times that the receiver has asked for packets again."""
CONTROL_BITS = 64
"""A control word: the next packet awaited, the count, the episode; from bit 32 on its CRC."""


class Symbol(IntEnum):
    """What the wire carries beside a flit. Any two differ in two bits: a single wrong bit makes none of them."""

    IDLE = 0b000
    HEAD = 0b011
    BODY = 0b101
    TAIL = 0b110


SYMBOL_BITS = 3


class LinkProtocol(Description):
    """One direction of a link between two chips, in flits and cycles of the chips' common clock."""

    flit_bits: int = Field(default=64, description="bits of a flit: 64, 128, 256 or 512")
    wire_cycles: int = Field(default=8, ge=0, le=4096, description="cycles that a flit or a control word is on its way")
    packet_flits: int = Field(default=16, description="most payload flits of a packet; a power of two up to 64")
    outstanding: int = Field(default=8, description="packets kept until they are acknowledged; a power of two up to 16")
    credits: int = Field(default=64, description="receive buffer in flits; a power of two up to 4096")
    timeout: int = Field(default=128, ge=1, le=60000, description="cycles without an acknowledgement before a retry")

    @model_validator(mode="after")
    def _check(self) -> LinkProtocol:
        if self.flit_bits not in (64, 128, 256, 512):
            raise ValueError(f"flit_bits must be 64, 128, 256 or 512 (got {self.flit_bits})")
        for name, low, high in (("packet_flits", 1, 64), ("outstanding", 1, 16), ("credits", 1, 4096)):
            value = getattr(self, name)
            if not low <= value <= high or value & (value - 1):
                raise ValueError(f"{name} must be a power of two from {low} to {high} (got {value})")
        if self.credits < self.packet_flits:
            raise ValueError(f"credits must hold a whole packet of {self.packet_flits} flits (got {self.credits})")
        if (self.packet_flits + 1) * self.flit_bits > PROTECTED_BITS:
            most = PROTECTED_BITS // self.flit_bits - 1
            raise ValueError(
                f"packet_flits must be at most {most} with flits of {self.flit_bits} bits, for the CRC "
                f"(got {self.packet_flits})"
            )
        if self.timeout < self.round_trip:
            raise ValueError(
                f"timeout must be at least {self.round_trip} cycles, the way of a packet and of its acknowledgement "
                f"(got {self.timeout})"
            )
        return self

    @property
    def round_trip(self) -> int:
        """Cycles from a packet's head leaving to the sender knowing that the longest one arrived."""
        return 2 * self.wire_cycles + self.packet_flits + 6

    @property
    def efficiency(self) -> float:
        """Share of payload in what the wire carries under load."""
        return self.packet_flits / (self.packet_flits + 2)


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C of ``data``, going on from ``crc``."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (CRC_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
