"""What the documents name exists: files, links between documents, modules."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from vcd.reader import TokenKind, tokenize

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGE = ROOT / "src" / "siliconloom"
PATH = re.compile(r"(?<![\w./-])((?:[\w.-]+/)+[\w-]+\.py|tests/[\w./-]*\w)")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
MODULE = re.compile(r"(?:-m |`)(?:siliconloom\.)?((?:benchmarks|tests|[a-z_]+)(?:\.\w+)+)")
FOREIGN = ("python/ramulator/",)
"""Folders of other projects that documents name."""
PLACEHOLDER = "NAME"
"""What stands for a name of the reader's own."""
pytestmark = pytest.mark.checkout


def missing_paths(text):
    """Python files, and whatever below ``tests``, that ``text`` names and nobody finds from the top or the package."""
    named = {path for path in PATH.findall(text) if not path.startswith(FOREIGN) and PLACEHOLDER not in path}
    return {path for path in named if not any((top / path).exists() for top in (ROOT, PACKAGE))}


def missing_links(text, folder):
    """Files that ``text`` links to and that are not there."""
    return {link for link in LINK.findall(text) if not (folder / link).exists()}


def missing_modules(text):
    """Names such as ``mapper.chip.mapping`` of which neither a module nor what it defines is there."""
    found = set()
    for name in MODULE.findall(text):
        parts = name.split(".")
        top = next((t for t in (PACKAGE, ROOT) if (t / parts[0] / "__init__.py").is_file()), None)
        if top is None or name.endswith((".py", ".md", ".yaml", ".json", ".csv")):
            continue
        place, rest = top, parts
        while rest and (place / rest[0]).is_dir():
            place, rest = place / rest[0], rest[1:]
        if rest and (place / f"{rest[0]}.py").is_file():
            place, rest = place / f"{rest[0]}.py", rest[1:]
        quoted, source = ("", place) if place.is_file() else ('"', place / "__init__.py")
        if rest and not re.search(rf"{quoted}\b{rest[0]}\b{quoted}", source.read_text(encoding="utf-8")):
            found.add(name)
    return found


def test_every_key_of_a_service_is_told_with_its_default():
    from siliconloom.arch.serving import ServeSettings

    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `serve\.(\w+)` \|([^|]*)\|", text, re.MULTILINE))
    assert set(told) == set(ServeSettings.model_fields)
    for name, value in ServeSettings().model_dump(mode="json").items():
        written = f"{value:g}" if isinstance(value, float) else str(value)
        if value is not None:
            assert told[name].strip("` ") == (written.lower() if isinstance(value, bool) else written)


def test_every_column_of_a_trace_is_told():
    from siliconloom.workloads.serving.trace import KNOWN

    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    assert {name for name in KNOWN if f"`{name}`" not in text} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_what_a_document_names_is_there(document):
    text = document.read_text(encoding="utf-8")
    assert missing_paths(text) == set()
    assert missing_links(text, document.parent) == set()
    assert missing_modules(text) == set()


def test_what_is_not_there_is_found():
    assert missing_paths("`sim/engine.py`, `tests/sim/test_engine.py`, tests/front/test_x.py") == {
        "sim/engine.py",
        "tests/front/test_x.py",
    }
    assert missing_links("[a](npu.md), [b](gone.md#part), [c](https://gone.md)", ROOT / "docs") == {"gone.md"}
    assert missing_modules("`mapper.chip.mapping.map_workload`, `python -m benchmarks.gone`, `sim.engine.run`") == {
        "benchmarks.gone",
        "sim.engine.run",
    }


PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
IMPORTS = re.compile(r"^(?:from|import) .*$", re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_what_python_in_a_document_imports_is_there(document):
    for block in PYTHON.findall(document.read_text(encoding="utf-8")):
        exec("\n".join(IMPORTS.findall(block)), {})


def test_the_example_of_long_contexts_runs():
    (block,) = PYTHON.findall((ROOT / "docs" / "context.md").read_text(encoding="utf-8"))
    names = {}
    exec(block, names)
    assert names["cost"].forward.seconds * 1e3 == pytest.approx(15.0, abs=0.05), "the table's row zigzag"


@pytest.mark.parametrize("extra", [None, "test", "dev", "docs", "fit"])
def test_the_lock_file_has_a_version_of_every_requirement_that_fits(extra):
    lines = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8").splitlines()
    locked = {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = project["optional-dependencies"].get(extra, project["dependencies"])
    for requirement in map(Requirement, listed):
        if requirement.name != "siliconloom":
            version = locked[requirement.name.lower().replace("_", "-")]
            assert requirement.specifier.contains(version, prereleases=True), requirement


TOUR = ROOT / "docs" / "tour.md"
STATION = re.compile(r"```\n((?:cat|loom (?!verify)|python|ls )(?:.*\n)+?)```\n+```\n((?:.*\n)+?)```")
"""Commands of the tour and what they print; Verilog simulators are run elsewhere."""
WAVEFORM = re.compile(r"```\n(cd out/tour/rtl\n(?:.*\n)+?)```\n+```\n((?:.*\n)+?)```")
"""The commands of the tour that run Verilog, and what they print."""
EDGES = re.compile(r"^\| ([\d, ]+) \| (`trace_\w+`(?:, `trace_\w+`)*) \| (\d) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
"""Rows of the table of the waveform: cycles, ports, the bit of the unit, and the same times as station 5 has them."""


@pytest.fixture
def tour(tmp_path):
    """A function that runs commands of the tour where their files may be written, and returns the lines they print."""
    (tmp_path / "out" / "tour").mkdir(parents=True)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, words in {"loom": "-m siliconloom", "python": ""}.items():
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (commands / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"}
    environment["PYTHONPATH"] = str(ROOT / "src")

    def run(command):
        done = subprocess.run(["bash", "-ec", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return {" ".join(line.split()) for line in done.stdout.splitlines()}

    return run


def shown_lines(text):
    """Lines of the tour that are printed as they stand, but for the width of columns: those without an ellipsis."""
    return {" ".join(line.split()) for line in text.splitlines() if "..." not in line}


@pytest.mark.slow(seconds=15)
def test_the_tour_shows_what_its_commands_print(tour):
    """The table of the waveform has the times that station 5 prints: those of starts, and the cycles before ends."""
    text = TOUR.read_text(encoding="utf-8")
    stations = STATION.findall(text)
    assert len(stations) == 6
    printed = [tour(command) for command, _ in stations]
    for lines, (_, shown) in zip(printed, stations, strict=True):
        assert shown_lines(shown) <= lines
    times = {time for line in printed[4] if re.fullmatch(r"[\d ]+", line) for time in line.split()[1:]}
    rows = EDGES.findall(text)
    assert len(rows) == 6
    for cycles, ports, _, named in rows:
        named_ports = ports.split(", ")
        ends = ["done" in named_ports[min(place, len(named_ports) - 1)] for place in range(cycles.count(",") + 1)]
        same = [str(int(cycle) + end) for cycle, end in zip(cycles.split(", "), ends, strict=True)]
        assert re.findall(r"\d+", named) == same
        assert set(same) <= times


@pytest.mark.slow
def test_the_tour_shows_what_its_waveform_has(tour, tmp_path):
    """Bits of the ports rise in the cycles of the table, as the file has them that Icarus writes."""
    if not shutil.which("iverilog"):
        pytest.skip("needs iverilog")
    text = TOUR.read_text(encoding="utf-8")
    ((command, shown),) = WAVEFORM.findall(text)
    tour("python examples/one_product.py out/tour/rtl")
    assert shown_lines(shown) <= tour(command)
    found = waveform(tmp_path / "out" / "tour" / "rtl" / "product.vcd")
    for cycles, ports, bit, _ in EDGES.findall(text):
        named = re.findall(r"trace_\w+", ports)
        for place, cycle in enumerate(cycles.split(", ")):
            assert int(cycle) in found[named[min(place, len(named) - 1)], int(bit)]


def waveform(path):
    """Cycles of the run at whose end each bit of ``trace_issue`` and ``trace_done`` is set, by port and bit."""
    names, now, found = {}, {}, defaultdict(set)

    def sample():
        if isinstance(now.get("trace_cycle"), int):
            for port in ("trace_issue", "trace_done"):
                for bit in range(4):
                    cycles = found[port, bit]
                    (cycles.add if now[port] >> bit & 1 else cycles.discard)(now["trace_cycle"])

    with path.open("rb") as file:
        for token in tokenize(file):
            if token.kind is TokenKind.VAR and token.data.reference.startswith("trace_"):
                names[token.data.id_code] = token.data.reference
            elif token.kind is TokenKind.CHANGE_TIME:
                sample()
            elif token.kind is TokenKind.CHANGE_VECTOR and token.data.id_code in names:
                now[names[token.data.id_code]] = token.data.value
    sample()
    return found
