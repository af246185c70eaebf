"""The examples run, and print what they promise."""

import subprocess
import sys
from pathlib import Path

import pytest

from siliconloom.cli import main
from tests.in_turn import in_turn

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.checkout


@pytest.mark.parametrize("script", in_turn(sorted(EXAMPLES.glob("*.py")), 0, seconds=3), ids=lambda p: p.stem)
def test_a_script_runs(script):
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "bound" in done.stdout


def test_the_gemm_list_runs_on_a_bare_array(capsys):
    assert main(["sim", "systolic-ws-128", str(EXAMPLES / "gemms.yaml")]) == 0
    assert "fc_projection" in capsys.readouterr().out


def test_the_communication_program_runs(capsys):
    assert main(["collective", "torus-2d", str(EXAMPLES / "tensor_and_data.yaml"), "--chips", "8"]) == 0
    assert "tensor-and-data" in capsys.readouterr().out


@pytest.mark.slow(seconds=15)
def test_the_documents_name_commands_that_exist(capsys):
    """Every `loom ...` line of the README runs (those that write go to a temporary place)."""
    text = (EXAMPLES.parent / "README.md").read_text()
    commands = [line.removeprefix("$ ").split("#")[0] for line in text.splitlines() if line.startswith("$ loom ")]
    assert len(commands) >= 2
    for command in commands:
        words = command.split()
        if words[1] in ("sim", "map", "workload", "list", "schema"):
            assert main(words[1:]) == 0, command
            capsys.readouterr()
