"""Traffic of one Einsum whose operands are tiled into a buffer of finite size.

Memory holds the whole tensors, the buffer one tile of each that is kept there. Loops over tiles are nested in a given
order; a tile is fetched again whenever a loop outside of the innermost one that it depends on has gone on, as in
Timeloop (Parashar et al., ISPASS 2019). What bypasses the buffer goes straight between memory and the array.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.workloads.cascades.einsum import Cascade
from siliconloom.workloads.cascades.traffic import divisors

MOST_TILES = 2_000_000
"""Sizes of tiles that are looked at for one Einsum."""


class TiledTraffic(Struct, frozen=True):
    """Tile sizes of each rank, outermost loop first, and the elements that each tensor moves."""

    tile: dict[str, int]
    order: tuple[str, ...]
    moved: dict[str, int]

    @property
    def total(self) -> int:
        """Elements of all tensors."""
        return sum(self.moved.values())


def tiled_elements(
    tensors: Mapping[str, Sequence[str]],
    output: str,
    extents: Mapping[str, int],
    tile: Mapping[str, int],
    order: Sequence[str],
) -> dict[str, int]:
    """Elements that each tensor moves between memory and buffer.

    ``tensors`` has the ranks of each, ``order`` the loops over tiles, outermost first. Partial sums of ``output`` are
    written and read again for every further round of a loop over a rank that it lacks.
    """
    counts = {rank: -(-extents[rank] // tile[rank]) for rank in order}
    loops = [rank for rank in order if counts[rank] > 1]
    moved = {}
    for name, ranks in tensors.items():
        depth = max((place for place, rank in enumerate(loops) if rank in ranks), default=-1)
        rounds = math.prod(counts[rank] for rank in loops[: depth + 1] if rank not in ranks)
        size = math.prod(extents[rank] for rank in ranks)
        moved[name] = size * (2 * rounds - 1 if name == output else rounds)
    return moved


def least_tiled(
    tensors: Mapping[str, Sequence[str]],
    output: str,
    extents: Mapping[str, int],
    buffer: float,
    *,
    order: Sequence[str] | None = None,
    whole: Sequence[str] = (),
    multiple: Mapping[str, int] | None = None,
    bypass: Sequence[str] = (),
) -> TiledTraffic:
    """Tiles with the least traffic under a buffer of ``buffer`` elements; of equal ones the first that fits.

    Parameters
    ----------
    order
        Loops over tiles, outermost first; every order is looked at without it.
    whole
        Ranks that are not cut.
    multiple
        What a tile is a multiple of, along ranks where that is not one; tiles divide the extent.
    bypass
        Tensors that take no room in the buffer.
    """
    ranks = list(extents)
    choices = []
    for rank, extent in extents.items():
        grain = (multiple or {}).get(rank, 1)
        if extent % grain:
            raise LoomError(f"tiles of {grain} along {rank} do not divide {extent}")
        choices.append([extent] if rank in whole else [grain * n for n in divisors(extent // grain)])
    if math.prod(map(len, choices)) > MOST_TILES:
        raise NotSupported(f"an Einsum with more than {MOST_TILES} sizes of tiles")
    grids = dict(zip(ranks, np.meshgrid(*(np.array(c, np.float64) for c in choices), indexing="ij"), strict=True))
    held = sum(
        np.asarray(math.prod((grids[r] for r in its), start=1.0)) for name, its in tensors.items() if name not in bypass
    )
    fits = np.broadcast_to(held <= buffer, grids[ranks[0]].shape)
    if not fits.any():
        raise LoomError(f"no tile finds room in a buffer of {buffer:.0f} elements")
    best: TiledTraffic | None = None
    for loops in itertools.permutations(ranks) if order is None else [tuple(order)]:
        moved = _moved_by_all(tensors, output, extents, grids, loops)
        place = np.unravel_index(np.argmin(np.where(fits, moved, np.inf)), moved.shape)
        tile = {rank: choices[axis][place[axis]] for axis, rank in enumerate(ranks)}
        found = TiledTraffic(tile, loops, tiled_elements(tensors, output, extents, tile, loops))
        if best is None or found.total < best.total:
            best = found
    assert best is not None
    return best


def _moved_by_all(
    tensors: Mapping[str, Sequence[str]],
    output: str,
    extents: Mapping[str, int],
    grids: Mapping[str, NDArray[np.float64]],
    loops: Sequence[str],
) -> NDArray[np.float64]:
    """`tiled_elements` of all tensors together, for every tile of a grid at once."""
    counts = {rank: extents[rank] / grids[rank] for rank in loops}
    total = np.zeros(grids[loops[0]].shape)
    for name, ranks in tensors.items():
        rounds, inside = np.ones_like(total), np.zeros(total.shape, bool)
        for rank in reversed(loops):
            if rank in ranks:
                inside |= counts[rank] > 1
            else:
                rounds = np.where(inside, rounds * counts[rank], rounds)
        size = math.prod(extents[rank] for rank in ranks)
        total += size * (2 * rounds - 1 if name == output else rounds)
    return total


def kernel_traffic(cascade: Cascade, buffer: float, *, element_bytes: int = 2) -> dict[str, int]:
    """Bytes of each tensor where every Einsum is a kernel of its own under ``buffer`` bytes, all instances.

    Each kernel has its best tiles and order of loops; what an Einsum's own steps hand on stays on chip. Conditions
    leave no elements out. Raises `LoomError` where no tile finds room.
    """
    found: dict[str, int] = {}
    for einsum in cascade.einsums:
        tensors = {a.tensor: cascade.ranks_of(a.tensor) for a in (*einsum.inputs, einsum.output)}
        if not einsum.inputs:
            continue  # initial values are no kernel
        groups = dict[tuple[int, ...], list[str]]()  # ranks of the same tensors are cut alike: one rank
        for rank in dict.fromkeys(r for its in tensors.values() for r in its):
            groups.setdefault(tuple(its.count(rank) for its in tensors.values()), []).append(rank)
        merged = {its[0]: math.prod(cascade.extents[r] for r in its) for its in groups.values()}
        shapes = {t: [r for r in its if r in merged] for t, its in tensors.items()}
        if einsum.reduced and merged:
            moved = least_tiled(shapes, einsum.name, merged, buffer / element_bytes).moved
        else:
            moved = {t: cascade.size(t) for t in tensors}
        for tensor, elements in moved.items():
            found[tensor] = found.get(tensor, 0) + elements * element_bytes * cascade.instances
    return found


PRODUCT = {"A": ("M", "K"), "B": ("K", "N"), "Z": ("M", "N")}
"""Ranks of a product Z = A B: rows of activations, weights, rows of results."""

__all__ = ["PRODUCT", "TiledTraffic", "kernel_traffic", "least_tiled", "tiled_elements"]
