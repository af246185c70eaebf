"""One schema for a step on any machine: every kind of result keeps it, and says all that was asked."""

import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from siliconloom.arch.result import SCHEMA, StepResult
from siliconloom.cli import main
from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.workloads import load_workload

LAYERS = ("layers", "2")
ASKED = {
    "chip": ("npu-edge-int8", "gpt2", [LAYERS], []),
    "decode": ("npu-datacenter", "llama3-8b", [LAYERS, ("phase", "decode")], []),
    "array": ("systolic-ws-8", "gpt2-block-gemms", [], []),
    "hierarchy": ("sn40l", "llama2-7b", [LAYERS, ("phase", "decode")], []),
    "pim tile": ("pim-hbm", "gpt2-block-gemms", [("precision", "bf16")], []),
    "pim chip": ("neupims-device", "gpt3-7b", [LAYERS, ("phase", "decode"), ("batch", "8")], []),
    "system": ("neupims", "gpt3-7b", [("phase", "decode"), ("batch", "16")], []),
    "ring": ("npu-x4-ring", "gpt2", [LAYERS, ("phase", "decode")], [("chip.memory.dram.capacity", "1 GiB")]),
    "prompts": ("neupims", "gpt3-7b", [LAYERS, ("sequence", "64")], [("plan.tensor", "2"), ("plan.pipeline", "2")]),
    "gpu": ("h100", "gpt2", [LAYERS], []),
    "gpus": ("dgx-h100", "llama3-8b", [LAYERS], [("plan.tensor", "4"), ("plan.data", "1")]),
    "training": ("dgx-a100", "gpt2", [LAYERS, ("phase", "training"), ("batch", "8")], [("plan.tensor", "2")]),
    "list on a gpu": ("a100", "gpt2-block-gemms", [], []),
}
COMMON = {name for name, field in StepResult.model_fields.items() if field.is_required()} - {"schema_"} | {"schema"}


@cache
def result_of(name):
    """Its result and its graph, found once for all that is asked of them."""
    machine, workload, of_workload, of_machine = ASKED[name]
    overrides = [*of_machine, *((f"workload.{path}", value) for path, value in of_workload)]
    graph = load_workload(workload, of_workload)
    return evaluate(read_machine(machine, of_machine), graph, overrides), graph


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("name", ASKED)
def test_every_machine_answers_in_one_schema(name):
    found, graph = result_of(name)
    assert set(found.result) >= COMMON
    typed = found.typed
    assert typed.schema_ == SCHEMA
    written = typed.model_dump_json(by_alias=True, exclude_unset=True)
    assert json.loads(json.dumps(found.result, allow_nan=False)) == json.loads(written)
    assert typed.asked.machine == ASKED[name][0]
    assert typed.asked.workload == graph.name
    assert len(typed.asked.machine_digest) == len(typed.asked.workload_digest) == 64
    assert (typed.asked.phase, typed.asked.batch) == (graph.phase.value, graph.batch)
    assert set(typed.asked.overrides) == {*dict(ASKED[name][3]), *(f"workload.{k}" for k, _ in ASKED[name][2])}


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("name", ASKED)
def test_figures_of_a_result_agree_with_each_other(name):
    found = result_of(name)[0].typed
    assert found.cycles / found.clock_hz == pytest.approx(found.seconds, rel=1e-5)
    assert sum(found.energy.values()) == pytest.approx(found.energy_j)
    assert found.energy_j / found.seconds == pytest.approx(found.power_w)
    assert found.tokens / found.seconds == pytest.approx(found.tokens_per_second)
    assert 0 < found.bound.achieved <= 1
    assert found.bound.lower_bound_s / found.seconds == pytest.approx(found.bound.achieved, rel=1e-4)
    assert 0 < found.utilization <= 1
    assert found.memory.used_bytes <= found.memory.capacity_bytes
    assert all(o.seconds >= 0 and o.repeat >= 1 for o in found.operators)


@pytest.mark.slow(seconds=1)
def test_digests_tell_descriptions_apart():
    """Any change of the machine, of its links, or of the workload changes the digest of just that."""

    def digests(machine, *sets, batch="1"):
        graph = load_workload("gpt2", [LAYERS, ("batch", batch)])
        asked = evaluate(read_machine(machine, sets), graph).typed.asked
        return asked.machine_digest, asked.workload_digest

    for machine, change in (
        ("npu-edge-int8", ("tile.dma.outstanding", "2")),
        ("h100", ("clock", "1 GHz")),
        ("dgx-h100", ("link.bandwidth", "20 GB/s")),
    ):
        policy = [("policy.tensor", "1")] if machine.startswith("dgx") else []
        plain, changed, more = (
            digests(machine, *policy),
            digests(machine, *policy, change),
            digests(machine, *policy, batch="2"),
        )
        assert plain[0] != changed[0]
        assert plain[1] == changed[1]
        assert plain[0] == more[0]
        assert plain[1] != more[1]


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(sorted(COMMON - {"notes"})), st.sampled_from([None, "x", -1, {}]))
def test_the_schema_refuses_what_is_no_result(key, value):
    found = dict(result_of("array")[0].result)
    missing = {name: each for name, each in found.items() if name != key}
    with pytest.raises(ValidationError):
        StepResult.model_validate(missing)
    with pytest.raises(ValidationError):
        StepResult.model_validate({**found, "secondes": value})


def test_the_schema_is_printed(capsys):
    assert main(["schema", "result"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["title"] == SCHEMA
    assert set(printed["required"]) == COMMON
    assert all("description" in f for f in printed["$defs"]["Asked"]["properties"].values() if f.get("type") == "null")
