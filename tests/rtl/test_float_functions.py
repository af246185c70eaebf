"""Functions of fp32 numbers by tables: circuits and golden functions agree on every bit."""

import numpy as np
import pytest
from amaranth import Const, Module, Signal
from amaranth.sim import Simulator

from siliconloom.rtl.cells import float_functions as circuits
from siliconloom.sim.golden import float_functions as golden

SPECIAL = [
    0,
    1 << 31,
    0x7F800000,
    0xFF800000,
    0x7FC00000,
    0xFFC00001,
    1,
    0x00800000,
    0x7F7FFFFF,
    0x7E800000,
    0x7E800001,
]
SPECIAL += [0x3F800000, 0x40000000, 0x46FFFFFF, 0x47000000, 0xC7000000, 0xC7000001, 0x37000000, 0x36FFFFFF, 0xB7000000]


def words(count=600):
    """Any patterns, and numbers of moderate size."""
    numbers = np.random.default_rng(1)
    real = (numbers.standard_normal(count) * 2.0 ** numbers.integers(-20, 20, count)).astype(np.float32)
    any_ = numbers.integers(0, 1 << 32, count, np.uint32)
    return np.concatenate([np.array(SPECIAL, np.uint32), real.view(np.uint32), any_])


def outputs(make, **inputs):
    """What a combinational circuit of signals of given widths gives for each set of values."""
    m, signals = Module(), {name: Signal(width, name=name) for name, (width, _) in inputs.items()}
    result, unused = Signal(64), Signal()
    m.d.sync += unused.eq(~unused)
    value = make(m, **signals)
    m.d.comb += result.eq(value)
    found = []

    async def bench(ctx):
        for row in zip(*(values.tolist() for _, values in inputs.values()), strict=True):
            for signal, each in zip(signals.values(), row, strict=True):
                ctx.set(signal, each)
            found.append(ctx.get(result))

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return np.array(found, np.uint64)


def masked(values):
    return np.asarray(values).astype(np.int64).astype(np.uint64)


def test_numbers_in_fixed_point():
    x = words()
    assert (outputs(lambda m, x: circuits.float_fixed(m, "f", x), x=(32, x)) == masked(golden.fixed(x))).all()


@pytest.mark.parametrize("name", ["reciprocal", "root"])
def test_reciprocals(name):
    x = words()
    if name == "reciprocal":
        x &= 0x7FFFFFFF
    x = np.where((x & 0x7F800000) == 0, x & 0x80000000, x).astype(np.uint32)
    made = {"reciprocal": circuits.float_reciprocal, "root": circuits.float_root}[name]
    wanted = {"reciprocal": golden.reciprocal, "root": golden.reciprocal_root}[name](x)
    assert (outputs(lambda m, x: made(m, "f", x), x=(32, x)) == wanted).all()


def test_powers():
    numbers = np.random.default_rng(2)
    exponent = np.concatenate([numbers.integers(-(2**31), 2**31, 300), numbers.integers(-(2**23), 2**23, 900)])
    exponent[:40] &= -(1 << 16)
    peak = numbers.integers(-(2**15), 2**15 + 1, len(exponent))
    peak[300:] = numbers.integers(-130, 130, 900)
    got = outputs(
        lambda m, x, p: circuits.float_power(m, "f", x, p, Const(0, 1)),
        x=(32, exponent & 2**32 - 1),
        p=(17, peak & 2**17 - 1),
    )
    assert (got == golden.power(exponent, peak)).all()


def test_numbers_over_powers_of_two():
    x, places = words(), np.random.default_rng(3).integers(0, 64, len(words()))
    x = np.where((x & 0x7F800000) == 0, x & 0x80000000, x).astype(np.uint32)
    got = outputs(lambda m, x, n: circuits.lowered(x, n), x=(32, x), n=(6, places))
    assert (got == golden.lowered(x, places)).all()


def test_counts():
    counts = np.array([0, 1, 2, 3, 7, 100, 1000, 32767, 32768])
    wanted = counts.astype(np.float32).view(np.uint32)
    assert (outputs(lambda m, x: circuits.float_count(m, "f", x), x=(16, counts)) == wanted).all()
