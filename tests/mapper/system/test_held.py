"""Memory over a step: its most is what a plan says, and what comes goes."""

import pytest

from siliconloom.evaluate.plan import read_plan_input
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.training import Trainer

SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1), ("zero_bubble_2", 1), ("v_half", 1)]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
@pytest.mark.parametrize("pipeline", [1, 2, 4])
def test_what_is_held_at_most_is_the_memory_of_the_plan(pipeline, schedule, chunks, recompute):
    if pipeline == 1 and chunks > 1:
        pytest.skip("one stage has nothing to interleave")
    sets = [("workload.phase", "training"), ("workload.batch", "16"), ("workload.sequence", "128")]
    sets.append(("workload.layers", "8"))  # as many on every stage, which a plan's mean of a device's stages assumes
    cluster, graph, *_ = read_plan_input("dgx-h100", "gpt2", sets)
    plan = Plan(pipeline=pipeline, tensor=8 // pipeline // 2, data=2, schedule=schedule, chunks=chunks)
    plan = Plan(**{**{f: getattr(plan, f) for f in plan.__struct_fields__}, "recompute": recompute})
    trainer = Trainer(cluster, graph)
    held = trainer.held(plan)
    told = trainer.memory(plan)
    most = max(each.always.total + each.most for each in held)
    exact = schedule in ("gpipe", "1f1b", "interleaved") or pipeline == 1
    if exact:
        assert most == pytest.approx(told.total, rel=1e-6)
    else:
        assert told.total * 0.7 < most <= told.total * (1 + 1e-6)
    for each in held:
        assert each.steps[-1][1] == pytest.approx(0.0, abs=each.most * 1e-9)
        assert all(a[0] < b[0] for a, b in zip(each.steps, each.steps[1:], strict=False))
