"""Pages of plans, comparisons and steps without a program: their data adds up, and names are text."""

import pytest

from siliconloom.api.questions import compare, plan, simulate
from siliconloom.render.report_compare import compare_html
from siliconloom.render.report_plan import plan_html
from siliconloom.render.report_step import step_html
from tests.render.test_report import Checker, data_of

HOSTILE = "<script>alert(1)</script>"
SMALL = {"workload.layers": 2, "workload.sequence": 64}


def checked(page):
    """The page's data; its tags are closed and nothing is fetched."""
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert HOSTILE not in page
    charts = data_of(page)["charts"]
    for chart in charts.values():
        assert {len(row) for row in chart["rows"]} <= {len(chart["columns"])}
    return charts


@pytest.mark.parametrize("phase", ["training", "prefill"])
def test_the_parts_of_a_plan_are_its_step(phase):
    result = plan("dgx-h100", "llama3-8b", {"workload.phase": phase, "plan.pipeline": 2}).to_dict()
    result["notes"] = [HOSTILE]
    charts = checked(plan_html(result, None))
    assert sum(seconds for _, seconds in charts["parts"]["rows"]) == pytest.approx(result["step_s"])
    assert len(charts["plans"]["rows"]) == 1 + len(result["alternatives"])
    mine = [size for name, _, size in charts["memory"]["rows"] if name == result["plan_text"]]
    assert sum(mine) == pytest.approx(result["memory_bytes"])


@pytest.mark.parametrize("machine", ["h100", "dgx-h100", "npu-x4-ring"])
def test_the_operators_of_a_step_are_its_time(machine):
    shared = {"plan.tensor": 4} if machine == "dgx-h100" else {}
    result = simulate(machine, "gpt2", {"workload.layers": 1, "workload.sequence": 16, **shared}).to_dict()
    result["workload"] = result["operators"][0]["name"] = HOSTILE
    charts = checked(step_html(result))
    seconds = sum(row[2] for row in charts["operators"]["rows"])
    assert seconds == pytest.approx(result["seconds"], rel=1e-3)
    assert sum(row[1] for row in charts["kinds"]["rows"]) == pytest.approx(seconds)


def test_a_comparison_has_every_operator_of_every_machine():
    result = compare("npu-edge-int8", "gpt2", ["h100", "a100"], SMALL).to_dict()
    result["operators"][0]["name"] = HOSTILE
    charts = checked(compare_html(result))
    had = [found for row in result["operators"] for found in row["machines"].values() if found]
    assert len(charts["operators"]["rows"]) == len(had)
    assert sum(row[2] for row in charts["operators"]["rows"]) == pytest.approx(sum(f["seconds"] for f in had))
