"""What ``loom rtl`` does: generate, write, say what was written."""

from __future__ import annotations

from pathlib import Path

from siliconloom.arch import Chip
from siliconloom.output import write_json
from siliconloom.rtl.emit import build_rtl
from siliconloom.tables import console


def emit(chip: Chip, folder: Path, json_file: str | None) -> None:
    """Write the Verilog of ``chip`` to ``folder``; the sidecar also goes to ``json_file``."""
    bundle = build_rtl(chip)
    bundle.write(folder)
    if json_file is not None:
        write_json(json_file, bundle.sidecar)
    if json_file == "-":
        return
    out = console()
    lines = sum(text.count("\n") for name, text in bundle.files.items() if name.endswith(".v"))
    out.print(f"[bold]{chip.name}[/bold]: {bundle.sidecar['contains']}", soft_wrap=True)
    out.print(f"  top module   {bundle.top}")
    out.print(f"  Verilog      {len(bundle.sidecar['verilog'])} modules, {lines:,} lines in {folder}", soft_wrap=True)
    out.print(f"  file list    {bundle.top}.f; ports and timing in siliconloom.json; how to use it in README.md")
