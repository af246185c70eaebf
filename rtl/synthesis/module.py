"""One module of a design by itself, between registers, so that it has an area and a clock of its own."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.rtl.emit import Bundle

PORT = re.compile(r"^  (input|output) (?:wire |reg )?(?:\[(\d+):0\] )?(\S+) ?;$", re.MULTILINE)
"""A declaration of a port in what is emitted."""
INSTANCE = re.compile(r"^  (\w+) (?:#\(.*\) )?\S+ +\($", re.MULTILINE)
"""The beginning of an instance in what is emitted."""
CLOCK = "clk"
SHOWN = 6
"""Names of modules that a message lists."""


class ModulePort(Struct, frozen=True):
    """A port of a module: its name, its bits, and whether it is an input."""

    name: str
    width: int
    is_input: bool


def module_ports(text: str) -> list[ModulePort]:
    """The ports that a module's Verilog declares."""
    found = PORT.findall(text)
    return [ModulePort(name, int(high or 0) + 1, direction == "input") for direction, high, name in found]


def module_of(bundle: Bundle, name: str) -> Bundle:
    """The design whose top is a module of ``bundle``.

    Its FPGA top feeds every input from a shift register and takes every output into a register, whose bits are
    reduced to one pin: paths into and out of the module count as they do between registers of its neighbours.

    Raises
    ------
    LoomError
        For a name that no module has; names have no prefix.
    """
    prefix = f"{bundle.top}_"
    name = name.removeprefix(prefix)
    modules = [file.removesuffix(".v").removeprefix(prefix) for file in bundle.sidecar["verilog"][1:]]
    if name not in modules:
        near = nearest_name(name, modules)
        hint = f"; did you mean '{near}'?" if near else ""
        more = f" and {len(modules) - SHOWN} more" if len(modules) > SHOWN else ""
        raise LoomError(
            f"--module: {bundle.top} has no module '{name}'{hint}; it has {', '.join(sorted(modules)[:SHOWN])}{more}"
        )
    top = f"{prefix}{name}"
    fpga = f"{top}_between_registers"
    file = f"fpga/{fpga}.v"
    text = harness(fpga, top, module_ports(bundle.files[f"{top}.v"]))
    within = _within(bundle, top)
    sidecar = bundle.sidecar | {
        "top": top,
        "memories": [memory for memory in bundle.sidecar["memories"] if memory["module"] in within],
        "contains": f"the module {name} alone",
        "fpga": {"top": fpga, "verilog": [file]},
    }
    return replace(bundle, files=bundle.files | {file: text}, top=top, sidecar=sidecar)


def _within(bundle: Bundle, top: str) -> set[str]:
    """Names of a module and of all that it contains."""
    found, waiting = {top}, [top]
    while waiting:
        inside = {kind for kind in INSTANCE.findall(bundle.files[f"{waiting.pop()}.v"]) if f"{kind}.v" in bundle.files}
        waiting += inside - found
        found |= inside
    return found


def harness(name: str, module: str, ports: list[ModulePort]) -> str:
    """Verilog of a module ``name`` with three pins, which holds ``module`` between registers."""
    inputs = [port for port in ports if port.is_input and port.name != CLOCK]
    outputs = [port for port in ports if not port.is_input]
    fed, taken = sum(port.width for port in inputs), sum(port.width for port in outputs)
    clocked = [f".{CLOCK}({CLOCK})"] if any(port.name == CLOCK for port in ports) else []
    wires = [*clocked, *_slices("fed", inputs), *_slices("given", outputs)]
    return "\n".join(
        [
            f"module {name}(input {CLOCK}, input shifted_in, output reg reduced_out);",
            f"  reg [{fed - 1}:0] fed;",
            f"  reg [{taken - 1}:0] taken;",
            f"  wire [{taken - 1}:0] given;",
            f"  always @(posedge {CLOCK}) begin",
            f"    fed <= {{fed[{fed - 2}:0], shifted_in}};" if fed > 1 else "    fed <= shifted_in;",
            "    taken <= given ^ (taken << 1);",
            f"    reduced_out <= taken[{taken - 1}];",
            "  end",
            f"  {module} part ({', '.join(wires)});",
            "endmodule",
            "",
        ]
    )


def _slices(vector: str, ports: list[ModulePort]) -> list[str]:
    """Connections of ports to the bits of a vector, the first in the low ones."""
    made, low = [], 0
    for port in ports:
        made.append(f".{port.name} ({vector}[{low + port.width - 1}:{low}])")
        low += port.width
    return made


__all__ = ["ModulePort", "harness", "module_ports", "module_of"]
