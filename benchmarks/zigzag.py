"""ZigZag (PyPI: zigzag-dse), a mapper with a cost model, on a machine like one of ours; in a process of its own.

It is never installed here: whoever has it says which Python does.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measure import cpu_seconds
from siliconloom.arch import Chip
from siliconloom.arch.tile import NpuTile

RUN = """
import contextlib, io, json, logging, sys, time
import yaml
from zigzag.api import get_hardware_performance_zigzag
given = json.loads(sys.argv[1])
logging.disable(logging.CRITICAL)
names = []
for name in ("workload", "accelerator", "mapping"):
    names.append(name + ".yaml")
    with open(names[-1], "w") as file:
        yaml.safe_dump(given[name], file, sort_keys=False)
began = time.process_time()
with contextlib.redirect_stdout(io.StringIO()):
    accesses, cycles, _ = get_hardware_performance_zigzag(
        *names, opt="latency", dump_folder="out", lpf_limit=given["factors"], loma_show_progress_bar=False)
print()
print(json.dumps([cycles, accesses, time.process_time() - began]))
"""
FACTORS = 6
"""Prime factors of loops whose orders it tries, as its own default is."""
SUM_BITS = 32


@dataclass(frozen=True)
class Peer:
    """A product as ZigZag maps it: cycles, bytes of main memory, CPU seconds of the process and of the search alone."""

    cycles: int
    traffic: int
    process_s: float
    search_s: float


def available(python: str) -> str:
    """The version of ZigZag that a Python has; nothing where it has none."""
    code = "import importlib.metadata as m, zigzag.api; print(m.version('zigzag-dse'))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else ""


def machine_of(chip: Chip) -> dict[str, object]:
    """A weight-stationary array, accumulator, scratchpad and memory of a chip's sizes; in ZigZag's terms, in bits.

    A cell keeps two weights, one of which is loaded behind the other. An access to main memory costs 1, all others
    nothing, so that what it calls energy is the number of these accesses.
    """
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    array, bits = tile.array, 8 * tile.element_bytes
    bus, weights, sums = 8 * tile.dma.bytes_per_cycle, array.load_rows * array.cols * bits, array.cols * SUM_BITS

    def port(name: str, kind: str, width: int, *uses: str) -> dict[str, object]:
        return {"name": name, "type": kind, "bandwidth_min": width, "bandwidth_max": width, "allocation": list(uses)}

    def memory(size: int, operands: str, served: bool, ports: Sequence[object], cost: float = 0.0) -> dict[str, object]:
        free = {"r_cost": cost, "w_cost": cost, "area": 0, "latency": 1}
        over = ["D1", "D2"] if served else []
        return {"size": size, **free, "operands": operands.split(), "ports": list(ports), "served_dimensions": over}

    cells = [port("r_port_1", "read", bits, "I2, tl"), port("w_port_1", "write", bits, "I2, fh")]
    accumulator = [port("r_port_1", "read", sums, "O, tl"), port("r_port_2", "read", sums, "O, th")]
    accumulator += [port("w_port_1", "write", sums, "O, fl"), port("w_port_2", "write", sums, "O, fh")]
    scratchpad = [
        port("r_port_1", "read", array.rows * bits, "I1, tl"),
        port("r_port_2", "read", weights, "I2, tl"),
        port("r_port_3", "read", bus, "O, tl", "O, th"),
        port("w_port_1", "write", bus, "I1, fh", "I2, fh"),
        port("w_port_2", "write", bus, "O, fl", "O, fh"),
    ]
    every = ["I1, fh", "I1, tl", "I2, fh", "I2, tl", "O, fh", "O, tl", "O, fl", "O, th"]
    dram = [port("rw_port_1", "read_write", beat_bits(chip), *every)]
    return {
        "name": "equivalent",
        "memories": {
            "cells": memory(2 * bits, "I2", False, cells),
            "accumulator": memory(8 * tile.accumulator.capacity, "O", True, accumulator),
            "scratchpad": memory(8 * tile.scratchpad.capacity, "I1 I2 O", True, scratchpad),
            "dram": memory(8 * chip.nearest.total_capacity, "I1 I2 O", True, dram, 1.0),
        },
        "operational_array": {
            "input_precision": [bits, bits],
            "unit_energy": 0.0,
            "unit_area": 1.0,
            "dimensions": ["D1", "D2"],
            "sizes": [array.cols, array.rows],
        },
    }


def beat_bits(chip: Chip) -> int:
    """Bits of main memory that a chip moves in a cycle."""
    return round(8 * chip.nearest.total_bandwidth / chip.clock)


def product(python: str, chip: Chip, m: int, n: int, k: int) -> Peer:
    """Have ZigZag map one product, for the least cycles."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    bits = 8 * tile.element_bytes
    layer = {
        "id": 0,
        "name": "g",
        "operator_type": "Gemm",
        "equation": "O[b][k]+=W[k][c]*I[b][c]",
        "loop_dims": ["B", "K", "C"],
        "loop_sizes": [m, n, k],
        "operand_precision": {"W": bits, "I": bits, "O": SUM_BITS, "O_final": bits},
        "operand_source": {"I": 0, "W": 0},
    }
    spatial = {"D1": [f"K, {tile.array.cols}"], "D2": [f"C, {tile.array.rows}"]}
    mapping = {"name": "default", "spatial_mapping": spatial, "memory_operand_links": {"O": "O", "W": "I2", "I": "I1"}}
    given = {"workload": [layer], "accelerator": machine_of(chip), "mapping": [mapping], "factors": FACTORS}
    with tempfile.TemporaryDirectory() as folder:
        process_s, printed = cpu_seconds([python, "-c", RUN, json.dumps(given)], folder)
    cycles, accesses, search_s = json.loads(printed.splitlines()[-1])
    return Peer(round(cycles), round(accesses * beat_bits(chip) / 8), process_s, search_s)


__all__ = ["Peer", "available", "product"]
