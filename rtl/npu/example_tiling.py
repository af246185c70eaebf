"""How the example's product is cut into tiles: what a tile takes of local memory, and where all lies in main memory.

`rtl.npu.example` makes the program and the data; ``example.c.j2`` says the same in C.
"""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

from msgspec import Struct

from siliconloom.arch.layout import next_power, padded, panel_rows, row_unit, row_values, sums_lines, sums_pitch
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import COLUMN_LINES
from siliconloom.arch.word import WORD_BYTES
from siliconloom.rtl.npu.geometry import PAGE

INSTRUCTIONS = 13
"""Of the example's program."""
LEAST_BANKS = 4
"""Operands, parameters and results are read by different ports: each needs a bank of its own."""
LEAST_MEMORY = 1 << 20


class ProductShape(NamedTuple):
    """Sizes of a product, or of a tile of it."""

    m: int
    n: int
    k: int


class TwoSlots(Struct, frozen=True):
    """Where in the scratchpad a buffer of two slots begins, and the bytes of a slot."""

    base: int
    slot: int


class ExampleTile(Struct, frozen=True):
    """The tile as the example needs it, and what its layouts make of sizes."""

    tile: NpuTile

    @property
    def output_stationary(self) -> bool:
        """Both operands enter in step, and sums stay."""
        return self.tile.array.dataflow == "output_stationary"

    @property
    def columns(self) -> int:
        """What a tile's columns are a multiple of: whole panels, and rows of results without a gap."""
        array, lanes = self.tile.array, self.tile.vector.lanes
        unit = row_unit(self.tile)
        return array.cols if unit == lanes else lcm(array.cols, unit)

    def buffers(self) -> dict[str, TwoSlots]:
        """TwoSlots by what they hold: whole banks each, as a side of a bank has one user.

        Parameters have one, or as many as those of the narrowest tile take.
        """
        banks = self.tile.scratchpad.banks
        size = self.tile.scratchpad.capacity // banks
        results = max(1, banks // 4)
        narrowest = 2 * COLUMN_LINES * padded(self.columns, self.tile.vector.lanes)
        parameters = max(1, min(-(-narrowest // size), banks - results - 2))
        moving = (banks - results - parameters) // 2
        counts = {"moving": moving, "stationary": banks - results - parameters - moving}
        counts |= {"parameters": parameters, "results": results}
        made, base = {}, 0
        for name, count in counts.items():
            made[name] = TwoSlots(base * size, count * size // 2)
            base += count
        return made

    @property
    def sums_slot(self) -> int:
        """Bytes of one of the two slots of the accumulator."""
        return sums_lines(self.tile) // 2 * sums_pitch(self.tile.array)

    def sizes(self, shape: ProductShape) -> dict[str, int]:
        """Bytes that a tile of this shape takes of every buffer, and of the accumulator."""
        array, lanes = self.tile.array, self.tile.vector.lanes
        m, n, k = shape
        panels = -(-n // array.cols)
        moving = -(-m // array.rows) * array.rows * k if self.output_stationary else m * row_values(self.tile, k)
        return {
            "moving": moving,
            "stationary": panels * panel_height(self, k) * array.cols,
            "parameters": COLUMN_LINES * padded(n, lanes),
            "results": m * row_values(self.tile, n),
            "sums": panels * m * sums_pitch(array),
        }

    def fits(self, shape: ProductShape) -> dict[str, bool]:
        """By buffer, whether a tile of this shape fits a slot."""
        room = {name: each.slot for name, each in self.buffers().items()} | {"sums": self.sums_slot}
        return {name: size <= room[name] for name, size in self.sizes(shape).items()}

    def choose(self, whole: ProductShape, limits: ProductShape) -> ProductShape | None:
        """The tile for a product: as large as the limits, cut until it fits; ``None`` where nothing does."""
        m = min(whole.m, limits.m)
        n = min(padded(whole.n, self.columns), padded(limits.n, self.columns))
        k = min(next_power(whole.k), next_power(limits.k))
        while True:
            fits = self.fits(ProductShape(m, n, k))
            if all(fits.values()):
                return ProductShape(m, n, k)
            if not fits["stationary"] and k > 1:
                k //= 2
            elif n > self.columns and not (fits["stationary"] and fits["parameters"] and fits["results"]):
                n = padded(n // 2, self.columns)
            elif m > 1:
                m = (m + 1) // 2
            elif k > 1:
                k //= 2
            elif n > self.columns:
                n = padded(n // 2, self.columns)
            else:
                return None


def panel_height(tile: ExampleTile, k: int) -> int:
    """Rows of a panel of k rows in memory."""
    return k if tile.output_stationary else panel_rows(tile.tile.array, k)


def default_shapes(tile: ExampleTile) -> tuple[ProductShape, ProductShape]:
    """ProductShape and limits of the data in the folder: several tiles along each dimension, none of them full."""
    array = tile.tile.array
    depth = next_power(array.rows)
    limits = ProductShape(3, tile.columns, depth)
    return ProductShape(7, tile.columns + max(tile.columns // 2, 1), depth + depth // 2 + 1), limits


def why_none(tile: NpuTile) -> str:
    """Why a tile has no example; empty where it has one."""
    if not tile.circuit_format.is_integer:
        return f"the example computes in int8, and the tile in {tile.circuit_format.value}"
    if tile.scratchpad.banks < LEAST_BANKS:
        return f"tile.scratchpad.banks is {tile.scratchpad.banks}; a product takes {LEAST_BANKS}"
    if tile.sequencer.program_words < INSTRUCTIONS:
        return f"tile.sequencer.program_words is {tile.sequencer.program_words}; the example takes {INSTRUCTIONS}"
    if ExampleTile(tile).choose(ProductShape(1, 1, 1), ProductShape(1, 1, 1)) is None:
        return "its buffers have no room for two slots of the smallest tile"
    return ""


class ExampleMemory(NamedTuple):
    """Main memory of a run: addresses of what lies there, bytes from tile to tile and from row to row, and its size."""

    moving: int
    stationary: int
    parameters: int
    results: int
    moving_tile: int
    stationary_tile: int
    parameter_tile: int
    result_tile: int
    row: int
    end: int


def counts_of(whole: ProductShape, shape: ProductShape) -> ProductShape:
    """Tiles along each dimension."""
    return ProductShape(*(-(-all_ // part) for all_, part in zip(whole, shape, strict=True)))


def memory_bytes(tile: ExampleTile, bus: int) -> int:
    """Main memory of the example's bench: four times what the shape in the folder takes, or 1 MiB."""
    whole, limits = default_shapes(tile)
    shape = tile.choose(whole, limits)
    assert shape is not None, "tiles without room have no example"
    return max(LEAST_MEMORY, next_power(4 * memory_of(tile, bus, shape, counts_of(whole, shape)).end))


def memory_of(tile: ExampleTile, bus: int, shape: ProductShape, counts: ProductShape) -> ExampleMemory:
    """Where everything lies, each thing from a page on, each tile from a multiple of the bus on."""
    sizes = tile.sizes(shape)
    step = {name: padded(sizes[name], bus) for name in ("moving", "stationary", "parameters", "results")}
    row = 0 if tile.output_stationary else counts.k * row_values(tile.tile, shape.k)
    moving = counts.m * (counts.k * step["moving"] if tile.output_stationary else shape.m * row)
    taken = {
        "moving": moving,
        "stationary": counts.n * counts.k * step["stationary"],
        "parameters": counts.n * step["parameters"],
        "results": counts.m * counts.n * step["results"],
    }
    page, places = max(PAGE, bus), []
    here = padded(INSTRUCTIONS * WORD_BYTES, page)
    for size in taken.values():
        places.append(here)
        here += padded(size, page)
    return ExampleMemory._make([*places, *step.values(), row, here])


__all__ = [
    "INSTRUCTIONS",
    "ExampleMemory",
    "ExampleTile",
    "ProductShape",
    "counts_of",
    "default_shapes",
    "memory_bytes",
    "memory_of",
    "why_none",
]
