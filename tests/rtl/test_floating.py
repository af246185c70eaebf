"""The floating-point circuits against NumPy, bit for bit, on patterns where rounding goes wrong."""

import numpy as np
import pytest
from amaranth import Cat, Module, Signal
from amaranth.sim import Simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import floats
from siliconloom.arch.datatype import DataType
from siliconloom.rtl.cells import floating

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


@pytest.mark.slow(seconds=2.5)
def test_sums_are_numpys_bit_for_bit():
    chance = np.random.default_rng(1)
    a, b = patterns(chance, COUNT), patterns(chance, COUNT)
    close = chance.random(COUNT) < 0.3
    b = np.where(close, a ^ np.uint32(1 << 31) ^ chance.integers(0, 4, COUNT).astype(np.uint32), b)
    found = evaluated(lambda m, x, y: floating.float_sum(m, "sum", x, y), [(32, a), (32, b)])
    wanted = floats.float_sum(a, b)
    wrong = np.flatnonzero(found != wanted)
    assert [(hex(a[i]), hex(b[i]), hex(found[i]), hex(wanted[i])) for i in wrong[:5]] == []


FORMATS = (DataType.BF16, DataType.FP16, DataType.FP8_E4M3, DataType.FP8_E5M2)


def product_circuit(dtype):
    """A product of two numbers of a format, as an element of an array makes it."""
    fraction = dtype.layout.fraction_bits

    def build(m, x, y):
        a, b = Signal(9 + fraction), Signal(9 + fraction)
        significand = Signal(2 * fraction + 2)
        m.d.comb += [
            a.eq(floating.widened(m, "a", x, dtype.layout)),
            b.eq(floating.widened(m, "b", y, dtype.layout)),
            significand.eq(Cat(a[:fraction], 1) * Cat(b[:fraction], 1)),
        ]
        return floating.float_product(m, "product", floating.product_parts(a, b, fraction), significand, fraction)

    return build


def check_products(dtype, a, b):
    found = evaluated(product_circuit(dtype), [(dtype.bits, a), (dtype.bits, b)])
    wanted = floats.float_product(floats.widened(a, dtype), floats.widened(b, dtype))
    wrong = np.flatnonzero(found != wanted)
    assert [(hex(a[i]), hex(b[i]), hex(found[i]), hex(wanted[i])) for i in wrong[:5]] == []


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("dtype", FORMATS)
def test_products_are_numpys_bit_for_bit(dtype):
    chance = np.random.default_rng(2)
    a, b = (patterns(chance, COUNT) >> np.uint32(32 - dtype.bits) for _ in range(2))
    check_products(dtype, a, b)


@pytest.mark.slow(seconds=1)
def test_products_of_fp32_are_numpys():
    """Also where what is rounded reaches the smallest normal number, or passes the largest."""
    chance = np.random.default_rng(3)
    a, b = patterns(chance, COUNT), patterns(chance, COUNT)
    near = chance.random(COUNT) < 0.3  # exponents whose product is about the smallest normal one, or the largest
    field = (b >> np.uint32(23) & np.uint32(255)).astype(np.int64)
    other = np.clip(chance.choice([127, 381], COUNT) - field + chance.integers(-1, 2, COUNT), 0, 254)
    a = np.where(near, a & np.uint32(0x807FFFFF) | other.astype(np.uint32) << np.uint32(23), a)
    dense = chance.random(COUNT) < 0.3
    a, b = (np.where(dense, x | np.uint32(0x7FFFF0), x) for x in (a, b))
    found = evaluated(lambda m, x, y: floating.float_multiply(m, "product", x, y), [(32, a), (32, b)])
    wanted = floats.float_product(a, b)
    wrong = np.flatnonzero(found != wanted)
    assert [(hex(a[i]), hex(b[i]), hex(found[i]), hex(wanted[i])) for i in wrong[:5]] == []


@pytest.mark.parametrize("dtype", FORMATS)
def test_rounding_to_a_short_format_is_that_of_the_golden_model(dtype):
    """Any number, and those whose exponents the format has, halfway between two of it and beside that."""
    chance = np.random.default_rng(4)
    a, layout = patterns(chance, COUNT), dtype.layout
    fields = chance.integers(126 - layout.bias - layout.fraction_bits, 130 + layout.bias, COUNT)
    near = np.clip(fields, 0, 255).astype(np.uint32) << np.uint32(23) | a & np.uint32(0x807FFFFF)
    a = np.where(chance.random(COUNT) < 0.7, near, a)
    low = chance.integers(0, 24, COUNT).astype(np.uint32)
    a = np.where(chance.random(COUNT) < 0.5, a >> low << low, a)
    a = (a.astype(np.int64) + chance.choice([-1, 0, 0, 1], COUNT)).astype(np.uint32)
    found = evaluated(lambda m, x: floating.narrowed(m, "short", x, layout), [(32, a)])
    wrong = np.flatnonzero(found != floats.narrowed(a, dtype))
    assert [(hex(a[i]), hex(found[i]), hex(floats.narrowed(a, dtype)[i])) for i in wrong[:5]] == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [each for each in FORMATS if each.bits == 8])
def test_products_of_all_pairs_of_bytes_are_numpys(dtype):
    a, b = (each.ravel().astype(np.uint32) for each in np.meshgrid(np.arange(256), np.arange(256)))
    check_products(dtype, a, b)


@given(seed=st.integers(0, 2**32 - 1), log=st.integers(0, 6))
@settings(max_examples=50, deadline=None)
def test_the_golden_tree_is_within_the_bound_of_pairwise_summation(seed, log):
    """Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2: log2(n) roundings each."""
    chance = np.random.default_rng(seed)
    n = 1 << log
    a, b = (floats.widened(floats.patterns_of(chance.standard_normal(n), DataType.BF16), DataType.BF16) for _ in "ab")
    products = floats.float_product(a, b)
    exact = a.view(np.float32).astype(np.float64) * b.view(np.float32)
    assert (products.view(np.float32) == exact).all(), "bf16 products are exact in fp32"
    total = float(floats.tree_sum(products).view(np.float32))
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
    assert floats.flushed(np.array([pattern], np.uint32))[0] == becomes
