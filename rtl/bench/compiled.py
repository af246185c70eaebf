"""Verilator's own library, which every bench with Verilator links, compiled once.

Its files are the same for every circuit, and compiling them takes as long as compiling a small circuit does. The
objects are kept in a memo (`arch.memo`) under the commands that make them, the compiler and the text of Verilator's
files, and laid into a folder in which Verilator has written its makefile: ``make`` finds them newer than that.
"""

from __future__ import annotations

import hashlib
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from siliconloom.arch.memo import compiled_memo, key_of

MAKEFILE = "Vtop.mk"
_COMPILES = re.compile(r"^(\S+) .* -c -o (\w+)\.o (/\S+/include/verilated\w*\.cpp)$", re.MULTILINE)


def lay_library(folder: Path, environment: Mapping[str, str]) -> None:
    """Lay the objects of Verilator's library into ``folder`` before ``make`` runs there.

    Parameters
    ----------
    folder
        Where Verilator has written a `MAKEFILE`. What is wrong there is left to ``make``, which says so.
    environment
        That of ``make``, with its flags.
    """
    listed = _run(["make", "-n", "-C", str(folder), "-f", MAKEFILE], environment)
    commands = list(_COMPILES.finditer(listed.stdout))
    objects = [each[2] for each in commands]

    def compiled() -> dict[str, Any]:
        done = _run(["make", "-C", str(folder), "-f", MAKEFILE, *(f"{name}.o" for name in objects)], environment)
        done.check_returncode()
        return {name: np.frombuffer((folder / f"{name}.o").read_bytes(), np.uint8) for name in objects}

    if listed.returncode != 0 or not objects:
        return
    try:
        found = compiled_memo().recall(_key(commands, environment), compiled, large=True)
    except (subprocess.CalledProcessError, OSError):
        return
    for name in objects:
        if not (folder / f"{name}.o").exists():
            (folder / f"{name}.o").write_bytes(found[name].tobytes())


def _key(commands: list[re.Match[str]], environment: Mapping[str, str]) -> str:
    """The key of all that the objects depend on: how they are made, by what, and of which files."""
    compilers = [_run([each, "--version"], environment).stdout for each in sorted({each[1] for each in commands})]
    texts = hashlib.sha256()
    for folder in sorted({Path(each[3]).parent for each in commands}):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".h", ".cpp"):
                texts.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    told = sorted(each[0] for each in commands)
    return key_of("Verilator's library", platform.machine(), *compilers, *told, texts.hexdigest())


def _run(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
