"""JEDEC's constraints over the command log of a PIM channel: a list of rules that shares no code with the sequencer.

Row commands of the PIM open and close a second row buffer of every bank in a tile with dual row buffers, otherwise the
only one. tRRD and tCCD are the longer ones throughout, as the sequencer promises.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from siliconloom.arch.pim import Command, PimTile

LONG_AGO = -(10**12)
POSTPONED = 8
"""Most refreshes that may be owed at once (JESD79-4, 4.24; JESD235 leaves it to the vendor)."""


def group_banks(tile: PimTile, place: int) -> range:
    """Banks of a group, by the number that an activation names: groups of the ranks in turn."""
    ranks = tile.dram.organization.ranks
    first = place % ranks * tile.banks_per_rank + place // ranks * tile.activate_group
    return range(first, first + tile.activate_group)


class RuleBook:
    """Watches a channel's commands, in order of time.

    Parameters
    ----------
    tile
        The description.

    Attributes
    ----------
    broken
        What was against the rules, in words with the cycle.
    """

    def __init__(self, tile: PimTile) -> None:
        self.tile, self.broken = tile, list[str]()
        self._open: dict[tuple[str, int], int] = {}
        self._last: defaultdict[tuple[object, ...], int] = defaultdict(lambda: LONG_AGO)
        self._activated: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
        self._now, self._vector = LONG_AGO, LONG_AGO
        self._refreshes = [0] * (tile.banks // tile.refreshed_banks)
        self._dot = LONG_AGO
        self._driver: object = None
        self._read = False

    def open_row(self, bank: int, *, computing: bool) -> int | None:
        """The row in a bank's row buffer, that of computation or the other."""
        return self._open.get((self._buffer(computing), bank))

    def _buffer(self, computing: bool) -> str:
        return "pim" if computing and self.tile.dual_row_buffer else "memory"

    def _need(self, since: int, cycles: int, rule: str) -> None:
        if self._now - since < cycles:
            self.broken.append(f"cycle {self._now}: {rule}: {self._now - since} < {cycles}")

    def see(self, cycle: int, code: int, place: int, row: int, column: int) -> None:
        """Check one command against those before it."""
        if cycle <= self._now:
            self.broken.append(f"cycle {cycle}: a second command, or one that goes back in time")
        self._now = cycle
        command = Command(code)
        if command == Command.REF:
            self._refresh(place)
        elif command in (Command.ACT, Command.PIM_ACT):
            banks = range(place, place + 1) if command == Command.ACT else group_banks(self.tile, place)
            reached = {bank // self.tile.refreshed_banks for bank in banks}
            if command == Command.PIM_ACT:
                reached = set(range(len(self._refreshes)))
            owed = max(self.owed(domain) for domain in reached)
            if owed > (0 if command == Command.ACT or place == 0 else POSTPONED):
                self.broken.append(f"cycle {cycle}: a row is opened while {owed} refreshes are due")
            self._activate(banks, row, command == Command.PIM_ACT)
        elif command in (Command.PRE, Command.PIM_PRE):
            banks = range(place, place + 1) if command == Command.PRE else range(self.tile.banks)
            self._precharge(banks, command == Command.PIM_PRE)
        elif command == Command.PIM_DOT:
            self._dots(range(self.tile.banks) if self.tile.commands == "all_bank" else range(place, place + 1), row)
        else:
            self._burst(command, place, column)

    def _refresh(self, domain: int) -> None:
        t = self.tile.dram.timing
        inside = [key for key in self._open if key[1] // self.tile.refreshed_banks == domain]
        if inside:
            self.broken.append(f"cycle {self._now}: REF {domain} with open rows {sorted(inside)}")
        self._need(self._last["precharge", domain], t.tRP, "tRP before REF")
        self._need(self._last["REF", domain], t.tRFC, "tRFC between REF")
        self._last["REF", domain] = self._now
        self._refreshes[domain] += 1
        if self.owed(domain) < 0:
            self.broken.append(f"cycle {self._now}: REF before it is due")

    def owed(self, domain: int) -> int:
        """Refreshes of a rank, or of all, that are due and did not go out: those of the ranks evenly apart."""
        if self.tile.dram.controller.refresh == "none":
            return 0
        interval = self.tile.dram.timing.tREFI
        first = (domain + 1) * interval // len(self._refreshes)
        return (self._now - first) // interval + 1 - self._refreshes[domain]

    def _activate(self, banks: range, row: int, computing: bool) -> None:
        t, buffer = self.tile.dram.timing, self._buffer(computing)
        rank = banks[0] // self.tile.banks_per_rank
        for bank in banks:
            if (buffer, bank) in self._open:
                self.broken.append(f"cycle {self._now}: activation of open bank {bank}")
            self._open[buffer, bank] = row
            self._need(self._last["ACT", buffer, bank], t.row_cycle, "tRC")
            self._need(self._last["PRE", buffer, bank], t.tRP, "tRP")
            self._last["ACT", buffer, bank] = self._now
        self._need(self._last["REF", banks[0] // self.tile.refreshed_banks], t.tRFC, "tRFC")
        window = rank, computing and self.tile.activations == "separate"
        self._need(self._last["activation", window], t.tRRD_L, "tRRD")
        self._last["activation", window] = self._now
        seen = self._activated[window]
        seen += [self._now] * len(banks)
        if len(seen) > 4:
            self._need(seen[-5], t.tFAW, "tFAW")
        del seen[:-8]

    def _precharge(self, banks: range, computing: bool) -> None:
        t, buffer = self.tile.dram.timing, self._buffer(computing)
        for bank in banks:
            if self._open.pop((buffer, bank), None) is None:
                self.broken.append(f"cycle {self._now}: precharge of closed bank {bank}")
            self._need(self._last["ACT", buffer, bank], t.tRAS, "tRAS")
            self._need(self._last["RD", buffer, bank], t.tRTP, "tRTP")
            self._need(self._last["WR", buffer, bank], t.CWL + self.tile.dram.burst_cycles + t.tWR, "tWR")
            self._last["PRE", buffer, bank] = self._now
            self._last["precharge", bank // self.tile.refreshed_banks] = self._now

    def _dots(self, banks: range, row: int) -> None:
        t, buffer = self.tile.dram.timing, self._buffer(True)
        for bank in banks:
            if self._open.get((buffer, bank)) != row:
                found = self._open.get((buffer, bank))
                self.broken.append(f"cycle {self._now}: PIM_DOT on row {row} of bank {bank}, open is {found}")
            self._need(self._last["ACT", buffer, bank], t.tRCD, "tRCD of PIM_DOT")
            self._need(self._last["dot", bank], max(t.tCCD_L, self.tile.beats), "lanes or tCCD between PIM_DOT")
            self._last["RD", buffer, bank] = self._last["dot", bank] = self._now
        self._need(self._vector, t.CWL + self.tile.dram.burst_cycles, "PIM_DOT on a vector that has not arrived")
        self._dot = self._now

    def _burst(self, command: Command, bank: int, column: int) -> None:
        t, burst = self.tile.dram.timing, self.tile.dram.burst_cycles
        reading = command in (Command.RD, Command.PIM_READ)
        driver: object = "pim"
        if command in (Command.RD, Command.WR):
            driver = bank // self.tile.banks_per_rank
            if self._open.get(("memory", bank)) is None:
                self.broken.append(f"cycle {self._now}: {command.name} on closed bank {bank}")
            self._need(self._last["ACT", "memory", bank], t.tRCD, "tRCD")
            self._last[command.name, "memory", bank] = self._now
            if not 0 <= column < self.tile.row_columns:
                self.broken.append(f"cycle {self._now}: {command.name} beyond the row: column {column}")
        elif command == Command.PIM_READ:
            self._need(self._dot, self.tile.dot_latency, "results that are not summed yet")
        else:
            self._need(self._dot, t.CL + 1, "a vector written while it is multiplied")
            self._vector = self._now
        same, other = ("reads", "writes") if reading else ("writes", "reads")
        self._need(self._last[same,], max(t.tCCD_L, burst), "tCCD")
        if reading:
            self._need(self._last[other,], t.CWL + burst + t.tWTR_L, "tWTR")
        start = self._now + (t.CL if reading else t.CWL)
        turns = (not reading and self._read) or (self.tile.dram.organization.ranks > 1 and driver != self._driver)
        free = self._last["bus",] + (t.tRTRS if turns else 0)
        if start < free:
            self.broken.append(f"cycle {self._now}: {command.name}: the data bus is free from {free}, not {start}")
        self._last["bus",], self._last[same,] = start + burst, self._now
        self._driver, self._read = driver, reading


def broken_rules(tile: PimTile, commands: Iterable[tuple[int, int, int, int, int]]) -> list[str]:
    """Every violation in a log of (cycle, command, place, row, column), as text."""
    book = RuleBook(tile)
    for cycle, code, place, row, column in commands:
        book.see(cycle, code, place, row, column)
    return book.broken
