"""Random cases for the link: the same flits, waits and wrong bits for the RTL and for its cycle model."""

import random

import numpy as np

from siliconloom.arch.link import LinkProtocol
from siliconloom.rtl.bench.link_cases import PATTERN, SETTLE, Fault, LinkCase
from siliconloom.sim.link import Faults, Pattern, run_link


def protocols():
    """A few links: short and long wires, small and large packets, windows and buffers."""
    yield LinkProtocol(wire_cycles=0, packet_flits=1, outstanding=1, credits=1, timeout=7)
    yield LinkProtocol()
    yield LinkProtocol(flit_bits=128, wire_cycles=3, packet_flits=4, outstanding=2, credits=8, timeout=20)
    yield LinkProtocol(wire_cycles=40, packet_flits=8, outstanding=16, credits=16, timeout=95)
    yield LinkProtocol(flit_bits=256, wire_cycles=1, packet_flits=16, outstanding=4, credits=256, timeout=200)


def willing(chance, share):
    found = np.array([chance.random() < share for _ in range(PATTERN)])
    found[chance.randrange(PATTERN)] = True
    return found


def random_case(protocol, seed, rate=0.0, flits=300, harsh=False):
    """Packets of random lengths; ``rate`` faults a cycle; ``harsh`` ones hit many bits, of symbols too."""
    chance = random.Random(seed)
    made = []
    while len(made) < flits:
        length = chance.choice([1, 2, protocol.packet_flits, chance.randint(1, 3 * protocol.packet_flits)])
        made += [(chance.getrandbits(protocol.flit_bits), n == length - 1) for n in range(length)]
    faults = []
    for cycle in range(20 * flits):
        if chance.random() < rate:
            bits = 1 << chance.randrange(protocol.flit_bits)
            if harsh:
                kind = chance.choice([(chance.randrange(8), chance.getrandbits(protocol.flit_bits), 0),
                                      (0, 0, chance.getrandbits(64)), (chance.randrange(8), 0, 0)])  # fmt: skip
            else:
                flip = bits | 1 << chance.randrange(protocol.flit_bits)
                kind = chance.choice([(1 << chance.randrange(3), 0, 0), (0, flip, 0), (0, bits, 0),
                                      (0, 0, 1 << chance.randrange(64)),
                                      (0, bits, 1 << chance.randrange(64))])  # fmt: skip
            faults.append(Fault(cycle, *kind))
    shares = [1.0, 1.0, 0.8, 0.4, 0.1]
    return LinkCase(
        made, willing(chance, chance.choice(shares)), willing(chance, chance.choice(shares)), faults
    )  # fmt: skip


def modelled(protocol, case):
    faults = Faults(
        [f.cycle for f in case.faults if f.symbol], [f.cycle for f in case.faults if f.flit],
        [f.cycle for f in case.faults if f.control],
    )  # fmt: skip
    lasts = [last for _, last in case.flits]
    return run_link(protocol, lasts, Pattern(case.source), Pattern(case.sink), faults, settle=SETTLE)
