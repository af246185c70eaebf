"""Steps in which requests ask several models: a pass of each model over its own requests, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from siliconloom.sim.service.costs import EQUAL, Chunk, Float, RequestLengths, StepCosts
from siliconloom.sim.service.live import LiveRequest

PromptChunk = tuple[LiveRequest, int]
"""New tokens of a request's prompt."""
Answering = tuple[LiveRequest, int]
"""A request that gets its next token, and its tokens in the cache."""
Pass = tuple[list[Chunk], int, list[int]]
"""Chunks, prompts that end with them, and tokens in the cache of each request that gets its next one."""


def _by_model(chunks: Sequence[PromptChunk], answering: Sequence[Answering]) -> Iterator[Pass]:
    """The pass of each model, in the order in which requests ask them."""
    for model in dict.fromkeys(each.model for each, _ in (*chunks, *answering)):
        mine = [(each, size) for each, size in chunks if each.model == model]
        ended = sum(each.done + size == each.target for each, size in mine)
        cached = [length for each, length in answering if each.model == model]
        yield [(size, each.done) for each, size in mine], ended, cached


def model_passes(
    costs: StepCosts, chunks: Sequence[PromptChunk], answering: Sequence[Answering], number: int
) -> tuple[Float, Float]:
    """Seconds and joules of ``number`` steps in a row, of which the first may have chunks; (steps,)."""
    seconds, joules = np.zeros(number), np.zeros(number)
    for asked, ended, cached in _by_model(chunks, answering):
        mean = sum(cached) / len(cached) + 1 if cached else 0.0
        contexts = mean + np.arange(number, dtype=np.float64)
        lengths = RequestLengths(Counter(cached)) if cached else EQUAL
        taken, drawn = costs.steps(asked, ended, len(cached), contexts, lengths)
        seconds, joules = seconds + taken, joules + drawn
    return seconds, joules


def sampled(chunks: Sequence[PromptChunk], answering: Sequence[Answering]) -> Pass:
    """A pass to be asked in full; of requests that get their next token what they attend to."""
    asked, ended, cached = next(_by_model(chunks, answering))
    return asked, ended, [each + 1 for each in cached]


__all__ = ["Answering", "model_passes", "sampled"]
