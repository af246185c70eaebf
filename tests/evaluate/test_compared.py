"""``loom compare`` puts results side by side: its figures are those of ``loom sim``, under a schema of its own."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from siliconloom.arch import LoomError
from siliconloom.arch.compared import COMPARE_SCHEMA, Comparison
from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines.stacks import STACKS
from siliconloom.cli import main
from siliconloom.evaluate.compare import compare_workload
from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.workloads import load_workload

LAYERS = ("layers", "2")
DECODE = ("phase", "decode")
ASKED = {
    "chip": ("npu-edge-int8", "gpt2", [LAYERS], [], ["--gpu", "h100,a100"]),
    "array": ("systolic-ws-8", "gpt2-block-gemms", [], [], ["--gpu", "a100"]),
    "prices": (
        "npu-edge-int8",
        "gpt2",
        [LAYERS],
        [],
        ["--gpu", "h100", "--price", "h100=2.5", "--price", "npu-edge-int8=0.1"],
    ),
    "shared": ("npu-datacenter", "llama3-8b", [LAYERS, DECODE], [], ["--gpu", "h100", "--tensor", "4"]),
    "served": ("npu-datacenter", "llama3-8b", [LAYERS], [], ["--gpu", "h100", "--stack", "vllm", "--sustained"]),
    "pim chip": ("neupims-device", "gpt3-7b", [LAYERS, DECODE, ("batch", "8")], [], ["--gpu", "a100"]),
    "system": ("neupims", "gpt3-7b", [DECODE, ("batch", "16")], [], ["--gpu", "a100"]),
    "ring": ("npu-x4-ring", "gpt2", [LAYERS, DECODE], [("chip.memory.dram.capacity", "1 GiB")], ["--gpu", "a100"]),
    "gpu": ("h200", "gpt2", [LAYERS], [], ["--gpu", "h100"]),
    "gpus": ("dgx-h100", "llama3-8b", [LAYERS], [("plan.tensor", "4"), ("plan.data", "1")], ["--gpu", "a100"]),
    "training": (
        "h100",
        "gpt2",
        [LAYERS, ("phase", "training"), ("batch", "8")],
        [],
        ["--gpu", "a100", "--tensor", "2"],
    ),
    "stages": (
        "dgx-h100",
        "gpt2",
        [LAYERS, ("batch", "4")],
        [("plan.tensor", "1"), ("plan.pipeline", "2")],
        ["--gpu", "mi300x"],
    ),
}
GPUS = ("a100", "h100", "h200", "l40s", "mi300x")
FIRST = "b200"
"""What the others are put beside: it is evaluated quickly and has a row for every operator."""
SHARED = ("seconds", "error", "measured_s", "measured_error", "energy_j", "energy_excludes", "power_w", "utilization")


def comparison_of(name, folder):
    machine, workload, of_workload, of_machine, options = ASKED[name]
    sets = [f"{key}={value}" for key, value in of_machine] + [f"workload.{key}={value}" for key, value in of_workload]
    written = folder / "compared.json"
    command = ["compare", machine, workload, *(a for s in sets for a in ("--set", s)), *options]
    assert main([*command, "--json", str(written)]) == 0
    return json.loads(written.read_text()), sets


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("name", ASKED)
def test_every_machine_is_compared_in_one_schema(name, tmp_path):
    found, sets = comparison_of(name, tmp_path)
    typed = Comparison.model_validate(found)
    assert typed.schema_ == COMPARE_SCHEMA
    assert json.loads(typed.model_dump_json(by_alias=True, exclude_unset=True)) == found
    assert typed.asked.machine == ASKED[name][0]
    assert typed.asked.overrides == dict(s.split("=", 1) for s in sets)
    ours, *theirs = typed.machines
    assert (ours.speedup, ours.energy_ratio) == (None, None)
    for machine in theirs:
        low, high = machine.speedup_range
        assert low <= machine.speedup <= high
        assert machine.chips == machine.count == typed.asked.tensor
        assert (machine.dollars_per_million_tokens is None) == (machine.name not in typed.asked.prices)
    for row in typed.operators:
        for operator in filter(None, row.machines.values()):
            assert (operator.measured_s is None) == (operator.measured_error is None) == (operator.measured == "none")
            if operator.kernels:
                assert sum(k.seconds for k in operator.kernels) == pytest.approx(operator.seconds)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("name", ["chip", "gpu"])
def test_a_comparison_cannot_contradict_itself(name, tmp_path):
    found = comparison_of(name, tmp_path)[0]
    slower = json.loads(json.dumps(found))
    slower["machines"][1]["seconds"] *= 2
    renamed = json.loads(json.dumps(found))
    renamed["machines"][1]["name"] = "other"
    less = json.loads(json.dumps(found))
    del less["operators"][0]["machines"][less["machines"][1]["name"]]
    empty = json.loads(json.dumps(found))
    empty["operators"][0]["machines"][empty["machines"][0]["name"]] = None
    for wrong, why in ((slower, "speedup"), (renamed, "asked for"), (less, "every machine"), (empty, "the first")):
        with pytest.raises(ValidationError, match=why):
            Comparison.model_validate(wrong)
    with pytest.raises(ValidationError):
        Comparison.model_validate({**found, "machine": found["machines"]})


def test_the_schema_is_printed(capsys):
    assert main(["schema", "comparison"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["title"] == COMPARE_SCHEMA
    assert set(made["required"]) == {*Comparison.model_fields} - {"schema_"} | {"schema"}
    assert all(part["additionalProperties"] is False for part in made["$defs"].values())


def system_of(gpu, count, folder):
    """A file that describes so many GPUs, joined as each one's own description says."""
    path = Path(folder) / "joined.yaml"
    kind = "switch" if gpu.link.in_switch else "fully_connected"
    path.write_text(
        f"kind: system\nname: joined\nchips: [{{chip: {gpu.name}, count: {count}}}]\ntopology: {{kind: {kind}}}\n"
        f"link: {{count: 1, bandwidth: {gpu.link.bandwidth} B/s, latency: 500 ns}}\npolicy: {{tensor: {count}}}\n"
    )
    return str(path)


@pytest.mark.slow(seconds=2)
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(GPUS),
    st.sampled_from(["gpt2", "llama3-8b", "mixtral-8x7b", "gpt2-block-gemms"]),
    st.sampled_from(["prefill", "decode", "training"]),
    st.sampled_from([1, 2, 4, 16]),
    st.sampled_from([1, 8]),
    st.sampled_from(["bf16", "fp16"]),
)
def test_a_gpu_s_figures_are_those_of_its_own_simulation(gpu, model, phase, tensor, batch, precision):
    """One GPU, or as many as share every operator: there is one answer, total and every kernel, or none at all."""
    sets = [("precision", precision)]
    if model == "gpt2-block-gemms":
        tensor = 1
    else:
        sets += [LAYERS, ("phase", phase), ("batch", str(batch))]
        tensor = {("gpt2", 16): 12}.get((model, tensor), tensor)
    graph, described = load_workload(model, sets), load_gpu(gpu)
    with TemporaryDirectory() as folder:
        machine = read_machine(gpu if tensor == 1 else system_of(described, tensor, folder), [])
    try:
        alone = evaluate(machine, graph).result
    except LoomError:
        with pytest.raises(LoomError):
            compare_workload(FIRST, [], graph, [described], tensor=tensor)
        return
    compared = compare_workload(FIRST, [], graph, [described], tensor=tensor)
    Comparison.model_validate(compared)
    machine = compared["machines"][1]
    assert {key: machine[key] for key in SHARED} == {key: alone.get(key) for key in SHARED}
    assert machine["roofline_s"] == alone["bound"]["lower_bound_s"]
    rows = [row["machines"][gpu] for row in compared["operators"]]
    kernels = {kernel["name"]: kernel for row in rows for kernel in row["kernels"]}
    assert kernels == {o["name"]: {key: o[key] for key in kernels[o["name"]]} for o in alone["operators"]}
    assert sum(row["seconds"] for row in rows) == pytest.approx(alone["seconds"], rel=1e-6)
    if alone.get("measured_s") is not None:
        assert sum(row["measured_s"] or row["seconds"] for row in rows) == pytest.approx(alone["measured_s"], rel=1e-6)


@pytest.mark.parametrize(("gpu", "system"), [("h100", "dgx-h100"), ("a100", "dgx-a100")])
def test_gpus_of_a_comparison_are_those_of_the_library_s_systems(gpu, system):
    graph = load_workload("llama3-8b", [LAYERS])
    machine = compare_workload(FIRST, [], graph, [load_gpu(gpu)], tensor=4)["machines"][1]
    plan = [("plan.tensor", "4"), ("plan.data", "1"), ("plan.pipeline", "1")]
    plan += [("chips.0.count", "4"), ("policy.tensor", "4")]  # those that do nothing draw power, too
    alone = evaluate(read_machine(system, plan), graph).result
    assert {key: machine[key] for key in SHARED} == {key: alone.get(key) for key in SHARED}


@pytest.mark.parametrize("stack", STACKS)
def test_serving_software_adds_to_the_step_of_a_simulation(stack):
    graph = load_workload("llama3-8b", [LAYERS, DECODE])
    machine = compare_workload(FIRST, [], graph, [load_gpu("h100")], stack=STACKS[stack])["machines"][1]
    alone = evaluate(read_machine("h100", []), graph).result
    launched = sum(o["repeat"] for o in alone["operators"] if not o["fused"])
    assert machine["seconds"] == pytest.approx(STACKS[stack].seconds(alone["seconds"], launched))
    assert machine["overhead_s"] == pytest.approx(machine["seconds"] - alone["seconds"])
    idle = load_gpu("h100").idle_power * machine["overhead_s"]
    assert machine["energy_j"] == pytest.approx(alone["energy_j"] + idle)


@pytest.mark.slow(seconds=1)
def test_what_was_measured_stays_beside_what_is_predicted():
    """It is of bursts, on the GPU and the links that were measured, and changes no total."""
    graph = load_workload("llama3-8b", [])

    def found(name, *sets, tensor=1):
        return evaluate(read_machine(name, [*sets, ("plan.tensor", str(tensor))]), graph).result

    plain = found("h100")
    known = [o for o in plain["operators"] if "measured_s" in o]
    assert {"layer.qkv", "layer.attention"} <= {o["name"] for o in known}
    assert all(o["measured_in"] and 0 < o["measured_error"] < 1 for o in known)
    assert plain["measured_s"] - plain["seconds"] == pytest.approx(sum(o["measured_s"] - o["seconds"] for o in known))
    assert not any(o["fused"] for o in known)
    slower = found("h100", ("clock", "1.8 GHz"))
    assert "measured_s" not in slower
    assert not any("measured_s" in o for o in slower["operators"])
    for name, sets, sent in (
        ("dgx-h100", (), True),
        ("dgx-h100", (("link.bandwidth", "20 GB/s"),), False),
        ("dgx-h100", (("topology.kind", "ring"),), False),
    ):
        kinds = {o["kind"] for o in found(name, *sets, tensor=2)["operators"] if "measured_s" in o}
        assert "attention_prefill" in kinds
        assert ("all_reduce" in kinds) == sent
    limited = compare_workload(FIRST, [], graph, [load_gpu("h100")], sustained=True)["machines"][1]
    assert limited["measured_s"] is None


@pytest.mark.slow(seconds=1)
def test_the_range_of_a_speed_up_is_the_bar_either_way():
    """A bar is a factor: a prediction that may be twice too short or too long is no range that begins at nothing."""
    found = compare_workload("npu-edge-int8", [], load_workload("gpt2", [("layers", "1")]), [load_gpu("h100")])
    _, gpu = found["machines"]
    low, high = gpu["speedup_range"]
    assert low * high == pytest.approx(gpu["speedup"] ** 2)
    assert high == pytest.approx(gpu["speedup"] * (1 + gpu["error"]))
