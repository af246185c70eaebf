"""What a comparison says first: how many times as fast one machine is as the other, and where that is not known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.cli import main
from siliconloom.render.compare import headlines


def machines(ours, theirs, error, count=1):
    ratio = theirs / ours
    other = {"name": "gpu", "count": count, "seconds": theirs, "speedup": ratio}
    other["speedup_range"] = [ratio * (1 - error), ratio * (1 + error)]
    return [{"name": "chip", "count": 1, "seconds": ours}, other]


@pytest.mark.parametrize(
    ("ours", "theirs", "error", "told"),
    [
        (1.0, 2.0, 0.1, "chip is 2 times as fast as gpu (1.8 to 2.2): 1 s and 2 s"),
        (2.0, 1.0, 0.0, "gpu is 2 times as fast as chip: 2 s and 1 s"),
        (1.0, 1.05, 0.1, "chip and gpu are as fast within the prediction's error: 1 s and 1.05 s"),
    ],
)
def test_the_faster_machine_is_named(ours, theirs, error, told):
    assert headlines(machines(ours, theirs, error)) == [told]


@given(st.floats(1e-9, 1e6), st.floats(1e-9, 1e6), st.floats(0, 0.9))
def test_nobody_is_called_faster_who_is_slower(ours, theirs, error):
    (line,) = headlines(machines(ours, theirs, error))
    if ours > theirs:
        assert not line.startswith("chip is")
    if theirs > ours:
        assert not line.startswith("gpu is")


@pytest.mark.slow(seconds=1)
def test_the_command_says_it_before_its_tables(capsys):
    words = ["compare", "npu-edge", "gpt2", "--gpu", "h100", "--set", "workload.layers=1"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("h100 is ")
    assert "times as fast as npu-edge" in lines[1]


@pytest.mark.parametrize(("size", "shown"), [("64", "64 B"), ("64 MiB", "64 MiB"), ("1000", "1000 B")])
def test_a_collective_s_bytes_are_shown_with_their_unit(size, shown, capsys):
    assert main(["collective", "ring", "all_reduce", size, "--chips", "4"]) == 0
    assert f"all_reduce of {shown} over 4 chips" in capsys.readouterr().out
