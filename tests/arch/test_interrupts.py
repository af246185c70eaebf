"""Ctrl-C while a kernel is compiled: the command ends, at whatever moment it comes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback

import pytest

from siliconloom.arch import load_chip
from siliconloom.arch.interrupts import CompilationInterrupted, compiling
from siliconloom.cli import INTERRUPTED
from siliconloom.mapper.chip import exchange, mapping, sooner
from siliconloom.mapper.chip.pool import Pool
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.workloads import load_workload


@pytest.fixture(autouse=True)
def heard():
    """A shell that starts the tests in the background has them ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0)


def is_running(process):
    """Whether there is such a process that has not ended; one that nobody waits for stays as a name."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_interrupt_within_is_told_from_others():
    with pytest.raises(CompilationInterrupted), compiling():
        interrupt()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt) as raised:
        interrupt()
    assert raised.type is KeyboardInterrupt


def test_an_interrupt_is_heard_where_nothing_can_be_raised():
    reached = []

    def _raw_object_cache_notify():
        interrupt()
        reached.append("the end of what LLVM calls")

    def compiled():
        _raw_object_cache_notify()
        reached.append("the end of what is compiled")

    with pytest.raises(CompilationInterrupted), compiling():
        compiled()
    assert len(reached) == 2


def test_an_interrupt_that_was_dropped_is_raised_in_the_end():
    with pytest.raises(CompilationInterrupted), compiling(), contextlib.suppress(KeyboardInterrupt):
        interrupt()


def test_who_listens_to_interrupts_is_left_alone():
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with compiling(), compiling():
            interrupt()
        assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("within", [Pool.simulate, exchange._compare, sooner._Search.run])
def test_no_search_ends_with_what_it_has_when_a_compilation_is_interrupted(within):
    """Ctrl-C while the simulator was compiled, for ten seconds of the first command, did nothing at all."""
    chip, graph = load_chip("npu-edge-int8"), load_workload("gpt2", [("layers", "1"), ("sequence", "64")])
    clock = Stopwatch(chip)

    def cycles(program):
        if any(frame.f_code is within.__code__ for frame, _ in traceback.walk_stack(sys._getframe())):
            raise CompilationInterrupted
        return clock(program)

    with pytest.raises(CompilationInterrupted):
        mapping.map_workload(chip, graph, cycles, search=False)


@pytest.mark.slow(seconds=16)
@pytest.mark.parametrize("after_s", [2.0, 5.0])
def test_an_interrupted_warm_up_ends(tmp_path, after_s):
    """It went on to its end, tens of seconds later, with status 0."""
    process = subprocess.Popen(
        [sys.executable, "-m", "siliconloom", "warmup"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    told = [process.stderr.readline()]
    time.sleep(after_s)  # within the compilation of what is told first, ten times as long
    process.send_signal(signal.SIGINT)
    told += process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == INTERRUPTED
    assert told[0].startswith("compiling ")
    assert told[-1] == "loom: interrupted; nothing was left half written"


@pytest.mark.slow(seconds=10)
def test_the_process_beside_ends_with_the_one_that_started_it(tmp_path):
    code = (
        "import os; from siliconloom.arch import processes; from siliconloom.commands import warming; "
        "processes.cores = lambda: 2; processes.start_beside = lambda *a, made=processes.start_beside, **k: "
        "(p := made(*a, **k), print(p.pid, flush=True))[0]; warming.warm_up()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    beside = int(process.stdout.readline())
    time.sleep(3)
    os.kill(beside, 0)
    process.kill()
    process.communicate()
    until = time.monotonic() + 30
    while is_running(beside) and time.monotonic() < until:
        time.sleep(0.1)
    assert not is_running(beside)
