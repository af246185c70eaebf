"""Load and store, which are engines of the memory port."""

from siliconloom.arch.isa import Unit
from siliconloom.rtl.npu.circuits import UNIT_CIRCUITS, Port, UnitCircuit
from siliconloom.rtl.npu.dma import LoadEngine, StoreEngine

UNIT_CIRCUITS.add(
    Unit.LOAD,
    UnitCircuit(
        make=LoadEngine,
        writes={"load": Port("write", lambda geometry: geometry.bus, 0)},
        read="read",
        busy="held",
        counts_issue=False,
    ),
)
UNIT_CIRCUITS.add(
    Unit.STORE,
    UnitCircuit(
        make=StoreEngine,
        reads={"store": Port("fetch", lambda geometry: geometry.bus, 40)},
        read="read",
        busy="held",
        counts_issue=False,
    ),
)
