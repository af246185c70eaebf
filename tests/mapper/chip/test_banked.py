"""Attention of a token in a channel of memory that computes: where all lies, what comes out, what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError, NotSupported, load_chip
from siliconloom.arch.area import AREA_EXCLUDED, CHANNEL_EXCLUDED, area_excluded
from siliconloom.arch.assembler import check_program
from siliconloom.arch.datatype import DataType
from siliconloom.arch.document import Document
from siliconloom.arch.floats import narrowed, values_of
from siliconloom.arch.pim import Command
from siliconloom.cli import main
from siliconloom.evaluate.chip import simulate
from siliconloom.evaluate.mapping import load_plan
from siliconloom.evaluate.objectives import map_for
from siliconloom.mapper.chip import mapping
from siliconloom.mapper.chip.banked import BankedLayout, first_rows, is_banked
from siliconloom.mapper.chip.budget import Budget
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.operands import attended
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.sim.chip.energy import EXCLUDED, energy, excluded
from siliconloom.sim.chip.engine import Stopwatch, run
from siliconloom.sim.golden.npu import GoldenMachine
from siliconloom.verification.filling import filled
from siliconloom.verification.races import races
from siliconloom.workloads import Attention
from siliconloom.workloads.load import read_workload
from tests.rtl.channel_tiles import small_channel

CHIPS = {
    "bf16": small_channel(),
    "fp32": small_channel(tile__vector__format="fp32"),
    "one sum": small_channel(tile__pim__accumulators=1, tile__pim__global_buffer="512 B"),
    "long rows": small_channel(tile__pim__dram__organization__columns=16, tile__pim__global_buffer="1 KiB"),
}

ROUNDOFF = 2.0**-8
"""The largest error, relative, of a number that is rounded to bf16."""


def model(family="llama", **changes):
    """A description of a small model, of one layer."""
    sizes = {"heads": 4, "kv_heads": 2, "width": 64, "context": 37, "batch": 1, "layers": 1} | changes
    if family == "gpt2":
        described = (
            f"{{model_type: gpt2, n_embd: {sizes['width']}, n_layer: {sizes['layers']}, n_head: {sizes['heads']}, "
            "n_positions: 512, vocab_size: 32}"
        )
    else:
        described = (
            f"{{model_type: llama, hidden_size: {sizes['width']}, num_hidden_layers: {sizes['layers']}, "
            f"num_attention_heads: {sizes['heads']}, num_key_value_heads: {sizes['kv_heads']}, intermediate_size: 32, "
            "vocab_size: 32, tie_word_embeddings: false}"
        )
    text = f"kind: transformer\nphase: decode\ncontext: {sizes['context']}\nbatch: {sizes['batch']}\nmodel: {described}"
    return read_workload(Document.parse(text, "small"), "small")


def mapped_to(chip, graph):
    mapped = map_workload(chip, graph, Stopwatch(chip), search=False)
    assert is_banked(mapped.graph), mapped.notes
    return mapped


def tame(memory):
    """The same numbers, in fp32 or bf16, with ones for what is infinite, no number, or beyond 4: nothing overflows."""
    words = memory.view("<u2")
    words[(words >> 7 & 0xFF) > 128] = 0x3F80


def numbers(memory, address, count, dtype):
    width = dtype.bits // 8
    return values_of(memory[address : address + count * width].copy().view(f"<u{width}"), dtype)


@pytest.mark.slow(seconds=8.5)
@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(sorted(CHIPS)),
    family=st.sampled_from(["gpt2", "llama"]),
    kv_heads=st.sampled_from([1, 2, 4]),
    dim=st.sampled_from([8, 16, 24]),
    batch=st.integers(1, 2),
    context=st.integers(1, 70),
    seed=st.integers(0, 99),
)
def test_what_comes_out_is_attention_over_the_channels_keys_and_values(
    name, family, kv_heads, dim, batch, context, seed
):
    """In float64, of the queries, and the new keys and values, that lie in memory; all that is older is random.

    What bf16 leaves, to first order: the exponents are rounded where elements are in bf16, so that a key's share is off
    by as much as its exponent, in natural logarithms; all shares are rounded as they enter the channel; and what comes
    out is rounded as it leaves it, and as sequences of keys are added up. A quarter is left for the second order.
    """
    chip = CHIPS[name]
    graph = model(family, width=4 * dim, heads=4, kv_heads=kv_heads, batch=batch, context=context)
    mapped = mapped_to(chip, graph)
    check_program(mapped.program, chip)
    assert not any(races(mapped.program, chip))
    made, dtype = filled(mapped, seed), chip.tile.circuit_format
    tame(made.memory)
    tame(made.channel)
    memory = made.loaded()
    golden = GoldenMachine(chip, memory, made.channel)
    golden.run(made.program)
    content = golden.channel.content(len(made.channel))
    (shape,) = (each for each in mapped.graph.operators() if isinstance(each, Attention))
    layout, first = BankedLayout(chip.tile.pim, shape), first_rows(chip.tile, mapped.graph)[shape.name]
    (scales,) = (at for at, item in mapped.memory.objects() if (item.operator, item.role) == (shape.name, "scales"))
    (scale,) = memory[scales : scales + 4].view("<f4")
    found, stored = attended(mapped.graph, shape), mapped.results[shape.name]
    size = dtype.bits // 8

    def row(which, sequence, columns):
        maker = mapped.results[found[which].maker]
        at = maker.address + sequence * maker.row + found[which].column * size
        return numbers(memory, at, columns, dtype)

    def bf16(values):
        return values_of(narrowed(values.astype(np.float32).view(np.uint32), DataType.BF16), DataType.BF16)

    group = shape.heads // shape.kv_heads
    for sequence in range(batch):
        queries = row(0, sequence, shape.heads * dim).reshape(shape.heads, dim)
        new_key, new_value = (row(which, sequence, shape.kv_heads * dim).reshape(-1, dim) for which in (1, 2))
        for head in range(shape.kv_heads):
            place = first + (sequence * shape.kv_heads + head) * layout.head_rows
            base = place * chip.tile.pim.banks * layout.row_bytes
            keys = np.array([numbers(content, base + layout.key_at(t), dim, DataType.BF16) for t in range(context)])
            values = np.array(
                [
                    [
                        numbers(content, base + layout.value_at(c, t) + t % layout.elements * 2, 1, DataType.BF16)[0]
                        for c in range(dim)
                    ]
                    for t in range(context)
                ]
            )
            assert np.array_equal(keys[-1], bf16(new_key[head]))
            assert np.array_equal(values[-1], bf16(new_value[head]))
            for query in range(group):
                number = head * group + query
                t = bf16(queries[number]) @ keys.T * float(scale)
                power = np.exp2(t - t.max())
                share = power / power.sum()
                wanted = share @ values
                at = stored.address + sequence * stored.row + number * dim * size
                came = numbers(memory, at, dim, dtype)
                scored = np.log(2) * np.abs(t) * ROUNDOFF if dtype is DataType.BF16 else 0 * t
                left = (share * (scored + ROUNDOFF)) @ np.abs(values - wanted) + (2 * ROUNDOFF) * np.abs(wanted)
                assert np.all(np.abs(came - wanted) <= 1.25 * left + 1e-3)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("name", sorted(CHIPS))
def test_no_run_is_faster_than_its_bound_and_layers_have_rows_of_their_own(name):
    chip = CHIPS[name]
    mapped = mapped_to(chip, model(layers=2, batch=2, context=33))
    outcome = run(mapped.program, chip, exact=True)
    assert outcome.cycles >= mapped.bound.lower_bound_cycles
    (shape,) = (each for each in mapped.graph.operators() if isinstance(each, Attention))
    layout = BankedLayout(chip.tile.pim, shape)
    seen = set()
    for position in range(shape.positions):
        places = {layout.key_at(position)}
        places |= {layout.value_at(c, position) + position % layout.elements * 2 for c in range(shape.v_head_dim)}
        assert len(places) == 1 + shape.v_head_dim
        assert not places & seen
        assert max(places) < layout.plane
        seen |= places


@pytest.mark.parametrize(
    ("sets", "changes", "why"),
    [
        ({}, {"context": 200}, "the global buffer holds the probabilities of 112 keys"),
        ({}, {"width": 48}, "keys are whole bursts of 8 elements (got 12)"),
        ({"tile__pim__dram__organization__rows": 16}, {"context": 90}, "keys and values take 28 rows of every bank"),
    ],
)
def test_what_the_channel_does_not_do_the_array_does_and_a_note_says_why(sets, changes, why):
    chip = small_channel(**sets)
    mapped = map_workload(chip, model(**changes), Stopwatch(chip), search=False)
    assert not is_banked(mapped.graph)
    assert any("attention is computed by the array" in note and why in note for note in mapped.notes), mapped.notes


@pytest.mark.slow(seconds=1)
def test_a_mapping_file_is_refused_where_the_channel_computes_attention():
    mapped = mapped_to(CHIPS["bf16"], model())
    with pytest.raises(NotSupported, match="a mapping file where the channel computes attention"):
        mapping_text(mapped)


@pytest.mark.slow(seconds=7)
@settings(max_examples=8, deadline=None)
@given(
    name=st.sampled_from(sorted(CHIPS)),
    heads=st.sampled_from([2, 4, 8]),
    kv_heads=st.sampled_from([1, 2]),
    batch=st.integers(1, 2),
    context=st.integers(1, 100),
)
def test_attention_is_where_the_whole_workload_takes_fewer_cycles(name, heads, kv_heads, batch, context):
    graph = model(width=16 * heads, heads=heads, kv_heads=kv_heads, batch=batch, context=context)
    made = {}
    for attention in ("fused", "channel"):
        chip = CHIPS[name].model_copy(update={"attention": attention})
        made[attention] = map_workload(chip, graph, Stopwatch(chip), search=False)
    alone = map_workload(chip, graph, Stopwatch(chip), search=False, channel=False)
    there, beside, found = (run(each.program, chip).cycles for each in (made["channel"], alone, made["fused"]))
    assert is_banked(made["channel"].graph)
    assert found == min(there, beside)
    assert is_banked(made["fused"].graph) == (there < beside)
    assert any(f"{there:,}" in note and f"{beside:,}" in note for note in made["fused"].notes)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("sets", "why"),
    [
        ({"memory__dram__capacity": "60000 B"}, "by the array: the workload needs 68.38 KiB"),
        ({"tile__sequencer__program_words": 160}, "by the array 20,108 (more instructions than the sequencer"),
    ],
)
def test_the_channel_has_what_the_array_has_no_room_for(sets, why):
    chip = small_channel(attention="fused", **sets)
    made = map_workload(chip, model(context=60, batch=2), Stopwatch(chip), search=False)
    assert is_banked(made.graph)
    assert any(why in note for note in made.notes), made.notes


def test_the_array_has_what_there_is_no_room_for_beside_the_channel(monkeypatch):
    inside = mapping._in_blocks

    def refused(chip, graph, *arguments, **options):
        if is_banked(graph):
            raise LoomError("no room")
        return inside(chip, graph, *arguments, **options)

    monkeypatch.setattr(mapping, "_in_blocks", refused)
    chip = small_channel(attention="fused")
    made = map_workload(chip, model(context=60), Stopwatch(chip), search=False)
    assert not is_banked(made.graph)
    assert "attention is computed by the array, and the channel (tile.pim) rests: no room" in made.notes
    with pytest.raises(LoomError, match="no room"):
        map_workload(small_channel(), model(context=60), Stopwatch(chip), search=False)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("objective", "search"), [("time", Budget(trials=1)), ("energy", False), ("traffic", False), ("edp", False)]
)
def test_the_array_does_what_is_not_built_for_a_channel_and_a_note_says_so(objective, search):
    what = "searches of mappings and other objectives than time"
    chip, graph = CHIPS["bf16"].model_copy(update={"attention": "fused"}), model(context=70, kv_heads=4)
    made = map_for(objective, chip, graph, search=search)
    assert not is_banked(made.graph)
    assert any(f"the channel (tile.pim) rests: not built for {what}" in note for note in made.notes), made.notes
    with pytest.raises(NotSupported, match=f"{what} where the channel computes attention"):
        map_for(objective, CHIPS["bf16"], graph, search=search)


@pytest.mark.slow(seconds=1)
def test_a_mapping_file_and_values_are_the_arrays_where_the_channel_is_faster(tmp_path, capsys):
    """Where cost decides; a token behind many positions, which the channel has otherwise."""
    sets = {"workload.phase": "decode", "workload.context": "512", "workload.layers": "1"}
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    assert main(["map", "npu-pim-edge", "gpt2", *words, "-o", str(tmp_path / "m.yaml")]) == 0
    assert "rests: not built for mapping files" in " ".join(capsys.readouterr().out.split())
    plan, _ = load_plan("npu-pim-edge", "gpt2", list(sets.items()), alone="values of a model")
    assert not is_banked(plan.graph)
    assert any("rests: not built for values of a model" in note for note in plan.notes)
    assert is_banked(load_plan("npu-pim-edge", "gpt2", list(sets.items()))[0].graph)


def test_attention_is_in_a_channel_of_the_tile_alone():
    with pytest.raises(LoomError, match=r"attention: needs memory that computes beside an npu tile \(tile.pim\)"):
        load_chip("npu-edge", [("attention", "channel")])


@pytest.mark.parametrize(("standard", "counted"), [("HBM2", True), ("LPDDR5", False)])
def test_what_is_not_counted_of_a_channel_is_said(standard, counted):
    """Of its area nothing is; energy of the banks' commands is, where there are figures."""
    chip = small_channel(tile__pim__dram__standard=standard)
    mapped = mapped_to(chip, model())
    outcome = run(mapped.program, chip)
    none = np.zeros_like(outcome.commands[0])
    (index,) = np.flatnonzero(outcome.commands[:, Command.PIM_DOT])
    with_them, without = (
        energy(chip, DataType.BF16, outcome.counters[index], outcome.traffic[index], commands)["memory"]
        for commands in (outcome.commands[index], none)
    )
    assert (with_them > without) == counted
    assert ("commands of the banks" not in excluded(chip)) == counted
    assert area_excluded(chip) == [*AREA_EXCLUDED, CHANNEL_EXCLUDED]
    plain = load_chip("npu-edge")
    assert (excluded(plain), area_excluded(plain)) == (list(EXCLUDED), list(AREA_EXCLUDED))


@pytest.mark.parametrize("key", ["memory.dram.bandwidth=1GB/s", "tile.dma.bytes_per_cycle=2", "tile.vector.lanes=2"])
def test_what_a_channel_does_is_no_faster_than_its_bound_and_no_work_of_the_array(key):
    """Keys are written to the channel, not to memory: their bound once counted them there, and was not kept."""
    changed = {"attention": "channel", "workload.phase": "decode", "workload.context": "96", "workload.layers": "1"}
    sets = [*changed.items(), tuple(key.split("="))]
    result = simulate("npu-pim-edge", "gpt2", sets).result()
    rows = {row["name"]: row for row in result["operators"]}
    assert all(row["cycles"] >= row["bound_cycles"] for row in rows.values())
    assert rows["layer.attention"]["macs"] > 0
    assert rows["layer.attention"]["utilization"] == 0
    array = result["utilization"] * result["cycles"] * result["peak_macs"]
    assert round(array) == result["macs"] - rows["layer.attention"]["macs"] == result["macs_executed"]
