"""A prompt's or a token's step of a plan on a cluster: replicas, stages, parts of the batch that follow each other."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from msgspec.structs import replace

from siliconloom.arch import LoomError
from siliconloom.mapper.system.memory import MemoryUse
from siliconloom.mapper.system.pipeline import PassKind, StagePass, StagePlacement
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.planner import Planner, StepTime
from siliconloom.mapper.system.step import PipelineRun, Slowdown, check_passes, run_pipeline
from siliconloom.workloads import Phase


class Server(Planner):
    """Steps of prefill or decode of one model on one cluster.

    A step is every sequence's prompt, or every sequence's next token. Sequences are dealt to the replicas; a replica's
    go through its stages in parts of ``microbatch``. In decode a sequence's next token waits for this one, so with
    fewer parts than stages some stages wait.
    """

    def sized(self, plan: Plan) -> Plan:
        """The plan with as many parts as stages where it leaves them open."""
        if plan.microbatch:
            return plan
        return replace(plan, microbatch=max(ceil(ceil(self.batch / plan.data) / plan.pipeline), 1))

    def check(self, plan: Plan) -> None:
        super().check(plan)
        if plan.data > self.batch:
            raise LoomError(f"plan.data {plan.data}: there are {self.batch} sequences (workload.batch)")
        if plan.microbatch > (each := ceil(self.batch / plan.data)):
            raise LoomError(f"plan.microbatch {plan.microbatch}: a replica has {each} sequences (workload.batch)")

    def parts(self, plan: Plan) -> int:
        """Parts of the fullest replica's sequences."""
        return ceil(ceil(self.batch / plan.data) / plan.microbatch)

    def memory(self, plan: Plan) -> MemoryUse:
        """Bytes of the fullest chip."""
        plan = self.sized(plan)
        counts = self.dealt(plan, plan.microbatch)
        each = ceil(self.batch / plan.data)
        found = []
        for kinds in self.stage_blocks(plan, plan.microbatch, counts):
            weights = sum(b.weight_bytes for b in kinds[0])
            cache = sum(b.cache_bytes for b in kinds[0]) * each / plan.microbatch
            found.append(MemoryUse(weights, activations=max(b.working for b in kinds[0]), cache=cache))
        return max(found, key=lambda m: m.total)

    def least(self, plan: Plan) -> float:
        """Seconds that the plan cannot beat: one part through all stages, and the slowest stage for the others."""
        plan = self.sized(plan)
        stages = self._stages(plan)[0]
        if self.graph.phase is Phase.DECODE:
            return max(sum(stages), self.parts(plan) * max(stages))
        return sum(stages) + (self.parts(plan) - 1) * max(stages)

    def _stages(self, plan: Plan) -> tuple[list[float], list[float], list[int]]:
        counts = self.dealt(plan, plan.microbatch)
        blocks = self.stage_blocks(plan, plan.microbatch, counts)
        times = [max(sum(b.forward for b in part) for part in kinds) for kinds in blocks]
        waits = [max(sum(b.waits[0] for b in part) for part in kinds) for kinds in blocks]
        return times, waits, counts

    def timeline(self, plan: Plan, slow: Sequence[Slowdown] = ()) -> PipelineRun:
        """Every part's pass through every stage, once."""
        plan = self.sized(plan)
        times = self._stages(plan)[0]
        check_passes(self.parts(plan), len(times), 1)
        schedule = [[StagePass(PassKind.FORWARD, m) for m in range(self.parts(plan))] for _ in times]
        hop = self.hop(plan, plan.microbatch)
        return run_pipeline(schedule, StagePlacement(plan.pipeline), times, times, hop=hop, slow=slow)

    def step(self, plan: Plan) -> StepTime:
        """Simulate one step; raises `LoomError` for plans that do not divide.

        Of decode the time from one token of every sequence to the next, in a steady run.
        """
        plan = self.sized(plan)
        self.check(plan)
        times, waits, counts = self._stages(plan)
        parts, hop = self.parts(plan), self.hop(plan, plan.microbatch)
        seconds = self.timeline(plan).seconds
        if self.graph.phase is Phase.DECODE:  # a part starts again when it has come through, or when there is room
            seconds = max(sum(times) + len(times) * hop * (plan.pipeline > 1), parts * max(times))
        busy = parts * sum(times) / (seconds * len(times))
        return StepTime(
            seconds=seconds,
            pipeline=seconds,
            gradients=0.0,
            optimizer=0.0,
            bubble=max(1 - busy, 0.0),
            exposed=parts * max(waits),
            memory=self.memory(plan),
            microbatches=parts,
            stages=tuple(counts),
        )
