"""Load and store, which are engines of the memory port."""

from siliconloom.arch.isa import Unit
from siliconloom.arch.layout import INDEX_BYTES
from siliconloom.rtl.npu.circuits import UNIT_CIRCUITS, Port, UnitCircuit
from siliconloom.rtl.npu.dma import StoreEngine
from siliconloom.rtl.npu.gather import GatherEngine

FETCH = "store"
"""The port of the scratchpad that both read through: a transfer reads while it has the memory port, and one has it."""

UNIT_CIRCUITS.add(
    Unit.LOAD,
    UnitCircuit(
        make=GatherEngine,
        reads={FETCH: Port("indices", lambda geometry: INDEX_BYTES, 40)},
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
        reads={FETCH: Port("fetch", lambda geometry: geometry.bus, 40)},
        read="read",
        busy="held",
        counts_issue=False,
    ),
)
