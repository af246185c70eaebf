"""The FuseSoC description (CAPI2) of a generated design."""

from __future__ import annotations

import re
from collections.abc import Sequence

VENDOR = "siliconloom:generated"

ECP5 = ["--85k", "--package", "CABGA756", "--lpf-allow-unconstrained", "--timing-allow-fail"]
"""nextpnr's options for the FPGA target: the largest plain ECP5, pins wherever they fit."""


def core_file(
    top: str,
    version: str,
    description: str,
    *,
    verilog: Sequence[str],
    constraints: str,
    fpga: Sequence[str] = (),
    bench: Sequence[str] = (),
    vectors: Sequence[str] = (),
    waivers: Sequence[str] = (),
) -> str:
    """Text of the ``.core`` file.

    Parameters
    ----------
    top
        Top module; also the core's name.
    version
        Of the generator; its digits become the core's version.
    description
        One line.
    verilog
        Files of the design.
    constraints
        Its SDC file.
    fpga
        Further files of the FPGA top, which is ``<top>_fpga``; without any there is no target ``fpga``.
    bench, vectors
        Testbench ``tb_<top>`` and the files it reads; without any there is no target ``sim``.
    waivers
        Verilator control files for the target ``lint``.
    """
    digits = re.match(r"\d+(\.\d+)*", version)
    lines = [
        "CAPI=2:",
        f"name: {VENDOR}:{top}:{digits[0] if digits else '0'}",
        f"description: {_quoted(description)}",
        "",
        "filesets:",
        *_fileset("rtl", verilog, "verilogSource-2005"),
        *_fileset("constraints", [constraints], "SDC"),
    ]
    if fpga:
        lines += _fileset("fpga", fpga, "verilogSource-2005")
    if bench:
        lines += _fileset("bench", bench, "systemVerilogSource")
        lines += _fileset("vectors", vectors, "user", copy=True)
    if waivers:
        lines += _fileset("waivers", waivers, "vlt")
    lines += [
        "",
        "targets:",
        "  default:",
        "    filesets: [rtl, constraints]",
        f"    toplevel: {top}",
        "  lint:",
        "    description: Verilator's warnings, of which there are none",
        f"    filesets: [{'waivers, ' if waivers else ''}rtl]",
        f"    toplevel: {top}",
        "    flow: lint",
        "    flow_options:",
        "      tool: verilator",
        "      verilator_options: [-Wall]",
        "  synth:",
        "    description: Yosys for ECP5, of the design alone",
        "    filesets: [rtl]",
        f"    toplevel: {top}",
        "    flow: generic",
        "    flow_options:",
        "      tool: yosys",
        "      arch: ecp5",
        "      output_format: json",
    ]
    if fpga:
        lines += [
            "  fpga:",
            "    description: Yosys and nextpnr for ECP5, of the design behind two byte streams",
            "    filesets: [rtl, fpga]",
            f"    toplevel: {top}_fpga",
            "    flow: trellis",
            "    flow_options:",
            f"      nextpnr_options: [{', '.join(ECP5)}]",
        ]
    if bench:
        lines += [
            "  sim:",
            "    description: The bench that travels with the Verilog",
            "    filesets: [rtl, bench, vectors]",
            f"    toplevel: tb_{top}",
            "    flow: sim",
            "    flow_options:",
            "      tool: icarus",
            "      iverilog_options: [-g2012]",
        ]
    return "\n".join(lines) + "\n"


def _fileset(name: str, files: Sequence[str], kind: str, *, copy: bool = False) -> list[str]:
    """A fileset; ``copy`` places its files below the tool's working folder under the same names."""
    lines = [f"  {name}:", f"    file_type: {kind}", "    files:"]
    return lines + [f"      - {file}{f': {{copyto: {file}}}' if copy else ''}" for file in files]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
