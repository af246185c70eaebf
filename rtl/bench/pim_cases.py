"""Runs macros on the RTL of a PIM tile, and collects its commands, its data and when they came."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import LoomError
from siliconloom.arch.pim import Macro, MacroKind, PimTile
from siliconloom.rtl.bench.runner import Spent, require_simulator, simulate

Bytes = NDArray[np.uint8]
Rows = dict[tuple[int, int], Bytes]


class PimBenchCase(Struct, frozen=True, kw_only=True):
    """Macros with the data that they find and bring.

    Parameters
    ----------
    name
        For people.
    macros
        Of both streams; each stream offers its own in this order.
    memory
        Rows by (bank, row); others are zeros.
    written, vectors
        Data of the WRITE and of the GWRITE macros, in order.
    limit
        Cycles to run for.
    """

    name: str
    macros: tuple[Macro, ...]
    memory: Rows
    written: tuple[Bytes, ...] = ()
    vectors: tuple[Bytes, ...] = ()
    limit: int = 100_000


class PimOutcome(Struct):
    """What a tile did.

    Parameters
    ----------
    commands
        (cycle, command, place, row, column), in order; row and column are 0 where a command has none.
    broken
        Rules that the DRAM array saw broken, in words.
    taken
        Cycles in which macros were taken: of transfers, of computation.
    reads, results
        Bursts with their cycles.
    cycles
        When the last datum arrived.
    underrun
        A burst to be written was asked for before it was there.
    memory
        Rows afterwards.
    """

    commands: list[tuple[int, int, int, int, int]]
    broken: list[str]
    taken: tuple[list[int], list[int]]
    reads: list[tuple[int, Bytes]]
    results: list[tuple[int, Bytes]]
    cycles: int
    underrun: bool
    memory: Rows = field(default_factory=dict)


def run_pim_cases(
    tile: PimTile,
    sources: Sequence[Path],
    top: str,
    ports: Sequence[str],
    cases: Sequence[PimBenchCase],
    *,
    folder: Path,
    simulator: str = "verilator",
    spent: Spent | None = None,
) -> list[PimOutcome]:
    """Run ``cases`` one after the other, each from reset; the time it took is added to ``spent``.

    Raises
    ------
    LoomError
        When the simulator is missing or stops before the end.
    """
    require_simulator(simulator)
    folder.mkdir(parents=True, exist_ok=True)
    job, results = folder / "job.json", folder / "results.json"
    results.unlink(missing_ok=True)
    described = tile.model_dump(mode="json") | {"global_buffer": f"{tile.global_buffer} B"}
    described["dram"]["clock_period"] = f"{tile.dram.clock_period} ps"
    content = {"tile": described, "cases": [_job(tile, case) for case in cases], "results": str(results)}
    job.write_text(json.dumps(content), encoding="utf-8")
    simulate(
        sources,
        top,
        ports,
        simulator=simulator,
        folder=folder,
        bench="siliconloom.rtl.bench.pim",
        environment={"LOOM_BENCH": str(job)},
        arguments=["-Wno-fatal"],
        spent=spent,
    )
    if not results.exists():
        raise LoomError("the simulation stopped before its end")
    return [_outcome(tile, found) for found in json.loads(results.read_text(encoding="utf-8"))]


def _job(tile: PimTile, case: PimBenchCase) -> dict[str, Any]:
    size = tile.dram.organization.request_bytes
    macros = [macro for macro in case.macros if not macro.computes]
    transfers = [
        {"write": int(m.kind == MacroKind.WRITE)}
        | {name: getattr(m, name) for name in ("bank", "row", "column", "columns", "arrival")}
        for m in macros
    ]
    names = ("row", "rounds", "chunks", "segments", "columns", "last_columns", "column", "arrival")
    compute = [
        {"gemv": int(m.kind == MacroKind.GEMV), "apart": int(m.apart), "integer": int(m.dtype == DataType.INT8)}
        | {name: getattr(m, name) for name in names}
        for m in case.macros
        if m.computes
    ]
    return {
        "transfer": transfers,
        "compute": compute,
        "limit": case.limit,
        "memory": [(bank, row, data.tobytes().hex()) for (bank, row), data in case.memory.items()],
        "write": _bursts(case.written, size),
        "vector": _bursts(case.vectors, size),
    }


def _bursts(blocks: Sequence[Bytes], size: int) -> list[str]:
    """Bursts as numbers in hexadecimal, the first byte lowest."""
    return [burst.tobytes()[::-1].hex() for block in blocks for burst in block.reshape(-1, size)]


def _outcome(tile: PimTile, found: dict[str, Any]) -> PimOutcome:
    size = tile.dram.organization.request_bytes
    outputs = {
        name: [(cycle, np.frombuffer(int(data, 16).to_bytes(size, "little"), np.uint8)) for cycle, data in bursts]
        for name, bursts in found["outputs"].items()
    }
    return PimOutcome(
        commands=[(c[0], c[1], c[2], c[3], c[4]) for c in found["log"]],
        broken=found["broken"],
        taken=(found["taken"][0], found["taken"][1]),
        reads=outputs["read"],
        results=outputs["result"],
        cycles=found["cycles"],
        underrun=bool(found["underrun"]),
        memory={(bank, row): np.frombuffer(bytes.fromhex(data), np.uint8) for bank, row, data in found["memory"]},
    )
