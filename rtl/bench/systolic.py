"""The cocotb side of the systolic bench: runs inside the simulator, knows only streams of beats.

Reads the job that ``LOOM_BENCH`` names (see `rtl.bench.runner`), and for every case drives the input streams with
their stalls, takes the output stream with its stalls, and records each output beat with its cycle. Cycle 0 is the
first cycle in which an operand is valid. Inputs change on the falling edge; everything that the bench reads is a
register or depends on registers alone, so one trigger per cycle is enough.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from siliconloom.rtl.bench.following import report


@cocotb.test()
async def run_job(dut: Any) -> None:
    """Run every case of the job and write what came out."""
    with open(os.environ["LOOM_BENCH"], encoding="utf-8") as file:
        job = json.load(file)
    dut.rst.value = 1
    Clock(dut.clk, 10, unit="ns").start()
    cocotb.start_soon(report(10))
    results = [await _run_case(dut, case) for case in job["cases"]]
    with open(job["results"], "w", encoding="utf-8") as file:
        json.dump(results, file)


async def _run_case(dut: Any, case: dict[str, Any]) -> dict[str, Any]:
    streams = case["streams"]
    names = list(streams)
    valid = {name: getattr(dut, f"{name}_valid") for name in names}
    ready = {name: getattr(dut, f"{name}_ready") for name in names}
    data = {name: getattr(dut, f"{name}_data") for name in names}
    last: dict[str, Any] = {name: getattr(dut, f"{name}_last", None) for name in names}
    chance = random.Random(case["seed"])
    stall = case["stall"]
    for name in names:
        valid[name].value = 0
    dut.output_ready.value = 0
    dut.rst.value = 1
    for _ in range(3):
        await FallingEdge(dut.clk)
    dut.rst.value = 0

    position = dict.fromkeys(names, 0)
    offered = dict.fromkeys(names, False)
    taking = False
    outputs: list[tuple[int, str, int]] = []
    cycle = -1
    wanted, limit, quiet = case["outputs"], case["limit"], case["quiet"]
    while cycle < limit and quiet > 0:
        # beats beyond the last one that is due would be a fault, so listen on for a while
        quiet -= len(outputs) >= wanted
        # what was agreed in the cycle that ends with the coming rising edge is known now, before inputs change
        for name in names:
            beats = streams[name]
            if not offered[name] and position[name] < len(beats) and chance.random() >= stall.get(name, 0.0):
                word, final = beats[position[name]]
                data[name].value = int(word, 16)
                if last[name] is not None:
                    last[name].value = final
                valid[name].value = 1
                offered[name] = True
        if cycle < 0 and any(offered.values()):
            cycle = 0
        take = chance.random() >= stall.get("output", 0.0)
        if take != taking:
            dut.output_ready.value = int(take)
            taking = take
        accepted = [name for name in names if offered[name] and ready[name].value == 1]
        if take and dut.output_valid.value == 1:
            outputs.append((cycle, f"{dut.output_data.value.to_unsigned():x}", int(dut.output_last.value)))
        await FallingEdge(dut.clk)
        for name in accepted:
            position[name] += 1
            offered[name] = False
            if position[name] == len(streams[name]) or stall.get(name, 0.0):
                valid[name].value = 0
        if cycle >= 0:
            cycle += 1
    return {"outputs": outputs, "cycles": cycle}
