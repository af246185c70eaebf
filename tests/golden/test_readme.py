"""Figures of blocks in README.md and pages of docs are those that their commands print."""

import pytest

from tests.golden import readme

BLOCKS = [b for each in readme.DOCUMENTS if each.exists() for b in readme.blocks(each.read_text(encoding="utf-8"))]
pytestmark = pytest.mark.checkout


def test_blocks_are_found():
    assert {command.split()[0] for command, _ in BLOCKS} >= {"sim", "compare", "verify", "serve"}


QUICK = [b for b in BLOCKS if b[0].split()[0] not in readme.SLOW and not b[0].startswith(readme.FETCHED)]
LONG = [b for b in BLOCKS if b[0].split()[0] in readme.SLOW and not b[0].startswith(readme.FETCHED)]


@pytest.mark.parametrize(
    ("command", "shown"), [*QUICK, *(pytest.param(*b, marks=pytest.mark.slow(seconds=60)) for b in LONG)]
)
def test_readme_shows_what_is_printed(command, shown):
    assert readme.refreshed(command, shown) == shown, "python -m tests.golden.readme --slow"


def test_a_figure_that_is_stale_is_found(monkeypatch):
    monkeypatch.setattr(readme, "output", lambda *asked: ["title", "  time   2 s  (3 cycles)", "", "unit   busy"])
    assert readme.refreshed("x", "title\n...\nunit   busy\n") == "title\n...\nunit   busy\n"
    assert readme.refreshed("x", "  time   1 s  (3 cycles)\n") == "  time   2 s  (3 cycles)\n"
    monkeypatch.setattr(
        readme, "output", lambda *asked: ["random 7   2", "random 10   3", "passed: all (34 cases, 9 bytes)"]
    )
    assert readme.refreshed("x", "random 10   1\npassed: all (32 cases, 7 bytes)\n") == (
        "random 10   3\npassed: all (34 cases, 9 bytes)\n"
    )
    monkeypatch.setattr(readme, "output", lambda *asked: ["title"])
    with pytest.raises(ValueError, match="prints no line 'energy'"):
        readme.refreshed("x", "title\n  energy   2 J\n")
