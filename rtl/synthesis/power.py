"""The energy of a netlist of a library's cells, from how often each of its nets changed.

A change of a net charges or discharges the pins that it drives, half of C V^2; its driver takes the energy that its
tables say for the slews at its inputs and that load; an input takes what its own tables say. Wires have no length, and
the clock has no tree: its pins are driven by nothing. What a cell leaks does not depend on what it does. So an energy
of the library's corner comes out, without what a layout adds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.rtl.synthesis.liberty import CellLibrary, LookupTable, Numbers

SWEEPS = 6
"""Times that slews are found anew from those before them: each lasts for a few cells."""


class NetlistEnergy(Struct, frozen=True):
    """Joules of a netlist over some cycles, and watts that it leaks.

    Parameters
    ----------
    clock
        Of registers, by transitions of their clock.
    registers
        Of registers otherwise, with what they drive.
    logic
        Of all other cells, with what they drive; and of inputs, with what these drive.
    leakage
        Watts.
    cells
        How many there are.
    changes
        Of all nets but the clock.
    """

    clock: float
    registers: float
    logic: float
    leakage: float
    cells: int
    changes: int

    @property
    def dynamic(self) -> float:
        """All but leakage, in joules."""
        return self.clock + self.registers + self.logic


class Netlist:
    """A flat netlist as Yosys writes it to JSON.

    Parameters
    ----------
    path
        The file.
    top
        The module.

    Raises
    ------
    LoomError
        When it has cells that are not the library's.
    """

    def __init__(self, path: Path, top: str, library: CellLibrary) -> None:
        module = json.loads(path.read_text(encoding="utf-8"))["modules"][top]
        self.names: dict[str, list[Any]] = {name: net["bits"] for name, net in module["netnames"].items()}
        self.cells: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for cell in module["cells"].values():
            pins = {pin: bits[0] for pin, bits in cell["connections"].items() if bits}
            self.cells[cell["type"]].append(pins)
        unknown = sorted(self.cells.keys() - library.cells.keys())
        if unknown:
            raise LoomError(
                f"{library.name}: no cell {unknown[0]}, which is left in the netlist: power is of its cells"
            )
        self.library = library

    def energy(self, changes: Mapping[Any, int], clock: str) -> NetlistEnergy:
        """What so many changes of each net, by its number, take; ``clock`` is the name of the clock's port."""
        library, (clocked,) = self.library, self.names[clock]
        count = 1 + max((bit for bits in self.names.values() for bit in bits if isinstance(bit, int)), default=0)
        times = np.zeros(count)
        for bit, number in changes.items():
            times[bit] = number
        load = np.zeros(count)
        pins = {kind: _columns(cells) for kind, cells in self.cells.items()}
        for kind, columns in pins.items():
            for pin, farads in library.cells[kind].inputs.items():
                if pin in columns:
                    np.add.at(load, columns[pin], farads)
        slews = self._slews(pins, load, count)
        half = library.volts**2 * library.farads  # a joule of a library's table is its capacitance times volts squared
        clock_energy = registers = logic = leakage = 0.0
        driven = np.zeros(count, bool)
        for kind, columns in pins.items():
            cell, holds = library.cells[kind], False
            leakage += cell.leakage * len(next(iter(columns.values())))
            own = 0.0
            for pin in cell.inputs.keys() & columns.keys():
                nets = columns[pin]
                taken = times[nets] * _mean(cell.input_energy[pin], slews[nets], np.zeros(len(nets))) * library.farads
                clocks = nets == clocked
                holds |= bool(clocks.any())
                clock_energy += float(taken[clocks].sum())
                own += float(taken[~clocks].sum())
            for pin, output in cell.outputs.items():
                if pin not in columns:
                    continue
                nets = columns[pin]
                driven[nets] = True
                inside = _mean(output.energy, self._before(cell.inputs, columns, slews), load[nets]) * library.farads
                own += float((times[nets] * (inside + half * load[nets] / 2)).sum())
            if holds:
                registers += own
            else:
                logic += own
        clock_energy += times[clocked] * half * load[clocked] / 2
        inputs = ~driven
        inputs[clocked] = False
        logic += float((times[inputs] * half * load[inputs] / 2).sum())
        times[clocked] = 0
        return NetlistEnergy(
            clock_energy, registers, logic, leakage, sum(map(len, self.cells.values())), int(times.sum())
        )

    def _slews(self, pins: Mapping[str, Mapping[str, NDArray[np.int64]]], load: Numbers, count: int) -> Numbers:
        """The slew of every net; inputs and the clock are steps."""
        slews = np.zeros(count)
        for _ in range(SWEEPS):
            found = slews.copy()
            for kind, columns in pins.items():
                cell = self.library.cells[kind]
                for pin, output in cell.outputs.items():
                    if pin in columns and output.slew:
                        nets = columns[pin]
                        found[nets] = _mean(output.slew, self._before(cell.inputs, columns, slews), load[nets])
            slews = np.maximum(found, 0)
        return slews

    @staticmethod
    def _before(inputs: Mapping[str, float], columns: Mapping[str, NDArray[np.int64]], slews: Numbers) -> Numbers:
        """The mean slew at the inputs of cells of one kind."""
        found = [slews[columns[pin]] for pin in inputs if pin in columns]
        return np.asarray(np.mean(found, axis=0))


def _columns(cells: list[dict[str, Any]]) -> dict[str, NDArray[np.int64]]:
    """Nets by pin of cells of one kind; what is constant is net 0, which never changes."""
    pins = {pin for cell in cells for pin in cell}
    return {
        pin: np.array([bit if isinstance(bit := cell.get(pin, 0), int) else 0 for cell in cells], np.int64)
        for pin in sorted(pins)
    }


def _mean(tables: tuple[LookupTable, ...], slews: Numbers, loads: Numbers) -> Numbers:
    """The mean of some tables; nothing where there are none."""
    if not tables:
        return np.zeros(len(slews))
    return np.asarray(np.mean([table.at(slews, loads) for table in tables], axis=0))


def changes_of(path: Path, names: Mapping[str, list[Any]], clock: str, cycles: int) -> dict[int, int]:
    """How often each net changed in a VCD file, by its number, between known values.

    Parameters
    ----------
    path
        The file, of the nets of one module.
    names
        Bits of each net by its name, the least significant one first.
    clock, cycles
        Changes count until this net has risen so often.
    """
    nets, values, found = dict[str, list[Any]](), dict[str, str](), defaultdict[Any, int](int)
    (clocked,), rises, told = names[clock], 0, set[Any]()  # a net may have several names
    with path.open(encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("$var"):
                _, _, width, short, name, *_ = line.split()
                bits = names.get(name.removeprefix("\\"))
                if bits is not None and len(bits) == int(width):
                    nets[short] = [bit if bit not in told else None for bit in bits]
                    told.update(bits)
            elif line.startswith("$enddefinitions"):
                break
        for line in file:
            first = line[0]
            if first in "01":
                short, value = line[1:].rstrip("\n"), first
            elif first == "b":
                value, short = line[1:].rstrip("\n").split(" ")
            elif first in "xz":
                values[line[1:].rstrip("\n")] = "x"
                continue
            else:
                continue
            own = nets.get(short)
            if own is None:
                continue
            before, values[short] = values.get(short), value
            if before is None:
                continue
            if own == [clocked] and value == "1" and before == "0":
                if rises == cycles:
                    break
                rises += 1
            if len(own) == 1:
                found[own[0]] += before != "x" and before != value
            else:
                digits = (_filled(each, len(own)) for each in (before, value))
                for bit, one, other in zip(reversed(own), *digits, strict=True):
                    found[bit] += one != other and one in "01" and other in "01"
    return {bit: number for bit, number in found.items() if isinstance(bit, int)}


def _filled(value: str, width: int) -> str:
    """All digits of a vector, of which VCD leaves out leading ones."""
    return value.rjust(width, "0" if value[0] in "01" else value[0])


__all__ = ["Netlist", "NetlistEnergy", "changes_of"]
