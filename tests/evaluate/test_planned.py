"""The answer of ``loom plan`` keeps its schema, whatever is asked, and says all that was asked."""

import json

import pytest

from siliconloom.arch.planned import PlanResult
from siliconloom.cli import main

ASKED = {
    "training": ("dgx-h100", "gpt2", ["workload.phase=training", "workload.batch=64"]),
    "one plan": (
        "dgx-h100",
        "gpt2",
        ["workload.batch=8", "plan.tensor=4", "plan.data=2", "plan.pipeline=1", "plan.microbatch=1"],
    ),
    "our chips": ("sn40l-node", "llama2-7b", ["workload.phase=decode", "workload.layers=4"]),
    "late stage": (
        "dgx-h100",
        "gpt2",
        ["workload.phase=training", "workload.batch=8", "slow.stage=0", "slow.factor=2"],
    ),
    "next tokens": ("dgx-h100", "gpt2", ["workload.batch=8", "decode.data=2"]),
    "failures": (
        "dgx-h100",
        "gpt2",
        ["workload.phase=training", "workload.batch=64", "run.steps=1000", "run.mtbf=3 h", "run.checkpoint=1 s"],
    ),
}


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("name", ASKED)
def test_every_plan_answers_in_one_schema(name, tmp_path):
    system, model, sets = ASKED[name]
    written = tmp_path / "plan.json"
    assert main(["plan", system, model, *(a for s in sets for a in ("--set", s)), "--json", str(written)]) == 0
    found = json.loads(written.read_text())
    typed = PlanResult.model_validate(found)
    assert json.loads(typed.model_dump_json(by_alias=True, exclude_unset=True)) == found
    assert typed.asked.machine == system
    assert typed.asked.overrides == dict(s.split("=", 1) for s in sets)
    assert typed.lower_bound_s <= typed.step_s
    assert all(other.step_s >= typed.step_s for other in typed.alternatives)
    assert sum(typed.memory.model_dump().values()) == pytest.approx(typed.memory_bytes)
    later = {"late stage": typed.slow, "next tokens": typed.decode, "failures": typed.run}
    assert all((part is not None) == (name == of) for of, part in later.items())


def test_the_schema_is_printed(capsys):
    assert main(["schema", "plan"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["title"] == "siliconloom.plan/1"
    assert set(made["required"]) >= {"schema", "asked", "plan", "step_s", "lower_bound_s", "alternatives"}
