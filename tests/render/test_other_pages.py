"""Pages of plans, comparisons and steps without a program: their data adds up, and names are text."""

import re

import pytest
import yaml

from siliconloom.api.questions import compare, plan, simulate
from siliconloom.arch.service_level import ServiceLevel
from siliconloom.evaluate.fleets import prepare_named
from siliconloom.evaluate.serving_run import serve
from siliconloom.render.report_compare import compare_html
from siliconloom.render.report_plan import plan_html
from siliconloom.render.report_serving import serving_html
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


@pytest.mark.slow(seconds=1)
def test_a_comparison_has_every_operator_of_every_machine():
    result = compare("npu-edge-int8", "gpt2", ["h100", "a100"], SMALL).to_dict()
    result["operators"][0]["name"] = HOSTILE
    charts = checked(compare_html(result))
    had = [found for row in result["operators"] for found in row["machines"].values() if found]
    assert len(charts["operators"]["rows"]) == len(had)
    assert sum(row[2] for row in charts["operators"]["rows"]) == pytest.approx(sum(f["seconds"] for f in had))


@pytest.mark.parametrize("found", [None, {"what": "rate", "value": 4.0, "attain": 0.9}])
def test_a_service_tells_all_of_its_result(found):
    result = served()
    if found:
        tries = [{"value": v, "attained": a, "goodput": v * a} for v, a in ((8.0, 0.5), (2.0, 1.0), (4.0, 0.95))]
        result["found"] = {**found, "tried": tries}
    result["asked"]["workload"] = result["notes"][0] = HOSTILE
    page = serving_html(result)
    charts, timeline = checked(page), result["timeline"]
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s"):
        assert dict(charts[name]["rows"]) == result[name]
    assert sum(size for _, _, size in charts["memory"]["rows"]) == pytest.approx(result["memory"]["capacity_bytes"])
    drawn = data_of(page)["overtime"]
    lines = {line["name"]: line["values"] for panel in drawn["panels"] for line in panel["lines"]}
    assert sum(lines["answers"]) * drawn["step_s"] == pytest.approx(result["requests"]["output_tokens"], rel=1e-4)
    assert lines["waiting"] == timeline["waiting"]
    assert lines["cache in use"] == pytest.approx(timeline["cache_used"], rel=1e-5)
    running = [count for count, used in zip(timeline["running"], lines["cache in use"], strict=True) if not used]
    assert sum(running) == 0  # whoever is worked on has keys and values
    assert ("tried" in charts) == bool(found)
    if found:
        assert [value for value, _, _ in charts["tried"]["rows"]] == [2, 4, 8]
    cells = dict(re.findall(r'<tr><td class="left">(serve\.\w+)</td><td class="left">([^<]*)</td>', page))
    settings = {f"serve.{key}": value for key, value in result["asked"]["settings"].items()}
    assert {key: yaml.safe_load(text) for key, text in cells.items()} == {
        key: "not set" if value is None else value for key, value in settings.items()
    }


@pytest.mark.slow(seconds=1)
def test_a_service_that_finished_nothing_and_one_of_many_replicas_have_a_page():
    result = served()
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s"):
        result[name] = dict.fromkeys(result[name], 0.0)
    result["timeline"] = {name: [0.0] for name in result["timeline"]}
    result["duration_s"] = 0.0
    result["replicas"] *= 3000
    page = serving_html(result)
    checked(page)
    assert len(page) < 2_000_000
    assert "2,000 more are left out here" in page


def served():
    """A service of a GPU, as the command writes it."""
    sets = [("serve.requests", "30"), ("serve.arrivals", "poisson"), ("serve.rate", "5")]
    return serve(prepare_named("h100", "llama3-8b", "512x64", sets), ServiceLevel(ttft_s=0.1), sets, audits=0)


@pytest.mark.slow(seconds=1)
def test_a_service_whose_energy_or_price_nobody_knows_has_its_page(tmp_path):
    sets = [("serve.requests", "5")]
    measured = serve(prepare_named("rtx-pro-6000", "llama3-8b", "64x8", sets, profile="measured"))
    assert "not known" in serving_html(measured)
    file = tmp_path / "fleet.yaml"
    file.write_text("kind: fleet\nname: two\ngroups: [{machine: h100, price: 7}, {machine: a100, price: 3}]\n")
    fleet = serve(prepare_named(str(file), "llama3-8b", "64x8", sets))
    page = serving_html(fleet)
    assert "at 7, 3 $/h" in page
    for group in fleet["groups"]:
        assert f"{group['machine']}: keys and values" in page
        assert f"{group['memory']['blocks']:,} blocks of 16 tokens" in page
