"""What a command may take: what was asked for, or half of what is free; the machine's or the container's."""

import signal
import subprocess
import sys

import pytest

from siliconloom.arch import LoomError, budget
from siliconloom.cli import main
from siliconloom.commands.explaining import explain

COMMAND = 40 << 20
"""About what a command's process takes before it does anything."""


@pytest.fixture(autouse=True)
def _no_limit_stays(monkeypatch):
    """Every test begins as small as a command does: what tests before it left in the process is not the command's."""
    real, before = budget.own_memory, budget.own_memory()
    monkeypatch.setattr(budget, "own_memory", lambda: max(real() - before, 0) + COMMAND)
    yield
    budget.set_memory(None)


def test_free_is_the_smaller_of_machine_and_container(tmp_path, monkeypatch):
    info, most, used = tmp_path / "meminfo", tmp_path / "max", tmp_path / "current"
    info.write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    monkeypatch.setattr(budget, "MEMINFO", info)
    monkeypatch.setattr(budget, "CGROUPS", ((most, used),))
    assert budget.free_memory() == 8000 * 1024
    most.write_text("max\n")
    used.write_text("5\n")
    assert budget.free_memory() == 8000 * 1024
    most.write_text("1000000\n")
    used.write_text("400000\n")
    assert budget.free_memory() == 600_000
    assert budget.memory_limit() == 300_000
    budget.set_memory("2 GiB")
    assert budget.memory_limit() == 2 << 30


def test_a_table_over_the_limit_is_refused_with_key_estimate_limit_and_what_to_do():
    budget.set_memory("1 GiB")
    budget.require_memory("chips", 100 << 20, "fewer need less")
    with pytest.raises(LoomError, match=r"^chips: needs about .*GiB of memory, more than 1 GiB \(--memory\); fewer"):
        budget.require_memory("chips", 2 << 30, "fewer need less")


@pytest.mark.parametrize("text", ["", "lots", "-1", "0", "3 apples", "1e400"])
def test_a_size_that_is_none_is_one_line(text, capsys):
    assert main(["list", "--memory", text]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


REFUSED = [
    (["collective", "ring", "all_to_all", "1 GiB", "--chips", "16384", "--memory", "4GiB"], "16,384 chips: needs"),
    (["--memory", "1GiB", "collective", "fully-connected", "all_reduce", "1 MiB", "--chips", "65536"], "65,536 chips"),
    (["collective", "switch", "all_reduce", "1 MiB", "--chips", "1048576", "--memory=500MB"], "--chips 1048576"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[r[1] for r in REFUSED])
def test_what_does_not_fit_is_refused_before_it_is_made(arguments, words, capsys):
    assert main(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert words in lines[0]
    assert "--memory" in lines[0]


@pytest.fixture
def many(tmp_path):
    """100,000 products for a GPU."""
    path = tmp_path / "ops.csv"
    path.write_text("op,m,n,k\n" + "gemm,128,256,512\n" * 100_000)
    return str(path)


@pytest.mark.slow(seconds=1)
def test_a_list_of_operations_is_refused_before_it_is_read_and_before_it_is_predicted(many, capsys, monkeypatch):
    monkeypatch.setattr(budget, "own_memory", lambda: 0)
    for size, words in (("40 MB", "400,004 cells: needs about 68"), ("75 MB", "100,000 operations: needs about 76")):
        assert main(["gpu", "h100", many, "--memory", size]) == 2
        assert words in (line := capsys.readouterr().err)
        assert "(--memory)" in line
    assert main(["gpu", "h100", many, "--memory", "100 MB"]) == 0


@pytest.mark.slow(seconds=1)
def test_a_trace_is_refused_before_it_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(budget, "own_memory", lambda: 0)
    file = tmp_path / "t.json"
    line = ["sim", "npu-edge-int8", "gpt2", "--set", "workload.layers=2", "--exact", "--trace", str(file)]
    assert main([*line, "--memory", "20 MB"]) == 2
    assert "loom: --trace: " in (error := capsys.readouterr().err)
    assert "--window FROM:TO has fewer" in error
    assert not file.exists()


def test_passes_of_a_pipeline_are_refused_before_they_are_written_down(capsys):
    line = "plan dgx-h100 gpt2 --set workload.phase=training --set workload.batch=1048576 --set plan.microbatch=1"
    assert main([*line.split(), "--set", "plan.pipeline=8", "--memory", "1GiB"]) == 2
    assert "loom: plan.microbatch: 1,048,576 microbatches on 8 stages: needs about" in capsys.readouterr().err


PEAK = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "siliconloom", *sys.argv[1:]], capture_output=True, text=True)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, done.stderr.splitlines()[-1:])
"""


def peak(*arguments):
    """Status of a command, the most bytes that it or a process of its held, and the last line of its errors."""
    done = subprocess.run([sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True, check=True)
    status, most, said = done.stdout.split(" ", 2)
    return int(status), int(most), said


BURST = 10_000_000
"""Bytes that Python may take between two looks."""


@pytest.mark.slow(seconds=1)
@pytest.mark.skipif(not budget.STATUS.exists(), reason="what a process holds is not told here")
@pytest.mark.parametrize(
    ("arguments", "small", "large"),
    [
        (["collective", "mesh-2d", "all_reduce", "64MiB", "--chips", "1024"], "50MB", "400MB"),
        (["plan", "dgx-h100", "gpt2"], "50MB", "400MB"),
        (["sim", "npu-edge-int8", "gpt2"], "50MB", "300MB"),
        (["rtl", "systolic-ws-8", "-o", "out"], "90MB", "400MB"),
    ],
    ids=["collective", "plan", "sim", "rtl"],
)
def test_a_command_stays_under_its_limit_or_is_refused(arguments, small, large, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for limit in (small, large):
        status, most, said = peak(*arguments, "--memory", limit)
        assert most < int(limit[:-2]) * 10**6 + BURST, said
        assert status == (2 if limit == small else 0), said
        assert said.startswith("['loom: --memory: ") == (limit == small), said


def test_a_limit_that_is_noticed_while_a_class_is_made_is_told(capsys):
    """Python 3.11 makes a RuntimeError of what an attribute raises then, which was an internal error of the command."""

    class Noticed:
        def __set_name__(self, owner, name):
            raise budget.TooLarge("--memory: 50 MB are too little")

    with pytest.raises((RuntimeError, budget.TooLarge)) as raised:
        type("Graph", (), {"digraph": Noticed()})
    assert explain(raised.value) == 2
    assert capsys.readouterr().err == "loom: --memory: 50 MB are too little\n"
    assert explain(RuntimeError("something else")) == 70


def test_a_library_over_the_limit_is_refused():
    budget.require_library("Numba")
    budget.set_memory(f"{budget.own_memory() + (20 << 20)} B")
    with pytest.raises(budget.TooLarge, match="with Numba the program takes about"):
        budget.require_library("Numba")


def test_what_nobody_announced_ends_the_command(monkeypatch):
    budget.set_memory("1 TiB")
    assert signal.getitimer(signal.ITIMER_REAL)[1] == pytest.approx(budget.WATCH_S, rel=0.1)
    monkeypatch.setattr(budget, "own_memory", lambda: 2 << 40)
    with pytest.raises(budget.TooLarge, match=r"takes more than 1 TiB; it was ended at 2 TiB"):
        signal.pause()
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 1  # time to clean up
    budget.end_watch()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
