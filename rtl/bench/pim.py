"""The cocotb side of the PIM bench: runs inside the simulator; a host that offers macros, and a DRAM array.

Reads the job that ``LOOM_BENCH`` names (see `rtl.bench.pim_cases`). Every case begins with a reset, its cycle 0 is the
first one without. Inputs change on the falling edge; outputs are registers or depend on registers, but for the ready
of macros, which is read one nanosecond later.
"""

from __future__ import annotations

import json
import os
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, Timer

from siliconloom.arch.pim import PimTile
from siliconloom.rtl.bench.following import report
from siliconloom.rtl.bench.pim_array import PimArray

FIELDS = {
    "transfer": ("write", "bank", "row", "column", "columns"),
    "compute": ("gemv", "row", "rounds", "chunks", "segments", "columns", "last_columns", "column", "apart", "integer"),
}


@cocotb.test()
async def run_job(dut: Any) -> None:
    """Run every case of the job and write what came out."""
    with open(os.environ["LOOM_BENCH"], encoding="utf-8") as file:
        job = json.load(file)
    tile = PimTile.model_validate(job["tile"])
    Clock(dut.clk, 10, unit="ns").start()
    cocotb.start_soon(report(10))
    results = [await _run_case(dut, tile, case) for case in job["cases"]]
    with open(job["results"], "w", encoding="utf-8") as file:
        json.dump(results, file)


class RowStream:
    """Macros of one stream, offered one after the other from their arrival on."""

    def __init__(self, dut: Any, name: str, macros: list[dict[str, int]]) -> None:
        self.macros, self.taken = macros, list[int]()
        self.valid, self.ready = getattr(dut, f"{name}_valid"), getattr(dut, f"{name}_ready")
        self.fields = {field: getattr(dut, f"{name}_{field}") for field in FIELDS[name]}
        self.offered = self.accepted = False
        self.valid.value = 0
        for signal in self.fields.values():
            signal.value = 0

    def offer(self, cycle: int) -> bool:
        """Withdraw the macro that was taken, and drive the next one if it is time; tells whether one is offered."""
        number = len(self.taken)
        if self.accepted:
            self.offered = self.accepted = False
            self.valid.value = 0
        if not self.offered and number < len(self.macros) and self.macros[number]["arrival"] <= cycle:
            for field, signal in self.fields.items():
                signal.value = self.macros[number][field]
            self.valid.value = 1
            self.offered = True
        return self.offered

    def settle(self, cycle: int) -> None:
        """Note whether the macro is taken at the end of this cycle."""
        if self.offered and self.ready.value == 1:
            self.taken.append(cycle)
            self.accepted = True


class Source:
    """Bursts to be written, the next one always there."""

    def __init__(self, dut: Any, name: str, bursts: list[str]) -> None:
        self.bursts, self.position = [int(b, 16) for b in bursts], 0
        self.valid, self.ready = getattr(dut, f"{name}_valid"), getattr(dut, f"{name}_ready")
        self.data = getattr(dut, f"{name}_data")
        self.show()

    def show(self) -> None:
        """Drive the next burst."""
        there = self.position < len(self.bursts)
        self.valid.value = int(there)
        self.data.value = self.bursts[self.position] if there else 0


async def _run_case(dut: Any, tile: PimTile, case: dict[str, Any]) -> dict[str, Any]:
    memory = {(bank, row): bytes.fromhex(data) for bank, row, data in case["memory"]}
    array = PimArray(tile, memory)
    streams = [RowStream(dut, name, case[name]) for name in FIELDS]
    sources = [Source(dut, name, case[name]) for name in ("write", "vector")]
    dut.column_data.value = dut.array_read.value = 0
    dut.rst.value = 1
    for _ in range(3):
        await FallingEdge(dut.clk)
    dut.rst.value = 0
    outputs: dict[str, list[tuple[int, str]]] = {"read": [], "result": []}
    valids = {name: (getattr(dut, f"{name}_valid"), getattr(dut, f"{name}_data")) for name in outputs}
    taken_bursts: list[bool] = [False, False]
    last = 0
    vector_done = tile.dram.burst_cycles
    for cycle in range(case["limit"]):
        # registers, and what depends on them alone, have settled since the rising edge
        if dut.command_valid.value == 1:
            array.command(
                cycle,
                int(dut.command_code.value),
                int(dut.command_place.value),
                int(dut.command_row.value),
                int(dut.command_column.value),
            )
        for name, (valid, data) in valids.items():
            if valid.value == 1:
                outputs[name].append((cycle, f"{data.value.to_unsigned():x}"))
                last = cycle
        if dut.array_write_valid.value == 1:
            array.write(dut.array_write_data.value.to_unsigned())
            last = cycle
        for number, source in enumerate(sources):
            if taken_bursts[number]:
                source.position += 1
                source.show()
            taken_bursts[number] = source.ready.value == 1
        if taken_bursts[1]:
            last = max(last, cycle + vector_done)
        columns, burst = array.columns(cycle), array.read(cycle)
        if columns is not None:
            dut.column_data.value = columns
        if burst is not None:
            dut.array_read.value = burst
        offers = [stream.offer(cycle) for stream in streams]
        if any(offers):
            await Timer(1, "ns")
            for stream in streams:
                stream.settle(cycle)
        await FallingEdge(dut.clk)
    return {
        "log": array.log,
        "broken": array.rules.broken[:20],
        "taken": [stream.taken for stream in streams],
        "outputs": outputs,
        "cycles": last,
        "underrun": int(dut.underrun.value),
        "memory": [(bank, row, bytes(data).hex()) for (bank, row), data in array.memory.items()],
    }
