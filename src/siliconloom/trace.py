"""A timeline in the Trace Event Format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from typing import Any

from siliconloom.arch.isa import Opcode
from siliconloom.simulate import UNIT_NAMES, Simulation

TRACE_LIMIT = 200_000
"""Most instruction executions in a trace: about 30 MB."""


def trace_text(simulation: Simulation) -> str:
    """The recorded executions as JSON: a process per chip, a thread per unit, microseconds."""
    chip, program, outcome = simulation.chip, simulation.plan.program, simulation.run
    scale = 1e6 / chip.clock
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"{chip.name}: {simulation.graph.name}"}}
    ]
    events += [
        {"ph": "M", "pid": 1, "tid": int(unit), "name": "thread_name", "args": {"name": name}}
        for unit, name in UNIT_NAMES.items()
    ]
    recorded = int(outcome.trace.shape[0])
    for number, start, consumed, end, _ in outcome.trace.tolist():
        i = program.instructions[number]
        event: dict[str, Any] = {
            "ph": "X",
            "pid": 1,
            "tid": int(i.unit),
            "name": program.operators[i.operator],
            "cat": i.opcode.name.lower(),
            "ts": start * scale,
            "dur": (consumed - start) * scale,
            "args": {"instruction": number, "cycle": start, "operands_read": consumed, "done": end},
        }
        if i.opcode == Opcode.MATMUL:
            event["args"]["shape"] = f"{i.m}x{i.n}x{i.k}"
        elif i.opcode == Opcode.VECTOR:
            event["args"]["function"] = i.function.value
        else:
            event["args"]["bytes"] = i.m * i.n
        events.append(event)
    total = int(
        outcome.executions[
            [x.opcode in (Opcode.LOAD, Opcode.STORE, Opcode.MATMUL, Opcode.VECTOR) for x in program.instructions]
        ].sum()
    )
    return (
        json.dumps(
            {
                "traceEvents": events,
                "displayTimeUnit": "ns",
                "otherData": {
                    "chip_digest": chip.digest,
                    "recorded": recorded,
                    "executed": total,
                    "left_out": total - recorded,
                },
            }
        )
        + "\n"
    )
