"""Whether the Verilog runs what was timed: the assembler's word on the very program."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch import DataType, NotSupported, load_chip
from siliconloom.arch.assembler import check_program, violations
from siliconloom.arch.faults import IllegalProgram
from siliconloom.arch.isa import Opcode, Program
from siliconloom.cli import main
from siliconloom.evaluate.chip import simulate
from siliconloom.evaluate.hardware import hardware_of, hardware_summary
from siliconloom.sim.dram.memory import effective
from siliconloom.verification.programs import random_program
from siliconloom.verification.random_tiles import random_npu
from siliconloom.verification.workload import refuse
from siliconloom.workloads import Graph, load_workload
from siliconloom.workloads.builder import Builder
from siliconloom.workloads.graph import Phase
from siliconloom.workloads.roles import Role, Section


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_a_program_is_proven_when_the_assembler_takes_it_and_only_then(seed, moved):
    chip = random_npu(seed % 50)
    program = random_program(chip, seed).program
    if moved:  # every local operand a line further: whole lines still, but into other banks, or beyond the end
        shift = chip.tile.scratchpad.capacity // chip.tile.scratchpad.banks // 2
        program = Program(
            tuple(
                replace(i, a=replace(i.a, base=i.a.base + shift)) if i.opcode is Opcode.LOAD else i
                for i in program.instructions
            ),
            program.semaphores,
            program.operators,
        )
    reasons, broken = hardware_of(chip, program, [None]), list(violations(program, chip))
    if not broken:
        check_program(program, chip)
        assert reasons == [None]
        assert hardware_summary(reasons) == {"word": "proven", "proven": 1, "operators": 1, "why": {}}
        return
    with pytest.raises(IllegalProgram) as caught:
        check_program(program, chip)
    assert caught.value.args == broken[0].error.args
    assert reasons[0] is not None


def test_both_users_of_a_bank_are_named():
    """Whoever is second in the program is no more to blame than the first."""
    done = simulate("npu-edge-int8", "gpt2-block-gemms", [("tile.scratchpad.banks", "2")])
    (first, *_), program = violations(done.plan.program, done.chip), done.plan.program
    assert "bank conflict" in str(first.error)
    assert len(first.instructions) == 2
    assert f"instruction {min(first.instructions)};" in str(first.error)
    reasons = hardware_of(done.chip, program, [None] * len(done.plan.tasks))
    assert set(reasons) == {"bank conflict"}


@pytest.mark.parametrize(
    ("chip", "workload", "word", "why"),
    [
        ("systolic-ws-8", "gpt2-block-gemms", "proven", None),
        ("systolic-os-32", "gpt2-block-gemms", "proven", None),
        ("npu-edge-int8", "gpt2", "proven", None),
        ("npu-edge-int8", "mixtral-8x7b", "specified", "routing depends on data"),
        ("npu-datacenter", "gpt2", "proven", None),
        ("npu-datacenter", "gpt2 in int8", "specified", "no circuit for int8"),
    ],
)
def test_a_result_says_whether_its_hardware_is_proven(chip, workload, word, why, tmp_path, capsys):
    workload, _, dtype = workload.partition(" in ")
    sets = [] if workload.endswith("gemms") else ["--set", "workload.layers=1", "--set", "workload.sequence=32"]
    sets += ["--set", f"workload.precision={dtype}"] if dtype else []
    files = [str(tmp_path / name) for name in ("r.json", "r.csv", "r.html")]
    outputs = ["--json", files[0], "--csv", files[1], "--report", files[2]]
    assert main(["sim", chip, workload, *sets, *outputs]) == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["hardware"]["word"] == word
    assert result["hardware"]["operators"] == len(result["operators"])
    assert sum(result["hardware"]["why"].values()) + result["hardware"]["proven"] == len(result["operators"])
    for row in result["operators"]:
        assert (row["hardware"] == "proven") == (row["hardware_why"] is None)
    assert why is None or why in result["hardware"]["why"]
    shown = capsys.readouterr().out
    assert f"hardware           {word}" in shown
    assert f",{word}," in (tmp_path / "r.csv").read_text()
    assert f"<b>{word}</b>" in (tmp_path / "r.html").read_text()


def test_attention_by_itself_is_not_called_a_latent_cache(tmp_path):
    """Of a list of operators: its operands come from outside, and no circuit knows where they lie."""
    file = tmp_path / "list.yaml"
    attention = "{kind: attention, name: a, heads: 3, queries: 7, head_dim: 5, kv_heads: 1, keys: 11}"
    file.write_text(f"kind: operators\nname: list\nprecision: int8\noperators:\n  - {attention}\n")
    found = simulate("npu-edge-int8", str(file)).result()["hardware"]
    assert found["why"] == {"no layout for attention whose operands come from outside": 1}


def test_a_result_that_is_both_operands_is_not_called_windows_of_an_image(tmp_path):
    file = tmp_path / "list.yaml"
    file.write_text(
        "kind: operators\nname: list\nprecision: int8\noperators:\n"
        "  - {kind: gemm, name: a, m: 8, n: 8, k: 8}\n  - {kind: add, name: b, rows: 8, cols: 8, reads: [a, a]}\n"
    )
    found = simulate("npu-edge-int8", str(file)).result()["hardware"]
    assert found["why"] == {"no layout for a result that is several operands": 1}


@pytest.mark.parametrize(
    ("model", "sets", "operator", "why"),
    [
        ("deepseek-v3", ["phase=decode", "context=40", "layers=1"], "attention", "no layout for a latent cache"),
        ("small", ["phase=decode", "context=40"], "attention", "no layout for a sliding window"),
        ("small", ["sequence=48"], "attention", "no layout for a sliding window"),
        ("small", ["sequence=12"], "attention", None),
    ],
)
def test_what_does_not_lie_as_circuits_read_it_is_not_proven(model, sets, operator, why, tmp_path):
    """The assembler takes the instructions; the operands would not be those of the operator."""
    small = {"model_type": "mistral", "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    small |= {"num_hidden_layers": 1, "intermediate_size": 96, "vocab_size": 64, "max_position_embeddings": 128}
    small |= {"sliding_window": 20, "rms_norm_eps": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps(small))
    file = str(tmp_path / "config.json") if model == "small" else model
    pairs = [tuple(each.split("=")) for each in sets]
    chip = load_chip("npu-edge-int8", [("memory.dram.capacity", "4 TiB"), ("tile.scratchpad.capacity", "4 MiB")])
    done = simulate(chip, load_workload(file, pairs))
    (row,) = [r for r in done.result()["operators"] if r["name"].endswith(f".{operator}")]
    assert row["hardware_why"] in (why, "no circuit for rescale" if model == "deepseek-v3" else why)
    if why is not None:
        with pytest.raises(NotSupported, match=why):
            refuse(chip, done.plan)


def test_a_product_of_two_results_is_not_proven():
    """The second one lies in rows, where the array takes panels."""
    builder = Builder(DataType.INT8)
    builder.block("list", Section.LIST)
    first, second = (builder.gemm(name, Role.NONE, m=16, n=16, k=32) for name in ("a", "b"))
    builder.gemm("both", Role.NONE, first, second, m=16, n=16, k=16, weight=False)
    graph = Graph(
        name="products",
        phase=Phase.PREFILL,
        precision=DataType.INT8,
        explicit_precision=True,
        batch=1,
        tokens=16,
        dataflow=builder.dataflow,
    )
    done = simulate(load_chip("npu-edge-int8"), graph)
    assert done.result()["hardware"]["why"] == {"no layout for a product of two results": 1}
    with pytest.raises(NotSupported, match="no layout for a product of two results"):
        refuse(done.chip, done.plan)


def test_the_verilog_is_of_one_tile():
    chip = effective(load_chip("npu-edge-int8", [("tile_count", "2")]))
    program = random_program(load_chip("npu-edge-int8"), 3).program
    assert hardware_of(chip, program, [None]) == ["the Verilog is of one tile (tile_count)"]


def test_a_system_says_so_of_a_chip_s_part(tmp_path):
    file = tmp_path / "r.json"
    sets = ["workload.layers=1", "chip.memory.dram.capacity=1 GiB", "chip.tile.sequencer.program_words=1024"]
    assert main(["sim", "npu-x4-ring", "gpt2", *(f"--set={each}" for each in sets), "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert result["hardware"]["word"] == "specified"
    assert result["hardware"]["operators"] == sum("hardware" in row for row in result["operators"])
