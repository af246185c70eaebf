"""What is wrong with a design's Verilog whatever it is mapped to: latches, drivers in conflict, combinational loops.

Latches and drivers are a matter of each module alone, and so are most loops. A loop through several modules is looked
for in a graph of what depends on what: of each distinct module, children first, which of its outputs follow which of
its inputs within a cycle. A word counts as one thing there, so that a loop may be seen where there is none: only then
is the whole design flattened, and looked through bit by bit, which takes npu-edge a minute and 5 GiB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from siliconloom.arch.errors import CheckFailed
from siliconloom.rtl.synthesis.yosys import YosysError, run_yosys

LATCHES = "t:$dlatch t:$adlatch t:$dlatchsr t:$sr"
BITWISE = frozenset({"$and", "$or", "$xor", "$xnor", "$not", "$pos", "$mux"})
"""Cells each bit of whose result follows from one bit of every operand, and from the select."""
NETLIST = "checked.json"

Follows = dict[str, frozenset[str]]
"""Inputs of a module that an output of it follows within a cycle, by the names of its ports."""
Bits = Sequence[int | str]
"""Bits of a connection, as Yosys numbers them; constants are texts."""


def structure_checks() -> list[str]:
    """Yosys commands that fail on latches, combinational loops and conflicting drivers in the design read last."""
    return ["proc", f"select -assert-none {LATCHES}", "flatten", "check -assert"]


def check_structure(reading: Sequence[str], top: str, folder: Path) -> None:
    """Raise `CheckFailed` for latches, combinational loops and conflicting drivers.

    Parameters
    ----------
    reading
        Yosys commands that read the design.
    top
        Its top module.
    folder
        Where its files lie; what Yosys made of it is written there.
    """
    begin = [*reading, f"hierarchy -check -top {top}"]
    apart = ["proc", f"select -assert-none {LATCHES}", "check -assert", f"write_json {NETLIST}"]
    try:
        run_yosys([*begin, *apart], folder)
        if may_loop(json.loads((folder / NETLIST).read_text(encoding="utf-8"))["modules"], top):
            run_yosys([*begin, *structure_checks()], folder)
    except YosysError as error:
        raise CheckFailed(f"{top}: latches, loops or conflicts: {error}") from None


def may_loop(modules: Mapping[str, Any], top: str) -> bool:
    """Whether a design may have a combinational loop, or an input that nothing drives; sure where it says no.

    Parameters
    ----------
    modules
        The modules of Yosys' ``write_json``, of a design whose processes are cells.
    top
        Name of the top module.
    """
    known: dict[str, Follows] = {}
    try:
        for name in TopologicalSorter(
            {name: _children(each, modules) for name, each in modules.items()}
        ).static_order():
            try:
                known[name] = _follows(modules[name], known, modules, by_bit=False)
            except CycleError:
                known[name] = _follows(modules[name], known, modules, by_bit=True)
    except (CycleError, _Unknown):
        return True
    return top not in known


class _Unknown(Exception):
    """A module has something of which it is not known what follows what."""


def _children(module: Mapping[str, Any], modules: Mapping[str, Any]) -> set[str]:
    return {cell["type"] for cell in module["cells"].values()} & modules.keys()


def _follows(
    module: Mapping[str, Any], known: Mapping[str, Follows], modules: Mapping[str, Any], *, by_bit: bool
) -> Follows:
    """What a module's outputs follow; raises `CycleError` where something of it follows itself.

    With ``by_bit`` every bit of a bitwise cell stands for itself.
    """
    driver: dict[int | str, int] = {}
    sources: list[Bits] = []
    inputs: dict[int, str] = {}

    def node(made: Bits, read: Bits) -> int:
        sources.append(read)
        driver.update(dict.fromkeys(made, len(sources) - 1))
        return len(sources) - 1

    for name, port in module["ports"].items():
        if port["direction"] == "input":
            inputs[node(port["bits"], ())] = name
        elif port["direction"] != "output":
            raise _Unknown(name)
    for cell in module["cells"].values():
        for made, read in _paths(cell, known, modules, by_bit):
            node(made, read)
    for constant in "01xz":
        driver.pop(constant, None)
    graph = {at: {driver[bit] for bit in read if bit in driver} for at, read in enumerate(sources)}
    reached: dict[int, frozenset[str]] = {}
    for at in TopologicalSorter(graph).static_order():
        reached[at] = frozenset({inputs[at]}) if at in inputs else frozenset().union(*(reached[k] for k in graph[at]))
    return {
        name: frozenset().union(*(reached[k] for k in {driver[bit] for bit in port["bits"] if bit in driver}))
        for name, port in module["ports"].items()
        if port["direction"] == "output"
    }


def _paths(
    cell: Mapping[str, Any], known: Mapping[str, Follows], modules: Mapping[str, Any], by_bit: bool
) -> Iterator[tuple[Bits, Bits]]:
    """Bits that a cell makes, and those that they follow within a cycle: none in a register."""
    kind, bits = cell["type"], cell["connections"]
    if kind in known:
        ports = {
            name: len(port["bits"]) for name, port in modules[kind]["ports"].items() if port["direction"] == "input"
        }
        if any(len(bits.get(name, ())) < width for name, width in ports.items()):
            raise _Unknown(kind)
        for output, follows in known[kind].items():
            yield bits.get(output, ()), [bit for name in follows for bit in bits[name]]
        return
    if not kind.startswith("$"):
        raise _Unknown(kind)
    if "dff" in kind or (kind == "$memrd_v2" and int(cell["parameters"]["CLK_ENABLE"], 2)):
        return
    ways = cell["port_directions"]
    made = [bit for name, way in ways.items() if way == "output" for bit in bits[name]]
    if by_bit and kind in BITWISE:
        operands = [bits[name] for name in ("A", "B") if name in bits]
        select = bits.get("S", [])
        for at, bit in enumerate(made):
            yield [bit], [*(each[min(at, len(each) - 1)] for each in operands), *select]
    elif made:
        yield made, [bit for name, way in ways.items() if way == "input" for bit in bits[name]]


__all__ = ["LATCHES", "check_structure", "may_loop", "structure_checks"]
