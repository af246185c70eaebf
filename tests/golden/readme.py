"""The outputs that README.md and pages of docs show are what their commands print.

``python -m tests.golden.readme`` runs the command of every block that begins with ``$ loom`` and writes the lines that
the block shows as they are printed now; ``--slow`` runs those that build Verilog, or need a model that was fetched,
too. A block shows a choice of
lines, in their order; ``...`` stands for others. A line is known by what stands in front of its first figures.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

from siliconloom.cli import main
from tests.golden.numbers import COMMANDS, printed, printed_and_written

README = Path(__file__).parents[2] / "README.md"
PAGES = ("describing", "fusion", "links", "running", "serving", "tour")
DOCUMENTS = (README, *(README.parent / "docs" / f"{page}.md" for page in PAGES))
BLOCK = re.compile(r"(?<=```\n)\$ loom (?P<command>.*)\n(?P<shown>(?:.*\n)*?)(?=```)")
VOLATILE = re.compile(r"simulated in|verilator, seed")
"""Lines with times of a machine: they stay as they are."""
SECONDS = re.compile(r" +[\d.]+ s$")
"""Seconds of a machine at the end of a line: they stay, too."""
SLOW = ("verify", "run")
FETCHED = ("models", "run npu-edge smollm2")
"""Beginnings of commands that need a model which somebody fetched; `models get` itself is not run."""


def label(line: str) -> str:
    """What a line is about: its first column, or its words up to the first figure."""
    first, *others = re.split(r"\s{2,}", line.strip(), maxsplit=1)
    return first if others else re.split(r"\d", first, maxsplit=1)[0]


def output(command: str, shown: str = "") -> list[str]:
    """Lines that a command prints in a terminal of a hundred columns; or its error, where one is ``shown``."""
    if shown.startswith("loom: "):
        with contextlib.redirect_stderr(io.StringIO()) as out:
            assert main(shlex.split(command))
        return out.getvalue().splitlines()
    text = printed_and_written(command)[0] if command in COMMANDS else printed(command)
    return [line.rstrip() for line in text.splitlines()]


def refreshed(command: str, shown: str) -> str:
    """The lines of a block as the command prints them now.

    Raises
    ------
    ValueError
        When the command prints no line of the name of one that the block shows.
    """
    printed, place, made = output(command, shown), 0, []
    for line in shown.splitlines():
        if line.strip() in ("", "...") or VOLATILE.search(line):
            made.append(line)
            continue
        found = next((n for n in range(place, len(printed)) if label(printed[n]) == label(line)), None)
        if found is None:
            raise ValueError(f"loom {command} prints no line '{label(line)}'")
        made.append(
            SECONDS.sub("", printed[found]) + "".join(SECONDS.findall(line))
            if command.startswith("run")
            else printed[found]
        )
        place = found + 1
    return "".join(f"{line}\n" for line in made)


def blocks(text: str) -> list[tuple[str, str]]:
    """Command and shown lines of every block."""
    return [(match["command"], match["shown"]) for match in BLOCK.finditer(text)]


def write(slow: bool) -> None:
    """Bring the documents up to date; prints the commands whose lines changed."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for command, shown in blocks(text):
            if (command.split()[0] in SLOW and not slow) or command.startswith(FETCHED[0]):
                continue
            new = refreshed(command, shown)
            if new != shown:
                print(f"changed: loom {command}")
                text = text.replace(f"$ loom {command}\n{shown}", f"$ loom {command}\n{new}")
        document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write("--slow" in sys.argv)
