"""How long the RTL takes: Verilog of the two NPUs in int8, the bench of `npu-edge-int8` under Verilator, its speed, and verifies.

Run ``python benchmarks/rtl.py [--write]``; takes about eight minutes on two cores. ``--write`` keeps the figures in
``benchmarks/results/rtl.json``.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from siliconloom import __version__
from siliconloom.arch import load_chip
from siliconloom.rtl.bench.runner import Spent
from siliconloom.verification.emission import complete_rtl
from siliconloom.verification.layers import LAYERS, layer_runs
from siliconloom.verification.npu import check_programs

LIMITS = {
    "npu-datacenter Verilog, processor s": ("at most", 40),  # 35 while others used both cores
    "npu-edge-int8 bench: build, s": ("at most", 90),
    "npu-edge-int8 bench: RTL cycles a second": ("at least", 5000),  # of which the simulator's start takes most
    "npu-edge-int8, second verify: all but its run, s": ("at most", 3),
    "gpt2 layer of 32 tokens: verify but its build, s": ("at most", 180),
    "gpt2 layer of 32 tokens: RTL cycles a second": ("at least", 45000),
    "npu-edge (bf16), gpt2 layer of 32 tokens: verify but its build, s": ("at most", 180),
}
LAYER = ("gpt2", "--set", "workload.layers=1", "--set", "workload.sequence=32")


def verified(*arguments: str, chip: str = "npu-edge-int8") -> tuple[float, dict[str, Any]]:
    """Seconds of ``loom verify`` in a process of its own, and its record."""
    command = [sys.executable, "-m", "siliconloom", "verify", chip, *arguments, "--json", "-"]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return time.perf_counter() - began, json.loads(done.stdout)


def processor_seconds() -> float:
    """Seconds of processors that this process and those that it ran have taken, Yosys among them."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> int:
    with TemporaryDirectory() as folder:  # so that nothing is compiled already
        os.environ["XDG_CACHE_HOME"] = folder
        return measured()


def measured() -> int:
    """Measure, print and perhaps keep all figures; returns the exit status."""
    found: dict[str, float] = {}
    for name in ("npu-edge-int8", "npu-datacenter"):
        began = processor_seconds()
        made = complete_rtl(load_chip(name, [("tile.array.operands", "[int8]")]))
        found[f"{name} Verilog, processor s"] = processor_seconds() - began
        found[f"{name} Verilog, lines"] = sum(made.files[f].count("\n") for f in made.sidecar["verilog"])
    chip = load_chip("npu-edge-int8")
    programs = [(run.name, run.made) for spec in LAYERS for run in layer_runs(chip, spec)]
    spent = Spent()
    parities = check_programs(chip, programs, spent=spent)
    cycles = sum(parity.rtl_cycles for parity in parities)
    found["npu-edge-int8 bench: build, s"] = spent.build
    found["npu-edge-int8 bench: cycles of ten layer programs"] = cycles
    found["npu-edge-int8 bench: RTL cycles a second"] = cycles / spent.run
    verified("--programs", "1")  # which compiles the bench
    seconds, record = verified("--programs", "1")
    found["npu-edge-int8, second verify: all but its run, s"] = seconds - record["time"]["run_s"]
    seconds, record = verified(*LAYER)
    found["gpt2 layer of 32 tokens: verify but its build, s"] = seconds - record["time"]["build_s"]
    found["gpt2 layer of 32 tokens: RTL cycles a second"] = record["totals"]["rtl_cycles"] / record["time"]["run_s"]
    seconds, record = verified(*LAYER, chip="npu-edge")
    found["npu-edge (bf16), gpt2 layer of 32 tokens: verify but its build, s"] = seconds - record["time"]["build_s"]
    found["npu-edge (bf16), gpt2 layer of 32 tokens: cycles a second"] = (
        record["totals"]["rtl_cycles"] / record["time"]["run_s"]
    )
    held = True
    for name, value in found.items():
        side, limit = LIMITS.get(name, ("", 0))
        holds = not side or (value <= limit if side == "at most" else value >= limit)
        held &= holds
        print(f"{name:66s} {value:12,.1f}  {f'{side} {limit:,}' if side else ''}{'' if holds else '  MISSED'}")
    if "--write" in sys.argv:
        target = Path(__file__).parent / "results" / "rtl.json"
        machine = {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load": [round(each, 1) for each in os.getloadavg()],
        }
        kept = {"version": __version__, "machine": machine, "figures": {k: round(v, 1) for k, v in found.items()}}
        target.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return 0 if held and all(parity.passed for parity in parities) else 1


if __name__ == "__main__":
    sys.exit(main())
