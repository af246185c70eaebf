"""Chunks that weights are loaded in: how long they may be, and which are worth a try.

The memory port serves one transfer at a time, so what another unit stores or loads, or an earlier task's results that
the next one waits for, waits for a whole tile of weights. Between its chunks that has the port. Everything else of a
program is as it is: they are turns of a loop of their own, of which the first waits for the slot and the last fills it.
"""

from __future__ import annotations

from math import lcm

from msgspec.structs import replace

from siliconloom.arch.description import Chip
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.chosen import Chosen
from siliconloom.mapper.chip.gemm_layout import gemm_layout_of
from siliconloom.mapper.chip.panels import PanelLayout
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.workloads import Gemm

MOST_CHUNKS = 16
"""A search cuts a transfer into so many at most, each of which is an event to simulate; larger tiles that are tried
after that come in the same chunks."""


def longest_transfer(chip: Chip, task: Task, chosen: Chosen) -> int:
    """Bytes of the longest transfer of a product's weights that is one row; 0 where none can be cut into chunks."""
    part, tiling = chosen.share.operator, chosen.tiling
    assert isinstance(part, Gemm)
    assert isinstance(tiling, GemmTiling)
    assert isinstance(chip.tile, NpuTile)
    shape = gemm_shape(part, task)
    if not shape.weight or shape.compression is not None:
        return 0
    layout = PanelLayout.of(chip, gemm_layout_of(chip.tile, shape))
    return layout.longest(min(tiling.n, shape.n), min(tiling.k, shape.k))


def chunk_of(chip: Chip, task: Task, chosen: Chosen, size: int) -> int:
    """A chunk of about so many bytes for a product's weights; 0 where its transfers are no longer than that.

    Chunks are whole beats of the DMA and whole accesses of the nearest memory, so that no more is moved with them.
    """
    assert isinstance(chip.tile, NpuTile)
    unit, longest = lcm(chip.tile.dma.bytes_per_cycle, chip.nearest.access_bytes), longest_transfer(chip, task, chosen)
    chunk = -(-max(size, longest // MOST_CHUNKS) // unit) * unit
    return chunk if chunk < longest else 0


def loaded_as(chip: Chip, task: Task, chosen: Chosen, other: Chosen) -> Chosen:
    """A choice of a task with weights loaded as those of another one: ahead, and in chunks where tiles are longer."""
    chunk = other.chunk if other.chunk and other.chunk < longest_transfer(chip, task, chosen) else 0
    return replace(chosen, ahead=other.ahead, chunk=chunk)


__all__ = ["MOST_CHUNKS", "chunk_of", "loaded_as", "longest_transfer"]
