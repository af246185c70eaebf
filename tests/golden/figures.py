"""Figures that documents say in a sentence are those of the commands beside them.

``figures.yaml`` beside this file has them: a document, a command of ``loom``, and the words with the figure as a format
of the command's result; ``ms``, ``mj``, ``million`` are its time, its energy and its cycles in these.
``python -m tests.golden.figures`` writes the figures as they are now and prints those that changed.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

from tests.golden.numbers import COMMANDS, printed, printed_and_written

ROOT = Path(__file__).parents[2]
FIGURES: list[dict[str, str]] = yaml.safe_load(Path(__file__).with_name("figures.yaml").read_text(encoding="utf-8"))
NUMBER = r"[\d,.]*\d"


@cache
def result(command: str) -> dict[str, Any]:
    """What a command says in JSON."""
    if command in COMMANDS:
        return printed_and_written(command)[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        printed(f"{command} --json {shlex.quote(str(path))}")
        return json.loads(path.read_text(encoding="utf-8"))


def said(entry: dict[str, str]) -> str:
    """The words as they are now."""
    found = result(entry["command"])
    units = {"ms": 1e3 * found["seconds"], "mj": 1e3 * found["energy_j"], "million": found.get("cycles", 0) / 1e6}
    return entry["words"].format(**found, **units)


def pattern(words: str) -> re.Pattern[str]:
    """Those words with any figures."""
    parts = Formatter().parse(words)
    return re.compile("".join(re.escape(text) + (NUMBER if field is not None else "") for text, field, *_ in parts))


def write() -> None:
    """Bring the documents up to date; prints the figures that changed."""
    for entry in FIGURES:
        path = ROOT / entry["document"]
        text, now = path.read_text(encoding="utf-8"), said(entry)
        (before,) = pattern(entry["words"]).findall(text)
        if before != now:
            print(f"{entry['document']}: {before} -> {now}")
            path.write_text(text.replace(before, now), encoding="utf-8")


if __name__ == "__main__":
    write()
