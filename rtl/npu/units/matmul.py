"""The array, which writes sums."""

from siliconloom.arch.isa import Unit
from siliconloom.rtl.npu.circuits import UNIT_CIRCUITS, Port, UnitCircuit
from siliconloom.rtl.npu.matmul.control import MatmulControl

UNIT_CIRCUITS.add(
    Unit.MATMUL,
    UnitCircuit(
        make=MatmulControl,
        reads={
            "loaded": Port("loaded", lambda geometry: geometry.stationary, 0),
            "moving": Port("moving", lambda geometry: geometry.moving, 10),
        },
        writes_sums="sums",
        read="read",
        busy="beats",
        counts_issue=False,
        illegal=True,
        in_flight=lambda geometry: (
            (geometry.array.output_latency + geometry.array.accumulator_write + 15) // geometry.issue_cycles + 4
        ),
    ),
)
