"""Rows and grids of processing elements, composed by halving.

A row of n elements is a row of ceil(n/2) beside a row of floor(n/2); a grid of R rows is a grid of ceil(R/2) above a
grid of floor(R/2). Each distinct size is one module, so a 128 x 128 array is about thirty small ones. An element, a
row and a grid have the same port names, so any of them can be the half of a larger one.
"""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Module, Signal
from amaranth.lib.wiring import In, Out
from msgspec import Struct

from siliconloom.rtl.array.arithmetic import Arithmetic
from siliconloom.rtl.array.element import CONTROLS, OutputElement, StationaryElement, stationary_controls
from siliconloom.rtl.library import Circuit, Library


class GridFabric(Struct, frozen=True):
    """What an array is made of.

    Parameters
    ----------
    output_stationary
        `OutputElement`, otherwise `StationaryElement`.
    """

    arithmetic: Arithmetic
    output_stationary: bool

    @property
    def horizontal(self) -> tuple[tuple[str, int], ...]:
        """Signals that flow to the right: name and bits."""
        if self.output_stationary:
            return (("a", self.arithmetic.a_bits), *((name, 1) for name in CONTROLS))
        return (("moving", self.arithmetic.bits), *((name, 1) for name in stationary_controls(self.arithmetic)))

    @property
    def operand_bits(self) -> int:
        """Width of the operand that flows downwards, in one column."""
        return self.arithmetic.b_bits if self.output_stationary else self.arithmetic.bits

    @property
    def operand(self) -> str:
        """The operand that flows downwards."""
        return "b" if self.output_stationary else "load"

    @property
    def result(self) -> str:
        """The result that flows downwards."""
        return "drain" if self.output_stationary else "sum"

    def resets(self, cols: int, right: bool) -> bool:
        """Tell whether anything in ``cols`` columns has a reset: control bits that move on do."""
        return not self.output_stationary or cols > 1 or right or self.arithmetic.multiply_stages > 0

    def element(self, library: Library, right: bool, below: bool) -> Circuit:
        """The element at a place with or without neighbours to the right and below."""
        if self.output_stationary:
            return library.make(OutputElement, self.arithmetic, passes_right=right, passes_down=below)
        return library.make(StationaryElement, self.arithmetic, passes_right=right, passes_load=below)

    def ports(self, rows: int, cols: int, right: bool, below: bool) -> dict[str, Any]:
        """Ports of ``rows`` x ``cols`` elements, lanes side by side, lane 0 in the low bits."""
        bits, sum_bits = self.operand_bits, self.arithmetic.state_bits
        made: dict[str, Any] = {"en": In(1)}
        made |= {name: In(rows * width) for name, width in self.horizontal}
        made |= {self.operand: In(cols * bits), self.result: In(cols * sum_bits)}
        made |= {f"{self.result}_out": Out(cols * sum_bits)}
        if right:
            made |= {f"{name}_out": Out(rows * width) for name, width in self.horizontal}
        if below:
            made |= {f"{self.operand}_out": Out(cols * bits)}
        return made


class GridRow(Circuit):
    """``cols`` elements side by side.

    Parameters
    ----------
    right, below
        Has neighbours to the right, below: only then the signals that flow there are ports.

    Members
    -------
    See `GridFabric.ports` with one row.
    """

    def __init__(self, library: Library, fabric: GridFabric, cols: int, *, right: bool, below: bool) -> None:
        self.fabric, self.cols, self.right, self.below = fabric, cols, right, below
        name = library.name(f"row{cols}" + "_inner" * right + "_chained" * below)
        super().__init__(library, name, fabric.ports(1, cols, right, below), reset=fabric.resets(cols, right))

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        fabric, bits, sum_bits = self.fabric, self.fabric.operand_bits, self.fabric.arithmetic.state_bits
        low = -(-self.cols // 2)
        flowing: dict[str, Signal] = {name: getattr(self, name) for name, _ in fabric.horizontal}
        halves = []
        for name, start, count, right in (("low", 0, low, True), ("high", low, self.cols - low, self.right)):
            child = row_of(self.library, fabric, count, right=right, below=self.below)
            outputs = self.place(
                m,
                child,
                name,
                en=self.en,
                **flowing,
                **{
                    fabric.operand: getattr(self, fabric.operand)[start * bits : (start + count) * bits],
                    fabric.result: getattr(self, fabric.result)[start * sum_bits : (start + count) * sum_bits],
                },
            )
            if right:
                flowing = {each: getattr(outputs, f"{each}_out") for each, _ in fabric.horizontal}
            halves.append(outputs)
        downwards = [f"{fabric.result}_out"] + ([f"{fabric.operand}_out"] if self.below else [])
        for port in downwards:
            m.d.comb += getattr(self, port).eq(Cat(*[getattr(half, port) for half in halves]))
        if self.right:
            m.d.comb += [getattr(self, f"{name}_out").eq(signal) for name, signal in flowing.items()]
        return m


class Grid(Circuit):
    """``rows`` rows of ``cols`` elements; nothing flows out to the right.

    Members
    -------
    See `GridFabric.ports`.
    """

    def __init__(self, library: Library, fabric: GridFabric, rows: int, cols: int, *, below: bool) -> None:
        self.fabric, self.rows, self.cols, self.below = fabric, rows, cols, below
        name = library.name(f"grid{rows}x{cols}" + "_chained" * below)
        super().__init__(library, name, fabric.ports(rows, cols, False, below), reset=fabric.resets(cols, False))

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        fabric = self.fabric
        top = -(-self.rows // 2)
        operand, result = getattr(self, fabric.operand), getattr(self, fabric.result)
        for name, start, count, below in (("top", 0, top, True), ("bottom", top, self.rows - top, self.below)):
            inputs = {
                each: getattr(self, each)[start * width : (start + count) * width] for each, width in fabric.horizontal
            }
            child = grid_of(self.library, fabric, count, self.cols, below=below)
            outputs = self.place(
                m, child, name, en=self.en, **inputs, **{fabric.operand: operand, fabric.result: result}
            )
            result = getattr(outputs, f"{fabric.result}_out")
            operand = getattr(outputs, f"{fabric.operand}_out", operand)
        m.d.comb += getattr(self, f"{fabric.result}_out").eq(result)
        if self.below:
            m.d.comb += getattr(self, f"{fabric.operand}_out").eq(operand)
        return m


def row_of(library: Library, fabric: GridFabric, cols: int, *, right: bool, below: bool) -> Circuit:
    """A row; of one column it is the element itself."""
    if cols == 1:
        return fabric.element(library, right, below)
    return library.make(GridRow, fabric, cols, right=right, below=below)


def grid_of(library: Library, fabric: GridFabric, rows: int, cols: int, *, below: bool) -> Circuit:
    """A grid; of one row it is the row itself."""
    if rows == 1:
        return row_of(library, fabric, cols, right=False, below=below)
    return library.make(Grid, fabric, rows, cols, below=below)
