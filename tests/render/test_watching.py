"""The bar of what one kernel does: shown after a while, moved by the table that is filled, gone at the end."""

import io
import threading
import time

import numpy as np
import pytest
from rich.console import Console

from siliconloom.evaluate.collective import collective_result, load_any
from siliconloom.render import tables, watching
from siliconloom.render.tables import Screen
from siliconloom.render.watching import watched


@pytest.mark.slow(seconds=1)
def test_the_share_is_that_of_the_table(monkeypatch):
    shares: list[float] = []

    class Bar:
        task_ids = (0,)

        def update(self, _, *, total, completed, left):
            shares.append(completed)
            assert bool(left) == (completed > 0)

        def stop(self):
            shares.append(-1.0)

    monkeypatch.setattr(tables, "BAR_AFTER", 0.0)
    monkeypatch.setattr(tables, "_started_bar", lambda *_: Bar())
    monkeypatch.setattr(watching, "EVERY_S", 0.01)
    monkeypatch.setattr(Screen, "is_terminal", True)
    done = np.full(4, -1.0)
    with watched(True, "messages") as watch:
        time.sleep(0.1)
        watch(done)
        for at in range(3):
            done[at] = 1.0
            time.sleep(0.1)
    assert shares[0] == 0.0
    assert shares[-2:] == [0.75, -1.0]
    assert sorted(set(shares)) == [-1.0, 0.0, 0.25, 0.5, 0.75]


@pytest.mark.slow(seconds=1)
def test_work_that_says_nothing_is_shown_to_go_on(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(tables, "BAR_AFTER", 0.05)
    monkeypatch.setattr(tables, "Screen", lambda **_: Console(file=screen, force_terminal=True, width=120))
    with tables.progress_bar(True, "mapping"):
        time.sleep(0.5)
    assert "mapping" in screen.getvalue()
    threads = threading.active_count()
    quick, screen = screen, io.StringIO()
    with tables.progress_bar(True, "mapping") as advance:
        pass
    advance(0.5)  # whoever comes late starts no bar that nobody ends
    time.sleep(0.2)
    assert screen.getvalue() == ""
    assert threading.active_count() <= threads
    assert quick.getvalue()


def test_what_is_run_is_handed_over():
    described, chips = load_any("fat-tree", [], None)
    for options in ({"flows": True}, {"exact": True}, {}):
        tables_seen: list[np.ndarray] = []
        found = collective_result(described, "all_reduce", 1e6, chips, watch=tables_seen.append, **options)
        assert len(tables_seen) == 1
        assert len(tables_seen[0]) >= found["messages"]
        assert (tables_seen[0] >= 0).all()
