"""Tables of constants, written so that their Verilog is short and simulators are fast on it."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth import Array, Const, Module, Signal
from amaranth.hdl import Value


def entry(m: Module, name: str, values: Sequence[int], index: Value, width: int) -> Value:
    """``values[index]`` in ``width`` bits, combinational; what lies behind the last value reads as zero.

    Two steps: the upper half of the index chooses a row of constants, the lower half a field of it. One multiplexer of
    all values would be as many lines of Verilog as there are values, which a simulator walks through one by one.

    Parameters
    ----------
    m
        The module that the row's signal, called ``name``, is added to.
    values
        Non-negative, each of ``width`` bits at most, no more than ``index`` can name.
    index
        Number of the value.

    Raises
    ------
    ValueError
        For a value that does not fit, or more values than ``index`` can name.
    """
    if len(values) > 1 << len(index):
        raise ValueError(f"an index of {len(index)} bits does not name {len(values)} values")
    for value in values:
        if not 0 <= value < 1 << width:
            raise ValueError(f"table {name}: {value} does not fit {width} bits")
    inner = len(index) // 2
    columns = 1 << inner
    rows = []
    for first in range(0, len(values), columns):
        fields = sum(value << place * width for place, value in enumerate(values[first : first + columns]))
        rows.append(Const(fields, columns * width))
    rows += [Const(0, columns * width)] * ((1 << len(index) - inner) - len(rows))
    row = Signal(columns * width, name=name)
    m.d.comb += row.eq(Array(rows)[index[inner:]])
    return row.word_select(index[:inner], width)


__all__ = ["entry"]
