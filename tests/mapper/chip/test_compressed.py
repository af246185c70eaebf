"""Weights compressed without loss: fewer bytes in memory, a decompressor that limits the rate, nothing proven."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError, NotSupported, load_chip
from siliconloom.cli import main
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.sim.timing.units import load_cycles
from siliconloom.workloads import Gemm, load_workload
from tests.in_turn import examples
from tests.mapper.chip.improvements import held_against_floors, made_chip, random_chip, random_workload, workload

LONGEST = 8192
"""Words of a program memory that holds any of these programs: some have more than 1,024 instructions."""
SEARCHED = 4
"""One mapping in so many is the search's; the others are those that estimates propose."""


def step(chip, ratio, rate, **more):
    """A token of a small model: its result with so many bytes in memory of one, from a decompressor of a rate."""
    sets = {"workload.phase": "decode", "workload.layers": "2", **more}
    words = [word for path, value in sets.items() for word in ("--set", f"{path}={value}")]
    if ratio:
        words += ["--set", f"workload.weight_compression={ratio}", "--set", f"tile.dma.decompression={rate}"]
    assert main(["sim", chip, "gpt2", *words, "--json", "result.json"]) == 0
    with open("result.json") as file:
        return json.load(file)


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow(seconds=1)
def test_traffic_and_footprint_shrink_and_time_follows(there, capsys):
    plain, smaller = step("npu-edge-int8", None, 0), step("npu-edge-int8", 0.5, 4096)
    weights = load_workload("gpt2", [("layers", "2"), ("phase", "decode"), ("precision", "int8")])
    packed = sum(o.repeat * o.matrix_bytes for o in weights.operators() if isinstance(o, Gemm) and o.name != "head")
    saved = plain["memory"]["used_bytes"] - smaller["memory"]["used_bytes"]
    assert saved == pytest.approx(packed / 2, rel=0.02)
    read = [r["traffic"]["dram"]["read"] for r in (plain, smaller)]
    assert read[0] - read[1] == pytest.approx(packed / 2, rel=0.05)
    assert smaller["cycles"] < plain["cycles"]
    assert smaller["precision"] == "int8, weights compressed to 0.5"
    said = smaller["hardware"]
    assert said["word"] == "specified"
    others = "no RTL of a chip with a decompressor of weights (tile.dma.decompression)"
    assert said["why"] == {others: said["operators"] - 4, "no circuit for decompression": 4}
    assert plain["hardware"]["word"] == "proven"


@pytest.mark.slow(seconds=1)
def test_a_slow_decompressor_is_named(there, capsys):
    slow = step("npu-edge-int8", 0.5, 2)
    assert slow["bound"]["name"] == "decompression"
    assert slow["bound"]["key"] == "tile.dma.decompression"
    assert slow["bound"]["decompression_cycles"] == slow["bound"]["lower_bound_cycles"]
    assert {o["bound"] for o in slow["operators"] if o["name"] == "layer.qkv"} == {"decompression"}
    assert slow["cycles"] > 5 * step("npu-edge-int8", 0.5, 64)["cycles"]
    assert any("what that needs of energy is not counted" in note for note in slow["notes"])


@examples(2, 20, seconds=20)
def test_no_mapping_of_compressed_weights_is_below_its_bound(examples):
    @settings(max_examples=examples, deadline=None)
    @given(st.integers(0, 2**32), st.floats(0.05, 1), st.integers(1, 512), st.integers(1, SEARCHED))
    def holds(seed, ratio, rate, one):
        r = random.Random(seed)
        chip = made_chip({**random_chip(r), "tile.dma.decompression": rate, "tile.sequencer.program_words": LONGEST})
        graph = workload(json.dumps({**json.loads(random_workload(r)), "weight_compression": ratio}))
        try:
            simulated = held_against_floors(chip, graph, searched=one == SEARCHED)
        except LoomError as error:  # buffers too small for two tiles of each operand
            if "cannot hold" not in str(error):
                raise
            return
        assert simulated.run.cycles >= simulated.plan.bound.lower_bound_cycles

    holds()


def test_costs_of_many_sizes_are_those_of_each():
    chip = load_chip("npu-edge-int8", [("tile.dma.decompression", "24")])
    rows, sizes = np.array([1, 1, 1]), np.array([1, 4096, 99_999])
    many = load_cycles(chip, chip.nearest, rows, sizes, 0.37)
    assert many.tolist() == [load_cycles(chip, chip.nearest, 1, int(size), 0.37) for size in sizes]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sim npu-edge-int8 gpt2 --set workload.weight_compression=0.7", "npu-edge-int8 has no decompressor of them"),
        ("sim systolic-ws-8 gpt2-block-gemms --set workload.weight_compression=0.7", "has no decompressor of them"),
        ("sim h100 gpt2 --set workload.weight_compression=0.7", "compressed weights in the GPU model (h100"),
        ("sim pim-hbm gpt2 --set workload.weight_compression=0.7", "pim-hbm has no decompressor"),
        ("sim h100 gpt2 --set workload.weight_compression=0", "weight_compression: must be greater than 0"),
        ("sim h100 gpt2 --set workload.weight_compression=1.5", "weight_compression: must be less than or equal to 1"),
        ("sim npu-edge llama3-8b --set workload.precision=w4a16 --set workload.weight_compression=0.7", "packed and"),
        (
            "sim h100 gpt2 --set workload.phase=training --set workload.weight_compression=0.7",
            "training with compressed",
        ),
        ("rtl npu-edge --set tile.dma.decompression=8 -o out", "RTL of npu-edge with a decompressor of weights"),
        (
            "run npu-edge-int8 gpt2 --set workload.layers=1 --set workload.sequence=8 "
            "--set workload.weight_compression=0.7 --set tile.dma.decompression=8",
            "values of gpt2 with compressed weights",
        ),
    ],
)
def test_what_nothing_expands_is_refused_in_one_line(command, said, there, capsys):
    assert main(command.split()) == 2
    # what another test has left to compile is announced, too
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("compiling ")]
    assert len(lines) == 1, lines
    assert said in lines[0]


def test_a_table_that_an_embedding_reads_by_rows_is_not_compressed():
    tied = load_workload("gpt2", [("weight_compression", "0.7")])
    untied = load_workload("llama3-8b", [("weight_compression", "0.7")])
    assert {o.name: o.compression for o in tied.operators() if isinstance(o, Gemm)}["head"] is None
    assert {o.name: o.compression for o in untied.operators() if isinstance(o, Gemm)}["head"] == 0.7


def test_a_program_is_lowered_as_its_mapping_says():
    chip = load_chip("npu-edge-int8", [("tile.dma.decompression", "8")])
    mapped = map_workload(chip, load_workload("gpt2-block-gemms", [("weight_compression", "0.6")]))
    loads = [i for i in mapped.program.instructions if i.compression is not None]
    assert loads
    assert all(i.compression == 0.6 and i.m == 1 for i in loads)


def test_training_and_packing_are_refused_by_the_workload():
    for path, value in (("precision", "w4a16"), ("phase", "training")):
        with pytest.raises(NotSupported, match="weight_compression"):
            load_workload("llama3-8b", [("weight_compression", "0.7"), (path, value)])
