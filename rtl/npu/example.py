"""The example that a folder with a whole tile has: a matrix product in C, what it wrote for one shape, and its bench.

``matmul.c`` lays out operands and packs the program for any shape. This module computes the same in Python, so that
the data of one shape are in the folder before anybody compiles anything; a test compiles the C and holds both against
each other, byte by byte.

C[M,N] = A[M,K] B[K,N] in tiles of m x n x k: three loops around two loads and a product, then a requantisation and a
store of each tile of results. All operands are in double buffers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.description import Chip
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, Semaphore
from siliconloom.arch.layout import packed, padded, row_values
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import COLUMN_LINES, VectorFunction
from siliconloom.arch.word import WORD_BYTES
from siliconloom.rtl.flows.channels import interface_of
from siliconloom.rtl.flows.rules import protocol_rules
from siliconloom.rtl.flows.testbench import RESET_CYCLES
from siliconloom.rtl.library import Circuit
from siliconloom.rtl.npu.example_tiling import (
    INSTRUCTIONS,
    ExampleMemory,
    ExampleTile,
    ProductShape,
    counts_of,
    default_shapes,
    memory_bytes,
    memory_of,
    why_none,
)
from siliconloom.rtl.npu.geometry import PAGE, Geometry
from siliconloom.rtl.npu.registers import register_map
from siliconloom.rtl.npu.testbench import START, memory_parameters, sparse_words

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
FOLDER = "example"
DATA = f"{FOLDER}/data"
BENCH = "example_tb"
SEMAPHORES = (
    ("operands_full", 0),
    ("operands_free", 2),
    ("sums_full", 0),
    ("sums_free", 2),
    ("parameters_full", 0),
    ("parameters_free", 2),
    ("results_full", 0),
    ("results_free", 2),
)
"""Names and counts at the start, in the order of their bits: two slots of each buffer are free."""
BIT = {name: 1 << number for number, (name, _) in enumerate(SEMAPHORES)}
MOST_K = 65_536
"""Depth whose sums fit 32 bits for any operands: 2^31 over 2^14, halved."""


class ExampleRun(Struct, frozen=True, kw_only=True):
    """A product on the tile.

    Parameters
    ----------
    program
        What runs; it stands at address 0.
    before, after
        Main memory before the run and after it, the program included.
    writes
        Registers in the order in which they are written, and their values.
    """

    program: Program
    before: Bytes
    after: Bytes
    writes: list[tuple[int, int]]


def example_program(tile: ExampleTile, shape: ProductShape, counts: ProductShape, memory: ExampleMemory) -> Program:
    """Three loops: rows of tiles, columns of tiles, and the depth."""
    local, sizes = tile.buffers(), tile.sizes(shape)
    # a slot's number is that of the tile, modulo two: a level turns it where the rounds within are odd
    outer = 1 << 1 | (counts.n & 1) << 0
    inner = 1 << 2 | (counts.k & 1) << 1 | (counts.k & counts.n & 1) << 0

    def slots(name: str, parity: int) -> Address:
        return Address(base=local[name].base, slot=local[name].slot, parity=parity)

    def places(base: int, *strides: int) -> Address:
        return Address(base=base, strides=(*strides, *(0,) * (6 - len(strides))))

    moving, stationary = slots("moving", inner), slots("stationary", inner)
    sums = Address(slot=tile.sums_slot, parity=outer)
    depth = 1 << 2
    row = row_values(tile.tile, shape.k)
    if tile.output_stationary:
        load_moving = Instruction(
            opcode=Opcode.LOAD,
            m=1,
            n=sizes["moving"],
            memory=places(memory.moving, counts.k * memory.moving_tile, 0, memory.moving_tile),
            a=moving,
            wait=BIT["operands_free"],
        )
    else:
        load_moving = Instruction(
            opcode=Opcode.LOAD,
            m=shape.m,
            n=row,
            pitch=memory.row,
            local_pitch=row,
            memory=places(memory.moving, shape.m * memory.row, 0, row),
            a=moving,
            wait=BIT["operands_free"],
        )
    by_input = tile.tile.array.dataflow == "input_stationary"
    product = Instruction(
        opcode=Opcode.MATMUL,
        m=shape.n if by_input else shape.m,
        n=shape.m if by_input else shape.n,
        k=shape.k,
        a=stationary if by_input else moving,
        b=moving if by_input else stationary,
        c=sums,
        overwrite=depth,
        wait=BIT["operands_full"],
        first_wait=BIT["sums_free"],
        first=depth,
        release=BIT["operands_free"],
        last_post=BIT["sums_full"],
        last=depth,
    )
    instructions = (
        Instruction(opcode=Opcode.LOOP, m=counts.m),
        Instruction(opcode=Opcode.LOOP, m=counts.n),
        Instruction(
            opcode=Opcode.LOAD,
            m=1,
            n=sizes["parameters"],
            memory=places(memory.parameters, 0, memory.parameter_tile),
            a=slots("parameters", outer),
            wait=BIT["parameters_free"],
            post=BIT["parameters_full"],
        ),
        Instruction(opcode=Opcode.LOOP, m=counts.k),
        load_moving,
        Instruction(
            opcode=Opcode.LOAD,
            m=1,
            n=sizes["stationary"],
            memory=places(memory.stationary, 0, counts.k * memory.stationary_tile, memory.stationary_tile),
            a=stationary,
            post=BIT["operands_full"],
        ),
        product,
        Instruction(opcode=Opcode.NEXT),
        Instruction(
            opcode=Opcode.VECTOR,
            function=VectorFunction.REQUANTIZE,
            m=shape.m,
            n=shape.n,
            a=sums,
            c=slots("results", outer),
            d=slots("parameters", outer),
            wait=BIT["sums_full"] | BIT["parameters_full"] | BIT["results_free"],
            release=BIT["sums_free"] | BIT["parameters_free"],
            post=BIT["results_full"],
        ),
        Instruction(
            opcode=Opcode.STORE,
            m=1,
            n=sizes["results"],
            memory=places(memory.results, counts.n * memory.result_tile, memory.result_tile),
            a=slots("results", outer),
            wait=BIT["results_full"],
            release=BIT["results_free"],
        ),
        Instruction(opcode=Opcode.NEXT),
        Instruction(opcode=Opcode.NEXT),
        Instruction(opcode=Opcode.END),
    )
    return Program(instructions, tuple(Semaphore(name, count) for name, count in SEMAPHORES))


class _Numbers:
    """The example's random numbers (Numerical Recipes, second edition, section 7.1: a quick and dirty generator)."""

    def __init__(self) -> None:
        self.state = 1

    def take(self, bits: int) -> int:
        """The upper bits of the next one."""
        self.state = (self.state * 1_664_525 + 1_013_904_223) % 2**32
        return self.state >> 32 - bits


def operands(whole: ProductShape) -> tuple[Integers, Integers, Integers, Integers, int]:
    """A and B, a bias and a multiplier for each column, and the shift that brings sums to int8."""
    numbers = _Numbers()

    def matrix(rows: int, cols: int) -> Integers:
        values = [numbers.take(8) for _ in range(rows * cols)]
        return np.array(values, np.uint8).view(np.int8).astype(np.int64).reshape(rows, cols)

    a, b = matrix(whole.m, whole.k), matrix(whole.k, whole.n)
    columns = [(numbers.take(12) - 2048, 16_384 + numbers.take(13)) for _ in range(whole.n)]
    bias, multiplier = np.array(columns, np.int64).T
    return a, b, bias, multiplier, 21 + whole.k.bit_length() // 2


def requantized(sums: Integers, bias: Integers, multiplier: Integers, shift: int) -> Integers:
    """(sums + bias) * multiplier / 2^shift in int8, halves to even."""
    value = (sums + bias) * multiplier
    quotient, rest, half = value >> shift, value & (1 << shift) - 1, 1 << shift - 1
    up = (rest > half) | ((rest == half) & (quotient & 1 == 1))
    return np.asarray(np.clip(quotient + up, -128, 127), np.int64)


def example_run(chip: Chip, bus: int, whole: ProductShape, limits: ProductShape, size: int) -> ExampleRun | None:
    """The run of a product in a memory of ``size`` bytes; ``None`` where it does not fit."""
    assert isinstance(chip.tile, NpuTile)
    tile = ExampleTile(chip.tile)
    shape = tile.choose(whole, limits)
    if shape is None or whole.k > MOST_K:
        return None
    counts = counts_of(whole, shape)
    memory = memory_of(tile, bus, shape, counts)
    if memory.end > size:
        return None
    program = example_program(tile, shape, counts, memory)
    a, b, bias, multiplier, shift = operands(whole)
    before = np.zeros(size, np.uint8)
    before[: INSTRUCTIONS * WORD_BYTES] = np.frombuffer(program.encode(), np.uint8)
    _lay_out(before, tile, shape, counts, memory, _filled(a, shape, counts), _depth(b, shape, counts))
    columns = counts.n * shape.n
    planes = np.zeros((3, columns), np.int64)
    planes[:, : whole.n] = bias, multiplier, np.full(whole.n, shift)
    for number in range(counts.n):
        values = _planes(planes[:, number * shape.n : (number + 1) * shape.n], tile.tile.vector.lanes)
        before[memory.parameters + number * memory.parameter_tile :][: len(values)] = values
    results = np.zeros((counts.m * shape.m, columns), np.int64)
    results[:, : whole.n] = requantized(np.zeros((1, 1), np.int64), bias, multiplier, shift)
    results[: whole.m, : whole.n] = requantized(a @ b, bias, multiplier, shift)
    after = before.copy()
    for place in np.ndindex(counts.m, counts.n):
        row, column = place[0] * shape.m, place[1] * shape.n
        lines = np.zeros((shape.m, row_values(tile.tile, shape.n)), np.int8)
        lines[:, : shape.n] = results[row : row + shape.m, column : column + shape.n]
        where = memory.results + (place[0] * counts.n + place[1]) * memory.result_tile
        after[where : where + lines.size] = lines.view(np.uint8).reshape(-1)
    return ExampleRun(program=program, before=before, after=after, writes=_writes(program))


def _filled(a: Integers, shape: ProductShape, counts: ProductShape) -> Integers:
    """A with rows and columns of zeros up to whole tiles."""
    whole = np.zeros((counts.m * shape.m, counts.k * shape.k), np.int64)
    whole[: a.shape[0], : a.shape[1]] = a
    return whole


def _depth(b: Integers, shape: ProductShape, counts: ProductShape) -> Integers:
    """B with rows and columns of zeros up to whole tiles."""
    whole = np.zeros((counts.k * shape.k, counts.n * shape.n), np.int64)
    whole[: b.shape[0], : b.shape[1]] = b
    return whole


def _lay_out(
    image: Bytes,
    tile: ExampleTile,
    shape: ProductShape,
    counts: ProductShape,
    memory: ExampleMemory,
    a: Integers,
    b: Integers,
) -> None:
    """Put whole tiles of both operands where the program loads them from."""
    m, n, k = shape
    array = tile.tile.array
    for row, depth in np.ndindex(counts.m, counts.k):
        part = a[row * m : (row + 1) * m, depth * k : (depth + 1) * k].astype(np.int8)
        if tile.output_stationary:
            blocks = np.zeros((padded(m, array.rows), k), np.int8)
            blocks[:m] = part
            values = blocks.reshape(-1, array.rows, k).transpose(0, 2, 1).reshape(-1)
            where = memory.moving + (row * counts.k + depth) * memory.moving_tile
            image[where : where + values.size] = values.view(np.uint8)
            continue
        for line in range(m):
            where = memory.moving + (row * m + line) * memory.row + depth * row_values(tile.tile, k)
            image[where : where + k] = part[line].view(np.uint8)
    for column, depth in np.ndindex(counts.n, counts.k):
        part = b[depth * k : (depth + 1) * k, column * n : (column + 1) * n].astype(np.int8)
        if tile.output_stationary:
            values = part.reshape(k, -1, array.cols).transpose(1, 0, 2).reshape(-1)
        else:
            values = packed(array, part)
        where = memory.stationary + (column * counts.k + depth) * memory.stationary_tile
        image[where : where + values.size] = np.ascontiguousarray(values).view(np.uint8)


def _planes(values: Integers, lanes: int) -> Bytes:
    """Bias, multiplier and shift of a tile's columns as lines of their bytes, block by block (`Parameters.COLUMNS`)."""
    wide = np.zeros((3, padded(values.shape[1], lanes)), np.int64)
    wide[:, : values.shape[1]] = values
    bias, multiplier, shift = wide
    lines = [bias >> 8 * byte & 255 for byte in range(4)] + [multiplier & 255, multiplier >> 8 & 255, shift, 0 * shift]
    return np.stack(lines).reshape(COLUMN_LINES, -1, lanes).transpose(1, 0, 2).astype(np.uint8).reshape(-1)


def _writes(program: Program) -> list[tuple[int, int]]:
    """Registers that start a run of a program at address 0."""
    offsets = {register.name: register.offset for register in register_map().registers}
    values = {"program_low": 0, "program_high": 0, "program_words": len(program.instructions)}
    values |= {f"semaphore_{number}": each.initial for number, each in enumerate(program.semaphores)}
    return [(offsets[name], value) for name, value in (values | {"control": START}).items()]


def example_files(top: Circuit, chip: Chip, geometry: Geometry) -> dict[str, str]:
    """The example of the tile ``top``, text by file name; nothing for a tile that has none (`why_none`)."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    if why_none(tile):
        return {}
    whole, limits = default_shapes(ExampleTile(tile))
    size = memory_bytes(ExampleTile(tile), geometry.bus)
    run = example_run(chip, geometry.bus, whole, limits, size)
    assert run is not None, "the memory is sized for this shape"
    values = example_values(top, tile, geometry, size) | {"whole": whole, "limits": limits}
    environment = Environment(
        loader=PackageLoader("siliconloom.rtl.npu", "."),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    bench = environment.get_template("example.v.j2").render(**values) + protocol_rules(BENCH)
    return {
        f"{FOLDER}/matmul.c": environment.get_template("example.c.j2").render(**values),
        f"{FOLDER}/{BENCH}.v": bench,
        f"{DATA}/start.hex": "".join(f"{offset:08x}{value:08x}\n" for offset, value in run.writes),
        f"{DATA}/memory.hex": sparse_words(np.zeros_like(run.before), run.before, geometry.bus),
        f"{DATA}/expected.hex": sparse_words(run.before, run.after, geometry.bus),
    }


def example_values(top: Circuit, tile: NpuTile, geometry: Geometry, size: int) -> dict[str, Any]:
    """What the templates of the example need to know of the tile ``top``, in a memory of ``size`` bytes."""
    reset = top.library.reset_port
    levels = [port.name for port in interface_of(top).levels]
    assert "irq" in levels
    example, offsets = ExampleTile(tile), {r.name: r.offset for r in register_map().registers}
    return {
        **memory_parameters(geometry),
        "top": top.module_name,
        "upper": top.library.prefix.upper(),
        "prefix": top.library.prefix,
        "rules": BENCH,
        "bench": BENCH,
        "folder": DATA,
        "words": "WORDS_OF_MEMORY",
        "memory_bytes": size,
        "memory_words": size // geometry.bus,
        "reset": reset,
        "reset_active": f"!{reset}" if top.library.reset == "async_low" else reset,
        "asynchronous": top.library.reset == "async_low",
        "reset_cycles": RESET_CYCLES,
        "dataflow": tile.array.dataflow,
        "columns": example.columns,
        "buffers": example.buffers(),
        "sums_slot": example.sums_slot,
        "semaphores": SEMAPHORES,
        "writes": len(SEMAPHORES) + 4,
        "instructions": INSTRUCTIONS,
        "most_k": MOST_K,
        "page": max(PAGE, geometry.bus),
        "offsets": offsets,
    }


__all__ = ["ExampleRun", "example_files", "example_run", "example_values"]
