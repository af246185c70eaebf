"""Random work for links and rings, and the same work on their cycle models: what parity benches compare."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.link import LinkProtocol
from siliconloom.arch.ring import RingEngine
from siliconloom.rtl.bench.link_cases import PATTERN, SETTLE, Fault, LinkBenchCase
from siliconloom.rtl.bench.ring_cases import RingCase
from siliconloom.sim.golden.ring import all_reduced
from siliconloom.sim.network.link import ErrorPattern, Faults, LinkRun, run_link
from siliconloom.sim.network.ring import ChipRun, Produced, run_ring

BASE = 5
"""First flit of a random ring's buffer in its memory."""


def random_link_case(
    protocol: LinkProtocol, seed: int, rate: float = 0.0, flits: int = 300, *, harsh: bool = False
) -> LinkBenchCase:
    """Packets of random lengths between a source and a sink that wait at random.

    Parameters
    ----------
    protocol, seed, flits
        The link, the seed, the least number of flits.
    rate
        Chance of a fault, every cycle.
    harsh
        Any bits of a symbol, a flit or a control word are wrong; the cycles are then beyond the model. Otherwise one
        bit of a symbol, one or two of a flit, one of a control word.
    """
    chance = random.Random(seed)
    made: list[tuple[int, bool]] = []
    while len(made) < flits:
        length = chance.choice([1, 2, protocol.packet_flits, chance.randint(1, 3 * protocol.packet_flits)])
        made += [(chance.getrandbits(protocol.flit_bits), n == length - 1) for n in range(length)]
    faults = [
        _harsh(protocol, chance, cycle) if harsh else _fault(protocol, chance, cycle)
        for cycle in range(20 * flits)
        if chance.random() < rate
    ]
    shares = [1.0, 1.0, 0.8, 0.4, 0.1]
    source, sink = (_willing(chance, chance.choice(shares)) for _ in range(2))
    return LinkBenchCase(made, source, sink, faults)


def _willing(chance: random.Random, share: float) -> NDArray[np.bool_]:
    found = np.array([chance.random() < share for _ in range(PATTERN)])
    found[chance.randrange(PATTERN)] = True
    return found


def _fault(protocol: LinkProtocol, chance: random.Random, cycle: int) -> Fault:
    bit, other = (1 << chance.randrange(protocol.flit_bits) for _ in range(2))
    control = 1 << chance.randrange(64)
    kinds = (
        Fault(cycle, symbol=1 << chance.randrange(3)),
        Fault(cycle, flit=bit | other),
        Fault(cycle, flit=bit),
        Fault(cycle, control=control),
        Fault(cycle, flit=bit, control=control),
    )
    return chance.choice(kinds)


def _harsh(protocol: LinkProtocol, chance: random.Random, cycle: int) -> Fault:
    kinds = (
        Fault(cycle, symbol=chance.randrange(8), flit=chance.getrandbits(protocol.flit_bits)),
        Fault(cycle, control=chance.getrandbits(64)),
        Fault(cycle, symbol=chance.randrange(8)),
    )
    return chance.choice(kinds)


def random_ring_case(
    engine: RingEngine, protocol: LinkProtocol, chips: int, seed: int, rate: float = 0.0, most: int = 40
) -> RingCase:
    """Chunks of a random size up to ``most`` flits, produced in random parts at random times, with wrong bits."""
    chance = random.Random(seed)
    numbers = np.random.default_rng(seed)
    words = chance.choice([1, 2, protocol.packet_flits, chance.randint(1, most)])
    size, chunks = protocol.flit_bits // 8, engine.chunks(chips)
    memories = [numbers.integers(0, 256, (BASE + chunks * words + 3) * size).astype(np.uint8) for _ in range(chips)]
    starts = [chance.randint(3, 60) for _ in range(chips)]
    late = chance.choice([1, 100, 3000])
    produced = []
    for rank in range(chips):
        events: dict[int, tuple[int, int, int]] = {}
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
    faults = [random_faults(protocol, chance, rate, 6000) for _ in range(chips)]
    return RingCase(words, memories, starts, produced, BASE, faults)


def random_faults(protocol: LinkProtocol, chance: random.Random, rate: float, cycles: int) -> list[Fault]:
    """Faults of a link, each cycle with this chance."""
    return [_fault(protocol, chance, cycle) for cycle in range(cycles) if chance.random() < rate]


def modelled_faults(faults: list[Fault] | tuple[Fault, ...]) -> Faults:
    """The same faults, as far as the model asks."""
    return Faults(
        [f.cycle for f in faults if f.symbol],
        [f.cycle for f in faults if f.flit],
        [f.cycle for f in faults if f.control],
    )


def modelled_link(protocol: LinkProtocol, case: LinkBenchCase) -> LinkRun:
    """A link case on the cycle model."""
    return run_link(
        protocol,
        [last for _, last in case.flits],
        ErrorPattern(case.source),
        ErrorPattern(case.sink),
        modelled_faults(list(case.faults)),
        settle=SETTLE,
    )


def modelled_ring(engine: RingEngine, protocol: LinkProtocol, case: RingCase) -> list[ChipRun]:
    """A ring case on the cycle model."""
    faults = [modelled_faults(list(found)) for found in case.faults]
    produced = [[Produced(*event) for event in events] for events in case.produced]
    return run_ring(engine, protocol, case.words, case.starts, produced, faults or None)


def ring_memories(
    engine: RingEngine, protocol: LinkProtocol, case: RingCase, before: list[NDArray[np.uint8]] | None = None
) -> list[NDArray[np.uint8]]:
    """Every chip's memory afterwards; ``before`` is what lies there when the chips have computed."""
    memories = list(case.memories) if before is None else before
    size, count = protocol.flit_bits // 8, engine.chunks(len(memories)) * case.words
    inside = slice(case.base * size, (case.base + count) * size)
    total = all_reduced(engine, [memory[inside] for memory in memories])
    found = []
    for memory in memories:
        copy = memory.copy()
        copy[inside] = total
        found.append(copy)
    return found
