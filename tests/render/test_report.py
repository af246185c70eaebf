import csv
import io
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.evaluate.chip import simulate
from siliconloom.evaluate.timeline import short_timeline
from siliconloom.render.charts import bars, roofline, stacked, timeline
from siliconloom.render.report import operators_csv, report_html

names = st.text(min_size=1, max_size=20).filter(lambda t: t.isprintable())


@pytest.fixture(scope="module")
def simulation():
    return simulate("npu-edge-int8", "gpt2", [("workload.layers", "1"), ("workload.sequence", "64")], trace_limit=5000)


class Checker(HTMLParser):
    """Every tag closed in order, nothing fetched from elsewhere."""

    VOID = ("meta", "br")

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attributes):
        assert tag not in ("script", "link", "img", "iframe")
        assert not any(name in ("src", "href") for name, _ in attributes)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert tag in ("rect", "line", "circle", "polyline")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_well_formed_self_contained_and_complete(simulation):
    result = simulation.result()
    checker = Checker()
    checker.feed(report_html(result, short_timeline(simulation), simulation.chip.model_dump_json()))
    assert checker.open == []
    text = " ".join(checker.text)
    for operator in result["operators"]:
        assert operator["name"] in text
    assert f"{result['cycles']:,}" in text
    assert simulation.chip.digest in text


def test_names_cannot_inject_markup(simulation):
    result = simulation.result()
    hostile = "<script>alert(1)</script>"
    result["workload"] = hostile
    result["operators"][0]["name"] = hostile
    assert hostile not in report_html(result, short_timeline(simulation), simulation.chip.model_dump_json())


def test_bare_arrays_have_a_report_too(tmp_path):
    path = tmp_path / "g.yaml"
    path.write_text("kind: gemms\nprecision: int8\ngemms: [{name: a, m: 30, n: 20, k: 10}]\n")
    bare = simulate("systolic-ws-8", str(path), trace_limit=100)
    Checker().feed(report_html(bare.result(), short_timeline(bare), bare.chip.model_dump_json()))


def test_csv_round_trip(simulation):
    result = simulation.result()
    rows = list(csv.DictReader(io.StringIO(operators_csv(result))))
    assert [r["name"] for r in rows] == [o["name"] for o in result["operators"]]
    assert sum(int(r["cycles"]) for r in rows) == result["cycles"]


@given(st.lists(st.tuples(names, st.floats(0, 1), names, names), min_size=1, max_size=8))
def test_bars_are_valid_svg(rows):
    ElementTree.fromstring(bars(rows).partition("<p")[0])


@given(st.dictionaries(names, st.dictionaries(names, st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=4))
def test_stacked_bars_are_valid_svg(rows):
    svg = ElementTree.fromstring(stacked(rows).partition("<p")[0])
    widths = [float(r.get("width")) for r in svg.iter("rect")]
    assert sum(widths) == pytest.approx(sum(sum(r.values()) for r in rows.values()) * 730, abs=0.01 * len(widths))


@given(
    st.lists(st.tuples(names, st.floats(1e-3, 1e5), st.floats(1e-3, 1e6)), max_size=20),
    st.floats(1, 1e6),
    st.floats(0.1, 1e5),
)
def test_rooflines_are_valid_svg(points, peak, bandwidth):
    svg = ElementTree.fromstring(roofline(points, peak, bandwidth))
    for circle in svg.iter("circle"):
        assert 0 <= float(circle.get("cx")) <= 860


@given(
    st.lists(
        st.tuples(st.sampled_from(["load", "array"]), names, st.integers(0, 99), st.integers(100, 200)), min_size=1
    )
)
def test_timelines_are_valid_svg(spans):
    ElementTree.fromstring(timeline(spans).partition("<p")[0])
