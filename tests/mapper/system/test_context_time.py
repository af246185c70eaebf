"""Seconds of context-parallel schedules: closed forms where there are any, floors everywhere."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.gpu import load_gpu
from siliconloom.arch.rank_links import RankLink, RankLinks
from siliconloom.mapper.context import SCHEMES, context_schedule
from siliconloom.mapper.system.context import BACKWARD, context_cost, time_context
from siliconloom.reproduce.context_blocks import gpu_blocks

HEADS, DIM = 8, 16


def arithmetic(flops):
    """Two products of every pair at a rate."""
    return lambda queries, keys, pairs, heads: 4 * pairs * heads * DIM / flops


def close(value):
    return pytest.approx(value, rel=1e-6, abs=1e-9)


@settings(deadline=None)
@given(st.integers(2, 8), st.floats(1e8, 1e12), st.floats(1e6, 1e10), st.floats(0, 1e-4))
def test_a_ring_takes_the_longer_of_block_and_message_in_each_step(ranks, flops, bandwidth, latency):
    tokens = 64
    schedule = context_schedule("ring", ranks, [tokens * ranks], causal=False, heads=HEADS, head_dim=DIM)
    found = time_context(schedule, arithmetic(flops), RankLink(bandwidth, latency, "ring"))
    block = 4 * tokens**2 * HEADS * DIM / flops
    message = 2 * tokens * HEADS * DIM * 2 / bandwidth + latency
    assert found.seconds == close((ranks - 1) * max(block, message) + block)
    assert found.exposed == close((ranks - 1) * max(message - block, 0.0))
    assert found.idle == 0.0


@settings(deadline=None)
@given(st.integers(2, 6), st.floats(1e8, 1e12), st.floats(1e6, 1e10))
def test_token_ring_has_half_a_rings_messages_in_each_direction_on_a_mesh(ranks, flops, bandwidth):
    schedule = context_schedule("token_ring", ranks, [64 * ranks], causal=False, heads=HEADS, head_dim=DIM)
    found = time_context(schedule, arithmetic(flops), RankLink(bandwidth, 0.0, "mesh"))
    block = 4 * 64**2 * HEADS * DIM / flops
    query = 64 * HEADS * DIM * 2 / bandwidth
    out = query * (DIM + 1) / DIM
    # The last step's results go home with nothing beside them.
    assert found.seconds == close((ranks - 1) * max(block, query) + block + out)


@pytest.mark.parametrize("wiring", ["port", "ring", "mesh"])
@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=8, deadline=None)
@given(st.integers(1, 2), st.floats(1e6, 1e11), st.booleans())
def test_no_pass_is_below_its_floors(wiring, scheme, power, bandwidth, backward):
    ranks, flops = 2**power, 1e10
    options = {"heads": HEADS, "head_dim": DIM, "backward": backward, "ulysses": 2}
    schedule = context_schedule(scheme, ranks, [64 * ranks], **options)
    found = time_context(schedule, arithmetic(flops), RankLink(bandwidth, 1e-6, wiring))
    pairs = int(schedule.pairs.max()) * (BACKWARD if backward else 1.0)
    assert found.compute == close(4 * pairs * DIM / flops)
    assert found.seconds >= found.compute
    if wiring == "port":
        most = max(schedule.sent.max(), schedule.received.max())
        assert found.seconds >= most * 2 / bandwidth * (1 - 1e-6)
    fast = time_context(schedule, arithmetic(flops), RankLink(1e18))
    assert found.seconds >= fast.seconds


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SCHEMES),
    st.sampled_from([1, 2, 4]),
    st.lists(st.integers(1, 3000), min_size=1, max_size=8),
    st.sampled_from(["port", "ring", "mesh"]),
    st.booleans(),
    st.sampled_from([0, 2]),
)
def test_documents_of_any_length_come_through(scheme, half, lengths, wiring, backward, group):
    lengths = lengths[:1] if scheme == "lasp2" else lengths
    schedule = context_schedule(
        scheme, 2 * half, lengths, heads=HEADS, kv_heads=2, head_dim=DIM, backward=backward, ulysses=2
    )
    fabric = (
        RankLinks(RankLink(1e9, 1e-6, wiring), RankLink(1e8, 1e-5), group) if group else RankLink(1e9, 1e-6, wiring)
    )
    found = time_context(schedule, arithmetic(1e12), fabric)
    assert found.seconds >= found.compute >= found.idle >= 0
    assert all(0 <= start <= found.seconds for start in found.starts)


def test_blocks_on_a_gpu():
    blocks = gpu_blocks(load_gpu("h100"), head_dim=128, group=8)
    square = blocks(8192, 8192, 8192 * 8193 // 2, 32)
    full = blocks(8192, 8192, 8192**2, 32)
    assert 0.45 * full < square < 0.65 * full
    assert blocks(8192, 8192, 8192**2 // 2, 32) == pytest.approx(full / 2, rel=0.15)
    state, apply = blocks(0, 8192, 0, 32), blocks(8192, 0, 0, 32)
    assert max(state, apply) < 0.1 * square
    cost = context_cost("zigzag", 8, [131072], blocks, RankLink(450e9, 2e-6), heads=32, kv_heads=4, head_dim=128)
    assert cost.forward.exposed < 0.05 * cost.forward.compute


@pytest.mark.parametrize("scheme", ["zigzag", "striped", "ulysses", "token_ring", "packed", "hybrid"])
def test_nothing_is_exposed_by_links_that_take_no_time(scheme):
    cost = context_cost(scheme, 4, [512], arithmetic(1e9), RankLink(1e18), heads=HEADS, head_dim=DIM, ulysses=2)
    for time in (cost.forward, cost.backward):
        assert time.exposed <= 0.02 * time.compute
    assert cost.backward.compute == close(BACKWARD * cost.forward.compute)


def test_ulysses_sends_all_at_full_rate_through_a_switch():
    """Each rank starts with its successor, so nobody's port is hit twice at once."""
    schedule = context_schedule("ulysses", 8, [4096], heads=HEADS, head_dim=DIM)
    found = time_context(schedule, arithmetic(1e12), RankLink(1e9))
    assert found.exposed == close(found.sent / 1e9)


def test_a_ring_over_two_groups_is_as_slow_as_the_links_between_them():
    schedule = context_schedule("zigzag", 8, [4096], heads=HEADS, head_dim=DIM)
    inner, outer = RankLink(1e9), RankLink(1e8)
    near = time_context(schedule, arithmetic(1e13), inner)
    far = time_context(schedule, arithmetic(1e13), RankLinks(inner, outer, 4))
    assert far.seconds == pytest.approx(time_context(schedule, arithmetic(1e13), outer).seconds, rel=0.3)
    assert far.seconds > 5 * near.seconds


def test_usp_sends_less_between_groups_than_a_ring():
    """Queries and results stay within a group; the ring between groups carries a share of the heads of each."""
    options = {"heads": HEADS, "head_dim": DIM}
    fabric = RankLinks(RankLink(1e11), RankLink(1e8), 4)
    ring = time_context(context_schedule("zigzag", 8, [8192], **options), arithmetic(1e13), fabric)
    hybrid = time_context(context_schedule("hybrid", 8, [8192], **options, ulysses=4), arithmetic(1e13), fabric)
    assert hybrid.seconds < ring.seconds
