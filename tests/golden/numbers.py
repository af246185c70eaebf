"""What a user reads from a list of commands: the numbers that may change only on purpose.

``python -m tests.golden.numbers`` runs the commands and writes `numbers.yaml` beside this file; the commit that does so
says which numbers moved, and why. `test_golden.py` runs the same commands and compares.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from siliconloom.cli import main

NUMBERS = Path(__file__).with_name("numbers.yaml")
DECODE = "--set workload.phase=decode"
COMMANDS = (
    # chips: every tile kind, dataflow, memory hierarchy, phase and precision of the library
    "sim npu-edge-int8 gpt2",
    f"sim npu-edge-int8 gpt2 {DECODE} --set workload.context=1024",
    "sim npu-edge-int8 gpt2-block-gemms",
    "sim npu-edge-int8 llama3-8b --set workload.layers=2 --set workload.sequence=512",
    "sim npu-datacenter llama3-8b --set workload.sequence=2048",
    f"sim npu-datacenter llama3-8b {DECODE} --set workload.context=4096",
    f"sim npu-datacenter deepseek-v3 {DECODE} --set workload.layers=5 --set workload.batch=16",
    "sim npu-balanced llama3-8b --set workload.sequence=2048",
    "sim npu-datacenter mixtral-8x7b --set workload.layers=2 --set workload.sequence=1024",
    "sim gemmini-16 bert-base",
    "sim tpu-v4 llama2-7b --set workload.layers=4",
    f"sim npu-cxl mixtral-8x7b {DECODE} --set workload.batch=8",
    "sim sn40l llama2-7b --set workload.sequence=1024",
    f"sim csd-flash gpt3-13b {DECODE}",
    "sim systolic-ws-128 resnet50-conv",
    "sim systolic-is-32 gpt2-block-gemms",
    "sim systolic-os-32 gpt2-block-gemms",
    # memory that computes, alone and in systems
    f"sim pim-gpt gpt2-xl {DECODE}",
    f"sim neupims gpt3-13b {DECODE} --set workload.batch=256",
    f"sim neupims gpt3-7b {DECODE} --set workload.batch=64 --set policy.attention=npu",
    # GPUs
    "sim h100 llama3-8b",
    f"sim dgx-h100 llama3-70b {DECODE} --set workload.batch=16",
    "compare npu-datacenter llama3-8b --gpu h100,a100",
    # plans
    "plan dgx-a100x128 gpt-145b --set workload.phase=training",
    f"plan dgx-h100 llama3-70b {DECODE} --set workload.batch=64",
    f"plan sn40l-node llama2-7b {DECODE}",
    # networks
    "collective dgx-h100 all_reduce 64MiB",
    "collective torus-2d all_reduce 16MiB --chips 16",
    "collective fat-tree all_to_all 16MiB --chips 32",
)
KEPT = (
    "cycles",
    "seconds",
    "macs",
    "macs_executed",
    "utilization",
    "energy_j",
    "energy",
    "traffic_bytes",
    "units",
    "bound",
    "lower_bound_s",
    "step_s",
    "memory_bytes",
    "plan",
    "time_s",
    "algorithm",
    "achieved",
    "stage_layers",
    "machines",
)
"""Keys of results that are compared, with all below them."""
LEFT_OUT = {"operators", "wall_s", "map_s", "notes", "roofline"}
"""Keys below those that are not: long tables, or times of this machine."""


def printed(command: str) -> str:
    """What ``command`` prints in a terminal of a hundred columns."""
    with patch.dict(os.environ, COLUMNS="100"), contextlib.redirect_stdout(io.StringIO()) as out:
        status = main(shlex.split(command))
    if status:
        raise RuntimeError(f"loom {command}: exit status {status}")
    return out.getvalue()


@cache
def printed_and_written(command: str) -> tuple[str, dict[str, Any]]:
    """What one of `COMMANDS` prints, and its result: a document that shows it does not run it again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        text = printed(f"{command} --json {shlex.quote(str(path))}")
        return text, json.loads(path.read_text())


def run_command(command: str) -> dict[str, Any]:
    """The numbers of ``command`` that are kept."""
    _, result = printed_and_written(command)
    kept = {key: _compact(result[key]) for key in KEPT if key in result}
    if "operators" in result:  # a change that moves time from one operator to another is a change
        kept["operator_cycles"] = {o["name"]: o["cycles"] for o in result["operators"] if "cycles" in o}
    return kept


def _compact(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _compact(each) for key, each in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [_compact(each) for each in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


def differences(found: Any, kept: Any, path: str = "") -> list[str]:
    """Key paths at which two results differ: integers and texts exactly, floats by more than one in a million."""
    if isinstance(found, dict) and isinstance(kept, dict):
        keys = [*kept, *(key for key in found if key not in kept)]
        return [d for key in keys for d in differences(found.get(key), kept.get(key), f"{path}.{key}".lstrip("."))]
    if isinstance(found, list) and isinstance(kept, list) and len(found) == len(kept):
        return [d for i, (a, b) in enumerate(zip(found, kept, strict=True)) for d in differences(a, b, f"{path}[{i}]")]
    if isinstance(found, float) and isinstance(kept, float | int):
        same = abs(found - kept) <= 1e-6 * abs(kept)
    else:
        same = found == kept and isinstance(found, bool) == isinstance(kept, bool)
    return [] if same else [f"{path}: {found!r}, kept is {kept!r}"]


def write() -> None:
    """Run every command and keep what it says; prints what moved."""
    before = yaml.safe_load(NUMBERS.read_text()) if NUMBERS.exists() else {}
    kept = {command: run_command(command) for command in COMMANDS}
    for command, numbers in kept.items():
        for difference in differences(numbers, before.get(command, {})):
            print(f"loom {command}: {difference}")
    head = "# Numbers that change only on purpose. Written by: python -m tests.golden.numbers\n"
    NUMBERS.write_text(head + yaml.safe_dump(kept, sort_keys=False, width=120, default_flow_style=None))


if __name__ == "__main__":
    write()
