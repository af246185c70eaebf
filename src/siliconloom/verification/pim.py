"""Macros on the RTL of a PIM tile against the simulator (every command) and the golden model (every value)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from siliconloom import __version__
from siliconloom.arch import Chip
from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.pim import Command, PimTile, describe
from siliconloom.arch.working import working_folder
from siliconloom.rtl.bench.pim_cases import PimCase, PimOutcome, run_pim_cases
from siliconloom.rtl.bench.runner import Spent, require_simulator
from siliconloom.rtl.emit import build_rtl
from siliconloom.sim.golden.pim import PimMachine, read_out
from siliconloom.sim.pim.channel import ChannelRun, run_channel
from siliconloom.verification.pim_cases import attention_cases, gemv_case, random_case, refresh_case

SCHEMA = "siliconloom.verification/3"
CONTEXT = 3
"""Commands shown before the first one that differs."""
Logged = tuple[int, int, int, int, int]


@dataclass
class PimParity:
    """What comparing one case showed."""

    case: PimCase
    model: ChannelRun
    outcome: PimOutcome
    value_errors: list[str] = field(default_factory=list)
    cycle_errors: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.value_errors and not self.cycle_errors

    @property
    def difference(self) -> int:
        """Cycles that the RTL took longer."""
        return self.outcome.cycles - self.model.cycles


def compare(tile: PimTile, case: PimCase, outcome: PimOutcome) -> PimParity:
    """Hold an outcome of the RTL against the simulator and the golden model."""
    model = run_channel(tile, case.macros, log=True)
    parity = PimParity(case, model, outcome)
    _compare_cycles(parity)
    parity.cycle_errors += [f"DRAM array: {rule}" for rule in outcome.broken[:5]]
    _compare_values(tile, parity)
    return parity


def _compare_cycles(parity: PimParity) -> None:
    case, model, outcome, errors = parity.case, parity.model, parity.outcome, parity.cycle_errors
    wanted: list[Logged] = [(c[0], c[1], c[2], max(c[3], 0), c[4]) for c in model.commands.tolist()]
    found = list(outcome.commands)
    while len(found) > len(wanted) and found[-1][1] == Command.REF:
        found.pop()  # the model ends with its last macro, refresh goes on
    for number in range(max(len(wanted), len(found))):
        if wanted[number : number + 1] != found[number : number + 1]:
            errors.append(f"first difference at command {number} of {len(wanted)}:")
            for at in range(max(number - CONTEXT, 0), number + 1):
                sides = [f"{label} {_command(log, at)}" for label, log in (("model", wanted), ("RTL", found))]
                errors.append(f"  {'; '.join(sides)}{'   <--' if at == number else ''}")
            break
    for stream, taken in zip((False, True), outcome.taken, strict=True):
        numbers = [i for i, macro in enumerate(case.macros) if macro.computes == stream]
        if taken != model.taken[numbers].tolist():
            name = "computation" if stream else "transfers"
            errors.append(f"macros of {name} taken at {taken}, by the model at {model.taken[numbers].tolist()}")
    if outcome.cycles != model.cycles:
        errors.append(f"the RTL took {outcome.cycles:,} cycles, the model {model.cycles:,}")


def _command(log: Sequence[Logged], number: int) -> str:
    if number >= len(log):
        return "-"
    cycle, code, place, row, column = log[number]
    return f"{cycle:,} {Command(code).name} place {place} row {row} column {column}"


def _compare_values(tile: PimTile, parity: PimParity) -> None:
    case, outcome, errors = parity.case, parity.outcome, parity.value_errors
    machine = PimMachine(tile, {key: row.copy() for key, row in case.memory.items()})
    machine.run(case.macros, case.written, case.vectors)
    rounds = [words for results in machine.results for words in results]
    _same("results", due_bytes(tile, rounds), [burst for _, burst in outcome.results], errors)
    reads = [(burst, burst.size) for block in machine.reads for burst in block]
    _same("reads", reads, [burst for _, burst in outcome.reads], errors)
    wrong = [
        key
        for key, row in machine.memory.items()
        if not np.array_equal(row.ravel(), outcome.memory.get(key, np.zeros(row.size, np.uint8)))
    ]
    if wrong:
        errors.append(f"{len(wrong)} rows differ afterwards, the first in bank {wrong[0][0]}, row {wrong[0][1]}")
    if outcome.underrun:
        errors.append("the tile says that data to be written were not there")


def due_bytes(tile: PimTile, rounds: Sequence[Any]) -> list[tuple[Any, int]]:
    """Result bursts with the bytes of each that count."""
    made = []
    for words in rounds:
        left = words.size * 4
        for burst in read_out(tile, words):
            made.append((burst, min(left, burst.size)))
            left -= burst.size
    return made


def _same(what: str, due: Sequence[tuple[Any, int]], found: Sequence[Any], errors: list[str]) -> None:
    if len(due) != len(found):
        errors.append(f"{len(found)} bursts of {what}, {len(due)} are due")
    for number, ((burst, count), got) in enumerate(zip(due, found, strict=False)):
        if not np.array_equal(burst[:count], got[:count]):
            where = int(np.flatnonzero(burst[:count] != got[:count])[0]) // 4 * 4
            sides = [x[where : where + 4][::-1].tobytes().hex() for x in (burst, got)]
            errors.append(f"burst {number} of {what}, byte {where}: {sides[0]} is due, the RTL has {sides[1]}")
            return


def check_pim_cases(
    chip: Chip, cases: Sequence[PimCase], *, simulator: str = "verilator", spent: Spent | None = None
) -> list[PimParity]:
    """Build the tile of ``chip`` and run cases on it; raises `LoomError` when the simulator is missing."""
    tile = chip.tile
    if not isinstance(tile, PimTile):
        raise NotSupported(f"PIM cases on a {tile.kind} tile")
    bundle = build_rtl(chip)
    with working_folder("verify") as folder:
        sources = bundle.write(folder / "rtl")
        outcomes = run_pim_cases(
            tile, sources, bundle.top, bundle.ports, cases, folder=folder / "bench", simulator=simulator, spent=spent
        )
    return [compare(tile, case, outcome) for case, outcome in zip(cases, outcomes, strict=True)]


def pim_cases(tile: PimTile, seed: int, count: int) -> tuple[list[PimCase], list[str]]:
    """Work for a tile, and a line for each part of it that does not fit the tile.

    ``count`` random cases, one that meets a refresh, GEMVs of every operand format, and an attention head in bf16.
    """
    made, notes = [random_case(tile, seed + number) for number in range(count)], []
    made.append(refresh_case(tile, seed))
    for dtype in tile.operands:
        each = tile.burst_elements(dtype)
        for n, k in ((2 * tile.banks + 3, 3 * each), (5, 5 * tile.row_columns * each // 2)):
            try:
                made.append(gemv_case(tile, n, k, dtype, seed)[0])
            except LoomError as reason:
                notes.append(f"left out: a GEMV of {n}x{k} in {dtype.value}: {reason}")
    if DataType.BF16 in tile.operands:
        try:
            made += attention_cases(tile, 4 * tile.banks, 4 * tile.burst_elements(DataType.BF16), seed)[0]
        except LoomError as reason:
            notes.append(f"left out: an attention head: {reason}")
    return made, notes


def verify_pim(chip: Chip, *, seed: int, simulator: str, cases: int) -> dict[str, Any]:
    """Random macros, GEMVs and an attention head on the tile of ``chip``."""
    require_simulator(simulator)
    if not isinstance(chip.tile, PimTile):
        raise NotSupported(f"PIM cases on a {chip.tile.kind} tile")
    began, spent = time.perf_counter(), Spent()
    made, notes = pim_cases(chip.tile, seed, cases)
    found = check_pim_cases(chip, made, simulator=simulator, spent=spent)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "chip": chip.name,
        "chip_digest": chip.digest,
        "tile": "pim",
        "verified": "the whole tile, around a behavioural DRAM array, by macros",
        "simulator": simulator,
        "seed": seed,
        "wall_s": time.perf_counter() - began,
        "build_s": spent.build,
        "run_s": spent.run,
        "passed": all(p.passed for p in found),
        "cases": [_case(p) for p in found],
        "notes": notes,
    }


def _case(parity: PimParity) -> dict[str, Any]:
    case, model = parity.case, parity.model
    return {
        "name": case.name,
        "macros": describe(list(case.macros)),
        "commands": len(model.commands),
        "refreshes": int(model.counts[Command.REF]),
        "rtl_cycles": parity.outcome.cycles,
        "model_cycles": model.cycles,
        "difference": parity.difference,
        "cycles_equal": not parity.cycle_errors,
        "values_equal": not parity.value_errors,
        "passed": parity.passed,
        "errors": [*parity.value_errors, *parity.cycle_errors][:12],
    }
