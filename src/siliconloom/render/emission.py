"""What was written for a design, as lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from siliconloom.render.tables import bold, plain_text


def emission_lines(
    chip: str, files: Mapping[str, str], top: str, sidecar: Mapping[str, Any], folder: Path, out: Console
) -> None:
    """Print what lies in the folder that was written."""
    lines = sum(files[name].count("\n") for name in sidecar["verilog"])
    rows = [
        ("top module", top),
        ("Verilog", f"{len(sidecar['verilog'])} modules, {lines:,} lines in {folder}"),
        ("file list", f"{top}.f; ports and timing in siliconloom.json; how to use it in README.md"),
        ("flows", f"{top}.core (FuseSoC), {top}.sdc, FPGA top {sidecar['fpga']['verilog'][0]}"),
    ]
    if sidecar["bench"]:
        rows.append(("benches", ", ".join(sidecar["bench"])))
    software = [name for name in files if name.startswith("software/")]
    if software:
        rows.append(("software", f"{len(software)} files in software/: register map, C header, program packer, driver"))
    if "example/matmul.c" in files:
        rows.append(("programs", "how to write them in PROGRAMS.md; a matrix product in C and its bench in example/"))
    if flows := sidecar.get("flows"):
        rows.append(("other tools", f"{', '.join(f'{name}/' for name in flows)}; what runs them in README.md"))
    out.print(f"{bold(chip)}: {sidecar['contains']}", soft_wrap=True)
    for label, text in rows:
        out.print(f"  {label:12s} {text}", soft_wrap=True)


def warn_of_no_bench(chip: str, reason: str) -> None:
    """Say on standard error that there is no bench beside the Verilog, and why."""
    print(plain_text(f"loom: warning: {chip}: written without a bench: {reason}"), file=sys.stderr)


def warn_of_fallback(chip: str, reason: str) -> None:
    """Say on standard error that what was written is no whole tile, and why."""
    text = f"loom: warning: {chip}: only the systolic array of the tile was written: {reason}"
    print(plain_text(text), file=sys.stderr)
