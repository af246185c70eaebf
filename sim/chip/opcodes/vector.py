"""The vector unit."""

from siliconloom.arch.datatype import DataType
from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.scaled import keeps_scales
from siliconloom.sim.chip.opcodes import TIMINGS, Counter, Timing, Work
from siliconloom.sim.timing.units import vector_cycles


def _times(work: Work) -> dict[str, int]:
    i = work.instruction
    return {"duration": vector_cycles(work.npu.vector, i.function, i.m, i.n, i.k, work.npu.parameter_format)}


def _counts(work: Work) -> dict[Counter, int]:
    i = work.instruction
    cost, elements, spec = work.npu.vector.cost_of(i.function, work.npu.parameter_format), i.m * i.n, i.function.spec
    # elsewhere k is no number of operands
    inputs = 1 if cost.chooses or (spec.epsilon and not i.dtype.is_integer) else i.k
    passes = (i.k if cost.weighs else cost.passes) + cost.rounds(i.n, i.k)
    results = i.m * spec.result_cols(i.n, work.npu.parameter_format)
    written = (i.dtype if i.packing is None else i.packing.dtype).size(results)
    if keeps_scales(i.packing):
        assert i.packing is not None
        written = results * (1 if i.packing.dtype is DataType.INT4 else 2)  # a scale beside each byte of codes
    return {
        Counter.VECTOR_SLOTS: passes * elements,
        Counter.SCRATCHPAD_READ: inputs * i.dtype.size(elements),
        Counter.SCRATCHPAD_WRITE: written,
    }


TIMINGS.add(Opcode.VECTOR, Timing(times=_times, counts=_counts))
