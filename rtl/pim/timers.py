"""JEDEC's constraints as down counters: one for each pair of commands of which the second waits for the first."""

from __future__ import annotations

from amaranth import Const, Module, Signal
from amaranth.hdl import Value


def elapsed(m: Module, name: str, event: Value, cycles: int) -> Value:
    """A bit that is low for the ``cycles`` - 1 cycles after every ``event``; high after reset.

    A command that needs ``cycles`` after another goes out when this bit of that command is high.
    """
    if cycles <= 1:
        return Const(1, 1)
    left = Signal(range(cycles), name=f"{name}_left")
    with m.If(event):
        m.d.sync += left.eq(cycles - 1)
    with m.Elif(left.any()):
        m.d.sync += left.eq(left - 1)
    ready = Signal(name=f"{name}_elapsed")
    m.d.comb += ready.eq(~left.any())
    return ready


def activation_window(m: Module, name: str, events: list[tuple[Value, int]], cycles: int, banks: int) -> list[Signal]:
    """Whether one more, and ``banks`` more, activations keep the last four within tFAW.

    Parameters
    ----------
    m, name
        Where the counters go.
    events
        Strobes of activations with the banks that each opens at once, 1, 2 or 4; at most one strobe a cycle.
    cycles
        tFAW.
    banks
        How many are to be activated together.

    Returns
    -------
    list
        Bits: one bank may be activated; ``banks`` may be.
    """
    ages = [Signal(range(max(cycles, 2)), name=f"{name}_age_{number}") for number in range(4)]
    for age in ages:
        with m.If(age.any()):
            m.d.sync += age.eq(age - 1)
    for strobe, opened in events:
        with m.If(strobe):
            for number, age in enumerate(ages):
                earlier = ages[number - opened] if number >= opened else None
                if earlier is None:
                    m.d.sync += age.eq(cycles - 1)
                else:
                    m.d.sync += age.eq(earlier - earlier.any())
    found = []
    for number, count in enumerate((1, banks)):
        ready = Signal(name=f"{name}_window_{number}")
        m.d.comb += ready.eq(~ages[4 - count].any())
        found.append(ready)
    return found
