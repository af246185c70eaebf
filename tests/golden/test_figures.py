"""Figures in sentences of documents are those of their commands."""

import pytest

from tests.golden import figures

pytestmark = pytest.mark.checkout


@pytest.mark.parametrize("entry", figures.FIGURES, ids=lambda entry: f"{entry['document']} {entry['command']}"[:80])
def test_documents_say_what_commands_find(entry):
    text = (figures.ROOT / entry["document"]).read_text(encoding="utf-8")
    (said,) = figures.pattern(entry["words"]).findall(text)
    assert said == figures.said(entry), "python -m tests.golden.figures"


def test_a_figure_that_is_stale_is_found(monkeypatch):
    monkeypatch.setattr(figures, "result", lambda command: {"seconds": 2.0, "energy_j": 1.0, "cycles": 3})
    entry = {"command": "", "words": "takes {ms:.1f} ms, {cycles:,} cycles"}
    assert figures.pattern(entry["words"]).findall("it takes 1,999.5 ms, 2 cycles.") == ["takes 1,999.5 ms, 2 cycles"]
    assert figures.said(entry) == "takes 2000.0 ms, 3 cycles"
