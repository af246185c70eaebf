"""Parameters on their way from local memory into the lanes."""

from __future__ import annotations

from amaranth import Module, Mux, Signal
from msgspec import Struct

from siliconloom.arch.vector import COLUMN_LINES, SCALAR_BYTES, Parameters
from siliconloom.rtl.npu.depth import delayed
from siliconloom.rtl.npu.vector.conditions import VectorConditions
from siliconloom.rtl.npu.vector.phases import VectorPhase
from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


class Arriving(Struct, frozen=True):
    """Parameters on their way into the lanes, see `Lane`: planes, the table, the scalars."""

    planes: Signal
    swap: Signal
    to_table: Signal
    table_line: Signal
    scalars: Signal


def arriving_parameters(m: Module, unit: VectorUnitCircuit, what: VectorConditions, phase: VectorPhase) -> Arriving:
    """Parameters: they arrive a stage after their address."""
    cols, bits = unit.geometry.lanes, 8 * unit.geometry.element
    scalar_lines, arriving, line_number, of_block, bytes_in, swap = (
        -(-SCALAR_BYTES // cols),
        Signal(),
        Signal(range(512)),
        Signal(),
        Signal(COLUMN_LINES),
        Signal(),
    )
    taken = Signal(range(512))
    scalars = Signal(bits * SCALAR_BYTES)
    to_table = Signal()
    later = 1 + unit.depth.lane[0]
    m.d.comb += [
        arriving.eq(delayed(m, "arriving_1", phase.reads_once, later)),
        of_block.eq(delayed(m, "of_block_1", phase.sets_up, later)),
    ]
    with m.If(unit.instruction.ready):
        m.d.sync += taken.eq(0)
    with m.Elif(phase.reads_once):
        m.d.sync += taken.eq(taken + 1)
    line = Mux(phase.sets_up, (1 << (COLUMN_LINES - phase.setup)[:3])[:COLUMN_LINES], 0)
    m.d.comb += [
        line_number.eq(delayed(m, "line_number_1", taken, later)),
        bytes_in.eq(delayed(m, "bytes_in_1", line, later)),
    ]
    has_scalars, table_line = Signal(), Signal(range(512))
    m.d.comb += [
        has_scalars.eq(what.asks(lambda spec: Parameters.SCALARS in spec.parameters_in(what.dtype))),
        to_table.eq(
            arriving
            & what.asks(lambda spec: Parameters.TABLE in spec.parameters_in(what.dtype))
            & (~has_scalars | (line_number >= scalar_lines))
        ),
        table_line.eq(line_number - Mux(has_scalars, scalar_lines, 0)),
        swap.eq(of_block & bytes_in[COLUMN_LINES - 1]),
    ]
    for number in range(scalar_lines):
        with m.If(arriving & has_scalars & (line_number == number)):
            m.d.sync += scalars[bits * cols * number : bits * cols * (number + 1)].eq(
                unit.second_line[: bits * SCALAR_BYTES]
            )
    return Arriving(bytes_in[: unit.planes], swap, to_table, table_line, scalars)


__all__ = ["Arriving", "arriving_parameters"]
