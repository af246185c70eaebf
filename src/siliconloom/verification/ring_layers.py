"""A tensor-parallel MLP block on a ring of NPUs: a program for each chip, and what must come out.

A chip holds its columns of the first weights and the rows of the second that belong to them (Megatron-LM, Shoeybi et
al., arXiv:1909.08053, section 3). It computes its partial sums of the block's result, chunk of tokens by chunk, in the
order in which the ring sends them: the collective begins when the first chunk is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch import Chip, NotSupported
from siliconloom.arch.assembler import check_program
from siliconloom.arch.description import NpuTile
from siliconloom.arch.isa import Instruction, Opcode, Program
from siliconloom.arch.numerics import activation_table, gelu
from siliconloom.arch.ring import RingEngine
from siliconloom.arch.vector import TABLE_BYTES, VectorFunction
from siliconloom.mapper.chip.quantized import LayerWriter, Tensor
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.npu import GoldenMachine
from siliconloom.verification.image import Columns, MemoryImage, read_rows, write_rows
from siliconloom.verification.layers import multipliers
from siliconloom.verification.programs import RandomProgram

Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]
MIDDLE, OUT = 40.0, 70.0
"""Standard deviation of values before the activation, and of partial sums: large enough that some sums saturate."""
STEP = 1 / 16
"""Real value of one step of the hidden values."""


@dataclass
class ShardRun:
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
    return [
        _shard(chip, engine, chips, rank, x, hidden, inner // chips, np.random.default_rng((seed, rank)))
        for rank in range(chips)
    ]


def _shard(
    chip: Chip,
    engine: RingEngine,
    chips: int,
    rank: int,
    x: Integers,
    hidden: int,
    units: int,
    chance: np.random.Generator,
) -> ShardRun:
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    tokens, bus = len(x), tile.dma.bytes_per_cycle
    chunks = engine.chunks(chips)
    rows = tokens // chunks
    first, second = (
        np.clip(np.rint(chance.normal(0, 40, shape)), -127, 127).astype(np.int64)
        for shape in ((hidden, units), (units, hidden))
    )
    # The integer reading.
    table = activation_table(gelu, STEP, STEP)
    look_up = np.frombuffer(table, np.int8).astype(np.int64)
    columns = _columns(MIDDLE / float(np.std(x @ first)), units, chance)
    middle = np.clip(functions.requantize(x @ first, *columns), -128, 127)
    active = look_up[middle & 255]
    out_columns = _columns(OUT / float(np.std(active @ second)), hidden, chance)
    partial = np.clip(functions.requantize(active @ second, *out_columns), -128, 127).astype(np.int8)
    # Memory.
    writer, image = LayerWriter(chip), MemoryImage(tile)
    widths = {"x": hidden, "middle": units, "active": units, "out": hidden}
    tensors = {name: image.tensor(tokens, width) for name, width in widths.items()}
    if tensors["out"].pitch != hidden:
        raise NotSupported(
            f"a result of {hidden} columns, which does not fill its rows of {tensors['out'].pitch} bytes"
        )
    weights, parameters = {}, {}
    for name, matrix, values in (("middle", first, columns), ("out", second, out_columns)):
        _, n, k = writer.gemm_tiles(rows, matrix.shape[1], matrix.shape[0])
        weights[name] = image.weights(matrix, (k, n))
        parameters[name] = image.parameters(values)
    table_base = image.hold(np.frombuffer(table, np.uint8))
    # The program: chunk by chunk, in the order in which the ring wants them, those that it sends first at the front.
    for share in range(chips):
        for piece in range(engine.pieces):
            chunk = engine.chunk_sent(rank, share * engine.pieces + piece, chips)
            part = {name: Tensor(t.base + chunk * rows * t.pitch, rows, t.cols, t.pitch) for name, t in tensors.items()}
            writer.gemm(part["x"], weights["middle"], parameters["middle"], part["middle"])
            writer.elementwise(
                VectorFunction.GELU, part["middle"], part["active"], parameters=table_base, parameter_bytes=TABLE_BYTES
            )
            writer.gemm(part["active"], weights["out"], parameters["out"], part["out"])
    program = writer.finish()
    check_program(program, chip)
    base = image.take(len(program.encode()))
    operands = image.memory()
    write_rows(operands, tensors["x"], x.astype(np.int8))
    memory = RandomProgram(program, operands, base).loaded()
    run = ShardRun(program, memory, base, tensors["out"].base, partial)
    run.after = memory.copy()
    machine = _StoreLog(chip, run.after)
    machine.run(program)
    found = read_rows(run.after, tensors["out"], tokens)
    if not np.array_equal(found, partial):
        raise AssertionError(f"chip {rank}: the golden model's partial sums are not those of the integers")
    run.stores = stores_of_chunks(machine.stores, run.buffer, rows * hidden, chunks, bus)
    return run


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
    made, shifts = multipliers(factor * chance.uniform(0.8, 1.2, count))
    return chance.integers(-500, 500, count), made, shifts
