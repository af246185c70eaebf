"""A key that says what is so anyway changes nothing, and two commands that are asked the same answer the same."""

import json
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import memo
from siliconloom.cli import main
from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.mapper.system.plan import Plan
from siliconloom.workloads import load_workload

SMALL = (("layers", "4"), ("batch", "8"))
DEFAULTS = {
    key: str(value).lower()
    for key, value in Plan().as_dict().items()
    if key not in ("microbatch", "tensor", "pipeline") and value is not None
}
MACHINES = {
    "h100": (),
    "dgx-h100": (("policy.tensor", "4"),),
    "dgx-a100": (("policy.tensor", "2"),),
    "npu-edge-int8": (("memory.dram.capacity", "1 GiB"),),
    "npu-x4-ring": (("chip.memory.dram.capacity", "1 GiB"),),
}


@pytest.fixture(scope="module")
def remembered():
    """What the tests of this file find, most of it of the same few layers on the same few chips."""
    return memo.Memo(None)


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch, remembered):
    """What a test finds was found by it or by another one of this file: not by an earlier process."""
    monkeypatch.setattr(memo.Shared, "memo", remembered)


def answer(machine, phase, *sets):
    """The result without how long it took, and without the hash of the description that said the policy."""
    found = evaluate(read_machine(machine, sets), load_workload("gpt2", [*SMALL, ("phase", phase)])).result
    rest = {key: value for key, value in found.items() if key not in ("simulator", "asked")}
    return rest | {"plan": found["asked"]["plan"]}


@pytest.mark.slow(seconds=1.5)
@pytest.mark.parametrize("machine", MACHINES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_the_default_of_a_plan_changes_nothing(machine, data):
    keys = data.draw(st.lists(st.sampled_from(sorted(DEFAULTS)), min_size=1, max_size=4, unique=True))
    sets = [(f"plan.{key}", DEFAULTS[key]) for key in keys]
    assert answer(machine, "decode", *MACHINES[machine], *sets) == answer(machine, "decode", *MACHINES[machine])


def test_a_policy_and_the_plan_that_says_the_same_are_one():
    shared = answer("dgx-h100", "decode", ("policy.tensor", "4"))
    assert answer("dgx-h100", "decode", ("plan.tensor", "4")) == shared
    assert answer("dgx-h100", "decode", ("plan.tensor", "4"), ("plan.data", "1")) == shared
    assert answer("dgx-h100", "decode", ("plan.tensor", "4"), ("plan.data", "2"))["seconds"] != shared["seconds"]


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["decode", "prefill", "training"]),
    st.sampled_from(
        [(8, 1, 1), (2, 4, 1), (4, 2, 1), (2, 2, 2), (1, 4, 2), (1, 2, 4), (4, 1, 2), (2, 2, 1), (1, 1, 2)]
    ),
    st.sampled_from([1, 2]),
)
def test_sim_and_plan_have_one_time_for_a_plan(phase, degrees, microbatch):
    """``loom plan`` with every degree given, and ``loom sim`` with the same keys."""
    given_keys = dict(zip(("data", "tensor", "pipeline"), degrees, strict=True)) | {"microbatch": microbatch}
    if microbatch * degrees[0] > 8:
        given_keys["microbatch"] = 1
    sets = ["--set", f"workload.phase={phase}", "--set", "workload.batch=8", "--set", "workload.layers=4"]
    for key, value in given_keys.items():
        sets += ["--set", f"plan.{key}={value}"]
    times = [printed(command, "dgx-h100", "gpt2", *sets) for command in ("sim", "plan")]
    assert times[0]["seconds"] == times[1]["step_s"]
    assert times[0]["asked"]["plan"] == times[1]["plan"]


SYSTEM = """\
kind: system
name: four
description: four datacentre chips
chips: [{chip: npu-datacenter, count: 4}]
topology: {kind: ring}
link: {bandwidth: 50 GB/s, latency: 1 us}
"""


@pytest.mark.parametrize(
    ("machine", "sets", "said"),
    [
        ("dgx-h100", ["plan.chunks=2"], "plan.chunks is for training"),
        ("dgx-h100", ["workload.phase=decode", "plan.vocabulary=true"], "plan.vocabulary is for training"),
        ("four", ["plan.zero=1"], "plan.zero is for training"),
        ("four", ["plan.context_scheme=zigzag"], "plan.context_scheme: changes nothing: plan.context is 1"),
        ("four", ["plan.expert_tensor=2"], "plan.expert_tensor: changes nothing: the model has no experts"),
        ("four", ["plan.documents=1024"], "plan.documents in one step of loom sim; loom plan has it"),
        ("four", ["topology.spines=2"], "topology.spines: changes nothing: a ring does not read it"),
        ("four", ["slow.stage=1"], "slow.stage=1: is of a plan's run, not of one step; loom plan has it"),
        ("npu-edge-int8", ["decode.tensor=2"], "loom plan has it"),
        ("four", ["protocol.flit_bits=128"], "protocol.flit_bits: changes nothing: it is of the links' circuits"),
        ("dgx-h100", ["ring.pieces=2"], "ring.pieces: changes nothing: it is of the links' circuits"),
        ("four", ["algorithm=tree", "plan.tensor=4"], "algorithm tree among groups of chips"),
    ],
)
def test_keys_that_change_nothing_are_refused(machine, sets, said, tmp_path, capsys):
    system = tmp_path / "four.yaml"
    system.write_text(SYSTEM)
    name = str(system) if machine == "four" else machine
    assert main(["sim", name, "gpt2", *(option for each in sets for option in ("--set", each))]) == 2
    assert said in capsys.readouterr().err


def test_a_systems_algorithm_is_the_plans(tmp_path):
    system = tmp_path / "four.yaml"
    system.write_text(SYSTEM)
    asked = [str(system), "gpt2", "--set", "plan.tensor=4", "--set", "workload.layers=2"]
    times = {
        name: printed("sim", *asked, "--set", f"algorithm={name}")["seconds"]
        for name in ("auto", "ring", "bidirectional_ring", "direct")
    }
    assert len({times["ring"], times["bidirectional_ring"], times["direct"]}) == 3
    assert times["auto"] <= min(times.values())


@pytest.mark.parametrize("command", ["sim", "plan"])
@pytest.mark.parametrize("chip", ["systolic-ws-128", "pim-hbm"])
def test_models_on_systems_of_bare_arrays_are_refused(command, chip, tmp_path, capsys):
    system = tmp_path / "four.yaml"
    system.write_text(SYSTEM.replace("npu-datacenter", chip))
    assert main([command, str(system), "gpt2", "--set", "plan.tensor=2"]) == 2
    assert "loom: not supported: " in capsys.readouterr().err


def test_a_chip_of_many_levels_takes_part_in_a_system(tmp_path):
    """Its levels were made so large that addresses did not fit their field."""
    system = tmp_path / "four.yaml"
    system.write_text(SYSTEM.replace("npu-datacenter", "csd-flash"))
    found = printed("sim", str(system), "gpt2", "--set", "plan.tensor=2", "--set", "workload.layers=2")
    assert any("2 of 4 chips work" in note for note in found["notes"])


@pytest.mark.slow(seconds=2.5)
@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(["decode", "prefill"]),
    st.sampled_from([(4, 1, 1), (2, 2, 1), (1, 4, 1), (1, 2, 2), (2, 1, 2), (1, 1, 4), (1, 2, 1), (2, 1, 1)]),
    st.sampled_from([1, 2]),
    st.sampled_from(["ring", "switch", "fully_connected"]),
)
def test_sim_and_plan_have_one_time_for_a_plan_of_our_own_chips(phase, degrees, microbatch, topology):
    """Operators by the chip simulator, messages over the links: whichever command asks."""
    sets = ["--set", f"workload.phase={phase}", "--set", "workload.batch=8", "--set", "workload.layers=4"]
    sets += ["--set", f"workload.{'context' if phase == 'decode' else 'sequence'}=64"]
    sets += ["--set", f"topology.kind={topology}", "--set", "chip.memory.dram.capacity=1 GiB"]
    sets += ["--set", "chip.tile.sequencer.program_words=1024"]
    for key, value in (*zip(("data", "tensor", "pipeline"), degrees, strict=True), ("microbatch", microbatch)):
        sets += ["--set", f"plan.{key}={value}"]
    times = [printed(command, "npu-x4-ring", "gpt2", *sets) for command in ("sim", "plan")]
    assert times[0]["seconds"] == times[1]["step_s"]
    assert times[0]["asked"]["plan"] == times[1]["plan"]
    assert 0 < times[0]["bound"]["achieved"] <= 1
    if degrees[2] == 1:
        assert added_up(times[0]) == pytest.approx(times[0]["seconds"], rel=1e-6)


DECODE = ("--set", "workload.phase=decode", "--set", "workload.context=200", "--set", "workload.layers=4")


def test_what_only_memory_that_computes_has_is_refused_elsewhere(capsys):
    for arguments, said in (
        (["npu-x4-ring", "gpt2", "--set", "workload.phase=decode", "--set", "policy.attention=pim"], "has no pim"),
        (["neupims", "gpt3-7b", "--set", "workload.phase=prefill", "--set", "policy.values=row"], "only decode has"),
        (["neupims", "gpt2", *DECODE, "--set", "policy.attention=npu", "--set", "policy.values=row"], "is npu"),
    ):
        for command in ("sim", "plan"):
            assert main([command, *arguments]) == 2
            assert said in capsys.readouterr().err


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from([(1, 1, 1), (2, 2, 1), (1, 2, 2), (4, 1, 1), (1, 1, 4)]),
    st.sampled_from([4, 8, 48]),
    st.sampled_from(["policy.attention=auto", "policy.attention=pim", "policy.attention=npu", "policy.weights=npu"]),
)
def test_sim_and_plan_have_one_time_where_memory_computes(degrees, batch, policy):
    """`loom plan` timed decode as if memory did not compute: 3.711 ms for 2.075 on 32 chips."""
    chips = degrees[0] * degrees[1] * degrees[2]
    sets = [
        "--set",
        f"chips.0.count={chips}",
        "--set",
        "policy.tensor=1",
        "--set",
        f"workload.batch={batch}",
        "--set",
        policy,
        *DECODE,
    ]
    for key, value in zip(("data", "tensor", "pipeline"), degrees, strict=True):
        sets += ["--set", f"plan.{key}={value}"]
    sets += ["--set", f"plan.microbatch={max(batch // degrees[0] // degrees[2], 1)}"]
    found, planned = (printed(command, "neupims", "gpt2", *sets) for command in ("sim", "plan"))
    assert found["seconds"] == planned["step_s"]
    assert found["asked"]["plan"] == planned["plan"]
    assert 0 < found["bound"]["achieved"] <= 1


def test_the_arithmetic_of_a_plan_counts_memory_that_computes(tmp_path):
    """The arrays' peak alone made a step of pim-gpt faster than its bound: an internal error."""
    system = tmp_path / "one.yaml"
    system.write_text(SYSTEM.replace("npu-datacenter", "pim-gpt").replace("count: 4", "count: 1"))
    found, planned = (printed(command, str(system), "gpt2", *DECODE) for command in ("sim", "plan"))
    assert planned["lower_bound_s"] <= planned["step_s"] == found["seconds"]


@pytest.mark.slow(seconds=13)
@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from(["npu-edge-int8", "npu-datacenter", "npu-balanced"]),
    st.sampled_from(["prefill", "decode"]),
    st.integers(1, 5),
    st.sampled_from([1, 4]),
)
def test_a_system_of_one_chip_is_the_chip(chip, phase, layers, batch):
    """Its layers were executed once and counted: what overlaps from one layer to the next was lost."""
    system = SYSTEM.replace("npu-datacenter", chip).replace("count: 4", "count: 1")
    sets = ["--set", f"workload.phase={phase}", "--set", f"workload.batch={batch}"]
    sets += ["--set", f"workload.layers={layers}"]
    sets += ["--set", f"workload.{'context' if phase == 'decode' else 'sequence'}=64"]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(system)
        file.flush()
        one, alone = (printed("sim", *asked, *sets) for asked in ((file.name, "gpt2"), (chip, "gpt2")))
    assert one["cycles"] == alone["cycles"]
    assert one["energy_j"] == pytest.approx(alone["energy_j"])
    assert one["bound"]["lower_bound_cycles"] == alone["bound"]["lower_bound_cycles"]
    memory = next(iter(one["traffic_bytes"]))
    assert one["traffic_bytes"][memory] == alone["traffic_bytes"][memory]


FOUR = (
    *["--set", "plan.data=4", "--set", "plan.tensor=1", "--set", "plan.pipeline=1", "--set", "workload.phase=training"],
)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([0, 1, 2, 3]), st.sampled_from(["none", "selective", "full"]), st.sampled_from([4, 8]))
def test_a_training_step_is_what_its_operators_add_up_to(zero, recompute, batch):
    """Its bound counted the optimizer in every microbatch and on every replica; what is computed again had no rows."""
    sets = ["--set", f"plan.zero={zero}", "--set", f"plan.recompute={recompute}", "--set", f"workload.batch={batch}"]
    sets += ["--set", "workload.layers=2", "--set", "workload.sequence=64", "--set", "plan.overlap_gradients=true"]
    found = printed("sim", "dgx-h100", "gpt2", *FOUR, *sets)
    again = printed("sim", "dgx-h100", "gpt2", *FOUR, *sets, "--set", "plan.recompute=none")
    assert 0 < found["bound"]["achieved"] <= 1
    left = sum(o["seconds"] for o in found["operators"] if o["name"].startswith("gradients"))
    assert added_up(found) == pytest.approx(found["seconds"], rel=1e-6)
    assert left >= 0
    assert (found["energy_j"] > again["energy_j"]) == (recompute != "none")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["npu-datacenter", "gpt2", "plan.microbatch=1"], "plan.microbatch: npu-datacenter is one chip"),
        (["systolic-ws-8", "gpt2-block-gemms", "tile_count=2"], "not supported: 2 bare arrays"),
        (["npu-edge-int8", "gpt2", "tile.array.rows=0x" + "f" * 5000], "not valid YAML: not a value of the kind"),
    ],
)
def test_keys_that_change_nothing_and_numbers_that_cannot_be_shown_are_refused(arguments, told, capsys):
    machine, model, change = arguments
    assert main(["sim", machine, model, "--set", change]) == 2
    assert told in capsys.readouterr().err


def added_up(result):
    """Seconds of the operators, without those that one spends beside another."""
    overlap = sum(o.get("overlap_cycles") or 0 for o in result["operators"])
    return sum(o["seconds"] for o in result["operators"]) - overlap / result["clock_hz"]


def printed(*arguments):
    """The JSON that a command writes."""
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*arguments, "--json", "-"]) == 0
    return json.loads(out.getvalue())
