"""The channel of memory that computes: how long an instruction takes is asked as it starts (`sim.chip.channel`)."""

from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.pim import CHANNEL_BYTES
from siliconloom.sim.chip.opcodes import TIMINGS, Counter, Timing, Work


def _moved(work: Work) -> int:
    """Bytes of the scratchpad that go to the channel, or come from it."""
    i, pim = work.instruction, work.npu.pim
    assert pim is not None
    size = work.npu.element_bytes
    if i.opcode == Opcode.PIM:
        return i.m * i.n * pim.banks * size
    rows = 1 if i.opcode == Opcode.PIM_VECTOR else i.m
    columns = i.m * pim.dram.organization.request_bytes if i.opcode == Opcode.PIM_VECTOR else i.n
    return rows * columns * size // CHANNEL_BYTES


def _times(work: Work) -> dict[str, int]:
    return {"duration": 0, "completion": 0}


for _opcode in (Opcode.PIM_WRITE, Opcode.PIM_VECTOR):
    TIMINGS.add(_opcode, Timing(times=_times, counts=lambda work: {Counter.SCRATCHPAD_READ: _moved(work)}))
for _opcode in (Opcode.PIM_READ, Opcode.PIM):
    TIMINGS.add(_opcode, Timing(times=_times, counts=lambda work: {Counter.SCRATCHPAD_WRITE: _moved(work)}))
