"""Traffic of products under FuseMax's and FLAT's buffers, and of what FLAT spills."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.reproduce.flat_events import flat_event_latency, idle_memory, row_ends, tile_bytes
from siliconloom.reproduce.fusemax_model import (
    BANDWIDTH,
    CLOCK,
    FLAT_BUFFER,
    FUSEMAX_BUFFER,
    KERNELS,
    UNFUSED,
    attention,
    flat,
    flat_linear,
    linear,
    product_tiles,
    score_moves,
    softmax_cycles,
    spilled,
    stage_cycles,
    tiles,
)
from siliconloom.reproduce.fusemax_tables import BATCH, LENGTHS, MODELS, flat_mapping
from siliconloom.workloads.cascades.passes import plan_passes
from siliconloom.workloads.cascades.traffic import fused_traffic

BY_NAME = {model.name: model for model in MODELS}


@given(
    rows=st.sampled_from([1 << 12, 1 << 16, 1 << 20]),
    inner=st.sampled_from([512, 768, 2048, 4096, 8192]),
    columns=st.sampled_from([512, 2048, 3072, 8192]),
    buffer=st.sampled_from([8 << 20, FUSEMAX_BUFFER, FLAT_BUFFER]),
)
def test_weights_that_do_not_fit_come_again_for_every_tile_of_rows(rows, inner, columns, buffer):
    """Every tile of rows and columns by hand: whole inner elements, the columns inside the rows."""
    options = []
    for m in (n for n in range(256, rows + 1, 256) if rows % n == 0):
        for n in (n for n in range(256, columns + 1, 256) if columns % n == 0):
            if 2 * inner * (m + n) <= buffer:
                again = rows // m if n < columns else 1
                options.append(rows * inner + inner * columns * again + rows * columns)
    assert product_tiles(rows, inner, columns, buffer).total == min(options)


@pytest.mark.parametrize("length", sorted(LENGTHS.values()))
def test_only_the_widest_model_has_weights_that_do_not_fit(length):
    """BERT, T5 and Transformer-XL move every operand once; the feed-forward of XLM has 32 MiB of weights each way."""
    for model in MODELS:
        rows, inner = BATCH * length, model.head_dim * model.heads
        shapes = [(model.width, inner)] * 3 + [(inner, model.width), (model.width, model.hidden)]
        once = sum(2 * (rows * k + k * n + rows * n) for k, n in [*shapes, (model.hidden, model.width)])
        moved = [layers(model, length).traffic for layers in (flat_linear, linear)]
        if model.name == "XLM":
            assert once < moved[0] < moved[1]
        else:
            assert moved == [once, once]


def test_a_larger_buffer_re_reads_less():
    model, length = BY_NAME["XLM"], LENGTHS["4K"]
    moved = [linear(model, length, size << 20).traffic for size in (9, 16, 32, 64)]
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > moved[-1]
    rows = BATCH * length
    assert product_tiles(rows, 8192, 2048, FUSEMAX_BUFFER).tile["M"] == 512  # with 256 columns: 12 of 16 MiB


def test_scores_move_as_often_as_kernels_hand_them_on():
    """FLAT: written, read for maximum and difference; exponentials and probabilities written and read."""
    assert (score_moves(KERNELS), score_moves(UNFUSED)) == (7, 4)


def test_passes_over_keys_of_what_the_cards_are_made_of():
    length = LENGTHS["4K"]
    assert plan_passes(attention("attention-3-pass", 64, 12, length), "M").count == 3
    assert plan_passes(attention("fusemax", 64, 12, length), "M1").count == 1


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_cycles_per_tile_are_those_of_the_binding(head_dim):
    """Nayak et al., section V: an exponential is six multiply-adds and a difference; results once a query."""
    of = stage_cycles(head_dim, 4096)
    assert [of[name] for name in ("QK", "LM", "SLN", "SLD", "SLNV")] == [head_dim, 1, 7, 1, head_dim]
    assert [of[name] for name in ("RM", "PRM", "SPD", "RD", "SPNV", "RNV")] == [1, 7, 1, 1, head_dim, head_dim]
    assert of["AV"] == head_dim * 256 / 4096
    assert softmax_cycles(replace(MODELS[0], head_dim=head_dim), 4096) == (2 * head_dim, 4 * 256)


@pytest.mark.parametrize("name", ["1K", "4K", "16K", "64K"])
def test_what_stays_on_chip_spills_its_share_too(name):
    """Queries or values that FLAT keeps come once if all finds room, and the spilled share at each use."""
    model, length = BY_NAME["XLM"], LENGTHS[name]
    mapping = flat_mapping(model.head_dim, length)
    share, uses = spilled(model, length, mapping), length // 256
    operand = BATCH * model.heads * length * model.head_dim * 2
    kept = sum((mapping.q, mapping.k, mapping.v))
    passing = operand * (uses * (3 - kept) + kept + 1)
    spills = 7 * share * operand * length / model.head_dim + kept * share * (uses - 1) * operand
    assert flat(model, length).traffic == pytest.approx(passing + spills)
    assert (share > 0) == (name != "1K")


def test_one_pass_traffic_is_that_of_its_blocks():
    model, length = BY_NAME["XLM"], LENGTHS["64K"]
    found = fused_traffic(attention("fusemax", model.head_dim, model.heads, length), FUSEMAX_BUFFER)
    block = found.footprint.block["p"]
    assert found.total == BATCH * model.heads * length * model.head_dim * 2 * (2 + 2 * length / block)
    assert block * (2 * model.head_dim + 2) * 2 <= FUSEMAX_BUFFER < 2 * block * (2 * model.head_dim + 2) * 2
    assert math.log2(block).is_integer()


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
@pytest.mark.parametrize("name", ["1K", "4K", "64K", "256K"])
def test_flat_as_events_moves_the_bytes_of_the_closed_form_and_takes_its_time(model, name):
    length = LENGTHS[name]
    moves, closed = tile_bytes(model, length), flat(model, length)
    each = moves.first + moves.second + (4 if moves.through else 7) * moves.scores
    assert each * tiles(model, length) == pytest.approx(closed.traffic)
    assert flat_event_latency(model, length) == pytest.approx(closed.latency, rel=0.05)


@pytest.mark.slow(seconds=1)
def test_no_row_of_tiles_is_done_before_its_arrays_and_memory_can_have_done_it():
    for model in MODELS:
        for name in ("1K", "16K", "256K"):
            length = LENGTHS[name]
            ends, moves, count = row_ends(model, length, 5), tile_bytes(model, length), length // 256
            assert ends == sorted(ends)
            products, softmax = softmax_cycles(model, length)
            brought = moves.second + (4 if moves.through else 7) * moves.scores
            floor = max(products / 2, softmax, brought * CLOCK / BANDWIDTH) * count
            assert all(end >= row * floor * (1 - 1e-9) for row, end in enumerate(ends, 1))


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 2000)), max_size=40))
def test_memory_is_never_faster_than_its_bandwidth_nor_early(asked):
    memory, last, total = idle_memory(), 0.0, 0.0
    for size, ready in asked:
        done = memory.move(size, ready)
        total += size * CLOCK / BANDWIDTH
        assert done >= ready + size * CLOCK / BANDWIDTH - 1e-6
        last = max(last, done)
    assert last >= total - 1e-6
    assert last <= max((ready for _, ready in asked), default=0.0) + total + 1e-6
