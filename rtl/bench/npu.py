"""The cocotb side of the NPU bench: runs inside the simulator, knows only registers and memory images.

Reads the job that ``LOOM_BENCH`` names (see `rtl.bench.programs`); for every case it loads a memory image, programs the
tile over AXI4-Lite, waits for the interrupt, reads status and counters, and has the image and the log written. A case
with a number for its host has one with habits: orders, waits, strobes and polling that the number decides.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, First, RisingEdge, Timer

from siliconloom.rtl.bench.following import report

CLOCK_NS = 10
ALL_STROBES = 15
UNMAPPED = 0xFFC
START, ENABLE, BUSY, DONE = 1, 2, 1, 2
"""Bits of the register control, and of status: a run is under way, a run has ended."""


@cocotb.test()
async def run_job(dut: Any) -> None:
    """Run every case of the job and write what came out."""
    with open(os.environ["LOOM_BENCH"], encoding="utf-8") as file:
        job = json.load(file)
    for name in ("awvalid", "wvalid", "bready", "arvalid", "rready", "awaddr", "wdata", "wstrb", "araddr"):
        getattr(dut, f"s_axi_{name}").value = 0
    for name in ("index", "load", "dump", "stall", "order", "origin", "fail_read", "fail_write", "fail_fetch"):
        getattr(dut, name).value = 0
    dut.rst.value = 1
    Clock(dut.clk, CLOCK_NS, unit="ns").start()
    cocotb.start_soon(report(CLOCK_NS))
    for _ in range(4):
        await FallingEdge(dut.clk)
    dut.rst.value = 0
    results = [await Host(dut, job["registers"], case).run() for case in job["cases"]]
    with open(job["results"], "w", encoding="utf-8") as file:
        json.dump(results, file)


def complain(text: str) -> None:
    """Print what is wrong, as a line that fails the run."""
    print(f"ERROR: host: {text}", flush=True)


class Host:
    """Whoever drives the tile in one case; without a number it is the plainest there is."""

    def __init__(self, dut: Any, registers: dict[str, int], case: dict[str, Any]) -> None:
        self.dut, self.registers, self.case = dut, registers, case
        self.odd = case["host"] > 0
        self.chance = random.Random(case["host"])

    def delay(self) -> int:
        """Cycles to wait before something is offered or taken."""
        return self.chance.choice([0, 0, 1, 2, 5]) if self.odd else 0

    async def run(self) -> dict[str, Any]:
        """Run the case: registers and whether the tile ended."""
        dut, case = self.dut, self.case
        for name in ("index", "stall", "order", "origin"):
            getattr(dut, name).value = case[name]
        for name, beat in case["fail"].items():
            getattr(dut, f"fail_{name}").value = beat
        await self.pulse(dut.load)
        if case["reset_at"]:
            await self.program(ENABLE | START)
            for _ in range(case["reset_at"]):
                await FallingEdge(dut.clk)
            await self.pulse(dut.rst)
            await self.pulse(dut.load)
        polling = self.odd and self.chance.random() < 0.4
        await self.program(START if polling else ENABLE | START)
        if self.odd and case["restart"]:
            # a start while a run is under way has no effect
            await self.write("control", START if polling else ENABLE | START)
        ended = await (self.poll() if polling else self.interrupt())
        found = {name: await self.read(name) for name in case["reads"]}
        await self.look_around(ended, found["error"] & 15 != 0, 0 if polling else ENABLE)
        await self.pulse(dut.dump)
        if self.odd and self.chance.random() < 0.5:
            # whoever does not acknowledge a run may start the next one all the same
            return {"ended": ended, "registers": found}
        await self.write("status", DONE)
        if dut.irq.value != 0 or await self.read("status") & DONE:
            complain("a run that was acknowledged still counts as ended")
        return {"ended": ended, "registers": found}

    async def program(self, control: int) -> None:
        """Write the registers of a run, and start it."""
        if self.odd:
            await self.write("identity", 0)
            await self.write("control", START | ENABLE, strobes=14)
            if await self.read("status") & BUSY:
                complain("a write to control whose strobes leave its first byte out started a run")
        for name, value in self.case["writes"].items():
            await self.set(name, value)
        await self.write("control", control)

    async def set(self, name: str, value: int) -> None:
        """Write a register: at once, or byte by byte in any order, over what was there."""
        if not self.odd or self.chance.random() < 0.5:
            await self.write(name, value)
            return
        await self.write(name, self.chance.getrandbits(32))
        places = [0, 1, 2, 3]
        self.chance.shuffle(places)
        for place in places:
            noise = self.chance.getrandbits(32) & ~(255 << 8 * place)
            await self.write(name, value & 255 << 8 * place | noise, strobes=1 << place)

    async def interrupt(self) -> bool:
        """Wait for the interrupt, or as long as the case may take."""
        if self.dut.irq.value != 1:
            await First(RisingEdge(self.dut.irq), Timer(self.case["limit"] * CLOCK_NS, "ns"))
        await FallingEdge(self.dut.clk)
        return bool(self.dut.irq.value == 1)

    async def poll(self) -> bool:
        """Read status until the run has ended; the interrupt, which is not enabled, stays low."""
        for _ in range(self.case["limit"] // 20):
            status = await self.read("status")
            if self.dut.irq.value != 0:
                complain("an interrupt that is not enabled")
            if status & DONE:
                return True
            for _ in range(16):
                await FallingEdge(self.dut.clk)
        return False

    async def look_around(self, ended: bool, failed: bool, control: int) -> None:
        """Read what is known from the start, and that ``control`` still says whether the interrupt is enabled."""
        if not self.odd:
            return
        await self.write("status", 0)
        wanted = {"identity": 0x4C4F4F4D, "control": control, "status": 2 * ended + 4 * failed + (not ended)}
        wanted |= self.case["writes"]
        for name, value in wanted.items():
            if (found := await self.read(name)) != value:
                complain(f"register {name} reads {found:#x}, must be {value:#x}")
        if (found := await self.read_at(UNMAPPED)) != 0:
            complain(f"an address without a register reads {found:#x}")

    async def pulse(self, signal: Any) -> None:
        """Set a signal for one cycle."""
        await FallingEdge(self.dut.clk)
        signal.value = 1
        await FallingEdge(self.dut.clk)
        signal.value = 0
        await FallingEdge(self.dut.clk)

    async def write(self, name: str, value: int, strobes: int = ALL_STROBES) -> None:
        """One AXI4-Lite write; inputs change on the falling edge, so what is ready is known before the rising one."""
        dut = self.dut
        dut.s_axi_awaddr.value, dut.s_axi_wdata.value, dut.s_axi_wstrb.value = self.registers[name], value, strobes
        waits = {"aw": self.delay(), "w": self.delay()}
        answer = self.delay()
        cycle = answered = 0
        while not answered:
            await FallingEdge(dut.clk)
            for channel, wait in waits.items():
                getattr(dut, f"s_axi_{channel}valid").value = int(cycle >= wait)
            dut.s_axi_bready.value = int(answer == 0)
            await Timer(1, "ns")
            for channel in [c for c, wait in waits.items() if cycle >= wait]:
                if getattr(dut, f"s_axi_{channel}ready").value == 1:
                    del waits[channel]
            taken = [c for c in ("aw", "w") if c not in waits]
            answered = dut.s_axi_bvalid.value == 1 and dut.s_axi_bready.value == 1
            answer -= dut.s_axi_bvalid.value == 1 and answer > 0
            cycle += 1
            if cycle > 200:
                complain(f"a write of {name} is not answered")
                break
            await RisingEdge(dut.clk)
            await Timer(1, "ns")
            for channel in taken:
                getattr(dut, f"s_axi_{channel}valid").value = 0
        dut.s_axi_bready.value = 0

    async def read(self, name: str) -> int:
        """Read a register."""
        return await self.read_at(self.registers[name])

    async def read_at(self, address: int) -> int:
        """One AXI4-Lite read."""
        dut = self.dut
        wait = self.delay()
        await FallingEdge(dut.clk)
        dut.s_axi_araddr.value, dut.s_axi_arvalid.value = address, 1
        dut.s_axi_rready.value = int(wait == 0)
        await FallingEdge(dut.clk)
        dut.s_axi_arvalid.value = 0
        for _ in range(200):
            if dut.s_axi_rvalid.value == 1:
                break
            await FallingEdge(dut.clk)
        else:
            complain(f"a read of {address:#x} is not answered")
        value = int(dut.s_axi_rdata.value.to_unsigned())
        for _ in range(wait):
            await FallingEdge(dut.clk)
        dut.s_axi_rready.value = 1
        await FallingEdge(dut.clk)
        dut.s_axi_rready.value = 0
        return value
