"""What ``loom rtl`` does: generate, write, say what was written."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from siliconloom.arch import Chip, LoomError, System
from siliconloom.arch.description import NpuTile
from siliconloom.arch.errors import nearest_name
from siliconloom.link_parity import ring_parts
from siliconloom.output import write_json
from siliconloom.rtl.emit import Bundle, build_rtl, package
from siliconloom.rtl.folder import check_folder
from siliconloom.rtl.library import Library, ResetStyle
from siliconloom.rtl.link.design import ring_design
from siliconloom.rtl.names import module_prefix
from siliconloom.rtl.npu.geometry import has_npu_rtl
from siliconloom.sim.memory import effective
from siliconloom.tables import bold, console, under_way
from siliconloom.vectors import bench_vectors

RESETS: tuple[ResetStyle, ...] = get_args(ResetStyle)


def check_reset(name: str) -> ResetStyle:
    """The reset style of that name; raises `LoomError` for an unknown one."""
    for style in RESETS:
        if style == name:
            return style
    near = nearest_name(name, RESETS)
    hint = f"; did you mean '{near}'?" if near else ""
    raise LoomError(f"--reset: must be one of {', '.join(RESETS)} (got '{name}'){hint}")


def complete_rtl(chip: Chip | System, *, reset: ResetStyle = "sync") -> Bundle:
    """All that ``loom rtl`` writes: as `build_rtl`, with a run of a program for the bench of a whole npu tile.

    Of a ring of chips it is one of them, with its engine and its ends of two links; ``ring_rank`` tells them apart.
    """
    if isinstance(chip, System):
        inner, engine, protocol, chips = ring_parts(chip)
        design = ring_design(Library(module_prefix(chip.name), reset), inner, engine, protocol, chips)
        return package(inner.model_copy(update={"name": chip.name}), design)
    chip = effective(chip)
    whole = isinstance(chip.tile, NpuTile) and has_npu_rtl(chip)
    return build_rtl(chip, reset=reset, vectors=bench_vectors(chip) if whole else None)


def emit(chip: Chip | System, folder: Path, json_file: str | None, *, reset: ResetStyle = "sync") -> None:
    """Write the Verilog of ``chip`` and its flow files to ``folder``; the sidecar also goes to ``json_file``."""
    check_folder(folder, chip.name)
    with under_way(json_file != "-", f"generating the Verilog of {chip.name} ..."):
        bundle = complete_rtl(chip, reset=reset)
    bundle.write(folder)
    if json_file is not None:
        write_json(json_file, bundle.sidecar)
    if json_file == "-":
        return
    out = console()
    sidecar, top = bundle.sidecar, bundle.top
    lines = sum(bundle.files[name].count("\n") for name in sidecar["verilog"])
    rows = [
        ("top module", top),
        ("Verilog", f"{len(sidecar['verilog'])} modules, {lines:,} lines in {folder}"),
        ("file list", f"{top}.f; ports and timing in siliconloom.json; how to use it in README.md"),
        ("flows", f"{top}.core (FuseSoC), {top}.sdc, FPGA top {sidecar['fpga']['verilog'][0]}"),
    ]
    if sidecar["bench"]:
        rows.append(("benches", ", ".join(sidecar["bench"])))
    software = [name for name in bundle.files if name.startswith("software/")]
    if software:
        rows.append(("software", f"{len(software)} files in software/: register map, C header, program packer, driver"))
    out.print(f"{bold(chip.name)}: {sidecar['contains']}", soft_wrap=True)
    for label, text in rows:
        out.print(f"  {label:12s} {text}", soft_wrap=True)
