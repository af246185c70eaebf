"""What the messages of a plan's step put on the links of its system: its execution trace, run over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from siliconloom.arch import LoomError, load_system
from siliconloom.arch.document import Document
from siliconloom.arch.execution_trace import ExecutionTrace
from siliconloom.arch.gpu_system import with_adding_switch
from siliconloom.evaluate.traced import execution_trace_result

MOST_NODES = 200_000
"""Nodes of a trace that is run for its links alone: some seconds."""
OF_OTHERS = ("workload.", "plan.", "chip.", "run.", "slow.", "decode.")


def step_links(
    name: str | Document, sets: Sequence[tuple[str, str]], trace: Callable[[], ExecutionTrace]
) -> tuple[dict[str, Any] | None, str]:
    """The run of a step's messages, or none and why; what a plan does that no trace has is no error here."""
    try:
        made = trace()
        nodes = sum(map(len, made.ranks))
        if nodes > MOST_NODES:
            return None, f"the step has {nodes:,} operators and messages, over {MOST_NODES:,}"
        system = with_adding_switch(load_system(name, [each for each in sets if not each[0].startswith(OF_OTHERS)]))
        if len(made.ranks) < 2:
            return None, ""
        return execution_trace_result(system, made), ""
    except LoomError as error:
        return None, str(error)


__all__ = ["step_links"]
