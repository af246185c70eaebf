"""Widths of a PIM tile's circuits, and what of its description has circuits at all."""

from __future__ import annotations

from msgspec import Struct

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip
from siliconloom.arch.dram import DramTiming
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.pim import RESULT_BYTES, PimTile
from siliconloom.rtl.library import Library

CODE_BITS = 4
"""Of a command (`arch.pim.Command`)."""


def width(values: int) -> int:
    """Bits for ``values`` different values; at least one, since a port has one."""
    return max((values - 1).bit_length(), 1)


class PimGeometry(Struct, frozen=True):
    """A tile and the widths that follow from it.

    Parameters
    ----------
    tile
        The description, of one channel.
    driven
        An npu tile drives it: it says when it rests, and its refresh can be held and begun anew.
    """

    tile: PimTile
    driven: bool = False

    @property
    def timing(self) -> DramTiming:
        return self.tile.dram.timing

    def name(self, library: Library, circuit: str) -> str:
        """Of a circuit's module: beside a tile it is none of the tile's own."""
        return library.name("channel", circuit) if self.driven else library.name(circuit)

    @property
    def settled(self) -> int:
        """Cycles after a command from which on nothing waits for it any more."""
        t, burst = self.timing, self.burst
        closing = max(t.row_cycle, t.CWL + burst + t.tWR + t.tRP, t.CL + burst + t.tRTP + t.tRP)
        return max(closing, t.tFAW, t.tRFC, self.tile.dot_latency, t.CWL + burst + t.tWTR_L + t.tRTRS) + 1

    @property
    def ranks(self) -> int:
        return self.tile.dram.organization.ranks

    @property
    def domains(self) -> int:
        """Refresh commands in tREFI."""
        return self.tile.banks // self.tile.refreshed_banks

    @property
    def burst(self) -> int:
        """Cycles of a burst on the data bus."""
        return self.tile.dram.burst_cycles

    @property
    def burst_bytes(self) -> int:
        return self.tile.dram.organization.request_bytes

    @property
    def burst_bits(self) -> int:
        return 8 * self.burst_bytes

    @property
    def groups(self) -> int:
        """Groups of banks that one command activates."""
        return self.tile.banks // self.tile.activate_group

    @property
    def singles(self) -> int:
        """Commands of a dot product of all banks."""
        return 1 if self.tile.commands == "all_bank" else self.tile.banks

    @property
    def buffer_words(self) -> int:
        """Bursts in the global buffer."""
        return self.tile.global_buffer // self.burst_bytes

    @property
    def used_lanes(self) -> int:
        """Lanes that a burst can fill."""
        return self.burst_bytes // (2 * self.tile.beats)

    @property
    def burst_results(self) -> int:
        """Results in a burst."""
        return self.burst_bytes // RESULT_BYTES

    @property
    def picked(self) -> int:
        """Results that a bank has in a burst of them: the same one of several segments."""
        return max(self.burst_results // self.tile.banks, 1)

    @property
    def parts(self) -> int:
        """Bursts that carry one result of every bank."""
        return max(self.tile.banks // self.burst_results, 1)

    @property
    def drain_bursts(self) -> int:
        """Bursts of a round's results, at most."""
        return -(-self.tile.accumulators // self.picked) * self.parts

    @property
    def bank_bits(self) -> int:
        return width(self.tile.banks)

    @property
    def row_bits(self) -> int:
        return width(self.tile.dram.organization.rows)

    @property
    def count_bits(self) -> int:
        """Of rounds and chunks."""
        return width(self.tile.dram.organization.rows + 1)

    @property
    def segment_bits(self) -> int:
        return width(self.tile.accumulators + 1)

    @property
    def address_bits(self) -> int:
        """Of a burst of the global buffer."""
        return width(self.buffer_words)

    @property
    def column_bits(self) -> int:
        """Of a burst of a row, of the global buffer or of the results."""
        return width(max(self.tile.row_columns, self.buffer_words, self.drain_bursts))

    @property
    def columns_bits(self) -> int:
        """Of a number of bursts."""
        return width(max(self.tile.row_columns, self.buffer_words) + 1)

    @property
    def place_bits(self) -> int:
        return max(self.bank_bits, width(self.groups))


def pim_geometry(chip: Chip) -> PimGeometry:
    """The geometry of ``chip``; raises `NotSupported` for what has no circuits."""
    tile = chip.tile
    if not isinstance(tile, PimTile):
        raise NotSupported(f"PIM circuits of a {tile.kind} tile")
    if tile.channels != 1:
        raise NotSupported(
            f"RTL of {tile.channels} channels in one module: they are independent, generate one with tile.channels=1"
        )
    unbuilt = [d.value for d in tile.operands if d not in (DataType.BF16, DataType.INT8)]
    if unbuilt:
        raise NotSupported(f"RTL of bank-side lanes for {unbuilt[0]} operands")
    if tile.dram.controller.refresh == "bank":
        raise NotSupported("per-bank refresh of a pim tile (dram.controller.refresh: rank or none)")
    if tile.dram.timing.CL < 2:
        raise NotSupported("RTL of a pim tile with CL below 2: its global buffer is read one cycle ahead of the banks")
    if tile.dram.organization.request_bytes % RESULT_BYTES:
        raise NotSupported(f"RTL of a pim tile whose burst is not a multiple of {RESULT_BYTES} bytes")
    return PimGeometry(tile)
