"""``loom run``: its table, its record, its archive; and bad input, of which nothing is written."""

import json

import numpy as np
import pytest

from siliconloom.cli import main
from tests.execution.models import VOCABULARY, config_of, logits_of, safetensors, tensors_of


@pytest.fixture
def folder(tmp_path):
    config = config_of("llama", 4, 2, 8, 2)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "w.safetensors").write_bytes(safetensors(tensors_of(config)))
    (tmp_path / "text").write_text("no tokens")
    (tmp_path / "tokens").write_text("3 1 4\n1 5 9\n")
    return tmp_path


def run(folder, *more):
    return main(["run", "npu-edge-int8", str(folder / "config.json"), *(each.format(folder) for each in more)])


@pytest.mark.slow(seconds=1)
def test_a_record_has_every_operator_and_its_errors(folder, capsys):
    assert run(folder, "--weights", "{}/w.safetensors", "--tokens", "{}/tokens", "--json", "-") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == "siliconloom.values/1"
    assert record["tokens"] == [[3, 1, 4, 1, 5, 9]]
    assert record["differing"] == 0
    real = logits_of(config_of("llama", 4, 2, 8, 2), tensors_of(config_of("llama", 4, 2, 8, 2)), record["tokens"][0])
    assert record["float64_next_tokens"] == [int(real.argmax())]
    names = [row["name"] for row in record["operators"]]
    assert names.count("layer.rope") == 2
    assert names[-1] == "head"


@pytest.mark.slow(seconds=1)
def test_the_table_fits_a_terminal_and_ends_in_one_line_that_says_what_came_out(folder, capsys):
    assert run(folder, "--tokens", "3,1,4") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    text = " ".join(lines)
    assert "values differ from the exact reading; next token" in text
    assert "layer.down +feed_forward_add" in text


@pytest.mark.slow(seconds=1)
def test_an_archive_has_the_results_of_both_readings(folder):
    assert run(folder, "--tokens", "3,1,4", "--dump", "{}/d.npz") == 0
    with np.load(folder / "d.npz") as found:
        assert found["golden/layer.qkv/1"].shape == found["float64/layer.qkv/1"].shape == (3, 64)
        error = found["golden/head/0"] - found["float64/head/0"]
        assert 0 < np.abs(error).max() < 0.3 * np.abs(found["float64/head/0"]).max()


@pytest.mark.slow(seconds=1)
def test_a_token_is_decoded_behind_others(folder, capsys):
    assert run(folder, "--tokens", "3,1,4,1,5", "--set", "workload.phase=decode", "--json", "-") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["phase"] == "decode"
    assert record["differing"] == 0
    assert {row["values"] for row in record["operators"] if row["name"] == "layer.attention"} == {32}


BAD = {
    "a token too large": (["--tokens", f"1,{VOCABULARY}"], f"tokens 0 to {VOCABULARY - 1}"),
    "tokens that are text": (["--tokens", "{}/text"], "numbers with commas or blanks"),
    "tokens nowhere": (["--tokens", "{}/nowhere"], "No such file"),
    "too few tokens": (["--tokens", "1,2", "--set", "workload.sequence=3"], "takes 3 tokens (got 2)"),
    "weights that are none": (["--tokens", "1", "--weights", "{}/text"], "neither a safetensors file nor an npz"),
    "another machine": (["--on", "paper"], "--on: must be one of golden, rtl"),
    "an archive on standard output": (["--dump", "-"], "--dump"),
    "training": (["--set", "workload.phase=training"], "no circuit for the loss and the optimizer's step"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line_and_writes_nothing(folder, capsys, kind):
    given, text = BAD[kind]
    before = sorted(folder.iterdir())
    assert run(folder, *given, *([] if "--dump" in given else ["--dump", "{}/d.npz"]), "--json", "{}/r.json") == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
    assert sorted(folder.iterdir()) == before


def test_values_on_systems_are_refused(folder, capsys):
    assert main(["run", "npu-x4-ring", str(folder / "config.json")]) == 2
    assert "values on a system" in capsys.readouterr().err


@pytest.mark.slow(seconds=107)
@pytest.mark.rtl
def test_a_whole_model_runs_on_the_verilog(folder, capsys):
    """The program that is timed, with a model's own values: every byte and every cycle."""
    assert run(folder, "--tokens", "3,1,4,1", "--set", "workload.layers=1", "--on", "rtl", "--json", "-") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["rtl"]["errors"] == []
    assert record["rtl"]["rtl_cycles"] == record["rtl"]["model_cycles"] > 0
    assert record["rtl"]["bytes_compared"] > 0


@pytest.mark.slow(seconds=1)
def test_constants_are_those_of_the_configuration_unless_said_otherwise(folder, capsys):
    config = json.loads((folder / "config.json").read_text()) | {"rope_theta": 500.0, "rms_norm_eps": 1e-2}
    (folder / "config.json").write_text(json.dumps(config))
    found = {}
    for name, more in {
        "own": (),
        "said": ("--rope-base", "500", "--epsilon", "0.01"),
        "other": ("--rope-base", "9"),
    }.items():
        assert run(folder, "--tokens", "3,1,4", "--dump", f"{{}}/{name}.npz", *more) == 0
        with np.load(folder / f"{name}.npz") as made:
            found[name] = made["float64/head/0"]
    np.testing.assert_array_equal(found["own"], found["said"])
    assert not np.array_equal(found["own"], found["other"])
    (folder / "config.json").write_text(json.dumps(config | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}))
    assert run(folder, "--tokens", "3,1,4") == 2
    assert "rotary angles are scaled" in capsys.readouterr().err


@pytest.mark.slow(seconds=1)
def test_a_mapping_file_is_the_program_that_is_run(folder):
    config = str(folder / "config.json")
    sets = ("--set", "workload.sequence=3")
    assert main(["map", "npu-edge-int8", config, *sets, "-o", str(folder / "m.yaml")]) == 0
    assert run(folder, *sets, "--mapping", "{}/m.yaml") == 0
    (folder / "m.yaml").write_text("kind: mapping\n")
    assert run(folder, *sets, "--mapping", "{}/m.yaml") == 2


@pytest.mark.slow(seconds=1.5)
def test_a_program_longer_than_the_program_memory_is_refused_and_noted_by_the_mapping(folder, capsys):
    words = ["npu-edge-int8", "gpt2", *(w for s in SHORT for w in ("--set", s))]
    assert main(["run", *words]) == 2
    told = "tile.sequencer.program_words: the mapped program has "
    assert told in capsys.readouterr().err
    assert main(["map", *words]) == 0
    assert told in " ".join(capsys.readouterr().out.split())
    assert main(["map", *words[:-2]]) == 0
    assert told not in " ".join(capsys.readouterr().out.split())


SHORT = ("workload.layers=1", "workload.sequence=4", "tile.sequencer.program_words=64")


@pytest.mark.slow(seconds=1)
def test_given_tokens_are_those_of_a_chunk_and_what_is_before_it(folder, capsys):
    """As many are new as do not lie in the cache already; the next token is that of the whole text."""
    config, tokens = config_of("llama", 4, 2, 8, 2), [3, 1, 4, 1, 5, 9, 2]
    weights = ["--weights", "{}/w.safetensors", "--tokens", ",".join(map(str, tokens)), "--json", "-"]
    ends = [int(logits_of(config, tensors_of(config), tokens[:length]).argmax()) for length in range(5, 8)]
    assert run(folder, *weights, "--set", "workload.context=4") == 0
    chunk = json.loads(capsys.readouterr().out)
    assert (chunk["differing"], chunk["float64_next_tokens"]) == (0, ends[-1:])
    assert {row["values"] for row in chunk["operators"] if row["name"] == "layer.qkv"} == {3 * 64}
    decode = ["--set", "workload.phase=decode", "--set", "workload.sequence=3"]
    assert run(folder, *weights, *decode) == 0
    several = json.loads(capsys.readouterr().out)
    assert (several["differing"], several["float64_next_tokens"]) == (0, ends)


def test_fewer_tokens_than_lie_in_the_cache_are_refused(folder, capsys):
    assert run(folder, "--tokens", "3,1,4", "--set", "workload.context=4") == 2
    assert "takes 5 tokens (got 3)" in capsys.readouterr().err
