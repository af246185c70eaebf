"""A chip whose memory computes, as a plan sees it: memory does in decode what a policy lets it, the arrays the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct

from siliconloom.arch import Chip, LoomError, NotSupported
from siliconloom.arch.gpu import refuse_idle
from siliconloom.arch.memo import key_of, shared_memo
from siliconloom.arch.system import Policy
from siliconloom.evaluate.asked import workload_digest
from siliconloom.evaluate.channels import stream_bandwidth
from siliconloom.evaluate.chip import Simulation
from siliconloom.evaluate.chip_machine import ChipMachine
from siliconloom.evaluate.pim_layers import PimLayers
from siliconloom.evaluate.windows import PimRow
from siliconloom.mapper.system.contracts import LayerRow, Parts
from siliconloom.mapper.system.shard import with_context, without
from siliconloom.sim.dram.memory import effective
from siliconloom.workloads import Attention, Graph, Phase
from siliconloom.workloads.subgraph import without_messages


class KnownRow(Struct, frozen=True):
    """A `mapper.system.contracts.LayerRow` in figures."""

    seconds: float
    times: dict[str, float]
    cache_bytes: float


@dataclass(frozen=True)
class PimMachine(ChipMachine):
    """Decode by arrays and memory together; what memory has no part in, prompts, as `ChipMachine`.

    Parameters
    ----------
    policy
        What memory computes, and how it is shared.
    contexts
        Tokens that each sequence of the batch attends to, its own included; the workload's for all when empty.
    """

    policy: Policy = field(default_factory=Policy)
    contexts: tuple[int, ...] = ()
    _left: dict[str, None] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What was left out, and why."""

    @cached_property
    def arrays(self) -> ChipMachine:
        """The chip as its arrays see it: with the bandwidth that the channels deliver to streams."""
        chip = effective(self.chip)
        assert chip.pim is not None
        name, memory = next(iter(chip.memory.items()))
        rate = int(stream_bandwidth(chip.pim) * chip.pim.channels * chip.clock)
        slower = memory.model_copy(update={"bandwidth": min(rate, memory.bandwidth)})
        return ChipMachine(chip.model_copy(update={"memory": chip.memory | {name: slower}, "pim": None}), self.exact)

    @property
    def notes(self) -> list[str]:
        return [*super().notes, *self._left]

    def memory_peak(self, phase: Phase) -> float:
        if phase is not Phase.DECODE or self.policy.attention == "npu" or self.chip.pim is None:
            return 0.0
        return 2.0 * self.chip.pim.peak_macs * self.chip.clock

    def seconds(self, graph: Graph, *, unfused: bool = False) -> dict[str, float]:
        if graph.phase is not Phase.DECODE:
            return super().seconds(graph, unfused=unfused)
        if self.policy.attention == "pim":  # a row has its time
            graph = without(graph, lambda o: isinstance(o, Attention))
        return self.arrays.seconds(self._mean(graph), unfused=unfused)

    def simulation(self, graph: Graph) -> Simulation:
        if graph.phase is not Phase.DECODE:
            return super().simulation(graph)
        return self.arrays.simulation(self._mean(graph))

    def row(self, parts: Parts, batch: int, layers: int) -> LayerRow | None:
        """So many layers with their attention in memory, where that is asked for or faster.

        Raises
        ------
        LoomError
            For policies that contradict one another.
        NotSupported
            For models whose layers differ.
        """
        if self._attention(parts, batch) is None:
            return None
        asked = [parts(count) for count in sorted({batch, (batch + 1) // 2, batch // 2} - {0})]
        work = [(workload_digest(without_messages(part)), waits) for part, waits in asked]
        question = (*self.question(asked[-1][0]), self.policy.model_dump_json(), repr((self.contexts, layers, work)))
        found = shared_memo().recall(key_of("row", *question), lambda: self._answer(parts, batch, layers))
        if found["why"]:
            self._left[f"left out: attention in memory: {found['why']}"] = None
        if not found["names"].size:
            return None
        times = dict(zip(found["names"].tolist(), found["times"].tolist(), strict=True))
        return KnownRow(found["seconds"], times, found["cache_bytes"])

    def _answer(self, parts: Parts, batch: int, layers: int) -> dict[str, Any]:
        row, why = self.simulated_row(parts, batch, layers)
        times = {} if row is None else row.times
        return {
            "names": np.array(list(times), str),
            "times": np.array(list(times.values()), float),
            "seconds": 0.0 if row is None else row.seconds,
            "cache_bytes": 0.0 if row is None else row.cache_bytes,
            "why": why,
        }

    def _attention(self, parts: Parts, batch: int) -> Attention | None:
        """What memory could do of each layer; none where it may not, or there is nothing."""
        part, _ = parts(batch)
        if part.phase is not Phase.DECODE or self.policy.attention == "npu":
            return None
        check_policy(self.policy, self.chip)
        kinds = [o for o in part.operators() if isinstance(o, Attention)]
        if len(kinds) > 1:
            raise NotSupported(
                f"{part.name} on a chip whose memory computes: its layers must be alike, each with one attention "
                f"({len(kinds)} kinds); set policy.attention=npu"
            )
        return kinds[0] if kinds else None

    def simulated_row(self, parts: Parts, batch: int, layers: int) -> tuple[PimRow | None, str]:
        """The same with all that happens in it; or none, and why not."""
        attention = self._attention(parts, batch)
        if attention is None:
            return None, ""
        contexts = self._slowest(batch, attention.kv_len)
        try:
            found = PimLayers(self.chip, self.arrays, self.policy, parts, contexts, layers).best()
        except LoomError as error:
            if self.policy.attention == "pim":
                raise
            return None, str(error)
        if self.policy.attention == "pim":
            return found, ""
        part, waits = parts(batch)
        times = {**self.seconds(part), **waits}
        inner = sum(times.get(o.name, 0.0) for o in part.operators() if o.block == attention.block)
        outer = sum(times.get(o.name, 0.0) for o in part.operators() if o.block != attention.block)
        ends = sum(w for name, w in waits.items() if part.dataflow[name].block != attention.block)
        with_memory = found.seconds + found.end_cycles / found.clock + ends
        return (found if with_memory <= layers * inner + outer else None), ""

    def _slowest(self, batch: int, mean: int) -> tuple[int, ...]:
        """Contexts of the longest part of the sequences, dealt in turn to parts of so many.

        ``mean`` is what a chip's part of the workload has for all: less than theirs where chips share keys.
        """
        if not self.contexts:
            return (mean,) * batch
        count, whole = -(-len(self.contexts) // batch), round(sum(self.contexts) / len(self.contexts))
        parts = [self.contexts[n::count] for n in range(count)]
        longest = max(parts, key=lambda part: (len(part), sum(part)))
        return tuple(-(-context * mean // whole) for context in longest)

    def _mean(self, graph: Graph) -> Graph:
        """With the mean context of the longest part of the sequences."""
        attention = next((o for o in graph.operators() if isinstance(o, Attention)), None)
        if attention is None or not self.contexts:
            return graph
        part = self._slowest(graph.batch, attention.kv_len)
        return with_context(graph, round(sum(part) / len(part)))


def check_policy(policy: Policy, chip: Chip) -> None:
    """Refuse what a policy asks of a memory that cannot do it.

    Raises
    ------
    LoomError
        With the key.
    """
    pim = chip.pim
    if policy.attention == "pim" and pim is None:
        raise LoomError(f"policy.attention: pim needs a chip with pim; {chip.name} has no pim")
    if policy.weights == "pim" and pim is None:
        raise LoomError(f"policy.weights: pim needs a chip with pim; {chip.name} has no pim")
    if policy.interleave == "always" and not (pim and pim.dual_row_buffer):
        why = f"{chip.name} has no pim" if pim is None else f"{chip.name} has one row buffer"
        raise LoomError(f"policy.interleave: always needs a chip with pim.dual_row_buffer: true; {why}")
    if policy.interleave == "always" and policy.weights == "pim":
        raise LoomError("policy.interleave: always leaves products to the arrays; policy.weights must not be pim")


def refuse_idle_policies(
    chips: Sequence[Chip], policy: Policy, phases: Collection[Phase], overrides: Sequence[tuple[str, str]]
) -> None:
    """Refuse overrides of a system's policy for memory that has no part in the work.

    Raises
    ------
    LoomError
        With the key and the reason.
    """
    given = [(path, value) for path, value in overrides if path.startswith("policy.")]
    keys = [f"policy.{key}" for key in Policy.model_fields if key not in ("tensor", "pipeline", "communicate")]
    if not any(chip.pim for chip in chips):
        refuse_idle(given, dict.fromkeys(keys, f"{chips[0].name} has no pim"))
    elif Phase.DECODE not in phases:
        refuse_idle(given, dict.fromkeys(keys, "only decode has work for memory that computes"))
    elif policy.attention == "npu":
        keys.remove("policy.attention")
        refuse_idle(given, dict.fromkeys(keys, "policy.attention is npu: memory does not compute"))


__all__ = ["PimMachine", "check_policy", "refuse_idle_policies"]
