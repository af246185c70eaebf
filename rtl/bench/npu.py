"""The cocotb side of the NPU bench: runs inside the simulator, knows only registers and memory images.

Reads the job that ``LOOM_BENCH`` names (see `rtl.bench.programs`); for every case it loads a memory image, programs the
tile over AXI4-Lite, waits for the interrupt, reads status and counters, and has the image and the log written.
"""

from __future__ import annotations

import json
import os
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, First, RisingEdge, Timer

CLOCK_NS = 10


@cocotb.test()
async def run_job(dut: Any) -> None:
    """Run every case of the job and write what came out."""
    with open(os.environ["LOOM_BENCH"], encoding="utf-8") as file:
        job = json.load(file)
    for name in ("awvalid", "wvalid", "bready", "arvalid", "rready", "awaddr", "wdata", "wstrb", "araddr"):
        getattr(dut, f"s_axi_{name}").value = 0
    for name in ("index", "load", "dump", "stall", "fail"):
        getattr(dut, name).value = 0
    dut.rst.value = 1
    Clock(dut.clk, CLOCK_NS, unit="ns").start()
    for _ in range(4):
        await FallingEdge(dut.clk)
    dut.rst.value = 0
    results = [await _run_case(dut, job["registers"], case) for case in job["cases"]]
    with open(job["results"], "w", encoding="utf-8") as file:
        json.dump(results, file)


async def _run_case(dut: Any, registers: dict[str, int], case: dict[str, Any]) -> dict[str, Any]:
    dut.index.value = case["index"]
    dut.stall.value = case["stall"]
    dut.fail.value = case["fail"]
    await _pulse(dut, dut.load)
    for name, value in case["writes"].items():
        await _write(dut, registers[name], value)
    await _write(dut, registers["control"], 3)
    await First(RisingEdge(dut.irq), Timer(case["limit"] * CLOCK_NS, "ns"))
    await FallingEdge(dut.clk)
    ended = bool(dut.irq.value == 1)
    found = {name: await _read(dut, registers[name]) for name in case["reads"]}
    await _write(dut, registers["status"], 2)
    await _pulse(dut, dut.dump)
    return {"ended": ended, "registers": found}


async def _pulse(dut: Any, signal: Any) -> None:
    await FallingEdge(dut.clk)
    signal.value = 1
    await FallingEdge(dut.clk)
    signal.value = 0
    await FallingEdge(dut.clk)


async def _write(dut: Any, address: int, value: int) -> None:
    """One AXI4-Lite write; inputs change on the falling edge, so ready is known before the rising one."""
    await FallingEdge(dut.clk)
    dut.s_axi_awaddr.value, dut.s_axi_wdata.value, dut.s_axi_wstrb.value = address, value, 15
    dut.s_axi_awvalid.value = dut.s_axi_wvalid.value = dut.s_axi_bready.value = 1
    await Timer(1, "ns")
    while dut.s_axi_awready.value != 1:
        await FallingEdge(dut.clk)
    await FallingEdge(dut.clk)
    dut.s_axi_awvalid.value = dut.s_axi_wvalid.value = 0
    while dut.s_axi_bvalid.value == 1:
        await FallingEdge(dut.clk)


async def _read(dut: Any, address: int) -> int:
    """One AXI4-Lite read."""
    await FallingEdge(dut.clk)
    dut.s_axi_araddr.value = address
    dut.s_axi_arvalid.value, dut.s_axi_rready.value = 1, 1
    await FallingEdge(dut.clk)
    dut.s_axi_arvalid.value = 0
    while dut.s_axi_rvalid.value != 1:
        await FallingEdge(dut.clk)
    value = int(dut.s_axi_rdata.value.to_unsigned())
    await FallingEdge(dut.clk)
    return value
