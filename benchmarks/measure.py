"""What every benchmark measures with: whole processes, their memory, the machine."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from siliconloom.arch import memo
from siliconloom.evaluate import timed
from siliconloom.mapper.chip import drafts

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "siliconloom" / "benchmarks"
Result = TypeVar("Result")
LOOM = [sys.executable, "-m", "siliconloom"]


def machine() -> dict[str, object]:
    """Where the figures come from."""
    return {"processor": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version()}


@contextmanager
def nothing_kept() -> Iterator[dict[str, str]]:
    """Surroundings of a process that no earlier one has left an answer to."""
    with tempfile.TemporaryDirectory() as folder:
        yield os.environ | {"XDG_CACHE_HOME": folder}


def forget() -> None:
    """Keep nothing in this process of what was mapped and run."""
    memo.Shared.memo = memo.Memo(None)
    timed.forget()
    drafts.forget()


def best_of(times: int, work: Callable[[], Result]) -> tuple[float, Result]:
    """Least wall seconds of several calls, none of which knows what another one found, and the last one's result."""
    best, results = float("inf"), list[Result]()
    for _ in range(times):
        forget()
        began = time.perf_counter()
        results = [work()]
        best = min(best, time.perf_counter() - began)
    return best, results[0]


def measured(command: list[str], *, again: bool = False) -> tuple[float, bytes]:
    """Wall seconds and standard output of a whole process, which remembers other ones' answers if it is run ``again``."""
    with nothing_kept() as surroundings:
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, env=None if again else surroundings)
        wall = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace")[-2000:])
    return wall, done.stdout


def cpu_seconds(command: list[str], folder: str | Path | None = None) -> tuple[float, bytes]:
    """Processors' seconds, user and system, of a whole process in a folder, and its standard output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with nothing_kept() as surroundings:
        done = subprocess.run(command, capture_output=True, cwd=folder, env=surroundings)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace")[-2000:])
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def peak_mib(command: list[str]) -> float:
    """Largest resident set of a process, in MiB, asked of a wrapper so that earlier children do not count."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, "
        "stderr=subprocess.DEVNULL); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    )
    return float(
        subprocess.run([sys.executable, "-c", code, *command], capture_output=True, check=True, text=True).stdout
    )


def cold_compilation_s() -> float:
    """Seconds of the first run on a machine, which compiles the kernel."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(CACHE / f"cold-{time.time_ns()}")}
    began = time.perf_counter()
    subprocess.run([*LOOM, "warmup"], check=True, env=environment, capture_output=True)
    return time.perf_counter() - began
