"""The very program that ``loom sim`` times, on the RTL: a workload's, with made-up values in memory."""

from __future__ import annotations

from pathlib import Path

from siliconloom.arch import Chip, System
from siliconloom.arch.assembler import violations
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.tile import NpuTile, SystolicTile
from siliconloom.arch.verified import VerifiedNpu
from siliconloom.mapper.chip.program import MappedWorkload
from siliconloom.mapper.chip.tasks import unlaid
from siliconloom.rtl.bench.runner import Spent
from siliconloom.rtl.bench.timeline import told
from siliconloom.rtl.npu.geometry import geometry_of
from siliconloom.sim.chip.engine import duration
from siliconloom.verification.filling import filled
from siliconloom.verification.npu import check_programs
from siliconloom.verification.parity import Findings

SLACK = 4
"""How many times longer than predicted a program may run before the tile counts as hanging."""


def refuse(described: Chip | System, mapped: MappedWorkload) -> None:
    """Raise `NotSupported` where there is no RTL that runs a mapped workload as it is, with what stands in the way."""
    if isinstance(described, System):
        raise NotSupported(
            f"RTL of {mapped.graph.name} on a system ({described.name}); of its chips by themselves it is"
        )
    if described.tile_count > 1:
        raise NotSupported(
            f"RTL of {mapped.graph.name} on {described.tile_count} tiles (tile_count); Verilog is of one"
        )
    if isinstance(described.tile, SystolicTile):
        return  # which takes products as they are
    if not isinstance(described.tile, NpuTile):
        raise NotSupported(f"RTL of {mapped.graph.name} on a {described.tile.kind} tile; programs run on npu tiles")
    geometry_of(mapped.chip)
    chip, program, names = mapped.chip, mapped.program, mapped.program.operators
    why = {each.task.operator.name: reason for each in mapped.tasks if (reason := unlaid(each.task))}
    why |= {name: reason for name, reason in mapped.apart.items() if name not in why}
    for violation in violations(program, chip):
        for number in violation.instructions or range(len(program.instructions)):
            why.setdefault(names[program.instructions[number].operator], str(violation.error).split(": ", 1)[-1])
    if why:
        first, reason = next(iter(why.items()))
        more = f", and {len(why) - 1} more" if len(why) > 1 else ""
        raise NotSupported(f"RTL of {mapped.graph.name} on {chip.name}: operator {first}{more}: {reason}")


def verify_workload(
    mapped: MappedWorkload,
    *,
    seed: int,
    simulator: str,
    spent: Spent,
    liberty: Path | None = None,
    waves: Path | None = None,
) -> Findings:
    """Run a mapped workload's program on RTL, simulator and golden model, from a memory of made-up values.

    Raises
    ------
    NotSupported
        For more memory than a bench holds; for what the tile does not run see `refuse`.
    LoomError
        When the simulator is missing.
    """
    chip, graph = mapped.chip, mapped.graph
    made = filled(mapped, seed)
    limit = SLACK * duration(mapped.program, chip)
    name = f"{graph.name}, {graph.phase.value}"
    found = check_programs(
        chip, [(name, made)], simulator=simulator, options=[{"limit": limit}], spent=spent, liberty=liberty, waves=waves
    )
    notes = [] if waves is None else [told(waves)]
    return Findings(
        VerifiedNpu, "the program of loom sim, every instruction", [each.case() for each in found], notes=notes
    )


__all__ = ["refuse", "verify_workload"]
