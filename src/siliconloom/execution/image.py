"""Main memory that a workload's program starts from: parameters, tables, indices and caches, where it reads them.

What is written is elements of the tile's format, see `execution.encoding`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from siliconloom.arch.array import TILE_FORMATS
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.floats import flushed, narrowed, widened
from siliconloom.arch.isa import Opcode
from siliconloom.arch.layout import INDEX_BYTES, packed, padded, unpacked
from siliconloom.arch.packing import Packed, packed_weights, panel_bytes
from siliconloom.arch.scaled import numbers_of, scaled_codes
from siliconloom.arch.shared import in_memory
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction, built_in
from siliconloom.arch.word import WORD_BYTES
from siliconloom.execution.encoding import encoding_of
from siliconloom.execution.quantize import Quantized
from siliconloom.execution.walk import At, Cache, Past
from siliconloom.mapper.chip.attention_layout import AttentionLayout
from siliconloom.mapper.chip.banked import is_banked
from siliconloom.mapper.chip.gemm_layout import BlockRows, GemmLayout, GemmShape, row_bytes
from siliconloom.mapper.chip.lowering import segments
from siliconloom.mapper.chip.memory import Item, Key
from siliconloom.mapper.chip.operands import columns
from siliconloom.mapper.chip.panels import PanelLayout
from siliconloom.mapper.chip.program import MappedTask, MappedWorkload
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.mapper.chip.vector_cost import VectorTiling
from siliconloom.mapper.chip.vector_shape import VectorLayout, vector_shape
from siliconloom.sim.golden.packed import held_bytes, taken
from siliconloom.workloads import Attention, Gemm, Operator, Vector

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
Pieces = Iterator[tuple[int, Bytes]]
"""Bytes, each with where they begin in their object."""


def refuse(mapped: MappedWorkload) -> None:
    """Raise `NotSupported` where a mapping's memory cannot be filled with a model's values, with the reason."""
    chip, name = mapped.chip, mapped.graph.name
    tile = chip.tile
    if not isinstance(tile, NpuTile) or mapped.memory is None or mapped.mapping is None:
        raise NotSupported(f"values of {name} on a {tile.kind} tile; programs run on npu tiles")
    if chip.tile_count > 1:
        raise NotSupported(f"values of {name} on {chip.tile_count} tiles (tile_count); they are of one")
    if len(chip.memory) > 1:
        raise NotSupported(f"values of {name} in {len(chip.memory)} memory levels ({', '.join(chip.memory)})")
    own = tile.circuit_format
    if not tile.built:
        raise NotSupported(f"values in {own.value}; there are circuits for {', '.join(TILE_FORMATS)}")
    other = next((o for o in mapped.graph.operators() if o.precision is not own), None)
    if other is not None:
        raise NotSupported(
            f"values of {name} in {other.precision.value} (operator {other.name}); {chip.name} computes in {own.value}"
        )
    if is_banked(mapped.graph):
        raise NotSupported(
            f"values of {name} where the channel computes attention (tile.pim of {chip.name}); with --set "
            "tile.pim=null it is the array that does"
        )
    if mapped.graph.compressions:
        raise NotSupported(f"values of {name} with compressed weights, which no circuit expands (weight_compression)")
    if mapped.graph.sparsities:
        raise NotSupported(f"values of {name} with sparse weights, which no circuit takes (weight_sparsity)")
    why = dict(mapped.apart)
    for i in mapped.program.instructions:
        if i.opcode is Opcode.VECTOR and i.function not in built_in(own):
            reason = f"no circuit computes {i.function.value}"
            why.setdefault(mapped.program.operators[i.operator], reason)
    for operator, reason in why.items():
        raise NotSupported(f"values of {name} on {chip.name}: operator {operator}: {reason}")


def room_of(mapped: MappedWorkload) -> tuple[int, int]:
    """Where a mapping's program begins in main memory, behind its objects, and bytes of both together."""
    assert mapped.memory is not None
    assert isinstance(mapped.chip.tile, NpuTile)
    bus = mapped.chip.tile.dma.bytes_per_cycle
    base = padded(mapped.memory.used, max(bus, WORD_BYTES))
    return base, padded(base + WORD_BYTES * len(mapped.program.instructions), bus)


class _Product(Struct, frozen=True):
    """One execution of a product, with what is computed with it."""

    task: Task
    made: Quantized
    execution: int
    shape: GemmShape
    layout: GemmLayout
    tiling: GemmTiling


class Image:
    """Fills main memory, object by object.

    Parameters
    ----------
    mapped
        What `refuse` lets pass.
    made
        Integers of every execution of every operator.
    inputs
        Operands that no operator makes, by the product that reads them: elements (rows, columns).
    turns
        Of every rotation, cosines and sines of each token.
    numbers
        Of every gather, the rows it takes.
    past
        Keys and values of earlier tokens, in elements.
    """

    def __init__(
        self,
        mapped: MappedWorkload,
        made: Mapping[At, Quantized],
        *,
        inputs: Mapping[str, NDArray[Any]] | None = None,
        turns: Mapping[str, NDArray[Any]] | None = None,
        numbers: Mapping[str, Integers] | None = None,
        past: Cache | None = None,
    ) -> None:
        tile = mapped.chip.tile
        assert isinstance(tile, NpuTile)
        self.mapped, self.tile, self.lanes, self.array = mapped, tile, tile.vector.lanes, tile.array
        self.encoding = encoding_of(tile)
        self.made, self.inputs, self.turns = made, inputs or {}, turns or {}
        self.numbers, self.past = numbers or {}, past or {}
        self.tasks = {task.task.operator.name: task for task in mapped.tasks}

    def write(
        self, memory: Bytes, done: Callable[[float], None] = lambda share: None, *, held: Container[Key] = ()
    ) -> None:
        """Write every object that a program reads before anything has written it, but for those ``held`` already."""
        assert self.mapped.memory is not None
        objects = [(address, item) for address, item in self.mapped.memory.objects() if item.key not in held]
        total, written = sum(item.size for _, item in objects), 0
        for address, item in objects:
            for offset, values in self._object(item):
                memory[address + offset : address + offset + len(values)] = values
            written += item.size
            done(written / max(total, 1))

    def _object(self, item: Item) -> Pieces:
        mapped = self.tasks[item.operator]
        operator = mapped.task.operator
        if item.role == "result":
            return
        if isinstance(operator, Attention) and item.role in ("keys", "values"):
            yield from self._cache(operator, item)
        elif isinstance(operator, Gemm) and item.role == "input" and operator.name in self.inputs:
            yield 0, self._operand(operator, self.inputs[operator.name])
        elif item.role == "input" and any(self._turns_for(each.task, operator) for each in self.mapped.tasks):
            return
        elif isinstance(operator, Gemm) and item.role in ("parameters", "scales", "functions"):
            yield from self._product(mapped, operator, item)
        elif isinstance(operator, Attention) and item.role == "scales":
            for execution in range(operator.repeat):
                made = self.made[At(operator.name, execution)]
                assert made.scalars is not None
                assert made.columns is not None
                parts = [self.encoding.lines(self.encoding.scalars(made.scalars)), self.encoding.planes(made.columns)]
                yield execution * item.unit_bytes, np.concatenate(parts)
        elif isinstance(operator, Vector) and operator.function == VectorFunction.GATHER:
            yield from self._gather(operator, item)
        elif isinstance(operator, Vector) and operator.function == VectorFunction.ROPE and item.role == "table":
            yield from self._turns(mapped, operator)
        elif isinstance(operator, Vector) and item.role == "parameters":
            for execution in range(operator.repeat):
                made = self.made[At(operator.name, execution)]
                yield execution * item.unit_bytes, np.concatenate(self.encoding.parameters(operator.function, made))
        else:
            raise NotSupported(f"values of {item.role} of operator {operator.name}, which no operator makes")

    def _turns_for(self, task: Task, operator: Operator) -> bool:
        """Whether a task transposes what an operator reads."""
        return task.cached is not None and task.cached.owner.name == operator.name and task.cached.role == "input"

    def _operand(self, operator: Gemm, values: NDArray[Any]) -> Bytes:
        """Rows that a product takes, as the array takes them."""
        if self.array.dataflow != "output_stationary":
            return self._rows(values, row_bytes(self.tile, operator.k, operator.precision.bits))
        rows = next((each.task.block for each in self.mapped.tasks if each.task.operator.name == operator.name), 0)
        return BlockRows(self.tile, operator.k, operator.precision.bits, rows).written(values)

    # Products --------------------------------------------------------------------------------------------------------

    def _product(self, mapped: MappedTask, operator: Gemm, item: Item) -> Pieces:
        tiling, shape = mapped.tiling, gemm_shape(operator, mapped.task)
        assert isinstance(tiling, GemmTiling)
        layout = GemmLayout(self.tile, shape)
        pieces = {"parameters": self._tiles, "scales": self._columns, "functions": self._functions}[item.role]
        # repetitions of weights lie as far apart as their tiles are large: biases lie elsewhere
        panels = PanelLayout.of(self.mapped.chip, layout)
        own = panels.room(shape.n, shape.k) if item.role == "parameters" else layout.scales(shape.stored_n)
        unit = operator.batch * own if item.role == "parameters" else item.unit_bytes
        for execution in range(operator.repeat):
            made, each = self.made[At(operator.name, execution)], [self.made[At(operator.name, execution)]]
            if operator.stored is not None and item.role != "functions":  # experts share the functions' parameters
                each = [made.of_expert(number) for number in range(operator.batch)]
            for number, one in enumerate(each):
                product = _Product(mapped.task, one, execution, shape, layout, tiling)
                for offset, values in pieces(product):
                    yield int(execution * unit + number * own + offset), values

    def _tiles(self, product: _Product) -> Pieces:
        """Weights tile by tile, each as the array takes it; halves that are gated begin with panels of their own."""
        shape, layout, tiling = product.shape, product.layout, product.tiling
        depth, panels = shape.k if tiling.resident else tiling.k, PanelLayout.of(self.mapped.chip, layout)
        for n in segments(shape.n, tiling.n):
            for number in range(n.count):
                start = n.start + number * n.size
                tile = self._tile(product, start, n.size)
                place = n.start // tiling.n * panels.pitch(tiling.n) + number * panels.pitch(n.size)
                for k in segments(shape.k, depth):
                    for deep in range(k.start, k.start + k.count * k.size, k.size):
                        local = tile(deep, deep + k.size)
                        for part in panels.parts(n.size, k.size):
                            lines = local[part.local : part.local + (part.rows - 1) * part.pitch + part.width]
                            rows = as_strided(lines, (part.rows, part.width), (part.pitch, 1), writeable=False)
                            yield int(place) + part.memory, rows.reshape(-1)
                        place += panels.tile(n.size, k.size)

    def _tile(self, product: _Product, start: int, size: int) -> Callable[[int, int], Bytes]:
        """Some columns of weights, and their halves beside one another, as bytes by the rows that are asked for."""
        shape, made, layout = product.shape, product.made, product.layout

        def columns(values: NDArray[Any]) -> NDArray[Any]:
            return self._halves(values, start, size) if shape.output_halved else values[:, start : start + size]

        packing = shape.packing
        if packing is None or not packing.group:
            assert made.weights is not None
            stored = packing.dtype if packing is not None and self.tile.shares else None

            def lying(values: NDArray[Any]) -> Bytes:
                panels = packed(self.array, values, int(layout.narrow))
                return panels.view(np.uint8) if stored is None else in_memory(panels, stored)

            if layout.narrow and layout.shares:
                parts = np.split(made.weights, shape.halves, axis=1)
                parts = [part[:, start // shape.halves :][:, : size // shape.halves] for part in parts]
                halves = shape.halves > 1

                def lies(first: int, end: int) -> Bytes:
                    gap = int(layout.gap(size // shape.halves, end - first)) if halves else 0
                    made = (lying(part[first:end]) for part in parts)
                    return np.concatenate([np.pad(part, (0, gap)) for part in made])

                return lies
            wide = columns(made.weights)
            return lambda first, end: lying(wide[first:end])
        assert made.packed is not None
        (whole,) = made.packed
        if layout.narrow and layout.shares:
            first, cols, half = start // shape.halves, size // shape.halves, whole.codes.shape[1] // shape.halves
            begins = (number * half + first for number in range(shape.halves))
            each = [whole.columns(slice(begin, begin + cols)) for begin in begins]
        else:
            each = [whole.each(columns)]

        def rows(first: int, end: int) -> Bytes:
            groups = slice(first // packing.group, -(-end // packing.group))
            gap = int(layout.gap(size // shape.halves, end - first)) if len(each) > 1 else 0
            made = list[Bytes]()
            for part in each:
                minima = None if part.minima is None else part.minima[groups]
                some = Packed(part.codes[first:end], part.scales[groups], minima)
                made.append(np.pad(packed_weights(self.array, packing, some, int(layout.narrow)), (0, gap)))
            return np.concatenate(made)

        return rows

    def _halves(self, weights: NDArray[Any], start: int, size: int) -> NDArray[Any]:
        """Columns of a tile of two halves: half of them of the first, then those of the second beside them."""
        middle, first, wide = weights.shape[1] // 2, start // 2, size // 2
        room = padded(wide, self.array.cols)
        made = np.zeros((len(weights), room + wide), weights.dtype)
        made[:, :wide] = weights[:, first : first + wide]
        made[:, room : room + wide] = weights[:, middle + first : middle + first + wide]
        return made

    def _columns(self, product: _Product) -> Pieces:
        """What requantises columns: those of a tile of columns follow one another, one half behind the other."""
        columns, shape, layout, tiling = product.made.columns, product.shape, product.layout, product.tiling
        assert columns is not None
        halves = [columns]
        if shape.output_halved:
            halves = [columns.part(0, shape.stored_n), columns.part(shape.stored_n, shape.n)]
        parts = 2 if shape.output_halved else 1
        whole = tiling.order != "n_outer" and tiling.n >= shape.n
        tile = shape.n if whole else min(tiling.n, shape.n)
        for n in segments(shape.n, tile):
            for number in range(n.count):
                first, width = (n.start + number * n.size) // parts, n.size // parts
                place = layout.scales_at(n.start // parts, tile // parts) + number * layout.columns(width)
                for half in halves:
                    planes = self.encoding.planes(half.part(first, first + width))
                    yield int(place), planes
                    place += len(planes)

    def _functions(self, product: _Product) -> Pieces:
        """Scalars and tables of what is computed with a product, one after the other."""
        parts: list[Bytes] = []
        names = {product.task.operator.name}
        for each in product.task.fused:
            made = self.made[At(each.name, product.execution)]
            makers = self.mapped.graph.dataflow.predecessors(each.name)
            if each.function == VectorFunction.ADD and made.scalars is not None and makers[0] not in names:
                first, second, shift = made.scalars  # its own result comes first
                made = Quantized(made.scale, scalars=(second, first, shift))
            parts += self.encoding.parameters(each.function, made)
            names.add(each.name)
        if parts:
            yield 0, np.concatenate(parts)

    # Tables and caches -----------------------------------------------------------------------------------------------

    def _gather(self, operator: Vector, item: Item) -> Pieces:
        if item.role == "indices":
            yield 0, np.ascontiguousarray(self.numbers[operator.name], "<i4").view(np.uint8)
            return
        table = self.made[At(operator.name, 0)].weights
        assert table is not None
        yield 0, self._rows(table, padded(table.itemsize * table.shape[1], self.tile.dma.bytes_per_cycle))

    def _rows(self, values: NDArray[Any], pitch: int) -> Bytes:
        rows = np.zeros((len(values), pitch // values.itemsize), values.dtype)
        rows[:, : values.shape[1]] = values
        return rows.reshape(-1).view(np.uint8)

    def _turns(self, mapped: MappedTask, operator: Vector) -> Pieces:
        """Rows of angles, tile of columns by tile of columns: the last one may lie in a narrow line."""
        assert isinstance(mapped.tiling, VectorTiling)
        made = VectorLayout(self.tile, vector_shape(self.tile, operator, mapped.task))
        many, wide = made.shape.dtype.size(made.shape.seconds), mapped.tiling.cols
        for number, row in enumerate(self.turns[operator.name]):
            for start in range(0, operator.cols, wide):
                yield number * made.table_row + many * start, self.encoding.turns(row[None, start : start + wide])

    def _cache(self, operator: Attention, item: Item) -> Pieces:
        layout = AttentionLayout(self.tile, self.mapped.chip.nearest, operator)
        for execution in range(operator.repeat):
            past = self.past.get(At(operator.name, execution))
            if past is not None and past.keys.shape[1]:
                room = np.zeros(item.unit_bytes, np.uint8)
                fill_cache(room, layout, past, item.role == "keys")
                yield execution * item.unit_bytes, room


def fill_cache(room: Bytes, layout: AttentionLayout, past: Past, keys: bool) -> None:
    """Write earlier keys, or values, into the cache of one execution: keys in blocks, values in panels."""
    shape, cols = layout.shape, layout.array.cols
    source = past.keys if keys else past.values
    heads = source.reshape(*source.shape[:2], shape.kv_heads, -1).astype(encoding_of(layout.tile).element)
    if layout.scaled:
        _fill_scaled(room, layout, heads, keys)
        return
    if shape.cached is not None:
        heads = narrowed(widened(heads, shape.precision), shape.kept)
    for sequence in range(shape.batch):
        for head in range(shape.kv_heads):
            number, own = sequence * shape.kv_heads + head, heads[sequence, :, head]
            if keys:
                for block, start in enumerate(range(0, len(own), layout.block)):
                    place = number * layout.key_plane + block * layout.key_block
                    wide = np.zeros((own.shape[1], layout.block), own.dtype)
                    part = own[start : start + layout.block]
                    wide[:, : len(part)] = part.T
                    held = packed(layout.array, wide, narrow=1).view(np.uint8)
                    room[place : place + len(held)] = held
                continue
            for panel, start in enumerate(range(0, own.shape[1], cols)):
                place = number * layout.value_plane + panel * layout.value_pitch
                lines = room[place : place + len(own) * layout.value_line].reshape(len(own), layout.value_line)
                part = np.ascontiguousarray(own[:, start : start + cols])
                lines[:, : part.itemsize * part.shape[1]] = part.view(np.uint8)


def read_cache(room: Bytes, layout: AttentionLayout, count: int, keys: bool) -> Integers:
    """The opposite of `fill_cache`: the first ``count`` positions, shape (batch, count, heads x width)."""
    shape, cols = layout.shape, layout.array.cols
    if layout.scaled:
        return _read_scaled(room, layout, count, keys)
    width, element = shape.head_dim if keys else shape.v_head_dim, encoding_of(layout.tile).element
    if shape.cached is not None:
        element = np.dtype(f"<u{shape.kept.bits // 8}")
    made = np.zeros((shape.batch, count, shape.kv_heads, width), np.int64)
    for sequence in range(shape.batch):
        for head in range(shape.kv_heads):
            number = sequence * shape.kv_heads + head
            if keys:
                block = layout.key_block // element.itemsize
                plane = room[number * layout.key_plane : (number + 1) * layout.key_plane].view(element)
                blocks = [
                    unpacked(layout.array, plane[start : start + block], width, layout.block, narrow=1).T[
                        : layout.block
                    ]
                    for start in range(0, -(-count // layout.block) * block, block)
                ]
                made[sequence, :, head] = np.concatenate(blocks)[:count]
                continue
            for panel, start in enumerate(range(0, width, cols)):
                place = number * layout.value_plane + panel * layout.value_pitch
                lines = room[place : place + count * layout.value_line].reshape(count, layout.value_line)
                part = min(cols, width - start)
                made[sequence, :, head, start : start + part] = lines[:, : element.itemsize * part].view(element)
    if shape.cached is not None:
        made = narrowed(widened(made.astype(element), shape.kept), shape.precision).astype(np.int64)
    return made.reshape(shape.batch, count, -1)


def _scaled_parts(layout: AttentionLayout, count: int, keys: bool) -> Iterator[tuple[tuple[int, int], slice, int, int]]:
    """What of a cache with scales lies together: sequence and head, positions or columns, where it begins, its bytes.

    Keys lie block by block, a panel of so many positions each; values panel by panel, each of all positions.
    """
    shape, cols, packing = layout.shape, layout.array.cols, layout.value_packing
    assert packing is not None
    for sequence in range(shape.batch):
        for head in range(shape.kv_heads):
            number = sequence * shape.kv_heads + head
            if keys:
                for block, start in enumerate(range(0, count, cols)):
                    place = number * layout.key_plane + block * layout.key_block
                    yield (sequence, head), slice(start, min(start + cols, count)), place, layout.key_block
                continue
            for panel, start in enumerate(range(0, shape.v_head_dim, cols)):
                place = number * layout.value_plane + panel * layout.value_pitch
                size = int(panel_bytes(layout.array, packing, count))
                yield (sequence, head), slice(start, min(start + cols, shape.v_head_dim)), place, size


def _fill_scaled(room: Bytes, layout: AttentionLayout, heads: NDArray[Any], keys: bool) -> None:
    """As `fill_cache`, of keys and values (batch, positions, heads, width) that are kept with scales."""
    packing, cols = layout.packing if keys else layout.value_packing, layout.array.cols
    assert packing is not None
    words = flushed(widened(heads, layout.shape.precision))
    for (sequence, head), part, place, _ in _scaled_parts(layout, heads.shape[1], keys):
        own = words[sequence, part, head] if keys else words[sequence, :, head, part]
        codes, scales = scaled_codes(own, packing.dtype, cols)
        each = np.repeat(scales, cols, axis=1)[:, : own.shape[1]]
        held = held_bytes(layout.array, packing, *((codes.T, each.T) if keys else (codes, each)))
        room[place : place + len(held)] = held


def _read_scaled(room: Bytes, layout: AttentionLayout, count: int, keys: bool) -> Integers:
    """As `read_cache`, of keys and values that are kept with scales."""
    shape, packing, array = layout.shape, layout.packing if keys else layout.value_packing, layout.array
    assert packing is not None
    width = shape.head_dim if keys else shape.v_head_dim
    made = np.zeros((shape.batch, count, shape.kv_heads, width), np.int64)
    for (sequence, head), part, place, size in _scaled_parts(layout, count, keys):
        n, k = (part.stop - part.start, width) if keys else (part.stop - part.start, count)
        codes, scales = taken(array, packing, room[place : place + size], n, k)
        found = narrowed(numbers_of(codes, scales, packing.dtype), shape.precision)[:, :n]
        if keys:
            made[sequence, part, head] = found.T
        else:
            made[sequence, :, head, part] = found
    return made.reshape(shape.batch, count, -1)


def stored_columns(tile: NpuTile, mapped: MappedWorkload, operator: Operator) -> NDArray[np.intp]:
    """Where in a row of its result every column of an operator lies; heads may be filled up to whole lines."""
    if not isinstance(operator, Attention):
        places = isinstance(operator, Vector) and operator.function.spec.indexes
        return np.arange(INDEX_BYTES // tile.element_bytes if places else columns(operator))
    layout = AttentionLayout(tile, mapped.chip.nearest, operator)
    head = layout.o_head // tile.element_bytes
    heads = np.arange(operator.heads)[:, None] * head + np.arange(operator.v_head_dim)
    return heads.reshape(-1)


__all__ = ["Image", "fill_cache", "read_cache", "refuse", "room_of", "stored_columns"]
