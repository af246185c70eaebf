"""The file of results: nothing lost, nothing twice, nobody else's file harmed."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError
from siliconloom.sweeps import executors
from siliconloom.sweeps.question import PointAnswer
from siliconloom.sweeps.run import SweepInterrupted, run_sweep
from siliconloom.sweeps.store import Store
from tests.sweeps.small import sweep, without_times, write

ANSWERS = st.builds(
    PointAnswer,
    st.dictionaries(st.sampled_from(["time", "energy"]), st.floats(1e-30, 1e30), min_size=1),
    st.none() | st.text(max_size=9),
    st.none() | st.text(max_size=9),
)


@given(st.lists(st.tuples(st.sampled_from("abcde"), ANSWERS), max_size=12))
def test_what_was_put_first_is_found(puts):
    with Store(None) as store:
        first = {}
        for key, answer in puts:
            store.put(key, [("k", "v")], answer)
            first.setdefault(key, answer)
        assert store.known(list("abcdef")) == first
        assert store.count() == len(first)


def test_what_failed_for_no_reason_of_its_own_is_asked_again():
    with Store(None) as store:
        store.put("a", [], PointAnswer({}, why="died", again=True))
        assert store.known(["a"]) == {}
        store.put("a", [], PointAnswer({"time": 1.0}))
        assert store.known(["a"])["a"].metrics == {"time": 1.0}


def test_files_that_are_none_of_results_are_left_as_they_are(folder):
    (folder / "text").write_text("no database\n" * 100)
    with sqlite3.connect("other") as other:
        other.execute("CREATE TABLE things (name)")
    other.close()
    run_sweep(sweep(), "old", workers=1)
    with sqlite3.connect("old") as old:
        old.execute("UPDATE meta SET value = 'siliconloom.sweep-store/0'")
    old.close()
    before = {name: (folder / name).read_bytes() for name in ("text", "other")}
    for name, told in (("text", "no file of a sweep"), ("other", "no file of a sweep"), ("old", "another version")):
        for write_too in (True, False):
            with pytest.raises(LoomError, match=told):
                Store(name, write=write_too)
    assert before == {name: (folder / name).read_bytes() for name in before}
    for path, told in (("nowhere/x", "does not exist"), (".", "names a folder")):
        with pytest.raises(LoomError, match=told):
            Store(path)
    with pytest.raises(LoomError, match="no such file"):
        Store("absent", write=False)


def test_one_writes_at_a_time_and_others_may_read():
    with Store("kept") as store:
        store.put("a", [], PointAnswer({}))
        with pytest.raises(LoomError, match="another sweep is writing"):
            Store("kept")
        with Store("kept", write=False) as reader:
            assert reader.count() == 1
    with Store("kept") as store:
        assert store.count() == 1


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
from siliconloom.cli import main
from siliconloom.sweeps.store import Store

put, count = Store.put, 0

def slow(self, *what):
    global count
    put(self, *what)
    count += 1
    if count > 50:
        time.sleep(1)

Store.put = slow
sys.exit(main(["sweep", *sys.argv[1:]]))
"""


def loom(*words, **options):
    """`loom sweep`, which is in no hurry after its first 50 points, so that who watches it is never too late."""
    return subprocess.Popen([sys.executable, "-c", SLOW, *words], **options)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "workers"), [(signal.SIGKILL, "2"), (signal.SIGINT, "2"), (signal.SIGINT, "1")])
def test_a_sweep_that_is_killed_goes_on_where_it_was(folder, number, workers):
    """No finished point is asked again, and the end is as if nothing had been."""
    path = write(folder, keys={"memory.dram.bandwidth": {"from": "1 GB/s", "to": "200 GB/s", "step": "1 GB/s"}})
    with loom(str(path), "--results", "kept", "--workers", workers, stderr=subprocess.PIPE, text=True) as running:
        done = 0
        while done < 5 and running.poll() is None:
            time.sleep(0.02)
            if os.path.exists("kept"):
                try:
                    with Store("kept", write=False) as reader:
                        done = reader.count()
                except LoomError:
                    continue
        running.send_signal(number)
        told = running.communicate()[1]
    with Store("kept", write=False) as reader:
        before = reader.count()
    assert 5 <= before < 200
    if number == signal.SIGINT:
        assert running.returncode == 130
        assert f"{before} finished points are kept in kept; the same command goes on from there" in told
    again = run_sweep(path, "kept", workers=1)
    assert (again.counts.reused, again.counts.evaluated) == (before, 200 - before)
    assert without_times(again) == without_times(run_sweep(path, None, workers=1))


def test_an_interrupt_that_a_library_says_nothing_of_ends_a_sweep_all_the_same(folder, monkeypatch):
    path = write(folder, keys={"memory.dram.bandwidth": {"from": "1 GB/s", "to": "9 GB/s", "step": "1 GB/s"}})
    put = Store.put

    def heard_by_nobody(*what):
        put(*what)
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # which tests of other programs may have changed
    with monkeypatch.context() as patched:
        patched.setattr(Store, "put", heard_by_nobody)
        before = signal.getsignal(signal.SIGINT)
        with pytest.raises(SweepInterrupted, match="1 finished point is kept in kept"):
            run_sweep(path, "kept", workers=1)
        assert signal.getsignal(signal.SIGINT) is before
    assert run_sweep(path, "kept", workers=1).counts.reused == 1


def test_a_point_that_was_interrupted_is_not_kept_whatever_it_says(folder, monkeypatch):
    """A library that makes an error of its own of an interruption ends in a failed point, which it is not."""
    path = write(folder, keys={"memory.dram.bandwidth": {"from": "1 GB/s", "to": "9 GB/s", "step": "1 GB/s"}})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asked, ask = 0, executors.answer

    def hurt(*what):
        nonlocal asked
        asked += 1
        if asked == 3:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            return PointAnswer({}, why="SystemError: something else")
        return ask(*what)

    with monkeypatch.context() as patched:
        patched.setattr(executors, "answer", hurt)
        with pytest.raises(SweepInterrupted, match="2 finished points are kept in kept"):
            run_sweep(path, "kept", workers=1)
    assert without_times(run_sweep(path, "kept", workers=1)) == without_times(run_sweep(path, None, workers=1))
