"""A program whose softmax comes tile by tile of its columns, with peaks and totals that are carried in between."""

from __future__ import annotations

from typing import Any

import numpy as np

from siliconloom.arch import Chip
from siliconloom.arch.isa import Address, Opcode
from siliconloom.arch.layout import padded, row_values, sums_lines, sums_pitch
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction
from siliconloom.arch.word import LOCAL_BITS
from siliconloom.sim.golden.npu import (
    LoadedProgram,
    float_parameter_planes,
    float_scalar_bytes,
    parameter_planes,
    scalar_bytes,
)
from siliconloom.verification.chain import Chain, Fields, Places
from siliconloom.verification.images import RESULTS, random_image
from siliconloom.verification.writer import product_sizes

TILES = 3
ROWS = (200, 5)
"""Rows of a tile; as many only where there is room for tiles of two keys and more."""
FAR = 7
"""A shift that leaves exponents so far apart that peaks rise by more bits than a sum has; by few of them: `NEAR`."""
NEAR = 12
SCALARS, KEYS, VALUES, QUERIES = 4096, 6144, 22528, 34816
"""Where parameters, tiles of 2,048 bytes of keys and of values, and what is multiplied by keys lie in main memory."""


def carry(chip: Chip, chain: Chain, places: Places) -> LoadedProgram:
    """Append tiles of scores, their powers and their products, twice: with peaks that rise far, and under a mask.

    An array that keeps its sums takes no powers in the vector unit's order: there the last tile's sums are divided.
    """
    assert isinstance(chip.tile, NpuTile)
    tile, numbers = chip.tile, np.random.default_rng(22)
    dtype = tile.circuit_format
    memory = random_image(numbers, dtype, odd=0)
    keeps, by_input = tile.array.dataflow != "output_stationary", tile.array.dataflow == "input_stationary"
    rows, keys, depth, wide = _sizes(tile, places.bank)
    shape: Fields = {"m": keys, "n": rows} if by_input else {"m": rows, "n": keys}
    sizes = product_sizes(tile, shape["m"], shape["n"], depth)
    stays, moves = (sizes[0], sizes[1]) if by_input else (sizes[1], sizes[0])
    weights, moving, parameters, out, powers = (place * places.bank for place in (0, 1, 3, 4, 5))
    a, b = (weights, moving) if by_input else (moving, weights)

    def load(size: int, source: int, target: int) -> None:
        fields: Fields = {"memory": Address(base=source), "a": Address(base=target)}
        chain.add(Opcode.LOAD, m=1, n=places.aligned(size), **fields)

    held = _parameters(memory, tile, wide if keeps else keys, numbers, 2**5 if keeps else 1)
    if keeps and dtype.is_integer:  # small values, so that one step of an older sum shows in the result
        memory[VALUES:RESULTS] = numbers.integers(-1, 2, RESULTS - VALUES).astype(np.int8).view(np.uint8)
    load(held[1], SCALARS, parameters)
    load(moves, QUERIES, moving)
    context = sizes[2] * sums_pitch(tile.array)
    half = places.bank // 2
    for number, masked in enumerate((False, True)):
        for turn in range(TILES):
            slot: Fields = {"slot": half, "odd": (turn + number) & 1}
            load(stays, KEYS + (3 * number + turn) * 2048, weights)
            chain.add(Opcode.MATMUL, **shape, k=depth, a=Address(base=a), b=Address(base=b))
            mask: Fields = (
                {"k": 2, "b": Address(base=((TILES - 1 - turn) * keys - 2) % (1 << LOCAL_BITS))} if masked else {"k": 1}
            )
            chain.add(
                Opcode.VECTOR,
                function=VectorFunction.SOFTMAX_ONLINE,
                m=rows,
                n=keys,
                **mask,
                c=Address(base=powers if keeps else out, **slot),
                d=Address(base=parameters + held[0] * (not masked)),
                accumulate=int(turn > 0),
            )
            if keeps:
                product: Fields = {"m": rows, "n": wide, "a": Address(base=powers, **slot), "b": Address(base=weights)}
                if by_input:
                    product = {"m": wide, "n": rows, "a": product["b"], "b": product["a"]}
                values = product_sizes(tile, product["m"], product["n"], keys)[0 if by_input else 1]
                load(values, VALUES + (3 * number + turn) * 2048, weights)
                chain.add(
                    Opcode.MATMUL,
                    **product,
                    k=keys,
                    c=Address(base=context),
                    accumulate=int(turn > 0),
                    rescale=int(turn > 0),
                )
        columns = wide if keeps else keys
        sums = Address(base=context if keeps else 0)
        totals = Address(slot=half, odd=(TILES - 1 + number) & 1)
        closing: Fields = {"function": VectorFunction.REQUANTIZE_ROWS, "a": sums, "b": totals, "c": Address(base=out)}
        chain.add(Opcode.VECTOR, m=rows, n=columns, k=1, d=Address(base=parameters + 2 * held[0]), **closing)
        _store(tile, chain, (rows, columns), RESULTS + number * 8192, out)
    return chain.program(memory)


def _sizes(tile: NpuTile, bank: int) -> tuple[int, int, int, int]:
    """Rows and keys of a tile, depth of the scores, and columns of the result, as many as there is room for."""
    array, lanes, element = tile.array, tile.vector.lanes, tile.element_bytes
    by_input = array.dataflow == "input_stationary"

    def fits(rows: int, keys: int, depth: int, wide: int) -> bool:
        shape = (keys, rows) if by_input else (rows, keys)
        sizes = (wide, rows) if by_input else (rows, wide)
        scores, products = product_sizes(tile, *shape, depth), product_sizes(tile, *sizes, keys)
        row = row_values(tile, keys if array.dataflow == "output_stationary" else wide)
        values = products[0 if by_input else 1]
        most = max(
            *scores[:2], values, 2 * element * rows * row_values(tile, keys), element * rows * row_values(tile, wide)
        )
        held = element * (2 * padded(8, lanes) + 8 * padded(max(wide, keys), lanes))
        stays, moves = scores[:2] if by_input else scores[1::-1]
        there = (
            max(most, held) <= bank and stays <= 2048 and moves <= RESULTS - QUERIES and element * rows * row <= 8192
        )
        return there and scores[2] + products[2] <= sums_lines(tile)

    found = ROWS[-1], 1, 1, 1
    for rows in ROWS:
        keys, depth, wide = 2 * array.rows + 1, array.rows + 1, array.cols + 1
        while not fits(rows, keys, depth, wide) and max(keys, depth, wide) > 1:
            keys, depth, wide = (max(size - 1, 1) for size in (keys, depth, wide))
        found = rows, keys, depth, wide
        if fits(*found) and keys > 1:
            break
    return found


def _parameters(memory: Any, tile: NpuTile, columns: int, numbers: np.random.Generator, times: int) -> tuple[int, int]:
    """Put both scalars and the columns' parameters into memory; returns the bytes of one scalar's line, and of all.

    Multipliers are so many ``times`` those with which sums of scores fit a byte.
    """
    lanes, size = tile.vector.lanes, tile.element_bytes
    line, count = size * padded(8, lanes), padded(columns, lanes)
    if not tile.circuit_format.is_integer:
        bias, multiplier = (numbers.standard_normal(count).astype(np.float32).view(np.uint32) for _ in range(2))
        planes = float_parameter_planes(bias, multiplier, lanes, size)
        for place, scale in enumerate((0.7, 24.0)):
            scalars = float_scalar_bytes(scale, 0, size)
            memory[SCALARS + place * line : SCALARS + place * line + scalars.size] = scalars
        memory[SCALARS + 2 * line : SCALARS + 2 * line + planes.size] = planes
        return line, 2 * line + planes.size
    planes = parameter_planes(
        numbers.integers(-(2**12), 2**12, count),
        times * numbers.integers(64, 256, count),
        numbers.integers(10, 14, count),
        lanes,
    ).reshape(-1)
    for place, shift in enumerate((NEAR, FAR)):
        memory[SCALARS + place * line : SCALARS + place * line + 8] = scalar_bytes(2**13 + 77, 1, shift)
    memory[SCALARS + 2 * line : SCALARS + 2 * line + planes.size] = planes
    return line, 2 * line + planes.size


def _store(tile: NpuTile, chain: Chain, shape: tuple[int, int], target: int, out: int) -> None:
    """The rows of a result, by columns: what lies between them has never been written."""
    rows, columns = shape
    size = tile.element_bytes
    row, line = size * row_values(tile, columns), tile.parameter_line
    part = min(line, tile.dma.bytes_per_cycle)
    for at in range(0, size * padded(columns, tile.vector.lanes), part):
        where: Fields = {"memory": Address(base=target + at), "a": Address(base=out + at)}
        chain.add(Opcode.STORE, m=rows, n=part, pitch=row, local_pitch=row, **where)
