"""The stages of a pipeline, through which steps pass one behind the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from siliconloom.sim.service.costs import Chunk, Float, RequestLengths, StagedCosts, StepPassage


class Stages:
    """When each stage of a pipeline is free; the host that schedules stands before the first.

    Parameters
    ----------
    costs
        What steps take in each.
    count
        Stages of chips.
    """

    def __init__(self, costs: StagedCosts, count: int) -> None:
        self._costs = costs
        self._free = [0.0] * (count + 1)
        self.busy_s = [0.0] * count
        """Seconds that each stage has worked."""

    @property
    def host_free(self) -> float:
        """When the host has scheduled the last step."""
        return self._free[0]

    def idle(self, at: float) -> bool:
        """Whether nothing is in any stage."""
        return max(self._free) <= at

    def taken(
        self,
        begin: float,
        chunks: Sequence[Chunk],
        ended: int,
        count: int,
        contexts: Float,
        lengths: RequestLengths,
        alone: Float,
    ) -> Float:
        """Let steps in, one after the other; returns the seconds of each, behind those that are still in the stages.

        There are several only where nobody is beside them. The last of them is let in by itself, as what comes while it
        is under way finds stages that it has left.

        Parameters
        ----------
        alone
            Seconds of each where it waits for nobody; the others are as of `StagedCosts`.
        """
        first = alone[:-1]
        if len(first):
            begin += float(first.sum())
            self._free = [begin] * len(self._free)
            passage = self._costs.passage(chunks, ended, count, float(contexts[:-1].mean()), lengths)
            for stage, seconds in enumerate(passage.stages):
                self.busy_s[stage] += seconds * len(first)
        last = RequestLengths(lengths.offsets, lengths.step + len(first), lengths.shared)
        passage = self._costs.passage(chunks, ended, count, float(contexts[-1]), last)
        return np.append(first, self._enter(begin, passage) - begin)

    def _enter(self, at: float, passage: StepPassage) -> float:
        """Let a step in at a time; returns when it has left the last stage."""
        self._free[0] = at = max(at, self._free[0]) + passage.host
        for stage, seconds in enumerate(passage.stages):
            if stage:
                at += passage.hop
            self._free[stage + 1] = at = max(at, self._free[stage + 1]) + seconds
            self.busy_s[stage] += seconds
        return at


__all__ = ["Stages"]
