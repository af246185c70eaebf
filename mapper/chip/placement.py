"""Placement: which level of the memory hierarchy every object of a workload lies in.

The workload is lowered once as if the nearest level were large enough; its Program says exactly how often every
object is read and written. What an object costs in a level is the time that those transfers hold the memory port
there, or half the level's latency where that is more (a ring of two slots hides no more than that). Units of objects
(the parameters of a layer, its keys, its values, each intermediate result) are then taken in the order of the time
that the fastest level saves per byte, the most first, and each goes to the fastest level that still has room. The
same is tried in the order of the time saved per unit, and the better of the two assignments is taken.

These are the greedy rules of the knapsack problem: optimal when units are small against the levels, never worse than
the optimum by more than what one unit saves at each boundary between levels, and with two levels never less than half
of what can be saved. An object is cut between units only, and its units never go back to a faster level, so that it
needs one address per level. `exact_placement` solves the same problem by constraint programming.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import Opcode, Program
from siliconloom.arch.memory import Memory
from siliconloom.arch.quantity import format_bytes
from siliconloom.mapper.chip.memory import Home, Item, Key, MemoryMap, alignment_of, no_room
from siliconloom.mapper.chip.rings import SLOTS
from siliconloom.sim.timing.units import access_cycles, moved_bytes


class Demand(Struct, frozen=True):
    """What an object costs.

    Parameters
    ----------
    moved
        Bytes that all tiles read and write of it in a run.
    cycles
        Time of those transfers on a tile, per level, if the whole object lay there.
    """

    item: Item
    moved: int
    cycles: tuple[float, ...]


class Placement(Struct, frozen=True):
    """Where everything lies.

    Parameters
    ----------
    demands
        What was placed.
    homes
        Levels and addresses of each object, in the order of its units.
    used
        Bytes taken in each level.
    """

    demands: tuple[Demand, ...]
    homes: dict[Key, tuple[Home, ...]]
    used: dict[str, int]

    def shares(self, key: Key) -> dict[str, int]:
        """Units of an object in each level; empty for an object that there is not."""
        return {home.level: home.count for home in self.homes.get(key, ())}

    def level(self, key: Key, unit: int) -> str:
        """Level of a unit; of the only unit, where there is one."""
        homes = self.homes[key]
        if len(homes) == 1:
            return homes[0].level
        return next(h.level for h in homes if h.first <= unit < h.first + h.count)

    def cuts(self, operators: Iterable[str]) -> list[int]:
        """Repetitions at which some object of the operators changes its level, the first of them 0."""
        names = set(operators)
        return sorted({0} | {h.first for key, homes in self.homes.items() if key[0] in names for h in homes})

    def slowest_share(self, chip: Chip, operator: str, unit: int, repeat: int) -> str:
        """Level that an operator spends the most transfer time with in the repetition ``unit`` of ``repeat``."""
        names = list(chip.memory)
        spent = dict.fromkeys(names, 0.0)
        for demand in self.demands:
            if demand.item.operator == operator:
                level = self.level(demand.item.key, unit)
                spent[level] += demand.cycles[names.index(level)] / repeat
        return max(names, key=lambda name: spent[name])


class Tried(Struct, frozen=True):
    """A placement that was looked at.

    Parameters
    ----------
    by
        ``heuristic`` or ``exact``.
    cost
        Cycles that its transfers take, see `cost_of`.
    cycles
        What its program takes on the simulator; ``None`` where it was not mapped.
    bound
        What no placement costs less than, where constraint programming found one.
    proven
        None costs less, but for rounding.
    """

    by: str
    cost: float
    cycles: int | None = None
    bound: float | None = None
    proven: bool = False


class PlacementChoice(Struct, frozen=True):
    """Who decided where things lie, and all that was looked at."""

    by: str
    tried: tuple[Tried, ...]


Counts = list[dict[int, int]]
"""Units of each object in each level, in the order in which its units went there."""


def measure(program: Program, memory: MemoryMap) -> list[Demand]:
    """What every object of ``memory`` costs, from a Program whose addresses are those of ``memory``."""
    chip, owner = memory.chip, memory.owner()
    levels = list(chip.memory.values())
    moved = dict.fromkeys(memory.items, 0)
    cycles = {key: [0.0] * len(levels) for key in memory.items}
    times = [1]
    sharing = {count: chip.model_copy(update={"tile_count": count}) for count in {*program.tiles, chip.tile_count}}
    for at, i in enumerate(program.instructions):
        if i.opcode == Opcode.LOOP:
            times.append(times[-1] * i.m)
        elif i.opcode == Opcode.NEXT:
            times.pop()
        if not i.opcode.unit.spec.memory or i.opcode == Opcode.BARRIER:
            continue
        key, working = owner.of(i.memory.base).key, sharing[program.tiles_of(at, chip.tile_count)]
        moved[key] += times[-1] * moved_bytes(levels[0], i.m, i.n) * working.tile_count
        for number, level in enumerate(levels):
            port = access_cycles(working, level, i.m, i.n)
            cycles[key][number] += times[-1] * max(port, chip.cycles(level.latency) / SLOTS)
    return [Demand(item, moved[key], tuple(cycles[key])) for key, item in memory.items.items()]


def place(chip: Chip, demands: Sequence[Demand]) -> Placement:
    """Assign every unit of every object to a level.

    Raises
    ------
    LoomError
        When a unit finds no room in any level: with the bytes needed and each level's capacity.
    """
    levels, order, grain = list(chip.memory.values()), fastest_first(chip), grain_of(chip)

    def saving(demand: Demand) -> float:
        return (demand.cycles[order[-1]] - demand.cycles[order[0]]) / max(demand.item.units, 1)

    def density(demand: Demand) -> float:
        return saving(demand) / max(demand.item.unit_bytes, 1)

    tried = [_fill(demands, _queue(demands, rule), levels, order, grain) for rule in (density, saving)]
    fitting = [counts for counts in tried if counts is not None]
    if not fitting:
        raise no_room(chip, sum(d.item.size for d in demands))
    return _addresses(chip, demands, min(fitting, key=lambda counts: _cost(demands, counts)), grain)


def assign(chip: Chip, demands: Sequence[Demand], where: Mapping[Key, str]) -> Placement:
    """Put every object, whole, into the level that ``where`` names for it, whatever the rule would say.

    Raises
    ------
    LoomError
        When a level has no room for what it is given.
    """
    names = list(chip.memory)
    return assign_units(chip, demands, [{names.index(where[d.item.key]): d.item.units} for d in demands])


def assign_units(chip: Chip, demands: Sequence[Demand], counts: Counts) -> Placement:
    """Put so many units of every object into each level, whatever the rule would say; raises as `assign` does."""
    placement = _addresses(chip, demands, counts, grain_of(chip))
    for name, used in placement.used.items():
        if used > (room := chip.memory[name].total_capacity):
            raise LoomError(
                f"what lies in {chip.name}'s memory.{name} takes {format_bytes(used)}, it has {format_bytes(room)} "
                f"(memory.{name}.capacity)"
            )
    return placement


def fastest_first(chip: Chip) -> list[int]:
    """Numbers of the levels in the order of their bandwidth: units of an object go on in a slower one."""
    levels = list(chip.memory.values())
    return sorted(range(len(levels)), key=lambda n: (-levels[n].total_bandwidth, n))


def cost_of(chip: Chip, placement: Placement) -> float:
    """Cycles that all transfers of a placement take, one after the other, as the one port of a tile does them."""
    names = list(chip.memory)
    return _cost(
        placement.demands,
        [{names.index(h.level): h.count for h in placement.homes[d.item.key]} for d in placement.demands],
    )


def grain_of(chip: Chip) -> list[int]:
    """Bytes at whose multiples objects begin in each level: whole stripes, so that rows begin at a port."""
    least = alignment_of(chip)
    return [max(least, level.stripe if level.channels > 1 else 1) for level in chip.memory.values()]


def _queue(demands: Sequence[Demand], rule: Callable[[Demand], float]) -> list[int]:
    """Objects in the order in which their units are placed, an entry per unit; repetition by repetition where equal."""
    units = [(-rule(d), unit, number) for number, d in enumerate(demands) for unit in range(d.item.units)]
    return [number for _, _, number in sorted(units)]


def _fill(
    demands: Sequence[Demand],
    queue: Sequence[int],
    levels: Sequence[Memory],
    order: Sequence[int],
    grain: Sequence[int],
) -> Counts | None:
    """Each unit in the first level that holds its kind and has room, none before that of the unit before.

    ``None`` when a unit finds no level.
    """
    room = [level.total_capacity for level in levels]
    reached = [0] * len(demands)
    counts: Counts = [{} for _ in demands]
    for number in queue:
        item = demands[number].item
        for place in range(reached[number], len(order)):
            level = order[place]
            if item.held not in levels[level].holds:
                continue
            wanted = item.unit_bytes + (grain[level] if level not in counts[number] else 0)
            if item.unit_bytes == 0 or wanted <= room[level]:
                room[level] -= wanted if item.unit_bytes else 0
                reached[number] = place
                counts[number][level] = counts[number].get(level, 0) + 1
                break
        else:
            return None
    return counts


def _cost(demands: Sequence[Demand], counts: Counts) -> float:
    """Cycles that all transfers take."""
    return sum(
        demand.cycles[level] * units / demand.item.units
        for demand, count in zip(demands, counts, strict=True)
        for level, units in count.items()
    )


def _addresses(chip: Chip, demands: Sequence[Demand], counts: Counts, grain: Sequence[int]) -> Placement:
    names, ends = list(chip.memory), list(chip.level_bases)
    homes: dict[Key, tuple[Home, ...]] = {}
    for demand, count in zip(demands, counts, strict=True):
        first, found = 0, []
        for level, units in count.items():
            found.append(Home(names[level], first, units, ends[level]))
            ends[level] += -(-units * demand.item.unit_bytes // grain[level]) * grain[level]
            first += units
        homes[demand.item.key] = tuple(found)
    used = {name: end - base for name, end, base in zip(names, ends, chip.level_bases, strict=True)}
    return Placement(tuple(demands), homes, used)


__all__ = [
    "Counts",
    "Demand",
    "PlacementChoice",
    "Placement",
    "Tried",
    "assign",
    "assign_units",
    "cost_of",
    "fastest_first",
    "grain_of",
    "measure",
    "place",
]
