import csv
import io
import json
from html.parser import HTMLParser

import pytest

from siliconloom.evaluate import timeline
from siliconloom.evaluate.chip import simulate
from siliconloom.evaluate.timeline import folded_run
from siliconloom.render.report import operators_csv, report_html
from siliconloom.render.tables import shape_text


@pytest.fixture(scope="module")
def simulation():
    return simulate("npu-edge-int8", "gpt2", [("workload.layers", "1"), ("workload.sequence", "64")])


class Checker(HTMLParser):
    """Every tag closed in order, nothing fetched from elsewhere."""

    VOID = ("meta", "br", "wbr")

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attributes):
        assert tag not in ("link", "img", "iframe", "svg")
        assert not any(name in ("src", "href") for name, _ in attributes)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_well_formed_self_contained_and_complete(simulation):
    result = simulation.result()
    checker = Checker()
    checker.feed(report_html(result, folded_run(simulation), simulation.chip.model_dump_json()))
    assert checker.open == []
    text = " ".join(checker.text)
    for operator in result["operators"]:
        assert operator["name"] in text
        assert shape_text(operator) in text
    assert f"{result['cycles']:,}" in text
    assert simulation.chip.digest in text


def test_names_cannot_inject_markup(simulation):
    result = simulation.result()
    hostile = "<script>alert(1)</script>"
    result["workload"] = hostile
    result["operators"][0]["name"] = hostile
    assert hostile not in report_html(result, folded_run(simulation), simulation.chip.model_dump_json())


def test_bare_arrays_have_a_report_too(tmp_path):
    path = tmp_path / "g.yaml"
    path.write_text("kind: gemms\nprecision: int8\ngemms: [{name: a, m: 30, n: 20, k: 10}]\n")
    bare = simulate("systolic-ws-8", str(path))
    Checker().feed(report_html(bare.result(), folded_run(bare), bare.chip.model_dump_json()))


def test_csv_round_trip(simulation):
    result = simulation.result()
    rows = list(csv.DictReader(io.StringIO(operators_csv(result))))
    assert [r["name"] for r in rows] == [o["name"] for o in result["operators"]]
    assert sum(int(r["cycles"]) for r in rows) == result["cycles"]


def data_of(page):
    """What the page's script draws."""
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])


def test_every_chart_of_a_page_has_its_data(simulation):
    result = simulation.result()
    charts = data_of(report_html(result, folded_run(simulation), ""))["charts"]
    assert set(charts) == {"operators", "units", "energy", "traffic", "memory"}
    for chart in charts.values():
        assert chart["rows"]
        assert {len(row) for row in chart["rows"]} == {len(chart["columns"])}
    assert sum(row[1] for row in charts["energy"]["rows"]) == pytest.approx(result["energy_j"])
    moved = sum(row[2] for row in charts["traffic"]["rows"])
    assert moved == sum(result["traffic_bytes"].values())
    for unit in result["units"]:
        assert sum(n for name, _, n in charts["units"]["rows"] if name == unit) == result["cycles"]


def test_a_run_that_is_too_long_is_drawn_as_far_as_it_is_kept(simulation, monkeypatch):
    monkeypatch.setattr(timeline, "REPORT_ROWS", 200)
    run = folded_run(simulation)
    page = report_html(simulation.result(), run, "")
    assert run.left_out > 0
    assert f"{run.left_out:,} executions and jumps after it are left out" in page
    assert data_of(page)["timeline"]["cycles"] == max(row[-1] for row in run.rows) < run.cycles


def test_a_page_of_a_large_model_is_small():
    done = simulate("npu-datacenter", "llama3-70b", [("workload.context", "4096"), ("workload.phase", "decode")])
    assert len(report_html(done.result(), folded_run(done), done.chip.model_dump_json(indent=2))) < 400_000
