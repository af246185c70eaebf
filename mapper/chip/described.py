"""Mappings as descriptions: what is decided about a workload on a chip, read from YAML (`written` writes it).

What is read is checked like any description: every buffer holds what the tiles need, no tile is larger than the part
that it is a tile of, and every operator is there once, so that no iteration is left out or done twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from siliconloom.arch.description import Chip
from siliconloom.arch.document import Document
from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.arch.layout import bank_line, next_power, sums_room
from siliconloom.arch.mapping import DescribedCut, DescribedLayout, DescribedMapping, DescribedProduct, DescribedTask
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import COLUMN_LIMIT, ROW_LIMIT, vector_cost
from siliconloom.mapper.chip import mapping as search
from siliconloom.mapper.chip import program
from siliconloom.mapper.chip.ahead import IN_TURN, Ahead, NotAhead
from siliconloom.mapper.chip.attention_cost import AttentionTiling, attention_needs, attention_tiling, carries, key_unit
from siliconloom.mapper.chip.attention_layout import AttentionLayout, may_stay
from siliconloom.mapper.chip.attention_places import most_heads, query_parts
from siliconloom.mapper.chip.chosen import Chosen, Part, Tiling
from siliconloom.mapper.chip.chunks import longest_transfer
from siliconloom.mapper.chip.gemm_layout import GemmLayout, GemmShape, smaller_blocks
from siliconloom.mapper.chip.gemm_moves import GemmMemories
from siliconloom.mapper.chip.layout import ACCUMULATED, Layout, NotDivided, banks_of, slots_of, sums_taken
from siliconloom.mapper.chip.memory import Key, MemoryMap
from siliconloom.mapper.chip.operands import Turned
from siliconloom.mapper.chip.orientation import oriented
from siliconloom.mapper.chip.placement import Counts, Demand, Placement, assign_units
from siliconloom.mapper.chip.sharing import CUT_DIMENSIONS, Cut, Share, part_of
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tile_sizes import grains, is_part
from siliconloom.mapper.chip.tiling import GemmTiling, gemm_tiling
from siliconloom.mapper.chip.transfers import LONGEST_ROW
from siliconloom.mapper.chip.vector_cost import VectorTiling, vector_tiling
from siliconloom.mapper.chip.vector_shape import VectorLayout, vector_shape
from siliconloom.workloads import Attention, Gemm, Graph, Operator, Vector


def mapping_of(document: Document, chip: Chip, graph: Graph) -> program.Mapping:
    """The mapping of ``graph`` to ``chip`` that a document describes.

    Parameters
    ----------
    document
        Of the kind ``mapping``.
    chip, graph
        As `map_workload` takes them, the graph in a number format of the chip.

    Raises
    ------
    DescriptionError
        Where the description breaks a rule, names what is not there, or takes more than a buffer has.
    LoomError
        For chips without buffers, and workloads that are larger than the memory.
    """
    described = document.validate(DescribedMapping)
    if not isinstance(chip.tile, NpuTile):
        raise LoomError(f"{chip.name}: a mapping is of a chip with an npu tile (its tile is of kind {chip.tile.kind})")
    blocks = _blocks(document, described, chip.tile)
    layout = _layout(document, described, described.layout, ("layout",), chip)
    reader = _Reader(document, described, chip, graph, layout)
    fused = {task.operator: len(task.fused) for task in described.tasks if task.fused is not None}
    parts = program.blocks_of(chip, graph, None, fused, blocks)
    reader.check_operators(parts)
    placement = None
    if len(chip.memory) > 1:
        if described.placement is None:
            reason = f"{chip.name} has several memory levels ({', '.join(chip.memory)}): the key 'placement' is missing"
            raise document.error(reason)
        firsts = [reader.chosen(part) for part in parts]
        placement = reader.placement(search.demands(chip, graph, parts, (reader.layout, firsts)))
        parts = program.blocks_of(chip, graph, placement, fused, blocks)
    elif described.placement is not None:
        raise document.error(f"{chip.name} has one memory level at most: nothing is placed", ("placement",))
    made = program.Mapping(parts, (reader.layout, [reader.chosen(part) for part in parts]), placement)
    reader.check_repetitions(parts)
    _check_use_of_values(document, chip.tile, made)
    reader.check_lowering(made)
    return made


def is_joined(document: Document) -> bool:
    """Whether a mapping is of tiles that work side by side as one."""
    return document.validate(DescribedMapping).joined


def refuse_joined(document: Document, chip: Chip) -> None:
    """Raise `DescriptionError` for a mapping of joined tiles on a chip whose tiles do not join."""
    if is_joined(document) and not chip.tiles_join:
        raise document.error(f"the tiles of {chip.name} do not join (tiles_join)", ("joined",), value=True)


def mapping_digest(document: Document) -> str:
    """SHA-256 of what a description of a mapping says, however it is written."""
    return hashlib.sha256(document.validate(DescribedMapping).model_dump_json().encode()).hexdigest()


def _layout(
    document: Document, described: DescribedMapping, given: DescribedLayout, at: tuple[str | int, ...], chip: Chip
) -> Layout:
    """The division of the buffers that a description has at a place."""
    tile, name = chip.tile, chip.name
    assert isinstance(tile, NpuTile)
    layout = _sizes_of(given)
    sizes: dict[str, int] = asdict(layout)
    if layout.values and oriented(tile).array.dataflow == "output_stationary":
        rule = "values take turns with keys on an array that keeps its sums: leave out layout.values"
        raise document.error(rule, (*at, "values"))
    scratchpad = [ring for ring in sizes if ring not in ACCUMULATED]
    for key, capacity, rings, taken in (
        (
            "tile.scratchpad",
            tile.scratchpad.capacity,
            scratchpad,
            sum(slots_of(tile, ring, sizes[ring]) * sizes[ring] for ring in scratchpad),
        ),
        ("tile.accumulator", sums_room(tile), ACCUMULATED, sums_taken(tile, layout.partial, layout.context)),
    ):
        if taken > capacity:
            raise document.error(
                f"the slots of {', '.join(rings)} take {taken:,} B of {name}'s {key}, which has {capacity:,} B: "
                f"{taken - capacity:,} B too much",
                at,
            )
    _check_banks(document, described, tile, name, layout, at)
    return layout


def _blocks(document: Document, described: DescribedMapping, tile: NpuTile) -> dict[str, int]:
    """Rows of a block of products that have fewer than the array has rows."""
    array, found = oriented(tile).array, dict[str, int]()
    for index, task in enumerate(described.tasks):
        block, rule = task.gemm.block if task.gemm is not None else None, ""
        if block is None:
            continue
        if array.dataflow != "output_stationary":
            rule = "rows lie in blocks for an array that keeps its sums: leave out block"
        elif block not in smaller_blocks(array):
            some = ", ".join(map(str, smaller_blocks(array))) or "there is none"
            rule = f"a block has fewer rows than the array, a power of two ({some}): leave out block for {array.rows}"
        elif found.setdefault(task.operator, block) != block:
            rule = f"blocks of {task.operator} have {found[task.operator]} rows in an earlier repetition"
        if rule:
            raise document.error(rule, ("tasks", index, "gemm", "block"), value=block)
    return found


def _sizes_of(given: DescribedLayout) -> Layout:
    """The division of the buffers that a description gives."""
    return Layout(**{ring: int(size) for ring, size in dict(given).items()})


def _check_use_of_values(document: Document, tile: NpuTile, made: program.Mapping) -> None:
    """A ring of values is that of attention, or of products of which every other tile lies in it."""
    if made.choice[0].values and not program.uses_values(tile, made):
        rule = "no attention has values, and no product several tiles along k that fit: leave out layout.values"
        raise document.error(rule, ("layout", "values"))


def _check_banks(
    document: Document, described: DescribedMapping, tile: NpuTile, name: str, layout: Layout, at: tuple[str | int, ...]
) -> None:
    """A bank has rings of one kind, unless the mapping says that there are too few banks for that.

    A line of a bank has one slot, as one is written while the other is read.
    """
    taken, banks, line = banks_of(tile, layout), tile.scratchpad.banks, next_power(bank_line(tile))
    if described.banked and taken > banks:
        rule = (
            f"a bank has rings of one kind (one filler, one port that empties them): these take {taken} banks, "
            f"{name} has {banks} (tile.scratchpad.banks); with 'banked: false' they share banks, which no tile runs"
        )
        raise document.error(rule, at)
    if not described.banked and taken <= banks and at == ("layout",):
        raise document.error(f"the rings take {taken} of the {banks} banks of {name}: each has its own", ("banked",))
    for ring, size in asdict(layout).items():
        if described.banked and ring not in ACCUMULATED and slots_of(tile, ring, size) > 1 and size % line:
            rule = f"slots are whole lines of a bank, of {line} B each: of two one is written while the other is read"
            raise document.error(rule, (*at, ring), value=f"{size} B")


class _Reader(Struct):
    """A description in the reading."""

    document: Document
    described: DescribedMapping
    chip: Chip
    graph: Graph
    layout: Layout
    entries: dict[str, list[tuple[int, int, DescribedTask]]] = field(default_factory=dict)
    """By operator: repetition from which on it counts, its place in the list, and the entry; in order."""

    @property
    def tile(self) -> NpuTile:
        assert isinstance(self.chip.tile, NpuTile)
        return self.chip.tile

    def __post_init__(self) -> None:
        for index, task in enumerate(self.described.tasks):
            known = self.entries.setdefault(task.operator, [])
            if any(first == task.repetition for first, _, _ in known):
                rule = "is there already" + (f" for the repetition {task.repetition}" if task.repetition else "")
                raise self.document.error(rule, ("tasks", index, "operator"), value=task.operator)
            known.append((task.repetition, index, task))
            known.sort(key=lambda entry: entry[:2])

    def check_operators(self, parts: Sequence[Part]) -> None:
        """Every operator of the workload has an entry, every entry is one of these, and says rightly what is fused."""
        tasks = {task.operator.name: task for part in parts for task in part.tasks}
        joined = {v.name: name for name, task in tasks.items() for v in task.fused}
        for name, entries in self.entries.items():
            for _, index, entry in entries:
                if name not in tasks:
                    rule = f"is computed with {joined[name]} here" if name in joined else f"is not in {self.graph.name}"
                    near = None if name in joined else nearest_name(name, tasks)
                    raise self.document.error(rule, ("tasks", index, "operator"), value=name, nearest=near)
                task = tasks[name]
                possible = [v.name for v in task.fused]
                if entry.fused is not None and entry.fused != possible:
                    rule = (
                        f"can begin with {', '.join(possible)}, in this order"
                        if possible
                        else f"nothing can be computed on the results of {name}"
                    )
                    raise self.document.error(rule, ("tasks", index, "fused"), value=", ".join(entry.fused))
        for name in tasks:
            if name not in self.entries:
                raise self.document.error(f"there is no entry for the operator {name}", ("tasks",))

    def check_repetitions(self, parts: Sequence[Part]) -> None:
        """No entry begins where nothing does."""
        begins: dict[str, set[int]] = {}
        for part in parts:
            for task in part.tasks:
                begins.setdefault(task.operator.name, set()).add(part.first)
        for name, entries in self.entries.items():
            for first, index, _ in entries:
                if first not in begins[name]:
                    known = ", ".join(map(str, sorted(begins[name])))
                    rule = f"{name} can go on in another way at {known} only, where an object changes its memory level"
                    raise self.document.error(rule, ("tasks", index, "repetition"), value=first)

    def check_lowering(self, made: program.Mapping) -> None:
        """What is loaded ahead finds a free slot, and rings have as many slots in all divisions of the buffers."""
        if not any(each.ahead or each.divided for chosen in made.choice[1] for each in chosen.values()):
            return
        homes = None if made.placement is None else made.placement.homes
        try:
            memory = MemoryMap(self.chip, homes)
            program.lower_tasks(self.chip, self.graph, made.parts, made.choice, memory, draft=True)
        except NotAhead as error:
            entries = self.entries[error.operator]
            _, index, _ = [entry for entry in entries if entry[0] <= error.repetition][-1]
            raise self.document.error(str(error), ("tasks", index, "gemm", "ahead", error.ring)) from error
        except NotDivided as error:
            given = ((index, task.layout) for index, task in enumerate(self.described.tasks) if task.layout is not None)
            places = [index for index, layout in given if error.layout in (None, _sizes_of(layout))]
            raise self.document.error(str(error), ("tasks", places[0], "layout")) from error

    def chosen(self, part: Part) -> dict[str, Chosen]:
        """What is decided for every task of a part."""
        found = {}
        for task in part.tasks:
            name = task.operator.name
            before = [entry for entry in self.entries[name] if entry[0] <= part.first]
            if not before:
                _, index, entry = self.entries[name][0]
                rule = f"{name} has no entry for its first repetition"
                raise self.document.error(rule, ("tasks", index, "repetition"), value=entry.repetition)
            _, index, entry = before[-1]
            found[name] = self._in_own_division(part, task, index, entry)
        return found

    def _in_own_division(self, part: Part, task: Task, index: int, entry: DescribedTask) -> Chosen:
        """What is decided for a task, which may have buffers that are divided for itself."""
        common, divided = self.layout, None
        if entry.layout is not None:
            divided = _layout(self.document, self.described, entry.layout, ("tasks", index, "layout"), self.chip)
            self.layout = divided
        try:
            made = self._chosen(task, part.levels[task.operator.name], index, entry)
            ahead, chunk = self._ahead(part, task, index, entry), self._chunk(task, made, index, entry)
        finally:
            self.layout = common
        if divided is not None:
            at, rule = ("tasks", index, "layout"), ""
            if divided == common:
                rule = "is how the buffers are divided for all: leave it out"
            elif divided.values and not program.takes_values(self.tile, divided, task, made):
                at, rule = (*at, "values"), f"{task.operator.name} has no use for it: leave it out"  # type: ignore[assignment]
            if rule:
                raise self.document.error(rule, at)
        return replace(made, ahead=ahead, chunk=chunk, divided=divided)

    def _chunk(self, task: Task, made: Chosen, index: int, entry: DescribedTask) -> int:
        """The longest transfer of weights of a product, 0 where a tile is one."""
        if entry.gemm is None or entry.gemm.chunk is None:
            return 0
        part, size, rule = made.share.operator, entry.gemm.chunk, ""
        assert isinstance(part, Gemm)
        longest, bus = longest_transfer(self.chip, task, made), self.tile.dma.bytes_per_cycle
        if not part.weight:
            rule = f"{part.name} has no weights: what it multiplies is computed before"
        elif gemm_shape(part, task).compression is not None:
            rule = f"weights of {part.name} are compressed: what is expanded comes in one transfer"
        elif size % bus:
            rule = f"transfers are whole beats of {bus} B (tile.dma.bytes_per_cycle)"
        elif not longest:
            rule = f"weights of {part.name} come row by row, each of which is a narrow panel's"
        elif size >= longest:
            rule = f"no transfer of weights of {part.name} is longer than {longest:,} B: all of them are one as it is"
        if rule:
            raise self.document.error(rule, ("tasks", index, "gemm", "chunk"), value=f"{size:,} B")
        return size

    def _ahead(self, part: Part, task: Task, index: int, entry: DescribedTask) -> Ahead:
        """How far weights of a product are loaded ahead."""
        if entry.gemm is None:
            return IN_TURN
        names, name, reach = [each.operator.name for each in part.tasks], task.operator.name, dict[str, int]()
        before = names[: names.index(name) + 1]
        for ring, where in dict(entry.gemm.ahead).items():
            if where is None:
                continue
            at, rule, near = ("tasks", index, "gemm", "ahead", ring), "", None
            if self.tile.sequencer.launch_cycles:
                rule = f"operators of {self.chip.name} are launched (tile.sequencer.launch_cycles): none begins early"
            elif not (isinstance(task.operator, Gemm) and task.operator.weight):
                rule = f"{name} has no weights: what it multiplies is computed before"
            elif ring == "values" and not self.layout.values:
                rule = "there is no ring of values (layout.values)"
            elif where not in before:
                rule = f"is not what the block of {name} computes before it, nor {name}"
                near = nearest_name(where, before)
            if rule:
                raise self.document.error(rule, at, value=where, nearest=near)
            reach[ring] = len(before) - before.index(where)
        return Ahead(**reach)

    def _chosen(self, task: Task, levels: tuple[str, ...], index: int, entry: DescribedTask) -> Chosen:
        operator, kind = task.operator, task.operator.kind
        if getattr(entry, kind) is None:
            given = next(k for k in CUT_DIMENSIONS if getattr(entry, k) is not None)
            raise self.document.error(f"{operator.name} is of kind {kind}", ("tasks", index, given))
        share = self._share(operator, index, entry.cut)
        chip = self.chip.model_copy(update={"tile_count": share.tiles})
        tiling: Tiling
        if isinstance(share.operator, Gemm):
            tiling = self._product(chip, task, share.operator, levels, index, entry)
        elif isinstance(share.operator, Attention):
            tiling = self._attention(chip.seen_from(levels[0]), task, share.operator, index, entry)
        else:
            assert isinstance(share.operator, Vector)
            tiling = self._vector(chip.seen_from(levels[0]), task, share.operator, index, entry)
        return Chosen(tiling, share, tiling.cycles)

    def _share(self, operator: Operator, index: int, described: DescribedCut) -> Share:
        dimensions = CUT_DIMENSIONS[operator.kind]
        for name, parts in dict(described).items():
            if parts > 1 and name not in dimensions:
                valid = ", ".join(d for d in dimensions if d)
                rule = f"{operator.name} is of kind {operator.kind}, which is cut along {valid}"
                raise self.document.error(rule, ("tasks", index, "cut", name), value=parts)
        first, second, third = (getattr(described, name) if name else 1 for name in dimensions)
        cut: Cut = (first, second, third)
        tiles = prod(cut)
        if tiles > self.chip.tile_count:
            rule = f"{tiles} parts for the {self.chip.tile_count} tiles of {self.chip.name} (tile_count)"
            raise self.document.error(rule, ("tasks", index, "cut"))
        part = part_of(operator, cut)
        if part is None:
            shape = ", ".join(f"{name} {size}" for name, size in operator.shape.items())
            raise self.document.error(f"{operator.name} ({shape}) cannot be cut so", ("tasks", index, "cut"))
        return Share(part, tiles, cut)

    def _product(
        self, chip: Chip, task: Task, part: Gemm, levels: tuple[str, ...], index: int, entry: DescribedTask
    ) -> GemmTiling:
        described, shape, at = entry.gemm, gemm_shape(part, task), ("tasks", index, "gemm")
        assert described is not None
        sizes = described.m, described.n, described.k
        self._check_sizes(part.name, at, zip("mnk", sizes, (shape.most_m, shape.n, shape.k), strict=True))
        if shape.output_halved and described.n % 2:
            rule = f"a gated activation takes the columns of {part.name} in pairs"
            raise self.document.error(rule, (*at, "n"), value=described.n)
        if described.order == "m_pairs":
            self._check_pairs(described, shape, at)
        if described.order == "m_kept":
            self._check_kept(described, shape, at)
        elif described.held is not None:
            rule = "a part of the depth stays of rows that do: needs 'order: m_kept'"
            raise self.document.error(rule, (*at, "held"), value=described.held)
        if described.resident and described.k != shape.k:
            rule = f"an operand stays only where tiles have the whole depth, k {shape.k}"
            raise self.document.error(rule, (*at, "resident"), value=True)
        self._check_grains(part.name, at, shape, sizes)
        needs = GemmLayout(self.tile, shape).needs_in(described.order, *sizes, described.held or 0)
        self._check_room(part.name, at, needs)
        if shape.packed and needs["weights"] > LONGEST_ROW:
            rule = f"a tile of weights is one row of a transfer, of at most {LONGEST_ROW:,} B"
            raise self.document.error(rule, at, value=f"{needs['weights']:,} B")
        a, b, c = (chip.memory[name] for name in levels) if len(chip.memory) > 1 else (chip.nearest,) * 3
        made = gemm_tiling(
            chip,
            shape,
            GemmMemories(a, b, c),
            sizes,
            described.order,
            described.resident,
            self.layout.values,
            described.held or 0,
        )
        if described.sequence is None:
            return made
        tiles = -(-shape.m // described.m)
        if sorted(described.sequence) != list(range(tiles)):
            rule = f"the tiles of rows of {part.name}, each once: 0 to {tiles - 1}"
            raise self.document.error(rule, (*at, "sequence"), value=described.sequence)
        return replace(made, sequence=tuple(described.sequence))

    def _check_pairs(self, described: DescribedProduct, shape: GemmShape, at: tuple[str | int, ...]) -> None:
        """Tiles of rows that stay in pairs are several, of the whole depth, and lie row by row."""
        rule = ""
        if not described.resident:
            rule = "tiles of rows in pairs stay: needs 'resident: true'"
        elif described.m >= shape.m:
            rule = f"pairs of tiles of rows need several of them: m below {shape.m}"
        elif GemmLayout(self.tile, shape).blocks:
            rule = "rows that are transposed for an array that keeps its sums have no pairs of tiles"
        elif described.sequence is not None:
            rule = "pairs of tiles of rows are taken one after the other: leave out sequence"
        if rule:
            raise self.document.error(rule, (*at, "order"), value=described.order)

    def _check_kept(self, described: DescribedProduct, shape: GemmShape, at: tuple[str | int, ...]) -> None:
        """Rows that stay in both slots lie row by row; columns of the whole depth stay, too, and others do not."""
        rule, layout = "", GemmLayout(self.tile, shape)
        if layout.blocks:
            rule = "rows that are transposed for an array that keeps its sums do not stay in both slots"
        elif not layout.may_stay(described.k):
            rule = (
                f"beside rows that stay tiles have the whole depth {shape.k}, whole folds of {layout.array.rows} or an "
                "equal part of one (k)"
            )
        elif described.resident != (described.k >= shape.k):
            rule = f"beside rows that stay columns do where tiles have the whole depth, k {shape.k}, and only there"
        elif described.sequence is not None:
            rule = "rows that stay are taken one after the other: leave out sequence"
        if rule:
            raise self.document.error(rule, (*at, "order"), value=described.order)
        if described.held is not None and (described.held >= shape.k or described.held % described.k):
            rule = f"what stays of the depth is some whole tiles of it, multiples of {described.k} below {shape.k}"
            raise self.document.error(rule, (*at, "held"), value=described.held)

    def _attention(self, chip: Chip, task: Task, part: Attention, index: int, entry: DescribedTask) -> AttentionTiling:
        described, at = entry.attention, ("tasks", index, "attention")
        assert described is not None
        parts = query_parts(part)
        most_keys, most_queries = max(p.keys for p in parts), max(p.queries for p in parts)
        queries, keys, heads = sizes = described.queries, described.keys, described.heads
        largest = most_queries, most_keys, most_heads(part)
        self._check_sizes(part.name, at, zip(("queries", "keys", "heads"), sizes, largest, strict=True))
        if queries * heads > ROW_LIMIT:
            rule = f"queries x heads are rows of a softmax, at most {ROW_LIMIT}"
            raise self.document.error(rule, at, value=queries * heads)
        whole = described.whole
        if whole and keys >= most_keys:
            rule = f"rows are whole anyway where all {most_keys} keys are one tile"
            raise self.document.error(rule, (*at, "whole"), value=whole)
        if whole and not carries(part):
            rule = "rows are whole in int8, and not where keys hold the values"
            raise self.document.error(rule, (*at, "whole"), value=whole)
        if whole and most_keys > COLUMN_LIMIT:
            rule = f"whole rows have at most {COLUMN_LIMIT} keys, {part.name} has {most_keys}"
            raise self.document.error(rule, (*at, "whole"), value=whole)
        unit = key_unit(self.tile, part, whole)
        cut = not whole and AttentionLayout.of(chip, part).may_cut(keys)
        if keys < most_keys and keys % unit and not cut:
            rule = f"tiles of keys are whole panels and folds of the array: multiples of {unit}, or {most_keys}"
            raise self.document.error(rule, (*at, "keys"), value=keys)
        apart = self.layout.values > 0
        needs = attention_needs(chip, part, queries, keys, heads, whole, most_keys, apart=apart)
        self._check_room(part.name, at, needs)
        resident = described.resident
        if resident and not may_stay(AttentionLayout.of(chip, part), queries, keys, heads):
            rule = "keys stay where all of them are one tile that several tiles of queries are multiplied with"
            raise self.document.error(rule, (*at, "resident"), value=resident)
        return attention_tiling(chip, part, task.held_by(part), queries, keys, heads, whole, resident, apart=apart)

    def _vector(self, chip: Chip, task: Task, part: Vector, index: int, entry: DescribedTask) -> VectorTiling:
        described, shape, at = entry.vector, vector_shape(self.tile, part, task), ("tasks", index, "vector")
        assert described is not None
        rows, cols = described.rows, described.cols
        self._check_sizes(part.name, at, (("rows", rows, shape.rows), ("cols", cols, shape.cols)))
        if vector_cost(shape.function).by_row:
            if cols != shape.cols:
                rule = f"{shape.function} takes whole rows, {shape.cols} columns"
                raise self.document.error(rule, (*at, "cols"), value=cols)
            if rows > ROW_LIMIT:
                rule = f"{shape.function} takes at most {ROW_LIMIT} rows"
                raise self.document.error(rule, (*at, "rows"), value=rows)
        if shape.dtype.size(cols) > LONGEST_ROW:
            rule = f"a row of a transfer has at most {LONGEST_ROW:,} B"
            raise self.document.error(rule, (*at, "cols"), value=cols)
        lanes, bus = self.tile.vector.lanes, self.tile.dma.bytes_per_cycle
        if shape.table and cols != shape.cols and cols % lanes:
            rule = f"{shape.function} reads a table line by line: columns are multiples of {lanes}, or {shape.cols}"
            raise self.document.error(rule, (*at, "cols"), value=cols)
        if shape.gathers and cols != shape.cols and shape.dtype.size(cols) % bus:
            rule = f"{shape.function} takes whole rows, or parts that are multiples of {bus} B"
            raise self.document.error(rule, (*at, "cols"), value=cols)
        if shape.recurrent is not None and not shape.recurrent.takes(rows):
            parts = ", or parts of one" if shape.recurrent.state_rows else ""
            rule = f"a tile of {part.name} has whole sequences of {shape.recurrent.run} rows{parts}"
            raise self.document.error(rule, (*at, "rows"), value=rows)
        layout = VectorLayout(self.tile, shape)
        block, most = layout.block, min(shape.tokens, layout.block)
        if not shape.transposes and layout.run > 1 and rows != min(shape.tokens, layout.run):
            rule = f"a tile of values with scales has those that share a header, {layout.run}, or all of fewer"
            raise self.document.error(rule, (*at, "rows"), value=rows)
        if shape.transposes and rows != most:
            cached = shape.cached
            whose = f"the array has {'rows' if isinstance(cached, Turned) else 'columns'}"
            if isinstance(cached, Turned) and cached.rows:
                whose = f"a block of {cached.owner.name} has"
            rule = f"{shape.function} takes as many rows as {whose}, {block}, or all of fewer"
            raise self.document.error(rule, (*at, "rows"), value=rows)
        if shape.cached is not None and rows > shape.tokens:
            rule = f"a tile of {part.name} has rows of one sequence, which has {shape.tokens}"
            raise self.document.error(rule, (*at, "rows"), value=rows)
        if shape.cached is not None and not shape.divides(cols, block, layout.group):
            rule = f"a tile of {part.name} has whole heads of {shape.cached.width} columns, or whole panels of one"
            raise self.document.error(rule, (*at, "cols"), value=cols)
        self._check_room(part.name, at, layout.needs(rows, cols))
        return vector_tiling(chip, shape, rows, cols)

    def _check_grains(
        self, name: str, at: tuple[str | int, ...], shape: GemmShape, sizes: tuple[int, int, int]
    ) -> None:
        """Tiles consist of whole panels and folds of the array, or are parts of one that divide it."""
        halves = shape.halves
        wholes = shape.m, shape.n, shape.k
        for key, size, whole, grain in zip("mnk", sizes, wholes, grains(self.tile, shape), strict=True):
            times = halves if key == "n" else 1
            unit = grain * times
            if size != whole and size % unit and not is_part(self.tile, shape, key, size // times):
                groups = f", and groups of {shape.packing.group} rows" if key == "k" and shape.packing else ""
                rule = (
                    f"tiles of {name} are whole panels and folds of the array{groups}: multiples of {unit}, or {whole}"
                )
                raise self.document.error(rule, (*at, key), value=size)

    def _check_sizes(self, name: str, at: tuple[str | int, ...], sizes: Iterable[tuple[str, int, int]]) -> None:
        for key, size, most in sizes:
            if size > most:
                raise self.document.error(
                    f"must be at most {most}, which a tile's part of {name} has", (*at, key), value=size
                )

    def _check_room(self, name: str, at: tuple[str | int, ...], needs: Mapping[str, int]) -> None:
        for ring, need in needs.items():
            have = getattr(self.layout, ring)
            if need > have:
                rule = f"{name}: a tile takes {need:,} B of layout.{ring}, {need - have:,} B more than its {have:,} B"
                raise self.document.error(rule, at)

    def placement(self, demands: Sequence[Demand]) -> Placement:
        """Where every object lies."""
        assert self.described.placement is not None
        items, names = {demand.item.key: demand.item for demand in demands}, list(self.chip.memory)
        counts: dict[Key, dict[int, int]] = {}
        for index, place in enumerate(self.described.placement):
            key, at = (place.operator, place.role), ("placement", index)
            if key not in items:
                roles = [role for operator, role in items if operator == place.operator]
                rule = f"{place.operator} has {', '.join(roles)}" if roles else f"is not in {self.graph.name}"
                near = None if roles else nearest_name(place.operator, {operator for operator, _ in items})
                where, value = ("role", place.role) if roles else ("operator", place.operator)
                raise self.document.error(rule, (*at, where), value=value, nearest=near)
            if key in counts:
                raise self.document.error("is placed already", (*at, "role"), value=place.role)
            for level in place.levels:
                if level not in names:
                    rule, near = f"{self.chip.name} has {', '.join(names)}", nearest_name(level, names)
                    raise self.document.error(rule, (*at, "levels"), value=level, nearest=near)
                if items[key].held not in self.chip.memory[level].holds:
                    rule = f"memory.{level} does not hold {items[key].held} (memory.{level}.holds)"
                    raise self.document.error(rule, (*at, "levels", level))
            if sum(place.levels.values()) != items[key].units:
                rule = f"{place.operator}'s {place.role} are {items[key].units} units"
                raise self.document.error(rule, (*at, "levels"), value=sum(place.levels.values()))
            counts[key] = {names.index(level): units for level, units in place.levels.items()}
        missing = [item for key, item in items.items() if key not in counts and item.size]
        if missing:
            rule = f"{missing[0].operator}'s {missing[0].role} are not placed"
            raise self.document.error(rule, ("placement",))
        placed: Counts = [counts.get(d.item.key, {0: d.item.units}) for d in demands]
        try:
            return assign_units(self.chip, demands, placed)
        except LoomError as error:
            raise self.document.error(str(error), ("placement",)) from None


__all__ = ["is_joined", "mapping_digest", "mapping_of", "refuse_joined"]
