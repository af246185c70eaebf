"""What a memory level described by its DRAM gives to a tile: figures of its commands, not stated ones."""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from siliconloom.arch.description import Chip
from siliconloom.arch.dram import Dram
from siliconloom.arch.memory import Memory

PROBE = 1 << 17
"""Requests of the stream that measures a channel: tens of refreshes, hundreds of rows."""


class Delivered(Struct, frozen=True):
    """Of one channel.

    Parameters
    ----------
    bandwidth
        Bytes per second of a long sequential stream of reads: activates, refreshes and gaps between commands included.
    latency
        Picoseconds from a read's command to its last data when the bank was closed: tRCD + CL + the burst.
    """

    bandwidth: int
    latency: int


@cache
def delivered(dram: Dram) -> Delivered:
    """Replay a stream of `PROBE` reads of consecutive lines, offered as fast as the controller takes them."""
    import numpy as np

    from siliconloom.sim.dram.replay import replay  # only chips whose memory is described by its DRAM need it

    o = dram.organization
    lines = np.arange(PROBE, dtype=np.int64) % (o.capacity // o.request_bytes)
    found = replay(dram, np.zeros(PROBE, np.int64), np.zeros(PROBE, np.int64), lines * o.request_bytes)
    # a small memory is gone through several times; a read that shares another's burst moves nothing
    bandwidth = found.bursts * o.request_bytes * 10**12 // (found.finish * dram.clock_period)
    latency = (dram.timing.tRCD + dram.timing.CL + dram.burst_cycles) * dram.clock_period
    return Delivered(bandwidth, latency)


def effective(chip: Chip) -> Chip:
    """The chip with the DRAM of its memory levels replaced by what it delivers; itself when there is none."""
    if all(memory.dram is None for memory in chip.memory.values()):
        return chip
    return chip.model_copy(update={"memory": {name: _effective(memory) for name, memory in chip.memory.items()}})


def _effective(memory: Memory) -> Memory:
    if memory.dram is None:
        return memory
    channel = delivered(memory.dram)
    return memory.model_copy(
        update={
            "dram": None,
            "bandwidth": min(memory.bandwidth, memory.ports * channel.bandwidth),
            "latency": memory.latency + channel.latency,
        }
    )
