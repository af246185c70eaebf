"""Requests that a service answers, as columns: traces have them (`workloads.serving`), and fleets serve them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Segment = tuple[int, int]
"""A piece of text that requests may share: its number, and its tokens."""


class ServedRequests(Struct, frozen=True):
    """Requests in the order in which they come.

    Parameters
    ----------
    arrival_s
        Seconds after the first one, not decreasing; (requests,).
    prompt, output
        Tokens of the prompt and of the answer, both from 1; (requests,).
    segments
        Of each request, what its prompt begins with that other prompts may begin with, too; empty: of none.
    answer
        Number of the segment that each request's answer is to later turns, or -1; empty: to none.
    session
        Conversation that each request is a turn of, or -1; a turn waits for the answer before it. Empty: of none.
    priority
        Lower is first; empty: all alike.
    adapter
        Number of the LoRA adapter that each request uses, or -1; empty: none.
    client
        Number of who asks, or -1; empty: all the same.
    model
        Number of the model that each request asks, of several of one architecture; empty: all the same one.
    """

    arrival_s: Float
    prompt: Int
    output: Int
    segments: tuple[tuple[Segment, ...], ...] = ()
    answer: Int = np.zeros(0, np.int64)
    session: Int = np.zeros(0, np.int64)
    priority: Int = np.zeros(0, np.int64)
    adapter: Int = np.zeros(0, np.int64)
    client: Int = np.zeros(0, np.int64)
    model: Int = np.zeros(0, np.int64)


__all__ = ["Segment", "ServedRequests"]
