"""What chips compute beside their messages: processors that do one thing at a time, as links that lead nowhere.

A chip's processor is a link of its own from the chip to a node behind it, whose byte takes a picosecond. Work of some
picoseconds is a message of as many bytes over it: it waits while the processor does other work, and is done in the
order in which it could begin, as messages on any link are. The link's latency takes back the delay that the end of
every message has.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from siliconloom.arch.network import Endpoint, Wiring

PICOSECONDS = 1e12
"""Bytes per second of a processor's link."""


def with_processors(wiring: Wiring, endpoint: Endpoint, each: int) -> Wiring:
    """The same chips, with ``each`` processors behind every one; see `processor`."""
    chips, many = np.arange(wiring.chips, dtype=np.int64), wiring.chips * each
    behind = wiring.nodes + np.arange(many, dtype=np.int64)
    return replace(
        wiring,
        nodes=wiring.nodes + many,
        source=np.concatenate([wiring.source, np.tile(chips, each)]),
        target=np.concatenate([wiring.target, behind]),
        bandwidth=np.concatenate([wiring.bandwidth, np.full(many, PICOSECONDS)]),
        latency=np.concatenate([wiring.latency, np.full(many, -endpoint.delay, np.int64)]),
    )


def processor(wiring: Wiring, chip: int, number: int = 0) -> int:
    """Node behind a chip for one of its processors; ``wiring`` is the one without them."""
    return wiring.nodes + number * wiring.chips + chip
