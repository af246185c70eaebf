"""The DRAM array of a PIM channel as a behavioural model: rows, row buffers, data that come when the timing says."""

from __future__ import annotations

from collections import deque

from siliconloom.arch.pim import Command, PimTile
from siliconloom.rtl.bench.pim_rules import RuleBook


class PimArray:
    """Banks behind a command bus.

    It knows nothing of macros: it executes commands, holds them against the rules of `RuleBook`, and takes its data
    from the row that its own row buffers hold.

    Parameters
    ----------
    tile
        The description.
    memory
        Rows by bank and row, as bytes; others are zeros.
    """

    def __init__(self, tile: PimTile, memory: dict[tuple[int, int], bytes]) -> None:
        self.tile, self.rules = tile, RuleBook(tile)
        self.memory = {key: bytearray(row) for key, row in memory.items()}
        self.log: list[tuple[int, int, int, int, int]] = []
        self._reads: deque[tuple[int, int]] = deque()
        self._columns: deque[tuple[int, int]] = deque()
        self._writes: deque[tuple[int, int, int]] = deque()

    def command(self, cycle: int, code: int, place: int, row: int, column: int) -> None:
        """Execute a command; what it reads and writes follows by `columns`, `read` and `write`."""
        t = self.tile.dram.timing
        self.log.append((cycle, code, place, row, column))
        if code == Command.PIM_DOT:
            banks = range(self.tile.banks) if self.tile.commands == "all_bank" else (place,)
            size = self.tile.dram.organization.request_bytes
            data = 0
            for bank in banks:
                data |= int.from_bytes(self._burst(bank, column, computing=True), "little") << (8 * size * bank)
            self._columns.append((cycle + t.CL, data))
        elif code == Command.RD:
            self._reads.append((cycle + t.CL, int.from_bytes(self._burst(place, column, computing=False), "little")))
        elif code == Command.WR:
            opened = self.rules.open_row(place, computing=False)
            self._writes.append((place, -1 if opened is None else opened, column))
        self.rules.see(cycle, code, place, row, column)

    def _burst(self, bank: int, column: int, *, computing: bool) -> bytes:
        size = self.tile.dram.organization.request_bytes
        row = self.rules.open_row(bank, computing=computing)
        content = self.memory.get((bank, -1 if row is None else row))
        return bytes(size) if content is None else bytes(content[column * size :][:size])

    def columns(self, cycle: int) -> int | None:
        """Column data of all banks in this cycle, bank 0 in the low bits."""
        return self._columns.popleft()[1] if self._columns and self._columns[0][0] == cycle else None

    def read(self, cycle: int) -> int | None:
        """The burst read in this cycle."""
        return self._reads.popleft()[1] if self._reads and self._reads[0][0] == cycle else None

    def write(self, data: int) -> None:
        """The burst of the oldest WR has arrived."""
        if not self._writes:
            self.rules.broken.append("a burst was written that no WR asked for")
            return
        bank, row, column = self._writes.popleft()
        size, length = self.tile.dram.organization.request_bytes, self.tile.dram.organization.row_bytes
        content = self.memory.setdefault((bank, row), bytearray(length))
        content[column * size : (column + 1) * size] = data.to_bytes(size, "little")
