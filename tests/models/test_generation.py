"""Text on a tile: one memory for all programs, the cache in it, the second reading beside it; and the command."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from siliconloom.arch.errors import LoomError
from siliconloom.cli import main
from siliconloom.evaluate.generation import GenerationPlan, figures, plan_generation
from siliconloom.execution.constants import constants_of
from siliconloom.execution.files import FileWeights
from siliconloom.execution.generation import RealText, TileText, perplexity
from siliconloom.mapper.chip.kept import kept_of, stays
from siliconloom.workloads import load_workload
from tests.execution.models import SHAPES, chip_of, logits_of
from tests.in_turn import in_turn
from tests.models.files import model_of, write_folder, write_gguf

PROMPT = [1, 30, 31, 77, 130]


def text_on(chip, path, prompt, most, sets=()):
    """Every program of a text with its step, and the tile."""
    plan = GenerationPlan(chip, str(path), tuple(sets), len(prompt), most)
    graph = plan.step("prefill", len(prompt)).graph
    real = RealText(graph, FileWeights(graph, str(path)), constants_of(str(path), graph))
    spoken = list(real.text(prompt, most, frozenset()))
    tile = TileText(chip.tile, plan.kept, real)
    found, given, length = [], prompt, 0
    for number in range(most):
        length += len(given)
        simulation = plan.step("decode" if number else "prefill", length)
        found.append((simulation, tile.run(simulation.plan, given)))
        given = [found[-1][1].token]
    return plan, tile, found, spoken


SPEAKERS = [
    ("llama", 1, (), "int8"),
    ("gpt2", 2, (("sample", "greedy"),), "int8"),
    ("qwen2", 2, (), "int8"),
    ("llama", 2, (("sample", "greedy"),), "bf16"),
    ("qwen2", 1, (), "fp16"),
    ("gpt2", 2, (), "fp8_e4m3"),
]
ON = range(0, len(SHAPES), 3)
"""Numbers of the shapes of arrays on which models speak: each model every day on another one of them."""


@pytest.mark.parametrize(
    ("family", "kv_heads", "sets", "dtype", "shape"),
    in_turn(
        ((*case, ON[(number + turn) % len(ON)]) for number, case in enumerate(SPEAKERS) for turn in range(len(ON))),
        3 * len(ON),
    ),
)
def test_every_program_finds_the_cache_of_those_before_it(tmp_path, family, kv_heads, sets, dtype, shape):
    config, tensors = model_of(family, kv_heads=kv_heads)
    path = write_gguf(tmp_path / "m.gguf", config, tensors)
    rows, cols, lanes = SHAPES[shape]
    chip, sets = chip_of(rows, cols, lanes, 16, dtype=dtype), (*sets, ("precision", dtype))
    _, tile, found, spoken = text_on(chip, path, PROMPT, 6, sets)
    if dtype in ("bf16", "fp16"):
        assert found[0][1].token == spoken[0]
    assert [step.differing for _, step in found] == [0] * 6
    assert tile.position == len(PROMPT) + 5


@pytest.mark.slow(seconds=1.5)
def test_parameters_and_cache_have_one_address_and_are_written_once(tmp_path):
    config, tensors = model_of("llama")
    path = write_gguf(tmp_path / "m.gguf", config, tensors)
    chip = chip_of(16, 16, 16, 64)
    plan, tile, found, _ = text_on(chip, path, PROMPT, 4, [("cache_length", "16")])
    kept = plan.kept.taken
    assert {role for _, role in kept.items} >= {"parameters", "scales", "keys", "values"}
    for simulation, _ in found:
        places = {
            item.key: address for address, item in simulation.plan.memory.objects() if stays(simulation.plan, item)
        }
        assert places == kept.starts
        assert kept_of(simulation.plan).tiles == plan.kept.tiles
    parameters = [key for key, item in kept.items.items() if item.held == "parameters"]
    before = {key: tile.memory[kept.starts[key] :][: kept.items[key].size].copy() for key in parameters}
    simulation = plan.step("decode", len(PROMPT) + 4)
    tile.memory[kept.starts[parameters[0]]] ^= 1  # what is written once stays changed
    tile.run(simulation.plan, [5])
    changed = [key for key in parameters if (before[key] != tile.memory[kept.starts[key] :][: len(before[key])]).any()]
    assert changed == parameters[:1]


@pytest.mark.slow(seconds=1)
def test_a_key_in_the_cache_that_changes_is_noticed(tmp_path):
    config, tensors = model_of("llama")
    path = write_gguf(tmp_path / "m.gguf", config, tensors)
    plan, tile, _, _ = text_on(chip_of(16, 16, 16, 64), path, PROMPT, 3, [("cache_length", "16")])
    items, starts = plan.kept.taken.items, plan.kept.taken.starts
    key = next(key for key in items if key[1] == "values")
    room = tile.memory[starts[key] :][: items[key].size]
    room[:] = np.where(room > 0, room ^ 64, room)
    assert tile.run(plan.step("decode", tile.position + 1).plan, [5]).differing > 0


def test_float32_text_is_that_of_whole_prompts(tmp_path):
    config, tensors = model_of("llama")
    path = write_gguf(tmp_path / "m.gguf", config, tensors)
    graph = load_workload(str(path), [("sequence", "4")])
    text = list(PROMPT)
    for _ in range(5):
        text.append(int(logits_of(config, tensors, text).argmax()))
    real = RealText(graph, FileWeights(graph, str(path)), constants_of(str(path), graph))
    assert list(real.text(PROMPT, 5, frozenset())) == text[len(PROMPT) :]
    real = RealText(graph, FileWeights(graph, str(path)), constants_of(str(path), graph))
    first = text[len(PROMPT)]
    assert list(real.text(PROMPT, 5, frozenset([first]))) == [first]  # which ends it


def test_a_perplexity_is_that_of_every_next_token(tmp_path):
    config, tensors = model_of("llama", tied=False)
    path = write_gguf(tmp_path / "m.gguf", config, tensors)
    graph = load_workload(str(path), [("sequence", "4")])
    weights, constants = FileWeights(graph, str(path)), constants_of(str(path), graph)
    chances = []
    for end in range(1, len(PROMPT)):
        logits = logits_of(config, tensors, PROMPT[:end])
        chances.append(logits[PROMPT[end]] - math.log(np.exp(logits).sum()))
    assert perplexity(graph, weights, constants, PROMPT) == pytest.approx(math.exp(-np.mean(chances)), rel=1e-4)
    with pytest.raises(LoomError, match="needs two tokens"):
        perplexity(graph, weights, constants, PROMPT[:1])


@pytest.mark.slow(seconds=1)
def test_sharing_memory_costs_no_more_than_the_better_of_two_ways(tmp_path):
    plan = plan_generation("npu-edge-int8", "smollm2-135m", [("workload.layers", "2")], prompt=20, most=4)
    made = figures(plan.step("decode", 23), context=23)
    own = load_workload("smollm2-135m", [("layers", "2"), ("phase", "decode"), ("context", "23")])
    from siliconloom.evaluate.chip import simulate

    alone = simulate("npu-edge-int8", own)
    assert made.cycles <= 1.1 * alone.run.cycles
    assert 0.5 < made.bandwidth <= 1
    assert plan.room == 23


# The command ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    config, tensors = model_of("llama")
    write_gguf(folder / "m.gguf", config, tensors)
    write_folder(folder / "m", config, tensors)
    return folder


def run(path, *more):
    return main(["run", "npu-edge-int8", str(path), "--prompt", "hello world", *more])


def record_of(capsys, path, *more):
    assert run(path, *more, "--json", "-") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow(seconds=3)
def test_a_file_and_a_folder_say_the_same(models, capsys):
    one, other = (record_of(capsys, models / name, "--tokens", "4") for name in ("m.gguf", "m"))
    assert one["schema"] == "siliconloom.text/1"
    for key in ("prompt", "prompt_tokens", "tokens", "text", "float32_tokens", "first_difference", "steps", "summary"):
        assert one[key] == other[key], key
    assert one["differing"] == 0
    assert one["compared"] == 4 * 267
    assert [step["tokens"] for step in one["steps"]] == [len(one["prompt_tokens"]), 1, 1, 1]
    assert one["cache_length"] == len(one["prompt_tokens"]) + 3
    summary, steps = one["summary"], one["steps"]
    assert summary["time_to_first_token_s"] == steps[0]["seconds"]
    assert summary["time_per_token_s"] == pytest.approx(sum(step["seconds"] for step in steps[1:]) / 3)
    assert summary["energy_per_token_j"] == pytest.approx(sum(step["energy_j"] for step in steps[1:]) / 3)


@pytest.mark.slow(seconds=1.5)
def test_a_text_is_printed_and_then_what_it_takes(models, capsys):
    assert run(models / "m.gguf", "--tokens", "3", "--system", "be brief") == 0
    text = capsys.readouterr().out
    assert "hello world" in text
    assert "float32" in text
    for heading in ("tokens/s", "bandwidth", "energy a token", "first token after"):
        assert heading in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.slow(seconds=1.5)
def test_an_answer_of_one_token_has_one_program(models, capsys):
    record = record_of(capsys, models / "m.gguf", "--tokens", "1")
    assert len(record["steps"]) == len(record["tokens"]) == 1
    assert record["summary"]["time_per_token_s"] is None


@pytest.mark.slow(seconds=1)
def test_weights_of_a_file_are_those_of_a_plain_run(models, capsys):
    assert main(["run", "npu-edge-int8", str(models / "m.gguf"), "--tokens", "1,30,31", "--json", "-"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["weights"].endswith("m.gguf")
    assert record["differing"] == 0
    config, tensors = model_of("llama")
    assert record["float64_next_tokens"] == [int(logits_of(config, tensors, [1, 30, 31]).argmax())]


@pytest.mark.slow(seconds=1)
def test_a_file_has_a_time_without_the_packages_that_its_values_need(models):
    code = (
        "import sys; from siliconloom.cli import main; "
        f"status = main(['sim', 'npu-edge-int8', {str(models / 'm.gguf')!r}, '--set', 'workload.sequence=8']); "
        "print([status, *(m for m in ('gguf', 'tokenizers', 'safetensors', 'jinja2') if m in sys.modules)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[0]")


BAD = {
    "no number": (["--tokens", "1,2"], "--tokens: with --prompt the number of tokens to answer with"),
    "no tokens": (["--tokens", "0"], "from 1 on (got '0')"),
    "a key of the text's own": (["--set", "workload.sequence=8"], "the prompt is as long as its tokens"),
    "a short cache": (["--tokens", "4", "--set", "workload.cache_length=8"], "positions (got 8)"),
    "a small memory": (["--set", "memory.dram.capacity=64KiB"], "memory.dram, which has 64 KiB"),
    "several tiles": (["--set", "tile_count=2"], "its programs run on one npu tile with one memory level"),
    "an archive": (["--dump", "d.npz"], "--dump: is of one program"),
    "a mapping": (["--mapping", "m.yaml"], "--mapping: is of one program"),
    "a cache of no number": (["--set", "workload.cache_length=abc"], "whole number from 1 on (got 'abc')"),
    "a simulator of nothing": (["--simulator", "icarus"], "--simulator: nothing is simulated from Verilog"),
    "bytes": (["--system", "\udcff"], "--system: is no text in UTF-8"),
    "a seed": (["--seed", "3"], "--seed: nothing is random where a --prompt is answered"),
    "other weights": (["--weights", "{}/m/config.json"], "neither a safetensors file nor an npz"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line(models, capsys, kind):
    given, text = BAD[kind]
    assert run(models / "m.gguf", *(each.format(models) for each in given)) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_system_message_needs_a_prompt(models, capsys):
    assert main(["run", "npu-edge-int8", str(models / "m.gguf"), "--system", "be brief"]) == 2
    assert "said before a --prompt" in capsys.readouterr().err


@pytest.mark.slow(seconds=93)
@pytest.mark.rtl
def test_the_rtl_runs_a_token_from_the_cache_in_memory(models, capsys):
    sets = ["--set", "tile.array.rows=8", "--set", "tile.array.cols=8", "--set", "tile.vector.lanes=8"]
    record = record_of(capsys, models / "m.gguf", "--tokens", "2", "--on", "rtl", *sets)
    assert [each["passed"] for each in record["rtl"]] == [True, True]
    assert [step["tokens"] for step in record["steps"]][1:] == [1, 1]
    assert all(each["rtl_cycles"] > 0 for each in record["rtl"])
