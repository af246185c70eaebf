"""The outputs that the tutorials show are what their commands print, one after the other, in an empty folder.

``python -m tests.golden.tutorials`` writes the lines of every block as they are printed now; ``--slow`` those of
commands that build Verilog, too. A block of YAML whose first line is a comment with a file's name is that file.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.golden import readme

ROOT = Path(__file__).parents[2]
TUTORIALS = tuple(sorted((ROOT / "docs" / "tutorials").glob("*.md")))
FILE = re.compile(r"```yaml\n(# ([\w.-]+\.yaml)\n.*?)```", re.DOTALL)
SLOW = ("rtl", "verify", "synth")
"""Commands that build Verilog."""


def files(text: str) -> dict[str, str]:
    """Files that a tutorial has its reader save, by name."""
    return {match[2]: match[1] for match in FILE.finditer(text)}


def checked(text: str, folder: Path, slow: bool) -> Iterator[tuple[str, str, str]]:
    """Command, shown lines and printed lines of every block, in ``folder``; those that build Verilog if ``slow``."""
    for name, content in files(text).items():
        (folder / name).write_text(content, encoding="utf-8")
    with contextlib.chdir(folder):
        for command, shown in readme.blocks(text):
            if slow is (command.split()[0] in SLOW):
                yield command, shown, readme.refreshed(command, shown)


def write(slow: bool) -> None:
    """Bring the tutorials up to date; prints the commands whose lines changed."""
    for path in TUTORIALS:
        text = path.read_text(encoding="utf-8")
        for each in (False, True) if slow else (False,):
            with tempfile.TemporaryDirectory() as folder:
                for command, shown, printed in checked(text, Path(folder), each):
                    if shown != printed:
                        print(f"changed: {path.stem}: loom {command}")
                        text = text.replace(f"$ loom {command}\n{shown}", f"$ loom {command}\n{printed}")
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write("--slow" in sys.argv)
