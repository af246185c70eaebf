"""What products of an array take in a library's cells: its netlist is run, and every change of every net counted."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from siliconloom.arch import CheckFailed, Chip, LoomError, NotSupported, SystolicArray
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.arch.technology import TECHNOLOGIES
from siliconloom.arch.tile import SystolicTile
from siliconloom.arch.working import working_folder
from siliconloom.rtl.array.arithmetic import operand_type
from siliconloom.rtl.array.folds import ArrayProduct, FoldCase
from siliconloom.rtl.bench.runner import require_simulator, run_cases, tool_versions
from siliconloom.rtl.emit import Bundle, build_rtl
from siliconloom.rtl.synthesis.gates import ACTIVITY, gate_level, recording, with_delays, written_netlist
from siliconloom.rtl.synthesis.liberty import read_library
from siliconloom.rtl.synthesis.module import CLOCK
from siliconloom.rtl.synthesis.power import Netlist, NetlistEnergy, changes_of
from siliconloom.verification.array import compare, scheduled

BEATS = 256
"""Of operands that move through the array while the others stay."""
MOST_ELEMENTS = 256
"""Elements whose netlist an event-driven simulator gets through in minutes."""
ASSUMED = (
    "no wires, no clock tree; each cell as slow as the median of its tables, which is what glitches come from; "
    "the memory that feeds the array is not counted"
)
"""What every energy of products holds under."""
UNTIMED = "no wires, no clock tree, no glitches (cells without delays); the memory that feeds the array is not counted"
"""The same of a library whose cells have no delays."""
Values = Literal["normal", "uniform"]


def check_power(chip: Chip, liberty: Path | None, module: str | None = None) -> SystolicArray:
    """The array whose power can be found; raises `LoomError` where it cannot."""
    if liberty is None:
        raise LoomError("--power: is of a library's cells; give one with --liberty FILE")
    if module is not None:
        raise LoomError(f"--power: is of a whole array, not of a module of it (--module {module})")
    if not isinstance(chip.tile, SystolicTile):
        raise NotSupported(
            f"--power of a {chip.tile.kind} tile ({chip.name}); of bare arrays (systolic-ws-8, ...) it is"
        )
    array = chip.tile.array
    if array.rows * array.cols > MOST_ELEMENTS:
        raise NotSupported(
            f"--power of {array.rows} x {array.cols} elements; at most {MOST_ELEMENTS} (--set tile.array.rows=8 "
            "--set tile.array.cols=8)"
        )
    require_simulator("icarus")
    return array


def power_of(chip: Chip, liberty: Path, watcher: Watcher = NOBODY) -> dict[str, Any]:
    """Joules of a product on ``chip``'s array, in the cells of ``liberty``: the entry ``power`` of a synthesis.

    Raises
    ------
    LoomError
        When Yosys or Icarus is missing, or the file is no library that has energies.
    CheckFailed
        When the netlist computes something else, or in other cycles, than the array does.
    """
    array, library = check_power(chip, liberty), read_library(liberty)
    if not library.has_energies:
        raise LoomError(f"{liberty}: no energies of its cells (internal_power)")
    ways = (True, False) if library.has_delays else (False,)
    dtype, runs = operand_type(array), list[dict[str, Any]]()
    with watcher.stage(f"generating {chip.name} ...") as say, working_folder("synth") as folder:
        bundle = build_rtl(chip)
        say(f"Yosys: {bundle.top} in the cells of {library.name} ...")
        made = gate_level(bundle, liberty, folder, flatten=True)
        netlist = Netlist(written_netlist(made, liberty, folder), made.top, library)
        for values, delays in product(get_args(Values), ways):
            say(f"running {bundle.top} in cells, {values} operands, {'with' if delays else 'without'} glitches ...")
            case = scheduled(array, FoldCase((_product(array),), 1, dtype, values=values))
            own = recording(with_delays(made, library) if delays else made)
            found = _run(array, own, netlist, case, folder / f"{values}_{delays}")
            runs.append(_entry(found, case, values, delays))
    first = runs[0]
    taken, elements = first["joules_per_mac"], array.products
    return {
        "library": library.name,
        "volts": library.volts,
        "operands": dtype.value,
        "macs": macs_of(case),
        "runs": runs,
        "description": {
            "tile.array.energy.product": taken["registers"] + taken["logic"],
            "tile.array.energy.clock": taken["clock"] * macs_of(case) / (first["cycles"] * elements),
        },
        "leakage_w": found.leakage,
        "watts": first["joules_per_mac"]["total"] * macs_of(case) / first["cycles"] * chip.clock + found.leakage,
        "clock_hz": chip.clock,
        "table": {"technology": chip.technology, "joules_per_mac": TECHNOLOGIES[chip.technology].mac(dtype)},
        "tools": tool_versions("icarus"),
        "assumed": ASSUMED if library.has_delays else UNTIMED,
    }


def _product(array: SystolicArray) -> ArrayProduct:
    """One fold that fills the array, of `BEATS` beats."""
    rows, cols = array.rows, array.cols
    if array.dataflow == "output_stationary":
        return ArrayProduct(rows, cols, BEATS * array.depth)
    return ArrayProduct(BEATS, cols, rows) if array.dataflow == "weight_stationary" else ArrayProduct(cols, BEATS, rows)


def _run(array: SystolicArray, made: Bundle, netlist: Netlist, case: FoldCase, folder: Path) -> NetlistEnergy:
    """The netlist runs a case, which it must do as the array does."""
    sources = [folder / name for name in made.sidecar["verilog"]]
    folder.mkdir()
    for path in sources:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made.files[str(path.relative_to(folder))], encoding="utf-8")
    try:
        (result,) = run_cases(
            array,
            sources,
            made.top,
            made.ports,
            [case],
            simulator="icarus",
            folder=folder / "bench",
            waves=folder / "bench" / ACTIVITY,
        )
    except LoomError as error:
        if "LogicArray" not in str(error):
            raise
        raise CheckFailed(f"the netlist of {made.top} is not what the array is: an output is unknown") from None
    seen = compare(result).case()
    if not seen.passed:
        wrong = [*seen.value_errors, *seen.cycle_errors, "in its cycles"][0]
        raise CheckFailed(f"the netlist of {made.top} is not what the array is: {wrong}")
    cycles = case.schedule[-1].last_output + 1
    return netlist.energy(changes_of(folder / "bench" / ACTIVITY, netlist.names, CLOCK, cycles), CLOCK)


def _entry(found: NetlistEnergy, case: FoldCase, values: str, delays: bool) -> dict[str, Any]:
    macs = macs_of(case)
    joules = {"clock": found.clock, "registers": found.registers, "logic": found.logic, "total": found.dynamic}
    return {
        "values": values,
        "glitches": delays,
        "cycles": case.schedule[-1].last_output + 1,
        "joules_per_mac": {name: float(value) / macs for name, value in joules.items()},
        "changes_per_mac": found.changes / macs,
    }


def macs_of(case: FoldCase) -> int:
    """Products of a case's operands."""
    return sum(gemm.m * gemm.n * gemm.k for gemm in case.gemms)


__all__ = ["check_power", "macs_of", "power_of"]
