"""Random collectives on rings: the same for the RTL, the cycle model and NumPy."""

import random

import numpy as np

from siliconloom.rtl.bench.link_cases import Fault
from siliconloom.rtl.bench.ring_cases import RingCase
from siliconloom.sim.golden_ring import all_reduced
from siliconloom.sim.link import Faults
from siliconloom.sim.ring import Produced, run_ring

BASE = 5


def random_ring(engine, protocol, chips, seed, rate=0.0, most=40):
    """Chunks of a random size, produced in random parts at random times, and random wrong bits."""
    chance = random.Random(seed)
    numbers = np.random.default_rng(seed)
    words = chance.choice([1, 2, protocol.packet_flits, chance.randint(1, most)])
    size = protocol.flit_bits // 8
    chunks = engine.chunks(chips)
    memories = [numbers.integers(0, 256, (BASE + chunks * words + 3) * size).astype(np.uint8) for _ in range(chips)]
    starts = [chance.randint(3, 60) for _ in range(chips)]
    late = chance.choice([1, 100, 3000])
    produced = []
    for rank in range(chips):
        events = {}
        for chunk in range(chunks):
            left = words
            while left:
                part = chance.randint(1, left)
                cycle = starts[rank] + 1 + chance.randrange(late)
                while cycle in events:
                    cycle += 1
                events[cycle] = (cycle, chunk, part)
                left -= part
        produced.append(sorted(events.values()))
    faults = []
    for _ in range(chips):
        found = []
        for cycle in range(6000):
            if chance.random() < rate:
                bit = 1 << chance.randrange(protocol.flit_bits)
                kind = chance.choice([(1 << chance.randrange(3), 0, 0), (0, bit, 0), (0, 0, 1 << chance.randrange(64))])
                found.append(Fault(cycle, *kind))
        faults.append(found)
    return RingCase(words, memories, starts, produced, BASE, faults)


def modelled(engine, protocol, case):
    faults = [
        Faults(
            [f.cycle for f in found if f.symbol], [f.cycle for f in found if f.flit],
            [f.cycle for f in found if f.control],
        )
        for found in case.faults
    ]  # fmt: skip
    produced = [[Produced(*event) for event in events] for events in case.produced]
    return run_ring(engine, protocol, case.words, case.starts, produced, faults or None)


def expected_memories(engine, protocol, case):
    size, count = protocol.flit_bits // 8, engine.chunks(len(case.memories)) * case.words
    inside = slice(case.base * size, (case.base + count) * size)
    total = all_reduced(engine, [memory[inside] for memory in case.memories])
    found = []
    for memory in case.memories:
        copy = memory.copy()
        copy[inside] = total
        found.append(copy)
    return found
