"""Runs encoded programs on the RTL of an NPU tile, and collects what they left behind and when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import Program
from siliconloom.rtl.bench.runner import Spent, require_simulator, simulate
from siliconloom.rtl.npu.geometry import geometry_of
from siliconloom.rtl.npu.registers import COUNTERS, UNITS, Cause, axi_lite, register_map
from siliconloom.rtl.npu.testbench import memory_parameters

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class ProgramCase:
    """A program with the memory that it starts from.

    Parameters
    ----------
    program
        What runs; encoded at ``base``.
    memory
        Main memory from address 0 on; a whole number of bus words.
    base
        Address of the program, a multiple of its word.
    stall
        0: memory answers at once. 1..255: each channel hesitates with this chance in 256, every cycle.
    fail
        Every read and write of data is answered with an error.
    limit
        Cycles after which the tile counts as hanging.
    """

    program: Program
    memory: Bytes
    base: int
    stall: int = 0
    fail: bool = False
    limit: int = 1_000_000


@dataclass
class ProgramOutcome:
    """What a tile did.

    Parameters
    ----------
    ended
        It raised its interrupt.
    cycles, cause, instruction
        Registers.
    counters
        By unit and name.
    memory
        The memory afterwards.
    issued, completed
        Cycles at which each unit's instructions left the queue, and from which they were complete; barriers left out.
    """

    ended: bool
    cycles: int
    cause: Cause
    instruction: int
    counters: dict[str, dict[str, int]]
    memory: Bytes
    issued: dict[str, list[int]] = field(default_factory=dict)
    completed: dict[str, list[int]] = field(default_factory=dict)


def bench_verilog(chip: Chip, top: str, words: int, reset: str = "rst") -> str:
    """The bench around ``top``: an AXI4 memory of ``words`` bus words with the latency that the chip's memory has."""
    geometry = geometry_of(chip)
    template = Environment(
        loader=PackageLoader("siliconloom.rtl.npu", "."), undefined=StrictUndefined, keep_trailing_newline=True
    ).get_template("memory.v.j2")
    return template.render(
        top=top,
        words=words,
        **memory_parameters(geometry),
        reset=reset,
        reset_active=reset if reset == "rst" else f"!{reset}",
    )


def run_programs(
    chip: Chip,
    sources: Sequence[Path],
    top: str,
    cases: Sequence[ProgramCase],
    *,
    folder: Path,
    simulator: str = "verilator",
    spent: Spent | None = None,
) -> list[ProgramOutcome]:
    """Run ``cases`` one after the other on the RTL in ``sources``; the time it took is added to ``spent``.

    Raises
    ------
    LoomError
        When the simulator is missing or stops before the end.
    """
    require_simulator(simulator)
    folder.mkdir(parents=True, exist_ok=True)
    bus = geometry_of(chip).bus
    # a power of two, so that programs that need about as much run on the bench that is compiled already
    words = 1 << (max(len(case.memory) for case in cases) // bus - 1).bit_length()
    bench = folder / f"{top}_bench.v"
    bench.write_text(bench_verilog(chip, top, words), encoding="utf-8")
    plan = register_map()
    registers = {register.name: register.offset for register in plan.registers}
    reads = ["error", "cycles_low"] + [f"{u}_{c}_low" for u in UNITS for c in COUNTERS]
    jobs: list[dict[str, Any]] = []
    for index, case in enumerate(cases):
        image = case.memory.copy()
        code = np.frombuffer(case.program.encode(), np.uint8)
        image[case.base : case.base + len(code)] = code
        (folder / f"memory_{index}.hex").write_text(hex_image(image, bus, words), encoding="ascii")
        writes = {"program_low": case.base, "program_high": 0, "program_words": len(case.program.instructions)}
        writes |= {f"semaphore_{i}": s.initial for i, s in enumerate(case.program.semaphores)}
        jobs.append(
            {
                "index": index,
                "stall": case.stall,
                "fail": int(case.fail),
                "writes": writes,
                "reads": reads,
                "limit": case.limit,
            }
        )
    job, results = folder / "job.json", folder / "results.json"
    results.unlink(missing_ok=True)
    job.write_text(json.dumps({"cases": jobs, "registers": registers, "results": str(results)}), encoding="utf-8")
    simulate(
        [*sources, bench],
        f"{top}_bench",
        BENCH_PORTS,
        simulator=simulator,
        folder=folder,
        bench="siliconloom.rtl.bench.npu",
        environment={"LOOM_BENCH": str(job)},
        arguments=["-Wno-fatal"],
        spent=spent,
    )
    if not results.exists():
        raise LoomError("the simulation stopped before its end")
    outcomes = []
    for index, found in enumerate(json.loads(results.read_text(encoding="utf-8"))):
        values = found["registers"]
        outcome = ProgramOutcome(
            ended=found["ended"],
            cycles=values["cycles_low"],
            cause=Cause(values["error"] & 15),
            instruction=values["error"] >> 8,
            counters={u: {c: values[f"{u}_{c}_low"] for c in COUNTERS} for u in UNITS},
            memory=memory_image(folder / f"result_{index}.hex", bus)[: len(cases[index].memory)],
        )
        outcome.issued = {u: [] for u in UNITS}
        outcome.completed = {u: [] for u in UNITS}
        for line in (folder / f"trace_{index}.txt").read_text(encoding="ascii").splitlines():
            cycle, issued, completed = map(int, line.split())
            for number, unit in enumerate(UNITS):
                if issued >> number & 1:
                    outcome.issued[unit].append(cycle)
                if completed >> number & 1:
                    outcome.completed[unit].append(cycle + 1)
        outcomes.append(outcome)
    return outcomes


BENCH_PORTS = (
    "clk",
    "rst",
    "index",
    "load",
    "dump",
    "stall",
    "fail",
    "irq",
    *(f"s_axi_{name}" for name in axi_lite().members),
)


def hex_image(image: Bytes, bus: int, words: int) -> str:
    """Memory for ``$readmemh``: one bus word a line, highest byte first."""
    padded = np.zeros(words * bus, np.uint8)
    padded[: len(image)] = image
    return "\n".join(row.tobytes()[::-1].hex() for row in padded.reshape(-1, bus)) + "\n"


def memory_image(path: Path, bus: int) -> Bytes:
    """The opposite of `hex_image`, for what ``$writememh`` wrote; unknown digits read as zero."""
    rows = []
    for line in path.read_text(encoding="ascii").splitlines():
        if line and not line.startswith(("//", "@")):
            rows.append(bytes.fromhex(line.strip().lower().replace("x", "0").zfill(2 * bus))[::-1])
    return np.frombuffer(b"".join(rows), np.uint8).copy()
