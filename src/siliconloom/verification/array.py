"""What ``loom verify`` does: the RTL of a description against NumPy and against the simulator's timing."""

from __future__ import annotations

import random
import time
from typing import Any

from siliconloom import __version__
from siliconloom.arch import Chip, System, SystolicArray
from siliconloom.arch.description import PimTile
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.arch.working import working_folder
from siliconloom.rtl.array.folds import ArrayCase, ArrayProduct, CaseResult, FoldTime
from siliconloom.rtl.array.tile import arithmetic_of
from siliconloom.rtl.bench.runner import require_simulator, run_cases
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.npu.geometry import has_npu_rtl
from siliconloom.sim.dram.memory import effective
from siliconloom.sim.timing.systolic import gemm_folds, stall_free_schedule
from siliconloom.verification.link import verify_ring
from siliconloom.verification.npu import verify_programs
from siliconloom.verification.pim import verify_pim

SCHEMA = "siliconloom.verification/1"
BEATS = 1500
"""Most moving beats in a case: keeps a bench within seconds."""


def verify(
    chip: Chip | System,
    *,
    seed: int = 0,
    simulator: str = "verilator",
    cases: int = 8,
    programs: int = 8,
    watcher: Watcher = NOBODY,
) -> dict[str, Any]:
    """Build the RTL of ``chip``, run random work on it, and compare values and cycles.

    A whole NPU tile runs ``programs`` random programs (`siliconloom.verification.npu`), a PIM tile ``cases`` random
    sequences of macros and more (`siliconloom.verification.pim`), a ring of npu chips ``cases`` sequences of packets,
    as many collectives, and a block computed by all chips together (`siliconloom.verification.link`). A bare array, or
    a tile whose array alone has RTL, runs ``cases`` sequences of GEMMs: half of them without stalls, back to back,
    compared cycle for cycle; the others stall every stream at random and are compared by value.

    Raises
    ------
    LoomError
        When the simulator is missing or the description has no RTL.
    """
    require_simulator(simulator)
    if isinstance(chip, System):
        with watcher.stage(f"building and running {chip.name} with {simulator} ..."):
            return verify_ring(chip, seed=seed, simulator=simulator, cases=cases)
    chip = effective(chip)
    if isinstance(chip.tile, PimTile):
        with watcher.stage(f"building and running {chip.name} with {simulator} ..."):
            return verify_pim(chip, seed=seed, simulator=simulator, cases=cases)
    if chip.tile.kind == "npu" and has_npu_rtl(chip):
        with watcher.stage(f"building and running {chip.name} with {simulator} ..."):
            return verify_programs(chip, seed=seed, simulator=simulator, programs=programs)
    array = chip.tile.array
    bundle = build_rtl(chip)
    jobs = random_cases(array, seed, cases)
    began = time.perf_counter()
    with working_folder("verify") as folder, watcher.stage(f"building and running {bundle.top} with {simulator} ..."):
        sources = bundle.write(folder / "rtl")
        results = run_cases(
            array, sources, bundle.top, bundle.ports, jobs, simulator=simulator, folder=folder / "bench"
        )
    return {
        "schema": SCHEMA,
        "version": __version__,
        "chip": chip.name,
        "chip_digest": chip.digest,
        "verified": bundle.sidecar["contains"],
        "simulator": simulator,
        "seed": seed,
        "rows": array.rows,
        "cols": array.cols,
        "dataflow": array.dataflow,
        "wall_s": time.perf_counter() - began,
        "passed": all(r.passed for r in results),
        "cases": [_case(r) for r in results],
    }


def random_cases(array: SystolicArray, seed: int, count: int) -> list[ArrayCase]:
    """``count`` random sequences of GEMMs for ``array``: every second one with random stalls on every stream."""
    chance = random.Random(seed)
    streams = ("a", "b") if array.dataflow == "output_stationary" else ("stationary", "moving")
    widths = sorted({4, arithmetic_of(array).bits})
    made = []
    for number in range(count):
        gemms: list[ArrayProduct] = []
        while len(gemms) < chance.randint(1, 3):
            gemms.append(_random_gemm(array, chance))
        stall = {s: chance.choice([0.0, 0.2, 0.5, 0.8]) for s in (*streams, "output")} if number % 2 else {}
        if stall and not any(stall.values()):
            stall["output"] = 0.5
        folds = [fold for g in gemms for fold in gemm_folds(array, g.m, g.n, g.k)]
        schedule = tuple(FoldTime(t.first_output, t.last_output) for t in stall_free_schedule(array, folds))
        bits = widths[-1] if number < count - 1 else chance.choice(widths)
        made.append(ArrayCase(tuple(gemms), chance.randrange(2**32), bits, stall, schedule))
    return made


def _random_gemm(array: SystolicArray, chance: random.Random) -> ArrayProduct:
    """A GEMM of a few folds, often with edges that fill the array only in part."""
    while True:
        m, n, k = (
            chance.choice([1, chance.randint(1, side), side, chance.randint(1, 3 * side)])
            for side in (array.rows, array.cols, array.rows)
        )
        if sum(f.load_beats + f.stream_beats + array.rows for f in gemm_folds(array, m, n, k)) <= BEATS:
            return ArrayProduct(m, n, k)


def _case(result: CaseResult) -> dict[str, Any]:
    case = result.case
    model = case.schedule[-1].last_output + 1 if not case.stall else None
    return {
        "gemms": [{"m": g.m, "n": g.n, "k": g.k} for g in case.gemms],
        "operand_bits": case.bits,
        "stall": case.stall,
        "folds": len(case.schedule),
        "rtl_cycles": result.cycles,
        "model_cycles": model,
        "difference": None if model is None else result.cycles - model,
        "values_equal": not result.value_errors,
        "errors": [*result.value_errors, *result.cycle_errors][:5],
    }
