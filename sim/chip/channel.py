"""The channel of memory that computes beside a tile: how long an instruction takes that begins in a cycle.

What a channel does depends on all that it did before: rows are closed and opened again, and refreshes fall due whatever
the program does. So the event kernel asks for the duration of each instruction of the unit pim when it starts, and the
channel's own kernel (`sim.pim.kernel`) goes on from where it stood.
"""

from __future__ import annotations

import numpy as np

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.isa import Draft, Instruction, Opcode, Program, Stretch, Unit
from siliconloom.arch.pim import Macro, PimTile
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.timing import PIM_END, PIM_OFFER, PIM_REFRESH
from siliconloom.arch.units.pim import macros_of
from siliconloom.sim.chip.state import ANSWER, ASKED, State
from siliconloom.sim.pim import kernel
from siliconloom.sim.pim.channel import Command, macro_table, timing_of
from siliconloom.sim.pim.state import (
    ACCEPTED,
    ARRIVAL,
    DONE,
    LAST,
    LOGGED,
    NEVER,
    OFFERED,
    ChannelOutcome,
    ChannelWork,
    fresh_state,
)

MOST_COMMANDS = 1 << 18
"""Commands that are logged of one instruction at most."""


class TileChannel:
    """A tile's channel in the middle of a run; cycles are those of the tile, counted from the run's start.

    Parameters
    ----------
    pim
        The description of one channel.
    log
        Keep every command.
    """

    def __init__(self, pim: PimTile, *, log: bool = False) -> None:
        self.pim, self.log = pim, log
        self._timing = timing_of(pim)
        self._state = fresh_state(self._timing)
        due = self._state.next_refresh
        due[due < NEVER] += PIM_REFRESH
        self._rows = np.zeros((MOST_COMMANDS if log else 0, 6), np.int64)
        self.counts = np.zeros(len(Command), np.int64)
        self.commands: list[tuple[int, ...]] = []
        """Cycle, command, place, row and column of every command, where they are kept."""

    def duration(self, instruction: Instruction, indices: list[int], start: int) -> int:
        """Cycles for which an instruction that leaves its queue in cycle ``start`` has the channel."""
        macros = macros_of(self.pim, instruction, indices)
        return self.advance(macros, start)

    def advance(self, macros: list[Macro], start: int) -> int:
        """`duration` of macros that are offered one after the other."""
        table, state = macro_table(macros), self._state
        table[:, ARRIVAL] = start + PIM_OFFER
        numbers, none = np.arange(len(table)), np.zeros(0, np.int64)
        work = ChannelWork(table, *((numbers, none) if macros[0].computes else (none, numbers)))
        state.clock[[ACCEPTED, OFFERED]] = 0
        state.clock[LOGGED] = 0
        times = np.full((4, len(table)), -1, np.int64)
        outcome = ChannelOutcome(times, self.counts, self._rows)
        found = int(kernel.run(self._timing, work, state, outcome))
        if found < 0 or (self.log and found > len(self._rows)):
            raise AssertionError("a channel whose commands do not end: a bug")
        self.commands += [tuple(row[:5]) for row in (outcome.commands[:found] if self.log else self._rows).tolist()]
        return int(max(times[LAST].max(), times[DONE].max())) + PIM_END - start


class ChannelDriver:
    """A program's work for the channel beside its tile, in order, as the event kernel asks for it.

    Parameters
    ----------
    program
        What runs.
    chip
        On one tile of this.
    log
        Keep every command of the channel.
    """

    def __init__(self, program: Program, chip: Chip, *, log: bool = False) -> None:
        assert isinstance(chip.tile, NpuTile)
        if chip.tile.pim is None:
            raise NotSupported("a program for a channel that computes on a tile without one (tile.pim)")
        self.channel = TileChannel(chip.tile.pim, log=log)
        self.busy = np.zeros(len(program.operators), np.int64)
        """Cycles for which the channel was at work, per operator."""
        self.commands = np.zeros((len(program.operators), len(Command)), np.int64)
        """Commands by `Command`, per operator; refreshes are those of the operator behind them."""
        self._left = (
            (i, list(indices))
            for _, i, indices, _ in program.executions()
            if i.unit == Unit.PIM and i.opcode != Opcode.BARRIER
        )

    def answer(self, state: State) -> None:
        """Tell the kernel how long the instruction takes that it has asked for."""
        instruction, indices = next(self._left)
        before = self.channel.counts.copy()
        taken = self.channel.duration(instruction, indices, int(state.clock[ASKED]))
        state.clock[ANSWER] = taken
        self.busy[instruction.operator] += taken
        self.commands[instruction.operator] += self.channel.counts - before


def drives_channel(program: Program) -> bool:
    """Whether a program has work for the channel beside its tile."""
    if isinstance(program, Draft) and program.stretches:
        return any(map(_has_work, program.stretches))
    return any(i.unit == Unit.PIM for i in program.instructions)


def _has_work(stretch: Stretch) -> bool:
    found: bool | None = stretch.kept.get("channel")
    if found is None:
        found = stretch.kept["channel"] = any(i.unit == Unit.PIM for i in stretch.instructions)
    return found
