"""What a chip is: its tiles (`arch.tile`, `arch.array`), its memories (`arch.memory`) and what follows from both."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from siliconloom.arch.document import Description, Document, Name, find_document, rule_at
from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.arch.memory import HELD, Memory
from siliconloom.arch.names import LIBRARY, chip_names
from siliconloom.arch.pim import PimTile
from siliconloom.arch.quantity import Frequency, format_bytes, format_si
from siliconloom.arch.tile import NpuTile, Tile

INTERVAL_ONE = 1 << 16
"""One cycle in the fixed-point format of `Chip.beat_interval`."""

LEVEL_ALIGNMENT = 1 << 16
"""Memory levels begin at multiples of this many bytes."""
ADDRESS_BITS = 48
"""Bits of a main-memory address in an instruction."""


FASTEST_CLOCK = {"45nm": 5_200_000_000, "7nm": 5_200_000_000}
"""Hz of the fastest product of each node: IBM's z196 (45 nm, 2010) ships at 5.2 GHz, its 7 nm successor Telum (2021)
at "above 5 GHz", 5.2 GHz in the z16. Arithmetic is deeper pipelined there than in an array's element: a bound, no goal.
Sources: reports of IBM's talk at Hot Chips 22 (OSNews, 26 August 2010: 5.2 GHz, 45 nm SOI) and of Telum's at Hot Chips
33 (Ars Technica, 2021: 7 nm, above 5 GHz); the z16's 5.2 GHz is Wikipedia's ("IBM Telum"), IBM's own not verified.
"""


class Chip(Description):
    """A chip: identical tiles that share a memory hierarchy, nearest level first."""

    LATER: ClassVar[dict[str, str]] = {
        "noc": "a network on the chip; tiles share the memory's bandwidth evenly, without a network between them",
        "links": "links of a lone chip; describe a system (kind: system), whose link joins its chips",
    }

    kind: Literal["chip"] = Field(description="what is described")
    name: Name = Field(description="letters, digits, . _ -; also that of files and of Verilog modules")
    description: str = Field(default="", description="in words, for people")
    clock: Frequency = Field(description="of everything on the chip")
    technology: Literal["45nm", "7nm"] = Field(default="7nm", description="energy table of arch.technology")
    tile: Tile = Field(description="what computes: a systolic, npu or pim tile")
    tile_count: int = Field(default=1, ge=1, le=4096, description="identical tiles that share every operator")
    tiles_join: bool = Field(
        default=False,
        description="the tiles can also work side by side as one, with arrays and buffers of all, where that is faster",
    )
    attention: Literal["fused", "channel", "separate"] = Field(
        default="fused",
        description="scores stay on the tile, or in its channel (tile.pim) where that is faster; in the channel "
        "wherever it can be, whatever that takes; or scores, softmax and the product with values are operators of "
        "their own, with all pairs of a query and a key, whose results lie in memory",
    )
    memory: dict[Name, Memory] = Field(default={}, description="levels from nearest to farthest")
    pim: PimTile | None = Field(default=None, description="banks of the nearest memory that compute")

    @model_validator(mode="after")
    def _check(self) -> Chip:
        fastest = FASTEST_CLOCK[self.technology]
        if self.clock > fastest:
            raise rule_at(
                "clock",
                f"must be at most {format_si(fastest, 'Hz')}, the fastest product of {self.technology}",
                format_si(self.clock, "Hz"),
            )
        if self.tiles_join and (self.tile_count == 1 or not isinstance(self.tile, NpuTile)):
            raise rule_at("tiles_join", "joins several npu tiles (tile_count, tile.kind)", "true")
        if self.attention == "separate" and (not isinstance(self.tile, NpuTile) or self.pim is not None):
            raise rule_at("attention", "not supported: operators of their own but on npu tiles alone", self.attention)
        if self.attention == "channel" and (not isinstance(self.tile, NpuTile) or self.tile.pim is None):
            raise rule_at("attention", "needs memory that computes beside an npu tile (tile.pim)", self.attention)
        if isinstance(self.tile, PimTile):
            self._check_pim(self.tile)
            if self.pim is not None or self.tile_count != 1:
                raise ValueError("a chip with a pim tile has one, and no pim beside it")
        if isinstance(self.tile, NpuTile) and self.tile.pim is not None:
            self._check_pim(self.tile.pim)
            if self.tile_count > 1:
                raise rule_at("tile_count", "a tile that drives a channel is alone (tile.pim)", self.tile_count)
            if self.pim is not None:
                raise rule_at("tile.pim", "a chip has a channel beside main memory, or one that computes", "both")
        if self.pim is not None and not isinstance(self.tile, PimTile):
            self._check_pim(self.pim)
            nearest, memory = next(iter(self.memory.items()), (None, None))
            if memory is None:
                raise ValueError("pim computes in the nearest memory; give one")
            capacity = self.pim.channels * self.pim.dram.organization.capacity
            if memory.capacity != capacity:
                raise ValueError(
                    f"memory.{nearest}.capacity must be that of the pim channels, {format_bytes(capacity)}"
                )
            peak = self.pim.channels * self.pim.dram.peak_bandwidth
            if memory.bandwidth > peak:
                raise ValueError(
                    f"memory.{nearest}.bandwidth must be at most {format_si(peak, 'B/s')}, what the pim channels' pins "
                    "move"
                )
        if self.tile.kind == "npu" and not self.memory:
            raise ValueError("a chip with an npu tile needs at least one memory level")
        for what in HELD:
            if self.memory and not any(what in memory.holds for memory in self.memory.values()):
                raise ValueError(f"some memory level must hold {what} (memory.NAME.holds)")
        if len(self.memory) > 1 and self.level_bases[-1] >= 1 << ADDRESS_BITS:
            raise ValueError(f"the memory levels before the last are more than {ADDRESS_BITS} bits can address")
        return self

    def _check_pim(self, pim: PimTile) -> None:
        if abs(self.clock * pim.dram.clock_period - 10**12) > 10**12 // 1000:
            raise ValueError(
                f"clock must be that of the pim channels' DRAM, {format_si(10**12 / pim.dram.clock_period, 'Hz')}"
            )

    def joined(self) -> Chip:
        """The chip with its npu tiles as one: arrays side by side, buffers, lanes and data buses put together.

        Slots of several rows have the rows of all tiles: their columns are as many as before.
        """
        tile, count = self.tile, self.tile_count
        if count == 1 or not isinstance(tile, NpuTile):
            return self
        grown = "sublanes" if tile.vector.sublanes > 1 else "lanes"
        wide = tile.model_copy(
            update={
                "array": tile.array.model_copy(update={"cols": tile.array.cols * count}),
                "scratchpad": tile.scratchpad.model_copy(update={"capacity": tile.scratchpad.capacity * count}),
                "accumulator": tile.accumulator.model_copy(update={"capacity": tile.accumulator.capacity * count}),
                "vector": tile.vector.model_copy(update={grown: getattr(tile.vector, grown) * count}),
                "dma": tile.dma.model_copy(update={"bytes_per_cycle": tile.dma.bytes_per_cycle * count}),
            }
        )
        return self.model_copy(update={"tile": wide, "tile_count": 1, "tiles_join": False})

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical description: stands in the Verilog sidecar, in results and in cache keys."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def peak_macs(self) -> int:
        """Multiply-accumulates per cycle of the whole chip (0 for a tile without an array)."""
        if isinstance(self.tile, PimTile):
            return self.tile.peak_macs
        return self.tile.array.products * self.tile_count

    @property
    def nearest(self) -> Memory:
        """The memory level that is nearest to the tiles."""
        return next(iter(self.memory.values()))

    @property
    def level_bases(self) -> tuple[int, ...]:
        """First address of each memory level: the levels lie one behind the other, the nearest at 0."""
        bases, end = [], 0
        for memory in self.memory.values():
            bases.append(end)
            end += -(-memory.total_capacity // LEVEL_ALIGNMENT) * LEVEL_ALIGNMENT
        return tuple(bases)

    def level_of(self, address: int) -> int:
        """Number of the memory level that holds ``address``, 0 for the nearest; the last one has no end."""
        return sum(base <= address for base in self.level_bases[1:])

    @property
    def beat_interval(self) -> int:
        """`interval_of` the nearest memory."""
        return self.interval_of(self.nearest)

    def path_bandwidth(self, memory: Memory) -> int:
        """Bytes per second that reach a memory: its own bandwidth, or what the data buses of all tiles carry."""
        return min(memory.total_bandwidth, self.dma_bandwidth)

    @property
    def dma_bandwidth(self) -> int:
        """Bytes per second that the data buses of all npu tiles carry."""
        assert isinstance(self.tile, NpuTile)
        return self.clock * self.tile_count * self.tile.dma.bytes_per_cycle

    def interval_of(self, memory: Memory) -> int:
        """Cycles between beats of one tile's data bus, in 1/`INTERVAL_ONE`: its share of a memory.

        At least one cycle; rounded up, so that no tile ever takes more than its share.
        """
        wanted = self.dma_bandwidth * INTERVAL_ONE
        return max(-(-wanted // memory.total_bandwidth), INTERVAL_ONE)

    def seen_from(self, level: str) -> Chip:
        """The same chip with nothing but one of its memory levels."""
        if list(self.memory) == [level]:
            return self
        return self.model_copy(update={"memory": {level: self.memory[level]}})

    def cycles(self, picoseconds: int) -> int:
        """Clock cycles that cover a duration, rounded up."""
        return -(-picoseconds * self.clock // 10**12)


def load_chip(name: str | Document, overrides: list[tuple[str, str]] | None = None) -> Chip:
    """Read a chip from a file or the library, or as described, with ``--set`` overrides applied.

    Raises
    ------
    LoomError
        When there is no such file, or the description breaks a rule.
    """
    document = find_document(name, LIBRARY, "chip")
    document.override(overrides or [])
    document.expect_kind(["chip"])
    return document.validate(Chip)


PATH_LIKE = re.compile(r"/|\.(yaml|yml|json)$")
"""Of a name that is a file's, and no entry's of the library."""


def new_chip(name: str, base: str) -> str:
    """Text of a description with every key of a chip, each with its meaning; its values are those of another chip.

    Parameters
    ----------
    name
        What it is called.
    base
        The other chip: a file or a library name.

    Raises
    ------
    LoomError
        When there is no such chip, or the name is none that a chip may have.
    """
    from siliconloom.arch.template import commented

    if base.strip() and base not in chip_names() and not os.path.exists(base) and not PATH_LIKE.search(base):
        near = nearest_name(base, chip_names())
        hint = f"did you mean '{near}'?" if near else "known: " + ", ".join(chip_names())
        raise LoomError(f"{base}: no such file and no chip of that name in the library; {hint}")
    load_chip(base, [("name", name)])
    document = find_document(base, LIBRARY, "chip")
    heading = (
        f"{name}: a chip like {base}. Lines with ## say what a key means. A key behind one # is not set, and shows its "
        "default: take the # and the blank away to set it. Quantities have units: 256 KiB, 900 GB/s, 1.2 GHz, 500 ns."
    )
    return commented(Chip, {**document.data, "name": name}, heading)
