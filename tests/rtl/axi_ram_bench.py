"""A tile on other people's bus models: AxiRam and AxiLiteMaster of cocotbext-axi at its ports, nothing in between."""

import mmap
import os
from pathlib import Path

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, with_timeout
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam, AxiRamRead, AxiReadBus

START, STATUS, PROGRAM, SEMAPHORES = 0x004, 0x008, 0x010, 0x100


def words(*values):
    return b"".join(value.to_bytes(4, "little") for value in values)


@cocotb.test()
async def runs_a_program(dut):
    """Run the program that the job names and write the memory that it leaves."""
    job = np.load(os.environ["LOOM_BENCH"])
    memory = mmap.mmap(-1, len(job["memory"]))
    memory[:] = job["memory"].tobytes()
    dut.rst.value = 1
    Clock(dut.clk, 10, unit="ns").start()
    lite = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)
    AxiRam(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, size=len(memory), mem=memory)
    AxiRamRead(AxiReadBus.from_prefix(dut, "m_axi_program"), dut.clk, dut.rst, size=len(memory), mem=memory)
    for _ in range(4):
        await FallingEdge(dut.clk)
    dut.rst.value = 0
    for number, initial in enumerate(job["semaphores"]):
        await lite.write(SEMAPHORES + 4 * number, words(int(initial)))
    await lite.write(PROGRAM, words(int(job["base"]), 0, int(job["words"])))
    await lite.write(START, words(3))
    await with_timeout(_interrupt(dut), 2, "ms")
    status = await lite.read(STATUS, 4)
    np.savez(Path(str(job["result"])), status=list(status.data), memory=np.frombuffer(memory[:], np.uint8))


async def _interrupt(dut):
    while not int(dut.irq.value):
        await FallingEdge(dut.clk)
