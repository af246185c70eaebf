"""A small machine, a small workload, and sweeps of them whose points take milliseconds."""

import copy

import yaml

from siliconloom.arch.sweep import Sweep

CHIP = """\
kind: chip
name: small
clock: 1 GHz
tile:
  kind: npu
  array: {rows: 8, cols: 8, dataflow: weight_stationary}
  scratchpad: {capacity: 64 KiB}
  accumulator: {capacity: 16 KiB}
  vector: {lanes: 8}
memory:
  dram: {kind: ddr4, capacity: 1 GiB, bandwidth: 10 GB/s, latency: 50 ns}
"""
PRODUCTS = "kind: gemms\nprecision: int8\ngemms: [{name: a, m: 16, n: 16, k: 16}]\n"
SWEEP = {
    "kind": "sweep",
    "machine": "chip.yaml",
    "workload": "products.yaml",
    "keys": {
        "memory.dram.bandwidth": ["4 GB/s", "8 GB/s", "16 GB/s"],
        "tile.vector.lanes": [8, 16],
        "workload.gemms.0.m": [16, 48],
    },
    "objectives": ["time", "energy"],
}
SERVED = {
    **{"machine": "h100", "workload": "gpt2", "trace": "64x16", "objectives": ["goodput", "ttft_p99"]},
    **{"set": {"serve.requests": 12}, "keys": {"serve.max_sequences": [2, 8], "workload.layers": [1, 12]}},
}
"""What a sweep changes to be one of services."""


def sweep(**changed):
    return Sweep.model_validate({**copy.deepcopy(SWEEP), **changed})


def write(folder, name="sweep.yaml", **changed):
    """The files of the sweep, in a folder."""
    (folder / "chip.yaml").write_text(CHIP)
    (folder / "products.yaml").write_text(PRODUCTS)
    path = folder / name
    path.write_text(yaml.safe_dump({**copy.deepcopy(SWEEP), **changed}, sort_keys=False))
    return path


def without_times(result):
    """A sweep's result as plain data, without what differs from run to run."""
    found = result.as_dict()
    for key in ("seconds", "counts"):
        found.pop(key)
    return found
