"""A tensor-parallel MLP block on a ring of NPUs: a program for each chip, and what must come out.

A chip holds its columns of the first weights and the rows of the second that belong to them (Megatron-LM, Shoeybi et
al., arXiv:1909.08053, section 3). Its shard is a graph of two products with an activation between them, mapped like
any other workload; the mapping says that the second product computes its partial sums chunk of tokens by chunk, in the
order in which the ring sends them: the collective begins when the first chunk is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import yaml
from msgspec import Struct, field
from numpy.typing import NDArray

from siliconloom.arch import Chip, NotSupported
from siliconloom.arch.assembler import check_program
from siliconloom.arch.datatype import DataType
from siliconloom.arch.document import Document
from siliconloom.arch.isa import Instruction, Opcode, Program
from siliconloom.arch.numerics import activation_table, gelu
from siliconloom.arch.ring import RingEngine
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction
from siliconloom.execution.image import Image, refuse, room_of
from siliconloom.execution.quantize import Columns, Quantized, columns_of
from siliconloom.execution.walk import At
from siliconloom.mapper.chip.described import mapping_of
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.program import MappedWorkload, lower
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.npu import GoldenMachine, LoadedProgram
from siliconloom.workloads import Gemm, Graph
from siliconloom.workloads.builder import Builder
from siliconloom.workloads.graph import Phase
from siliconloom.workloads.roles import Role, Section

Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]
MIDDLE, OUT = 40.0, 70.0
"""Standard deviation of values before the activation, and of partial sums: large enough that some sums saturate."""
STEP = 1 / 16
"""Real value of one step of the hidden values."""
FIRST, BETWEEN, SECOND = "mlp.up", "mlp.activation", "mlp.down"
"""Operators of a shard."""


class ShardRun(Struct):
    """One chip's part of the block.

    Parameters
    ----------
    program, memory, base
        The program, the memory it starts from, and its address.
    buffer
        Address of the partial sums in bytes.
    partial
        What the chip must leave there, by an integer reading that knows nothing of tiles: int8, (tokens, hidden).
    stores
        Of every store into the buffer, in order: its number among all stores, its chunk, its words.
    after
        The memory after the program, by the golden model.
    """

    program: Program
    memory: Bytes
    base: int
    buffer: int
    partial: NDArray[np.int8]
    stores: list[tuple[int, int, int]] = field(default_factory=list)
    after: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))


class _StoreLog(GoldenMachine):
    """The golden model, noting what every store writes."""

    def __init__(self, chip: Chip, memory: Bytes) -> None:
        super().__init__(chip, memory)
        self.stores: list[list[tuple[int, int]]] = []

    def execute(self, i: Instruction, indices: list[int]) -> None:
        super().execute(i, indices)
        if i.opcode == Opcode.STORE:
            self.stores.append([(i.memory.at(indices) + row * i.pitch, i.n) for row in range(i.m)])


def mlp_shards(
    chip: Chip, engine: RingEngine, chips: int, *, tokens: int, hidden: int, inner: int, seed: int
) -> list[ShardRun]:
    """The block's part of each chip, on random int8 values and weights.

    Parameters
    ----------
    chip, engine, chips
        The ring.
    tokens, hidden
        Shape of what comes in and of the result; the tokens are cut into the ring's chunks.
    inner
        Hidden units of all chips together.
    seed
        Of values and weights.

    Raises
    ------
    NotSupported
        When chunks do not fill whole words of memory, or sums are not int8.
    AssertionError
        When the golden model does not agree with the integer reading.
    """
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    chunks, bus = engine.chunks(chips), tile.dma.bytes_per_cycle
    if engine.operand.value != "int8":
        raise NotSupported(f"partial sums in {engine.operand.value}: the vector unit stores int8 (ring.operand)")
    if tokens % chunks or inner % chips or tile.array.cols % bus:
        raise NotSupported(
            f"{tokens} tokens in {chunks} chunks, {inner} units on {chips} chips, an array of {tile.array.cols} "
            f"columns on a bus of {bus} bytes: all must divide"
        )
    chance = np.random.default_rng(seed)
    x = np.clip(np.rint(chance.normal(0, 40, (tokens, hidden))), -128, 127).astype(np.int64)
    graph = shard_graph(tokens, hidden, inner // chips)
    found = map_workload(chip, graph)
    return [
        _shard(chunk_by_chunk(found, engine, chips, rank), engine.chunks(chips), x, np.random.default_rng((seed, rank)))
        for rank in range(chips)
    ]


def shard_graph(tokens: int, hidden: int, units: int) -> Graph:
    """A chip's part of the block: ``units`` columns of the first product, and the rows of the second that use them."""
    builder = Builder(DataType.INT8)
    builder.block("mlp", Section.LAYER)
    up = builder.gemm("up", Role.COLUMN_PARALLEL, m=tokens, n=units, k=hidden)
    active = builder.vector("activation", Role.ACTIVATION, VectorFunction.GELU, up, rows=tokens, cols=units)
    builder.gemm("down", Role.ROW_PARALLEL, active, m=tokens, n=hidden, k=units)
    return Graph(
        name="shard of an MLP block",
        phase=Phase.PREFILL,
        precision=DataType.INT8,
        explicit_precision=True,
        batch=1,
        tokens=tokens,
        dataflow=builder.dataflow,
    )


def chunk_by_chunk(mapped: MappedWorkload, engine: RingEngine, chips: int, rank: int) -> MappedWorkload:
    """The same mapping with the second product's tiles in the order in which the ring sends their chunks.

    No tile reaches over a chunk's end.
    """
    data = yaml.safe_load(mapping_text(mapped))
    second = next(task for task in data["tasks"] if task["operator"] == SECOND)["gemm"]
    down = mapped.graph.dataflow[SECOND]
    assert isinstance(down, Gemm)
    rows = down.m // engine.chunks(chips)
    second["m"] = next(size for size in range(min(second["m"], rows), 0, -1) if rows % size == 0)
    second["order"], each = "m_outer", rows // second["m"]
    second["resident"] = second["k"] == down.k
    messages = [share * engine.pieces + piece for share in range(chips) for piece in range(engine.pieces)]
    order = [engine.chunk_sent(rank, message, chips) for message in messages]
    second["sequence"] = [chunk * each + part for chunk in order for part in range(each)]
    document = Document(data, {}, f"the mapping of chip {rank}")
    return lower(mapped.chip, mapped.graph, mapping_of(document, mapped.chip, mapped.graph))


def _shard(mapped: MappedWorkload, chunks: int, x: Integers, chance: np.random.Generator) -> ShardRun:
    chip, tokens, hidden = mapped.chip, *x.shape
    up = mapped.graph.dataflow[FIRST]
    assert isinstance(up, Gemm)
    assert isinstance(chip.tile, NpuTile)
    first, second = (
        np.clip(np.rint(chance.normal(0, 40, shape)), -127, 127).astype(np.int64)
        for shape in ((hidden, up.n), (up.n, hidden))
    )
    # The integer reading.
    table = activation_table(gelu, STEP, STEP)
    look_up = np.frombuffer(table, np.int8).astype(np.int64)
    columns = _columns(MIDDLE / float(np.std(x @ first)), up.n, chance)
    middle = _requantized(x @ first, columns)
    active = look_up[middle & 255]
    out_columns = _columns(OUT / float(np.std(active @ second)), hidden, chance)
    partial = _requantized(active @ second, out_columns).astype(np.int8)
    # Memory: the same numbers as the program reads them.
    refuse(mapped)
    check_program(mapped.program, chip)
    stored = mapped.results[SECOND]
    if stored.row != hidden:
        raise NotSupported(f"a result of {hidden} columns, which does not fill its rows of {stored.row} bytes")
    made = {
        At(FIRST, 0): Quantized(np.ones(up.n), weights=first.astype(np.int8), columns=columns),
        At(BETWEEN, 0): Quantized(np.ones(up.n), table=table),
        At(SECOND, 0): Quantized(np.ones(hidden), weights=second.astype(np.int8), columns=out_columns),
    }
    base, size = room_of(mapped)
    operands = np.zeros(size, np.uint8)
    Image(mapped, made, inputs={FIRST: x.astype(np.int8)}).write(operands)
    memory = LoadedProgram(mapped.program, operands, base).loaded()
    run = ShardRun(mapped.program, memory, base, stored.address, partial)
    run.after = memory.copy()
    machine = _StoreLog(chip, run.after)
    machine.run(mapped.program)
    found = run.after[stored.address : stored.address + partial.size].view(np.int8).reshape(partial.shape)
    if not np.array_equal(found, partial):
        raise AssertionError(f"{mapped.graph.name}: the golden model's partial sums are not those of the integers")
    bus = chip.tile.dma.bytes_per_cycle
    run.stores = stores_of_chunks(machine.stores, run.buffer, tokens // chunks * hidden, chunks, bus)
    return run


def _requantized(sums: Integers, columns: Columns) -> Integers:
    return np.clip(functions.requantize(sums, columns.bias, columns.multiplier, columns.shift), -128, 127)


def stores_of_chunks(
    stores: Sequence[Sequence[tuple[int, int]]], buffer: int, chunk_bytes: int, chunks: int, bus: int
) -> list[tuple[int, int, int]]:
    """Number, chunk and words of the stores into the buffer, each given as addresses and bytes of its rows.

    Raises
    ------
    NotSupported
        When a store reaches over a chunk's end, or words are written in parts or twice: a tracker that counts words
        would be wrong.
    """
    found, written = [], np.zeros(chunks * chunk_bytes, np.int64)
    for number, rows in enumerate(stores):
        inside = [(a - buffer, n) for a, n in rows if 0 <= a - buffer < chunks * chunk_bytes]
        if not inside:
            continue
        places = {a // chunk_bytes for a, _ in inside} | {(a + n - 1) // chunk_bytes for a, n in inside}
        if len(inside) < len(rows) or len(places) > 1 or any(a % bus or n % bus for a, n in inside):
            raise NotSupported("tracking stores that are not whole words of one chunk")
        for a, n in inside:
            written[a : a + n] += 1
        found.append((number, places.pop(), sum(n for _, n in inside) // bus))
    if not (written == 1).all():
        raise NotSupported("tracking a buffer that is not written exactly once")
    return found


def _columns(factor: float, count: int, chance: np.random.Generator) -> Columns:
    """Bias, multiplier and shift of columns whose sums are scaled by about ``factor``."""
    factors = factor * chance.uniform(0.8, 1.2, count)
    return columns_of(factors, chance.integers(-500, 500, count).astype(np.float64), after=False)
