"""What the bench of a whole npu tile runs: a program on random memory, and how the simulator says it ends."""

from __future__ import annotations

from itertools import count

import numpy as np

from siliconloom.arch import Chip
from siliconloom.arch.isa import Opcode, Unit
from siliconloom.programs import RESULTS, RandomProgram, random_program
from siliconloom.rtl.bench.vectors import ProgramVectors
from siliconloom.rtl.npu.registers import UNITS
from siliconloom.sim.engine import run
from siliconloom.sim.golden import Machine

TRACE = 1_000_000


def bench_vectors(chip: Chip) -> ProgramVectors:
    """A run of the first random program for the npu tile of ``chip`` that uses all of its units."""
    needed = {Opcode[unit.upper()] for unit in UNITS}
    programs = (random_program(chip, seed) for seed in count())
    return predict(chip, next(each for each in programs if needed <= {i.opcode for i in each.program.instructions}))


def predict(chip: Chip, made: RandomProgram) -> ProgramVectors:
    """How a run of ``made`` on ``chip`` ends: the golden model's memory, the simulator's cycles and counters.

    Memory for results begins as zeros, so that vectors hold only what matters.
    """
    program = made.program
    before = made.memory.copy()
    before[RESULTS:] = 0
    code = np.frombuffer(program.encode(), np.uint8)
    before[made.base : made.base + len(code)] = code
    after = before.copy()
    Machine(chip, after).run(program)
    model = run(program, chip, exact=True, trace_limit=TRACE)
    ended = [program.instructions[row[0]].unit for row in model.trace.tolist()]
    counters = {}
    for unit in UNITS:
        number = Unit[unit.upper()]
        counters[unit] = {
            "busy": int(model.busy[number]),
            "waiting": int(model.waiting[number]),
            "completed": ended.count(number),
        }
    return ProgramVectors(
        program=program, base=made.base, before=before, after=after, cycles=int(model.cycles), counters=counters
    )


__all__ = ["bench_vectors", "predict"]
