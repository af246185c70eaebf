"""Replay of memory requests on a DRAM, command by command.

Each channel has a read and a write queue, a queue in front of every bank, and a command bus (two with
``two_commands``: one for rows, one for columns). Per cycle: the next request enters if its queue has room; refresh is
due or not; the first bank queue in turn with a command that is ready issues it; one request moves from the read or
write queue to its bank. Cycles in which none of this can happen are skipped. Reads of an address that already waits
share its answer; a read of an address that waits to be written is answered at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.dram import Dram
from siliconloom.arch.errors import LoomError
from siliconloom.sim.dram_kernel import advance
from siliconloom.sim.dram_repeat import Collapse, collapsed, locate
from siliconloom.sim.dram_state import (
    BURSTS,
    FINISH,
    HITS,
    LAST,
    LEFT,
    LOGGED,
    MISSES,
    NEVER,
    REFRESHES,
    Trace,
    fresh_state,
    machine_of,
)

Int = NDArray[np.int64]
COMMANDS = ("ACT", "PRE", "RD", "WR", "REF", "RDA", "WRA")
NO_COLLAPSE = Collapse(0, 0, 0)


@dataclass(frozen=True)
class Replay:
    """What became of every request, in cycles of the command clock.

    Parameters
    ----------
    done
        Per request: when a read's data are back, or a write was taken.
    entered
        Per request: when its queue took it.
    cycles
        When the last read is back and the last write is taken.
    row_hits, row_misses
        Column commands on a row that was open, and activations.
    bursts, finish
        Column commands, and the cycle in which the last one's data have crossed the bus.
    commands
        Rows of (cycle, channel, command, rank, bank group, bank, row, column) in order, when asked for.
    collapse
        How much of it was not run but known from before.
    """

    done: Int
    entered: Int
    cycles: int
    row_hits: int
    row_misses: int
    refreshes: int
    bursts: int
    finish: int
    commands: Int
    collapse: Collapse = NO_COLLAPSE


def decode_addresses(dram: Dram, addresses: Int) -> Int:
    """Per address: channel, rank, bank group, bank, row, column.

    Raises
    ------
    LoomError
        When an address lies outside the memory; names the first.
    """
    _check_addresses(dram, addresses)
    shifts = dram.shifts()
    return np.stack([addresses >> shifts[f][0] & (1 << shifts[f][1]) - 1 for f in ("ch", "ra", "bg", "ba", "ro", "co")])


def _check_addresses(dram: Dram, addresses: Int) -> None:
    outside = np.flatnonzero((addresses < 0) | (addresses >= dram.organization.capacity))
    if len(outside):
        first = int(outside[0])
        raise LoomError(
            f"request {first}: address {int(addresses[first]):#x} is outside {dram.name}, whose last byte is "
            f"{dram.organization.capacity - 1:#x}"
        )


def replay(dram: Dram, cycle: Int, write: Int, address: Int, *, exact: bool = False, log: bool = False) -> Replay:
    """Offer requests in order, each not before its ``cycle``, one per cycle, as soon as its queue takes it.

    Parameters
    ----------
    dram
        The memory.
    cycle, write, address
        Per request: earliest cycle, whether it is a write, byte address.
    exact
        Run every command, also of stretches that repeat; the result is the same, see `sim.dram_repeat`.
    log
        Keep every command, for which every one is run.

    Raises
    ------
    LoomError
        When times run backwards or an address lies outside the memory.
    """
    backwards = np.flatnonzero(np.diff(cycle) < 0)
    if len(backwards):
        first = int(backwards[0]) + 1
        raise LoomError(
            f"request {first}: cycle {int(cycle[first])} lies before {int(cycle[first - 1])}, the one before"
        )
    _check_addresses(dram, address)
    cycle, write, address = (np.ascontiguousarray(column, np.int64) for column in (cycle, write, address))
    requests, shifts = len(cycle), dram.shifts()
    fields = np.array([shifts[f] for f in ("ch", "ra", "bg", "ba", "ro", "co")], np.int64)
    line_shift = dram.organization.request_bytes.bit_length() - 1
    done, entered = np.empty(requests, np.int64), np.empty(requests, np.int64)
    commands = np.zeros((8 * requests + 1_000_000 if log else 0, 8), np.int64)
    line, channel, bank, row, column = locate(address, fields, line_shift)
    answered = np.empty(requests, np.int64)
    trace = Trace(cycle, write, line, channel, bank, row, column, done, entered, answered, commands)
    machine, state, counts = machine_of(dram), fresh_state(dram, requests), np.zeros(3, np.int64)
    if exact or log:
        moving = advance(machine, state, trace, NEVER)
    else:
        moving = collapsed(machine, state, trace, counts)
    clock = state.clock
    if not moving or clock[LEFT]:
        raise AssertionError(f"{clock[LEFT]} requests were never served; this is a bug in the replay")
    return Replay(
        done, entered, int(clock[LAST]), int(clock[HITS]), int(clock[MISSES]), int(clock[REFRESHES]),
        int(clock[BURSTS]), int(clock[FINISH]), commands[: clock[LOGGED]], Collapse(*map(int, counts)),
    )  # fmt: skip
