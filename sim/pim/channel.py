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

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.pim import RESULT_BYTES, Macro, MacroKind, PimTile, check_macro
from siliconloom.arch.pim import Command as Command
from siliconloom.sim.pim import kernel
from siliconloom.sim.pim.state import (
    DONE,
    FIRST,
    KIND,
    LAST,
    NEVER,
    TAKEN,
    ChannelOutcome,
    ChannelWork,
    PimTimes,
    fresh_state,
)

Int = NDArray[np.int64]
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


class ChannelRun(Struct, frozen=True):
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


def timing_of(tile: PimTile) -> PimTimes:
    """What the kernel needs to know of a tile."""
    t, d, o = tile.dram.timing, tile.dram, tile.dram.organization
    if d.controller.refresh == "bank":
        raise NotSupported("per-bank refresh of a pim tile (dram.controller.refresh: rank or none)")
    burst = d.burst_cycles
    return PimTimes(
        ranks=o.ranks,
        banks=tile.banks,
        group=tile.activate_group,
        groups=tile.banks // tile.activate_group,
        dual=int(tile.dual_row_buffer),
        machines=tile.bank_machines,
        singles=1 if tile.commands == "all_bank" else tile.banks,
        tRCD=t.tRCD,
        tRP=t.tRP,
        tRAS=t.tRAS,
        tRC=t.row_cycle,
        tRRD=t.tRRD_L,
        tFAW=t.tFAW,
        tRTP=t.tRTP,
        write_recovery=t.CWL + burst + t.tWR,
        gap=max(burst, t.tCCD_L),
        read_to_write=max(t.CL + burst - t.CWL + t.tRTRS, 1),
        write_to_read=t.CWL + burst + t.tWTR_L,
        dot_interval=tile.dot_interval,
        dot_latency=tile.dot_latency,
        write_done=t.CWL + burst,
        refresh=NEVER if d.controller.refresh == "none" else t.tREFI,
        tRFC=t.tRFC,
        read_done=t.CL + burst,
        burst_bytes=o.request_bytes,
        switch=burst + t.tRTRS if o.ranks > 1 else 0,
        own_windows=int(tile.activations == "separate"),
        domains=tile.banks // tile.refreshed_banks,
    )


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
    timing = timing_of(tile)
    computes = table[:, KIND] <= MacroKind.GEMV
    work = ChannelWork(table, np.flatnonzero(computes), np.flatnonzero(~computes))
    rows = 1024 if log else 0
    while True:
        times, counts = np.full((4, len(table)), -1, np.int64), np.zeros(len(Command), np.int64)
        outcome = ChannelOutcome(times, counts, np.zeros((rows, 6), np.int64))
        logged = int(kernel.run(timing, work, fresh_state(timing), outcome))
        if logged < 0:
            raise AssertionError("no command of the channel can go out: a bug")
        if logged <= rows or not log:
            break
        rows = logged
    return ChannelRun(times[TAKEN], times[FIRST], times[LAST], times[DONE], counts, outcome.commands[:logged])
