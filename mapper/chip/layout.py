"""How a tile's local memory is divided into rings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from siliconloom.arch.description import NpuTile
from siliconloom.mapper.chip.builder import SLOTS, ProgramBuilder, Ring

GRAIN = 64
"""Slots are multiples of this many bytes."""

SHARES = (
    # weights, moving operands, vector inputs, results, attention probabilities
    (40, 24, 12, 14, 10),
    (50, 20, 8, 12, 10),
    (60, 16, 6, 10, 8),
    (30, 30, 14, 16, 10),
    (26, 40, 10, 16, 8),
    (34, 14, 14, 20, 18),
)
"""Divisions of the scratchpad that the mapper tries, in percent."""


@dataclass(frozen=True)
class Layout:
    """Slot sizes in bytes; each ring has two slots.

    ``weights`` feed the array's B operand, ``moving`` its A operand, ``vector`` the vector unit, ``results`` the
    store unit, ``probabilities`` go from vector unit to array, ``constants`` hold norm parameters; ``partial`` and
    ``context`` lie in the accumulator memory.
    """

    weights: int
    moving: int
    vector: int
    results: int
    probabilities: int
    constants: int
    partial: int
    context: int


def layouts(tile: NpuTile, constant_bytes: Iterable[int], attention: bool) -> list[Layout]:
    """Divisions of the tile's memories to try, for each size of the constants; empty when not even those fit."""
    made = []
    for needed, shares in product(sorted(set(constant_bytes)), SHARES):
        constants = -(-needed // GRAIN) * GRAIN
        free = tile.scratchpad.capacity - SLOTS * constants
        if free < 5 * SLOTS * GRAIN:
            continue
        used = shares if attention else (*shares[:4], 0)
        slots = [free * share // (sum(used) * SLOTS) // GRAIN * GRAIN for share in used]
        half = tile.accumulator.capacity // SLOTS
        context = half // 4 // GRAIN * GRAIN if attention else 0
        partial = (half - context) // GRAIN * GRAIN
        if min(slots[:4]) > 0 and partial > 0:
            made.append(Layout(slots[0], slots[1], slots[2], slots[3], slots[4], constants, partial, context))
    return made


@dataclass(frozen=True)
class Rings:
    """The rings of a program, laid out back to back."""

    weights: Ring
    moving: Ring
    vector: Ring
    results: Ring
    probabilities: Ring
    constants: Ring
    partial: Ring
    context: Ring


def declare_rings(builder: ProgramBuilder, layout: Layout) -> Rings:
    """Declare the rings of ``layout``; scratchpad and accumulator each start at local address 0."""
    made, base = {}, 0
    for name in ("weights", "moving", "vector", "results", "probabilities", "constants"):
        size = getattr(layout, name)
        made[name] = builder.ring(name, base, size)
        base += SLOTS * size
    base = 0
    for name in ("partial", "context"):
        size = getattr(layout, name)
        made[name] = builder.ring(name, base, size)
        base += SLOTS * size
    return Rings(**made)
