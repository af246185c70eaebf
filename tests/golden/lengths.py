"""The table of docs/mapping.md that says how many instructions mapped programs have.

``python -m tests.golden.lengths`` maps every model of the table for every chip of it, as `loom sim` does on a chip with
memory for any model, and writes the numbers that come out; `test_lengths.py` compares them.
"""

from __future__ import annotations

from pathlib import Path

from siliconloom.arch import load_chip
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.sim.dram.memory import effective
from siliconloom.workloads import load_workload

DOCUMENT = Path(__file__).parents[2] / "docs" / "mapping.md"
MODELS = ("gpt2", "llama3-8b", "mixtral-8x7b", "deepseek-v3")
PROMPTS, TOKEN = "prefill of 64; of 2,048 tokens", "a token after 2,048"
ROWS = (("npu-edge-int8", PROMPTS), ("npu-edge-int8", TOKEN), ("npu-datacenter", PROMPTS))
MEMORIES = {"npu-edge-int8": "dram", "npu-datacenter": "hbm"}
LONGEST = {"gpt2": 1024}
"""Tokens that a model has positions for, where these are fewer than the table asks for."""


def instructions(chip: str, model: str, *sets: tuple[str, str]) -> int:
    """Instructions of the program of a model."""
    machine = effective(load_chip(chip, [(f"memory.{MEMORIES[chip]}.capacity", "2 TiB")]))
    mapped = map_workload(machine, load_workload(model, list(sets)), Stopwatch(machine), search=False)
    return len(mapped.program.instructions)


def cell(chip: str, kind: str, model: str) -> str:
    """What the table says of a model."""
    long = LONGEST.get(model, 2048) >= 2048
    if kind == TOKEN:
        context = "2048" if long else "64"
        made = instructions(chip, model, ("phase", "decode"), ("context", context))
        return f"{made:,}" + ("" if long else f" (after {context})")
    prompts = [instructions(chip, model, ("sequence", length)) for length in ("64", "2048")[: 1 + long]]
    return "; ".join([f"{made:,}" for made in prompts] + ([] if long else ["-"]))


def row(chip: str, kind: str) -> str:
    """A row of the table."""
    return f"| {chip}, {kind} | " + " | ".join(cell(chip, kind, model) for model in MODELS) + " |"


def shown(chip: str, kind: str, text: str) -> str:
    """The row that the document has; raises `ValueError` when there is not one of it."""
    (found,) = (line for line in text.splitlines() if line.startswith(f"| {chip}, {kind} |"))
    return found


def write() -> None:
    """Bring the table up to date; prints the rows that moved."""
    text = DOCUMENT.read_text(encoding="utf-8")
    for chip, kind in ROWS:
        old, new = shown(chip, kind, text), row(chip, kind)
        if new != old:
            print(f"{old}\n{new}")
            text = text.replace(old, new)
    DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
