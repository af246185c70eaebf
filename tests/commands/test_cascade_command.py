"""``loom cascade``: tables, JSON, and what it refuses."""

import json

import pytest

from siliconloom.cli import main
from siliconloom.workloads.cascades.names import cascade_names


def result(capsys, *words):
    assert main(["cascade", *words, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def test_passes_footprint_and_traffic_are_told(capsys):
    found = result(capsys, "fusemax", "--set", "M=65536", "--set", "P=65536", "--buffer", "16MiB")
    assert found["schema"] == "siliconloom.cascade/1"
    assert found["passes"]["M1"] == 1
    assert found["footprint"]["block"] == {"P": 32768}
    held = {t["tensor"]: t["expression"] for t in found["footprint"]["tensors"] if t["kind"] == "held"}
    assert held == {"Q": "E <P>", "RM": "<P>", "RD": "<P>", "RNV": "F <P>"}
    assert found["traffic"]["fused"] == 6 * 2 * 64 * 65536 * 768
    assert found["traffic"]["compulsory"] == 4 * 2 * 64 * 65536 * 768
    assert found["traffic"]["unfused"] > 1000 * found["traffic"]["fused"]


def test_three_passes_spill_what_one_pass_does_not(capsys):
    words = ["--set", "M=65536", "--set", "P=65536", "--set", "P0=256", "--buffer", "16MiB"]
    assert result(capsys, "attention-3-pass", *words)["traffic"]["spilled"] == ["QK", "SN"]
    assert result(capsys, "attention-2-pass", *words)["traffic"]["spilled"] == ["QK"]
    assert result(capsys, "fusemax", *words)["traffic"]["spilled"] == []


@pytest.mark.parametrize("name", cascade_names())
def test_every_cascade_of_the_library_prints(name, capsys):
    assert main(["cascade", name]) == 0
    out = capsys.readouterr().out
    assert "Least traffic of all instances with any buffer" in out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100


def test_a_schedule_says_which_products_run_together(capsys):
    words = ["self-attention", "--buffer", "1280KiB", "--cores", "2", "--objective", "traffic"]
    found = result(capsys, *words)["schedule"]
    assert [(g["tasks"], g["mode"]) for g in found["groups"]] == [
        (["Q"], "sequential"),
        (["K", "QK"], "pipelined"),
        (["V"], "sequential"),
        (["AV"], "sequential"),
    ]
    assert found["moved_bytes"] < found["sequential_moved_bytes"]
    assert main(["cascade", *words]) == 0
    assert "pipelined along E" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["fuzemax"], "fuzemax: no such file, and no cascade of the library; did you mean 'fusemax'?"),
        (["fusemax", "--buffer", "16"], "--buffer: has no unit"),
        (["fusemax", "--buffer", "-1MiB"], "--buffer: must be"),
        (["fusemax", "--stream", "MM"], "fusemax: no Einsum walks along a rank MM; "),
        (["fusemax", "--staged", "QQ"], "fusemax makes no tensor QQ that it reads"),
        (["fusemax", "--set", "K=4"], "fusemax has no rank K; ranks: "),
        (["mlp", "--cores", "2", "--objective", "energy"], "time or traffic, not energy"),
        (["mlp", "--cores", "2", "--buffer", "1B"], "no tile finds room in a buffer of 0 elements"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words, told, capsys):
    assert main(["cascade", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_what_no_pass_fuses_is_told_and_no_error(capsys):
    found = result(capsys, "mlp", "--buffer", "3KiB")
    assert found["traffic"]["fused"] is None
    assert "F1 is reduced and does not walk along C" in found["traffic"]["not_fused"]
    found = result(capsys, "fusemax", "--buffer", "1KiB")
    assert found["footprint"] is None
    assert "fusemax: one block takes 132096 bytes and finds no room in 1024" in found["traffic"]["not_fused"]
