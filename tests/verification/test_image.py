"""Where operands lie in memory: apart from each other, aligned, and there from the beginning."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.isa import WORD_BYTES
from siliconloom.sim.golden.vector import parameters_of
from siliconloom.verification.image import MemoryImage, read_rows, row_pitch, write_rows

pieces = st.lists(st.binary(min_size=1, max_size=600), min_size=1, max_size=8)


def image_of(bus):
    sets = [("tile.dma.bytes_per_cycle", str(bus)), ("memory.dram.access_bytes", str(bus))]
    return MemoryImage(load_chip("npu-edge", sets).tile)


@given(pieces, st.sampled_from([16, 64, 512]), st.integers(1, 70), st.integers(1, 9), st.data())
def test_what_is_held_stays_where_it_was_put(held, bus, cols, rows, data):
    image, places, found = image_of(bus), [], []
    for each in held:
        found.append(image.hold(np.frombuffer(each, np.uint8)))
        places.append((found[-1], len(each)))
        if data.draw(st.booleans()):
            places.append((image.take(len(each)), len(each)))
    tensor = image.tensor(rows, cols)
    places.append((tensor.base, rows * tensor.pitch))
    memory = image.memory()
    values = np.random.default_rng(0).integers(-128, 128, (rows, cols)).astype(np.int8)
    write_rows(memory, tensor, values)
    assert np.array_equal(read_rows(memory, tensor, rows), values)
    assert all(base % WORD_BYTES == base % bus == 0 for base, _ in places)
    assert all(a + size <= b for (a, size), (b, _) in pairwise(places))
    assert places[-1][0] + places[-1][1] <= len(memory)
    for base, each in zip(found, held, strict=True):
        assert memory[base : base + len(each)].tobytes() == each


@given(st.integers(1, 40), st.integers(0, 2**31))
def test_parameters_of_columns_are_read_back(count, seed):
    image, numbers = image_of(16), np.random.default_rng(seed)
    bounds = ((-(2**31), 2**31), (-(2**15) + 1, 2**15), (0, 63))
    columns = tuple(numbers.integers(*bound, count) for bound in bounds)
    base = image.parameters(columns)
    lanes = image.lanes
    planes = image.memory()[base : base + -(-count // lanes) * 8 * lanes].reshape(-1, 8, lanes)
    for due, got in zip(columns, parameters_of(planes), strict=True):
        assert np.array_equal(got[:count], due)
        assert not got[count:].any()


@given(st.integers(1, 4096), st.sampled_from([4, 16, 64, 256]))
def test_rows_keep_the_alignment_of_the_bus(width, bus):
    pitch = row_pitch(width, bus)
    assert pitch >= width
    assert pitch % bus == 0 if width > bus else bus % pitch == 0
