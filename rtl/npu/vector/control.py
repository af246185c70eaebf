"""What of the vector unit does not depend on the numbers."""

from __future__ import annotations

from amaranth import Module

from siliconloom.rtl.npu.vector.addresses import addresses_of
from siliconloom.rtl.npu.vector.conditions import VectorConditions
from siliconloom.rtl.npu.vector.lines import line_masks, read_lines
from siliconloom.rtl.npu.vector.phases import BlockPlace, VectorPhase, phases
from siliconloom.rtl.npu.vector.progress import advance, begin, drain
from siliconloom.rtl.npu.vector.refusals import refuse
from siliconloom.rtl.npu.vector.slots import Slot, slots_of
from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


def control(m: Module, unit: VectorUnitCircuit, what: VectorConditions) -> tuple[VectorPhase, BlockPlace, list[Slot]]:
    """What does not depend on the numbers: phases, addresses, and what goes with each slot down the pipeline."""
    read_lines(m, unit)
    masks = line_masks(m, unit, what)
    by_row = refuse(m, unit, what, masks)
    phase, place = phases(m, unit, what)
    addresses = addresses_of(m, unit, what, phase, place)
    advance(m, unit, what, phase, place, addresses)
    drain(m, unit, what, phase, place, addresses)
    begin(m, unit, what, phase, place, addresses, by_row, masks)
    slots = slots_of(m, unit, what, phase, place, addresses)
    return phase, place, slots


__all__ = ["control"]
