"""The vector unit."""

from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.vector import vector_cost
from siliconloom.sim.chip.opcodes import TIMINGS, Counter, Timing, Work
from siliconloom.sim.timing.units import vector_cycles


def _times(work: Work) -> dict[str, int]:
    i = work.instruction
    return {"duration": vector_cycles(work.npu.vector, i.function, i.m, i.n)}


def _counts(work: Work) -> dict[Counter, int]:
    i = work.instruction
    elements = i.m * i.n
    return {
        Counter.VECTOR_SLOTS: vector_cost(i.function).passes * elements,
        Counter.SCRATCHPAD_READ: i.k * i.dtype.size(elements),
        Counter.SCRATCHPAD_WRITE: i.dtype.size(elements),
    }


TIMINGS.add(Opcode.VECTOR, Timing(times=_times, counts=_counts))
