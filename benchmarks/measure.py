"""What every benchmark measures with: whole processes, their memory, the machine."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "siliconloom" / "benchmarks"
LOOM = [sys.executable, "-m", "siliconloom"]


def machine() -> dict[str, object]:
    """Where the figures come from."""
    return {"processor": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version()}


def measured(command: list[str]) -> tuple[float, bytes]:
    """Wall seconds and standard output of a whole process."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True)
    wall = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace")[-2000:])
    return wall, done.stdout


def cpu_seconds(command: list[str], folder: str | Path | None = None) -> tuple[float, bytes]:
    """Processors' seconds, user and system, of a whole process in a folder, and its standard output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, cwd=folder)
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
