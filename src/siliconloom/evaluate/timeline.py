"""When a chip's units did what: the whole run or a window of it, as spans on a track for each unit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic_core import PydanticCustomError

from siliconloom.arch import Chip, LoomError
from siliconloom.arch.budget import require_memory
from siliconloom.arch.isa import Instruction, Opcode, Unit
from siliconloom.arch.listing import disassemble
from siliconloom.arch.opcodes import shown_units
from siliconloom.arch.quantity import DURATION, parse
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.timeline import (
    EVENT_BYTES,
    FoldedRun,
    InstructionStream,
    Span,
    StagedInstruction,
    TimedInstruction,
    Timeline,
)
from siliconloom.evaluate.chip import Simulation
from siliconloom.sim.chip.engine import run
from siliconloom.sim.chip.tables import COLUMNS, Counter, Stall, build_tables

TRACE_LIMIT = 200_000
"""Most instruction executions in a trace: about 40 MB."""
JUMPS_TRACK = 15
REPORT_ROWS = 40_000
"""Most instruction executions in a report: about a megabyte."""


def parse_window(text: str, chip: Chip) -> tuple[int, int]:
    """First and last-but-one cycle of ``FROM:TO``; each a number of cycles, or a time such as ``1.5 ms``.

    Raises
    ------
    LoomError
        When it is neither, or the window is empty.
    """
    begin, colon, end = text.partition(":")
    if not colon:
        raise LoomError(f"--window {text}: expected FROM:TO, in cycles or as times (10000:20000, 1ms:1.5ms)")
    cycles = []
    for side in (begin, end):
        plain = side.strip().replace("_", "").replace(",", "")
        if plain.isdecimal():
            cycles.append(int(plain))
            continue
        try:
            picoseconds = parse(side, DURATION, "1.5 ms")
        except PydanticCustomError as error:
            raise LoomError(f"--window {text}: '{side}' is no number of cycles, and as a time it {error}") from None
        cycles.append(int(picoseconds * chip.clock / 10**12))
    if cycles[1] >= 2**62:
        raise LoomError(f"--window {text}: cycles have 62 bits")
    if not 0 <= cycles[0] < cycles[1]:
        raise LoomError(f"--window {text}: it ends before it begins")
    return cycles[0], cycles[1]


def timeline_of(simulation: Simulation, window: tuple[int, int] | None = None) -> Timeline:
    """The recorded executions of a simulation: a track for each unit, and one for the loops that were jumped."""
    chip, program, outcome = simulation.chip, simulation.plan.program, simulation.run
    rows = len(outcome.trace) + len(outcome.folds)
    require_memory(f"--trace: {rows:,} events", rows * EVENT_BYTES, "--window FROM:TO has fewer")
    total = int(outcome.executions[[x.opcode.unit != Unit.SEQUENCER for x in program.instructions]].sum())
    recorded = len(outcome.trace)
    facts = {
        "chip_digest": chip.digest,
        "cycles": outcome.cycles,
        "window": window,
        "executed": total,
        "recorded": recorded,
        "left_out": outcome.trace_rows - recorded,
        "jumped" if window is None else "outside": total - outcome.trace_rows,
        "jumps": outcome.jumps,
        "jumps_listed": len(outcome.folds),
    }
    tracks = {int(unit): name for unit, name in shown_units(chip.tile).items()} | {JUMPS_TRACK: "jumped (see --window)"}
    title = f"{chip.name}: {simulation.graph.name}"
    return Timeline(title, 1 / chip.clock, tracks, _spans(simulation, window), facts)


def folded_run(simulation: Simulation) -> FoldedRun:
    """Every execution of a simulation's whole run, what was jumped written once."""
    program, chip = simulation.plan.program, simulation.chip
    again = run(program, chip, trace_limit=REPORT_ROWS)
    tables = build_tables(program, chip)
    table = tables.instructions
    column = {name: table[:, number] for name, number in COLUMNS.items()}
    product = column["unit"] == Unit.MATMUL
    busy = np.where(product, column["work"], column["duration"])
    shown = [unit for unit in shown_units(chip.tile) if unit != Unit.SEQUENCER and np.any(column["unit"] == unit)]
    places = {int(unit): number for number, unit in enumerate(shown)}
    moved = tables.counters[:, Counter.READ_BYTES] + tables.counters[:, Counter.WRITE_BYTES]
    instructions = []
    for number, i in enumerate(program.instructions):
        at = places.get(int(i.unit), -1) if i.opcode != Opcode.BARRIER else -1
        instructions.append(TimedInstruction(i.operator, at, _told(i), int(busy[number]), int(moved[number])))
    trace = again.trace
    unit = column["unit"][trace[:, 0]]
    multiplies = unit == Unit.MATMUL
    begin = np.where(multiplies, trace[:, 1], trace[:, 4])
    end = np.where(multiplies, trace[:, 2], begin + column["duration"][trace[:, 0]])
    rows = np.stack([*(trace[:, each] for each in (0, 5, 6, 7, 8)), begin, end], axis=1)
    jumps = again.folds[:, [11, 6, 4, 7, 8, 9, 10]]
    within = Stall.DRAIN if tables.constants.output_stationary else Stall.STATIONARY_LOAD
    known = (jumps[:, 4] <= len(rows)) & (jumps[:, 6] <= len(jumps)) & (jumps[:, 0] <= len(rows))
    return FoldedRun(
        cycles=again.cycles,
        clock=chip.clock,
        units=tuple(shown_units(chip.tile)[unit] for unit in shown),
        operators=tuple(program.operators),
        causes=tuple(cause.name.lower().replace("_", " ") for cause in Stall),
        holder=tuple(int(Stall.STATIONARY_LOAD if u == Unit.MATMUL else Stall.MEMORY_PORT) for u in shown),
        within=tuple(int(within) for _ in shown),
        instructions=tuple(instructions),
        rows=rows.tolist(),
        jumps=jumps[: int(np.argmin(known)) if not known.all() else len(jumps)].tolist(),
        left_out=again.trace_rows - len(rows) + again.jumps - len(again.folds),
    )


def _told(instruction: Instruction) -> str:
    """What an instruction does, in a few words."""
    i = instruction
    if i.opcode == Opcode.MATMUL:
        return f"matmul {i.m} x {i.n} x {i.k}"
    if i.opcode == Opcode.VECTOR:
        return f"{i.function.value} {i.m} x {i.n}"
    return f"{i.opcode.name.lower()} {i.m} x {i.n} B"


def instruction_stream(simulation: Simulation) -> InstructionStream:
    """The recorded executions of a simulation, each with the cycles at which it enters its stages.

    The sequencer takes an instruction up ``issue_cycles`` before it is in its unit's queue; a unit's queue that is full
    lets it take up no other one meanwhile.
    """
    program, outcome = simulation.plan.program, simulation.run
    rows = outcome.trace.tolist()
    require_memory(f"--trace: {len(rows):,} instructions", len(rows) * EVENT_BYTES, "--window FROM:TO has fewer")
    lines = [line.split(maxsplit=1)[1] for line in disassemble(program).splitlines()]
    tile = simulation.chip.tile
    issue = tile.sequencer.issue_cycles if isinstance(tile, NpuTile) else 0
    staged = [
        StagedInstruction(
            number,
            int(program.instructions[number].unit),
            lines[number],
            program.operators[program.instructions[number].operator],
            queued - issue,
            queued,
            started,
            max(begun, started),
            read,
            done,
        )
        for number, begun, read, done, started, *_, queued in rows
    ]
    staged.sort(key=lambda each: (each.queued, each.unit, each.started))
    title = f"{simulation.chip.name}: {simulation.graph.name}"
    shown = {int(unit): name for unit, name in shown_units(simulation.chip.tile).items()}
    return InstructionStream(title, shown, tuple(staged))


def _spans(simulation: Simulation, window: tuple[int, int] | None) -> Iterator[Span]:
    """Spans from an instruction's first operand to its last, with the cycles of them in which its unit works.

    A product of several folds waits within its span for what stays in the array, or for the results before it.
    """
    program, outcome = simulation.plan.program, simulation.run
    table = build_tables(program, simulation.chip).instructions
    column = {name: table[:, number] for name, number in COLUMNS.items()}
    busy = np.where(column["unit"] == Unit.MATMUL, column["work"], column["duration"]).tolist()
    for number, start, consumed, end, *_ in outcome.trace.tolist():
        i = program.instructions[number]
        details = {"instruction": number, "cycle": start, "operands_read": consumed, "done": end}
        if i.unit != Unit.PIM and i.opcode != Opcode.BARRIER:  # memory that computes has commands in place of cycles
            details["busy_cycles"] = busy[number]
        if i.opcode == Opcode.MATMUL:
            details["shape"] = f"{i.m}x{i.n}x{i.k}"
        elif i.opcode == Opcode.VECTOR:
            details["function"] = i.function.value
        else:
            details["bytes"] = i.m * i.n
        yield Span(int(i.unit), program.operators[i.operator], i.opcode.name.lower(), start, consumed, details)
    for number, start, end, period, periods, iterations, *_ in outcome.folds.tolist():
        if window is not None and not (start < window[1] and end > window[0]):
            continue
        what = f"{periods} x {iterations} iterations" if iterations else "a loop run before from this state"
        operator = program.operators[program.instructions[number].operator]
        details = {
            "loop_end": number,
            "operator": operator,
            "cycle": start,
            "until": end,
            "periods": periods,
            "iterations": iterations,
            "cycles": period,
        }
        yield Span(JUMPS_TRACK, f"{what} of {period} cycles", "jump", start, end, details)
