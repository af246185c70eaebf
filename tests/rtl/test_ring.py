"""Reduce-scatter and all-gather on a ring: values NumPy's, cycles the model's, whatever the sizes, times and errors."""

import shutil
from itertools import groupby

import numpy as np
import pytest

from siliconloom.arch import DataType, LoomError, NotSupported, load_system
from siliconloom.arch.chip_ring import load_ring, ring_parts
from siliconloom.arch.link import LinkProtocol
from siliconloom.arch.ring import RingEngine
from siliconloom.arch.system import load_group
from siliconloom.rtl.bench.ring_cases import run_ring_cases
from siliconloom.sim.dram.memory import effective
from siliconloom.sim.golden.ring import all_reduced
from siliconloom.sim.network.ring import Produced, run_ring
from siliconloom.verification.link import compare_ring
from siliconloom.verification.link_cases import random_ring_case
from siliconloom.verification.ring_layers import mlp_shards, stores_of_chunks

icarus = pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus is not installed")
RINGS = [
    (2, RingEngine(), LinkProtocol()),
    (3, RingEngine(operand=DataType.INT32, pieces=2), LinkProtocol(wire_cycles=1, packet_flits=4, credits=4)),
    (4, RingEngine(pieces=3), LinkProtocol(wire_cycles=20, packet_flits=8, outstanding=4)),
    (4, RingEngine(operand=DataType.INT32), LinkProtocol(wire_cycles=0, packet_flits=2, outstanding=1, credits=2)),
]


@pytest.mark.slow
@icarus
@pytest.mark.rtl
@pytest.mark.parametrize("number", range(len(RINGS)))
def test_values_are_numpys_and_cycles_the_models(tmp_path, number):
    chips, engine, protocol = RINGS[number]
    cases = [
        random_ring_case(engine, protocol, chips, 100 * number + n, rate, most=24)
        for n, rate in enumerate((0, 0, 0.002, 0.02))
    ]
    outcomes = run_ring_cases(engine, protocol, chips, cases, folder=tmp_path, simulator="icarus")
    for index, (case, found) in enumerate(zip(cases, outcomes, strict=True)):
        parity = compare_ring(engine, protocol, index, case, found)
        assert parity.value_errors + parity.cycle_errors == []
        assert parity.times_compared == chips * (2 * engine.messages(chips) + 1)
        assert parity.messages == chips * engine.messages(chips)
        assert parity.bytes_compared == sum(len(memory) for memory in case.memories)
    assert sum(chip.counters["retries"] for found in outcomes for chip in found) > 0


@pytest.mark.slow(seconds=2.5)
@icarus
@pytest.mark.rtl
def test_an_engine_that_adds_otherwise_is_found_out(tmp_path):
    chips, engine, protocol = RINGS[0]
    case = random_ring_case(engine, protocol, chips, 3)
    other = RingEngine(operand=DataType.INT32)
    (found,) = run_ring_cases(other, protocol, chips, [case], folder=tmp_path, simulator="icarus")
    parity = compare_ring(engine, protocol, 0, case, found)
    assert parity.cycle_errors == []
    assert "bytes of the memory of chip 0 differ" in parity.value_errors[0]


def everything_at(cycle, engine, chips, words):
    return [[Produced(cycle, chunk, words) for chunk in range(engine.chunks(chips))] for _ in range(chips)]


def test_a_chunk_is_sent_the_cycle_after_its_last_word_is_reported():
    engine, protocol = RingEngine(), LinkProtocol()
    produced = everything_at(50, engine, 4, 8)
    produced[2] = [Produced(60, 2, 8), *(p for p in produced[2] if p.chunk != 2)]
    runs = run_ring(engine, protocol, 8, [0] * 4, produced)
    assert [run.sent[0] for run in runs] == [51, 51, 61, 51]


def test_chunk_by_chunk_is_earlier_than_all_at_the_end():
    engine, protocol = RingEngine(), LinkProtocol()
    early = [[Produced(100 * (1 + n), (rank - n) % 4, 32) for n in range(4)] for rank in range(4)]
    late = everything_at(400, engine, 4, 32)
    first, second = (max(r.done for r in run_ring(engine, protocol, 32, [0] * 4, p)) for p in (early, late))
    assert 400 < first < second


def test_no_ring_is_faster_than_its_links():
    engine, protocol = RingEngine(), LinkProtocol(credits=512)
    words = 320
    done = max(r.done for r in run_ring(engine, protocol, words, [0] * 4, everything_at(1, engine, 4, words)))
    bound = engine.messages(4) * words / protocol.efficiency
    assert bound < done < 1.25 * bound


def test_a_chunk_that_is_never_produced_is_named_and_no_hang():
    engine, protocol = RingEngine(), LinkProtocol()
    produced = everything_at(5, engine, 3, 4)
    produced[1] = [p for p in produced[1] if p.chunk != 1]
    with pytest.raises(LoomError, match=r"the ring is not done.*chip 1: 0 of 4 chunks sent"):
        run_ring(engine, protocol, 4, [0] * 3, produced, limit=10_000)


def test_what_is_produced_before_the_start_is_refused():
    with pytest.raises(LoomError, match="chip 0 produced in cycle 5, before it started in 9"):
        run_ring(RingEngine(), LinkProtocol(), 1, [9, 0], everything_at(5, RingEngine(), 2, 1))


def test_int8_saturates_in_the_order_of_the_ring_and_int32_wraps():
    shares = [np.array([100, 0, 0], np.int8), np.array([100, 0, 0], np.int8), np.array([-100, 0, 0], np.int8)]
    total = all_reduced(RingEngine(), [s.view(np.uint8) for s in shares]).view(np.int8)
    assert total[0] == 27  # share 0: chip 0, then 1, then 2: 127 - 100
    big = [np.full(2, 2**31 - 1, np.int32).view(np.uint8)] * 2
    assert all_reduced(RingEngine(operand=DataType.INT32), big).view(np.int32).tolist() == [-2, -2]


def test_engines_add_integers_only():
    with pytest.raises(ValueError, match=r"operand must be int8 or int32 \(got bf16\)"):
        RingEngine(operand=DataType.BF16)


@pytest.mark.parametrize(
    ("stores", "text"),
    [
        ([[(0, 16)]], "not written exactly once"),
        ([[(0, 16)], [(16, 16)], [(0, 8)]], "not written exactly once"),
        ([[(8, 16)]], "not whole words of one chunk"),
        ([[(0, 4)]], "not whole words of one chunk"),
        ([[(0, 16)], [(16, 12)], [(28, 4)]], "not whole words of one chunk"),
    ],
)
def test_stores_that_a_tracker_would_miscount_are_refused(stores, text):
    with pytest.raises(NotSupported, match=text):
        stores_of_chunks(stores, 0, 16, 2, 8)


def test_stores_are_counted_by_chunk():
    rows = [[(100, 8)], [(0, 8), (8, 8)], [(16, 16)]]
    assert stores_of_chunks(rows, 0, 16, 2, 8) == [(1, 0, 2), (2, 1, 2)]


def test_the_shards_of_a_block_add_up_to_the_whole():
    system = load_system("npu-x4-ring")
    chip = effective(load_group(system.chips[0]))
    shards = mlp_shards(chip, RingEngine(), 4, tokens=16, hidden=16, inner=64, seed=2)
    assert len({s.buffer for s in shards}) == 1
    for rank, shard in enumerate(shards):
        assert [chunk for chunk, _ in groupby(chunk for _, chunk, _ in shard.stores)] == [
            (rank - n) % 4 for n in range(4)
        ]
        assert sum(words for _, _, words in shard.stores) == 16 * 16 // 8
    for rank, shard in enumerate(mlp_shards(chip, RingEngine(pieces=2), 4, tokens=32, hidden=16, inner=64, seed=2)):
        chunks = [chunk for chunk, _ in groupby(chunk for _, chunk, _ in shard.stores)]
        assert chunks == [2 * ((rank - n) % 4) + piece for n in range(4) for piece in range(2)]
    with pytest.raises(NotSupported, match="18 tokens in 4 chunks"):
        mlp_shards(chip, RingEngine(), 4, tokens=18, hidden=16, inner=64, seed=2)


@pytest.mark.parametrize(
    ("sets", "error", "text"),
    [
        ([("link.bandwidth", "9 GB/s")], LoomError, "link.bandwidth must be that of a flit a cycle"),
        ([("link.latency", "9 ns")], LoomError, "link.latency must be protocol.wire_cycles, 8 cycles"),
        ([("topology.kind", "switch")], NotSupported, "not a ring of equal chips"),
    ],
)
def test_a_ring_without_rtl_is_refused(sets, error, text):
    with pytest.raises(error, match=text):
        ring_parts(load_ring("npu-x4-ring", sets))


def test_a_system_without_a_protocol_has_no_rtl():
    with pytest.raises(NotSupported, match="it needs protocol"):
        ring_parts(load_ring("neupims", []))


def test_overrides_reach_the_chip():
    system = load_ring("npu-x4-ring", [("chip.tile.vector.latency", "17"), ("protocol.credits", "32")])
    chip, _, protocol, chips = ring_parts(system)
    assert (chip.tile.vector.latency, chip.tile.array.cols, protocol.credits, chips) == (17, 8, 32, 4)
