"""What ``loom verify`` does: the RTL of a description against its models, whatever kind of machine it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from siliconloom import __version__
from siliconloom.arch import Chip, System
from siliconloom.arch.chip_ring import ring_parts
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.pim import PimTile
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.arch.result import digest_of
from siliconloom.arch.tile import SystolicTile
from siliconloom.arch.verified import Verified, totals_of
from siliconloom.mapper.chip.program import MappedWorkload
from siliconloom.rtl.bench.runner import Spent, require_simulator, tool_versions
from siliconloom.rtl.npu.geometry import has_npu_rtl
from siliconloom.rtl.synthesis.yosys import yosys_version
from siliconloom.sim.dram.memory import effective
from siliconloom.verification.array import verify_array, verify_list
from siliconloom.verification.link import verify_ring
from siliconloom.verification.npu import verify_programs
from siliconloom.verification.pim import verify_pim
from siliconloom.verification.workload import refuse, verify_workload


def verify(
    described: Chip | System,
    *,
    overrides: Sequence[tuple[str, str]] = (),
    seed: int = 0,
    simulator: str = "verilator",
    cases: int = 8,
    programs: int = 8,
    workload: MappedWorkload | None = None,
    liberty: Path | None = None,
    waves: Path | None = None,
    only: str | None = None,
    watcher: Watcher = NOBODY,
) -> Verified:
    """Build the RTL of ``described``, run random work or a workload on it, and compare values and cycles.

    A whole npu tile runs ``programs`` random programs (`siliconloom.verification.npu`), a PIM tile ``cases`` random
    sequences of macros and more (`siliconloom.verification.pim`), a ring of npu chips ``cases`` sequences of packets,
    as many collectives, and a block computed by all chips together (`siliconloom.verification.link`). A bare array, or
    a tile whose array alone has RTL, runs ``cases`` sequences of products (`siliconloom.verification.array`).

    Parameters
    ----------
    described
        With its overrides applied.
    overrides
        What ``--set`` changed in it; the record keeps them.
    seed, simulator, cases, programs
        Of the random work, what runs the Verilog, how much work.
    workload
        Mapped to the chip: its program runs in place of random ones (`siliconloom.verification.workload`), or its
        products do on a bare array.
    liberty
        A library: what runs is the netlist of its cells that Yosys makes of the Verilog, without delays.
    waves
        Of a whole npu tile: all its signals, and the simulator's timeline of the same programs, go to this file.
    only
        Of a whole npu tile: name of the one program that runs.
    watcher
        Is told what is under way.

    Raises
    ------
    LoomError
        When the simulator is missing or the description has no RTL.
    NotSupported
        For the netlist of a pim tile, or of a ring; for the waves of what is no whole npu tile.
    CheckFailed
        When a bench printed an error of its own.
    """
    require_simulator(simulator)
    began, spent = time.perf_counter(), Spent()
    options: dict[str, Any] = {"seed": seed, "simulator": simulator, "spent": spent}
    counts: dict[str, int | None] = {"cases": cases, "programs": None}
    machines: list[Chip | System] = [described]
    if liberty is not None:
        if isinstance(described, System) or isinstance(described.tile, PimTile):
            raise NotSupported(f"--liberty for {described.name}: netlists of arrays and npu tiles are run")
        options["liberty"] = liberty
    for name, value in (("waves", waves), ("only", only)):
        if value is None:
            continue
        if isinstance(described, System) or described.tile.kind != "npu" or not has_npu_rtl(effective(described)):
            raise NotSupported(f"--{name} for {described.name}: whole npu tiles run programs")
        options[name] = value
    if workload is not None:
        refuse(described, workload)
    with watcher.stage(f"building and running {described.name} with {simulator} ...") as spent.tell:
        if isinstance(described, System):
            machines.append(ring_parts(described)[0])
            found = verify_ring(described, cases=cases, **options)
        else:
            chip = effective(described)
            if workload is not None:
                counts = {"cases": None, "programs": None}
                bare = isinstance(chip.tile, SystolicTile)
                found = (verify_list if bare else verify_workload)(workload, **options)
            elif isinstance(chip.tile, PimTile):
                found = verify_pim(chip, cases=cases, **options)
            elif chip.tile.kind == "npu" and has_npu_rtl(chip):
                counts = {"cases": None, "programs": programs}
                found = verify_programs(chip, programs=programs, **options)
            else:
                found = verify_array(chip, chip.tile.array, cases=cases, **options)
    return found.record.model_validate(
        {
            "version": __version__,
            "asked": {
                "machine": described.name,
                "machine_digest": digest_of(machines),
                "overrides": dict(overrides),
                "seed": seed,
                "simulator": simulator,
                "liberty": None if liberty is None else liberty.name,
                "tools": tool_versions(simulator) | ({} if liberty is None else {"yosys": yosys_version()}),
                "workload": None if workload is None else workload.graph.name,
                **counts,
            },
            "verified": found.verified,
            "behavioural": found.behavioural,
            "time": {"total_s": time.perf_counter() - began, "build_s": spent.build, "run_s": spent.run},
            "passed": all(case.passed for case in found.cases),
            "totals": totals_of(found.cases),
            "cases": tuple(found.cases),
            "notes": tuple(found.notes),
            **found.sections,
        }
    )
