"""What ``loom synth`` does: the area of a chip's RTL, its frequency on an FPGA, and the floors under both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, get_args

from msgspec import structs

from siliconloom import __version__
from siliconloom.arch import Chip, LoomError, SystolicArray
from siliconloom.arch.errors import require_name
from siliconloom.arch.pim import PimTile
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.working import working_folder
from siliconloom.evaluate.smaller import smaller
from siliconloom.rtl.array.elements import arithmetic_of
from siliconloom.rtl.emit import Bundle, build_rtl
from siliconloom.rtl.pim.bank import LANE_BITS, RESULT_BITS
from siliconloom.rtl.pim.geometry import pim_geometry
from siliconloom.rtl.synthesis.area import Area, ModuleArea, Target, fpga_netlist, luts_of, synthesize
from siliconloom.rtl.synthesis.devices import LARGEST, RESOURCES, Device, device_of, excess, used_of
from siliconloom.rtl.synthesis.liberty import check_areas, check_plain, has_timing
from siliconloom.rtl.synthesis.module import module_of
from siliconloom.rtl.synthesis.place import nextpnr_command, placements, version_of
from siliconloom.rtl.synthesis.timing import ASSUMED, StaticTiming, sta_command, static_timing
from siliconloom.rtl.synthesis.yosys import INSTALL, require_yosys
from siliconloom.sim.dram.memory import effective

SCHEMA = "siliconloom.synthesis/2"
FLATTENED_ELEMENTS = 256
"""Elements up to which an array is synthesized flat; larger ones, and whole npu tiles, module by module."""
TARGETS: tuple[Target, ...] = get_args(Target)


def check_request(target: str | None, liberty: Path | None, part: str | None = None) -> Target:
    """The target that was asked for; raises `LoomError` for an unknown one or part, or a liberty file not there."""
    if target is not None:
        require_name("--target", target, TARGETS)
    if part is not None:
        device_of(part)
        if target == "generic" or liberty is not None:
            raise LoomError(f"--part: {part} is an FPGA, for --target ecp5 and no --liberty")
    if liberty is not None:
        if target == "ecp5":
            raise LoomError("--liberty: is for --target generic (got --target ecp5)")
        if not liberty.is_file():
            raise LoomError(
                f"{liberty}: {'is a folder, a liberty file was expected' if liberty.exists() else 'no such file'}"
            )
        check_plain(liberty)
        check_areas(liberty)
        return "generic"
    return "ecp5" if target != "generic" else "generic"


def synth(
    chip: Chip,
    *,
    target: Target = "ecp5",
    liberty: Path | None = None,
    seeds: int = 1,
    module: str | None = None,
    part: str | None = None,
    watcher: Watcher = NOBODY,
) -> dict[str, Any]:
    """Synthesize the RTL of ``chip``; the result follows the schema ``siliconloom.synthesis/2``.

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
    module
        A module of the design, to be synthesized alone; without the prefix of its name.
    part
        Name of the FPGA (`rtl.synthesis.devices`) that the design is held against, and placed on; what is not held
        against one is placed on the largest.
    watcher
        Is told what is under way.

    Raises
    ------
    LoomError
        When a tool is missing or refuses its input, the description has no RTL, or there is no such module or part.
    CheckFailed
        When the Verilog has latches, combinational loops or drivers in conflict.
    """
    require_yosys()
    began = time.perf_counter()
    chip = effective(chip)
    array = None if isinstance(chip.tile, PimTile) else chip.tile.array
    notes: list[str] = []
    with watcher.stage(f"generating {chip.name} ...") as say, working_folder("synth") as folder:
        bundle = build_rtl(
            chip, told=lambda circuits: say(f"generating {chip.name}, {circuits} circuits converted ...")
        )
        if module is not None:
            bundle = module_of(bundle, module)
        what = f"Yosys: {bundle.top} for {liberty.name if liberty else target}"
        say(f"{what} ...")
        small = array is not None and array.rows * array.cols <= FLATTENED_ELEMENTS
        flatten = small and (not bundle.runs_programs or module is not None)

        def known(done: int, modules: int) -> None:
            say(f"{what}, {done} of {modules} modules ...")

        area = synthesize(bundle, target, liberty, folder, flatten=flatten, told=known)
        used = used_of(area.cells, area.luts)
        held = None if part is None else _held_against(chip, part, used, area, module)
        placed = None
        if target == "ecp5" and seeds:
            placed = _place(bundle, used, device_of(part or LARGEST), folder, seeds, say, notes)
        timed = None
        if liberty is not None:
            say(f"OpenSTA: {bundle.top} ...")
            timed = area.timing or _static_timing(bundle, liberty, folder, notes)
    if not area.flattened:
        notes.append("synthesized module by module: nothing is shared or simplified across module borders")
    if area.fast:
        notes.append("cells are chosen for speed: the fewest that compute the same are slower than the clock")
    elif timed is not None and timed.slack_ns < 0:
        notes.append("the fewest cells are slower than the clock, and those chosen for speed are no faster")
    elif liberty is not None and has_timing(liberty) and sta_command() is None:
        notes.append("without OpenSTA the clock is compared with the delay of the logic alone, not of registers")
    memories = bundle.sidecar["memories"]
    if target == "generic" and memories:
        bits = sum(m["width"] * m["depth"] for m in memories)
        notes.append(f"{len(memories)} memories ({bits:,} bits and more where placed twice) are left to macros")
    mhz = placed["mhz"] if placed else [timed.mhz] if timed else []
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
        "part": held,
        "modules": [_module(each, target) for each in area.parts],
        "area": None
        if area.square_units is None
        else {
            "liberty": liberty.name if liberty else "",
            "cells": area.square_units,
            "mapped_for": "clock" if area.fast else "area",
        },
        "fmax_mhz": mhz,
        "fmax": {"min": min(mhz), "median": median(mhz), "max": max(mhz)} if mhz else None,
        "place_and_route": {k: v for k, v in placed.items() if k != "mhz"} if placed else None,
        "static_timing": None if timed is None else structs.asdict(timed) | {"assumed": ASSUMED},
        "bounds": [] if module is not None else pim_bounds(chip, area) if array is None else bounds(array, area),
        "notes": notes,
        "seconds": time.perf_counter() - began,
    }


def _module(each: ModuleArea, target: Target) -> dict[str, Any]:
    """What one kind of module takes, with all that it contains."""
    ecp5 = target == "ecp5"
    return {
        "module": "/".join(each.path),
        "instances": each.instances,
        "cells": each.cells,
        "flip_flops": each.registers,
        "luts": each.luts if ecp5 else None,
        "dsps": each.multipliers if ecp5 else None,
        "block_rams": each.block_rams if ecp5 else None,
    }


def bounds(array: SystolicArray, area: Area) -> list[dict[str, Any]]:
    """What no implementation of ``array`` can do without, beside what was found.

    A multiplier that is not a DSP has a LUT, or a gate, for each bit of its product at the least; digit-serial elements
    have none. A stationary element holds an active and a shadow operand; an output-stationary one passes both operands
    on, except at the edges.
    """
    arithmetic, products = arithmetic_of(array), array.products * (array.element != "digit_serial")
    bits = arithmetic.dtype.bits
    missing = max(0, products - area.multipliers)
    if array.dataflow == "output_stationary":
        operands = arithmetic.a_bits * array.rows * (array.cols - 1) + arithmetic.b_bits * array.cols * (array.rows - 1)
    else:
        operands = 2 * bits * array.rows * array.cols
    found = area.multipliers + min(missing, area.logic // (2 * bits))
    made = [("multipliers", products, found), ("operand flip-flops", operands, area.registers)]
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


def _held_against(chip: Chip, part: str, used: Mapping[str, int], area: Area, module: str | None) -> dict[str, Any]:
    """What a design takes of an FPGA and whether it fits; of a whole npu tile that does not, what would."""
    device = device_of(part)
    available = device.available
    over = excess(used, device)
    advice = None
    if over and module is None and isinstance(chip.tile, NpuTile):
        advice = smaller(chip, device, used, area.parts)
    return {
        "name": part,
        "device": device.name,
        "resources": [
            {
                "name": name,
                "used": used[name],
                "available": available[name],
                "over": max(0, used[name] - available[name]),
            }
            for name in RESOURCES
        ],
        "fits": not over,
        "advice": None if advice is None else advice.line(),
        "changes": [] if advice is None else [{"key": key, "value": value} for key, value in advice.changes],
    }


def _static_timing(bundle: Bundle, liberty: Path, folder: Path, notes: list[str]) -> StaticTiming | None:
    """The netlist's timing, or a note that says why there is none."""
    command = sta_command()
    if command is None:
        notes.append("no Fmax: OpenSTA (sta) is not installed")
        return None
    if not has_timing(liberty):
        notes.append(f"no Fmax: {liberty.name} does not say how long its cells take (timing)")
        return None
    try:
        return static_timing(command, liberty, bundle.top, 1e9 / bundle.sidecar["clock_hz"], folder)
    except LoomError as error:
        notes.append(f"no Fmax: {error}")
        return None


def _place(
    bundle: Bundle,
    used: Mapping[str, int],
    device: Device,
    folder: Path,
    seeds: int,
    say: Callable[[str], None],
    notes: list[str],
) -> dict[str, Any] | None:
    """Frequencies of the FPGA top, or a note that says why there are none."""
    command = nextpnr_command()
    if command is None:
        notes.append(f"no Fmax: nextpnr is not installed; {INSTALL} brings it")
        return None
    top = bundle.sidecar["fpga"]["top"]
    too_much = excess(used, device)
    if not too_much:
        say(f"Yosys: {top} ...")
        cells = fpga_netlist(bundle, folder)
        too_much = excess(used_of(cells, luts_of(cells)), device)
    if too_much:
        notes.append(f"no Fmax: {top} does not fit the {device.name}: {', '.join(too_much)}")
        return None

    def ended(runs: int) -> None:
        say(f"nextpnr: {top}, {runs} of {seeds} seeds placed and routed ...")

    ended(0)
    found = placements(command, folder / "fpga.json", device, range(1, seeds + 1), progress=ended)
    slowest = min(found, key=lambda each: each.mhz)
    return {
        "tool": version_of(command),
        "device": device.name,
        "top": top,
        "seeds": [each.seed for each in found],
        "mhz": [each.mhz for each in found],
        "critical_path": {"seed": slowest.seed, "delay_ns": slowest.delay_ns, "through": list(slowest.path)},
    }
