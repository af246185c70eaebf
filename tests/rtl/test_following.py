"""A bench says how far it is while it runs, and somebody outside hears of it."""

import os
import pty
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.rtl.bench import following
from siliconloom.rtl.bench.following import cycles_in, followed, progress_text
from siliconloom.rtl.bench.runner import Spent, simulator_path
from siliconloom.sim.chip.engine import duration
from siliconloom.verification.array import verify_array
from siliconloom.verification.npu import check_programs
from siliconloom.verification.programs import random_program
from siliconloom.verification.random_tiles import random_npu


@pytest.mark.slow(seconds=1)
def test_every_new_report_is_told_once(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "EVERY_S", 0.01)
    heard, path = [], tmp_path / "progress.txt"
    path.write_text("999\n")  # of an earlier run
    with followed(path, lambda cycles, seconds: heard.append((cycles, seconds))):
        time.sleep(0.05)
        assert heard == []
        for text in ("200\n", "200\n", "12", "1234\n"):  # one is read while it is written
            path.write_text(text)
            time.sleep(0.1)
    assert [cycles for cycles, _ in heard] == [200, 1234]
    assert 0 < heard[0][1] < heard[1][1]


def test_a_run_that_ends_before_the_first_look_is_told_of(tmp_path):
    heard, path = [], tmp_path / "progress.txt"
    with followed(path, lambda cycles, seconds: heard.append(cycles)):
        path.write_text("200\n")
    assert heard == [200]


def test_a_file_without_a_whole_number_says_nothing(tmp_path):
    path = tmp_path / "progress.txt"
    assert cycles_in(path) is None
    for text, cycles in (("", None), ("12", None), ("x\n", None), ("12\n", 12)):
        path.write_text(text)
        assert cycles_in(path) == cycles


@given(cycles=st.integers(0, 10**9), predicted=st.integers(0, 10**9), seconds=st.floats(0.01, 1e5))
def test_a_bar_is_as_full_as_the_run(cycles, predicted, seconds):
    text = progress_text("tile", cycles, predicted, seconds)
    assert f"{cycles:,}" in text
    assert ("[" in text) == (predicted > 0)
    if predicted:
        bar = text[text.index("[") + 1 : text.index("]")]
        assert len(bar) == following.BAR
        assert abs(bar.count("#") / len(bar) - min(cycles / predicted, 1)) <= 0.5 / len(bar) + 1e-9


def test_a_bar_says_cycles_of_how_many_and_the_pace():
    assert progress_text("tile", 1500, 6000, 0.5) == (
        "running tile: [######------------------] 25 %, 1,500 of 6,000 cycles, 3,000 a second"
    )
    assert "100 %, 6,100 of 6,000" in progress_text("tile", 6100, 6000, 1)  # registers that are read take cycles, too
    assert progress_text("ring", 1500, 0, 0.5) == "running ring: 1,500 cycles, 3,000 a second"


@pytest.mark.rtl
@pytest.mark.slow(seconds=32)
def test_a_bench_of_programs_reports_while_it_runs():
    if simulator_path("icarus") is None:
        pytest.skip("icarus is not installed")
    chip = random_npu(8)
    programs = [(f"random {n}", random_program(chip, n)) for n in range(6)]
    lines = []
    spent = Spent(tell=lines.append)
    parities = check_programs(chip, programs, simulator="icarus", spent=spent)
    assert all(parity.passed for parity in parities)
    assert spent.predicted == sum(duration(made.program, chip) for _, made in programs)
    assert len(lines) > 1
    cycles = [int(line.split("%, ")[1].split(" of ")[0].replace(",", "")) for line in lines]
    assert cycles == sorted(set(cycles))
    assert all(f" of {spent.predicted:,} cycles, " in line for line in lines)
    assert cycles[-1] > spent.predicted / 4


@pytest.mark.slow(seconds=1.5)
@pytest.mark.rtl
def test_a_bench_of_an_array_reports_while_it_runs():
    if simulator_path("icarus") is None:
        pytest.skip("icarus is not installed")
    chip = load_chip("systolic-ws-8", [("tile.array.rows", "2"), ("tile.array.cols", "2")])
    lines = []
    spent = Spent(tell=lines.append)
    verify_array(chip, chip.tile.array, seed=0, simulator="icarus", cases=24, spent=spent)
    assert spent.predicted > 0
    assert lines
    assert all(f" of {spent.predicted:,} cycles, " in line for line in lines)


@pytest.mark.slow(seconds=7)
@pytest.mark.rtl
def test_the_command_shows_the_bar_on_a_terminal_and_nothing_elsewhere(tmp_path):
    if simulator_path("icarus") is None:
        pytest.skip("icarus is not installed")
    small = ["--set", "tile.array.rows=2", "--set", "tile.array.cols=2", "--simulator", "icarus", "--cases", "24"]
    command = [sys.executable, "-m", "siliconloom", "verify", "systolic-ws-8", *small]
    plain = subprocess.run(command, capture_output=True, text=True)
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "a second" not in plain.stdout
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=slave, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(master)
    assert process.wait() == 0
    assert b" cycles, " in shown
    assert b" a second" in shown
