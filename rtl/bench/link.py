"""The cocotb side of the link and ring benches: begins each case and waits for its end; the benches keep the logs."""

from __future__ import annotations

import json
import os
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, First, RisingEdge, Timer

from siliconloom.rtl.bench.following import report

CLOCK_NS = 10


@cocotb.test()
async def run_job(dut: Any) -> None:
    """Run every case of the job."""
    with open(os.environ["LOOM_BENCH"], encoding="utf-8") as file:
        job = json.load(file)
    dut.index.value = dut.load.value = 0
    dut.rst.value = 1
    Clock(dut.clk, CLOCK_NS, unit="ns").start()
    cocotb.start_soon(report(CLOCK_NS))
    ended = []
    for index in range(job["cases"]):
        await FallingEdge(dut.clk)
        dut.rst.value = 1
        dut.index.value = index
        dut.load.value = 1
        await FallingEdge(dut.clk)
        dut.load.value = 0
        for _ in range(3):
            await FallingEdge(dut.clk)
        dut.rst.value = 0
        await First(RisingEdge(dut.finished), Timer(job["limit"] * CLOCK_NS, "ns"))
        await FallingEdge(dut.clk)
        ended.append(bool(dut.finished.value == 1))
    with open(job["results"], "w", encoding="utf-8") as file:
        json.dump(ended, file)
