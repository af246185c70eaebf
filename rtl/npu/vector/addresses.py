"""Where the vector unit reads and writes: an address for each operand, which moves with the slots."""

from __future__ import annotations

from typing import Any, NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from msgspec import Struct

from siliconloom.arch.vector import COLUMN_LINES, column_lines
from siliconloom.rtl.npu.geometry import LOCAL_BITS, log2
from siliconloom.rtl.npu.vector.conditions import VectorConditions
from siliconloom.rtl.npu.vector.kept import shorter, turned_steps
from siliconloom.rtl.npu.vector.phases import BlockPlace, VectorPhase
from siliconloom.rtl.npu.vector.sums import ask_sums
from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


class BlockWalk(NamedTuple):
    """An address that moves with the slots, and where the outer loop is."""

    now: Signal
    outer: Signal


class Addresses(Struct, frozen=True):
    """Addresses of the slots, and what they move by.

    Parameters
    ----------
    source, operand, target, line
        Of the first operand, of the second, of the result, and of a panel in the accumulator, in parts of lines.
    pitch, result_pitch, weight_pitch
        Bytes of a row, of a row of the transposed result, and of a row of weights.
    parameters
        Address of the next line of parameters.
    skip
        Bytes from the result's address to that of the present beat.
    restart
        Pulse: from the beginning, for the second pass.
    """

    source: BlockWalk
    operand: BlockWalk
    target: BlockWalk
    line: BlockWalk
    pitch: Signal
    result_pitch: Signal
    weight_pitch: Signal
    parameters: Signal
    skip: Signal
    restart: Signal


def addresses_of(
    m: Module, unit: VectorUnitCircuit, what: VectorConditions, phase: VectorPhase, place: BlockPlace
) -> Addresses:
    """Addresses: within a block of columns row by row; while reducing, within a row block by block."""
    entry, cols, wide = what.entry, unit.geometry.vector_line, unit.wide
    turns, transposes, weighs = what.turns, what.is_["transpose"], what.weighs
    pitch, result_pitch, weight_pitch = Signal(LOCAL_BITS), Signal(LOCAL_BITS), Signal(LOCAL_BITS)
    turned_row, turned_block = turned_steps(
        unit,
        what,
        shorter(m, unit, Mux(transposes, unit.geometry.element * unit.geometry.transpose_rows, pitch)),
        shorter(m, unit, Mux(transposes, result_pitch << wide, cols)),
    )
    steps = {
        "source": (entry.a, pitch, cols),
        "operand": (
            entry.b,
            Mux(turns, pitch << 1, Mux(weighs, weight_pitch, pitch)),
            Mux(turns, 2 * cols, Mux(weighs, 0, cols)),
        ),
        "target": (entry.c, turned_row, turned_block),
        # of a block's first panel of sums, whose rows are told by their number
        "line": (entry.a >> log2(unit.geometry.part), 0, Cat(Const(0, unit.geometry.part_bits), place.panels)),
    }
    parameters, skip = Signal(LOCAL_BITS), Signal(LOCAL_BITS)
    restart = Signal()
    # rows that are added up adjoin, so their operand moves on with every beat
    moves = {"source": place.beat_last | weighs}
    together = unit.geometry.transpose_rows > 1
    if together:  # of rows that are transposed together each is read in a beat of its own
        onward = place.reads | (place.beat_last & place.inner_last)
        moves["source"] = Mux(transposes, onward, moves["source"])
    walks = {
        name: walk(m, unit, name, step, phase, place, restart, moves.get(name, place.beat_last))
        for name, step in steps.items()
    }
    within = place.beat[wide:] << (wide + log2(unit.geometry.element))
    line = (unit.line_mask + 1) << log2(unit.geometry.element)
    holds = ~transposes | place.reads if together else 1
    second = walks["operand"].now + Mux(weighs, within, Mux(turns & place.beat[0], line, 0))
    m.d.comb += [
        unit.first.enable.eq(phase.slots & ~what.is_["from_sums"] & ~phase.indexing & holds),
        unit.first.address.eq(walks["source"].now),
        unit.second.enable.eq(phase.reads_once | fetches(unit, phase) | (phase.slots & what.seconds)),
        unit.second.address.eq(Mux(phase.slots, second, parameters)),
    ]
    ask_sums(m, unit, phase.slots & what.is_["from_sums"], walks["line"].now, entry, place)
    return Addresses(
        **walks,
        pitch=pitch,
        result_pitch=result_pitch,
        weight_pitch=weight_pitch,
        parameters=parameters,
        skip=skip,
        restart=restart,
    )


def fetches(unit: VectorUnitCircuit, phase: VectorPhase) -> Value:
    """A line of a block's parameters is read: there may be fewer of them than cycles."""
    return phase.sets_up & (phase.setup > COLUMN_LINES - column_lines(unit.geometry.dtype))


def walk(
    m: Module,
    unit: VectorUnitCircuit,
    name: str,
    step: tuple[Value, Any, Any],
    phase: VectorPhase,
    place: BlockPlace,
    restart: Signal,
    moves: Value,
) -> BlockWalk:
    """One address: ``step`` is where it begins, what it moves by from row to row, and from block to block.

    It moves on with the beats that ``moves`` says, the last one of every slot among them.
    """
    begin, by_one_row, by_one_block = step
    now, outer, inner_step, outer_step, onward = (
        Signal(LOCAL_BITS, name=f"{name}_{part}") for part in ("now", "outer", "inner_step", "outer_step", "onward")
    )
    m.d.comb += [
        inner_step.eq(Mux(phase.reducing, by_one_block, by_one_row)),
        outer_step.eq(Mux(phase.reducing, by_one_row, by_one_block)),
        onward.eq(outer + outer_step),
    ]
    with m.If(restart):
        m.d.sync += [now.eq(begin), outer.eq(begin)]
    with m.Elif(phase.slots & moves):
        m.d.sync += now.eq(Mux(place.inner_last & place.beat_last, onward, now + inner_step))
        with m.If(place.inner_last & place.beat_last):
            m.d.sync += outer.eq(onward)
    return BlockWalk(now, outer)


__all__ = ["Addresses", "BlockWalk", "addresses_of", "fetches"]
