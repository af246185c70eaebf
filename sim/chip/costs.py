"""What a program costs on a chip, simulated once: a `Memo` of runs, for every scale above the chip to ask."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import asdict

from siliconloom.arch.description import Chip
from siliconloom.arch.isa import Opcode, Program
from siliconloom.arch.memo import Memo, key_of
from siliconloom.sim.chip.engine import Run, run
from siliconloom.sim.chip.opcodes import TIMINGS
from siliconloom.sim.chip.tables import build_tables


class CostService(Memo):
    """Costs of programs on chips."""

    def cost(self, program: Program, chip: Chip) -> Run:
        """What ``program`` takes on one tile of ``chip``, without a trace; raises what `sim.chip.engine.run` raises."""
        return Run(**self.recall(cost_key(program, chip), lambda: asdict(run(program, chip))))

    def costs(self, requests: Iterable[tuple[Program, Chip]]) -> list[Run]:
        """One outcome per request; chips that do the same thing are one class and simulated once."""
        return [self.cost(program, chip) for program, chip in requests]


def cost_key(program: Program, chip: Chip) -> str:
    """Key of everything that a run's outcome depends on: the chip's description, the program, the code."""
    used = {i.function for i in program.instructions if i.opcode == Opcode.VECTOR}  # registered by whomever
    costs = "\n".join(f.spec.text for f in sorted(used))
    parts: list[bytes | str] = [chip.digest, costs, program.encode()]
    if any(_is_foreign(i.opcode) for i in program.instructions):
        tables = build_tables(program, chip)
        parts += [tables.instructions.tobytes(), tables.counters.tobytes(), repr(tables.constants)]
    operators = [i.operator for i in program.instructions]
    unsaid = [(i.compression, i.packing and i.packing.sparsity) for i in program.instructions]
    if any(compression is not None or sparsity is not None for compression, sparsity in unsaid):
        parts.append(repr(unsaid))  # which the words do not say
    return key_of("run", *parts, repr((program.semaphores, operators, len(program.operators), program.tiles)))


def _is_foreign(opcode: Opcode) -> bool:
    """Whether an opcode's duration stands in code that `arch.memo.code_digest` does not know."""
    row = TIMINGS.get(opcode)
    return row is not None and not (row.times.__module__ or "").startswith("siliconloom.")


__all__ = ["CostService", "cost_key"]
