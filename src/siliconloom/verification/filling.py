"""Made-up values for the program of a mapped workload: operands, parameters, and what a channel holds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.budget import require_memory
from siliconloom.arch.datatype import CACHE_SCALED, DataType
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.floats import patterns_of
from siliconloom.arch.layout import INDEX_BYTES, line_values, padded
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import Parameters, VectorFunction
from siliconloom.execution.image import fill_cache, room_of
from siliconloom.execution.walk import Past
from siliconloom.mapper.chip.attention_layout import AttentionLayout
from siliconloom.mapper.chip.banked import first_rows, is_banked, layout_of
from siliconloom.mapper.chip.gather import table_rows
from siliconloom.mapper.chip.gemm_layout import GemmLayout, padded_lines
from siliconloom.mapper.chip.lowering import segments
from siliconloom.mapper.chip.program import MappedTask, MappedWorkload
from siliconloom.mapper.chip.tasks import gemm_shape
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.sim.golden.npu import (
    LoadedProgram,
    float_parameter_planes,
    float_scalar_bytes,
    parameter_planes,
    scalar_bytes,
)
from siliconloom.verification.images import random_image
from siliconloom.workloads import Attention, Gemm, Vector

Bytes = NDArray[np.uint8]
MOST_BYTES = 1 << 32
"""Main memory that a bench holds at most."""
HELD = 6
"""How often main memory is held at once at most, by the process, the bench, and their files."""
WIDE = 74.0
"""Standard deviation of int8 numbers of which each is as likely as any other."""
AIM = 48.0
"""Standard deviation of results that multipliers and shifts are made for: few are cut off, few are zero."""
NORMAL = 256.0
"""What a norm's one is, before its parameters."""
SHIFTS = {"softmax": 18, "top_k": 10, "multiply": 20, "combine": 20}
"""What functions with scalars divide by, as a power of two, where multipliers are about 2^13."""


def refuse_large(mapped: MappedWorkload, size: int) -> None:
    """Raise `NotSupported` for more main memory than a bench holds, `TooLarge` for more than this machine has."""
    if size > MOST_BYTES:
        raise NotSupported(
            f"RTL of {mapped.graph.name} on {mapped.chip.name}: it needs {size:,} B of main memory, a bench holds "
            f"{MOST_BYTES:,} B"
        )
    what = f"RTL of {mapped.graph.name} on {mapped.chip.name}: {size:,} B of main memory in a bench"
    require_memory(what, HELD * size, "take fewer layers (--set workload.layers=1) or a shorter context")


def filled(mapped: MappedWorkload, seed: int) -> LoadedProgram:
    """The program of a mapping with a memory of made-up values.

    Operands are random, indices are rows of their tables, the last one among them; multipliers and shifts are such that
    results are neither cut off nor zero.
    """
    assert mapped.memory is not None
    base, size = room_of(mapped)
    refuse_large(mapped, size)
    chance = np.random.default_rng(seed)
    tile = mapped.chip.tile
    assert isinstance(tile, NpuTile)
    integers = tile.circuit_format.is_integer
    # one sum in sixteen meets an odd number
    longest = max((each.k for each in mapped.graph.operators() if isinstance(each, Gemm)), default=1)
    odd = 1 / (32 * longest)
    memory = (
        chance.integers(0, 256, size, np.uint8) if integers else random_image(chance, tile.circuit_format, size, odd)
    )
    tasks = {task.task.operator.name: task for task in mapped.tasks}
    for address, item in mapped.memory.objects():
        attention = mapped.graph.dataflow[item.operator] if item.role in ("keys", "values") else None
        if isinstance(attention, Attention) and attention.cached is not None:
            cache = np.random.default_rng([seed, address])  # whoever has none draws the others as ever
            if attention.kept in CACHE_SCALED:
                for unit in range(item.units):
                    room = memory[address + unit * item.unit_bytes :][: item.unit_bytes]
                    _fill_scaled(cache, room, mapped, attention, item.role == "keys")
                continue
            memory[address : address + item.size] = random_image(cache, attention.kept, item.size, odd)
        elif item.role == "indices":
            operator = tasks[item.operator].task.operator
            assert isinstance(operator, Vector)
            last = table_rows(operator) - 1
            made = chance.integers(0, last, item.size // INDEX_BYTES, endpoint=True)
            made[chance.integers(0, len(made))] = last
            memory[address : address + item.size] = made.astype("<u4").view(np.uint8)
        elif item.operator in tasks and item.role in ("scales", "functions", "parameters"):
            for unit in range(item.units):
                place = address + unit * item.unit_bytes
                for part in _parameters(tasks[item.operator], item.role, tile, chance):
                    memory[place : place + len(part)] = part
                    place += len(part)
    channel = np.zeros(0, np.uint8)
    if tile.pim is not None and is_banked(mapped.graph):
        rows = max(first + layout_of(tile, each).rows * each.repeat for first, each in _banked(mapped))
        size = rows * tile.pim.banks * tile.pim.dram.organization.row_bytes
        channel = random_image(np.random.default_rng([seed, size]), DataType.BF16, size, odd)
    return LoadedProgram(mapped.program, memory, base, channel)


def _banked(mapped: MappedWorkload) -> Iterator[tuple[int, Attention]]:
    """Attention that a tile's channel computes, and the first rows of it."""
    tile = mapped.chip.tile
    assert isinstance(tile, NpuTile)
    for name, first in first_rows(tile, mapped.graph).items():
        operator = mapped.graph.dataflow[name]
        assert isinstance(operator, Attention)
        yield first, operator


def _fill_scaled(
    chance: np.random.Generator, room: Bytes, mapped: MappedWorkload, attention: Attention, keys: bool
) -> None:
    """Earlier keys or values of one execution as codes with scales; headers of any bytes would leave few numbers."""
    tile = mapped.chip.tile
    assert isinstance(tile, NpuTile)
    shape = attention.batch, attention.past, attention.kv_heads * attention.head_dim
    drawn = patterns_of(chance.standard_normal(shape), tile.circuit_format).astype(np.int64)
    if attention.past:
        fill_cache(room, AttentionLayout(tile, mapped.chip.nearest, attention), Past(drawn, drawn), keys)


def _parameters(mapped: MappedTask, role: str, tile: NpuTile, chance: np.random.Generator) -> Iterator[Bytes]:
    """Parameters of one operator's functions, one after the other as they lie in the object ``role``."""
    operator, lanes = mapped.task.operator, tile.vector.lanes
    if not tile.circuit_format.is_integer:
        yield from _float_parameters(mapped, role, tile, chance)
        return
    if isinstance(operator, Gemm):
        if role == "scales":
            for cols in _columns_of(mapped, operator):
                deviation = WIDE * WIDE * operator.k**0.5
                yield _filled([columns(each, deviation, lanes, chance) for each in cols], mapped, operator, tile)
        elif role == "functions":
            for each in gemm_shape(operator, mapped.task).passes:
                yield from once(each.function, lanes, chance)
    elif isinstance(operator, Attention) and role == "scales":
        scalars = b"".join(part.tobytes() for part in once(VectorFunction.SOFTMAX, lanes, chance))
        yield np.frombuffer(scalars, np.uint8)
        yield columns(operator.v_head_dim, WIDE * NORMAL / 2, lanes, chance)
    elif isinstance(operator, Vector) and role == "parameters":
        if Parameters.COLUMNS in operator.function.spec.parameters:
            yield columns(operator.cols, NORMAL, lanes, chance)
        else:
            yield from once(operator.function, lanes, chance)


def _columns_of(mapped: MappedTask, operator: Gemm) -> Iterator[list[int]]:
    """Of each product the columns whose parameters lie together, tile after tile; those of both of its halves."""
    assert isinstance(mapped.tiling, GemmTiling)
    shape = gemm_shape(operator, mapped.task)
    halves, found = 2 if shape.output_halved else 1, list[int]()
    for part in segments(shape.n, min(mapped.tiling.n, shape.n)):
        found += [part.size // halves] * (part.count * halves)
    yield from [found] * operator.batch


def _filled(parts: list[Bytes], mapped: MappedTask, operator: Gemm, tile: NpuTile) -> Bytes:
    """Parameters of the columns of one product, up to where those of the next one begin."""
    made, shape = np.concatenate(parts), gemm_shape(operator, mapped.task)
    return np.pad(made, (0, GemmLayout(tile, shape).scales(shape.stored_n) - len(made)))


def _float_parameters(mapped: MappedTask, role: str, tile: NpuTile, chance: np.random.Generator) -> Iterator[Bytes]:
    """As `_parameters`, in floating point: results are about as large as operands."""
    operator, lanes, line = mapped.task.operator, tile.vector.lanes, tile.parameter_line

    def scalars() -> Bytes:
        first, second = chance.standard_normal(2)
        return _lines(float_scalar_bytes(first, second, tile.element_bytes), line)

    if isinstance(operator, Gemm) and role == "functions":
        for each in gemm_shape(operator, mapped.task).passes:
            if Parameters.SCALARS in each.function.spec.parameters_in(tile.circuit_format):
                yield scalars()
    elif isinstance(operator, Vector) and Parameters.SCALARS in operator.function.spec.parameters_in(
        tile.circuit_format
    ):
        yield scalars()
    elif role == "scales" or isinstance(operator, Vector):
        scale = operator.k**-0.5 if isinstance(operator, Gemm) else 1.0

        def planes(cols: int) -> Bytes:
            count = padded_lines(cols, lanes)
            bias, multiplier = (x.astype(np.float32).view(np.uint32) for x in chance.normal(0, scale, (2, count)))
            return float_parameter_planes(bias, multiplier, line_values(cols, lanes), tile.element_bytes)

        if isinstance(operator, Attention):
            yield scalars()
            if not operator.banked:
                yield planes(operator.v_head_dim)
        elif isinstance(operator, Vector):
            yield planes(operator.cols)
        elif isinstance(operator, Gemm):
            for columns_of in _columns_of(mapped, operator):
                yield _filled([planes(cols) for cols in columns_of], mapped, operator, tile)


def columns(cols: int, deviation: float, lanes: int, chance: np.random.Generator) -> Bytes:
    """Biases, multipliers and shifts of so many columns, which bring values of a standard deviation to `AIM`."""
    count = padded_lines(cols, lanes)
    multiplier = chance.integers(1 << 13, 1 << 14, count) * chance.choice([-1, 1], count)
    shift = np.clip(np.rint(np.log2(np.abs(multiplier) * deviation / AIM)), 0, 62).astype(np.int64)
    bias = np.rint(chance.normal(0, deviation / 4, count)).astype(np.int64)
    return parameter_planes(bias, multiplier, shift, line_values(cols, lanes)).reshape(-1)


def once(function: VectorFunction, lanes: int, chance: np.random.Generator) -> Iterator[Bytes]:
    """Scalars and table of a function, each filled up to whole lines."""
    for group in function.spec.parameters:
        if group is Parameters.SCALARS:
            # of a sum of scores the product with 2^-13 is a logarithm in 1/256, that of a byte is eight of them; of two
            # operands each counts for half, and weights are 127ths
            first, second = chance.integers(1 << 13, 1 << 14, 2).tolist()
            shift = SHIFTS.get(function.value, 14)
            yield _lines(scalar_bytes(first, second, shift), lanes)
        elif group is Parameters.TABLE:
            yield _lines(chance.integers(0, 256, 256, np.uint8), lanes)


def _lines(values: Bytes, lanes: int) -> Bytes:
    made = np.zeros(padded(len(values), lanes), np.uint8)
    made[: len(values)] = values
    return made


__all__ = ["filled", "once", "refuse_large"]
