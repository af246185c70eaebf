"""Replay of memory requests on a DRAM, command by command.

Each channel has a read and a write queue, a queue in front of every bank, and a command bus (two with
``two_commands``: one for rows, one for columns). Per cycle: the next request enters if its queue has room; refresh is
due or not; the first bank queue in turn with a command that is ready issues it; one request moves from the read or
write queue to its bank. Cycles in which none of this can happen are skipped. Reads of an address that already waits
share its answer; a read of an address that waits to be written is answered at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.dram import Dram
from siliconloom.arch.errors import LoomError
from siliconloom.sim.dram.address import located
from siliconloom.sim.dram.kernel import advance
from siliconloom.sim.dram.repeat import Collapse, collapsed
from siliconloom.sim.dram.state import (
    BURSTS,
    FINISH,
    HITS,
    LAST,
    LEFT,
    LOGGED,
    MISSES,
    NEVER,
    REFRESHES,
    CommandTrace,
    fresh_state,
    machine_of,
)

Int = NDArray[np.int64]
COMMANDS = ("ACT", "PRE", "RD", "WR", "REF", "RDA", "WRA")
LOG_MORE = 1_000_000
"""Rows of a log beyond eight for each request: refreshes, and rows that they close."""
NO_COLLAPSE = Collapse(0, 0, 0)


class Replay(Struct, frozen=True):
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
    _, channel, bank, row, column = located(dram, addresses)
    o = dram.organization
    return np.stack(
        [channel, bank // (o.bank_groups * o.banks), bank // o.banks % o.bank_groups, bank % o.banks, row, column]
    ).astype(np.int64)


def _check_addresses(dram: Dram, addresses: Int) -> None:
    outside = np.flatnonzero((addresses < 0) | (addresses >= dram.organization.capacity))
    if len(outside):
        first = int(outside[0])
        raise LoomError(
            f"request {first}: address {int(addresses[first]):#x} is outside {dram.name}, whose last byte is "
            f"{dram.organization.capacity - 1:#x}"
        )


def replay(dram: Dram, cycle: Int, write: Int, address: Int, *, exact: bool = False, log: bool = False) -> Replay:
    """Offer requests in order, each not before its ``cycle``, as soon as its queue takes it.

    A channel takes one request a cycle, in order. With ``admission: channel`` channels do not wait for each other, so
    each is replayed by itself; with ``shared`` a request that is not taken holds up all behind it.

    Parameters
    ----------
    dram
        The memory.
    cycle, write, address
        Per request: earliest cycle, whether it is a write, byte address.
    exact
        Run every command, also of stretches that repeat; the result is the same, see `sim.dram.repeat`.
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
    places = located(dram, address)
    alone = dram.organization.channels > 1 and dram.controller.admission == "channel"
    if not alone:
        together = dram.organization.channels > 1  # what enters in one cycle may be of two blocks
        return _run(dram, cycle, write, places, exact=exact or together, log=log)
    one = dram.model_copy(update={"organization": dram.organization.model_copy(update={"channels": 1})})
    parts = []
    for channel in np.unique(places[1]).tolist():
        mine = np.flatnonzero(places[1] == channel)
        own = tuple(column[mine] for column in places)
        own[1][:] = 0
        parts.append((channel, mine, _run(one, cycle[mine], write[mine], own, exact=exact, log=log)))
    return _joined(len(cycle), parts)


def _joined(requests: int, parts: list[tuple[int, Int, Replay]]) -> Replay:
    """What channels that do not wait for each other did."""
    done, entered = np.empty(requests, np.int64), np.empty(requests, np.int64)
    logs = [np.zeros((0, 8), np.int64)]
    for channel, mine, run in parts:
        done[mine], entered[mine] = run.done, run.entered
        logs.append(run.commands)
        logs[-1][:, 1] = channel
    commands = np.concatenate(logs)
    runs = [run for _, _, run in parts]
    return Replay(
        done,
        entered,
        max((r.cycles for r in runs), default=0),
        sum(r.row_hits for r in runs),
        sum(r.row_misses for r in runs),
        sum(r.refreshes for r in runs),
        sum(r.bursts for r in runs),
        max((r.finish for r in runs), default=0),
        commands[np.argsort(commands[:, 0], kind="stable")],
        Collapse(*(sum(getattr(r.collapse, name) for r in runs) for name in Collapse.__struct_fields__)),
    )


def _run(
    dram: Dram, cycle: Int, write: Int, places: tuple[Any, Any, Any, Any, Any], *, exact: bool, log: bool
) -> Replay:
    """Replay of one channel, or of several behind one queue."""
    requests = len(cycle)
    line, channel, bank, row, column = places
    done, entered = np.empty(requests, np.int64), np.empty(requests, np.int64)
    commands = np.zeros((8 * requests + LOG_MORE if log else 0, 8), np.int64)
    answered = np.empty(requests, np.int64)
    trace = CommandTrace(cycle, write, line, channel, bank, row, column, done, entered, answered, commands)
    machine, state, counts = machine_of(dram), fresh_state(dram, requests), np.zeros(3, np.int64)
    if exact or log:
        moving = advance(machine, state, trace, NEVER)
    else:
        moving = collapsed(machine, state, trace, counts)
    clock = state.clock
    if not moving or clock[LEFT]:
        raise AssertionError(f"{clock[LEFT]} requests were never served; this is a bug in the replay")
    return Replay(
        done,
        entered,
        int(clock[LAST]),
        int(clock[HITS]),
        int(clock[MISSES]),
        int(clock[REFRESHES]),
        int(clock[BURSTS]),
        int(clock[FINISH]),
        commands[: clock[LOGGED]].copy(),
        Collapse(*map(int, counts)),
    )
