"""The same program and the same memory on the generated Verilog."""

from __future__ import annotations

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


__all__ = ["run_rtl"]
