"""Attention in memory: layouts, balance over channels, macros."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import DataType, LoomError, NotSupported, load_chip
from siliconloom.arch.pim import Command, MacroKind, check_macro
from siliconloom.mapper.pim.offload import Head, attention_macros, balance, load_of, shape_of, weight_macros
from siliconloom.sim.pim.channel import run_channel
from siliconloom.workloads import Attention, load_workload

TILES = {name: load_chip(name).pim for name in ("neupims-device", "pim-gpt")}


@st.composite
def heads(draw, tile):
    kv_heads = draw(st.integers(1, 12))
    return Head(
        kv_heads * draw(st.sampled_from([1, 1, 2, 4])),
        kv_heads,
        draw(st.sampled_from([64, 128])),
        draw(st.sampled_from([64, 128])),
        tile.operands[0],
        draw(st.sampled_from(["packed", "row"])),
    )


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_macros_activate_what_the_load_says_and_multiply_every_key_and_value(data):
    tile = TILES[data.draw(st.sampled_from(sorted(TILES)))]
    head = data.draw(heads(tile))
    contexts = data.draw(st.lists(st.integers(1, 1500), min_size=1, max_size=4))
    macros = attention_macros(tile, head, contexts, [10] * len(contexts))
    for macro in macros:
        check_macro(tile, macro)
    counts = run_channel(tile, macros).counts
    groups = tile.banks // tile.activate_group
    rounds = sum(load_of(tile, head, context) for context in contexts)
    assert counts[Command.PIM_ACT] == rounds * groups
    multiplied = counts[Command.PIM_DOT] * tile.banks * tile.burst_elements(head.dtype)
    needed = sum(head.heads * context * (head.width + head.value_width) for context in contexts)
    assert multiplied >= needed
    scores = [m for m in macros if m.kind == MacroKind.GEMV and m.after < 0 and m.apart]
    assert max(m.row + m.rounds * m.chunks for m in scores) <= sum(shape_of(tile, head, c).rows for c in contexts)


@pytest.mark.slow(seconds=1)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(2, 3))
@settings(max_examples=100, deadline=None)
def test_greedy_balance_is_within_four_thirds_of_the_best(loads, channels):
    def most(parts):
        return max(sum(loads[n] for n in part) for part in parts)

    dealt = balance(loads, channels, "greedy")
    assert sorted(n for part in dealt for n in part) == list(range(len(loads)))
    best = min(
        most([[n for n, c in enumerate(where) if c == channel] for channel in range(channels)])
        for where in itertools.product(range(channels), repeat=len(loads))
    )
    assert most(dealt) <= (4 / 3 - 1 / (3 * channels)) * best + 1e-9


def test_round_robin_deals_in_turn():
    assert balance([9, 1, 1, 1, 5], 2, "round_robin") == [[0, 2, 4], [1, 3]]


def test_short_values_share_rows_when_packed():
    tile = TILES["neupims-device"]
    packed, alone = (Head(8, 8, 128, 128, DataType.FP16, how) for how in ("packed", "row"))
    assert load_of(tile, packed, 100) < load_of(tile, alone, 100)
    assert load_of(tile, packed, 600) == load_of(tile, alone, 600)


def test_probabilities_wait_for_the_softmax():
    tile = TILES["neupims-device"]
    head = Head(8, 8, 128, 128, DataType.FP16)
    macros = attention_macros(tile, head, [300], [5000])
    run = run_channel(tile, macros)
    values = next(n for n, m in enumerate(macros) if m.after >= 0)
    assert run.first[values] >= run.done[macros[values].after] + 5000
    hidden = attention_macros(tile, head, [300, 300], [5000, 5000])
    assert run_channel(tile, hidden).cycles < 2 * run.cycles


@given(st.integers(1, 400), st.integers(1, 5000))
@settings(max_examples=60, deadline=None)
def test_products_read_the_whole_matrix(rows, length):
    tile = TILES["neupims-device"]
    macros = weight_macros(tile, rows, length, DataType.FP16)
    for macro in macros:
        check_macro(tile, macro)
    counts = run_channel(tile, macros).counts
    assert counts[Command.PIM_DOT] * tile.banks * tile.burst_elements(DataType.FP16) >= rows * length


def test_what_memory_cannot_compute_is_refused():
    several = next(o for o in load_workload("gpt2").operators() if isinstance(o, Attention))
    with pytest.raises(NotSupported, match="several queries"):
        Head.of(several)
    tile = TILES["neupims-device"].model_copy(update={"global_buffer": 512})
    with pytest.raises(LoomError, match="global_buffer holds 8 bursts, and a row needs 16"):
        attention_macros(tile, Head(1, 1, 64, 64, DataType.FP16), [2000], [0])
