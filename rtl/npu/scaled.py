"""Results that are kept as whole numbers with scales: their codes, and how both lie in a line (`arch.scaled`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value

from siliconloom.arch.datatype import DataType
from siliconloom.arch.scaled import PLACES, most
from siliconloom.rtl.cells.floating import EXPONENT, FRACTION
from siliconloom.rtl.npu.narrow import repeated

if TYPE_CHECKING:
    from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


def scaled_code(m: Module, dtype: DataType, word: Value, scale: Value) -> Value:
    """The code of an fp32 number whose line shares an exponent, in two's complement."""
    places, name = PLACES[dtype], dtype.value
    furthest = places + 2  # from so many places below the largest on a code is zero
    field, bits = word[FRACTION:-1], places + 2
    below = Signal(EXPONENT, name=f"{name}_below")
    shifted = Signal(FRACTION + 1 + furthest, name=f"{name}_shifted")
    size, rounded, code = (Signal(bits, name=f"{name}_{part}") for part in ("size", "rounded", "code"))
    low = FRACTION - places + furthest
    m.d.comb += [
        below.eq(scale - field),
        shifted.eq(Cat(Const(0, furthest), word[:FRACTION], 1) >> below[: furthest.bit_length()]),
        size.eq(shifted[low:]),
        rounded.eq(size + (shifted[low - 1] & (shifted[: low - 1].any() | size[0]))),
        code.eq(Mux(~field.any() | (below >= furthest), 0, Mux(rounded > most(dtype), most(dtype), rounded))),
    ]
    return Mux(word[-1], -code, code)[:bits]


def with_scales(m: Module, unit: VectorUnitCircuit, dtype: DataType, values: list[Value]) -> Value:
    """A line of codes, a narrow one again and again, each with its scales behind it; as long as the unit's."""
    codes = [value[:8] for value in values]
    if dtype is not DataType.INT4:
        return _beside(unit, codes, unit.scales, unit.line_mask)
    before = [Signal(4, name=f"before_{lane}") for lane in range(len(values))]
    m.d.sync += [register.eq(value[:4]) for register, value in zip(before, values, strict=True)]
    pairs = [Cat(first, value[:4]) for first, value in zip(before, values, strict=True)]
    neighbours = [Cat(low[:4], high[:4]) for low, high in zip(values[::2], values[1::2], strict=True)]
    beside = _beside(unit, neighbours, unit.scales[::2], unit.line_mask[1:])
    return Mux(unit.pairs, _beside(unit, pairs, unit.scales, unit.line_mask), beside)


def _beside(unit: VectorUnitCircuit, codes: list[Value], scales: list[Value], mask: Value) -> Value:
    """Bytes of codes and of scales, of so many as a line has by turns."""
    count, bits = len(codes), len(mask)
    both = [repeated(each, mask) for each in (codes, scales)]
    made = []
    for place in range(2 * count):
        second: Value = Const(0, 1)
        for bit in range(bits + 1):
            if place >> bit & 1:
                width = (mask[bit - 1] if bit else Const(1, 1)) & (~mask[bit] if bit < bits else Const(1, 1))
                second = second | width
        made.append(Mux(second, both[1][place % count], both[0][place % count]))
    return Cat(*made * (unit.geometry.vector_line // len(made)))


__all__ = ["scaled_code", "with_scales"]
