"""What ``loom synth`` does: the area of a chip's RTL, its frequency on an FPGA, and the floors under both."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, get_args

from siliconloom import __version__
from siliconloom.arch import Chip, LoomError, SystolicArray
from siliconloom.arch.errors import nearest_name
from siliconloom.arch.pim import PimTile
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.arch.working import working_folder
from siliconloom.rtl.array.arithmetic import operand_type
from siliconloom.rtl.emit import Bundle, build_rtl
from siliconloom.rtl.pim.bank import LANE_BITS, RESULT_BITS
from siliconloom.rtl.pim.geometry import pim_geometry
from siliconloom.rtl.synthesis.area import Area, Target, fpga_netlist, luts_of, synthesize
from siliconloom.rtl.synthesis.part import part_of
from siliconloom.rtl.synthesis.place import DEVICE, excess, frequencies, nextpnr_command, version_of
from siliconloom.rtl.synthesis.yosys import INSTALL, require_yosys
from siliconloom.sim.dram.memory import effective

SCHEMA = "siliconloom.synthesis/1"
FLATTENED_ELEMENTS = 256
"""Elements up to which an array is synthesized flat; larger ones, and whole npu tiles, module by module."""
TARGETS: tuple[Target, ...] = get_args(Target)


def check_request(target: str | None, liberty: Path | None) -> Target:
    """The target that was asked for; raises `LoomError` for an unknown one, or a liberty file that is not there."""
    if target is not None and target not in TARGETS:
        near = nearest_name(target, TARGETS)
        hint = f"; did you mean '{near}'?" if near else ""
        raise LoomError(f"--target: must be one of {', '.join(TARGETS)} (got '{target}'){hint}")
    if liberty is not None:
        if target == "ecp5":
            raise LoomError("--liberty: is for --target generic (got --target ecp5)")
        if not liberty.is_file():
            raise LoomError(
                f"{liberty}: {'is a folder, a liberty file was expected' if liberty.exists() else 'no such file'}"
            )
        return "generic"
    return "ecp5" if target != "generic" else "generic"


def synth(
    chip: Chip,
    *,
    target: Target = "ecp5",
    liberty: Path | None = None,
    seeds: int = 1,
    part: str | None = None,
    watcher: Watcher = NOBODY,
) -> dict[str, Any]:
    """Synthesize the RTL of ``chip``; the result follows the schema ``siliconloom.synthesis/1``.

    Parameters
    ----------
    chip
        The description.
    target
        ``ecp5``: cells of a Lattice ECP5 and, where nextpnr is installed, the clock frequency; ``generic``: gates.
    liberty
        Cell library to map gates to, for their area.
    seeds
        Placements to try for the frequency; 0 for none.
    part
        A module of the design, to be synthesized alone; without the prefix of its name.
    watcher
        Is told what is under way.

    Raises
    ------
    LoomError
        When a tool is missing or refuses its input, the description has no RTL, or no such part.
    CheckFailed
        When the Verilog has latches, combinational loops or drivers in conflict.
    """
    require_yosys()
    began = time.perf_counter()
    chip = effective(chip)
    array = None if isinstance(chip.tile, PimTile) else chip.tile.array
    notes: list[str] = []
    with watcher.stage(f"generating {chip.name} ...") as say, working_folder("synth") as folder:
        bundle = build_rtl(chip)
        if part is not None:
            bundle = part_of(bundle, part)
        say(f"Yosys: {bundle.top} for {liberty.name if liberty else target} ...")
        small = array is not None and array.rows * array.cols <= FLATTENED_ELEMENTS
        flatten = small and ("program_words" not in bundle.sidecar["parameters"] or part is not None)
        area = synthesize(bundle, target, liberty, folder, flatten=flatten)
        placed = None
        if target == "ecp5" and seeds:
            placed = _place(bundle, area, folder, seeds, say, notes)
    if not area.flattened:
        notes.append("synthesized module by module: nothing is shared or simplified across module borders")
    memories = bundle.sidecar["memories"]
    if target == "generic" and memories:
        bits = sum(m["width"] * m["depth"] for m in memories)
        notes.append(f"{len(memories)} memories ({bits:,} bits and more where placed twice) are left to macros")
    mhz = placed["mhz"] if placed else []
    return {
        "schema": SCHEMA,
        "version": __version__,
        "chip": chip.name,
        "chip_digest": chip.digest,
        "synthesized": bundle.sidecar["contains"],
        "top": bundle.top,
        "target": target,
        "tool": area.yosys,
        "flattened": area.flattened,
        "cells": area.cells,
        "flip_flops": area.registers,
        "luts": area.luts if target == "ecp5" else None,
        "dsps": area.multipliers if target == "ecp5" else None,
        "block_rams": area.block_rams if target == "ecp5" else None,
        "logic_cells": area.logic,
        "parts": [
            {
                "module": "/".join(part.path),
                "instances": part.instances,
                "cells": part.cells,
                "flip_flops": part.registers,
                "luts": part.luts if target == "ecp5" else None,
                "dsps": part.multipliers if target == "ecp5" else None,
                "block_rams": part.block_rams if target == "ecp5" else None,
            }
            for part in area.parts
        ],
        "area": None
        if area.square_units is None
        else {"liberty": liberty.name if liberty else "", "cells": area.square_units},
        "fmax_mhz": mhz,
        "fmax": {"min": min(mhz), "median": median(mhz), "max": max(mhz)} if mhz else None,
        "place_and_route": {k: v for k, v in placed.items() if k != "mhz"} if placed else None,
        "bounds": [] if part is not None else pim_bounds(chip, area) if array is None else bounds(array, area),
        "notes": notes,
        "seconds": time.perf_counter() - began,
    }


def bounds(array: SystolicArray, area: Area) -> list[dict[str, Any]]:
    """What no implementation of ``array`` can do without, beside what was found.

    A multiplier that is not a DSP has a LUT, or a gate, for each bit of its product at the least. A stationary element
    holds an active and a shadow operand; an output-stationary one passes both operands on, except at the edges.
    """
    bits = operand_type(array).bits
    elements = array.rows * array.cols
    missing = max(0, elements - area.multipliers)
    if array.dataflow == "output_stationary":
        operands = bits * (array.rows * (array.cols - 1) + array.cols * (array.rows - 1))
    else:
        operands = 2 * bits * elements
    found = area.multipliers + min(missing, area.logic // (2 * bits))
    made = [("multipliers", elements, found), ("operand flip-flops", operands, area.registers)]
    return [{"name": name, "floor": floor, "found": got, "holds": got >= floor} for name, floor, got in made]


def pim_bounds(chip: Chip, area: Area) -> list[dict[str, Any]]:
    """What no implementation of a PIM tile can do without, beside what was found.

    Every lane has a multiplier of 8 by 8 bits at the least, a DSP or a gate for each bit of its product; every
    accumulator has its bits in flip-flops, and so have the operands and the product of a lane.
    """
    geometry = pim_geometry(chip)
    lanes = geometry.tile.banks * geometry.used_lanes
    missing = max(0, lanes - area.multipliers)
    bits = geometry.tile.banks * geometry.tile.accumulators * RESULT_BITS + lanes * (2 * LANE_BITS + RESULT_BITS)
    found = area.multipliers + min(missing, area.logic // LANE_BITS)
    made = [("multipliers", lanes, found), ("accumulator, operand and product flip-flops", bits, area.registers)]
    return [{"name": name, "floor": floor, "found": got, "holds": got >= floor} for name, floor, got in made]


def _place(
    bundle: Bundle, area: Area, folder: Path, seeds: int, say: Callable[[str], None], notes: list[str]
) -> dict[str, Any] | None:
    """Frequencies of the FPGA top, or a note that says why there are none."""
    command = nextpnr_command()
    if command is None:
        notes.append(f"no Fmax: nextpnr is not installed; {INSTALL} brings it")
        return None
    top = bundle.sidecar["fpga"]["top"]
    too_much = excess(area.cells, area.luts)
    if not too_much:
        say(f"Yosys: {top} ...")
        cells = fpga_netlist(bundle, folder)
        too_much = excess(cells, luts_of(cells))
    if too_much:
        notes.append(f"no Fmax: {top} does not fit the {DEVICE}: {', '.join(too_much)}")
        return None

    def ended(runs: int) -> None:
        say(f"nextpnr: {top}, {runs} of {seeds} seeds placed and routed ...")

    ended(0)
    mhz = frequencies(command, folder / "fpga.json", range(1, seeds + 1), progress=ended)
    return {"tool": version_of(command), "device": DEVICE, "top": top, "seeds": list(range(1, seeds + 1)), "mhz": mhz}
