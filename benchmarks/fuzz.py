"""``python -m benchmarks.fuzz [--cases N] [--seed N]``: no input makes a command fail in any way but the agreed ones.

Each case of `benchmarks.hostile` runs in a process of its kind with a limit on CPU time and memory. It fails when its
exit status is not 0, 1 or 2, when it prints an internal error, a traceback, more than one line of error or a long
one, when a control character reaches the terminal, or when a number is impossible.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import math
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hostile import Case, case

CPU_S = 20.0
REAL_S = 120.0
MEMORY = 2 * 2**30
BATCH = 100
"""Cases of one process: what one case leaves behind is there for the next, as in a notebook."""
LONGEST = 500
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
SLACK = 1e-9
PREPARE = (
    "compare npu-edge-int8 gpt2 --gpu h100,a100 --set workload.layers=1 --set workload.precision=int8",
    "collective dgx-h100 all_reduce 1MiB",
    "rtl npu-edge-int8 -o /dev/null",
    "dram hbm2 /dev/null",
    "reproduce flat",
)
"""Commands that have everything read which many commands read, before the first process is made."""


@dataclass
class Outcome:
    """What a case did: exit status (negative: the signal that ended it), what it printed, CPU seconds."""

    seed: int
    status: int
    out: str
    err: str
    seconds: float
    results: str = ""

    def failures(self) -> list[str]:
        """What is wrong with it, in words that are the same for the same kind of failure."""
        found = []
        if self.status < 0:
            name = signal.Signals(-self.status).name
            limit = {"SIGPROF": f"more than {CPU_S:g} s of CPU", "SIGALRM": f"more than {REAL_S:g} s"}
            return [limit.get(name, f"ended by {name}")]
        if self.status not in (0, 1, 2):
            found.append(f"status {self.status}")
        lines = [line for line in self.err.splitlines() if not line.startswith("compiling ")]
        if "internal error" in self.err or "Traceback" in self.err:
            found.append("internal error: " + (lines[-1] if lines else "")[:150])
        if "not enough memory" in self.err:
            found.append("memory")
        if self.status and len(lines) != 1 and not self.err.startswith("Usage:"):
            found.append(f"{len(lines)} lines of error")
        if max((len(line) for line in lines), default=0) > LONGEST:
            found.append("a long line of error")
        if CONTROL.search(self.out) or CONTROL.search(self.err):
            found.append("a control character reaches the terminal")
        for text in {self.results, self.out if self.out.startswith("{") else ""} - {""}:
            found += _impossible(text)
        return found


def _impossible(text: str) -> list[str]:
    try:
        data = json.loads(text, parse_constant=lambda name: math.nan)
    except ValueError:
        return ["the result is not JSON"]
    return sorted(set(_numbers(data, "")))


def _numbers(data: Any, where: str) -> Iterator[str]:
    if isinstance(data, float) and not math.isfinite(data):
        yield f"number: {where} is not finite"
    if isinstance(data, list):
        for each in data:
            yield from _numbers(each, where)
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _numbers(value, f"{where}.{key}" if not key.isdigit() else where)

        def above(low: str, high: str) -> bool:
            a, b = data.get(low), data.get(high)
            return isinstance(a, int | float) and isinstance(b, int | float) and a > b * (1 + SLACK)

        for low, high in (
            ("bound_cycles", "cycles"),
            ("lower_bound_cycles", "cycles"),
            ("lower_bound_s", "time_s"),
            ("lower_bound_s", "seconds"),
            ("lower_bound_s", "step_s"),
        ):
            if above(low, high):
                yield f"number: {where}: {low} above {high}"
        for key in ("utilization", "achieved"):
            if isinstance(data.get(key), int | float) and not -SLACK <= data[key] <= 1 + SLACK:
                yield f"number: {where}.{key} outside 0 to 1"
        for key in ("cycles", "seconds", "energy_j", "time_s", "bytes"):
            if isinstance(data.get(key), int | float) and data[key] < 0:
                yield f"number: {where}.{key} below 0"


def run_cases(seeds: list[int], progress: bool = False) -> Iterator[Outcome]:
    """Outcomes of cases, in order, from processes forked from this one, which holds everything imported and compiled."""
    from siliconloom.cli import main
    from siliconloom.commands.warming import warm_up

    warm_up()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for line in PREPARE:
            main([*line.split(), "--json", os.devnull])
    gc.collect()
    gc.freeze()
    at = 0
    while at < len(seeds):
        batch = seeds[at : at + BATCH]
        done = 0
        for outcome in _batch(batch):
            yield outcome
            done += 1
        at += done
        if progress:
            print(f"\r{at} of {len(seeds)}", end="", file=sys.stderr, flush=True)


def _batch(seeds: list[int]) -> Iterator[Outcome]:
    """Outcomes until the process ends; the last one tells why if it was ended."""
    read, write = os.pipe()
    folder = Path(tempfile.mkdtemp(prefix="loom-fuzz-"))
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            with os.fdopen(write, "w") as pipe:
                _serve(seeds, folder, pipe)
        finally:
            os._exit(0)
    os.close(write)
    count = 0
    with os.fdopen(read) as pipe:
        for line in pipe:
            count += 1
            yield Outcome(**json.loads(line))
    _, status = os.waitpid(child, 0)
    shutil.rmtree(folder, ignore_errors=True)
    if count < len(seeds):
        signalled = os.WTERMSIG(status) if os.WIFSIGNALED(status) else signal.SIGKILL
        yield Outcome(seeds[count], -signalled, "", "", CPU_S)


def _serve(seeds: list[int], folder: Path, pipe: Any) -> None:
    """Run cases; each one may take `CPU_S`, and the process as much memory more than it has."""
    used = int(re.findall(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    for seed in seeds:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        signal.setitimer(signal.ITIMER_REAL, REAL_S)
        outcome = run_case(seed, case(seed), folder / str(seed))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(vars(outcome)), file=pipe, flush=True)


def run_case(seed: int, made: Case, folder: Path) -> Outcome:
    """Run a command in this process, in a new folder, with streams like those of a process of its own."""
    from siliconloom.cli import main

    folder.mkdir()
    for name, content in made.files.items():
        (folder / name).write_bytes(content)
    os.chdir(folder)
    began = time.process_time()
    with (folder / ".out").open("w+b") as out, (folder / ".err").open("w+b") as err:
        kept = sys.stdin, sys.stdout, sys.stderr
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdin = io.TextIOWrapper(io.BytesIO(made.input), "utf-8")
        sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
        try:
            status = main(list(made.arguments))
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 70
        except BaseException as error:
            status = 70
            print(f"Traceback: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            sys.stdin, sys.stdout, sys.stderr = kept
    seconds = time.process_time() - began
    texts = [(folder / name).read_bytes().decode("utf-8", "replace") for name in (".out", ".err")]
    results = folder / "out.json"
    found = results.read_text() if results.is_file() and "out.json" not in made.files else ""
    os.chdir(folder.parent)
    shutil.rmtree(folder, ignore_errors=True)
    return Outcome(seed, status, texts[0][:200_000], texts[1][:20_000], seconds, found)


def main() -> int:
    """Run cases and print a tally; status 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others count on from it")
    parser.add_argument("--show", action="store_true", help="print the command and the output of every case")
    options = parser.parse_args()
    seeds = [options.seed * 1_000_000 + number for number in range(options.cases)]
    statuses, kinds, slowest, failed = Counter[int](), Counter[str](), (0.0, 0), 0
    for outcome in run_cases(seeds, progress=sys.stderr.isatty()):
        statuses[outcome.status] += 1
        slowest = max(slowest, (outcome.seconds, outcome.seed))
        wrong = outcome.failures()
        failed += bool(wrong)
        if options.show:
            print(outcome.seed, outcome.status, case(outcome.seed).arguments, outcome.err[:300])
        for each in wrong:
            kinds[each] += 1
            if kinds[each] <= 3:
                print(f"FAILED {outcome.seed} {each}: {str(case(outcome.seed).arguments)[:400]}")
    print(f"{len(seeds)} cases, {failed} failed; by exit status {dict(sorted(statuses.items()))}")
    print(f"slowest {slowest[0]:.1f} s of CPU, seed {slowest[1]}")
    for each, count in kinds.most_common():
        print(f"  {count:5} {each}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
