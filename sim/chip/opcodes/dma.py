"""Transfers between main memory and the scratchpad."""

from siliconloom.arch.layout import INDEX_BYTES
from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.timing import GATHER_START, LOAD_WRITE, STORE_WRITE
from siliconloom.sim.chip.opcodes import TIMINGS, Counter, Timing, Work
from siliconloom.sim.timing.units import load_cycles, moved_bytes, stored_bytes


def _times(work: Work, pipeline: int) -> dict[str, int]:
    i, memory = work.instruction, work.memory
    return {
        "duration": load_cycles(work.chip, memory, i.m, i.n, i.compression),
        "completion": work.chip.cycles(memory.latency) + pipeline,
    }


def _counts(work: Work, moved: Counter, useful: Counter, local: Counter) -> dict[Counter, int]:
    i = work.instruction
    rows, row_bytes = stored_bytes(work.memory, i.m, i.n, i.compression)
    return {moved: moved_bytes(work.memory, rows, row_bytes), useful: rows * row_bytes, local: i.m * i.n}


def _loaded(work: Work) -> dict[Counter, int]:
    return _counts(work, Counter.READ_BYTES, Counter.USEFUL_READ_BYTES, Counter.SCRATCHPAD_WRITE)


def _gather_times(work: Work) -> dict[str, int]:
    times = _times(work, LOAD_WRITE)
    return times | {"duration": times["duration"] + GATHER_START}


TIMINGS.add(Opcode.LOAD, Timing(times=lambda work: _times(work, LOAD_WRITE), counts=_loaded))
TIMINGS.add(
    Opcode.GATHER,
    Timing(
        times=_gather_times,
        counts=lambda work: _loaded(work) | {Counter.SCRATCHPAD_READ: INDEX_BYTES * work.instruction.m},
    ),
)
TIMINGS.add(
    Opcode.STORE,
    Timing(
        times=lambda work: _times(work, STORE_WRITE),
        counts=lambda work: _counts(work, Counter.WRITE_BYTES, Counter.USEFUL_WRITE_BYTES, Counter.SCRATCHPAD_READ),
    ),
)
