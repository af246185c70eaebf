"""Reduce-scatter and all-gather on a ring: values NumPy's, cycles the model's, whatever the sizes, times and errors."""

import shutil

import numpy as np
import pytest

from siliconloom.arch import DataType, LoomError
from siliconloom.arch.link import LinkProtocol
from siliconloom.arch.ring import RingEngine
from siliconloom.rtl.bench.ring_cases import run_ring_cases
from siliconloom.sim.golden_ring import all_reduced
from siliconloom.sim.ring import Produced, run_ring
from tests.rtl.rings import expected_memories, modelled, random_ring

pytestmark = pytest.mark.rtl
icarus = pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus is not installed")
RINGS = [
    (2, RingEngine(), LinkProtocol()),
    (3, RingEngine(operand=DataType.INT32, pieces=2), LinkProtocol(wire_cycles=1, packet_flits=4, credits=4)),
    (4, RingEngine(pieces=3), LinkProtocol(flit_bits=128, wire_cycles=20, packet_flits=8, outstanding=4)),
    (4, RingEngine(operand=DataType.INT32), LinkProtocol(wire_cycles=0, packet_flits=2, outstanding=1, credits=2)),
]


def compared(engine, protocol, chips, cases, folder, **options):
    outcomes = run_ring_cases(engine, protocol, chips, cases, folder=folder, **options)
    for case, found in zip(cases, outcomes, strict=True):
        model = modelled(engine, protocol, case)
        expected = expected_memories(engine, protocol, case)
        for rank, outcome in enumerate(found):
            numbers = range(engine.messages(chips))
            sent = [engine.chunk_sent(rank, n, chips) for n in numbers]
            arrived = [engine.chunk_sent((rank - 1) % chips, n, chips) for n in numbers]
            assert outcome.sent == list(zip(model[rank].sent, sent, strict=True))
            assert outcome.arrived == list(zip(model[rank].arrived, arrived, strict=True))
            assert outcome.done == model[rank].done
            assert np.array_equal(outcome.memory[: len(expected[rank])], expected[rank])
            assert outcome.counters["overflows"] == outcome.counters["misframed"] == 0
    return outcomes


@icarus
@pytest.mark.parametrize("number", range(len(RINGS)))
def test_values_are_numpys_and_cycles_the_models(tmp_path, number):
    chips, engine, protocol = RINGS[number]
    rates = (0, 0, 0, 0.002, 0.02)
    cases = [random_ring(engine, protocol, chips, 100 * number + n, rate) for n, rate in enumerate(rates)]
    outcomes = compared(engine, protocol, chips, cases, tmp_path, simulator="icarus")
    assert sum(chip.counters["retries"] for found in outcomes for chip in found) > 0
