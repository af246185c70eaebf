"""The program of a model's run, and its memory, on the generated Verilog."""

from __future__ import annotations

from typing import Any

from siliconloom.execution.run import ModelRun
from siliconloom.rtl.bench.runner import Spent
from siliconloom.sim.chip.engine import duration
from siliconloom.verification.npu import ProgramParity, check_programs
from siliconloom.verification.workload import SLACK


def run_rtl(made: ModelRun, *, simulator: str, spent: Spent) -> ProgramParity:
    """Run a model's program on the RTL, and hold every byte of memory and every cycle against the models.

    Raises
    ------
    LoomError
        When the simulator is missing.
    """
    mapped = made.mapped
    limit = SLACK * duration(mapped.program, mapped.chip)
    name = f"{mapped.graph.name}, {mapped.graph.phase.value}"
    (found,) = check_programs(
        mapped.chip, [(name, made.made)], simulator=simulator, options=[{"limit": limit}], spent=spent
    )
    return found


def rtl_section(parity: ProgramParity) -> dict[str, Any]:
    """What the RTL has shown, as plain data of a run's record."""
    return {
        "rtl_cycles": parity.rtl_cycles,
        "model_cycles": parity.model_cycles,
        "bytes_compared": parity.bytes_compared,
        "times_compared": parity.times_compared,
        "errors": parity.errors,
    }


__all__ = ["rtl_section", "run_rtl"]
