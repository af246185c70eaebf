"""Order of the tests, and the seed of the day."""

import gc
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import siliconloom
from siliconloom.arch import memo
from tests import in_turn

# how long an example takes is the machine's affair; 40 of them a day, where a test does not say how many, and every
# day's seed draws others
settings.register_profile("daily", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("daily")

DAY = 86400
CHECKOUT = Path(__file__).resolve().parents[1] / "src" / "siliconloom"


def pytest_addoption(parser):
    parser.addoption(
        "--slow-share",
        type=int,
        default=1,
        metavar="N",
        help="run a part of the slow tests, that of the seed: each in one of N seeds that follow, long ones of 2 N, "
        "short ones of fewer",
    )
    parser.addoption(
        "--share", type=int, default=1, metavar="N", help="likewise of all other tests but those of commands"
    )


def pytest_configure(config):
    """Tests of one checkout that import another one's package prove nothing; no code changes while they run."""
    memo.BEGAN = time.time_ns() + DAY * 10**9
    found = Path(siliconloom.__file__).resolve().parent
    if CHECKOUT.exists() and found != CHECKOUT:
        raise pytest.UsageError(f"these tests are of {CHECKOUT}, but import {found}: set PYTHONPATH, or use make test")


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    """What a test finds was found by it: not by another test, nor by an earlier process."""
    monkeypatch.setattr(memo.Shared, "memo", memo.Memo(None))


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """A folder that is the same one in all workers of xdist."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session", autouse=True)
def compiled_once(shared_folder):
    """The same text is compiled once in all tests of a run, whichever worker of xdist they run in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memo.Shared, "compiled", memo.Memo(shared_folder / "compiled"))
        yield


@pytest.fixture(scope="session")
def seed(request):
    """Of hypothesis and of the benches alike: ``--hypothesis-seed``, which .ci/run changes from day to day."""
    return int(request.config.getoption("--hypothesis-seed", default=None) or 0)


def pytest_collection_modifyitems(config, items):
    """Put slow tests at the beginning of what each worker of xdist gets, the longest first, so that none is the last.

    Of these those whose turn it is (``--slow-share``, `in_turn.turns`), and every so many of the others (``--share``).
    """
    slow = {each.nodeid: in_turn.seconds_of(marker) for each in items if (marker := each.get_closest_marker("slow"))}
    rest = {each.nodeid for each in items if "commands" not in each.path.parts} - slow.keys()
    seed = int(config.getoption("--hypothesis-seed", default=None) or 0)
    left_out = slow.keys() - in_turn.runs(slow, config.getoption("--slow-share"), seed)
    left_out |= _not_in_turn(rest, seed, config.getoption("--share"))
    config.hook.pytest_deselected(items=[each for each in items if each.nodeid in left_out])
    items[:] = [each for each in items if each.nodeid not in left_out]
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    rest = [each for each in items if each.nodeid not in slow]
    first = sorted((each for each in items if each.nodeid in slow), key=lambda each: -slow[each.nodeid])
    items[:] = [
        each
        for w in range(workers)
        for each in (*first[w::workers], *rest[len(rest) * w // workers : len(rest) * (w + 1) // workers])
    ]


def pytest_report_collectionfinish(items):
    """About how long the slow tests take, where there are any."""
    markers = [marker for each in items if (marker := each.get_closest_marker("slow"))]
    seconds = sum(map(in_turn.seconds_of, markers))
    return f"{len(markers)} slow tests, of about {seconds:.0f} processor seconds" if markers else None


def pytest_collection_finish():
    """Look through what lives as long as the process as seldom as a command does: that was a twelfth of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _not_in_turn(names, seed, share):
    return {name for number, name in enumerate(sorted(names)) if number % share != seed % share}
