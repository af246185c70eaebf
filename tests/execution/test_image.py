"""What programs read is found where they read it, in the layouts of the units."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.document import Document
from siliconloom.execution.image import Image, room_of
from siliconloom.execution.quantize import Columns, Quantized
from siliconloom.execution.walk import At
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.sim.golden.functions import requantize
from siliconloom.sim.golden.npu import GoldenMachine, LoadedProgram, parameter_planes
from siliconloom.sim.golden.vector import parameters_of
from siliconloom.workloads.load import read_workload


@given(st.integers(1, 40), st.sampled_from([8, 16, 64]), st.integers(0, 2**31))
def test_parameters_of_columns_are_read_back(blocks, lanes, seed):
    numbers = np.random.default_rng(seed)
    bounds = ((-(2**31), 2**31), (-(2**15) + 1, 2**15), (0, 63))
    columns = tuple(numbers.integers(*bound, blocks * lanes) for bound in bounds)
    planes = parameter_planes(*columns, lanes)
    for due, got in zip(columns, parameters_of(planes), strict=True):
        assert np.array_equal(got, due)


@pytest.mark.slow(seconds=1)
@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 70),
    st.integers(1, 150),
    st.integers(1, 150),
    st.sampled_from([(16, 16), (8, 16), (4, 128), (32, 256)]),
    st.integers(0, 2**31),
)
def test_a_product_of_any_size_is_numpys(m, k, n, tile, seed):
    """Its operand is no result, as in a list: it is given."""
    (side, bus), chance = tile, np.random.default_rng(seed)
    sets = [(f"tile.array.{name}", str(side)) for name in ("rows", "cols", "load_rows")]
    sets += [("tile.vector.lanes", str(side)), ("tile.dma.bytes_per_cycle", str(bus))]
    chip = load_chip("npu-edge-int8", [*sets, ("memory.dram.access_bytes", str(bus))])
    text = f"kind: gemms\nprecision: int8\ngemms: [{{name: product, m: {m}, k: {k}, n: {n}}}]"
    mapped = map_workload(chip, read_workload(Document.parse(text), "product"))
    a, b = (chance.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (k, n)))
    columns = Columns(chance.integers(-9999, 9999, n), chance.integers(-30000, 30000, n), chance.integers(18, 26, n))
    made = {At("product", 0): Quantized(np.ones(n), weights=b, columns=columns)}
    at, size = room_of(mapped)
    memory = np.zeros(size, np.uint8)
    Image(mapped, made, inputs={"product": a}).write(memory)
    after = LoadedProgram(mapped.program, memory, at).loaded()
    GoldenMachine(chip, after).run(mapped.program)
    stored = mapped.results["product"]
    found = after[stored.address : stored.address + m * stored.row].view(np.int8).reshape(m, stored.row)[:, :n]
    sums = requantize(a.astype(np.int64) @ b.astype(np.int64), columns.bias, columns.multiplier, columns.shift)
    assert np.array_equal(found, np.clip(sums, -128, 127))
