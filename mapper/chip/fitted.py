"""Divisions of the buffers in which the best tiles of a product just fit, whatever shares of them these take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from siliconloom.arch.description import Chip
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.bounds import Bound
from siliconloom.mapper.chip.gemm_cost import ORDERS, gemm_costs
from siliconloom.mapper.chip.gemm_layout import GemmShape, gemm_layout_of
from siliconloom.mapper.chip.gemm_moves import GemmMemories
from siliconloom.mapper.chip.gemm_work import tile_work
from siliconloom.mapper.chip.layout import SHARES, Layout, have_room, layouts
from siliconloom.mapper.chip.objective import Objective
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tile_sizes import candidates
from siliconloom.workloads import Gemm

PRODUCTS, PART = 3, 0.05
"""So many products with the most work have divisions of their own, where theirs is at least this part of all work."""


def fitted(
    chip: Chip,
    tile: NpuTile,
    tasks: Sequence[Task],
    bounds: Sequence[Bound],
    least: Mapping[str, int],
    contexts: Sequence[int],
    objective: Objective,
) -> list[Layout]:
    """Divisions for the best tiles of products that are a good part of the work, by their estimates.

    Parameters
    ----------
    chip, tile, tasks, bounds
        The tasks, what each takes at least, and where they are computed: by all tiles together, of one memory level.
    least
        Bytes of a slot of every ring that the smallest tiles of all tasks take.
    contexts
        Quarters of the accumulator for attention's second sums.
    objective
        What is to be the least.
    """
    work = [task.operator.repeat * bound.lower_bound_cycles for task, bound in zip(tasks, bounds, strict=True)]
    heavy = [at for at, task in enumerate(tasks) if isinstance(task.operator, Gemm) and work[at] >= PART * sum(work)]
    found: dict[Layout, None] = {}
    for at in sorted(heavy, key=lambda at: -work[at])[:PRODUCTS]:
        operator = tasks[at].operator
        assert isinstance(operator, Gemm)
        for needs in _best(chip, tile, gemm_shape(operator, tasks[at]), least, objective):
            room = {ring: max(least.get(ring, 0), needs.get(ring, 0)) for ring in sorted({*least, *needs})}
            found |= dict.fromkeys(layouts(tile, [room["constants"]], room, SHARES[:1], contexts))
    return list(found)


def _best(
    chip: Chip, tile: NpuTile, shape: GemmShape, least: Mapping[str, int], objective: Objective
) -> list[dict[str, int]]:
    """What the best tiles of a product take of a slot of each ring: of either order, of the whole depth or a part."""
    layout, memories = gemm_layout_of(tile, shape), GemmMemories(chip.nearest, chip.nearest, chip.nearest)
    axes = candidates(tile, shape)
    fits = np.broadcast_to(have_room(tile, least, layout.needs(*np.ix_(*axes))), tuple(map(len, axes)))
    if not fits.any():
        return []
    used = [fits.any(axis=tuple({0, 1, 2} - {axis})) for axis in range(3)]
    m, n, k = (each[some] for each, some in zip(axes, used, strict=True))
    fits, (rows, columns, depth) = fits[np.ix_(*used)], np.ix_(m, n, k)
    (costs,) = gemm_costs(chip, memories, tile_work(chip, memories, shape, (rows, columns, depth)), ORDERS[:2])
    whole = np.broadcast_to(depth == shape.k, fits.shape)
    found: dict[tuple[int, int, int], None] = {}
    for each in costs.values():
        taken = np.broadcast_to(objective.of(each.cycles, each.reads + each.writes), fits.shape)
        for kind in (fits & whole, fits & ~whole):
            if kind.any():
                place = np.unravel_index(int(np.where(kind, taken, np.inf).argmin()), fits.shape)
                found[int(m[place[0]]), int(n[place[1]]), int(k[place[2]])] = None
    return [{ring: int(need) for ring, need in layout.needs(*each).items()} for each in found]


__all__ = ["fitted"]
