"""The vector unit, which reads sums."""

from siliconloom.arch.isa import Unit
from siliconloom.rtl.npu.circuits import UNIT_CIRCUITS, Port, UnitCircuit
from siliconloom.rtl.npu.geometry import Geometry
from siliconloom.rtl.npu.vector.float_unit import FloatVectorUnit
from siliconloom.rtl.npu.vector.integer_unit import IntegerVectorUnit


def _line(geometry: Geometry) -> int:
    return geometry.vector_line


UNIT_CIRCUITS.add(
    Unit.VECTOR,
    UnitCircuit(
        make=IntegerVectorUnit,
        floats=FloatVectorUnit,
        reads={"first": Port("first", _line, 20), "second": Port("second", _line, 30)},
        writes={"vector": Port("write", _line, 10)},
        reads_sums="sums",
        writes_rises="rises",
        sums_lines=lambda geometry: geometry.lines_of_block,
        illegal=True,
    ),
)
