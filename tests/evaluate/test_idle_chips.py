"""Chips that a plan leaves without work: what they take, by hand, in a step and in a service."""

import pytest

from siliconloom.arch import load_chip
from siliconloom.arch.gpu import load_gpu
from siliconloom.arch.result import StepResult
from siliconloom.evaluate.fleets import prepare_named
from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.evaluate.serving_run import serve
from siliconloom.sim.chip.energy import standing_power
from siliconloom.workloads import load_workload

WATTS = {
    "npu-datacenter": lambda: sum(standing_power(load_chip("npu-datacenter")).values()),
    "h100": lambda: load_gpu("h100").idle_power,
}


def step(machine, sets=()):
    graph = load_workload("llama3-8b", [("layers", "1"), ("sequence", "64")])
    return evaluate(read_machine(machine, list(sets)), graph, list(sets)).result


@pytest.mark.parametrize(("system", "chip"), [("npu-datacenter-x8", "npu-datacenter"), ("dgx-h100", "h100")])
def test_a_system_takes_what_works_and_what_idle_chips_draw(system, chip):
    one, keys = step(chip), [("plan.data", "1"), ("plan.tensor", "1"), ("plan.pipeline", "1")]
    found = step(system, keys)
    StepResult.model_validate(found)
    idle = 7 * WATTS[chip]() * found["seconds"]
    assert found["seconds"] == pytest.approx(one["seconds"])
    assert found["energy"]["idle_chips"] == pytest.approx(idle)
    assert found["energy_j"] == pytest.approx(one["energy_j"] + idle, rel=1e-9)
    assert found["power_w"] == pytest.approx(found["energy_j"] / found["seconds"])
    assert any("of the 7 chips without work" in note for note in found["notes"])


@pytest.mark.parametrize(("system", "chip"), [("npu-datacenter-x8", "npu-datacenter"), ("dgx-h100", "h100")])
def test_no_plan_takes_less_than_all_chips_at_rest(system, chip):
    for tensor in (1, 2, 8):
        found = step(system, [("plan.data", "1"), ("plan.tensor", str(tensor)), ("plan.pipeline", "1")])
        assert found["energy_j"] >= 8 * WATTS[chip]() * found["seconds"]
        assert ("idle_chips" in found["energy"]) == (tensor < 8)


def test_more_chips_that_do_nothing_take_more():
    sets = [("plan.data", "1"), ("plan.tensor", "1"), ("plan.pipeline", "1")]
    joules = [step("npu-datacenter-x8", [("chips.0.count", str(n)), *sets])["energy_j"] for n in (1, 2, 8)]
    each = WATTS["npu-datacenter"]() * step("npu-datacenter-x8", sets)["seconds"]
    assert joules[1] - joules[0] == pytest.approx(each)
    assert joules[2] - joules[1] == pytest.approx(6 * each)


def test_a_service_counts_chips_in_no_replica_by_the_same_rule():
    sets = [("serve.requests", "4"), ("plan.tensor", "4"), ("plan.data", "1"), ("workload.layers", "1")]
    whole, half = (
        serve(prepare_named("npu-datacenter-x8", "llama3-8b", "64x8", [("chips.0.count", count), *sets]))
        for count in ("8", "4")
    )
    idle = 4 * WATTS["npu-datacenter"]() * whole["duration_s"]
    assert whole["duration_s"] == pytest.approx(half["duration_s"])
    assert whole["energy_j"] == pytest.approx(half["energy_j"] + idle)
    assert any(note.startswith("4 of 8 chips do nothing, and draw") for note in whole["notes"])
