"""A design as a netlist of a library's cells that a simulator runs: the same ports, the same cycles.

The cells are what their Liberty file says that they compute, as Yosys reads it. Memories stay what they are, as macros
would be. `with_delays` each cell takes the median delay of its tables, whatever it drives, in a hundredth of the
time: signals that come later than others make a gate change more than once in a cycle (glitches), and inertia swallows
what is shorter than a gate's own delay.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from siliconloom.arch.errors import LoomError
from siliconloom.rtl.emit import Bundle
from siliconloom.rtl.synthesis.area import synthesize
from siliconloom.rtl.synthesis.liberty import CellLibrary, linked
from siliconloom.rtl.synthesis.timing import NETLIST
from siliconloom.rtl.synthesis.yosys import run_yosys

CELLS, ACTIVITY = "cells.v", "activity.vcd"
HASTE = 100
"""Times that cells are faster than they are, so that half a period of a bench's clock holds their longest path."""
_MODULE = re.compile(r"^module \\?(\S+?) ?\(", re.MULTILINE)


def gate_level(bundle: Bundle, liberty: Path, folder: Path, *, flatten: bool) -> Bundle:
    """The same design in cells; what it is made from is left in ``folder``.

    Parameters
    ----------
    bundle
        A generated design.
    liberty
        The library's file.
    folder
        An empty folder.
    flatten
        One module, not one for each that was described.

    Raises
    ------
    LoomError
        When Yosys is missing, or the file is not a library that has a register and gates for all logic.
    """
    synthesize(bundle, "generic", liberty, folder, flatten=flatten)
    netlist = (folder / NETLIST).read_text(encoding="utf-8")
    run_yosys([f"read_liberty -ignore_miss_func {linked(liberty, folder)}", f"write_verilog -noattr {CELLS}"], folder)
    cells = (folder / CELLS).read_text(encoding="utf-8")
    if left := sorted(set(re.findall(r"^\s+\\?(\$_\w+)", netlist, re.MULTILINE))):
        raise LoomError(f"{liberty}: no cell for {left[0]}, which the design needs")
    memories = [memory["module"] for memory in bundle.sidecar["memories"]]
    kept = {name: bundle.files[name] for name in bundle.sidecar["verilog"] if Path(name).stem in memories}
    files = {NETLIST: netlist, CELLS: cells} | kept
    return replace(bundle, files=files, sidecar={**bundle.sidecar, "verilog": list(files)})


def with_delays(gates: Bundle, library: CellLibrary) -> Bundle:
    """A netlist whose cells take their time."""
    cells = gates.files[CELLS]
    found = list(_MODULE.finditer(cells))
    ends = [each.start() for each in found[1:]] + [len(cells)]
    texts = []
    for each, end in zip(found, ends, strict=True):
        text, cell = cells[each.start() : end], library.cells[each[1]]
        for pin, output in cell.outputs.items():
            delay = output.delay * library.seconds * 1e9 / HASTE
            text = re.sub(
                rf"^  assign {re.escape(pin)} =", f"  assign #({delay:.6f}) {pin} =", text, flags=re.MULTILINE
            )
        texts.append(text)
    return replace(gates, files={**gates.files, CELLS: "`timescale 1ns/10fs\n" + "".join(texts)})


def recording(gates: Bundle) -> Bundle:
    """A netlist that writes all changes of its top module's nets to the file `ACTIVITY`, from its reset's end on."""
    text = gates.files[NETLIST]
    end = text.rindex("endmodule")
    dump = f'initial begin $dumpfile("{ACTIVITY}"); @(negedge rst); $dumpvars(1, {gates.top}); end\n'
    return replace(gates, files={**gates.files, NETLIST: text[:end] + dump + text[end:]})


def written_netlist(gates: Bundle, liberty: Path, folder: Path) -> Path:
    """The netlist of a flat design as JSON, in ``folder``, where its Verilog lies."""
    run_yosys(
        [
            f"read_liberty -lib -ignore_miss_func {linked(liberty, folder)}",
            f"read_verilog {NETLIST}",
            f"hierarchy -top {gates.top}",
            "write_json netlist.json",
        ],
        folder,
    )
    return folder / "netlist.json"


__all__ = ["ACTIVITY", "gate_level", "recording", "with_delays", "written_netlist"]
