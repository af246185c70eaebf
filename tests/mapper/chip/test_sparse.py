"""Sparse weights: what is kept and where it stood in memory, rows of elements for zeros or none, nothing proven."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import DataType, LoomError, load_chip
from siliconloom.arch.datatype import Packing, Sparsity
from siliconloom.arch.packing import fold_loads, loads, panel_bytes
from siliconloom.cli import main
from siliconloom.evaluate.chip import simulate
from siliconloom.sim.timing.pace import matmul_pace, product_pace
from siliconloom.workloads import Gemm, load_workload
from tests.mapper.chip.improvements import held_against_floors, made_chip, random_chip, random_workload, workload
from tests.mapper.chip.test_compressed import LONGEST, SEARCHED

TWO_OF_FOUR = Sparsity(2, 4)
patterns = st.sampled_from([TWO_OF_FOUR, Sparsity(1, 4, 32), Sparsity(3, 4, 64), Sparsity(5, 16, 32)])


def sparse(*more):
    """A product that the array limits, on npu-edge-int8, by key paths and values."""
    sets = [("tile.array.sparsity.patterns", "[2of4, block]"), *more]
    chip = load_chip("npu-edge-int8", [(p, v) for p, v in sets if p.startswith("tile")])
    text = {
        "kind": "gemms",
        "name": "one",
        "precision": "int8",
        "gemms": [{"name": "g", "m": 512, "n": 512, "k": 2048}],
    }
    own = {p.removeprefix("workload."): json.loads(v) for p, v in sets if p.startswith("workload")}
    return simulate(chip, workload(json.dumps(text | own)))


HALF = ("workload.weight_sparsity", '"2of4"')


@pytest.mark.slow(seconds=5)
def test_an_array_that_skips_zeros_takes_half_the_cycles_and_another_all():
    dense, skips = sparse(), sparse(HALF)
    expands = sparse(HALF, ("tile.array.sparsity.skips", "false"))
    assert skips.run.cycles == pytest.approx(dense.run.cycles / 2, rel=0.05)
    assert expands.run.cycles == pytest.approx(dense.run.cycles, rel=0.02)
    assert skips.plan.bound.compute_cycles * 2 == dense.plan.bound.compute_cycles == expands.plan.bound.compute_cycles


@pytest.mark.slow(seconds=4.5)
def test_a_quarter_of_the_blocks_takes_a_quarter_of_the_cycles():
    block = (
        ("workload.weight_sparsity", '"block"'),
        ("workload.weight_density", "0.25"),
        ("workload.weight_block", "32"),
    )
    quarter = sparse(*block)
    assert quarter.plan.bound.compute_cycles * 4 == sparse().plan.bound.compute_cycles
    assert quarter.run.cycles < 0.45 * sparse().run.cycles


def test_kept_weights_and_where_they_stood_are_what_lies_in_memory():
    made = Gemm(name="g", block="g", precision=DataType.BF16, m=1, n=256, k=1024, sparsity=TWO_OF_FOUR)
    assert made.matrix_bytes == 256 * 512 * 2 + 256 * 512 * 2 // 8
    assert made.macs == 256 * 512
    packed = Gemm(
        name="g",
        block="g",
        precision=DataType.FP16,
        m=1,
        n=256,
        k=1024,
        sparsity=TWO_OF_FOUR,
        packing=Packing(DataType.INT4, 128),
    )
    assert packed.matrix_bytes * 8 / (256 * 1024) == 0.5 * (4 + 2) + 16 / 128
    blocks = Gemm(name="g", block="g", precision=DataType.INT8, m=1, n=256, k=1024, sparsity=Sparsity(1, 4, 128))
    assert blocks.matrix_bytes == 256 * 256 + 8 * 2 // 8


@given(patterns, st.integers(1, 5000), st.integers(1, 5000))
def test_stored_rows_are_never_more_than_rows_and_whole_turns_add_up(sparsity, k, more):
    assert 0 < sparsity.rows(k) <= k
    assert sparsity.rows(k + more) >= sparsity.rows(k)
    turn = sparsity.of * sparsity.block
    assert sparsity.rows(k * turn + more) == k * sparsity.kept * sparsity.block + sparsity.rows(more)
    assert sparsity.rows(np.array([k, more])).tolist() == [sparsity.rows(k), sparsity.rows(more)]


@given(patterns, st.integers(1, 2000), st.integers(1, 300), st.integers(1, 300), st.booleans())
def test_folds_paces_and_loads_agree(sparsity, k, n, m, skips):
    array = load_chip(
        "npu-edge-int8",
        [("tile.array.sparsity.patterns", "[2of4, block]"), ("tile.array.sparsity.skips", str(skips).lower())],
    ).tile.array
    packing = Packing(DataType.INT8, 0, sparsity)
    assert loads(array, k, packing).beats == sum(fold_loads(array, k, packing))
    pace = matmul_pace(array, np.array([m]), np.array([n]), np.array([k]), packing)
    assert pace.tolist() == [product_pace(array, m, n, k, packing)]
    assert panel_bytes(array, packing, k) >= sparsity.rows(k) * array.cols


@pytest.mark.slow(seconds=6)
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.booleans(), st.integers(1, SEARCHED))
def test_no_mapping_of_sparse_weights_is_below_its_bound(seed, skips, blocks, one):
    r = random.Random(seed)
    made = random_chip(r) | {"tile.array.dataflow": "weight_stationary", "tile.sequencer.program_words": LONGEST}
    chip = made_chip(made)
    array = chip.tile.array.model_copy(
        update={
            "sparsity": load_chip(
                "npu-edge-int8", [("tile.array.sparsity.patterns", "[2of4, block]")]
            ).tile.array.sparsity.model_copy(update={"skips": skips})
        }
    )
    chip = chip.model_copy(update={"tile": chip.tile.model_copy(update={"array": array})})
    zeros = {"weight_sparsity": "block", "weight_density": r.choice([0.25, 0.5, 0.75]), "weight_block": 128}
    graph = workload(json.dumps(json.loads(random_workload(r)) | (zeros if blocks else {"weight_sparsity": "2of4"})))
    try:
        held_against_floors(chip, graph, searched=one == SEARCHED)
    except LoomError as error:  # buffers too small for two tiles of each operand
        if "cannot hold" not in str(error):
            raise


@pytest.mark.slow(seconds=1)
def test_a_result_says_what_has_no_circuit(tmp_path, capsys):
    words = "--set workload.weight_sparsity=2:4 --set tile.array.sparsity.patterns=2:4 --set workload.layers=1 --json"
    assert main(["sim", "npu-edge-int8", "gpt2", *words.split(), str(tmp_path / "r.json")]) == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["precision"] == "int8, weights 2:4 sparse"
    why = result["hardware"]["why"]
    others = "no RTL of a chip with sparse weights (tile.array.sparsity)"
    assert why == {others: result["hardware"]["operators"] - 4, "no circuit for sparsity": 4}
    assert result["utilization"] <= 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sim npu-edge-int8 gpt2 --set workload.weight_sparsity=2of4", "takes none (tile.array.sparsity)"),
        ("sim systolic-ws-8 gpt2-block-gemms --set workload.weight_sparsity=2of4", "takes none"),
        ("sim pim-hbm gpt2 --set workload.weight_sparsity=2of4", "pim-hbm takes none"),
        ("sim mi300x gpt2 --set workload.weight_sparsity=2of4", "whose description has no rate of them (sparse)"),
        ("sim h100 gpt2 --set workload.weight_sparsity=4:8", "must be one of 2of4, block"),
        ("sim h100 gpt2 --set workload.weight_sparsity=block --set workload.weight_density=0.123", "at most 16 parts"),
        ("sim h100 gpt2 --set workload.weight_sparsity=block", "blocks need the share of them that is kept"),
        ("sim h100 gpt2 --set workload.weight_density=0.5", "is of blocks (weight_sparsity block) (got 0.5)"),
        (
            "sim h100 gpt2 --set workload.weight_sparsity=block --set workload.weight_density=0.5",
            "1:2 in blocks of 128 sparse on a GPU; kernels have 2:4",
        ),
        (
            "sim npu-edge-int8 gpt2 --set tile.array.sparsity.patterns=block --set workload.weight_sparsity=block "
            "--set workload.weight_density=0.5 --set workload.weight_block=8",
            "they must be whole panels of 16 columns",
        ),
        (
            "sim npu-edge-int8 gpt2 --set tile.array.sparsity.patterns=2of4 --set tile.array.dataflow=input_stationary",
            "sparse weights are for weight stationary arrays",
        ),
        (
            "sim h100 gpt2 --set workload.weight_sparsity=2of4 --set workload.weight_compression=0.7",
            "sparse and compressed",
        ),
        ("sim h100 gpt2 --set workload.phase=training --set workload.weight_sparsity=2of4", "training with sparse"),
        ("rtl npu-edge --set tile.array.sparsity.patterns=2of4 -o out", "RTL of npu-edge with sparse weights"),
        (
            "run npu-edge-int8 gpt2 --set workload.layers=1 --set workload.sequence=8 "
            "--set workload.weight_sparsity=2of4 --set tile.array.sparsity.patterns=2of4",
            "values of gpt2 with sparse weights",
        ),
    ],
)
def test_what_nothing_takes_is_refused_in_one_line(command, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an `out` of `make demo` in the checkout is refused for another reason
    assert main(command.split()) == 2
    # what another test has left to compile is announced, too
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("compiling ")]
    assert len(lines) == 1, lines
    assert said in lines[0]


def test_the_head_and_routers_have_no_pattern():
    graph = load_workload("llama3-8b", [("weight_sparsity", "2of4")])
    found = {o.name: o.sparsity for o in graph.operators() if isinstance(o, Gemm)}
    assert found["head"] is None
    assert {s for name, s in found.items() if name != "head"} == {TWO_OF_FOUR}
