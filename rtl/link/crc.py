"""CRC-32C of a whole flit in one cycle: a matrix of exclusive ors."""

from __future__ import annotations

from functools import cache

from amaranth import Cat, Const
from amaranth.hdl import Value

from siliconloom.arch.link import CRC_BITS, CRC_POLYNOMIAL

BEGIN = (1 << CRC_BITS) - 1
"""What the register holds before the first flit; what goes out is its complement."""


def next_crc(register: Value | int, data: Value) -> Value:
    """The register after ``data``, whose bit 0 comes first."""
    register = Const(register, CRC_BITS) if isinstance(register, int) else register
    bits = Cat(register, data)
    return Cat(Cat(bits[i] for i in row).xor() for row in _rows(len(data)))


@cache
def _rows(width: int) -> tuple[tuple[int, ...], ...]:
    """For each bit of the result the bits that it is the sum of: of the register, then of the data."""
    columns = []
    for place in range(CRC_BITS + width):
        crc = 1 << place if place < CRC_BITS else 0
        for bit in range(width):
            mixed = crc & 1 ^ (place == CRC_BITS + bit)
            crc = crc >> 1 ^ (CRC_POLYNOMIAL if mixed else 0)
        columns.append(crc)
    return tuple(tuple(p for p, c in enumerate(columns) if c >> row & 1) for row in range(CRC_BITS))
