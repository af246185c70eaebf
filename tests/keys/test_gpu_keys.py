"""Every key of a GPU's description, in every command that predicts with one: it changes the result, or is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from siliconloom.arch import gpu as descriptions
from siliconloom.arch.document import Description
from siliconloom.arch.gpu import RECORDED, Gpu
from tests.keys.bases import FILES, Refused, command, kept
from tests.keys.test_every_key import keys_of

VALUES = {
    "name": "other",
    "architecture": "ampere",
    "multiprocessors": "66",
    "clock": "900MHz",
    "matrix.bf16": "1024",
    "matrix.fp64": "1024",
    "vector.fp32": "8",
    "vector.bf16": "8",
    "integer": "8",
    "sparse": "1",
    "exponentials": "4",
    "power": "200",
    "power_cap": "250",
    "locked_clock": "900MHz",
    "idle_power": "60",
    "first_level.capacity": "64KiB",
    "first_level.latency_cycles": "90",
    "first_level.shared_latency_cycles": "90",
    "first_level.remote_latency_cycles": "900",
    "l2.capacity": "4MiB",
    "l2.latency_cycles": "900",
    "l2.far_latency_cycles": "900",
    "memory.kind": "hbm2e",
    "memory.capacity": "40GiB",
    "memory.bandwidth": "1000GB/s",
    "memory.latency_cycles": "900",
    "link.kind": "pcie",
    "link.bandwidth": "50GB/s",
    "link.per_node": "4",
    "link.switched": "false",
    "link.in_switch": "false",
    "link.network": "5GB/s",
    "link.network_latency": "50us",
}
"""Another value of every key of the H100."""
MODEL = "llama3-8b --set workload.layers=2"
PLAN = "--set plan.tensor=8 --set plan.data=1 --set plan.pipeline=1 --set plan.microbatch=1"
COMMANDS = {
    "gpu": ("gpu h100 operations.csv", ""),
    "what it is": ("gpu h100", ""),
    "sim": (f"sim h100 {MODEL}", ""),
    "system": (f"sim dgx-h100 {MODEL}", "chip."),
    "nodes": (f"sim dgx-h100x8 {MODEL} --set policy.tensor=16", "chip."),
    "compare": (f"compare h100 {MODEL} --gpu a100", ""),
    "plan": (f"plan dgx-h100 {MODEL} {PLAN}", "chip."),
    "simulated": (f"plan dgx-h100 {MODEL} {PLAN} --set topology.kind=ring", "chip."),
}
"""Command lines, and what stands before a GPU's keys in their overrides."""
OTHERWISE = {
    "matrix.fp64": "of another precision than the workload's",
    "vector.fp32": "of another precision than the workload's",
    "vector.bf16": "of packed weights, which the workload has none of",
    "integer": "of packed weights, which the workload has none of",
    "sparse": "of sparse weights, which the workload has none of",
    "memory.capacity": "a limit: what does not fit is refused",
    "name": "a plan and a comparison with one GPU name the system, or the machine",
}
"""Keys that some commands take as they are, and why; at least one command changes its result with each."""
ONLY = {"nodes": ("link.in_switch",)}
"""A sum over several nodes is not made in the switch of one."""


@pytest.fixture(scope="module", autouse=True)
def _inputs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, before = tmp_path_factory.mktemp("gpus"), Path.cwd()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    os.chdir(folder)
    yield
    os.chdir(before)


def outcomes(name: str) -> dict[str, str]:
    """``changed``, ``same``, or the message of a refusal, for every key."""
    line, prefix = COMMANDS[name]
    run, found = command(line), {}
    before = kept(run([]))
    for key, value in VALUES.items():
        try:
            found[key] = "same" if kept(run([(prefix + key, value)])) == before else "changed"
        except Refused as refusal:
            found[key] = str(refusal)
    return found


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_key_changes_the_result_or_is_refused(name: str) -> None:
    found = outcomes(name)
    known = {*OTHERWISE, *ONLY.get(name, ())} if name != "what it is" else set()
    idle = [key for key, what in found.items() if what == "same" and key not in known]
    assert not idle, f"accepted and without effect: {', '.join(idle)}"
    prefix = COMMANDS[name][1]
    for key, what in found.items():
        if what not in ("same", "changed"):
            assert f"--set {prefix}{key}=" in what
            assert "changes nothing: " in what
            assert "\n" not in what
    if name != "what it is":
        assert all("changes nothing" in found[key] for key in RECORDED)


def test_no_key_of_a_gpu_is_left_out() -> None:
    found = set()
    inner = {field: kind.annotation for field, kind in Gpu.model_fields.items()}
    for field, kind in inner.items():
        nested = isinstance(kind, type) and issubclass(kind, Description)
        found |= {f"{field}.{key}" for key in keys_of(kind)} if nested else {field}
    texts = {"kind", "product", "source"}
    tried = set(VALUES) | {key.partition(".")[0] for key in VALUES if key.startswith(("matrix", "vector"))}
    assert found - texts <= tried
    assert set(VALUES) >= descriptions.RECORDED


@pytest.mark.parametrize(
    "sets",
    [
        "endpoint.delay=9us",
        "algorithm=ring",
        "topology.routing=ecmp",
        "link.latency=5us",
        "topology.forwarding=store_and_forward",
        "policy.interleave=always",
        "policy.attention=npu",
    ],
)
def test_keys_of_a_system_that_measured_collectives_do_not_ask_for_are_refused(sets: str) -> None:
    path, _, value = sets.partition("=")
    with pytest.raises(Refused, match=path):
        command(f"sim dgx-h100 {MODEL} --set workload.phase=decode")([(path, value)])


def test_the_topology_of_gpus_counts_where_several_share_a_step() -> None:
    run = command(f"sim dgx-h100 {MODEL} --set workload.phase=decode --set policy.tensor=8")
    assert run([])["seconds"] != run([("topology.kind", "ring")])["seconds"]


def test_policies_of_memory_that_does_not_compute_are_refused() -> None:
    line = "plan npu-x4-ring gpt2 --set workload.layers=1 --set workload.sequence=32"
    with pytest.raises(Refused, match=r"policy\.values: changes nothing: npu-edge-int8 has no pim"):
        command(line)([("policy.values", "row")])


def test_topology_of_gpus_counts_where_messages_are_simulated() -> None:
    run = command("collective dgx-h100 all_reduce 64MiB")
    assert run([])["model"].startswith("NCCL")
    assert run([("topology.kind", "ring")])["model"] == "messages over links"
    with pytest.raises(Refused, match=r"not supported: chip\. in a collective"):
        run([("chip.clock", "1GHz")])


@pytest.mark.parametrize("value", ["power=400", "idle_power=300", "power_cap=400", "locked_clock=1.2GHz"])
def test_power_counts_in_a_plan_of_training_which_is_under_the_boards_limit(value: str) -> None:
    key, _, watts = value.partition("=")
    run = command(f"plan dgx-h100 {MODEL} {PLAN} --set workload.phase=training --set workload.sequence=2048")
    assert run([])["step_s"] < run([(f"chip.{key}", watts)])["step_s"]
