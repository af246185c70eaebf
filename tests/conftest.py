"""Order of the tests, and the seed of the day."""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import siliconloom
from siliconloom.arch import memo

# how long an example takes is the machine's affair
settings.register_profile("no time", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no time")

CHECKOUT = Path(__file__).resolve().parents[1] / "src" / "siliconloom"


def pytest_addoption(parser):
    parser.addoption(
        "--slow-share",
        type=int,
        default=1,
        metavar="N",
        help="run every Nth of the slow tests, beginning with that of the seed: all of them in N seeds that follow",
    )
    parser.addoption(
        "--share", type=int, default=1, metavar="N", help="likewise of all other tests but those of commands"
    )


def pytest_configure(config):
    """Tests of one checkout that import another one's package prove nothing."""
    found = Path(siliconloom.__file__).resolve().parent
    if CHECKOUT.exists() and found != CHECKOUT:
        raise pytest.UsageError(f"these tests are of {CHECKOUT}, but import {found}: set PYTHONPATH, or use make test")


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    """What a test finds was found by it: not by another test, nor by an earlier process."""
    monkeypatch.setattr(memo.Shared, "memo", memo.Memo(None))


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """The same text is compiled once in all tests of a run, whichever worker of xdist they run in."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memo.Shared, "compiled", memo.Memo(folder / "compiled"))
        yield


@pytest.fixture(scope="session")
def seed(request):
    """Of hypothesis and of the benches alike: ``--hypothesis-seed``, which .ci/run changes from day to day."""
    return int(request.config.getoption("--hypothesis-seed", default=None) or 0)


def pytest_collection_modifyitems(config, items):
    """Put the slow tests at the beginning of what each worker of xdist gets, so that no long one is the last.

    Of these those whose turn it is (``--slow-share``), and of the others likewise (``--share``).
    """
    slow = {each.nodeid for each in items if each.get_closest_marker("slow")}
    rest = {each.nodeid for each in items if "commands" not in each.path.parts} - slow
    seed = int(config.getoption("--hypothesis-seed", default=None) or 0)
    left_out = _not_in_turn(slow, seed, config.getoption("--slow-share"))
    left_out |= _not_in_turn(rest, seed, config.getoption("--share"))
    config.hook.pytest_deselected(items=[each for each in items if each.nodeid in left_out])
    items[:] = [each for each in items if each.nodeid not in left_out]
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    slow = [each for each in items if each.get_closest_marker("slow")]
    rest = [each for each in items if not each.get_closest_marker("slow")]
    items[:] = [
        each
        for w in range(workers)
        for each in (*slow[w::workers], *rest[len(rest) * w // workers : len(rest) * (w + 1) // workers])
    ]


def pytest_collection_finish():
    """Look through what lives as long as the process as seldom as a command does: that was a twelfth of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _not_in_turn(names, seed, share):
    return {name for number, name in enumerate(sorted(names)) if number % share != seed % share}
