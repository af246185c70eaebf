"""What passes between the parts of a tile: the ports of its memories and the channels of its memory port.

Instructions are streams (`rtl.npu.entries`), and so are the channels to main memory. Local memory answers in a fixed
cycle and never waits, so its ports are no streams.
"""

from __future__ import annotations

from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, Signature

from siliconloom.arch.layout import is_power
from siliconloom.arch.vector import RISE_LIMIT, ROW_LIMIT
from siliconloom.rtl.npu.geometry import LOCAL_BITS, MEMORY_BITS, Geometry, log2


def local_read(size: int) -> Signature:
    """A read port of the scratchpad, as its user has it: ``data`` of ``size`` bytes come a cycle after ``enable``.

    An access of a power of two lies within one window of its size. Any other begins anywhere, and says by ``bytes`` how
    many it needs.
    """
    needs = {} if is_power(size) else {"bytes": Out(range(size + 1))}
    return Signature({"enable": Out(1), "address": Out(LOCAL_BITS), **needs, "data": In(8 * size)})


def local_write(size: int) -> Signature:
    """A write port of the scratchpad, as its user has it: an enable per byte."""
    return Signature({"enable": Out(size), "address": Out(LOCAL_BITS), "data": Out(8 * size)})


def sums_read(geometry: Geometry, lines: int = 1) -> Signature:
    """A read port of the accumulator, as its user has it: ``data`` of ``lines`` come a cycle after their ``enable``."""
    return Signature({"enable": Out(lines), "line": Out(lines * LOCAL_BITS), "data": In(8 * lines * geometry.results)})


def sums_write(geometry: Geometry) -> Signature:
    """A write port of the accumulator, as its user has it: sums replace a line, or are added to it.

    They are held two cycles after ``enable``. What is added to is first divided by a power of two where ``rescale`` is
    set: by that which `rises_write` has put down for a row of a slot. Of a line that is split some parts are meant:
    those whose number is ``part`` in the bits of ``apart``; its sums are the first of the ``data``.
    """
    bits = geometry.part_bits
    parts = {"part": Out(bits), "apart": Out(bits)} if bits else {}
    return Signature(
        {
            "enable": Out(1),
            "line": Out(LOCAL_BITS),
            "add": Out(1),
            "rescale": Out(1),
            "slot": Out(1),
            "row": Out(log2(ROW_LIMIT)),
            **parts,
            "data": Out(8 * geometry.results),
        }
    )


def rises_write() -> Signature:
    """How a unit puts down by which power of two the sums of a row have to be divided, in one of two slots."""
    return Signature(
        {"enable": Out(1), "slot": Out(1), "row": Out(log2(ROW_LIMIT)), "data": Out(range(RISE_LIMIT + 1))}
    )


BURST = data.StructLayout({"address": MEMORY_BITS, "length": 8})
"""An INCR burst: byte address of its first beat, beats less one."""


def read_channels(bytes_: int) -> Signature:
    """The channels by which main memory is read, as their user has them.

    ``burst`` asks; ``beat`` has the bytes, in the order in which they were asked for, whether the answer is an
    ``error``, and whether it is the ``last`` of its burst.
    """
    beat = data.StructLayout({"data": 8 * bytes_, "error": 1, "last": 1})
    return Signature({"burst": Out(stream.Signature(BURST)), "beat": In(stream.Signature(beat))})


def write_channels(bytes_: int) -> Signature:
    """The channels by which main memory is written, as their user has them.

    ``burst`` says where; ``beat`` has the bytes, an enable for each (``lanes``), and whether it is the ``last`` of its
    burst; there is one ``answer`` a burst, in order, which may be an ``error``.
    """
    beat = data.StructLayout({"data": 8 * bytes_, "lanes": bytes_, "last": 1})
    answer = data.StructLayout({"error": 1})
    return Signature(
        {
            "burst": Out(stream.Signature(BURST)),
            "beat": Out(stream.Signature(beat)),
            "answer": In(stream.Signature(answer)),
        }
    )


__all__ = [
    "BURST",
    "local_read",
    "local_write",
    "read_channels",
    "rises_write",
    "sums_read",
    "sums_write",
    "write_channels",
]
