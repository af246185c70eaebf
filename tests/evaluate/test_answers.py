"""What a result says about itself: what was asked, what its energy leaves out, which pipe limits it."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.description import FASTEST_CLOCK
from siliconloom.arch.errors import DescriptionError, LoomError, NotSupported
from siliconloom.arch.technology import TECHNOLOGIES
from siliconloom.cli import main
from siliconloom.evaluate.chip import simulate
from siliconloom.rtl.emit import design_of
from siliconloom.sim.chip.energy import COMPONENTS, STANDING, standing_power
from siliconloom.workloads import Attention, Graph, load_workload

SMALL = [("workload.layers", "1"), ("workload.sequence", "32")]
CHIPS = ("npu-edge-int8", "npu-datacenter", "npu-balanced", "tpu-v4", "npu-cxl", "systolic-ws-8")


@pytest.mark.slow(seconds=7.5)
@settings(max_examples=6, deadline=None)
@given(chip=st.sampled_from(CHIPS[:4]), seconds=st.sampled_from(["50 ns", "1 us", "20 us"]))
def test_standing_energy_is_power_times_time_and_operators_add_up(chip: str, seconds: str) -> None:
    level = next(iter(load_chip(chip).memory))
    found = simulate(chip, "gpt2", [*SMALL, (f"memory.{level}.latency", seconds)])
    result = found.result()
    for name, watts in standing_power(found.chip).items():
        assert result["energy"][name] == pytest.approx(watts * result["seconds"], rel=1e-9)
    assert set(result["energy"]) == {*COMPONENTS, *STANDING}
    assert sum(o["energy_j"] for o in result["operators"]) == pytest.approx(result["energy_j"], rel=1e-9)


@pytest.mark.parametrize("chip", CHIPS)
def test_standing_power_grows_with_what_stands(chip: str) -> None:
    """More elements, buffers, tiles, clock or memory never take less; half the clock halves the clock tree's power."""
    described = load_chip(chip)
    power = standing_power(described)
    assert power["static"] > 0
    assert power["clock"] > 0
    assert (power["background"] > 0) == bool(described.memory)
    changes = [("tile.array.cols", str(2 * described.tile.array.cols)), ("tile_count", str(2 * described.tile_count))]
    if described.memory:
        changes.append(("tile.scratchpad.capacity", str(2 * described.tile.scratchpad.capacity) + " B"))
        changes += [(f"memory.{n}.capacity", f"{2 * m.capacity} B") for n, m in described.memory.items()]
    for change in changes:
        assert sum(standing_power(load_chip(chip, [change])).values()) > sum(power.values()), change
    slower = standing_power(load_chip(chip, [("clock", f"{described.clock // 2} Hz")]))
    assert slower["clock"] == pytest.approx(power["clock"] / 2)
    assert slower["static"] == power["static"]


@pytest.mark.slow(seconds=4)
def test_tpu_v4_at_rest_and_at_work_stays_under_what_was_measured() -> None:
    """Google Cloud's page: 90 W at least, 170 W in the mean, 192 W at most, of the whole chip with all we leave out."""
    found = simulate("tpu-v4", "llama2-7b", [("workload.layers", "2"), ("workload.sequence", "1024")])
    power = standing_power(found.chip)
    assert 10 < power["static"] + power["background"] < 90
    assert 90 < found.result()["power_w"] < 192
    prompt = simulate("tpu-v4", "llama3-8b", [("workload.layers", "4"), ("workload.sequence", "2048")])
    assert prompt.result()["power_w"] == pytest.approx(170, rel=0.25)


@pytest.mark.parametrize("node", sorted(TECHNOLOGIES))
def test_a_clock_beyond_every_product_of_the_node_is_refused(node: str) -> None:
    load_chip("npu-edge-int8", [("technology", node), ("clock", f"{FASTEST_CLOCK[node]} Hz")])
    for clock in (f"{FASTEST_CLOCK[node] + 1} Hz", "20 GHz"):
        with pytest.raises(DescriptionError) as caught:
            load_chip("npu-edge-int8", [("technology", node), ("clock", clock)])
        assert caught.value.path == "clock"
        assert "5.2 GHz" in str(caught.value)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    width=st.sampled_from([16, 64, 128, 512]),
    gigabytes=st.integers(1, 900),
    megahertz=st.integers(100, 3000),
    tiles=st.integers(1, 4),
)
def test_a_note_names_the_buses_that_cannot_carry_a_memory(width, gigabytes, megahertz, tiles) -> None:
    sets = [
        ("tile.dma.bytes_per_cycle", str(width)),
        ("memory.dram.bandwidth", f"{gigabytes} GB/s"),
        ("clock", f"{megahertz} MHz"),
        ("tile_count", str(tiles)),
    ]
    found = simulate("npu-edge-int8", "gpt2", [*SMALL, *sets]).result()
    noted = [note for note in found["notes"] if note.startswith("tile.dma.bytes_per_cycle")]
    carried = width * megahertz * 10**6 * tiles
    assert bool(noted) == (carried < gigabytes * 10**9)
    if found["bound"]["name"] == "memory":
        assert found["bound"]["key"] == ("tile.dma.bytes_per_cycle" if noted else "memory.dram.bandwidth")
    else:
        assert found["bound"]["key"] in ("tile.array", "tile.vector.lanes")


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("command", "sequence", "context"),
    [
        ("sim npu-edge-int8 gpt2 --set workload.layers=1 --set workload.sequence=48", 48, 48),
        ("sim npu-edge-int8 gpt2 --set workload.layers=1 --set workload.phase=decode --set workload.context=77", 1, 77),
        ("sim npu-edge-int8 gpt2-block-gemms --set clock=900MHz", None, None),
        ("sim neupims gpt3-7b --set workload.layers=2 --set workload.phase=decode --set workload.context=30", 1, 30),
        ("sim npu-edge-int8 gpt2 --set workload.layers=1 --set workload.sequence=48 --set workload.context=9", 48, 57),
        (
            "sim npu-edge-int8 gpt2 --set workload.layers=1 --set workload.phase=decode --set workload.context=77 "
            "--set workload.sequence=3",
            3,
            77,
        ),
        ("sim h100 llama3-8b --set workload.layers=2 --set workload.sequence=96", 96, 96),
        ("compare npu-edge-int8 gpt2 --gpu h100 --set workload.layers=1 --set workload.sequence=48", 48, 48),
        ("plan dgx-h100 llama3-8b --set workload.layers=2 --set plan.tensor=8 --set workload.sequence=512", 512, 512),
    ],
)
def test_results_say_what_was_asked_and_what_energy_leaves_out(tmp_path, capsys, command, sequence, context) -> None:
    path = tmp_path / "result.json"
    assert main([*command.split(), "--json", str(path)]) == 0
    asked = json.loads(path.read_text())["asked"]
    assert (asked["sequence"], asked["context"]) == (sequence, context)
    words = command.split()
    sets = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    assert [f"{key}={value}" for key, value in asked["overrides"].items()] == sets
    shown = capsys.readouterr().out
    assert all(each in " ".join(shown.split()) for each in sets)
    if words[0] != "plan":
        result = json.loads(path.read_text())
        parts = result.get("machines", [result])
        assert all(part["energy_excludes"] for part in parts)
        assert "without" in shown


@pytest.mark.slow(seconds=1)
def test_reports_name_what_energy_leaves_out(tmp_path) -> None:
    for command in (["sim", "npu-edge-int8", "gpt2"], ["compare", "npu-edge-int8", "gpt2", "--gpu", "h100"]):
        page = tmp_path / "page.html"
        assert main([*command, "--set", "workload.layers=1", "--report", str(page)]) == 0
        text = page.read_text()
        assert "without networks and links" in text
        assert "workload.layers=1" in text


@pytest.mark.slow(seconds=1)
def test_a_program_longer_than_the_program_memory_is_refused_with_its_length() -> None:
    words = len(simulate("npu-edge-int8", "gpt2", SMALL).plan.program.instructions)
    simulate("npu-edge-int8", "gpt2", [*SMALL, ("tile.sequencer.program_words", str(words))])
    with pytest.raises(
        LoomError, match=r"the mapped program has \d+ instructions, the program memory holds 16; one of"
    ) as caught:
        simulate("npu-edge-int8", "gpt2", [*SMALL, ("tile.sequencer.program_words", "16")])
    needed = re.search(r"has (\d+) instructions", str(caught.value))
    assert needed is not None
    assert 16 < int(needed[1]) <= words, "with pipelines of attention as short as can be"
    simulate("npu-edge-int8", "gpt2", [*SMALL, ("tile.sequencer.program_words", needed[1])])


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("words", [["sim"], ["plan", "--set", "workload.batch=8"]])
def test_experts_whose_program_is_too_long_for_the_chips_of_a_system_are_told_in_a_line(words, capsys) -> None:
    """What does not fit is looked for operator by operator: an expert alone gathers its rows with none before it."""
    command, *keys = words
    keys += ["--set", "workload.sequence=256", "--set", "chip.tile.sequencer.program_words=128"]
    assert main([command, "npu-datacenter-x8", "mixtral-8x7b", "--set", "workload.layers=1", *keys]) == 2
    told = capsys.readouterr().err
    assert re.search(r"program_words: the mapped program has \d+ instructions, the program memory holds 128", told)


@pytest.mark.slow(seconds=1)
def test_tiles_that_may_join_take_the_faster_way_on_a_lone_chip() -> None:
    graph = load_workload("gpt2", [("layers", "1"), ("sequence", "64"), ("precision", "fp16")])
    described = load_chip("neupims-device")
    apart = described.model_copy(update={"tiles_join": False})
    ways = [simulate(way, graph).run.cycles for way in (apart, apart.joined())]
    found = simulate(described, graph)
    assert found.run.cycles == min(ways)
    assert found.joined == (ways[1] < ways[0])
    assert any(note.startswith("tiles_join") for note in found.result()["notes"])


def test_several_tiles_have_no_rtl() -> None:
    with pytest.raises(NotSupported, match="tile_count of tpu-v4: 8"):
        design_of(load_chip("tpu-v4"))


@pytest.mark.parametrize(
    "key", ["quantization_config: {bits: 4}", "lora_alpha: 16", "peft_type: LORA", "vision_lora: 1"]
)
def test_configurations_that_change_the_weights_are_refused(tmp_path, key) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "model_type: gpt2\nn_embd: 64\nn_head: 2\nn_layer: 1\nn_positions: 64\nvocab_size: 100\n" + key + "\n"
    )
    with pytest.raises(DescriptionError, match="not supported") as caught:
        load_workload(str(path))
    assert key.partition(":")[0] in caught.value.path


def test_a_file_that_states_its_phase_means_its_lengths(tmp_path) -> None:
    path = tmp_path / "model.yaml"
    model = "model: {model_type: gpt2, n_embd: 64, n_head: 2, n_layer: 1, n_positions: 64, vocab_size: 100}\n"
    path.write_text("kind: transformer\nphase: prefill\nsequence: 8\ncontext: 16\n" + model)
    assert _lengths(load_workload(str(path))) == (8, 24)
    assert _lengths(load_workload(str(path), [("phase", "decode")])) == (1, 16)
    path.write_text("kind: transformer\nsequence: 8\ncontext: 16\n" + model)
    assert _lengths(load_workload(str(path))) == (8, 8)
    assert _lengths(load_workload(str(path), [("phase", "decode")])) == (1, 16)
    assert _lengths(load_workload(str(path), [("phase", "decode"), ("sequence", "4")])) == (4, 16)
    path.write_text("kind: transformer\nphase: training\nsequence: 8\ncontext: 16\n" + model)
    with pytest.raises(DescriptionError, match="context in training"):
        load_workload(str(path))


def _lengths(graph: Graph) -> tuple[int, int]:
    """New tokens, and those that the last of them attends to."""
    attention = next(o for o in graph.operators() if isinstance(o, Attention))
    return attention.q_len, attention.kv_len


def test_the_balanced_chip_is_balanced_and_shows_its_traffic() -> None:
    chip = load_chip("npu-balanced")
    assert 200 <= 2 * chip.peak_macs * chip.clock / chip.nearest.total_bandwidth <= 300
    assert chip.dma_bandwidth >= chip.nearest.total_bandwidth
