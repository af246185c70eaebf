"""What is decided for every task: how tiles share it, how its part is tiled, and how the buffers are divided.

Estimates (`mapper.gemm_cost`, `attention_cost`, `vector`) order what could be chosen. Where the best of a task is not
near its floor and another is not far behind, those few are lowered by themselves and simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from siliconloom.arch.description import Chip, NpuTile
from siliconloom.arch.errors import NotSupported
from siliconloom.mapper.attention_cost import AttentionTiling, choose_attention_tilings
from siliconloom.mapper.bounds import operator_bound
from siliconloom.mapper.gemm_cost import PARAMETER_BYTES, GemmMemories
from siliconloom.mapper.layout import Layout, layouts
from siliconloom.mapper.sharing import Share, shares
from siliconloom.mapper.tasks import Task, gemm_shape
from siliconloom.mapper.tiling import SLACK, GemmTiling, choose_tilings
from siliconloom.mapper.vector import VectorTiling, choose_vector_tilings, constant_elements, too_small, vector_shape
from siliconloom.workloads import Attention, Gemm, Graph, Operator, Vector

Tiling = GemmTiling | AttentionTiling | VectorTiling

MOST_SHARES = 5
"""Ways to share an operator among the tiles that are costed, once one fits."""
MEASURED = 4
"""Most candidates of a task that are simulated."""
NEAR = 1.01
"""A candidate this close to what no mapping beats is taken as it is."""
FAR = 1.3
"""Candidates whose estimate is this many times the best one are not simulated."""


@dataclass(frozen=True)
class Chosen:
    """What was decided for a task: each tile's part of it, how that is tiled, and what it takes.

    ``cycles`` are simulated where the candidate was, and else estimated.
    """

    tiling: Tiling
    share: Share
    cycles: int

    @property
    def timed(self) -> Tiling:
        """The tiling with these cycles."""
        return replace(self.tiling, cycles=self.cycles)


@dataclass(frozen=True)
class Part:
    """Repetitions of a block in which every object stays in its memory level.

    ``levels`` names, per operator, the levels that its tiling is chosen for: those of operands and results of a
    product; for others the one it spends the most time with.
    """

    first: int
    count: int
    tasks: tuple[Task, ...]
    levels: dict[str, tuple[str, ...]]


Choice = tuple[Layout, list[dict[str, Chosen]]]
"""Division of the buffers, and what is chosen for every task in each part."""
Measure = Callable[[Task, Layout, Chosen], int]
"""Cycles of one execution of a task by itself."""


def choose_layouts(
    chip: Chip, tile: NpuTile, graph: Graph, parts: Sequence[Part], measure: Measure | None
) -> list[Choice]:  # fmt: skip
    """Every layout of the buffers in which all operators find room, with what is chosen under it; the best first.

    Raises
    ------
    LoomError
        When there is none.
    """
    operators = graph.operators()
    constants = _constant_bytes(tile, operators)
    candidates = list(layouts(tile, constants, any(isinstance(o, Attention) for o in operators)))
    known: dict[tuple[str, tuple[str, ...]], list[Chosen | None]] = {}
    for part in parts:
        for task in part.tasks:
            key = task.operator.name, part.levels[task.operator.name]
            if key not in known:
                known[key] = _choose(chip, candidates, task, key[1], measure)
    fitting: list[tuple[int, Choice]] = []
    blocked = "any operator"
    for number, layout in enumerate(candidates):
        total, made = 0, list[dict[str, Chosen]]()
        for part in parts:
            made.append({})
            for name, level in part.levels.items():
                chosen = known[name, level][number]
                if chosen is None:
                    blocked = f"operator {name}"
                    break
                made[-1][name] = chosen
                total += part.count * chosen.cycles
            else:
                continue
            break
        else:
            fitting.append((total, (layout, made)))
    if not fitting:
        raise too_small(chip, blocked)
    return [choice for _, choice in sorted(fitting, key=lambda f: f[0])]


def _constant_bytes(tile: NpuTile, operators: list[Operator]) -> int:
    """Room for the largest norm's parameters, and for what requantises the columns of a result tile."""
    norms = [o.precision.size(constant_elements(o)) for o in operators if isinstance(o, Vector)]
    most = tile.scratchpad.capacity // (32 * PARAMETER_BYTES)
    scales = [PARAMETER_BYTES * min(o.n, most) for o in operators if isinstance(o, Gemm)]
    scales += [PARAMETER_BYTES * o.v_head_dim for o in operators if isinstance(o, Attention)]
    return max([0, *norms, *scales])


def _choose(
    chip: Chip, candidates: Sequence[Layout], task: Task, levels: tuple[str, ...], measure: Measure | None
) -> list[Chosen | None]:  # fmt: skip
    """The best that was found for a task under each layout, its objects in the levels that `Part.levels` lists.

    Shares are tried from the one that could be the fastest on, while one could still be faster than what was found.
    """
    found: list[list[Chosen]] = [[] for _ in candidates]
    for number, (least, share) in enumerate(shares(chip, task.operator, task.fused)):
        best = [min(chosen.cycles for chosen in some) for some in found if some]
        if best and len(best) == len(found) and (NEAR * least >= max(best) or number >= MOST_SHARES):
            break
        working = chip if share.tiles == chip.tile_count else chip.model_copy(update={"tile_count": share.tiles})
        for some, tilings in zip(found, _tilings(working, candidates, task, share.operator, levels), strict=True):
            some += [Chosen(tiling, share, tiling.cycles) for tiling in tilings]
    if measure is not None and len(chip.memory) == 1:
        floor = operator_bound(chip, task.operator, task.fused).lower_bound_cycles
        found = _measured(candidates, task, found, floor, measure)
    return [_frugal(some) for some in found]


def _frugal(some: Sequence[Chosen]) -> Chosen | None:
    """Of those that are nearly the fastest, the one that moves the fewest bytes."""
    limit = SLACK * min((chosen.cycles for chosen in some), default=0)
    near = [chosen for chosen in some if chosen.cycles <= limit]
    return min(
        near, key=lambda c: (c.share.tiles * (c.tiling.read_bytes + c.tiling.write_bytes), c.cycles), default=None
    )


def _measured(
    candidates: Sequence[Layout], task: Task, found: list[list[Chosen]], floor: int, measure: Measure
) -> list[list[Chosen]]:  # fmt: skip
    """The same with simulated cycles for the few that could be the best; the others are taken to be as far off."""
    pool: dict[Chosen, Layout] = {}
    for layout, some in zip(candidates, found, strict=True):
        for chosen in some:
            pool.setdefault(chosen, layout)
    order = sorted(pool, key=lambda chosen: chosen.cycles)
    if len(pool) < 2 or order[0].cycles <= NEAR * floor:
        return found
    known: dict[Chosen, int] = {}
    for chosen in order[:MEASURED]:
        best = min(known.values(), default=0)
        if known and (chosen.cycles >= min(best, FAR * order[0].cycles) or best <= NEAR * floor):
            break
        known[chosen] = measure(task, pool[chosen], chosen)
    off = max(1.0, *(cycles / chosen.cycles for chosen, cycles in known.items()))
    return [[replace(c, cycles=known.get(c, int(c.cycles * off))) for c in some] for some in found]


def _tilings(
    chip: Chip, candidates: Sequence[Layout], task: Task, part: Operator, levels: tuple[str, ...]
) -> Sequence[Sequence[Tiling]]:  # fmt: skip
    """Candidates of a part under each layout."""
    if isinstance(part, Gemm):
        a, b, c = (chip.memory[name] for name in levels)
        memories = GemmMemories(a, b, c) if len(chip.memory) > 1 else None
        return choose_tilings(chip, candidates, gemm_shape(part, task), memories)
    chip = chip.seen_from(levels[0])
    if isinstance(part, Attention):
        return choose_attention_tilings(chip, candidates, part)
    if isinstance(part, Vector):
        return choose_vector_tilings(chip, candidates, vector_shape(part))
    raise NotSupported(f"operators of kind {part.kind}")


__all__ = ["Choice", "Chosen", "Measure", "Part", "Tiling", "choose_layouts"]
