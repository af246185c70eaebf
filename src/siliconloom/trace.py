"""A timeline in the Trace Event Format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import PydanticCustomError

from siliconloom.arch import Chip, LoomError
from siliconloom.arch.budget import require_memory
from siliconloom.arch.isa import Opcode
from siliconloom.arch.quantity import DURATION, parse
from siliconloom.simulate import UNIT_NAMES, Simulation

TRACE_LIMIT = 200_000
"""Most instruction executions in a trace: about 40 MB."""
EVENT_BYTES = 800
"""That an execution or a jump takes on its way to the file: a line of some 200 characters, joined and encoded."""
JUMPS_THREAD = 15
WORK = (Opcode.LOAD, Opcode.STORE, Opcode.MATMUL, Opcode.VECTOR)


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


def trace_text(simulation: Simulation, window: tuple[int, int] | None = None) -> str:
    """The recorded executions as JSON: a process per chip, a thread per unit and one for jumps, microseconds."""
    chip, program, outcome = simulation.chip, simulation.plan.program, simulation.run
    scale = 1e6 / chip.clock
    rows = len(outcome.trace) + len(outcome.folds)
    require_memory(f"--trace: {rows:,} events", rows * EVENT_BYTES, "--window FROM:TO has fewer")
    threads = {int(unit): name for unit, name in UNIT_NAMES.items()} | {JUMPS_THREAD: "jumped (see --window)"}
    events = [
        json.dumps(
            {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"{chip.name}: {simulation.graph.name}"}}
        )
    ]
    events += [
        json.dumps({"ph": "M", "pid": 1, "tid": thread, "name": "thread_name", "args": {"name": name}})
        for thread, name in threads.items()
    ]
    for number, start, consumed, end, _ in outcome.trace.tolist():
        i = program.instructions[number]
        event = _span(int(i.unit), program.operators[i.operator], i.opcode.name.lower(), start, consumed, scale)
        event["args"] = {"instruction": number, "cycle": start, "operands_read": consumed, "done": end}
        if i.opcode == Opcode.MATMUL:
            event["args"]["shape"] = f"{i.m}x{i.n}x{i.k}"
        elif i.opcode == Opcode.VECTOR:
            event["args"]["function"] = i.function.value
        else:
            event["args"]["bytes"] = i.m * i.n
        events.append(json.dumps(event))
    for number, start, end, period, periods, iterations in outcome.folds.tolist():
        if window is not None and not (start < window[1] and end > window[0]):
            continue
        what = f"{periods} x {iterations} iterations" if iterations else "a loop run before from this state"
        event = _span(JUMPS_THREAD, f"{what} of {period} cycles", "jump", start, end, scale)
        operator = program.operators[program.instructions[number].operator]
        event["args"] = {"loop_end": number, "operator": operator, "cycle": start, "until": end, "periods": periods,
                         "iterations": iterations, "cycles": period}  # fmt: skip
        events.append(json.dumps(event))
    total = int(outcome.executions[[x.opcode in WORK for x in program.instructions]].sum())
    recorded = len(outcome.trace)
    other = {
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
    return events_text(events, {"displayTimeUnit": "ns", "otherData": other})


def events_text(events: list[str], rest: dict[str, Any]) -> str:
    """A trace file of events that are JSON already: made one at a time, since all of them as objects take gigabytes."""
    return f'{{"traceEvents": [{", ".join(events)}], {json.dumps(rest)[1:]}\n'


def _span(thread: int, name: str, category: str, start: int, end: int, scale: float) -> dict[str, Any]:
    return {"ph": "X", "pid": 1, "tid": thread, "name": name, "cat": category, "ts": start * scale,
            "dur": (end - start) * scale}  # fmt: skip
