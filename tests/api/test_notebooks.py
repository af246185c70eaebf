"""The notebooks of examples/notebooks run as they stand, from beginning to end, and keep small outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NAMES = ("architect", "rtl_engineer", "researcher")
LARGEST = 200_000
"""Bytes of a notebook with its outputs."""
pytestmark = pytest.mark.checkout


def test_every_notebook_is_run_here():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)


@pytest.mark.slow(seconds=14)
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name, tmp_path):
    """By nbmake, in a process of its own: a notebook's kernel warns of things that are none of ours."""
    settings = tmp_path / "pytest.ini"
    settings.write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", str(settings)]
    done = subprocess.run(
        [*command, "--nbmake", "--nbmake-timeout=120", str(FOLDER / f"{name}.ipynb")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MPLBACKEND": "agg", "PYTEST_ADDOPTS": "", "IPYTHONDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_kept_as_it_ran(name):
    """With outputs that are small, without errors, and without a word on the machine that made them."""
    text = (FOLDER / f"{name}.ipynb").read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert len(text) < LARGEST
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(output["output_type"] != "error" for output in outputs)
    assert any("text/html" in output.get("data", {}) for output in outputs)
    assert not any(word in text for word in ("/home/", "/root", "/tmp", "\\u001b["))
