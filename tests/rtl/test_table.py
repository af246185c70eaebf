"""A table of constants reads as a list does, for every index."""

import pytest
from amaranth import Module, Signal
from amaranth.hdl import Fragment
from amaranth.sim import Simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.rtl.cells.table import entry


@settings(max_examples=30, deadline=None)
@given(bits=st.integers(1, 6), width=st.integers(1, 17), data=st.data())
def test_every_entry_is_the_value_of_its_index(bits, width, data):
    values = data.draw(st.lists(st.integers(0, (1 << width) - 1), min_size=1, max_size=1 << bits))
    m, index, out = Module(), Signal(bits), Signal(width)
    m.d.comb += out.eq(entry(m, "row", values, index, width))
    found = []

    async def bench(context):
        for place in range(1 << bits):
            context.set(index, place)
            await context.delay(1)
            found.append(context.get(out))

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()
    assert found == values + [0] * ((1 << bits) - len(values))


def test_what_does_not_fit_is_refused():
    m = Module()
    Fragment.get(m, None)  # of a module that is never elaborated Amaranth warns
    with pytest.raises(ValueError, match="table row: 256 does not fit 8 bits"):
        entry(m, "row", [1, 256], Signal(1), 8)
    with pytest.raises(ValueError, match="an index of 1 bits does not name 3 values"):
        entry(m, "row", [1, 2, 3], Signal(1), 8)
