"""A step of a serving engine: requests of several lengths at once, some with a prompt, some with their next token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Struct
from pydantic import Field

from siliconloom.arch.document import Description, Document
from siliconloom.workloads.architecture import Architecture, LatentAttention
from siliconloom.workloads.fields import Count
from siliconloom.workloads.graph import Phase, RequestGroup

MAX_TOKENS = 2**24
MOST = 1024
"""Entries of a list of requests."""
BESIDE = ("phase", "batch", "training_batch", "sequence", "context", "decoder_sequence", "encoder_sequence")
"""Keys that say for all sequences what a list of requests says for each."""


class Request(Description):
    """Requests that are alike: ``count`` of them have ``new`` tokens behind ``context`` that lie in the cache."""

    new: Annotated[int, Field(ge=1, le=MAX_TOKENS, strict=True)]
    context: Annotated[int, Field(ge=0, le=MAX_TOKENS, strict=True)] = 0
    count: Count = 1


class Step(Struct, frozen=True):
    """Requests of one step, those that are alike put together, in the order in which they first stand."""

    groups: tuple[RequestGroup, ...]

    @property
    def phase(self) -> Phase:
        """Decode where every request has one new token behind earlier ones, else prefill."""
        decode = all(group.new == 1 and group.context for group in self.groups)
        return Phase.DECODE if decode else Phase.PREFILL

    @property
    def longest(self) -> int:
        """Tokens of the longest request, earlier and new ones."""
        return max(group.length for group in self.groups)

    @property
    def count(self) -> int:
        """How many requests there are."""
        return sum(group.count for group in self.groups)


def together(requests: Iterable[Request]) -> Step:
    """The step of a list of requests."""
    found: dict[tuple[int, int], int] = {}
    for each in requests:
        key = each.new, each.context
        found[key] = found.get(key, 0) + each.count
    return Step(tuple(RequestGroup(new=new, context=context, count=n) for (new, context), n in found.items()))


def refuse_beside(document: Document, changed: set[str]) -> None:
    """Refuse keys that say another thing of the same: those of ``--set``, and those of a file that has the requests."""
    given = {path[0] for path in document.assigned}
    meant = changed if "requests" in given else changed | set(document.data)
    for key in BESIDE:
        if key in meant and document.data.get(key) is not None:
            rule = "give requests or this key: requests say the phase, the sequences and the lengths of each"
            raise document.error(rule, (key,), value=document.data[key])


def check_requests(document: Document, step: Step, model: Architecture) -> None:
    """Refuse requests of models that have no step of that kind, and what is longer than tables of positions."""
    unlike = f"not supported: requests of {model.model_type}, which"
    why = None
    if model.encoder is not None:
        why = "is an encoder with a decoder"
    elif model.patches is not None:
        why = "reads images, all of one size"
    elif model.recurrent:
        why = "keeps a state from token to token, and whose scans take sequences of one length"
    elif not model.causal and any(group.context for group in step.groups):
        why = "is an encoder and has no tokens in a cache; leave out context"
    elif len(step.groups) > 1 and any(isinstance(layer.attention, LatentAttention) for layer in model.layers):
        why = "has latent attention, which is expanded for prompts and absorbed for next tokens"
    if why is not None:
        raise document.error(f"{unlike} {why}", ("requests",))
    limit, total = model.max_length, sum(group.count * group.new for group in step.groups)
    if limit is not None and step.longest > limit:
        rule = f"a request has {step.longest} tokens; the model has learned positions for {limit} tokens only"
        raise document.error(rule, ("requests",))
    if total > MAX_TOKENS:
        raise document.error(f"{total:,} new tokens are more than the {MAX_TOKENS:,} of a step", ("requests",))


def step_in_words(groups: Sequence[RequestGroup]) -> str:
    """A step in words, for a note of its result."""
    parts = [f"{group.count:,} x {group.new:,} new behind {group.context:,}" for group in groups]
    shown = [*parts[:6], *([f"{len(parts) - 6} other lengths"] if len(parts) > 6 else [])]
    return f"{sum(group.count for group in groups):,} requests of several lengths: {', '.join(shown)}"


def groups_of(step: Step) -> tuple[RequestGroup, ...]:
    """Groups where there are several lengths; none where one step of equal sequences says it all."""
    return step.groups if len(step.groups) > 1 else ()


__all__ = ["MOST", "Request", "Step", "check_requests", "groups_of", "refuse_beside", "step_in_words", "together"]
