"""Decode steps on systems whose memory computes: seconds of the simulation, each in a process of its own and within one.

``python -m benchmarks.systems`` prints the table and writes ``benchmarks/results/systems.json``. The published NeuPIMs
simulator is a C++ program that steps every cycle and does not install from PyPI; nothing of its is timed here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from benchmarks.measure import HERE, machine
from siliconloom.evaluate.system import load_machine, system_step
from siliconloom.workloads import load_workload

CASES = (
    ("neupims", "gpt3-13b", 256, 2048),
    ("neupims", "gpt3-13b", 256, 300),
    ("neupims", "gpt3-7b", 64, 300),
    ("neupims", "gpt3-175b", 256, 300),
)


def main() -> None:
    """Measure, print, write."""
    rows = []
    print(
        f"{'system':8s} {'model':10s} {'batch':>5s} {'context':>7s} {'process s':>9s} {'within s':>8s} {'commands':>12s}"
    )
    for name, model, batch, context in CASES:
        sets = [("phase", "decode"), ("batch", str(batch)), ("context", str(context))]
        command = [sys.executable, "-m", "siliconloom", "sim", name, model, "--json", "-"]
        for key, value in sets:
            command += ["--set", f"workload.{key}={value}"]
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        process = time.perf_counter() - began
        began = time.perf_counter()
        system, chip = load_machine(name, [])
        result = system_step(system, load_workload(model, sets), chip=chip)
        within = time.perf_counter() - began
        commands = sum(result["units"].get("pim", {}).get("commands", {}).values())
        rows.append(
            {
                "system": name,
                "model": model,
                "batch": batch,
                "context": context,
                "process_s": process,
                "within_s": within,
                "commands": commands,
                "cycles": result["cycles"],
                "bound": result["bound"],
            }
        )
        print(f"{name:8s} {model:10s} {batch:5d} {context:7d} {process:9.2f} {within:8.2f} {commands:12,}")
    path = HERE / "results" / "systems.json"
    path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    print(f"written: {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
