"""Choice of the tiles of element-wise and row-wise operators: candidates are costed with the simulator's durations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from msgspec import Struct

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError
from siliconloom.arch.layout import INDEX_BYTES, padded
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.timing import GATHER_START, LOAD_WRITE, QUEUE_POP, STORE_WRITE, TRANSFER_START
from siliconloom.arch.vector import ROW_LIMIT, VectorFunction, vector_cost
from siliconloom.mapper.chip.cache_layout import CacheLayout
from siliconloom.mapper.chip.layout import Layout, most_indices
from siliconloom.mapper.chip.objective import ESTIMATED, Objective
from siliconloom.mapper.chip.rings import SLOTS
from siliconloom.mapper.chip.transfers import LONGEST_ROW, lowest, pieces
from siliconloom.mapper.chip.vector_shape import VectorLayout, VectorShape, tile_counts
from siliconloom.sim.timing.units import access_cycles, fetch_cycles, moved_bytes, vector_cycles


class VectorTiling(Struct, frozen=True):
    """Rows and columns per tile, what they move and what they should take."""

    rows: int
    cols: int
    read_bytes: int
    write_bytes: int
    memory_cycles: int
    vector_cycles: int
    cycles: int

    @property
    def array_cycles(self) -> int:
        """Cycles that the array works: none, as it is of tilings that use it."""
        return 0


def choose_vector_tilings(
    chip: Chip, layouts: Sequence[Layout], shape: VectorShape, objective: Objective = ESTIMATED
) -> list[list[VectorTiling]]:
    """For each layout the two cheapest tiles, the best first: few pay for latencies less often, several overlap."""
    costs: dict[tuple[int, int], VectorTiling] = {}
    found = []
    assert isinstance(chip.tile, NpuTile)
    made, cache = VectorLayout(chip.tile, shape), _cache_of(chip, shape)
    tall, flat = _sizes(chip.tile, shape)
    rings = dict.fromkeys(ring for each in (tall, flat) for needs in each.values() for ring in needs)
    alike: dict[tuple[int, ...], list[VectorTiling]] = {}
    for layout in layouts:
        room = tuple(getattr(layout, ring) for ring in rings)
        if room not in alike:
            sizes = [size for each in (tall, flat) for size in _fitting(layout, each)[:MOST]]
            for size in sizes:
                if size not in costs:
                    costs[size] = _cost(chip, made, cache, *size)
            alike[room] = sorted((costs[size] for size in sizes), key=objective.of_tiling)[:2]
        found.append(alike[room])
    return found


def vector_tiling(chip: Chip, shape: VectorShape, rows: int, cols: int) -> VectorTiling:
    """A tiling of these sizes with what it should take."""
    assert isinstance(chip.tile, NpuTile)
    return _cost(chip, VectorLayout(chip.tile, shape), _cache_of(chip, shape), rows, cols)


def _cache_of(chip: Chip, shape: VectorShape) -> CacheLayout | None:
    """Where results go that fill a cache, if they do."""
    assert isinstance(chip.tile, NpuTile)
    return CacheLayout(chip.tile, chip.nearest, shape.cached) if shape.cached is not None else None


Sizes = dict[tuple[int, int], dict[str, int]]
"""Rows and columns of tiles, and what these take of a slot of each ring."""


def _fitting(layout: Layout, sizes: Sizes) -> list[tuple[int, int]]:
    return [size for size, needs in sizes.items() if all(need <= getattr(layout, ring) for ring, need in needs.items())]


@lru_cache(maxsize=512)
def _sizes(tile: NpuTile, shape: VectorShape) -> tuple[Sizes, Sizes]:
    """Tiles to try, of whole rows, and of one row that is cut when the function allows it; the largest first."""
    made, by_row = VectorLayout(tile, shape), vector_cost(shape.function).by_row
    lanes, bus = made.lanes, tile.dma.bytes_per_cycle
    several = max(1, bus // lowest(made.row))  # so many rows begin where a long row of a transfer may
    rows = {min(shape.rows, -(-r // unit) * unit) for r in _halvings(shape.rows) for unit in (1, several)}
    if shape.transposes:
        rows = {min(shape.tokens, made.block)}
    elif made.run > 1:
        rows = {min(shape.tokens, made.run)}
    fine = lanes if shape.table else min(lanes, MOST_FINE)  # a table lies line by line
    cols = {shape.cols} if by_row else {min(shape.cols, padded(c, fine)) for c in _halvings(shape.cols)}
    if shape.cached is not None:
        width = min(shape.cached.width, shape.cols)
        rows = {min(r, shape.tokens) for r in rows}
        cols = {heads * width for heads in _halvings(shape.heads)} | set(_halvings(width))
        units = (made.block, made.group) if shape.cached.scaled else (made.block,)
        cols |= {padded(part, unit) for part in _halvings(width) for unit in units}
        cols = {
            c
            for c in cols
            if c <= shape.cols and shape.divides(c, made.block, made.group) and made.stores(c) <= MOST_STORES
        }
    cols = {c for c in cols if shape.dtype.size(c) <= LONGEST_ROW}
    if by_row:
        rows = {min(r, ROW_LIMIT) for r in rows}
    if shape.recurrent is not None:
        rows = shape.recurrent.candidates(shape.rows, rows)
    if shape.gathers:
        rows = {min(r, most_indices(tile)) for r in rows}
        cols = {c for c in cols if c == shape.cols or not shape.dtype.size(c) % bus}
    if not cols:
        return {}, {}
    most, least = max(cols), min(rows)
    tall = {(r, most): made.needs(r, most) for r in sorted(rows, reverse=True)}
    return tall, {(least, c): made.needs(least, c) for c in sorted(cols, reverse=True) if c < most}


MOST_FINE = 64
"""Columns that tiles are multiples of, where there are more lanes than that."""
MOST_STORES = 8
"""Transfers that store one tile of what goes into a cache: each is an instruction of its own."""
MOST = 12
"""Heights, and widths of single rows, that are costed for a layout."""


def _halvings(total: int) -> list[int]:
    """A size and what its halves, quarters and so on round up to, down to a single one."""
    return sorted({-(-total // (1 << n)) for n in range(total.bit_length() + 1)}, reverse=True)


def _cost(chip: Chip, made: VectorLayout, cache: CacheLayout | None, rows: int, cols: int) -> VectorTiling:
    """What a tile size moves and takes: each unit's own cycles, and how the buffers' turn-around paces them."""
    tile, shape = chip.tile, made.shape
    assert isinstance(tile, NpuTile)
    memory, size, unit = chip.nearest, shape.dtype.size, tile.vector
    function = VectorFunction.COPY if shape.gathers else shape.function
    within = size(cols) if cols < shape.cols else 0
    places = (rows * made.row if rows < shape.rows else 0) | within
    source_places = (rows * made.source_row if rows < shape.rows else 0) | within
    second_places = (rows * made.second_row if rows < shape.rows else 0) | shape.seconds * within

    def transfer(lines: int, width: int, pitch: int, local: int, places: int, fills: bool = False) -> tuple[int, int]:
        made = pieces(tile.dma.bytes_per_cycle, lines, width, pitch, local, places, fills=fills)
        shapes = [(piece.fields["m"], piece.fields["n"]) for piece in made]
        held = sum(access_cycles(chip, memory, *one) for one in shapes)
        return sum(moved_bytes(memory, *one) for one in shapes), held

    read = written = port = vector = tiles = 0
    stores = shape.outputs
    for tall, many in shape.heights(made.run, rows):
        for wide, count in tile_counts(shape.cols, cols):
            times, local = many * count, made.local(wide)
            beside = shape.inputs if shape.weighs else 1
            apart = source_places | (local if shape.weighs else 0)
            fills, filled = made.all_of_row(wide), made.stores_fill(wide)
            operand = transfer(tall, size(wide), made.source_row, beside * local, apart, fills)
            weights = (0, 0)
            if shape.weighs:
                at = rows * made.weight_row if rows < shape.rows else 0
                weights = transfer(tall, size(shape.counted), made.weight_row, made.local(shape.counted), at)
            second = made.second_row
            table = transfer(tall, made.second_width(wide), second, shape.seconds * local, second_places, fills)
            others = shape.passes
            result = operand if fills == filled else transfer(tall, size(wide), made.row, local, places, filled)
            if shape.gathers:
                moved = tall, size(wide)
                operand = moved_bytes(memory, *moved), GATHER_START + access_cycles(chip, memory, *moved)
            if made.source_row != made.row:
                result = transfer(tall, size(wide), made.row, local, places, filled)
            if cache is not None:
                stored = cache.rows(tall, *shape.heads_of(wide))
                moves = [transfer(r.rows, r.width, r.pitch, r.local_pitch, r.offset | r.local) for r in stored]
                result = sum(moved for moved, _ in moves), sum(held for _, held in moves)
                stores = max(stores, len(moves))
            elif shape.transposes:
                result = transfer(wide, size(tall), made.line, made.local(tall), wide * made.line)
            elif shape.weighs:
                result = transfer(tall, size(wide), made.row, local, places, filled)
            elif shape.result(wide) != wide:
                narrow = shape.result(wide)
                at = rows * made.result_row if rows < shape.rows else 0
                result = transfer(tall, size(narrow), made.result_row, made.local(narrow), at, filled)
            further = left = (0, 0)
            if shape.recurrent is not None:
                further, left = _further(made, transfer, tall, wide, places)
            tiles += times
            read += times * (
                shape.firsts * operand[0] + (others * table[0] if shape.seconds else 0) + weights[0] + further[0]
            )
            written += times * (shape.outputs * result[0] + left[0])
            port += times * (
                shape.firsts * operand[1]
                + (others * table[1] if shape.seconds else 0)
                + weights[1]
                + shape.outputs * result[1]
                + further[1]
                + left[1]
            )
            columns = made.copied(wide) if shape.gathers else wide
            each = vector_cycles(unit, function, tall, columns, shape.size, tile.parameter_format)
            vector += times * shape.passes * each
    operands = shape.inputs + shape.table + shape.weighs
    one = port // (tiles * (operands + shape.outputs))
    load, compute, store = one * operands, vector // tiles, one * shape.outputs
    latency = chip.cycles(memory.latency)
    arrive = latency + QUEUE_POP + TRANSFER_START + LOAD_WRITE
    away = latency + QUEUE_POP + TRANSFER_START + STORE_WRITE
    fetch, _ = fetch_cycles(chip)
    issued = operands + stores + shape.passes
    sequencer = tiles * (issued * tile.sequencer.issue_cycles + tile.sequencer.loop_cycles)
    constants = 0
    if shape.constants:
        constants = access_cycles(chip, memory, 1, shape.constants)
        read += moved_bytes(memory, 1, shape.constants)
    if shape.gathers:
        for count, many in tile_counts(shape.rows, made.indexed(rows)):
            width = INDEX_BYTES * count
            read += many * moved_bytes(memory, 1, width)
            copied = vector_cycles(unit, function, 1, width)
            constants += many * (access_cycles(chip, memory, 1, width) + arrive + copied)
    waits = max(-(-tiles // SLOTS) - 1, 0)
    paces = (
        port + arrive + compute + away,
        load
        + arrive
        + max(vector, compute + waits * (load + arrive + compute + store))  # a store may go before a load
        + store
        + away,
        sequencer + arrive + compute + away,
    )
    return VectorTiling(rows, cols, read, written, port, vector, fetch + constants + max(paces))


Transfers = tuple[int, int]
"""Bytes and cycles of some transfers."""


def _further(
    made: VectorLayout, transfer: Callable[[int, int, int, int, int], Transfers], tall: int, wide: int, places: int
) -> tuple[Transfers, Transfers]:
    """What states, parameters and operands that columns share take of a tile's loads, and of its stores."""
    own, size = made.shape.recurrent, made.shape.dtype.size
    assert own is not None
    states, local = own.states_of(tall), made.local(wide)
    state = transfer(states, size(wide), made.row, local, places) if states else (0, 0)
    loads = [state]
    if own.given:
        loads.append(transfer(own.given, size(wide), made.row, local, places))
    if own.beside:
        loads.append(transfer(tall, size(own.beside), made.beside_row, made.local(own.beside), tall * made.beside_row))
    return (sum(moved for moved, _ in loads), sum(cycles for _, cycles in loads)), state


def too_small(chip: Chip, what: str, group: int = 0) -> LoomError:
    """Make the error for work that fits no division of the tile's buffers; tiles have whole ``group``s of weights."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    return LoomError(
        f"{chip.name}: tile.scratchpad.capacity ({tile.scratchpad.capacity} B) and tile.accumulator.capacity "
        f"({tile.accumulator.capacity} B) cannot hold two tiles of each operand of {what}; enlarge them"
        + f", or take groups of fewer than {group} rows (workload.weight_group)"
        * (group > tile.array.rows)
    )
