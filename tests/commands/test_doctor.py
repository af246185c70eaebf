"""``loom doctor`` finds what is missing, and says the command that mends it."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from siliconloom.cli import main
from siliconloom.commands.group import COMMANDS
from siliconloom.evaluate import installed


@pytest.fixture
def package(monkeypatch):
    """What this installation's metadata says of its own package."""

    class Told:
        requires: tuple[str, ...] = (
            "numpy>=1",
            "nothing-of-that-name>=2; extra == 'plots'",
            "numpy<0.1; extra == 'eda'",
        )

        def get_all(self, _):
            return ["plots", "eda", "frames"]

    real = metadata.version
    monkeypatch.setattr(installed.metadata, "requires", lambda _: Told.requires)
    monkeypatch.setattr(installed.metadata, "metadata", lambda _: Told())
    monkeypatch.setattr(installed.metadata, "version", real)
    return Told


def test_missing_extras_are_found_with_what_brings_them(package):
    core, extras = installed.packages()
    assert [each["state"] for each in core] == ["installed"]
    states = {extra["name"]: [each["state"] for each in extra["packages"]] for extra in extras}
    assert states == {"plots": ["missing"], "eda": ["other version"], "frames": []}
    assert [extra["mend"] for extra in extras] == [
        "pip install 'siliconloom[plots]'",
        "pip install 'siliconloom[eda]'",
        None,
    ]


@pytest.mark.slow(seconds=1)
def test_a_missing_package_of_the_core_is_a_failed_check(package, capsys):
    package.requires = ("nothing-of-that-name>=2",)
    assert main(["doctor", "--json", "-"]) == 1
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found["ok"] is False
    assert found["mends"][0] == "pip install --upgrade siliconloom"
    assert shown.err.startswith("loom: what every command needs")


@pytest.mark.slow(seconds=1)
def test_a_whole_installation_is_ok_and_told_in_lines(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(("ok kernels", "-- kernels")) for line in lines)
    assert any("cores" in line for line in lines)
    assert main(["doctor", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= {"core", "extras", "tools", "kernels", "folders", "machine", "models", "mends", "ok"}
    assert {each["name"] for each in found["tools"]} == {
        "verilator",
        "icarus",
        "g++, make, perl",
        "lz4, zlib",
        "yosys",
        "nextpnr-ecp5",
    }
    assert found["kernels"]["works"]


@pytest.mark.parametrize(("tool", "program"), [("icarus", "iverilog"), ("g++, make, perl", "make")])
def test_a_program_that_is_not_there_is_told_with_its_package(tool, program, monkeypatch):
    real = shutil.which
    monkeypatch.setattr(installed.shutil, "which", lambda name: None if name == program else real(name))
    found = next(each for each in (look() for look in installed.TOOLS) if each["name"] == tool)
    assert found["path"] is None
    assert found["mend"].startswith("apt-get install ")


@pytest.mark.slow(seconds=1)
def test_kernels_without_kept_code_are_cold_and_nothing_is_compiled(tmp_path):
    code = (
        "from siliconloom.evaluate.installed import kernels; import sys; found = kernels(); "
        "print(found['works'], found['warm'], found['mend'], 'numba' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
    )
    assert done.stdout == "True False loom warmup False\n"
    assert list(tmp_path.rglob("*.so")) == []


def test_what_an_extra_is_for_is_said_of_every_extra():
    project = Path(installed.__file__).parents[3] / "pyproject.toml"
    if project.exists():
        text = project.read_text().partition("[project.optional-dependencies]")[2].partition("[project.scripts]")[0]
        assert set(re.findall(r"^([a-z]+) = \[", text, re.M)) == set(installed.USES)
    assert "doctor" in COMMANDS
