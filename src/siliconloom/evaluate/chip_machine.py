"""What a plan asks of a chip, whatever it is: seconds of the operators of its part, memory, peak."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import replace

from siliconloom.arch import Chip, DataType, LoomError, NotSupported
from siliconloom.arch.memo import key_of, shared_memo
from siliconloom.evaluate.asked import digests
from siliconloom.evaluate.chip import Simulation, path_notes, simulate
from siliconloom.mapper.chip.mapping import fit_precision, map_workload
from siliconloom.mapper.system.contracts import LayerRow, Parts
from siliconloom.sim.dram.memory import effective
from siliconloom.workloads import Gemm, Graph, Operator, Phase
from siliconloom.workloads.subgraph import executed_once, subgraph, without_messages

ROOMY = 2**44
"""Bytes of each memory level of a chip whose operators are timed by themselves: more than any of them needs."""


@dataclass(frozen=True)
class ChipMachine:
    """Times by the chip simulator; ``exact`` runs every event of its programs."""

    chip: Chip
    exact: bool = False
    _found: dict[tuple[Any, ...], Simulation | str] = field(default_factory=dict, init=False, compare=False, repr=False)
    _blockers: set[str] = field(default_factory=set, init=False, compare=False, repr=False)
    """Operators for which the buffers were too small under some plan: looked at first under the next one, so that a
    search in which none fits ends soon."""

    @property
    def name(self) -> str:
        return self.chip.name

    @property
    def capacity(self) -> float:
        return float(self.chip.nearest.total_capacity)

    @property
    def bandwidth(self) -> float:
        return float(self.chip.nearest.total_bandwidth)

    @property
    def notes(self) -> list[str]:
        return path_notes(self.chip)

    @property
    def multiprocessors(self) -> int:
        return 1

    def without(self, multiprocessors: int) -> ChipMachine:
        """Not possible: a kernel takes the whole chip."""
        raise NotSupported(f"kernels side by side on {self.name}: each takes the whole chip")

    def fused_rest(self, operation: str, product: Gemm, chips: int) -> float:
        """Not possible: a program has no messages."""
        raise NotSupported(f"products fused with messages on {self.name}: its kernels take the whole chip")

    def peak(self, precision: DataType) -> float:
        return 2.0 * self.chip.peak_macs * self.chip.clock

    def memory_peak(self, phase: Phase) -> float:
        return 0.0

    def fitted(self, graph: Graph) -> Graph:
        return fit_precision(self.chip, graph)[0]

    def seconds(self, graph: Graph, *, unfused: bool = False) -> dict[str, float]:
        found = shared_memo().recall(key_of("operators", *self.question(graph)), lambda: self._taken(graph))
        return dict(zip(found["names"].tolist(), found["seconds"].tolist(), strict=True))

    def question(self, graph: Graph) -> tuple[str, ...]:
        """All that the operators' times depend on."""
        return str(self.exact), *digests(self.chip, without_messages(graph))

    def _taken(self, graph: Graph) -> dict[str, Any]:
        done = self.simulation(graph)
        times: dict[str, float] = defaultdict(float)
        for index, mapped in enumerate(done.plan.tasks):
            times[mapped.task.owner] += float(done.run.exclusive[index]) / mapped.repeat / done.chip.clock
        return {"names": np.array(list(times), str), "seconds": np.array(list(times.values()))}

    def row(self, parts: Parts, batch: int, layers: int) -> LayerRow | None:
        """Nothing else: operators follow one another in a program."""
        return None

    def simulation(self, graph: Graph) -> Simulation:
        """Every operator of a part that is no message, executed as often as there are layers.

        Raises
        ------
        LoomError
            Where the buffers are too small for an operator.
        """
        work = without_messages(graph)
        key = (work.phase, work.precision, tuple(work.operators()))
        if key not in self._found:
            # Whether the whole plan fits is the planner's matter; one layer's data is where it would be.
            roomy = {n: m.model_copy(update={"capacity": ROOMY}) for n, m in self.chip.memory.items()}
            chip = self.chip.model_copy(update={"memory": roomy})
            try:
                for operator in work.operators():
                    if operator.name in self._blockers:
                        _check_alone(chip, work, operator)
                # what differs between machines, of memory that computes, say, need not differ for their arrays
                question = "simulation", *self.question(work)
                done = shared_memo().hold(question, lambda: simulate(chip, work, exact=self.exact))
                self._found[key] = self._in_its_memory(done)
            except LoomError as error:
                self._found[key] = str(error)
                if not self._blockers:
                    self._find_blocker(chip, work)
                raise
        found = self._found[key]
        if isinstance(found, str):
            raise LoomError(found)
        return found

    def _in_its_memory(self, done: Simulation) -> Simulation:
        """With the capacity that the chip has: what its refresh takes depends on it."""
        own = {n: m.model_copy(update={"capacity": self.chip.memory[n].capacity}) for n, m in done.chip.memory.items()}
        return replace(done, chip=done.chip.model_copy(update={"memory": own}))

    def _find_blocker(self, chip: Chip, graph: Graph) -> None:
        for operator in graph.operators():
            try:
                _check_alone(chip, graph, operator)
            except LoomError:
                self._blockers.add(operator.name)
                return


def _check_alone(chip: Chip, graph: Graph, operator: Operator) -> None:
    """Map an operator by itself, by estimates alone; raises `LoomError` where it does not go."""
    map_workload(effective(chip), executed_once(subgraph(graph, [operator])))
