"""What is not run again because it was met before: the same numbers, to the last cycle, and fewer of them run."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.dram import load_dram
from siliconloom.cli import main
from siliconloom.sim.dram import kernel as dram_kernel
from siliconloom.sim.dram import repeat as dram_repeat
from siliconloom.sim.dram import replay as module
from siliconloom.sim.dram import snapshot as dram_snapshot
from siliconloom.sim.dram.repeat import BLOCK
from siliconloom.sim.dram.replay import Replay, replay
from tests.in_turn import in_turn
from tests.sim.dram_memories import memories

OUTCOME = [name for name in Replay.__struct_fields__ if name not in ("commands", "collapse")]


def lines_of(random, kind, count, lines):
    """Streams, interleaved streams, strides, the same again, shared lines, tiles of a matrix, and no pattern."""
    steps, base = np.arange(count), int(random.integers(0, lines))
    if kind == "stride":
        return base + steps * int(random.choice([1, 2, 8, 64, 128, 1024]))
    if kind == "streams":
        streams = random.integers(0, lines, random.integers(2, 5))
        return streams[steps % len(streams)] + steps // len(streams)
    if kind == "again":
        some = random.integers(0, lines, random.integers(1, 200))
        return some[steps % len(some)]
    if kind == "shared":
        return base + steps // int(random.choice([2, 3, 4]))
    if kind == "tiles":
        width = int(random.choice([16, 64, 100]))
        return base + steps % width + steps // width * int(random.choice([256, 1000, 2048]))
    return random.integers(0, lines, count) if kind == "random" else base + steps


def gaps_of(random, kind, count):
    """Arrivals: all at once, paced, in bursts with pauses, uneven."""
    if kind == "paced":
        return np.full(count, random.integers(1, 8))
    if kind == "bursts":
        return (np.arange(count) % random.choice([32, 64, 200]) == 0) * random.choice([300, 1000, 3900])
    return random.integers(0, 20, count) if kind == "uneven" else np.zeros(count, np.int64)


def trace_of(dram, seed, stretches):
    """A trace of stretches (length, addresses, arrivals, share of writes or every so many)."""
    random = np.random.default_rng(seed)
    size = dram.organization.request_bytes
    lines = dram.organization.capacity // size
    line, gap, write = [], [], []
    for count, addresses, arrivals, writes in stretches:
        line.append(lines_of(random, addresses, count, lines) % lines)
        gap.append(gaps_of(random, arrivals, count))
        steps = np.arange(count)
        write.append(steps % writes == 0 if writes > 1 else random.random(count) < writes)
    return np.cumsum(np.concatenate(gap)), np.concatenate(write).astype(np.int64), np.concatenate(line) * size


STRETCH = st.tuples(
    st.integers(1, 6000),
    st.sampled_from(["stream", "stream", "stride", "streams", "again", "shared", "tiles", "random"]),
    st.sampled_from(["at once", "at once", "paced", "bursts", "uneven"]),
    st.sampled_from([0, 0, 0.3, 1, 2, 3, 5]),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(memories(), st.integers(0, 2**32 - 1), st.lists(STRETCH, min_size=1, max_size=3))
def test_every_number_is_the_same_as_when_every_command_is_run(dram, seed, stretches):
    trace = trace_of(dram, seed, stretches)
    run, known = replay(dram, *trace, exact=True), replay(dram, *trace)
    assert run.collapse.requests == 0
    for name in OUTCOME:
        assert np.array_equal(getattr(run, name), getattr(known, name)), name


CASES = [
    ("hbm2", ("stream", "at once", 0), 0.9),
    ("hbm2", ("stream", "at once", 3), 0.6),
    ("hbm2", ("stride", "at once", 0), 0.9),
    ("hbm2", ("stream", "paced", 0), 0.6),
    ("hbm2", ("shared", "at once", 0), 0.6),
    ("hbm2", ("streams", "at once", 0), 0.3),
    ("ddr4", ("stream", "at once", 0), 0.7),
    ("ddr4", ("stream", "bursts", 0), 0.3),
    ("hbm3", ("stream", "at once", 0), 0.5),
    ("hbm2", ("random", "at once", 0), 0.0),
]


@pytest.mark.parametrize(
    ("name", "kind", "least", "refresh"),
    in_turn(((*case, refresh) for case in CASES for refresh in ("none", "rank", "bank")), 2, seconds=0.3),
)
def test_a_regular_trace_is_mostly_known_and_an_irregular_one_is_run(name, kind, least, refresh):
    dram = load_dram(name, [("controller.refresh", refresh)])
    trace = trace_of(dram, 3, [(200_000, *kind)])
    run, known = replay(dram, *trace, exact=True), replay(dram, *trace)
    for field in OUTCOME:
        assert np.array_equal(getattr(run, field), getattr(known, field)), field
    share = known.collapse.requests / 200_000
    assert share >= least * (1 if refresh != "bank" else 0.5)
    assert share > 0 or kind[0] == "random"


def test_a_log_has_every_command():
    dram = load_dram("hbm2")
    trace = trace_of(dram, 0, [(20_000, "stream", "at once", 0)])
    logged, known = replay(dram, *trace, log=True), replay(dram, *trace)
    assert known.collapse.requests > 0
    assert logged.collapse.requests == 0
    columns = np.isin(logged.commands[:, 2], (2, 3, 5, 6)).sum()
    assert columns == logged.bursts == known.bursts
    assert known.cycles == logged.cycles


@pytest.mark.slow(seconds=5)
@settings(max_examples=5, deadline=None)
@given(memories(), st.integers(0, 2**32 - 1), STRETCH)
def test_the_replay_means_the_same_uncompiled(dram, seed, stretch):
    trace = trace_of(dram, seed, [(6 * BLOCK, *stretch[1:])])
    compiled, run = replay(dram, *trace), replay(dram, *trace, exact=True, log=True)
    with pytest.MonkeyPatch.context() as patch:
        for part in (dram_kernel, dram_snapshot, dram_repeat, module):
            for name, value in list(vars(part).items()):
                if hasattr(value, "py_func"):
                    patch.setattr(part, name, value.py_func)
        plain, plain_run = replay(dram, *trace), replay(dram, *trace, exact=True, log=True)
    for name in Replay.__struct_fields__:
        assert np.array_equal(getattr(compiled, name), getattr(plain, name)), name
        assert np.array_equal(getattr(run, name), getattr(plain_run, name)), name


@pytest.mark.slow(seconds=1)
def test_the_command_prints_the_same_with_exact(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("cycle,op,address\n" + "".join(f"0,R,{i * 64}\n" for i in range(20_000)))
    results = []
    for extra in ([], ["--exact"]):
        assert main(["dram", "hbm2", str(path), *extra, "--json", "-"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    known, run = (result.pop("simulator") for result in results)
    assert results[0] == results[1]
    assert run == {"requests_run": 20_000, "requests_known": 0}
    assert known["requests_known"] > 10_000
    assert known["requests_run"] + known["requests_known"] == 20_000
    assert main(["dram", "hbm2", str(path)]) == 0
    assert "known from before" in capsys.readouterr().out
