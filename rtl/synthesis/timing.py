"""The clock frequency of a netlist of a liberty file's cells, by static timing analysis with OpenSTA.

Wires have no length: the delays are those of cells, driving the pins that they drive. Inputs come, and outputs are
taken, at the edge of the clock, as they would between registers. Memories are black boxes: paths into and out of them
are not counted.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from msgspec import Struct

from siliconloom.arch.errors import LoomError
from siliconloom.rtl.synthesis.liberty import liberty_text, linked
from siliconloom.rtl.synthesis.module import CLOCK

NETLIST = "netlist.v"
ASSUMED = "no wires; inputs and outputs at the clock's edge; paths into and out of memories are not counted"
"""What every frequency by `static_timing` holds under."""
LONGEST_NS = 1000.0
"""The longest clock period that OpenSTA is asked about: it counts in single precision, and delays depend on none."""
_STEP = re.compile(r"^\s+(-?\d+\.\d+)\s+(-?\d+\.\d+) [v^] (\S+)/\S+ \((\w+)\)$", re.MULTILINE)


class StaticTiming(Struct, frozen=True):
    """What OpenSTA said of a netlist.

    Parameters
    ----------
    tool
        Its name and version.
    period_ns
        Clock period that was asked for.
    slack_ns
        The least slack at it; negative where the netlist is slower.
    begins, ends
        Registers, or ports, between which the slowest path runs, by the names of signals where these have kept them.
    cells
        Cells on that path, the register at its beginning among them.
    """

    tool: str
    period_ns: float
    slack_ns: float
    begins: str
    ends: str
    cells: int

    @property
    def mhz(self) -> float:
        """Clock frequency at which the least slack is nothing."""
        return 1000 / (self.period_ns - self.slack_ns)


def sta_command() -> str | None:
    """Path of OpenSTA, where it is installed."""
    return shutil.which("sta")


def static_timing(command: str, liberty: Path, top: str, period_ns: float, folder: Path) -> StaticTiming:
    """Analyse the netlist that lies in ``folder``.

    Raises
    ------
    LoomError
        When OpenSTA finds no path between registers or ports, or stops with an error.
    """
    asked_ns = min(period_ns, LONGEST_NS)
    script = [
        f"read_liberty {linked(liberty, folder)}",
        f"read_verilog {NETLIST}",
        f"link_design {top}",
        f"create_clock -name {CLOCK} -period {asked_ns} [get_ports {CLOCK}]",
        f"set_input_delay 0 -clock {CLOCK} [all_inputs]",
        f"set_output_delay 0 -clock {CLOCK} [all_outputs]",
        "report_checks -path_delay max -digits 4",
        "exit",
    ]
    (folder / "timing.tcl").write_text("\n".join([*script, ""]), encoding="utf-8")
    done = subprocess.run(
        [command, "-exit", "timing.tcl"], cwd=folder, capture_output=True, encoding="utf-8", errors="replace"
    )
    output = done.stdout + done.stderr
    slack = re.search(r"^\s+(-?\d+\.\d+)\s+slack", output, re.MULTILINE)
    ends = re.findall(r"^(?:Startpoint|Endpoint): (\S+)", output, re.MULTILINE)
    if slack is None or len(ends) != 2:
        errors = [line.strip() for line in output.splitlines() if "Error" in line]
        model = "delay_model" in liberty_text(liberty)
        why = "no register has timing, or nothing is clocked" if model else "the library names no delay_model"
        raise LoomError(f"OpenSTA found no path in {top}: {errors[0] if errors else why}")
    version = re.search(r"OpenSTA (\d\S*)", output)
    netlist = (folder / NETLIST).read_text(encoding="utf-8")
    begins, stops = (_signal(each, netlist, top) for each in ends)
    tool = f"OpenSTA {version[1]}" if version else "OpenSTA"
    through = {step[2] for step in _STEP.findall(output)} - {ends[1]}
    slack_ns = float(slack[1]) + (period_ns - asked_ns)
    return StaticTiming(tool, period_ns, slack_ns, begins, stops, len(through))


def _signal(cell: str, netlist: str, top: str) -> str:
    """The signal that a register holds, which a designer knows it by, within its modules; a port's own name."""
    *path, last = cell.split("/")
    module: str | None = top
    for name in path:
        inside = _module(netlist, module)
        placed = re.search(rf"^  \\?(\S+) \\?{re.escape(name)} *\($", inside, re.MULTILINE)
        module = placed[1] if placed else None
    found = re.search(rf"^  \w+ \\?{re.escape(last)} *\((.*?)\);$", _module(netlist, module), re.MULTILINE | re.DOTALL)
    held = re.search(r"\.Q\(\\?([^)]+?) ?\)", found[1]) if found else None
    return "/".join([*path, held[1]]) if held else cell


def _module(netlist: str, name: str | None) -> str:
    """What a netlist has between a module's beginning and its end; nothing of one that is not there."""
    begins = re.search(rf"^module \\?{re.escape(name)} *\(", netlist, re.MULTILINE) if name else None
    return netlist[begins.start() : netlist.index("\nendmodule", begins.start())] if begins else ""


__all__ = ["ASSUMED", "StaticTiming", "sta_command", "static_timing"]
