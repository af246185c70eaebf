"""When each DRAM command of a PIM channel goes out: the command sequencer as a state machine, cycle by cycle.

Two streams of macros (`arch.pim.Macro`) share a channel. Computation is one agent; transfers are taken by one or two
bank machines (bank modulo their number), in order. Every agent knows its next command and the earliest cycle that its
own timing and the shared resources allow: the command bus (one command a cycle), activations per rank (tRRD_L, at most
four banks in tFAW), the data bus (tCCD_L, turn-around, and tRTRS between ranks), refresh. In each cycle refresh goes
first, then computation, then the transfer that was taken earlier, then the other.

Rules beyond JEDEC's, which the circuits keep too:

- A macro is taken in the first cycle in which its agent is idle and it is offered; its first command goes out in the
  next cycle at the earliest. An agent is idle from the cycle after its last command.
- Transfers open their rows, and move their data, in the order in which they were taken. (A row opened ahead of an
  earlier transfer's would stay open until that one's data have moved, which may in turn wait for a refresh.)
- A GEMV activates every bank, a group at a time, ranks in turn; multiplies; precharges all banks. Its results are read
  after the first group of the next round, or at its end.
- Refresh is for all ranks at once, or for one rank after the other (``refresh_ranks``): then every rank's falls due
  every tREFI, those of different ranks evenly apart, transfers to the other ranks go on meanwhile, and computation,
  which needs all banks, pauses once for each rank. When a refresh is due no row that it reaches is opened any more, but
  for the other groups of a row of computation; it goes out when none is open there, tRFC after the one before, and is
  never dropped.
- Where there are several ranks, bursts of different ranks, and of a rank and the PIM (global buffer, results), are
  tRTRS apart on the data bus.
- With dual row buffers the streams share buses and activations only. Otherwise only one of them is at work:
  computation begins when the transfers under way have ended, and while a macro of computation is offered or under way
  no transfer is taken.
- Activations of computation count in the ranks' tRRD and tFAW together with those of transfers (``activations:
  shared``), or each in their own (``separate``).

Computation is not held back: with dual row buffers it takes the activations and the cycles of the buses that it can
use, transfers the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.kernels import kernel
from siliconloom.arch.pim import RESULT_BYTES, Macro, MacroKind, PimTile, check_macro
from siliconloom.arch.pim import Command as Command

Int = NDArray[np.int64]
NEVER = 2**62
MACRO_FIELDS = (
    "kind",
    "bank",
    "row",
    "rounds",
    "chunks",
    "segments",
    "columns",
    "last_columns",
    "column",
    "apart",
    "arrival",
    "after",
    "delay",
)


@dataclass(frozen=True)
class ChannelRun:
    """What became of a channel's macros, in cycles of the DRAM's clock.

    Parameters
    ----------
    taken, first, last
        Per macro: when it was taken, and when its first and last command went out.
    done
        Per macro: when its last datum has crossed the bus.
    counts
        Commands by `Command`.
    commands
        Rows of (cycle, command, place, row, column, macro) in order, when asked for. ``place`` is the bank of a
        transfer, the group of an activation, the bank of a single-bank dot product, the rank of a
        refresh if ranks are refreshed in turn, otherwise 0. ``row`` is -1 where
        the command has none. ``column`` counts bursts: of the row for RD, WR and PIM_DOT, of the global buffer for
        PIM_WRITE, of the round's results for PIM_READ.
    """

    taken: Int
    first: Int
    last: Int
    done: Int
    counts: Int
    commands: Int

    @property
    def cycles(self) -> int:
        """When the last datum of all has crossed the bus."""
        return int(self.done.max()) if len(self.done) else 0


def result_bursts(tile: PimTile, segments: int) -> int:
    """Bursts that read one round's results: all banks of a segment, one segment after the other."""
    return -(-segments * tile.banks * RESULT_BYTES // tile.dram.organization.request_bytes)


def constants(tile: PimTile) -> Int:
    """What `_channel` needs to know of a tile."""
    t, d, o = tile.dram.timing, tile.dram, tile.dram.organization
    if d.controller.refresh == "bank":
        raise NotSupported("per-bank refresh of a pim tile (dram.controller.refresh: rank or none)")
    burst = d.burst_cycles
    gap = max(burst, t.tCCD_L)
    values = (
        o.ranks,
        tile.banks,
        tile.activate_group,
        tile.banks // tile.activate_group,
        tile.dual_row_buffer,
        tile.bank_machines,
        1 if tile.commands == "all_bank" else tile.banks,
        t.tRCD,
        t.tRP,
        t.tRAS,
        t.row_cycle,
        t.tRRD_L,
        t.tFAW,
        t.tRTP,
        t.CWL + burst + t.tWR,
        gap,
        max(t.CL + burst - t.CWL + t.tRTRS, 1),
        t.CWL + burst + t.tWTR_L,
        tile.dot_interval,
        tile.dot_latency,
        t.CWL + burst,
        NEVER if d.controller.refresh == "none" else t.tREFI,
        t.tRFC,
        t.CL + burst,
        o.request_bytes,
        burst + t.tRTRS if o.ranks > 1 else 0,
        tile.activations == "separate",
        tile.banks // tile.refreshed_banks,
    )
    return np.array(values, np.int64)


def macro_table(macros: Sequence[Macro]) -> Int:
    """Macros as rows of `MACRO_FIELDS`."""
    rows = [[int(getattr(m, name)) for name in MACRO_FIELDS] for m in macros]
    return np.array(rows, np.int64).reshape(len(rows), len(MACRO_FIELDS))


def run_channel(tile: PimTile, macros: Sequence[Macro] | Int, *, log: bool = False) -> ChannelRun:
    """Time the macros of one channel; those of either stream are taken in the order given.

    Parameters
    ----------
    tile
        The description.
    macros
        Macros, or rows of `MACRO_FIELDS` that were checked before.
    log
        Keep every command.

    Raises
    ------
    LoomError
        When a macro does not fit the tile.
    """
    if isinstance(macros, np.ndarray):
        table = macros
    else:
        for number, macro in enumerate(macros):
            check_macro(tile, macro)
            before = macros[macro.after] if 0 <= macro.after < number else None
            if macro.after >= 0 and (before is None or before.computes != macro.computes):
                raise LoomError(f"macro {number}: waits for macro {macro.after}, which is not before it in its stream")
        table = macro_table(macros)
    compute = np.flatnonzero(table[:, 0] <= MacroKind.GEMV)
    transfer = np.flatnonzero(table[:, 0] > MacroKind.GEMV)
    times = np.full((4, len(table)), -1, np.int64)
    counts = np.zeros(len(Command), np.int64)
    rows = 1024 if log else 0
    while True:
        commands = np.zeros((rows, 6), np.int64)
        logged = _channel(constants(tile), table, compute, transfer, times, counts, commands)
        if logged < 0:
            raise AssertionError("no command of the channel can go out: a bug")
        if logged <= rows or not log:
            break
        rows = int(logged)
        times[:], counts[:] = -1, 0
    return ChannelRun(times[0], times[1], times[2], times[3], counts, commands[: int(logged)])


IDLE, OPEN, COLUMNS, CLOSE = range(4)
"""Phases of a bank machine."""
BUFFER, ACTIVATE, DRAIN, MULTIPLY, PRECHARGE = range(5)
"""Phases of computation: fill the global buffer, open rows, read results, multiply, close rows."""


@kernel()
def _offered(macros: Any, done: Any, i: Any) -> Any:
    """First cycle in which a macro is offered."""
    if macros[i, 11] < 0:
        return macros[i, 10]
    return max(macros[i, 10], done[macros[i, 11]] + macros[i, 12])


@kernel()
def _channel(constants: Any, macros: Any, compute: Any, transfer: Any, times: Any, counts: Any, commands: Any) -> Any:
    ranks, banks, group, groups, dual = constants[0], constants[1], constants[2], constants[3], constants[4]
    machines, singles = constants[5], constants[6]
    tRCD, tRP, tRAS, tRC, tRRD, tFAW = (
        constants[7],
        constants[8],
        constants[9],
        constants[10],
        constants[11],
        constants[12],
    )
    tRTP, write_recovery, gap, read_to_write, write_to_read = (
        constants[13],
        constants[14],
        constants[15],
        constants[16],
        constants[17],
    )
    dot_interval, dot_latency, write_done = constants[18], constants[19], constants[20]
    refresh, tRFC, read_done, burst_bytes = constants[21], constants[22], constants[23], constants[24]
    switch, own_windows, domains = constants[25], constants[26], constants[27]
    reached = banks // domains  # banks that one refresh command reaches
    taken, first, last, done = times[0], times[1], times[2], times[3]
    logged = 0
    bus = 0  # first free cycle of the command bus
    # per rank, and once more for computation when it has windows of its own
    activated = np.full((2 * ranks, 4), -NEVER, np.int64)  # last activations, newest first
    opened = np.zeros(2 * ranks, np.int64)  # earliest activation by tRRD
    # refresh, per rank or once for all
    refreshed = np.zeros(domains, np.int64)  # earliest activation after it
    next_refresh = np.full(domains, NEVER, np.int64)
    if refresh < NEVER:
        for domain in range(domains):
            next_refresh[domain] = (domain + 1) * refresh // domains
    read_ready, write_ready = 0, 0  # of the data bus
    driver, switched = -1, 0  # who used the data bus last, a rank or the PIM, and from when on another may
    closed = np.zeros(domains, np.int64)  # earliest refresh after the last precharge
    in_use = np.zeros(domains, np.int64)  # 1 where a row is open
    # bank machines
    phase = np.zeros(machines, np.int64)
    own = np.full(machines, -1, np.int64)
    ready = np.zeros(machines, np.int64)  # earliest next command of the machine by its own timing
    reopen = np.zeros(machines, np.int64)  # earliest activation by tRP and tRC
    column = np.zeros(machines, np.int64)
    idle = np.zeros(machines, np.int64)
    offered, before = 0, -1  # transfers taken, and when the last one was
    # computation
    step, busy, pim_idle, accepted = BUFFER, -1, 0, 0
    pim_ready, pim_reopen, dot_ready, result_ready, buffer_ready = 0, 0, 0, 0, 0
    round_, chunk, place, dots, single, pending, drained = 0, 0, 0, 0, 0, 0, 0
    pim_open = False
    filled = 0  # earliest dot product after the last write to the global buffer
    while True:
        # macros are taken
        wanted = _offered(macros, done, compute[accepted]) if accepted < len(compute) else NEVER
        while offered < len(transfer) and (dual or busy < 0):
            i = transfer[offered]
            m = macros[i, 1] % machines
            if phase[m] != IDLE:
                break
            t = max(_offered(macros, done, i), before + 1, idle[m])
            if not dual:
                t = max(t, pim_idle)
                if t >= wanted:
                    break
            taken[i], before = t, t
            phase[m], own[m], ready[m], column[m] = OPEN, i, t + 1, 0
            offered += 1
        if busy < 0 and accepted < len(compute):
            t, free = max(wanted, pim_idle), True
            if not dual:
                for m in range(machines):
                    free = free and phase[m] == IDLE
                    t = max(t, idle[m])
            if free:
                busy = compute[accepted]
                taken[busy] = t
                accepted += 1
                pim_ready = t + 1
                step, place, round_, chunk, pending, dots, single = BUFFER, 0, 0, 0, 0, 0, 0
                if macros[busy, 0] == 1:
                    step = ACTIVATE
        # the earliest command of every agent
        best, when = -1, NEVER
        in_use[:] = 1 if pim_open else 0
        waiting, oldest = -1, -1  # the machines that have to open their row, and to move their data, first
        for m in range(machines):
            if phase[m] == COLUMNS or phase[m] == CLOSE:
                in_use[macros[own[m], 1] // reached] = 1
            if phase[m] == OPEN and (waiting < 0 or own[m] < own[waiting]):
                waiting = m
            if phase[m] != IDLE and phase[m] != CLOSE and (oldest < 0 or own[m] < own[oldest]):
                oldest = m
        working = busy >= 0
        for m in range(machines):
            working = working or phase[m] != IDLE
        if not working:
            break
        for domain in range(domains):
            t = max(next_refresh[domain], closed[domain], refreshed[domain], bus)
            if in_use[domain] == 0 and next_refresh[domain] < NEVER and t < when:
                best, when = machines + 1 + domain, t
        if busy >= 0:
            t = max(pim_ready, bus)
            if step in (BUFFER, DRAIN) and driver != ranks:
                t = max(t, switched)
            if step == BUFFER:
                t = max(t, write_ready, buffer_ready)
            elif step == ACTIVATE:
                rank = place % ranks + own_windows * ranks
                t = max(t, opened[rank], activated[rank, 4 - group] + tFAW)
                if place == 0:
                    t = max(t, pim_reopen, refreshed.max())
                    if not dual:
                        for m in range(machines):
                            t = max(t, reopen[m])
                    if t >= next_refresh.min():
                        t = NEVER
            elif step == DRAIN:
                t = max(t, result_ready, read_ready)
            elif step == MULTIPLY:
                t = max(t, dot_ready, filled)
            if t < when:
                best, when = machines, t
        for turn_of in range(machines):
            # the transfer that was taken earlier first
            m = turn_of
            if machines == 2 and phase[0] != IDLE and phase[1] != IDLE and own[1] < own[0]:
                m = 1 - turn_of
            if phase[m] == IDLE:
                continue
            i = own[m]
            rank = macros[i, 1] // (banks // ranks)
            if phase[m] == OPEN:
                if m != waiting:
                    continue
                t = max(ready[m], reopen[m], opened[rank], activated[rank, 3] + tFAW, bus)
                t = max(t, refreshed[macros[i, 1] // reached])
                if not dual:
                    t = max(t, pim_reopen)
                if t >= next_refresh[macros[i, 1] // reached]:
                    continue
            elif phase[m] == COLUMNS:
                if m != oldest:
                    continue
                t = max(ready[m], read_ready if macros[i, 0] == 2 else write_ready, bus)
                if rank != driver:
                    t = max(t, switched)
            else:
                t = max(ready[m], bus)
            if t < when:
                best, when = m, t
        # it goes out
        if when == NEVER:
            return -1
        now = when
        bus = now + 1
        code, where, row, col, owner = 0, 0, -1, 0, -1
        if best > machines:
            code, where = 4, best - machines - 1
            refreshed[where] = now + tRFC
            next_refresh[where] += refresh
        elif best < machines:
            m = best
            i = own[m]
            owner = i
            where = macros[i, 1]
            if phase[m] == OPEN:
                code, row = 0, macros[i, 2]
                rank = macros[i, 1] // (banks // ranks)
                opened[rank] = now + tRRD
                for n in range(3, 0, -1):
                    activated[rank, n] = activated[rank, n - 1]
                activated[rank, 0] = now
                first[i] = now
                ready[m] = now + tRCD
                reopen[m] = now + tRC
                phase[m] = COLUMNS
            elif phase[m] == COLUMNS:
                reading = macros[i, 0] == 2
                code = 1 if reading else 2
                driver, switched = where // (banks // ranks), now + switch
                col = macros[i, 8] + column[m]
                if reading:
                    read_ready, write_ready = max(read_ready, now + gap), max(write_ready, now + read_to_write)
                    done[i] = now + read_done
                else:
                    write_ready, read_ready = max(write_ready, now + gap), max(read_ready, now + write_to_read)
                    done[i] = now + write_done
                column[m] += 1
                if column[m] == macros[i, 6]:
                    ready[m] = max(now + (tRTP if reading else write_recovery), first[i] + tRAS)
                    phase[m] = CLOSE
            else:
                code = 3
                reopen[m] = max(reopen[m], now + tRP)
                closed[where // reached] = now + tRP
                last[i], idle[m] = now, now + 1
                phase[m], own[m] = IDLE, -1
        else:
            i = busy
            owner = i
            pim_ready = now + 1
            if first[i] < 0:
                first[i] = now
            finished = False
            if step == BUFFER:
                code, col = 9, macros[i, 8] + place
                driver, switched = ranks, now + switch
                write_ready, read_ready = max(write_ready, now + gap), max(read_ready, now + write_to_read)
                filled = now + write_done
                done[i] = now + write_done
                place += 1
                finished = place == macros[i, 6]
            elif step == ACTIVATE:
                code, where = 5, place
                row = macros[i, 2] + round_ * macros[i, 4] + chunk
                rank = place % ranks + own_windows * ranks
                opened[rank] = now + tRRD
                for n in range(3, -1, -1):
                    activated[rank, n] = activated[rank, n - group] if n >= group else now
                pim_open = True
                dot_ready = max(dot_ready, now + tRCD)
                pim_reopen = now + tRC
                place += 1
                if place == 1 and pending > 0:
                    step, drained = DRAIN, 0
                elif place == groups:
                    step, dots, single = MULTIPLY, 0, 0
            elif step == DRAIN:
                code, col = 8, drained
                driver, switched = ranks, now + switch
                read_ready, write_ready = max(read_ready, now + gap), max(write_ready, now + read_to_write)
                done[i] = now + read_done
                drained += 1
                if drained == pending:
                    pending = 0
                    if pim_open:
                        step = ACTIVATE
                        if place == groups:
                            step, dots, single = MULTIPLY, 0, 0
                    else:
                        finished = True
            elif step == MULTIPLY:
                code, where = 6, single
                row = macros[i, 2] + round_ * macros[i, 4] + chunk
                col = dots
                width = macros[i, 6]
                if chunk == macros[i, 4] - 1 and macros[i, 7] > 0:
                    width = macros[i, 7]
                single += 1
                result_ready, buffer_ready = now + dot_latency, now + dot_latency
                if single == singles:
                    single = 0
                    dots += 1
                    # a bank is served again after its interval: the first of them was served `singles` - 1 cycles ago
                    dot_ready = now + max(dot_interval - (singles - 1), 1)
                    if dots == macros[i, 5] * width:
                        step = PRECHARGE
                        pim_ready = max(now + tRTP, pim_reopen - tRC + tRAS)
                else:
                    dot_ready = now + 1
            else:
                code = 7
                pim_open = False
                pim_reopen = max(pim_reopen, now + tRP)
                closed[:] = now + tRP
                place = 0
                step = ACTIVATE
                if chunk == macros[i, 4] - 1:
                    pending = -(-macros[i, 5] * banks * 4 // burst_bytes)
                    chunk = 0
                    round_ += 1
                    if round_ == macros[i, 3]:
                        step, drained = DRAIN, 0
                else:
                    chunk += 1
            if finished:
                last[i], pim_idle = now, now + 1
                busy = -1
        counts[code] += 1
        if logged < len(commands):
            entry = commands[logged]
            entry[0], entry[1], entry[2], entry[3], entry[4], entry[5] = now, code, where, row, col, owner
        logged += 1
    return logged
