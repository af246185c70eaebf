"""Whole programs on the RTL of an NPU tile against the simulator (cycles) and the golden model (values)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from siliconloom import __version__
from siliconloom.arch import Chip, LoomError
from siliconloom.arch.isa import Program, Unit, disassemble
from siliconloom.arch.working import working_folder
from siliconloom.rtl.bench.programs import ProgramCase, ProgramOutcome, run_programs
from siliconloom.rtl.bench.runner import Spent, require_simulator
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.npu.registers import UNITS, Cause
from siliconloom.sim.chip.engine import Run, run
from siliconloom.sim.golden.npu import Machine
from siliconloom.verification.layers import LAYERS, layer_runs
from siliconloom.verification.programs import RandomProgram, random_program

SCHEMA = "siliconloom.verification/2"
TRACE = 1_000_000
CONTEXT = 3
"""Executions shown before and after the first one that differs."""


@dataclass
class Timeline:
    """Executions of one unit, in order: instruction, cycle of leaving the queue, cycle from which it is complete."""

    unit: str
    instructions: list[int]
    model: list[tuple[int, int]]
    rtl: list[tuple[int, int]]

    def first_difference(self) -> int | None:
        """Number of the first execution whose times differ, or that only one side has."""
        for number in range(max(len(self.model), len(self.rtl))):
            if self.model[number : number + 1] != self.rtl[number : number + 1]:
                return number
        return None


@dataclass
class Parity:
    """What comparing one program showed."""

    name: str
    program: Program
    model: Run
    outcome: ProgramOutcome
    timelines: list[Timeline]
    wrong_bytes: int
    errors: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.errors

    @property
    def compared(self) -> int:
        """Instruction executions whose start and end were compared."""
        return sum(len(t.model) for t in self.timelines)


def compare(name: str, chip: Chip, made: RandomProgram, outcome: ProgramOutcome, stalled: bool = False) -> Parity:
    """Hold an outcome of the RTL against the simulator and the golden model.

    A run on a memory that hesitates (``stalled``) is compared by value alone.
    """
    model = run(made.program, chip, exact=True, trace_limit=TRACE)
    expected = made.memory.copy()
    code = np.frombuffer(made.program.encode(), np.uint8)
    expected[made.base : made.base + len(code)] = code
    Machine(chip, expected).run(made.program)
    wrong = np.flatnonzero(expected != outcome.memory[: len(expected)])
    timelines = []
    for unit in UNITS:
        rows = [r for r in model.trace.tolist() if made.program.instructions[r[0]].unit == Unit[unit.upper()]]
        timelines.append(
            Timeline(
                unit,
                [r[0] for r in rows],
                [(r[4], r[3]) for r in rows],
                list(zip(outcome.issued[unit], outcome.completed[unit], strict=False)),
            )
        )
    parity = Parity(name, made.program, model, outcome, timelines, len(wrong))
    errors = parity.errors
    if not outcome.ended:
        errors.append("the tile did not end its program")
    if outcome.cause != Cause.NONE:
        cause = outcome.cause.name.lower().replace("_", " ")
        errors.append(f"the tile stopped with '{cause}' at instruction {outcome.instruction}")
    if len(wrong):
        errors.append(f"{len(wrong)} bytes of memory differ from the golden model, the first at {wrong[0]:#x}")
    if stalled:
        return parity
    if outcome.cycles != model.cycles:
        errors.append(f"the RTL took {outcome.cycles:,} cycles, the model {model.cycles:,}")
    for unit in UNITS:
        number = Unit[unit.upper()]
        counted = outcome.counters[unit]
        for counter, value in (("busy", model.busy[number]), ("waiting", model.waiting[number])):
            if counted[counter] != value:
                errors.append(f"{unit}: the tile counted {counted[counter]:,} {counter} cycles, the model {value:,}")
    errors.extend(_divergence(parity))
    return parity


def _divergence(parity: Parity) -> list[str]:
    """The earliest execution that differs, and what happened around it on both sides."""
    first: tuple[int, Timeline, int] | None = None
    for timeline in parity.timelines:
        number = timeline.first_difference()
        if number is not None:
            side = (timeline.model if number < len(timeline.model) else timeline.rtl)[number]
            if first is None or side[0] < first[0]:
                first = (side[0], timeline, number)
    if first is None:
        return []
    _, timeline, number = first
    lines = disassemble(parity.program).splitlines()
    place = timeline.instructions[number] if number < len(timeline.instructions) else None
    what = lines[place].strip() if place is not None else "an instruction that the model does not execute"
    found = [f"first difference: {timeline.unit} execution {number}, instruction {what}"]
    for index in range(max(0, number - CONTEXT), number + CONTEXT + 1):
        sides = []
        for label, times in (("model", timeline.model), ("RTL", timeline.rtl)):
            sides.append(
                f"{label} {times[index][0]:>8,} to {times[index][1]:>8,}" if index < len(times) else f"{label} -"
            )
        if index < max(len(timeline.model), len(timeline.rtl)):
            found.append(f"  {timeline.unit} {index:>5}  {'   '.join(sides)}{'   <--' if index == number else ''}")
    return found


def check_programs(
    chip: Chip,
    programs: Sequence[tuple[str, RandomProgram]],
    *,
    simulator: str = "verilator",
    stall: Sequence[int] = (),
    spent: Spent | None = None,
) -> list[Parity]:
    """Build the tile of ``chip`` and run named programs on it.

    Parameters
    ----------
    chip
        A chip whose npu tile has RTL.
    programs
        Names and programs; each runs from reset.
    simulator
        ``icarus`` or ``verilator``.
    stall
        For each program, how much its memory hesitates (see `ProgramCase`); none where left out.
    spent
        Filled with the time that building and running took.

    Raises
    ------
    LoomError
        When the simulator is missing or the description has no RTL.
    """
    bundle = build_rtl(chip)
    stalls = [*stall, *[0] * (len(programs) - len(stall))]
    cases = [
        ProgramCase(made.program, made.memory, made.base, stall=each)
        for (_, made), each in zip(programs, stalls, strict=True)
    ]
    with working_folder("verify") as folder:
        sources = bundle.write(folder / "rtl")
        outcomes = run_programs(
            chip, sources, bundle.top, cases, folder=folder / "bench", simulator=simulator, spent=spent
        )
    return [
        compare(name, chip, made, outcome, each > 0)
        for (name, made), outcome, each in zip(programs, outcomes, stalls, strict=True)
    ]


def verify_programs(chip: Chip, *, seed: int, simulator: str, programs: int, layers: bool = True) -> dict[str, Any]:
    """Random programs on the tile of ``chip``, every fourth one on a memory that hesitates; then transformer layers."""
    require_simulator(simulator)
    began = time.perf_counter()
    made = [(f"random {seed + number}", random_program(chip, seed + number)) for number in range(programs)]
    stall = [96 if number % 4 == 3 else 0 for number in range(programs)]
    notes = []
    if layers:
        try:
            made += [(r.name, r.made) for spec in LAYERS for r in layer_runs(chip, spec, seed=seed)]
        except LoomError as error:
            notes.append(f"no transformer layers: {error}")
    stall += [0] * (len(made) - programs)
    spent = Spent()
    found = check_programs(chip, made, simulator=simulator, stall=stall, spent=spent)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "chip": chip.name,
        "chip_digest": chip.digest,
        "verified": "the whole tile, by programs",
        "simulator": simulator,
        "seed": seed,
        "wall_s": time.perf_counter() - began,
        "build_s": spent.build,
        "run_s": spent.run,
        "passed": all(p.passed for p in found),
        "programs": [_program(p, each > 0) for p, each in zip(found, stall, strict=True)],
        "notes": notes,
    }


def _program(parity: Parity, stalled: bool) -> dict[str, Any]:
    return {
        "name": parity.name,
        "instructions": len(parity.program.instructions),
        "executed": parity.compared,
        "memory_stalls": stalled,
        "rtl_cycles": parity.outcome.cycles,
        "model_cycles": None if stalled else parity.model.cycles,
        "difference": None if stalled else parity.outcome.cycles - parity.model.cycles,
        "values_equal": parity.wrong_bytes == 0,
        "passed": parity.passed,
        "errors": parity.errors[:12],
    }
