"""A request on a replica, from its coming to its end."""

from __future__ import annotations

from msgspec import Struct

from siliconloom.arch.requests import Segment
from siliconloom.sim.service.blocks import PrefixNode


class LiveRequest(Struct, eq=False):
    """A request that waits or runs.

    Parameters
    ----------
    target
        Tokens to be put into the cache before its next token: the prompt, and after a preemption what was answered.
    done
        Tokens in the cache, as long as it is at its prompt.
    shared
        Complete blocks of a cached prefix that it runs on.
    held
        Blocks of its own, as long as it is at its prompt.
    began, base
        When it came to its answer: the count of steps of its `DecodingRequests`, and the tokens in the cache then.
    told_s
        When its last token came.
    reserved
        Blocks that are held for it where it comes to with keys and values.
    ready
        The next guesses for it were made while the last ones were checked, and stand behind what is right.
    """

    number: int
    order: int
    prompt: int
    output: int
    path: tuple[Segment, ...] = ()
    answer: int = -1
    adapter: int = -1
    client: int = -1
    model: int = -1
    rank: float = 0.0
    generated: int = 0
    target: int = 0
    done: int = 0
    shared: int = 0
    held: int = 0
    node: PrefixNode | None = None
    began: int = 0
    base: int = 0
    told_s: float = 0.0
    deciding: bool = False
    swapped: bool = False
    handed: bool = False
    reserved: int = 0
    ready: bool = False


__all__ = ["LiveRequest"]
