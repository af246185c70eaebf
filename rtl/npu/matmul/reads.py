"""Reads of the array's operands: a memory's answers as a stream, and lines that lie within whole ones."""

from __future__ import annotations

from typing import Any, cast

from amaranth import Module, Signal
from amaranth.hdl import Value

from siliconloom.arch.layout import is_power
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.library import Circuit
from siliconloom.rtl.npu.geometry import log2
from siliconloom.rtl.npu.matmul.unit import MatmulUnitCircuit
from siliconloom.rtl.npu.narrow import line_mask, line_width, shifted, spread

BUFFER = 4
"""Beats that wait between a memory and the array; three keep it supplied in every cycle."""


class ReadStream:
    """Turns reads of a memory with one cycle of latency into a stream; a read begins only when its beat has a place."""

    def __init__(self, parent: Circuit, m: Module, name: str, width: int) -> None:
        self.fire = Signal(name=f"{name}_fire")
        self.payload = Signal(width, name=f"{name}_payload")
        self.room = Signal(name=f"{name}_room")
        pushed = Signal(name=f"{name}_pushed")
        queue = parent.place(m, parent.library.make(Queue, width, BUFFER), f"{name}_buffer")
        m.d.sync += pushed.eq(self.fire)
        m.d.comb += [
            queue.i.valid.eq(pushed),
            queue.i.payload.eq(self.payload),
            self.room.eq((queue.level + pushed) < BUFFER),
        ]
        self.beats = queue.o


def needs(port: Any, count: Value | int) -> list[Any]:
    """Bytes that an access needs, told where the port asks for it."""
    return [port.bytes.eq(count)] if "bytes" in port.signature.members else []


def read_line(m: Module, unit: MatmulUnitCircuit, port: Any, size: int) -> Value:
    """What a port has read, from the beginning of its line on: a narrow one lies within a whole one."""
    if not is_power(size) or size == 1:  # what begins anywhere is read from there on
        return cast(Value, port.data)
    begins = Signal(log2(size))
    m.d.sync += begins.eq(port.address[: log2(size)])
    return shifted(m, unit, f"{port.data.name}_shift", port.data, begins)


def read_panel(m: Module, unit: MatmulUnitCircuit, name: str, left: Value, narrow: Value) -> tuple[Value, Signal]:
    """Of what is loaded with so many columns left: bytes from line to line, and the line, whole and one later."""
    array, element = unit.geometry.array, unit.geometry.element
    rows = unit.geometry.stationary // (element * array.cols)
    mask = line_mask(m, name, left, array.cols, narrow)
    step = line_width(mask, array.cols) * (rows * element)
    read = Signal.like(mask, name=f"{name}_mask_read")
    m.d.sync += read.eq(mask)
    word = Signal(8 * unit.geometry.stationary, name=f"{name}_word")
    m.d.comb += word.eq(read_line(m, unit, unit.loaded, unit.geometry.stationary))
    return step, spread(m, f"{name}_line", word, read, rows, array.cols, 8 * element)


__all__ = ["BUFFER", "ReadStream", "needs", "read_line", "read_panel"]
