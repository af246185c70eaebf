"""Area of a design as Yosys maps it: to ECP5 cells, to plain gates, or to the cells of a liberty file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.errors import LoomError
from siliconloom.rtl.emit import Bundle
from siliconloom.rtl.synthesis.hierarchy import module_counts, statistics_of
from siliconloom.rtl.synthesis.liberty import LIBRARY, has_timing, liberty_text, linked
from siliconloom.rtl.synthesis.structure import check_structure
from siliconloom.rtl.synthesis.timing import NETLIST, StaticTiming, sta_command, static_timing
from siliconloom.rtl.synthesis.yosys import YosysError, quoted, run_yosys

Target = Literal["ecp5", "generic"]

ECP5_LUTS = {"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 4}
"""LUTs behind a cell: a carry cell holds two, a distributed memory four, as nextpnr counts them."""

REGISTER = re.compile(r"\$_(S|A|AL)?DFF")
SHARE, DEPTH = 0.02, 3
"""Of a design's cells, those of a module that is told of; how far below the top it may be."""
CELL = re.compile(r"^\s*cell\s*\(\s*\"?(\w+)\"?\s*\)", re.MULTILINE)
INVERTS = re.compile(r"function\s*:\s*\"\s*\(?\s*(?:!\s*\(?\s*\w+\s*\)?|\w+\s*')\s*\)?\s*\"")
UNFIT = {
    "Current library is not available": "no gates in it that logic can be mapped to",
    "cannot be legalized": "no register in it that the design needs",
}
"""What a library lacks, by what Yosys, or ABC, says then."""
STOPPED = "ABC output file"
"""What Yosys misses when ABC stopped."""
LONGEST_PS = 2**31 - 1
"""The longest clock period that ABC reads."""
MAPPED = ("cells.json", "library.json", NETLIST)
"""Files that a mapping leaves."""
DELAY = re.compile(r"^ABC: WireLoad.*Delay = *([\d.]+) ps", re.MULTILINE)
"""Longest path of a module, as ABC prints it."""
STRUCTURE = "-arith_tree -noabc -extra-map +/choices/kogge-stone.v"
"""How arithmetic is built where it shall be fast: carry-save trees, and carries that look ahead (Kogge and Stone)."""
SIZED = "upsize {D}; dnsize {D};"
FAST = f"strash; if -g -K 6 -C 8; strash; dch -f; map -B 0.2 {{D}}; topo; buffer -c; {SIZED} {SIZED} stime -p\n"
"""What ABC does then: nothing that makes logic smaller and longer, which is what its own script begins with."""
AT_ONCE = " -D 1 "
"""The period for which cells are chosen where those for the clock are too slow: ABC counts nothing of registers."""
PERIOD = re.compile(r" -D \d+ ")
LOAD = 20
"""What an output drives, in the liberty file's unit (fF, mostly): a few gates."""


class ModuleArea(Struct, frozen=True):
    """What one kind of module takes within another, all its instances there together, with all that they contain.

    Parameters
    ----------
    path
        Names of the modules from the top's child down to this one, without the prefix that all share.
    instances
        How many of them the module above holds, times how many there are of that.
    cells, registers, luts, multipliers, block_rams
        As of an `Area`, of all instances.
    """

    path: tuple[str, ...]
    instances: int
    cells: int
    registers: int
    luts: int
    multipliers: int
    block_rams: int


class Area(Struct, frozen=True):
    """What Yosys made of a design.

    Parameters
    ----------
    yosys
        Its version.
    flattened
        The whole design at once; otherwise module by module, with nothing shared across their borders.
    cells
        Number of cells by type.
    registers
        Flip-flops.
    luts, multipliers, block_rams
        Of an ECP5; 0 elsewhere.
    logic
        Cells that are none of those, of wrapped memories neither: LUTs on an ECP5, gates elsewhere.
    square_units
        Area in the liberty file's unit, without memories; ``None`` without such a file.
    parts
        The modules that take a good part of the whole, each before what it contains; none of a flattened design.
    fast
        The library's cells are chosen for speed, since the fewest are slower than the clock.
    timing
        What OpenSTA says of them, where it is installed and finds a path.
    """

    yosys: str
    flattened: bool
    cells: dict[str, int]
    registers: int
    luts: int
    multipliers: int
    block_rams: int
    logic: int
    square_units: float | None
    parts: tuple[ModuleArea, ...] = ()
    fast: bool = False
    timing: StaticTiming | None = None


def synthesize(
    bundle: Bundle,
    target: Target,
    liberty: Path | None,
    folder: Path,
    *,
    flatten: bool,
    told: Callable[[int, int], None] = lambda known, modules: None,
) -> Area:
    """Synthesize the top of ``bundle``.

    Parameters
    ----------
    bundle
        A generated design.
    target
        Cells to map to.
    liberty
        Cell library for the target ``generic``, for the clock of the description; what was mapped to it is left in the
        folder, as `rtl.synthesis.timing` reads it.
    folder
        An empty folder to work in.
    flatten
        The whole design at once, not each distinct module by itself.
    told
        Called with the number of modules that are known and of all, where each is synthesized by itself for an ECP5.

    Raises
    ------
    LoomError
        When Yosys is missing or does not understand the liberty file.
    CheckFailed
        When the Verilog has latches, combinational loops, or drivers in conflict.
    """
    top = bundle.top
    if liberty is not None:
        linked(liberty, folder)
        _in_liberty(liberty, [f"read_liberty -lib -ignore_miss_func {LIBRARY}"], folder)
    reading = _reading(bundle, folder)
    memories = [memory["module"] for memory in bundle.sidecar["memories"]]
    hidden = {Path(name).stem for name in bundle.sidecar["verilog"]}
    if target == "ecp5" and not flatten:
        with ThreadPoolExecutor(1) as pool:  # beside the others, since it is one run of Yosys on one processor
            checked = pool.submit(check_structure, reading, top, folder)
            found = statistics_of(module_counts(bundle, folder, told), top)
            checked.result()
        return _area(found, cells_of(found, hidden), target, top, hidden, flatten=False, square_units=None)
    check_structure(reading, top, folder)
    if target == "ecp5":
        mapping = [f"synth_ecp5 -top {top}"]
    else:  # memories are left to macros: as flip-flops they would outweigh everything
        mapping = [*(f"blackbox {name}" for name in memories), f"synth {'-flatten ' if flatten else ''}-top {top}"]
        hidden -= set(memories)
    finish = ["delete t:$scopeinfo", f"tee -q -o cells.json stat -json -top {top}"]
    if liberty is not None:
        return _in_cells(bundle, [*reading, *mapping], finish, liberty, folder, hidden, flatten=flatten)
    run_yosys([*reading, *mapping, *finish], folder)
    found = _statistics(folder / "cells.json")
    return _area(found, cells_of(found, hidden), target, top, hidden, flatten=flatten, square_units=None)


def _in_cells(
    bundle: Bundle,
    mapping: Sequence[str],
    finish: Sequence[str],
    liberty: Path,
    folder: Path,
    hidden: Collection[str],
    *,
    flatten: bool,
) -> Area:
    """A design in a library's cells: as few as there may be, or, where those are slower than the clock, fast ones."""
    library, top = f"-liberty {LIBRARY}", bundle.top
    timed = _timed(bundle, liberty, folder)

    def mapped(structure: Sequence[str], chosen: str) -> tuple[str, StaticTiming | None]:
        said = _in_liberty(
            liberty,
            [
                *structure,
                *finish,
                f"dfflibmap {library}",
                f"abc {library}{chosen}",
                "opt_clean",
                f"tee -q -o library.json stat -json {library} -top {top}",
                "setundef -zero",
                "splitnets",
                "opt_clean -purge",
                f"write_verilog -noattr -noexpr {NETLIST}",
            ],
            folder,
        )
        return said, _analysed(bundle, liberty, folder) if timed else None

    said, timing = mapped(mapping, timed)
    fast = False
    if timed and _misses(bundle, said, timing):
        (folder / "fast.abc").write_text(FAST, encoding="utf-8")
        for options in (timed, PERIOD.sub(AT_ONCE, timed)):
            before, kept = timing, {name: (folder / name).read_bytes() for name in MAPPED}
            try:
                said, timing = mapped([*mapping[:-1], f"{mapping[-1]} {STRUCTURE}"], f"{options} -script fast.abc")
                better = before is None or timing is None or timing.slack_ns > before.slack_ns
            except LoomError:  # ABC stops at some libraries of few gates
                better = False
            if not better:
                timing = before
                for name, content in kept.items():
                    (folder / name).write_bytes(content)
            fast |= better
            if timing is None or timing.slack_ns >= 0:
                break
    found, chosen = _statistics(folder / "cells.json"), _statistics(folder / "library.json")
    square_units, cells = chosen["design"].get("area"), cells_of(chosen, hidden)
    area = _area(found, cells, "generic", top, hidden, flatten=flatten, square_units=square_units)
    return replace(area, fast=fast, timing=timing)


def _misses(bundle: Bundle, said: str, timing: StaticTiming | None) -> bool:
    """Whether a netlist is slower than the clock, as OpenSTA says or, without it, as ABC printed.

    OpenSTA counts no paths into and out of memories, ABC counts nothing of registers.
    """
    period = 1e12 / float(bundle.sidecar["clock_hz"])
    logic = max((float(each) for each in DELAY.findall(said)), default=0.0) > period
    if timing is None:
        return logic
    return timing.slack_ns < 0 or (logic and bool(bundle.sidecar["memories"]))


def _analysed(bundle: Bundle, liberty: Path, folder: Path) -> StaticTiming | None:
    """What OpenSTA says of the netlist in the folder, if it is installed and finds a path."""
    command = sta_command()
    if command is None:
        return None
    try:
        return static_timing(command, liberty, bundle.top, 1e9 / bundle.sidecar["clock_hz"], folder)
    except LoomError:
        return None


def _timed(bundle: Bundle, liberty: Path, folder: Path) -> str:
    """Options with which cells are chosen for the clock of the description, where the liberty file has their timing.

    Yosys wants to know what is around the design, so that it puts buffers behind what drives much.
    """
    if not has_timing(liberty):
        return ""
    _, *cells = re.split(CELL, liberty_text(liberty))
    inverter = next((name for name, cell in zip(cells[::2], cells[1::2], strict=True) if INVERTS.search(cell)), None)
    around = [] if inverter is None else [f"set_driving_cell {inverter}"]
    (folder / "around.txt").write_text("\n".join([*around, f"set_load {LOAD} [all_outputs]", ""]), encoding="utf-8")
    return f" -D {min(round(1e12 / bundle.sidecar['clock_hz']), LONGEST_PS)} -constr around.txt"


def _area(
    found: Mapping[str, Any],
    cells: dict[str, int],
    target: Target,
    top: str,
    hidden: Collection[str],
    *,
    flatten: bool,
    square_units: float | None,
) -> Area:
    """What Yosys's statistics say; registers are those before a liberty file's cells were chosen."""
    registers = sum(n for name, n in cells_of(found, hidden).items() if name == "TRELLIS_FF" or REGISTER.match(name))
    return Area(
        yosys=found["creator"].split(" (")[0],
        flattened=flatten,
        cells=cells,
        registers=registers,
        luts=luts_of(cells),
        multipliers=cells.get("MULT18X18D", 0),
        block_rams=cells.get("DP16KD", 0),
        logic=luts_of(cells) if target == "ecp5" else sum(cells.values()) - registers,
        square_units=square_units,
        parts=() if flatten else parts_of(found, top, hidden),
    )


def _in_liberty(liberty: Path, commands: Sequence[str], folder: Path) -> str:
    """Run commands whose failure is the liberty file's; returns what Yosys printed."""
    try:
        return run_yosys(commands, folder)
    except YosysError as error:
        printed = error.printed if STOPPED in str(error) else str(error)
        why = next((words for text, words in UNFIT.items() if text in printed), None)
        said = re.findall(r"^ABC: (.+)$", printed, re.MULTILINE)
        if why is None and said:
            errors = [line for line in said if line.startswith("Error")] or [
                line for line in said if "** cmd error" not in line
            ]
            why = f"ABC stopped: {errors[-1]}" if errors else None
        raise LoomError(f"{liberty}: {why or error}") from None


def fpga_netlist(bundle: Bundle, folder: Path) -> dict[str, int]:
    """Synthesize the FPGA top for ECP5 into ``folder / "fpga.json"``; returns its number of cells by type."""
    top = bundle.sidecar["fpga"]["top"]
    commands = [
        *_reading(bundle, folder, bundle.sidecar["fpga"]["verilog"]),
        f"synth_ecp5 -top {top} -json fpga.json",
        "delete t:$scopeinfo",
        f"tee -q -o fpga_statistics.json stat -json -top {top}",
    ]
    run_yosys(commands, folder)
    return cells_of(_statistics(folder / "fpga_statistics.json"))


def _reading(bundle: Bundle, folder: Path, more: list[str] | None = None) -> list[str]:
    """Commands that read the design, whose files are written to ``folder``."""
    names = [*bundle.sidecar["verilog"], *(more or [])]
    for name in names:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(bundle.files[name], encoding="utf-8")
    return [f"read_verilog {quoted(name)}" for name in names]


def _statistics(path: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return made


def parts_of(statistics: Mapping[str, Any], top: str, hidden: Collection[str] = ()) -> tuple[ModuleArea, ...]:
    """The modules, down to `DEPTH` levels below the top, that take at least a `SHARE` of any kind of cell.

    Parameters
    ----------
    statistics
        What Yosys' ``stat -json`` says of a design that was not flattened.
    top, hidden
        Its top module, and those whose instances are no cells.
    """
    modules = {name.removeprefix("\\"): each["num_cells_by_type"] for name, each in statistics["modules"].items()}
    below = {
        name: {kind.removeprefix("\\"): count for kind, count in counts.items()} for name, counts in modules.items()
    }

    if top not in below:  # a memory by itself, which is left to a macro
        return ()

    @cache
    def whole(name: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for kind, count in below[name].items():
            if kind in below:
                found.update({each: count * many for each, many in whole(kind).items()})
            elif kind not in hidden:
                found[kind] += count
        return found

    def figures(name: str, instances: int) -> tuple[int, int, int, int, int]:
        found = whole(name)
        registers = sum(n for kind, n in found.items() if kind == "TRELLIS_FF" or REGISTER.match(kind))
        counts = found.total(), registers, luts_of(found), found["MULT18X18D"], found["DP16KD"]
        cells, registers, luts, multipliers, rams = (instances * count for count in counts)
        return cells, registers, luts, multipliers, rams

    all_of_it = figures(top, 1)

    def walk(name: str, path: tuple[str, ...], instances: int) -> Iterator[ModuleArea]:
        inner = [(kind, instances * count) for kind, count in below[name].items() if kind in below]
        taken = {kind: figures(kind, count) for kind, count in inner}
        for kind, count in sorted(inner, key=lambda each: (-taken[each[0]][0], each[0])):
            if any(
                took and took >= SHARE * whole_of_it for took, whole_of_it in zip(taken[kind], all_of_it, strict=True)
            ):
                named = *path, kind.removeprefix(f"{top}_")
                yield ModuleArea(named, count, *taken[kind])
                if len(named) < DEPTH:
                    yield from walk(kind, named, count)

    return tuple(walk(top, (), 1))


def cells_of(statistics: Mapping[str, Any], hidden: Collection[str] = ()) -> dict[str, int]:
    """Number of cells by type in the whole design, without instances of the ``hidden`` modules."""
    counted = {name.removeprefix("\\"): n for name, n in statistics["design"]["num_cells_by_type"].items()}
    return {name: counted[name] for name in sorted(counted) if name not in hidden}


def luts_of(cells: Mapping[str, int]) -> int:
    """LUTs of ECP5 cells."""
    return sum(cells.get(name, 0) * luts for name, luts in ECP5_LUTS.items())
