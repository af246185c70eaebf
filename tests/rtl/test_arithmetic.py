"""Arithmetic of circuits beside that of the golden model."""

import numpy as np
import pytest
from amaranth import Module, Signal, signed
from amaranth.sim import Simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.rtl.cells.arithmetic import Integers
from siliconloom.sim.golden import functions
from tests.in_turn import in_turn


@pytest.mark.parametrize(("width", "bits"), in_turn([(42, 8), (51, 24), (8, 8), (6, 8)], 0, seconds=4))
def test_what_is_rounded_is_the_golden_models(width, bits):
    value, places, rounded, clipped = (Signal(signed(width)), Signal(6), Signal(signed(bits)), Signal(signed(bits)))
    m = Module()
    m.d.comb += [rounded.eq(Integers(bits).rounded(value, places)), clipped.eq(Integers(bits).clip(value))]
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    edges = [0, 1, -1, most, most + 1, least, least - 1, (1 << width - 1) - 1, -(1 << width - 1)]
    shifts = st.integers(0, 63)
    # near a half of some power of two, near the ends of the result's range, and anything
    near = st.builds(lambda n, by, off: (n << by) + off, st.integers(least - 2, most + 2), shifts, st.integers(-1, 1))
    halves = st.builds(lambda n, by, off: ((2 * n + 1) << by) + off, st.integers(), shifts, st.integers(-1, 1))
    drawn = st.one_of(st.sampled_from(edges), near, halves, st.integers())

    cases = []

    async def bench(ctx):
        for number, by in cases:
            kept = (number + (1 << width - 1)) % (1 << width) - (1 << width - 1)
            ctx.set(value, kept)
            ctx.set(places, by)
            wanted = int(np.clip(functions.half_even(np.int64(kept), by), least, most))
            assert ctx.get(rounded) == wanted, (kept, by)
            assert ctx.get(clipped) == max(least, min(most, kept)), kept

    simulator = Simulator(m)
    simulator.add_testbench(bench)

    @settings(max_examples=4, deadline=None)
    @given(st.lists(st.tuples(drawn, shifts), min_size=40, max_size=80))
    def holds(drawn_cases):
        if cases:
            simulator.reset()  # begins the bench anew
        cases[:] = drawn_cases
        simulator.run()

    holds()
