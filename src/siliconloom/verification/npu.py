"""Whole programs on the RTL of an npu tile against the simulator (cycles) and the golden model (values)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from siliconloom.arch import Chip, LoomError
from siliconloom.arch.isa import Program, Unit, disassemble
from siliconloom.arch.memo import key_of, shared_memo
from siliconloom.arch.verified import NpuCase, VerifiedNpu
from siliconloom.rtl.bench.programs import ProgramCase, ProgramOutcome, run_programs
from siliconloom.rtl.bench.runner import Spent
from siliconloom.rtl.emit import Bundle, build_rtl
from siliconloom.rtl.npu.circuits import unit_circuits
from siliconloom.rtl.npu.registers import UNITS, Cause
from siliconloom.rtl.npu.ways import only_own
from siliconloom.sim.chip.engine import Run, run
from siliconloom.sim.golden.npu import GoldenMachine
from siliconloom.verification.layers import LAYERS, layer_runs
from siliconloom.verification.parity import Findings, Parity, ParityStream, span, verilog
from siliconloom.verification.programs import RandomProgram, random_program

TRACE = 1_000_000
LIMIT = 1_000_000
"""Cycles after which a tile counts as hanging, where nothing else is said."""
STALL, STALLED = 96, 4
"""Every fourth random program runs on a memory that hesitates with this chance in 256."""


@dataclass(kw_only=True)
class ProgramParity(Parity):
    """What comparing one program showed."""

    program: Program
    executed: int

    def case(self) -> NpuCase:
        """Entry of the record."""
        return NpuCase(**self.common(), words=len(self.program.instructions), instructions=self.executed)


def compare(
    name: str, chip: Chip, made: RandomProgram, outcome: ProgramOutcome, stalled: bool = False
) -> ProgramParity:
    """Hold an outcome of the RTL against the simulator and the golden model.

    A run on a memory that hesitates (``stalled``) is compared by value alone.
    """
    model = run(made.program, chip, exact=True, trace_limit=TRACE)
    runs = executions(made.program, model)
    parity = ProgramParity(
        name=name, stalled=stalled, program=made.program, executed=sum(len(each) for each in runs.values())
    )
    if not outcome.ended:
        parity.value_errors.append("the tile did not end its program")
    if outcome.cause != Cause.NONE:
        parity.value_errors.append(f"the tile stopped with '{outcome.cause.text}' at instruction {outcome.instruction}")
    expected = made.loaded()
    GoldenMachine(chip, expected).run(made.program)
    parity.same_bytes("memory", outcome.memory, expected)
    parity.cycles(outcome.cycles, model.cycles)
    if stalled:
        return parity
    for unit in UNITS:
        number = Unit[unit.upper()]
        for counter, value in (("busy", model.busy[number]), ("waiting", model.waiting[number])):
            parity.count(f"{counter} cycles of {unit}", outcome.counters[unit][counter], int(value))
    lines = disassemble(made.program).splitlines()
    parity.hold(
        [
            execution_stream(unit, lines, own, outcome.issued[unit], outcome.completed[unit])
            for unit, own in runs.items()
        ]
    )
    return parity


def executions(program: Program, model: Run) -> dict[str, list[tuple[int, int, int]]]:
    """Of each unit, in order: instruction, cycle of leaving the queue, cycle from which it is complete."""
    rows = model.trace.tolist()
    of_unit = {unit: Unit[unit.upper()] for unit in UNITS}
    return {
        unit: [(r[0], r[4], r[3]) for r in rows if program.instructions[r[0]].unit == number]
        for unit, number in of_unit.items()
    }


def execution_stream(
    unit: str,
    lines: Sequence[str],
    executed: Sequence[tuple[int, int, int]],
    issued: Sequence[int],
    completed: Sequence[int],
    zero: int = 0,
) -> ParityStream[tuple[int | None, int | None]]:
    """Start and end of every execution of a unit, the model's (`executions`) from cycle ``zero`` on.

    ``lines`` are the instructions as text. An execution that the RTL began
    and did not end has no end.
    """

    def instruction(number: int) -> str:
        return lines[executed[number][0]].strip() if number < len(executed) else "that the model does not execute"

    return ParityStream(
        f"{unit} execution",
        [(begin + zero, end + zero) for _, begin, end in executed],
        list(zip_longest(issued, completed)),
        span,
        times=2,
        instruction=instruction,
    )


def bundle_of(chip: Chip) -> Bundle:
    """The Verilog of a chip, which is generated once; with units or functions from elsewhere each time."""
    own = all(each.make.__module__.startswith("siliconloom.") for each in unit_circuits().values())
    if not (own and only_own()):
        return build_rtl(chip)

    def generated() -> dict[str, str]:
        made = build_rtl(chip)
        return {"bundle": json.dumps([made.files, made.top, made.sidecar])}

    return Bundle(
        *json.loads(str(shared_memo().recall(key_of("verilog", chip.digest), generated, large=True)["bundle"]))
    )


def check_programs(
    chip: Chip,
    programs: Sequence[tuple[str, RandomProgram]],
    *,
    simulator: str = "verilator",
    stall: Sequence[int] = (),
    limit: int = LIMIT,
    spent: Spent | None = None,
) -> list[ProgramParity]:
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
    limit
        Cycles after which the tile counts as hanging.
    spent
        The time that building and running took is added to it.

    Raises
    ------
    LoomError
        When the simulator is missing or the description has no RTL.
    """
    bundle = bundle_of(chip)
    stalls = [*stall, *[0] * (len(programs) - len(stall))]
    cases = [
        ProgramCase(made.program, made.memory, made.base, stall=each, limit=limit)
        for (_, made), each in zip(programs, stalls, strict=True)
    ]
    with verilog(bundle) as (sources, folder):
        outcomes = run_programs(chip, sources, bundle.top, cases, folder=folder, simulator=simulator, spent=spent)
    return [
        compare(name, chip, made, outcome, each > 0)
        for (name, made), outcome, each in zip(programs, outcomes, stalls, strict=True)
    ]


def verify_programs(
    chip: Chip, *, seed: int, simulator: str, programs: int, spent: Spent, layers: bool = True
) -> Findings:
    """Random programs on the tile of ``chip``, every fourth one on a memory that hesitates; then transformer layers."""
    made = [(f"random {seed + number}", random_program(chip, seed + number)) for number in range(programs)]
    stall = [STALL if number % STALLED == STALLED - 1 else 0 for number in range(programs)]
    notes = []
    if layers:
        try:
            made += [(r.name, r.made) for spec in LAYERS for r in layer_runs(chip, spec, seed=seed)]
        except LoomError as error:
            notes.append(f"no transformer layers: {error}")
    found = check_programs(chip, made, simulator=simulator, stall=stall, spent=spent)
    return Findings(VerifiedNpu, "the whole tile, by programs", [parity.case() for parity in found], notes=notes)
