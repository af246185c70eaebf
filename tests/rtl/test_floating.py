"""The floating-point circuits against NumPy, bit for bit, on patterns where rounding goes wrong."""

import numpy as np
import pytest
from amaranth import Module, Signal
from amaranth.sim import Simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.rtl.cells import floating
from siliconloom.sim.golden import pim as golden_pim

COUNT = 4000


def patterns(chance, count):
    """Fp32 patterns: any, specials, and neighbours in exponent and fraction."""
    any_ = chance.integers(0, 2**32, count, dtype=np.uint32)
    special = chance.choice(
        np.array(
            [
                0,
                1 << 31,
                0x7F800000,
                0xFF800000,
                0x7FC00001,
                1,
                0x807FFFFF,
                0x00800000,
                0x80800000,
                0x7F7FFFFF,
                0x3F800000,
                0xBF800000,
                0x3F7FFFFF,
                0x4B800000,
                0x33800000,
            ],
            np.uint32,
        ),
        count,
    )
    near = (chance.integers(110, 140, count).astype(np.uint32) << np.uint32(23)) | (
        chance.choice(np.array([0, 1, 2, 0x7FFFFF, 0x400000, 0x3FFFFF], np.uint32), count)
    )
    near |= chance.integers(0, 2, count).astype(np.uint32) << np.uint32(31)
    low = chance.integers(0, 2**25, count, dtype=np.uint32) | (
        chance.integers(0, 2, count).astype(np.uint32) << np.uint32(31)
    )
    return np.choose(chance.choice(4, count, p=[0.3, 0.1, 0.4, 0.2]), [any_, special, near, low])


def evaluated(build, inputs):
    """What a circuit makes of columns of inputs."""
    m = Module()
    signals = [Signal(bits) for bits, _ in inputs]
    result = build(m, *signals)
    found = []

    async def bench(context):
        for values in zip(*(column.tolist() for _, column in inputs), strict=True):
            for signal, value in zip(signals, values, strict=True):
                context.set(signal, value)
            found.append(context.get(result))

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()
    return np.array(found, np.uint32)


def test_sums_are_numpys_bit_for_bit():
    chance = np.random.default_rng(1)
    a, b = patterns(chance, COUNT), patterns(chance, COUNT)
    close = chance.random(COUNT) < 0.3
    b = np.where(close, a ^ np.uint32(1 << 31) ^ chance.integers(0, 4, COUNT).astype(np.uint32), b)
    found = evaluated(lambda m, x, y: floating.float_sum(m, "sum", x, y), [(32, a), (32, b)])
    wanted = golden_pim.float_sum(a, b)
    wrong = np.flatnonzero(found != wanted)
    assert [(hex(a[i]), hex(b[i]), hex(found[i]), hex(wanted[i])) for i in wrong[:5]] == []


def test_products_are_numpys_bit_for_bit():
    chance = np.random.default_rng(2)
    a, b = (patterns(chance, COUNT) >> np.uint32(16) for _ in range(2))

    def build(m, x, y):
        significand = Signal(16)
        m.d.comb += significand.eq((x[:7] | 0x80) * (y[:7] | 0x80))
        return floating.bf16_product(m, "product", x, y, significand)

    found = evaluated(build, [(16, a), (16, b)])
    wanted = golden_pim.bf16_product(a.astype(np.uint16), b.astype(np.uint16))
    wrong = np.flatnonzero(found != wanted)
    assert [(hex(a[i]), hex(b[i]), hex(found[i]), hex(wanted[i])) for i in wrong[:5]] == []


@given(seed=st.integers(0, 2**32 - 1), log=st.integers(0, 6))
@settings(max_examples=50, deadline=None)
def test_the_golden_tree_is_within_the_bound_of_pairwise_summation(seed, log):
    """Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2: log2(n) roundings each."""
    chance = np.random.default_rng(seed)
    n = 1 << log
    a, b = (golden_pim.bf16(chance.standard_normal(n).astype(np.float32)) for _ in range(2))
    products = golden_pim.bf16_product(a, b)
    exact = golden_pim.bf16_values(a).astype(np.float64) * golden_pim.bf16_values(b)
    assert (products.view(np.float32) == exact).all(), "bf16 products are exact in fp32"
    total = float(golden_pim.tree_sum(products).view(np.float32))
    assert abs(total - exact.sum()) <= 1.01 * log * 2.0**-24 * np.abs(exact).sum()


@pytest.mark.parametrize(
    ("pattern", "becomes"),
    [
        (0x00000001, 0),
        (0x807FFFFF, 0x80000000),
        (0x00800000, 0x00800000),
        (0xFFFFFFFF, 0x7FC00000),
        (0x7F800001, 0x7FC00000),
        (0xFF800000, 0xFF800000),
    ],
)
def test_subnormals_are_flushed_and_every_nan_is_the_same(pattern, becomes):
    assert golden_pim.flushed(np.array([pattern], np.uint32))[0] == becomes


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bf16_is_the_nearest_number_of_eight_bits(value):
    pattern = golden_pim.bf16(np.array([value], np.float32))
    near = golden_pim.bf16_values(pattern)[0]
    if np.isfinite(near):
        below, above = (golden_pim.bf16_values((pattern.astype(np.int64) + d).astype(np.uint16))[0] for d in (-1, 1))
        distances = [abs(float(x) - value) for x in (near, below, above) if np.isfinite(x)]
        assert distances[0] == min(distances)
        if distances.count(distances[0]) > 1:
            assert pattern[0] % 2 == 0 or value == 0
