"""Who may import whom: the folders are the architecture, and this test keeps them so."""

import ast
import os
from pathlib import Path

import networkx
import pytest

import siliconloom

PACKAGE = Path(siliconloom.__file__).parent
PARTS = ("arch", "rtl", "workloads", "sim", "mapper", "baselines")
ALLOWED = {
    "arch": (),
    "workloads": ("arch",),
    "rtl": ("arch",),
    "sim": ("arch",),
    "mapper": ("arch", "workloads", "sim.timing"),
    "baselines": ("arch", "workloads"),
}


def imports(source):
    """Names of siliconloom's own modules that ``source`` imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name.removeprefix("siliconloom.") for name in found if name and name.startswith("siliconloom.")}


def forbidden(part, source):
    """Imports of ``source`` that a module of ``part`` may not make."""
    bad = set()
    for name in imports(source):
        top = name.partition(".")[0]
        if top == part:
            continue
        # `from siliconloom.sim.timing import x` names the package sim on its way
        near = any(name == a or name.startswith(a + ".") or a.startswith(name + ".") for a in ALLOWED[part])
        if not near:
            bad.add(name)
    return bad


def modules(part):
    return sorted((PACKAGE / part).rglob("*.py"))


@pytest.mark.parametrize("part", PARTS)
def test_a_part_imports_only_what_lies_below_it(part):
    assert modules(part)
    broken = {str(p.name): bad for p in modules(part) if (bad := forbidden(part, p.read_text()))}
    assert broken == {}


def test_no_module_imports_itself_in_a_circle():
    names = {}
    every = [Path(at) / name for at, _, found in os.walk(PACKAGE, followlinks=True) for name in found]
    for path in (each for each in every if each.suffix == ".py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = networkx.DiGraph()
    for name, path in names.items():
        for other in imports(path.read_text()):
            if other in names and other != name and "." in other:
                graph.add_edge(name, other)
    cycles = [c for c in networkx.simple_cycles(graph) if all(not names[n].name.startswith("__init__") for n in c)]
    assert cycles == []


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("arch", "from siliconloom.sim.engine import run"),
        ("mapper", "import siliconloom.sim.engine"),
        ("workloads", "def f():\n    from siliconloom.mapper import plan"),
        ("sim", "from siliconloom.rtl.emit import build_rtl"),
        ("rtl", "from siliconloom.cli import main"),
    ],
)
def test_a_planted_violation_is_found(part, line):
    assert forbidden(part, line)


def test_the_front_door_may_import_everything():
    used = set()
    for path in PACKAGE.glob("*.py"):
        used |= {name.partition(".")[0] for name in imports(path.read_text())}
    assert used >= {"arch", "rtl", "workloads", "sim", "mapper"}
