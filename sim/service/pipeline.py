"""A replica whose chips are the stages of a pipeline: schedulers that take turns in them.

The rules are those of vLLM's engine under pipeline parallelism: there are as many schedulers as stages, each with its
part of the memory and requests of its own, and a request goes to the one with the fewest. A scheduler's step passes
all stages before its next one begins, and the steps of others follow it through them. Steps keep their order, so that
each begins in a stage when it has left the one before and the step ahead of it has left this one (a permutation flow
shop). Where a single scheduler has requests, a stage works as long as that step is in it, and waits else.
"""

from __future__ import annotations

from collections.abc import Sequence

from siliconloom.arch.requests import Segment
from siliconloom.sim.service.live import LiveRequest
from siliconloom.sim.service.replica import Replica
from siliconloom.sim.service.stages import Stages


class PipelinedReplica:
    """One replica of a pipeline's chips, as a fleet sees it.

    Parameters
    ----------
    engines
        The schedulers, one for each stage, which share ``stages``.
    """

    def __init__(self, engines: Sequence[Replica], stages: Stages) -> None:
        self.engines, self.stages = list(engines), stages
        self.ended: list[tuple[int, float]] = []
        """Requests that have left since somebody looked, and when."""
        for engine in self.engines:
            engine.stages = stages

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return any(engine.busy for engine in self.engines)

    @property
    def clock(self) -> float:
        """When the next step begins; where nobody has anything to do, when the last one ended."""
        working = [engine.clock for engine in self.engines if engine.busy]
        if not working:
            return max(engine.clock for engine in self.engines)
        return max(min(working), self.stages.host_free)

    @property
    def load(self) -> int:
        """Tokens that are due: prompts and answers of all that wait or run."""
        return sum(engine.load for engine in self.engines)

    @property
    def speed(self) -> float:
        return self.engines[0].speed

    @property
    def busy_s(self) -> float:
        """Seconds of work, mean over the stages."""
        return sum(self.stages.busy_s) / len(self.stages.busy_s)

    def submit(self, request: LiveRequest, at: float) -> None:
        """A request comes, and goes to the scheduler with the fewest."""
        min(self.engines, key=lambda engine: engine.present(at)).submit(request, at)

    def matched(self, path: Sequence[Segment], at: float) -> int:
        """Tokens of a prompt that begins so that lie in the cache of one of the schedulers."""
        return max(engine.matched(path, at) for engine in self.engines)

    def advance(self, until: float) -> None:
        """Take the step that is next, or several of a scheduler that is alone."""
        working = [engine for engine in self.engines if engine.busy]
        engine = min(working, key=lambda each: each.clock)
        engine.clock = max(engine.clock, self.stages.host_free)  # what it does is chosen when the host comes to it
        engine.advance(until, alone=len(working) == 1 and self.stages.idle(engine.clock))
        self.ended += engine.ended
        engine.ended.clear()

    def check(self) -> None:
        """Raise `AssertionError` where blocks or tokens were lost."""
        for engine in self.engines:
            engine.check()


__all__ = ["PipelinedReplica"]
