"""How a tile's local memory is divided into rings: whole banks for each kind of them.

A side of a scratchpad bank, its read port or its write port, has one user in a program. So what one unit fills and one
port empties, `BANKED` says which rings those are, has banks of its own. A scratchpad with fewer banks than that is
divided by bytes; the assembler refuses such a program, which can be timed only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from siliconloom.arch.errors import LoomError
from siliconloom.arch.layout import (
    INDEX_BYTES,
    bank_line,
    is_power,
    next_power,
    padded,
    sums_lines,
    sums_pitch,
    sums_room,
)
from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.builder import ProgramBuilder
from siliconloom.mapper.chip.rings import SLOTS, Region, Ring

GRAIN = 64
"""Slots are multiples of this many bytes, and of a line of every unit."""

BANKED = (
    ("weights", "values"),
    ("moving",),
    ("vector",),
    ("second", "constants"),
    ("results",),
    ("probabilities",),
    ("queries",),
    ("powers",),
    ("chained",),
    ("gates",),
)
"""Rings that may share banks, as the same unit fills them and the same port empties them."""
OPTIONAL = ("values", "vector", "second", "probabilities", "queries", "powers", "chained", "gates")
"""Rings that not every workload needs; what requantises and what is stored, each does."""
ACCUMULATED = ("partial", "context")
"""Rings that lie in the accumulator."""
SINGLE = ("chained", "gates")
"""Regions of one slot: the vector unit both fills and empties them, and has one instruction at a time."""
TURNED = {"queries": "moving", "powers": "probabilities"}
"""Rings of an array that takes rows column by column, and which ones stand for them elsewhere."""
FIXED = ("constants", "values")
"""Rings whose slots are as large as asked for; the others share what is left."""
MOST_INDICES = 1 << 14
"""Indices of rows to be gathered that are loaded at a time, at most."""
INDEX_SHARE = 128
"""They take at most this part of the scratchpad."""
LARGE = 8
"""Parameters that take more than this part of the scratchpad have one slot."""

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
CONTEXT_SHARES = (1, 2, 3)
"""Quarters of the accumulator that sums of attention's second product may have; the first where attention is little."""
STAYING_SHARES = ((88, 4, 3, 3, 2),)
"""One that leaves columns of products what rows of these that stay do not take."""
FRUGAL_SHARES = ((14, 68, 6, 8, 4), (70, 12, 6, 8, 4), (24, 54, 8, 10, 4), (56, 22, 8, 10, 4))
"""The same where bytes count beside time: most of it for one operand of products, which then is read once or twice."""


class NotDivided(LoomError):
    """Buffers cannot be divided so in the middle of a program; ``layout`` is how."""

    layout: Layout | None = None


class Layout(Struct, frozen=True):
    """Slot sizes in bytes; each ring has two slots, but those of `SINGLE` have one, and so have large constants, and
    sums of products that take more than half of the accumulator.

    ``weights`` feed the array's B operand, and so do ``values``: those of attention beside its keys, where they have a
    ring of their own, in which every other tile of products that have several along their depth lies, too. ``moving``
    feed its A operand, ``vector`` and ``second`` the vector unit's first and second, ``results`` the store unit,
    ``probabilities`` go from vector unit to array, ``constants`` hold the
    vector unit's parameters. ``chained`` and ``gates`` go from one of its functions to the next, as first and second
    operand. ``partial`` and ``context`` lie in the accumulator memory. Of an array that takes rows column by column,
    ``queries`` are those of attention when the vector unit has transposed them, and ``powers`` what it transposes into
    ``probabilities``.
    """

    weights: int
    moving: int
    vector: int
    results: int
    probabilities: int
    constants: int
    partial: int
    context: int
    second: int = 0
    chained: int = 0
    gates: int = 0
    queries: int = 0
    powers: int = 0
    values: int = 0


class Undivided(Struct, frozen=True):
    """Buffers that are divided as a task's tiles need it, where whole banks of every kind of ring have room for that.

    ``least`` are bytes of a slot of every ring that its smallest tiles take.
    """

    tile: NpuTile
    least: tuple[tuple[str, int], ...]
    values: int = 0

    @property
    def weights(self) -> int:
        """Most bytes of a slot of the second operand."""
        return _room_for(self.tile, "weights", dict(self.least)) // SLOTS

    @property
    def moving(self) -> int:
        """The same of the first operand."""
        return room_for_rows(self.tile, dict(self.least)) // SLOTS

    @property
    def partial(self) -> int:
        """The same of sums, which may have one slot."""
        return sums_room(self.tile)

    def fits(self, needs: Mapping[str, Any]) -> Any:
        """Where what tiles need of a slot of each ring is there, many at once."""
        return have_room(self.tile, dict(self.least), needs)

    def moving_beside(self, needs: Mapping[str, Any]) -> Any:
        """Most bytes of a slot of the first operand beside what tiles need of all other rings, many at once."""
        banks = _Banks.of(self.tile)
        left = banks.banks - _banks_taken(self.tile, dict(self.least), needs, without="moving")
        return np.maximum(left * banks.size - banks.rest, 0) // SLOTS // banks.grain * banks.grain


Room = Layout | Undivided
"""Where a task's tiles have room."""


def slots_of(tile: NpuTile, ring: str, size: int) -> int:
    """Slots of a ring, by its name in `Layout`, whose slots are of this size."""
    if ring == "partial":
        return 1 if SLOTS * size > sums_room(tile) else SLOTS
    large = ring == "constants" and LARGE * size > tile.scratchpad.capacity
    return 1 if ring in SINGLE or large else SLOTS


def sums_taken(tile: NpuTile, partial: int, context: int) -> int:
    """Bytes of the accumulator that slots of these sizes take; beside those of attention sums have two slots."""
    return (SLOTS if context else slots_of(tile, "partial", partial)) * partial + SLOTS * context


def most_indices(tile: NpuTile) -> int:
    """Indices of rows to be gathered that are loaded at a time, at most."""
    return max(min(MOST_INDICES, tile.scratchpad.capacity // (INDEX_SHARE * INDEX_BYTES)), 1)


def index_bytes(tile: NpuTile) -> int:
    """Bytes at the end of the results that indices take while rows are gathered.

    The vector unit writes them line by line, and they are read one by one, so no beat of the DMA begins there.
    """
    lanes = tile.vector.lanes
    return padded(INDEX_BYTES * most_indices(tile), max(GRAIN, lanes if is_power(lanes) else 1))


def grain_of(tile: NpuTile) -> int:
    """Bytes that slots are multiples of: a line of a scratchpad bank, so that no two slots share one."""
    return max(GRAIN, next_power(bank_line(tile)))


def bank_bytes(tile: NpuTile) -> int:
    """Bytes of a bank of the scratchpad."""
    return tile.scratchpad.capacity // tile.scratchpad.banks


class _Banks(NamedTuple):
    """Banks of a scratchpad: how many, bytes of each, and of the lines that rings begin at.

    ``rest`` are bytes that rings may lose where they begin at a line: banks of odd sizes begin within one.
    """

    banks: int
    size: int
    grain: int
    rest: int

    @classmethod
    def of(cls, tile: NpuTile) -> _Banks:
        size, grain = bank_bytes(tile), grain_of(tile)
        return cls(tile.scratchpad.banks, size, grain, grain - 1 if size % grain else 0)

    def holding(self, size: int) -> int:
        """Banks that rings of so many bytes take, one at least."""
        return max(-(-(size + self.rest) // self.size), 1)


def layouts(
    tile: NpuTile,
    constant_bytes: Iterable[int],
    least: Mapping[str, int],
    divisions: Iterable[tuple[int, ...]] | None = None,
    contexts: Iterable[int] = CONTEXT_SHARES[:1],
) -> list[Layout]:
    """Divisions of the tile's memories to try, for each size of the constants; empty when not even those fit.

    Parameters
    ----------
    tile
        With scratchpad and accumulator.
    constant_bytes
        Sizes of what the vector unit's functions need, to choose from.
    least
        Bytes that slots must have at least, by ring; of those of `OPTIONAL` and of ``context`` only those there is a
        use for.
    divisions
        Shares of the scratchpad in percent, as those of `SHARES`, which are meant where nothing is given.
    contexts
        Quarters of the accumulator for ``context``, where there is a use for it.
    """
    banks = _Banks.of(tile)
    grain, line = banks.grain, sums_pitch(tile.array)
    sums = sums_lines(tile) // SLOTS * line
    if least.get("partial", 0) > sums and "context" not in least:  # one slot
        sums = sums_room(tile)
    summed = [_floor(sums * part // 4, line) for part in contexts] if "context" in least else [0]
    made: dict[Layout, None] = {}
    for size in sorted(set(constant_bytes)):
        needs = {ring: padded(need, grain) for ring, need in least.items()} | {"constants": padded(size, grain)}
        for shares in SHARES if divisions is None else divisions:
            wanted = _wanted(shares, needs)
            slots = _banked(tile, banks, wanted, needs) or _by_bytes(tile, wanted, needs, grain)
            if not slots or any(slots[ring] <= 0 for ring in wanted):
                continue
            for context in summed:
                if sums > context:
                    rings = dict.fromkeys(OPTIONAL, 0) | slots
                    made[Layout(**rings, partial=sums - context, context=context)] = None
    return list(made)


def _wanted(shares: tuple[int, ...], needed: Collection[str]) -> dict[str, int]:
    """Parts of the scratchpad by ring, constants left out; what is computed in several steps is as large as results."""
    weights, moving, vector, results, probabilities = shares
    every = {"weights": weights, "moving": moving, "vector": vector, "second": results, "results": results}
    every |= {"probabilities": probabilities, "chained": results // SLOTS, "gates": results // SLOTS}
    every |= {"queries": probabilities // SLOTS, "powers": probabilities}
    return {ring: share for ring, share in every.items() if ring in needed or ring not in OPTIONAL}


def _banked(tile: NpuTile, own: _Banks, wanted: Mapping[str, int], least: Mapping[str, int]) -> dict[str, int]:
    """Slots of rings that have banks of their own; nothing where there are too few banks."""
    fixed = [ring for ring in FIXED if ring in least]
    kinds = [[ring for ring in rings if ring in wanted or ring in fixed] for rings in BANKED]
    kinds = [rings for rings in kinds if rings]
    taken = [_bytes(tile, rings, least) for rings in kinds]
    shares = [sum(wanted.get(ring, 0) for ring in rings) for rings in kinds]
    banks = _apportioned(own.banks, shares, [own.holding(size) for size in taken])
    if not banks:
        return {}
    slots = {ring: least[ring] for ring in fixed}
    for rings, count in zip(kinds, banks, strict=True):
        free = count * own.size - own.rest - _bytes(tile, [ring for ring in rings if ring in fixed], least)
        slots |= {ring: _floor(free // slots_of(tile, ring, 0), own.grain) for ring in rings if ring not in fixed}
    return slots


def room_for_rows(tile: NpuTile, least: Mapping[str, int]) -> int:
    """Bytes of the banks that the first operand of products may have where every other kind of ring has its least."""
    return _room_for(tile, "moving", least)


def _room_for(tile: NpuTile, ring: str, least: Mapping[str, int]) -> int:
    """Bytes of the banks of a kind of rings where every other kind has its least."""
    needed = set(least) | set(_wanted(SHARES[0], least))
    others = [[each for each in rings if each in needed] for rings in BANKED if ring not in rings]
    banks = _Banks.of(tile)
    taken = sum(banks.holding(_bytes(tile, rings, least)) for rings in others if rings)
    return max((banks.banks - taken) * banks.size - banks.rest, 0)


def have_room(tile: NpuTile, least: Mapping[str, int], needs: Mapping[str, Any]) -> Any:
    """Where slots of as many bytes as tiles need fit, many at once, while all other rings have their least."""
    taken, sums = _banks_taken(tile, least, needs), sums_lines(tile) // SLOTS * sums_pitch(tile.array)
    room = sums - sums // 4 if "context" in least else sums_room(tile)
    return (taken <= tile.scratchpad.banks) & (np.maximum(needs.get("partial", 0), least.get("partial", 0)) <= room)


def _banks_taken(tile: NpuTile, least: Mapping[str, int], needs: Mapping[str, Any], without: str = "") -> Any:
    """Banks of rings with as many bytes a slot as tiles need, or their least; ``without`` those of one ring's kind."""
    banks, taken = _Banks.of(tile), np.zeros((), np.int64)
    sizes = {ring: np.maximum(needs.get(ring, 0), least.get(ring, 0)) for ring in {*least, *needs}}
    for rings in BANKED:
        if without in rings:
            continue
        some: Any = 0
        for ring in rings:
            if ring in sizes:
                large = ring == "constants" and LARGE * sizes[ring] > tile.scratchpad.capacity
                slots = np.where(large, 1, slots_of(tile, ring, 0))
                some = some + slots * padded(sizes[ring], banks.grain)
        taken = taken + np.where(some > 0, np.maximum(-(-(some + banks.rest) // banks.size), 1), 0)
    return taken


def _bytes(tile: NpuTile, rings: Iterable[str], sizes: Mapping[str, int]) -> int:
    """Bytes that rings take whose slots have these sizes."""
    return sum(slots_of(tile, ring, sizes.get(ring, 0)) * sizes.get(ring, 0) for ring in rings)


def _apportioned(banks: int, shares: list[int], least: list[int]) -> list[int]:
    """Banks for each share, by its size and at least so many; nothing where there are fewer than that."""
    left = banks - sum(least)
    if left < 0:
        return []
    given = list(least)
    for _ in range(left):  # to the one that has the least for its share
        place = max(range(len(shares)), key=lambda n: (shares[n] / given[n], -n))
        given[place] += 1
    return given


def _by_bytes(tile: NpuTile, wanted: Mapping[str, int], least: Mapping[str, int], grain: int) -> dict[str, int]:
    """Slots of rings that lie back to back, whatever the banks: what each needs, the rest by shares."""
    fixed = [ring for ring in FIXED if ring in least]
    free = tile.scratchpad.capacity - _bytes(tile, [*fixed, *wanted], least)
    if free < 0:
        return {}
    total = sum(wanted.values())
    slots = {
        ring: _floor(free * share // (total * slots_of(tile, ring, 0)), grain) + least.get(ring, 0)
        for ring, share in wanted.items()
    }
    return {ring: least[ring] for ring in fixed} | slots


def _floor(value: int, unit: int) -> int:
    return value // unit * unit


def bases(tile: NpuTile, layout: Layout) -> dict[str, int]:
    """Where each ring begins in its memory: at a bank of its kind, or back to back where there are too few banks."""
    return dict(_bases(tile, layout))


@lru_cache(maxsize=1 << 12)
def _bases(tile: NpuTile, layout: Layout) -> dict[str, int]:
    return _placed(tile, layout, bank_bytes(tile) if banks_of(tile, layout) <= tile.scratchpad.banks else 1)


def banks_of(tile: NpuTile, layout: Layout) -> int:
    """Banks that the rings take when each kind of them has its own."""
    sizes, banks = asdict(layout), _Banks.of(tile)
    return sum(banks.holding(size) for rings in BANKED if (size := _bytes(tile, rings, sizes)))


def _placed(tile: NpuTile, layout: Layout, bank: int) -> dict[str, int]:
    places, end = {}, 0
    for rings in BANKED:
        base = padded(-(-end // bank) * bank, grain_of(tile)) if bank > 1 else end
        for ring in rings:
            places[ring] = base
            base += slots_of(tile, ring, size := getattr(layout, ring)) * size
            end = base if size else end
    base = 0
    for ring in ACCUMULATED:
        places[ring] = base
        base += slots_of(tile, ring, getattr(layout, ring)) * getattr(layout, ring)
    return places


class ChannelRings(Struct, frozen=True):
    """Rings of attention in a channel of memory that computes, each in a bank of its own (`banked`).

    ``operands`` go from the DMA to the channel, ``powers`` from the vector unit to it, ``scores`` the other way, and
    ``results`` to the DMA. Whoever fills a slot with scores has waited, by then, for what was made of those before.
    """

    operands: Ring
    powers: Ring
    scores: Ring
    results: Ring


class Rings(Struct, frozen=True):
    """The rings of a program.

    ``indices`` lie at the end of the results: what the DMA reads the vector unit fills. They are there while rows are
    gathered, whose results are as much smaller, and what was stored before is stored by then. Where the array takes
    rows as they are, ``queries`` are ``moving``, and ``powers`` are ``probabilities``. ``values`` are ``weights`` where
    they have no ring of their own.
    """

    weights: Ring
    moving: Ring
    vector: Ring
    second: Ring
    results: Ring
    probabilities: Ring
    constants: Ring
    partial: Ring
    context: Ring
    indices: Ring
    chained: Region
    gates: Region
    queries: Ring
    powers: Ring
    values: Ring
    channel: ChannelRings | None = None


_DECLARED = tuple(each for each in Rings.__struct_fields__ if each not in TURNED and each not in ("values", "channel"))


REPLACED = ("probabilities", "context")
"""Rings of attention that the array computes, which there is none of where a channel does; others stand for them."""


def declare_rings(builder: ProgramBuilder, tile: NpuTile, layout: Layout, *, banked: bool = False) -> Rings:
    """Declare the rings of ``layout``; scratchpad and accumulator each start at local address 0.

    Where attention is ``banked`` those of the channel lie behind the banks of the tile, which are what others have.
    """
    places = bases(tile, layout)
    places["indices"] = places["results"] + SLOTS * layout.results - index_bytes(tile)
    made = {
        name: Region(places[name])
        if name in SINGLE
        else builder.ring(name, places[name], index_bytes(tile), 1)
        if name == "indices"
        else builder.ring(name, places[name], size := getattr(layout, name), slots_of(tile, name, size))
        for name in _DECLARED
        if not (banked and name in REPLACED)
    }
    if banked:
        made |= {"probabilities": made["moving"], "context": made["partial"]}
    for name, stands in TURNED.items():
        made[name] = made[stands]
    if layout.powers:
        made["queries"] = builder.ring("queries", places["queries"], layout.queries)
        made["powers"] = builder.slots("powers", places["powers"], layout.powers)
    made["values"] = builder.ring("values", places["values"], layout.values) if layout.values else made["weights"]
    channel = _declare_channel(builder, tile) if banked else None
    return Rings(**made, channel=channel)  # type: ignore[arg-type]


def divided_anew(builder: ProgramBuilder, tile: NpuTile, rings: Rings, layout: Layout) -> Rings:
    """The rings of a program where the buffers are divided otherwise, for some tasks: under the same semaphores.

    Which slots have their turn goes on from one division to the next, and all of them are free in between. What has no
    ring in the program's own division gets one.

    Raises
    ------
    NotDivided
        Where a ring has one slot in one of the divisions, and two in the other; sums may have one instead of two.
    """
    places, found = bases(tile, layout), dict[str, Ring | Region]()
    places["indices"] = places["results"] + SLOTS * layout.results - index_bytes(tile)
    for name in _DECLARED:
        own = getattr(rings, name)
        if isinstance(own, Region):
            found[name] = Region(places[name])
            continue
        size = index_bytes(tile) if name == "indices" else getattr(layout, name)
        slots = 1 if name == "indices" else slots_of(tile, name, size)
        if name == "partial" and slots < own.slots:
            found[name] = own.as_one(places[name])
            continue
        if slots != own.slots:
            raise NotDivided(f"the ring of {name} has {own.slots} slot{'s' * (own.slots > 1)} elsewhere, here {slots}")
        found[name] = own.moved(places[name], size)
    for name, stands in TURNED.items():
        found[name] = found[stands]
    if layout.powers:
        if rings.queries is rings.moving:
            raise NotDivided("there are no rings of queries and powers elsewhere")
        found["queries"] = rings.queries.moved(places["queries"], layout.queries)
        found["powers"] = rings.powers.moved(places["powers"], layout.powers)
    if not layout.values:
        found["values"] = found["weights"]
    elif rings.values is rings.weights:
        found["values"] = builder.ring("values", places["values"], layout.values)
    else:
        found["values"] = rings.values.moved(places["values"], layout.values)
    return Rings(**found)  # type: ignore[arg-type]


def _declare_channel(builder: ProgramBuilder, tile: NpuTile) -> ChannelRings:
    bank = bank_bytes(tile)
    places = [tile.scratchpad.capacity + number * bank for number in range(4)]
    rings = [
        builder.ring(name, place, bank // SLOTS)
        for name, place in zip(("operands", "powers", "columns"), (places[0], places[1], places[3]), strict=True)
    ]
    scores = builder.half_ring("scores", places[2], bank // SLOTS)
    return ChannelRings(rings[0], rings[1], scores, rings[2])


__all__ = [
    "ACCUMULATED",
    "BANKED",
    "LARGE",
    "ChannelRings",
    "Layout",
    "NotDivided",
    "Rings",
    "Room",
    "SINGLE",
    "Undivided",
    "bases",
    "banks_of",
    "declare_rings",
    "divided_anew",
    "grain_of",
    "have_room",
    "index_bytes",
    "layouts",
    "room_for_rows",
    "most_indices",
    "slots_of",
    "sums_taken",
]
