"""Training on chips of our own: no circuit of theirs does it, so every command refuses it, and GPUs keep it."""

import pytest

from siliconloom.arch import NotSupported, load_chip
from siliconloom.cli import main
from siliconloom.mapper.chip.described import mapping_of
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.program import blocks_of
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.workloads import load_workload

TRAINING = ["--set", "workload.phase=training", "--set", "workload.batch=4", "--set", "workload.layers=1"]
OURS = {
    "npu": ["sim", "npu-edge-int8", "gpt2"],
    "npu in bf16": ["sim", "npu-datacenter", "gpt2"],
    "several tiles": ["sim", "tpu-v4", "gpt2"],
    "memory levels": ["sim", "sn40l", "gpt2"],
    "memory that computes": ["sim", "pim-gpt", "gpt2"],
    "bare array": ["sim", "systolic-ws-8", "gpt2"],
    "ring": ["sim", "npu-x4-ring", "gpt2"],
    "system with pim": ["sim", "neupims", "gpt2"],
    "map": ["map", "npu-edge-int8", "gpt2"],
    "compare": ["compare", "npu-edge-int8", "gpt2", "--gpu", "h100"],
    "plan": ["plan", "npu-x4-ring", "gpt2"],
    "plan on pim": ["plan", "neupims", "gpt2"],
    "run": ["run", "npu-edge-int8", "gpt2"],
    "verify": ["verify", "npu-edge-int8", "gpt2"],
}


@pytest.mark.parametrize("kind", OURS)
def test_no_command_times_a_step_that_no_circuit_does(kind, capsys):
    """It was timed, and its hardware called specified: no tile was ever meant to be built for it."""
    assert main([*OURS[kind], *TRAINING]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    said = [line for line in shown.err.splitlines() if not line.startswith("compiling")]
    assert len(said) == 1
    assert said[0].startswith("loom: not supported: training gpt2 on ")
    assert "no circuit for the loss and the optimizer's step" in said[0]
    assert "GPUs train" in said[0]


def test_a_bare_pim_tile_has_no_vector_unit_to_train_with(capsys):
    assert main(["sim", "pim-hbm", "gpt2", *TRAINING]) == 2
    assert "not supported: vector operators on a bare pim tile" in capsys.readouterr().err


def test_our_chips_beside_gpus_train_no_more(tmp_path, capsys):
    """A system of both kinds is a plan's, whose every chip has a part of the step."""
    system = tmp_path / "mixed.yaml"
    system.write_text(
        "kind: system\nname: mixed\ndescription: both kinds\n"
        "chips: [{chip: a100, count: 2}, {chip: npu-datacenter, count: 2}]\n"
        "topology: {kind: ring}\nlink: {bandwidth: 50 GB/s, latency: 1 us}\n"
    )
    assert main(["plan", str(system), "gpt2", *TRAINING]) == 2
    assert "not supported: training gpt2 on npu-datacenter" in capsys.readouterr().err


@pytest.mark.parametrize("machine", ["h100", "dgx-a100"])
def test_gpus_train(machine, capsys):
    assert main(["sim", machine, "gpt2", *TRAINING, "--set", "plan.tensor=1"]) == 0
    assert "optimizer" in capsys.readouterr().out


def test_python_refuses_it_at_every_door():
    chip, graph = load_chip("npu-edge-int8"), load_workload("gpt2", [("phase", "training"), ("layers", "1")])
    prompt = load_workload("gpt2", [("layers", "1"), ("sequence", "16")])
    from siliconloom.arch.document import Document

    text = Document.parse(mapping_text(map_workload(chip, prompt)))
    for door in (
        lambda: map_workload(chip, graph),
        lambda: blocks_of(chip, graph, None),
        lambda: mapping_of(text, chip, graph),
    ):
        with pytest.raises(NotSupported, match="training gpt2 on npu-edge-int8"):
            door()
