"""Runs Yosys (pyosys, from PyPI) in a process of its own: its memory, its output and its ways to stop stay there."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

from siliconloom.arch.errors import LoomError

INSTALL = "pip install 'siliconloom[eda]'"

CHILD = (
    "import json, sys\n"
    "from pyosys import libyosys\n"
    "design = libyosys.Design()\n"
    "for command in json.load(sys.stdin):\n"
    "    libyosys.run_pass(command, design)\n"
)


class YosysError(LoomError):
    """Yosys stopped; the text is its own error message.

    Parameters
    ----------
    text
        That message.
    printed
        All that Yosys, and ABC in it, printed before.
    """

    def __init__(self, text: str, printed: str = "") -> None:
        super().__init__(text)
        self.printed = printed


def require_yosys() -> None:
    """Refuse to go on without Yosys, with what to install."""
    if importlib.util.find_spec("pyosys") is None:
        raise LoomError(f"synthesis needs Yosys: {INSTALL}")


@cache
def yosys_version() -> str:
    """Yosys's name and version."""
    require_yosys()
    return f"Yosys {version('pyosys')}"


def run_yosys(commands: Sequence[str], folder: Path) -> str:
    """Run ``commands`` in ``folder``; returns what Yosys printed.

    Raises
    ------
    YosysError
        When Yosys stops with an error.
    LoomError
        When there is no Yosys.
    """
    require_yosys()
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(list(commands)),
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        errors="replace",  # it quotes what it read
    )
    if done.returncode:
        printed = done.stdout + done.stderr
        output = printed.splitlines()
        errors = [line for line in output if line.startswith("ERROR:")] or output[-1:]
        raise YosysError("Yosys stopped: " + " ".join(errors).removeprefix("ERROR: "), printed)
    return done.stdout


def quoted(path: Path | str) -> str:
    """A file name as Yosys reads it."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
