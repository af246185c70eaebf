"""Pages as a browser shows them: drawn, readable on a phone and by keyboard, without a fault that axe-core knows."""

import json

import pytest

from siliconloom.cli import main
from tests.in_turn import in_turn
from tests.render.pages import COMMANDS, PICTURES, browser, chromium, open_page, other_pixels, picture, write_pages

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium (apt-get install chromium)")
BLANK = """canvas => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, seen = new Set();
  for (let at = 0; at < data.length; at += 4) seen.add((data[at] << 16) + (data[at + 1] << 8) + data[at + 2]);
  return seen.size;
}"""


@pytest.fixture(scope="module")
def pages(shared_folder):
    (shared_folder / "pages").mkdir(exist_ok=True)
    return write_pages(shared_folder / "pages")


@pytest.fixture(scope="module")
def chrome():
    with browser() as found:
        yield found


VIEWS = [(390, False), (1400, False), (1400, True)]
"""Widths, and whether it is dark: each kind of page every day in another one of them."""


@pytest.mark.parametrize(
    ("kind", "width", "dark"),
    in_turn(
        ((kind, *VIEWS[(n + turn) % len(VIEWS)]) for n, kind in enumerate(COMMANDS) for turn in range(len(VIEWS))),
        len(VIEWS),
        seconds=1,
    ),
)
def test_a_page_is_drawn_without_a_complaint_and_fits_a_phone(kind, width, dark, pages, chrome):
    assert pages[kind].stat().st_size < 2_000_000
    page, complaints = open_page(chrome, pages[kind], width, dark=dark)
    for canvas in page.query_selector_all("canvas"):
        assert canvas.evaluate(BLANK) > 8
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for cut in page.query_selector_all(".bars .value, .tiles b, h1, .headline"):
        box = cut.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert complaints == []
    page.close()


@pytest.mark.parametrize(("kind", "dark"), in_turn([(kind, dark) for dark in (False, True) for kind in COMMANDS], 0))
def test_axe_finds_nothing(kind, dark, pages, chrome):
    from axe_playwright_python.sync_playwright import Axe

    page, _ = open_page(chrome, pages[kind], dark=dark)
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found] == []
    page.evaluate("document.querySelector('.box, .soft').innerHTML += '<img src=\"data:,\"><button></button>'")
    assert {"image-alt", "button-name"} <= {v["id"] for v in Axe().run(page).response["violations"]}
    page.close()


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_page_looks_as_it_did(kind, pages, chrome):
    """``python -m tests.render.pages`` takes the picture anew; fonts of other machines are within the tolerance."""
    page, _ = open_page(chrome, pages[kind])
    assert other_pixels(picture(page, kind), (PICTURES / f"{kind}.png").read_bytes()) < 0.12
    page.close()


@pytest.mark.slow(seconds=1)
def test_a_picture_of_something_else_is_told(pages, chrome):
    page, _ = open_page(chrome, pages["chip"])
    page.evaluate(
        "window.loomViews.timeline.from = window.loomViews.timeline.total * 0.9; window.loomViews.timeline.draw()"
    )
    assert other_pixels(picture(page, "chip"), (PICTURES / "chip.png").read_bytes()) > 0.12
    page.close()


@pytest.mark.slow(seconds=1)
def test_tables_sort_by_keyboard(pages, chrome):
    page, _ = open_page(chrome, pages["chip"])
    head = page.locator("#operators th button", has_text="cycles")
    cells = "[...document.querySelectorAll('#operators tbody tr')].map(r => +r.cells[2].dataset.v)"
    page.locator("#operators th button").first.focus()
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "cycles"
    page.keyboard.press("Enter")
    down = page.evaluate(cells)
    assert down == sorted(down, reverse=True)
    assert head.evaluate("b => b.parentElement.getAttribute('aria-sort')") == "descending"
    page.keyboard.press("Space")
    assert page.evaluate(cells) == down[::-1] or sorted(down) == page.evaluate(cells)
    page.close()


@pytest.mark.slow(seconds=1)
def test_a_timeline_moves_by_keyboard_and_tells_what_it_shows(pages, chrome):
    page, _ = open_page(chrome, pages["chip"])
    canvas, readout = page.locator("#timeline canvas"), page.locator("#timeline .readout")
    whole = readout.inner_text()
    canvas.focus()
    for key in ("+", "+", "ArrowRight"):
        page.keyboard.press(key)
        page.wait_for_timeout(50)
    near = readout.inner_text()
    assert near != whole
    assert near.startswith("Cycles ")
    page.keyboard.press("Home")
    page.wait_for_timeout(50)
    assert readout.inner_text() == whole
    page.close()


@pytest.mark.slow(seconds=1)
def test_a_map_of_links_is_read_by_keyboard(pages, chrome):
    page, _ = open_page(chrome, pages["network"])
    told = page.locator("#links .readout")
    canvas = page.locator("#links canvas")
    busiest = told.inner_text()
    canvas.focus()
    seen = {busiest}
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
        assert told.inner_text() not in seen
        seen.add(told.inner_text())
    page.keyboard.press("Home")
    assert told.inner_text() == busiest
    before = canvas.screenshot()
    page.locator("#links select").select_option("bytes")
    assert canvas.screenshot() != before
    page.close()


@pytest.mark.slow(seconds=1)
def test_a_map_of_links_has_what_the_result_has(pages, chrome, tmp_path):
    kept = tmp_path / "r.json"
    assert main([*COMMANDS["network"], "--json", str(kept)]) == 0
    page, _ = open_page(chrome, pages["network"])
    drawn = page.evaluate(
        "(({ d, links }) => links.map(l => [d.nodes[l.from], d.nodes[l.to], l.bytes]))(window.loomViews.links)"
    )
    links = [[x["from"], x["to"], round(x["bytes"])] for x in json.loads(kept.read_text())["links"]]
    assert sorted(drawn) == sorted(links)
    page.close()


@pytest.mark.slow(seconds=1)
def test_lines_over_time_are_read_by_keyboard_and_pointer(pages, chrome):
    page, _ = open_page(chrome, pages["service"])
    canvas, readout = page.locator("#overtime canvas"), page.locator("#overtime .readout")
    data = page.evaluate("window.loomViews.overtime.d.panels[0].lines[0].values")
    whole = readout.inner_text()
    assert "in the mean, at most" in whole
    canvas.focus()
    for at in range(3):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(50)
        assert f"answers {float(f'{data[at]:.4g}'):,g} tokens/s" in readout.inner_text()
    page.keyboard.press("+")
    page.wait_for_timeout(50)
    for _ in range(3):  # what is read stays in sight
        page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(50)
    assert page.evaluate("(({ cursor, from }) => [cursor, from])(window.loomViews.overtime)") == [0, 0]
    page.keyboard.press("Home")
    page.wait_for_timeout(50)
    assert readout.inner_text() == whole
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 60)
    last = page.evaluate("window.loomViews.overtime.cursor")
    assert last >= len(data) - 2
    assert f"answers {float(f'{data[last]:.4g}'):,g} tokens/s" in readout.inner_text()
    page.close()


@pytest.mark.slow(seconds=8)
def test_data_of_every_chart_and_table_can_be_saved(pages, chrome):
    for kind, path in pages.items():
        page, _ = open_page(chrome, path)
        buttons = page.query_selector_all("[data-csv], [data-chart], [data-do=csv]")
        assert len(buttons) >= len(page.query_selector_all("canvas, .bars, table")), kind
        files = {}
        for number, button in enumerate(buttons, 1):
            if number % 10 == 0:  # Chromium drops downloads of a page beyond ten a second
                page.wait_for_timeout(1100)
            with page.expect_download() as saved:
                button.click()
            lines = saved.value.path().read_text().splitlines()
            assert len(lines) > 1
            name = saved.value.suggested_filename
            assert name.endswith(".csv")
            assert files.setdefault(name, lines) == lines, "other data under the same name"
        page.close()


@pytest.mark.slow(seconds=1)
def test_the_script_adds_up_the_run_as_the_result_does(pages, chrome, tmp_path):
    kept = tmp_path / "r.json"
    assert main([*COMMANDS["chip"], "--json", str(kept)]) == 0
    result = json.loads(kept.read_text())
    page, _ = open_page(chrome, pages["chip"])
    names = page.evaluate("window.loomViews.timeline.d.operators")
    for name, sums in zip(
        page.evaluate("window.loomViews.timeline.d.units"),
        page.evaluate("window.loomViews.timeline.totals.map(t => [...t])"),
        strict=True,
    ):
        busy = dict(zip(names, sums, strict=False))
        for operator in result["operators"]:
            assert busy[operator["name"]] == pytest.approx(operator["busy_cycles"].get(name, 0), abs=1e-3)
    page.close()


@pytest.mark.slow(seconds=1)
def test_what_is_drawn_one_by_one_is_what_is_added_up(pages, chrome):
    """Single executions and sums come from one folded run by two ways."""
    page, _ = open_page(chrome, pages["chip"])
    worst = page.evaluate(
        """() => {
  const { run, total } = window.loomViews.timeline, W = run.width, a = new Float64Array(W), b = new Float64Array(W);
  let worst = 0, seed = 7;
  const random = () => (seed = seed * 16807 % 2147483647) / 2147483647;
  for (let n = 0; n < 300; n++) {
    const from = random() * total, to = Math.min(total, from + total * 10 ** (-1 - 4 * random()));
    run.lanes.forEach((lane, u) => {
      const one = new Float64Array(W);
      run.each(lane, 0, lane.item.length, 0, from, to, (row, offset) => {
        const upto = new Float64Array(W), before = new Float64Array(W);
        run.addRow(row, to - offset, upto);
        run.addRow(row, from - offset, before);
        for (let k = 0; k < W; k++) one[k] += upto[k] - before[k];
      });
      run.until(u, from, a);
      run.until(u, to, b);
      for (let k = 0; k < W - 1; k++) worst = Math.max(worst, Math.abs(b[k] - a[k] - one[k]));
    });
  }
  return worst;
}"""
    )
    assert worst < 1e-3
    page.close()
