"""Replay of a request trace on a memory: what ``loom dram`` reads and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom import __version__
from siliconloom.arch import LoomError
from siliconloom.arch.budget import require_memory
from siliconloom.arch.dram import Dram
from siliconloom.arch.errors import NotSupported, shortened
from siliconloom.arch.quantity import format_bytes
from siliconloom.baselines.cells import read_text
from siliconloom.sim.dram.replay import COMMANDS, Replay, replay

Int = NDArray[np.int64]
SCHEMA = "siliconloom.dram/1"
LAST_CYCLE = 2**36
"""Latest cycle of a request: refreshes are run one by one also where nothing else happens, 5 s of CPU until then."""
HEADER = ["cycle", "op", "address"]
REQUEST_BYTES = 700
"""Memory of a request: its line, its columns while it is replayed, its row of the result."""
COMMANDS_BYTES = 900
"""The same for its commands, as a log and as text."""
OPERATIONS = {"R": 0, "W": 1}


def read_trace(path: Path | str) -> tuple[Int, Int, Int]:
    """Cycle, whether it is a write, and byte address of every request of a CSV file, gzipped or not.

    Its columns are `HEADER`.

    Raises
    ------
    LoomError
        With file and line, for a line that is no request, or a time that runs backwards.
    """
    lines = read_text(path)[1].splitlines()
    if not lines or [cell.strip() for cell in lines[0].split(",")] != HEADER:
        raise LoomError(f"{path}:1: expected the header {','.join(HEADER)}")
    require_memory(f"{path}: {len(lines) - 1:,} requests", len(lines) * REQUEST_BYTES, "a shorter trace needs less")
    rows = np.zeros((3, len(lines) - 1), np.int64)
    last = 0
    for number, line in enumerate(lines[1:]):
        try:
            cycle, operation, address = line.split(",")
            rows[:, number] = int(cycle), OPERATIONS[operation.strip()], int(address, 0)
        except KeyError:
            raise LoomError(
                f"{path}:{number + 2}: op must be R or W (got '{shortened(operation.strip(), 60)}')"
            ) from None
        except (ValueError, OverflowError):
            raise LoomError(f"{path}:{number + 2}: expected cycle,op,address (got '{shortened(line, 60)}')") from None
        if rows[0, number] > LAST_CYCLE:
            raise NotSupported(f"{path}:{number + 2}: cycle {rows[0, number]}, after {LAST_CYCLE}: each refresh is run")
        if rows[0, number] < last:
            raise LoomError(f"{path}:{number + 2}: cycle {rows[0, number]} lies before {last}, the one before")
        last = rows[0, number]
    if not rows.shape[1]:
        raise LoomError(f"{path}: no requests")
    return rows[0], rows[1], rows[2]


def dram_result(
    dram: Dram, path: Path | str, *, commands: bool = False, exact: bool = False
) -> tuple[dict[str, Any], Replay]:
    """Replay a trace file; the result under its versioned schema, and the replay itself.

    ``commands`` keeps every command; with it, as with ``exact``, each one is run.
    """
    cycle, write, address = read_trace(path)
    outside = np.flatnonzero((address < 0) | (address >= dram.organization.capacity))
    if len(outside):
        line = int(outside[0]) + 2
        raise LoomError(
            f"{path}:{line}: address {int(address[outside[0]]):#x} is outside {dram.name}, which has "
            f"{format_bytes(dram.organization.capacity)}"
        )
    if commands:
        need = len(cycle) * COMMANDS_BYTES
        require_memory(f"--commands of {len(cycle):,} requests", need, "a shorter trace, or no --commands, needs less")
    found = replay(dram, cycle, write, address, exact=exact, log=commands)
    seconds = found.cycles * dram.clock_period / 1e12
    moved = found.bursts * dram.organization.request_bytes
    latency = (found.done - found.entered)[write == 0]
    bandwidth = moved / (found.finish * dram.clock_period / 1e12) if moved else 0.0
    if bandwidth > dram.peak_bandwidth * (1 + 1e-9):
        raise AssertionError("more bytes moved than the data buses can carry; this is a bug in the replay")
    return {
        "schema": SCHEMA,
        "version": __version__,
        "memory": dram.name,
        "standard": dram.standard,
        "cycles": found.cycles,
        "seconds": seconds,
        "bytes": moved,
        "bandwidth": bandwidth,
        "peak_bandwidth": dram.peak_bandwidth,
        "row_hits": found.row_hits,
        "row_misses": found.row_misses,
        "refreshes": found.refreshes,
        "simulator": {"requests_run": len(cycle) - found.collapse.requests, "requests_known": found.collapse.requests},
        "read_latency_cycles": {
            "mean": float(latency.mean()),
            "p50": float(np.median(latency)),
            "p99": float(np.percentile(latency, 99)),
            "max": int(latency.max()),
        }
        if len(latency)
        else None,
        "requests": [
            {"offered": o, "arrive": a, "done": d}
            for o, a, d in zip(cycle.tolist(), found.entered.tolist(), found.done.tolist(), strict=True)
        ],
    }, found


def commands_csv(found: Replay) -> str:
    """The command log as CSV."""
    lines = ["cycle,channel,command,rank,bank_group,bank,row,column"]
    for now, channel, command, *where in found.commands.tolist():
        lines.append(",".join(map(str, (now, channel, COMMANDS[command], *where))))
    return "\n".join(lines) + "\n"
