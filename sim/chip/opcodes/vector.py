"""The vector unit."""

from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.vector import vector_cost
from siliconloom.sim.chip.opcodes import TIMINGS, Counter, Timing, Work
from siliconloom.sim.timing.units import vector_cycles


def _times(work: Work) -> dict[str, int]:
    i = work.instruction
    return {"duration": vector_cycles(work.npu.vector, i.function, i.m, i.n, i.k, work.npu.parameter_format)}


def _counts(work: Work) -> dict[Counter, int]:
    i = work.instruction
    cost, elements, spec = vector_cost(i.function, work.npu.parameter_format), i.m * i.n, i.function.spec
    # elsewhere k is no number of operands
    inputs = 1 if cost.chooses or (spec.epsilon and not i.dtype.is_integer) else i.k
    passes = (i.k if cost.weighs else cost.passes) + cost.rounds(i.n, i.k)
    results = i.m * spec.result_cols(i.n, work.npu.parameter_format)
    written = i.dtype if i.packing is None else i.packing.dtype
    return {
        Counter.VECTOR_SLOTS: passes * elements,
        Counter.SCRATCHPAD_READ: inputs * i.dtype.size(elements),
        Counter.SCRATCHPAD_WRITE: written.size(results),
    }


TIMINGS.add(Opcode.VECTOR, Timing(times=_times, counts=_counts))
