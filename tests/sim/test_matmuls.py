"""Whole matmul instructions in floating point against a reading of their own, one product after the other."""

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.floats import float_product, float_sum, flushed, narrowed, widened
from siliconloom.arch.isa import Address, Instruction, Opcode
from siliconloom.arch.layout import packed, row_values
from siliconloom.sim.golden.npu import GoldenMachine

MEMORY = np.zeros(16, np.uint8)


@lru_cache(maxsize=64)
def chip_of(dataflow, dtype, rows, cols, load, wide):
    sets = {
        "tile.array.dataflow": dataflow,
        "tile.array.operands": f"[{dtype.value}]",
        "tile.array.rows": rows,
        "tile.array.cols": cols,
        "tile.array.load_rows": load,
        "tile.vector.lanes": 4,
    }
    sets |= {"tile.vector.format": "fp32"} if wide else {}
    return load_chip("npu-edge-int8", [(key, str(value)) for key, value in sets.items()])


class Risen:
    """A row memory that says by how much the peaks of rows have risen."""

    def __init__(self, rise):
        self.held = rise

    def rise(self, rows, _):
        return self.held[:rows]


def over(words, places):
    """Numbers over powers of two: what falls below the smallest normal number is a zero of its sign."""
    numbers = words.view(np.float32).astype(np.float64)
    found = np.where(np.isfinite(numbers), np.ldexp(numbers, -places), numbers)
    found = np.where(np.abs(found) < 2.0**-126, np.copysign(0.0, found), found)
    return flushed(found.astype(np.float32).view(np.uint32))


def expected(a, b, total, rows, load):
    """Folds of so many rows, in each of them row r with the others of r modulo ``load``, chain after chain."""
    order = [row for chain in range(load) for row in range(rows) if row % load == chain]
    for start in range(0, a.shape[1], rows):
        part = np.zeros((len(a), b.shape[1]), np.uint32)
        for k in (start + row for row in order if start + row < a.shape[1]):
            part = float_sum(part, float_product(a[:, k : k + 1], b[k : k + 1]))
        total = part if total is None else float_sum(total, part)
    return total


@given(
    dataflow=st.sampled_from(["weight_stationary", "input_stationary"]),
    dtype=st.sampled_from([DataType.BF16, DataType.BF16, DataType.FP16]),
    array=st.sampled_from([(2, 3, 1), (3, 4, 3), (4, 2, 2), (4, 4, 4), (5, 3, 1), (8, 4, 2), (8, 5, 4)]),
    sizes=st.tuples(*[st.integers(1, 19)] * 3),
    narrow=st.integers(0, 1),
    wide=st.booleans(),
    kind=st.sampled_from(["any", "near", "tiny"]),
    adds=st.booleans(),
    rescale=st.booleans(),
    place=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_product_is_that_of_one_after_the_other(
    dataflow, dtype, array, sizes, narrow, wide, kind, adds, rescale, place, seed
):
    (rows, cols, load), (outer, beats, k) = array, sizes
    wide &= dataflow == "weight_stationary"
    chance, clear = np.random.default_rng(seed), 0x6000 if kind == "near" else 0
    chip = chip_of(dataflow, dtype, rows, cols, load, wide)
    tile = chip.tile
    machine = GoldenMachine(chip, MEMORY)
    machine.scratchpad[:] = chance.integers(0, 256, len(machine.scratchpad))
    stays = (chance.integers(0, 1 << 16, (k, outer)) & ~clear).astype(np.uint16)
    stays &= np.uint16(0x81FF if kind == "tiny" else 0xFFFF)  # of the least exponents: many count as zeros
    if wide:
        moves = chance.integers(0, 1 << 32, (beats, k)).astype(np.uint32) & np.uint32(~(clear << 16) & 0xFFFFFFFF)
    else:
        moves = (chance.integers(0, 1 << 16, (beats, k)) & ~clear).astype(np.uint16)
    if kind == "tiny":
        real = chance.normal(0, 4, moves.shape).astype(np.float32).view(np.uint32)
        moves = real if wide else narrowed(real, dtype).astype(np.uint16)
    lines = chance.integers(0, 1 << 16, (beats, row_values(tile, k, narrow))).astype(moves.dtype)
    lines[:, :k] = moves
    held, at = packed(tile.array, stays, narrow).view(np.uint8), 4096
    machine.scratchpad[: lines.nbytes] = lines.view(np.uint8).reshape(-1)
    machine.scratchpad[at : at + len(held)] = held
    sums = flushed(chance.integers(0, 1 << 32, machine.sums.shape).astype(np.uint32))
    machine.sums[:] = sums.view(np.int32)
    if kind == "tiny":
        sums = np.zeros_like(sums)
        machine.sums[:] = 0
    rise = chance.integers(0, 64, beats)
    machine.rows = Risen(rise)
    moving, staying = Address(base=0), Address(base=at)
    a, b = (staying, moving) if dataflow == "input_stationary" else (moving, staying)
    m, n = (outer, beats) if dataflow == "input_stationary" else (beats, outer)
    pitch = 4 * (1 << (cols - 1).bit_length())
    machine.execute(
        Instruction(
            opcode=Opcode.MATMUL,
            dtype=tile.circuit_format,
            m=m,
            n=n,
            k=k,
            narrow=narrow,
            accumulate=adds,
            overwrite=0 if adds else 63,
            rescale=rescale,
            a=a,
            b=b,
            c=Address(base=place * pitch),
            packing=Packing(dtype, 0) if wide else None,
        ),
        [0] * 6,
    )
    panels = -(-outer // cols)
    lines_of = sums[place : place + panels * beats].reshape(panels, beats, cols)
    before = np.concatenate(list(lines_of), axis=1)[:, :outer]
    with np.errstate(all="ignore"):
        before = over(before, rise[:, None]) if rescale else before
        left = widened(narrowed(moves, dtype) if wide else moves, dtype)
        wanted = expected(left, widened(stays, dtype), before if adds else None, rows, load)
    after = machine.sums.astype(np.int32).view(np.uint32)
    found = np.concatenate(list(after[place : place + panels * beats].reshape(panels, beats, cols)), axis=1)
    np.testing.assert_array_equal(found[:, :outer], wanted)
    np.testing.assert_array_equal(after[:place], sums[:place])
    np.testing.assert_array_equal(after[place + panels * beats :], sums[place + panels * beats :])


def test_the_reading_has_orders_of_its_own():
    """With several chains the order of a fold is not that of its rows, and where sums are rounded it counts."""
    words = np.array([[2.0**24, 1.0, -(2.0**24), 1.0]], np.float32).view(np.uint32)
    ones = np.ones((4, 1), np.float32).view(np.uint32)
    one, two = (expected(words, ones, None, 4, load).view(np.float32).item() for load in (1, 2))
    assert (one, two) == (pytest.approx(1.0), pytest.approx(2.0))
