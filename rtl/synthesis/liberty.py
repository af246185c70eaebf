"""Cell libraries in the Liberty format, as far as energy goes: capacitances, tables of energy and slew, leakage.

The format is a tree of groups ``name (arguments) { ... }`` with attributes ``name : value;`` and
``name (values);``. Units are the file's own: an energy is its unit of capacitance times volts squared (Synopsys,
*Liberty User Guides and Reference Manual*, "Modeling Power and Electromigration").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError

Numbers = NDArray[np.float64]
_TOKEN = re.compile(r'"([^"]*)"|([(){}:;,])|((?:[^\s(){}:;,"\\/]|/(?!\*))+)|(/\*.*?\*/|\\|\s+)', re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_COMMENT = re.compile(r"/\*.*?\*/|^[ \t]*//[^\n]*", re.DOTALL | re.MULTILINE)
_AREA = re.compile(r"(?<![\w\"])area[ \t]*:([^;\n}]*)")
_TIMING = re.compile(r"\btiming\s*\(")
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x19\x1b-\x1f\x7f]")
_SCALES = {"f": 1e-15, "p": 1e-12, "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}
LIBRARY = "cells.lib"
"""What a library's file is called where tools work with it."""


class LibertyGroup(Struct):
    """A group of a Liberty file: its name, its arguments, what it says and the groups in it."""

    name: str
    arguments: list[str]
    values: dict[str, list[str]] = field(default_factory=dict)
    groups: list[LibertyGroup] = field(default_factory=list)

    def of(self, *names: str) -> Iterator[LibertyGroup]:
        """The groups in it that have one of these names."""
        return (each for each in self.groups if each.name in names)

    def text(self, name: str) -> str:
        """An attribute as text, empty where it is not there."""
        return " ".join(self.values.get(name, []))

    def number(self, name: str, default: float) -> float:
        """An attribute as a number."""
        found = _NUMBER.match(self.text(name).strip())
        return default if found is None else float(found[0])


class LookupTable(Struct, frozen=True):
    """A quantity by input slew and load, or by slew alone, or a constant; linear between its points and beyond them.

    Parameters
    ----------
    slews, loads
        Of rows and of columns.
    values
        Of shape (slews, loads).
    """

    slews: Numbers
    loads: Numbers
    values: Numbers

    def at(self, slew: Numbers, load: Numbers) -> Numbers:
        """Values at many slews and loads."""
        row, across = _between(self.slews, slew)
        column, along = _between(self.loads, load)
        rows, columns = (len(self.slews) > 1), (len(self.loads) > 1)
        v = self.values
        low = v[row, column] * (1 - along) + v[row, column + columns] * along
        high = v[row + rows, column] * (1 - along) + v[row + rows, column + columns] * along
        return np.asarray(low * (1 - across) + high * across)


class CellOutput(Struct, frozen=True):
    """An output of a cell: tables that each hold for one input, or one direction, and count alike.

    Parameters
    ----------
    energy
        Of a transition, by slew and load, beside what charges the load.
    slew
        That it has.
    delay
        From an input to it, in the library's unit of time: the median of its tables.
    """

    energy: tuple[LookupTable, ...]
    slew: tuple[LookupTable, ...]
    delay: float


class Cell(Struct, frozen=True):
    """A cell.

    Parameters
    ----------
    leakage
        Watts.
    inputs
        Capacitance of each input, in the library's unit.
    input_energy
        Of a transition of an input that no output follows, by slew.
    outputs
        By pin.
    """

    leakage: float
    inputs: dict[str, float]
    input_energy: dict[str, tuple[LookupTable, ...]]
    outputs: dict[str, CellOutput]


class CellLibrary(Struct, frozen=True):
    """A library.

    Parameters
    ----------
    name
        Its own.
    volts
        Supply.
    farads, seconds
        Its units of capacitance and of time.
    cells
        By name.
    """

    name: str
    volts: float
    farads: float
    seconds: float
    cells: dict[str, Cell]

    @property
    def has_energies(self) -> bool:
        """Whether any cell says what it takes inside."""
        return any(out.energy for cell in self.cells.values() for out in cell.outputs.values())

    @property
    def has_delays(self) -> bool:
        """Whether any cell says how long it takes."""
        return any(out.delay > 0 for cell in self.cells.values() for out in cell.outputs.values())


def read_library(path: Path) -> CellLibrary:
    """The cells of a Liberty file.

    Raises
    ------
    LoomError
        When it is not there or no Liberty file, with its line, or says no supply.
    """
    check_plain(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    root = parse(text, str(path))
    volts = root.number("nom_voltage", 0.0)
    if _unit(root.text("voltage_unit"), 1.0) != 1.0:
        raise LoomError(f"{path}: voltage_unit: 1V was expected (got {root.text('voltage_unit')})")
    if volts <= 0:
        raise LoomError(f"{path}: a supply was expected (nom_voltage)")
    loads = root.values.get("capacitive_load_unit") or ["1", "pf"]
    unit = re.fullmatch(r"([fpnum]?)f", loads[-1].lower())
    if len(loads) != 2 or unit is None or _NUMBER.fullmatch(loads[0]) is None:
        raise LoomError(f"{path}: capacitive_load_unit: a number and ff or pf were expected (got {', '.join(loads)})")
    farads = float(loads[0]) * _SCALES[unit[1]]
    watts, seconds = _unit(root.text("leakage_power_unit"), 1e-9), _unit(root.text("time_unit"), 1e-9)
    templates = {each.arguments[0]: each for each in root.groups if each.name.endswith("template") and each.arguments}
    cells = {each.arguments[0]: _cell(each, templates, watts) for each in root.of("cell") if each.arguments}
    return CellLibrary(root.arguments[0] if root.arguments else path.stem, volts, farads, seconds, cells)


def check_plain(path: Path) -> None:
    """Refuse a file that is not there, or is no text, with its line; raises `LoomError`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LoomError(f"{path}: {error.strerror}") from None
    if content.startswith(b"\x1f\x8b"):
        raise LoomError(f"{path}: compressed; unpack it (gunzip)")
    if found := _NO_TEXT.search(content):
        line = content.count(b"\n", 0, found.start()) + 1
        raise LoomError(f"{path}:{line}: no Liberty file: text was expected (got the byte 0x{found[0].hex()})")


def check_areas(path: Path) -> None:
    """Refuse a file in which an area is no number from 0 on, with its line; raises `LoomError`."""
    text = liberty_text(path)
    for found in _AREA.finditer(text):
        area = found[1].strip().strip('"').strip()
        if _NUMBER.fullmatch(area) is None or float(area) < 0:
            line = text.count("\n", 0, found.start()) + 1
            raise LoomError(f"{path}:{line}: area: a number from 0 on was expected (got {area})")


def has_timing(path: Path) -> bool:
    """Whether the file says how long any cell takes."""
    return _TIMING.search(liberty_text(path)) is not None


def liberty_text(path: Path) -> str:
    """A Liberty file's text without what its comments say; lines stay lines."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)


def linked(path: Path, folder: Path) -> str:
    """Name of a link to the file in a folder: Yosys, ABC and OpenSTA each read some names of files otherwise."""
    link = folder / LIBRARY
    link.unlink(missing_ok=True)
    link.symlink_to(path.resolve())
    return LIBRARY


def parse(text: str, name: str) -> LibertyGroup:
    """The library of a Liberty file, which errors call ``name``; raises `LoomError` with its line."""
    position, line, tokens = 0, 1, list[_Token]()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise LoomError(f"{name}:{line}: no Liberty file (got {text[position]!r})")
        if found[4] is None:
            word = found[3] if found[1] is None else found[1]
            tokens.append((found[2] or "word", word or "", line))
        line += found[0].count("\n")
        position = found.end()
    reader = _Reader(tokens, name)
    root = reader.group()
    if root.name != "library":
        raise LoomError(f"{name}: no Liberty file: a group library was expected (got {root.name})")
    return root


_Token = tuple[str, str, int]
"""Its kind, a mark or ``word``; a word's text; its line."""


class _Reader:
    """Reads groups from tokens."""

    def __init__(self, tokens: Sequence[_Token], name: str) -> None:
        self.tokens, self.name, self.at = [*tokens, ("its end", "", tokens[-1][2] if tokens else 1)], name, 0

    def kind(self, ahead: int = 0) -> str:
        """What comes."""
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)][0]

    def take(self, kind: str) -> str:
        """What must come."""
        found, text, line = self.tokens[self.at]
        if found != kind:
            raise LoomError(f"{self.name}:{line}: no Liberty file: {kind} was expected (got {found})")
        self.at += 1
        return text

    def words(self) -> list[str]:
        """Words, with commas or without."""
        found = []
        while self.kind() in ("word", ","):
            if self.kind() == "word":
                found.append(self.tokens[self.at][1])
            self.at += 1
        return found

    def rest(self) -> list[str]:
        """A value, up to its semicolon or the end of its line."""
        found, line = [], self.tokens[self.at][2]
        while self.kind() in ("word", ",", "(", ")") and self.tokens[self.at][2] == line:
            found.append(self.tokens[self.at][1])
            self.at += 1
        return found

    def group(self) -> LibertyGroup:
        """A group, with all that is in it."""
        name = self.take("word")
        self.take("(")
        made = LibertyGroup(name, self.words())
        self.take(")")
        self.take("{")
        while self.kind() != "}":
            if self.kind() == ";":
                self.at += 1
            elif self.kind(1) == ":":
                attribute = self.take("word")
                self.take(":")
                made.values[attribute] = self.rest()
            else:
                start, attribute = self.at, self.take("word")
                self.take("(")
                values = self.words()
                self.take(")")
                if self.kind() == "{":
                    self.at = start
                    made.groups.append(self.group())
                else:
                    made.values[attribute] = values
        self.take("}")
        return made


def _unit(text: str, default: float) -> float:
    """A unit such as 1nW or 10ps."""
    found = re.match(r"\s*(\d+\.?\d*)\s*([fpnum]?)[sWAV]", text)
    return default if found is None else float(found[1]) * _SCALES[found[2]]


def _cell(group: LibertyGroup, templates: dict[str, LibertyGroup], watts: float) -> Cell:
    inputs, input_energy, outputs = dict[str, float](), dict[str, tuple[LookupTable, ...]](), dict[str, CellOutput]()
    for pin in group.of("pin"):
        energy = tuple(
            _table(table, templates) for way in pin.of("internal_power") for table in way.of(*_ways("power"))
        )
        for name in pin.arguments:
            if pin.text("direction") == "input":
                inputs[name] = pin.number("capacitance", 0.0)
                input_energy[name] = energy
            elif pin.text("direction") == "output":
                timing = [(each, way) for way in pin.of("timing") for each in way.groups]
                slew = tuple(_table(each, templates) for each, _ in timing if each.name in _ways("transition"))
                delays = [
                    _table(each, templates).values for each, _ in timing if each.name in ("cell_rise", "cell_fall")
                ]
                delay = float(np.median(np.concatenate([each.ravel() for each in delays]))) if delays else 0.0
                outputs[name] = CellOutput(energy, slew, max(delay, 0.0))
    return Cell(group.number("cell_leakage_power", 0.0) * watts, inputs, input_energy, outputs)


def _ways(what: str) -> tuple[str, str, str]:
    return f"rise_{what}", f"fall_{what}", what


def _table(group: LibertyGroup, templates: dict[str, LibertyGroup]) -> LookupTable:
    """A table by slew and load, whatever the order of its template."""
    template = templates.get(group.arguments[0]) if group.arguments else None
    values = np.array(_numbers(group.values.get("values", [])))
    axes = dict[str, Numbers]()
    for number in (1, 2):
        named = template.text(f"variable_{number}") if template is not None else ""
        own = group.values.get(f"index_{number}") or (template.values.get(f"index_{number}") if template else None)
        if own and named:
            axes["load" if "capacitance" in named else "slew"] = np.array(_numbers(own))
    order = list(axes)
    shaped = values.reshape([len(axis) for axis in axes.values()]) if axes else values[:1].reshape(())
    if order == ["load", "slew"]:
        shaped = shaped.T
    slews, loads = axes.get("slew", np.zeros(1)), axes.get("load", np.zeros(1))
    return LookupTable(slews, loads, shaped.reshape(len(slews), len(loads)))


def _numbers(texts: Sequence[str]) -> list[float]:
    return [float(number) for text in texts for number in _NUMBER.findall(text)]


def _between(axis: Numbers, at: Numbers) -> tuple[NDArray[np.int64], Numbers]:
    """The point of an axis below each value, and how far it is to the next one."""
    if len(axis) == 1:
        return np.zeros(len(at), np.int64), np.zeros(len(at))
    low = np.clip(np.searchsorted(axis, at, side="right") - 1, 0, len(axis) - 2)
    return low, (at - axis[low]) / (axis[low + 1] - axis[low])


__all__ = [
    "LIBRARY",
    "Cell",
    "CellLibrary",
    "CellOutput",
    "LookupTable",
    "check_areas",
    "check_plain",
    "has_timing",
    "liberty_text",
    "linked",
    "parse",
    "read_library",
]
