"""Macros on the RTL of a PIM tile against the simulator (every command) and the golden model (every value)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from siliconloom.arch import Chip
from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.pim import Command, MacroKind, PimTile, describe
from siliconloom.arch.verified import MacroWork, PimCase, Seen, VerifiedPim
from siliconloom.rtl.bench import pim_cases as bench
from siliconloom.rtl.bench.pim_cases import PimOutcome, run_pim_cases
from siliconloom.rtl.bench.runner import Spent
from siliconloom.rtl.emit import build_rtl
from siliconloom.sim.golden.pim import GoldenPim, read_out
from siliconloom.sim.pim.channel import ChannelRun, run_channel
from siliconloom.verification.parity import Findings, Parity, ParityStream, instant, verilog
from siliconloom.verification.pim_cases import attention_cases, gemv_case, random_case, refresh_case

RULES = 5
"""Broken rules of the DRAM array that are told."""
Logged = tuple[int, int, int, int, int]


class PimParity(Parity, kw_only=True):
    """What comparing one case showed."""

    work: bench.PimBenchCase
    model: ChannelRun
    outcome: PimOutcome

    def case(self) -> PimCase:
        """Entry of the record."""
        kinds = [macro.kind for macro in self.work.macros]
        work = MacroWork.model_validate(
            {
                "macros": tuple(describe(list(self.work.macros))),
                "gemvs": kinds.count(MacroKind.GEMV),
                "transfers": kinds.count(MacroKind.READ) + kinds.count(MacroKind.WRITE),
                "refreshes": int(self.model.counts[Command.REF]),
            }
        )
        return PimCase(**self.common(), commands=len(self.model.commands), pim=work)


def compare(tile: PimTile, case: bench.PimBenchCase, outcome: PimOutcome) -> PimParity:
    """Hold an outcome of the RTL against the simulator and the golden model."""
    model = run_channel(tile, case.macros, log=True)
    parity = PimParity(name=case.name, work=case, model=model, outcome=outcome)
    _compare_cycles(parity)
    parity.count_errors += [f"DRAM array: {rule}" for rule in outcome.broken[:RULES]]
    _compare_values(tile, parity)
    return parity


def _compare_cycles(parity: PimParity) -> None:
    case, model, outcome = parity.work, parity.model, parity.outcome
    wanted: list[Logged] = [(c[0], c[1], c[2], max(c[3], 0), c[4]) for c in model.commands.tolist()]
    found = list(outcome.commands)
    while len(found) > len(wanted) and found[-1][1] == Command.REF:
        found.pop()  # the model ends with its last macro, refresh goes on
    parity.cycles(outcome.cycles, model.cycles)
    streams: list[ParityStream[Any]] = [ParityStream("command", wanted, found, _command)]
    for computes, taken in zip((False, True), outcome.taken, strict=True):
        numbers = [i for i, macro in enumerate(case.macros) if macro.computes == computes]
        name = f"taking of a macro of {'computation' if computes else 'transfers'}"
        streams.append(ParityStream(name, model.taken[numbers].tolist(), taken, instant))
    parity.hold(streams)


def _command(logged: Logged) -> Seen:
    cycle, code, place, row, column = logged
    return Seen(cycle=cycle, what=f"{Command(code).name} place {place} row {row} column {column}")


def _compare_values(tile: PimTile, parity: PimParity) -> None:
    case, outcome = parity.work, parity.outcome
    machine = GoldenPim(tile, {key: row.copy() for key, row in case.memory.items()})
    machine.run(case.macros, case.written, case.vectors)
    rounds = [words for results in machine.results for words in results]
    _same_bursts(parity, "results", due_bytes(tile, rounds), [burst for _, burst in outcome.results])
    reads = [(burst, burst.size) for block in machine.reads for burst in block]
    _same_bursts(parity, "reads", reads, [burst for _, burst in outcome.reads])
    wrong = []
    for key, row in machine.memory.items():
        parity.bytes_compared += row.size
        if not np.array_equal(row.ravel(), outcome.memory.get(key, np.zeros(row.size, np.uint8))):
            wrong.append(key)
    if wrong:
        text = f"{len(wrong)} rows differ afterwards, the first in bank {wrong[0][0]}, row {wrong[0][1]}"
        parity.value_errors.append(text)
    if outcome.underrun:
        parity.value_errors.append("the tile says that data to be written were not there")


def due_bytes(tile: PimTile, rounds: Sequence[Any]) -> list[tuple[Any, int]]:
    """Result bursts with the bytes of each that count."""
    made = []
    for words in rounds:
        left = words.size * 4
        for burst in read_out(tile, words):
            made.append((burst, min(left, burst.size)))
            left -= burst.size
    return made


def _same_bursts(parity: PimParity, what: str, due: Sequence[tuple[Any, int]], found: Sequence[Any]) -> None:
    """Compare bursts in order, of each the bytes that count; the first that differs is told, with its words."""
    errors = parity.value_errors
    if len(due) != len(found):
        errors.append(f"{len(found)} bursts of {what}, {len(due)} are due")
    for number, ((burst, count), got) in enumerate(zip(due, found, strict=False)):
        parity.bytes_compared += count
        if not np.array_equal(burst[:count], got[:count]):
            where = int(np.flatnonzero(burst[:count] != got[:count])[0]) // 4 * 4
            sides = [x[where : where + 4][::-1].tobytes().hex() for x in (burst, got)]
            errors.append(f"burst {number} of {what}, byte {where}: {sides[0]} is due, the RTL has {sides[1]}")
            return


def check_pim_cases(
    chip: Chip, cases: Sequence[bench.PimBenchCase], *, simulator: str = "verilator", spent: Spent | None = None
) -> list[PimParity]:
    """Build the tile of ``chip`` and run cases on it; raises `LoomError` when the simulator is missing."""
    tile = chip.tile
    if not isinstance(tile, PimTile):
        raise NotSupported(f"PIM cases on a {tile.kind} tile")
    bundle = build_rtl(chip)
    with verilog(bundle) as (sources, folder):
        outcomes = run_pim_cases(
            tile, sources, bundle.top, bundle.ports, cases, folder=folder, simulator=simulator, spent=spent
        )
    return [compare(tile, case, outcome) for case, outcome in zip(cases, outcomes, strict=True)]


def pim_cases(tile: PimTile, seed: int, count: int) -> tuple[list[bench.PimBenchCase], list[str]]:
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


def verify_pim(chip: Chip, *, seed: int, simulator: str, cases: int, spent: Spent) -> Findings:
    """Random macros, GEMVs and an attention head on the tile of ``chip``."""
    if not isinstance(chip.tile, PimTile):
        raise NotSupported(f"PIM cases on a {chip.tile.kind} tile")
    made, notes = pim_cases(chip.tile, seed, cases)
    found = check_pim_cases(chip, made, simulator=simulator, spent=spent)
    return Findings(
        VerifiedPim,
        "the whole tile, by macros",
        [parity.case() for parity in found],
        behavioural="the DRAM array, which checks its timing itself",
        notes=notes,
    )
