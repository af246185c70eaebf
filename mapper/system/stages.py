"""A model's layers on the stages of a pipeline."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from msgspec import Struct

from siliconloom.arch import LoomError
from siliconloom.mapper.system.layers import Block
from siliconloom.workloads.roles import Section

ENDS = (Section.EMBEDDING, Section.HEAD)


class StageModel(Struct, frozen=True):
    """Blocks as one chip executes them: layers in order, what comes first and last, and what is between two stacks.

    An encoder's last norm and the embeddings of its decoder are of the section of embeddings. ``layers`` are places in
    ``blocks``, one for each execution.
    """

    blocks: tuple[Block, ...]
    layers: tuple[int, ...]

    @classmethod
    def of(cls, blocks: tuple[Block, ...]) -> StageModel:
        """Blocks in program order."""
        layers = [at for at, b in enumerate(blocks) if b.section not in ENDS for _ in range(b.repeat)]
        return cls(blocks, tuple(layers))

    def ends(self, section: Section) -> list[Block]:
        """Blocks of embedding or head, none where the model has none."""
        return [b for b in self.blocks if b.section is section]

    def stage(self, counts: Sequence[int], stage: int) -> list[Block]:
        """Blocks of a stage in program order, of which there are ``counts`` layers in each."""
        first = sum(counts[:stage])
        own = {Section.EMBEDDING: stage == 0, Section.HEAD: stage == len(counts) - 1}
        ends = [at for at, b in enumerate(self.blocks) if own.get(b.section, False)]
        return [self.blocks[at] for at in sorted([*self.layers[first : first + counts[stage]], *ends])]


def deal(
    times: Sequence[Sequence[float]], first: Sequence[float], last: Sequence[float], kinds: Sequence[int]
) -> list[int]:
    """Layers of each stage, in order, so that the slowest stage is as fast as it can be.

    As many each where layers are alike and divide evenly among equal chips, as frameworks do.

    Parameters
    ----------
    times
        Seconds of every layer, by kind of chip.
    first, last
        Seconds of what the first and the last stage have besides, by kind of chip.
    kinds
        Kind of every stage's chips.
    """
    stages, layers = len(kinds), len(times[0])
    if stages > layers:
        raise LoomError(f"plan.pipeline: {stages} stages are more than the {layers} layers")
    if layers % stages == 0 and len(set(kinds)) == 1 and len(set(times[kinds[0]])) == 1:
        return [layers // stages] * stages

    sums = [[0.0, *accumulate(t)] for t in times]
    mixed = len(set(kinds)) > 1

    def fill(limit: float) -> list[int] | None:
        """Layers of each stage within a limit, or none. Equal chips take as many as fit, which leaves the least."""
        ways: list[dict[int, int]] = []  # by stage: layers dealt with it, and those before it
        reached = [0]
        for stage, kind in enumerate(kinds):
            room = limit - (first[kind] if stage == 0 else 0.0) - (last[kind] if stage == stages - 1 else 0.0)
            after, way = stages - stage - 1, dict[int, int]()
            for at in reached:
                end = min(bisect_right(sums[kind], sums[kind][at] + room * (1 + 1e-12)) - 1, layers - after)
                for until in range(at + 1 if mixed else max(end, at + 1), end + 1):
                    way.setdefault(until, at)
            if not way:
                return None
            ways.append(way)
            reached = sorted(way)
        counts, at = [], layers
        for way in reversed(ways):
            if at not in way:
                return None
            counts.append(at - way[at])
            at = way[at]
        return counts[::-1]

    low, high = 0.0, sum(max(t) for t in zip(*times, strict=True)) + max(first) + max(last)
    best = fill(high * (1 + 1e-9))
    for _ in range(50):
        middle = (low + high) / 2
        found = fill(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    assert best is not None
    return best
