"""The PIM tile as a design: what its ports mean, what it was built with, and its lint rules."""

from __future__ import annotations

from siliconloom.arch.description import Chip
from siliconloom.arch.pim import Command
from siliconloom.rtl.flows.design import Design
from siliconloom.rtl.flows.waivers import waiver_file
from siliconloom.rtl.library import Library
from siliconloom.rtl.pim.geometry import pim_geometry
from siliconloom.rtl.pim.tile import PimCircuit

WAIVERS = {
    "WIDTHEXPAND": "operands of different widths: they are extended as their types say, which Verilog does too",
    "WIDTHTRUNC": "the upper bits of a result are dropped on purpose: counters, and products of known range",
    "UNUSEDSIGNAL": "bits of a sum or a product that cannot be set",
    "CASEOVERLAP": "a casez whose order is its priority",
}
"""Rules of ``verilator --lint-only -Wall`` that the tile's Verilog is not held to, and why."""

FIELDS = {
    "valid": "a macro is offered",
    "ready": "and taken in this cycle",
    "write": "WRITE, not READ",
    "bank": "rank, bank group and bank",
    "row": "row, of a GEMV the first",
    "column": "first burst of the row",
    "columns": "number of bursts, of a GEMV per segment",
    "gemv": "GEMV, not GWRITE",
    "rounds": "results per bank and segment",
    "chunks": "rows over which a result is summed",
    "segments": "vectors in a row",
    "last_columns": "bursts in the last chunk; 0: as in the others",
    "apart": "each segment has a vector of its own",
    "integer": "int8, not bf16",
}
"""Of a macro."""

MEANINGS = {
    "clk": "clock of every register: the DRAM's command clock",
    "rst": "synchronous reset, active high",
    "rst_n": "asynchronous reset, active low; released away from the clock's rising edge",
    "command_valid": "to the DRAM: a command goes out",
    "command_code": ", ".join(f"{c.value} {c.name}" for c in Command),
    "command_place": "bank of a transfer, group of a PIM_ACT, bank of a per-bank PIM_DOT, otherwise 0",
    "command_row": "row of ACT, PIM_ACT and PIM_DOT",
    "command_column": "burst: of the row, of the global buffer (PIM_WRITE), of the results (PIM_READ)",
    "column_data": "from the DRAM, CL after PIM_DOT: a burst of every bank's open row, bank 0 in the low bits",
    "array_read": "from the DRAM, CL after RD: the burst",
    "array_write_valid": "to the DRAM, CWL and a burst after WR: the burst is there",
    "array_write_data": "to the DRAM: a burst of a WRITE",
    "write_valid": "a burst of a WRITE is there",
    "write_ready": "it is taken, CWL after WR, there or not",
    "write_data": "burst of a WRITE",
    "vector_valid": "a burst of a GWRITE is there",
    "vector_ready": "it is taken, CWL after PIM_WRITE, there or not",
    "vector_data": "burst of a GWRITE",
    "read_valid": "CL and a burst after RD: a burst of a READ",
    "read_data": "burst of a READ",
    "result_valid": "CL and a burst after PIM_READ: a burst of results",
    "result_data": "results of 32 bits, bank by bank of one segment after the other",
    "underrun": "a burst to be written was not there when it was taken; stays until reset",
}


def pim_design(library: Library, chip: Chip) -> Design:
    """The tile of ``chip`` with everything that goes with it; raises `NotSupported` for what has no RTL."""
    geometry = pim_geometry(chip)
    tile, t = geometry.tile, geometry.timing
    top = PimCircuit(library, geometry)
    meanings = dict(MEANINGS)
    for port in top.ports():
        stream, _, field = port.partition("_")
        if stream == "transfer":
            meanings[port] = f"READ and WRITE macros: {FIELDS[field]}"
        elif stream == "compute":
            meaning = "first burst of the global buffer" if field == "column" else FIELDS[field]
            meanings[port] = f"GWRITE and GEMV macros: {meaning}"
    o = tile.dram.organization
    return Design(
        top=top,
        contains="the whole tile without its DRAM array",
        parameters={
            "ranks": o.ranks,
            "banks": tile.banks,
            "rows": o.rows,
            "row_bytes": o.row_bytes,
            "burst_bytes": o.request_bytes,
            "lanes": geometry.used_lanes,
            "accumulators": tile.accumulators,
            "global_buffer_bytes": tile.global_buffer,
            "operands": [d.value for d in tile.operands],
            "activate_group": tile.activate_group,
            "commands": tile.commands,
            "dual_row_buffer": tile.dual_row_buffer,
            "bank_machines": tile.bank_machines,
        },
        timing={
            **{
                name: getattr(t, name)
                for name in (
                    "CL",
                    "CWL",
                    "tRCD",
                    "tRP",
                    "tRAS",
                    "tRRD_L",
                    "tFAW",
                    "tCCD_L",
                    "tWR",
                    "tWTR_L",
                    "tRTP",
                    "tRTRS",
                    "tRFC",
                    "tREFI",
                )
            },
            "tRC": t.row_cycle,
            "burst": geometry.burst,
            "beats": tile.beats,
            "dot_interval": tile.dot_interval,
            "dot_latency": tile.dot_latency,
        },
        meanings=meanings,
        files={f"{library.prefix}.vlt": waiver_file(library.prefix, WAIVERS)},
    )
