"""The same benchmarks on this version and on an earlier commit, turn by turn on one machine: is anything slower?

``python -m benchmarks.beside COMMIT [--rounds N] [--write]`` checks the commit out beside this one, runs the parts below
in both, alternately, and compares the best time of each row. ``--write`` keeps the table in
``benchmarks/results/beside.json``, where the rows of other parts stay, if they are of the same commit. An hour for three
rounds; ``--parts engine`` measures one part.

Seconds are those of processors, user and system together, of a process and of the children that it has waited for, so
that other work on the machine is in neither side. In what is measured, in both versions and in the processes that they
start, ``time.perf_counter`` is such a clock (`CLOCK`); time spent waiting counts as nothing, and work on two cores as
the sum of both. Caches of compiled code are kept as an installation keeps them, whatever the shell says of bytecode.

Only what both versions measure is compared, row by row, and rows whose best time is below `SHORTEST` in both are left
out: a millisecond more or less is the machine's. A simulation that runs every event is compared by the time of a
million events, and not by that of its process: a program of another mapping has more or fewer of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import HERE, machine

PARTS = {
    "engine": "from benchmarks import engine as b; r = {'models': b.models(), 'library': b.library(), 'sweep': b.sweep()}",
    "path": "from benchmarks import path as b; r = {'models': b.models()}",
    "dram": "from benchmarks import dram as b; b.main(); r = kept('dram')",
    "systems": "from benchmarks import systems as b; b.main(); r = kept('systems')",
    "network": "from benchmarks import network as b; b.main(); r = kept('network')",
}
"""What each part runs in a checkout; ``r`` is its record."""
KEPT = (
    "import json, pathlib, sys; kept = lambda n: json.loads(pathlib.Path(f'benchmarks/results/{n}.json').read_text())"
)
CLOCK = """
import resource, time
def _seconds(own=time.process_time, used=resource.getrusage, whom=resource.RUSAGE_CHILDREN):
    children = used(whom)
    return own() + children.ru_utime + children.ru_stime
time.perf_counter = _seconds
"""
"""What every Python process of a part begins with (as ``sitecustomize``): the clock of processors' seconds."""
TIMES = ("s", "exact_s", "wall_s", "map_s", "process_s", "within_s")
"""Keys of a row that are seconds of ours."""
NAMES = (
    "model",
    "exact",
    "workload",
    "phase",
    "batch",
    "chip",
    "memory",
    "trace",
    "system",
    "context",
    "topology",
    "chips",
)
"""Keys of a row that say what it is of."""
SHORTEST = 0.01
SLOWER = 1.05

Times = dict[str, float]


def times(record: Any, at: str = "") -> Iterator[tuple[str, float]]:
    """Every time in a record, by the names of its row."""
    if isinstance(record, list):
        for row in record:
            yield from times(row, " ".join([at, *(str(row[name]) for name in NAMES if name in row)]))
    elif isinstance(record, dict):
        for key, value in record.items():
            if isinstance(value, dict | list):
                yield from times(value, f"{at} {key}")
            elif key == "wall_s" and record.get("exact") and "events" in record:
                yield f"{at} {key} of a million events".strip(), float(value) / record["events"] * 1e6
            elif key in TIMES and not (key == "process_s" and record.get("exact")):
                yield f"{at} {key}".strip(), float(value)


def run(checkout: Path, part: str, clock: Path) -> Times:
    """The times of a part in a checkout, in a process of its own whose package is that checkout's."""
    code = f"{KEPT}\n{PARTS[part]}\nprint('\\n' + json.dumps(r))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (clock, checkout / "src", checkout)))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{part} in {checkout}: {done.stderr[-2000:]}")
    return {f"{part}: {name}": value for name, value in times(json.loads(done.stdout.splitlines()[-1]))}


def best(rounds: int, checkouts: dict[str, Path], parts: list[str], clock: Path) -> dict[str, Times]:
    """The best time of every row in each checkout; rounds alternate between them."""
    found: dict[str, Times] = {name: {} for name in checkouts}
    for part in parts:
        for turn in range(rounds):
            for name, checkout in checkouts.items():
                print(f"{part}, round {turn + 1} of {rounds}: {name}", file=sys.stderr)
                for row, value in run(checkout, part, clock).items():
                    found[name][row] = min(value, found[name].get(row, value))
    return found


def write(commit: str, parts: dict[str, str], rows: dict[str, dict[str, float]]) -> None:
    """Keep the rows of some parts, each with the commit that it measured, beside what is kept of the others."""
    path = HERE / "results" / "beside.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    if kept.get("commit") == commit:
        rows |= {row: each for row, each in kept["rows"].items() if row.partition(":")[0] not in parts}
        parts = {**kept["parts"], **parts}
    record = {"machine": machine(), "commit": commit, "parts": parts, "rows": dict(sorted(rows.items()))}
    path.write_text(json.dumps(record, indent=1) + "\n")


def main() -> int:
    """Measure, print, write; 1 where a row is slower than before by more than five per cent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the earlier version, as git names it")
    parser.add_argument("--rounds", type=int, default=3, help="how often each part runs in each version (3)")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="some of the parts")
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results/beside.json")
    asked = parser.parse_args()
    git = ["git", "-C", str(HERE.parent)]
    name = subprocess.run([*git, "rev-parse", "--short", asked.commit], capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        before, now, clock = Path(folder) / "before", Path(folder) / "now", Path(folder) / "clock"
        clock.mkdir()
        (clock / "sitecustomize.py").write_text(CLOCK)
        try:
            for place, commit in ((before, asked.commit), (now, "HEAD")):
                subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(place), commit], check=True)
            found = best(asked.rounds, {"before": before, "now": now}, asked.parts, clock)
        finally:
            for place in (before, now):
                subprocess.run([*git, "worktree", "remove", "--force", str(place)], capture_output=True)
    rows = {
        row: {"before_s": old, "now_s": found["now"][row], "ratio": found["now"][row] / old}
        for row, old in found["before"].items()
        if row in found["now"] and max(old, found["now"][row]) >= SHORTEST
    }
    for row, each in sorted(rows.items(), key=lambda item: -item[1]["ratio"]):
        print(f"{row:75s} {each['before_s']:9.3f} {each['now_s']:9.3f} {each['ratio']:6.2f}")
    slower = [row for row, each in rows.items() if each["ratio"] > SLOWER]
    print(f"{len(rows)} rows, {len(slower)} slower than at {name.stdout.strip()} by more than {SLOWER - 1:.0%}")
    if asked.write:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        write(
            name.stdout.strip(), {part: f"{head.stdout.strip()}, rounds: {asked.rounds}" for part in asked.parts}, rows
        )
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
