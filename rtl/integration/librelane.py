"""LibreLane as a target: the configuration of a run from Verilog to a layout in SkyWater's 130 nm process.

Every memory of the design becomes a wrapper around macros of the process (`rtl.integration.sky130`), by the name of the
module that it replaces. LibreLane places macros whose instances it is given no place for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from siliconloom.arch.description import Chip
from siliconloom.rtl.flows.design import Design
from siliconloom.rtl.integration.sky130 import Tiling, tiling_of, wrapper

FOLDER = "librelane"
PDK, CELLS = "sky130A", "sky130_fd_sc_hd"
KIT = "pdk_dir::libs.ref/sky130_sram_macros"
CORE_UTILIZATION = 40
"""Percent of the core that cells take; macros need room around them for their pins and supplies."""
NANOSECONDS = 1e9


def librelane_files(
    chip: Chip, design: Design, verilog: Sequence[str], memories: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """The files of the target, text by name."""
    top = design.top.module_name
    replaced = {memory["file"]: f"macros/{memory['file']}" for memory in memories}
    cells = sorted({_tiling(memory).macro.cell for memory in memories})
    config: dict[str, Any] = {
        "meta": {"version": 2, "flow": "Classic"},
        "DESIGN_NAME": top,
        "PDK": PDK,
        "STD_CELL_LIBRARY": CELLS,
        "VERILOG_FILES": [f"dir::{replaced.get(name, f'../{name}')}" for name in verilog],
        "VERILOG_DEFINES": ["SYNTHESIS"],
        "CLOCK_PORT": "clk",
        "CLOCK_PERIOD": round(NANOSECONDS / chip.clock, 3),
        "PNR_SDC_FILE": f"dir::../{top}.sdc",
        "SIGNOFF_SDC_FILE": f"dir::../{top}.sdc",
        "FP_SIZING": "relative",
        "FP_CORE_UTIL": CORE_UTILIZATION,
    }
    if cells:
        config["MACROS"] = {
            cell: {
                "gds": [f"{KIT}/gds/{cell}.gds"],
                "lef": [f"{KIT}/lef/{cell}.lef"],
                "lib": {"*": [f"{KIT}/lib/{cell}_TT_1p8V_25C.lib"]},
                "vh": [f"dir::macros/{cell}.vh"],
                "instances": {},
            }
            for cell in cells
        }
        config["PDN_MACRO_CONNECTIONS"] = [r".*\.macro VPWR VGND vccd1 vssd1"]
    files = {f"{FOLDER}/config.json": json.dumps(config, indent=2) + "\n"}
    for memory in memories:
        files[f"{FOLDER}/{replaced[memory['file']]}"] = wrapper(memory)
    for cell in cells:
        files[f"{FOLDER}/macros/{cell}.vh"] = _black_box(cell, memories)
    return files


def macro_lines(memories: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table for the README: each memory and the macros that it takes, with the part of their bits that is used."""
    lines = ["| memory | macros | for a word x in depth | bits used |", "|---|---|---|---|"]
    for memory in memories:
        tiling = _tiling(memory)
        bits = tiling.macros * tiling.macro.depth * tiling.macro.width
        used = memory["width"] * memory["depth"] / bits
        cell = tiling.macro.cell
        lines.append(
            f"| `{memory['module']}` | {tiling.macros} x `{cell}` | {tiling.across} x {tiling.banks} | {used:.0%} |"
        )
    return lines


def _tiling(memory: Mapping[str, Any]) -> Tiling:
    return tiling_of(memory["width"], memory["depth"], memory["write_granularity"])


def _black_box(cell: str, memories: Sequence[Mapping[str, Any]]) -> str:
    """Ports of a macro without supplies, for synthesis and the linter."""
    macro = next(t.macro for t in map(_tiling, memories) if t.macro.cell == cell)
    address, data, mask = (f"[{bits - 1}:0] " for bits in (macro.address_bits, macro.width, macro.lanes))
    return (
        f"// The ports of {cell}; its behaviour and its layout come with the process's kit.\n"
        "(* blackbox *)\n"
        f"module {cell}(\n"
        f"  input wire clk0, input wire csb0, input wire web0, input wire {mask}wmask0,\n"
        f"  input wire {address}addr0, input wire {data}din0, output wire {data}dout0,\n"
        f"  input wire clk1, input wire csb1, input wire {address}addr1, output wire {data}dout1\n"
        ");\n"
        "endmodule\n"
    )
