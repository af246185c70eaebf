"""The channel of memory that computes, which only tiles with one have a unit for."""

from siliconloom.arch.isa import Unit
from siliconloom.arch.units.pim import READING, WRITING
from siliconloom.rtl.npu.channel import ChannelUnit, burst_bytes, channel_pins
from siliconloom.rtl.npu.circuits import UNIT_CIRCUITS, Port, UnitCircuit

UNIT_CIRCUITS.add(
    Unit.PIM,
    UnitCircuit(
        make=ChannelUnit,
        reads={READING: Port("vectors", burst_bytes, 50)},
        writes={WRITING: Port("results", burst_bytes, 20)},
        illegal=True,
        pins=channel_pins,
        holds_start=True,
    ),
)
