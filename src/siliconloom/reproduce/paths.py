"""Pipelines in which each microbatch takes its own path through nodes, leaving stages out or in another order.

After SkipPipe (Blagoev, Chen and Ersoy, 2025): a path begins at a node of the first stage, which has the embeddings and
the head; forward passes go along it, the last node's result returns to the first node for the loss, and backward passes
go along the path in reverse. A node holds a microbatch's activations from its forward to its backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from siliconloom.arch.errors import LoomError


class Visit(StrEnum):
    """What a node does with a microbatch."""

    FORWARD = "F"
    LOSS = "L"
    BACKWARD = "B"


class Stop(Struct, frozen=True):
    """One visit of a microbatch."""

    node: int
    kind: Visit

    @property
    def holds(self) -> int:
        """Change of the microbatches whose activations the node holds."""
        return {Visit.FORWARD: 1, Visit.LOSS: 0, Visit.BACKWARD: -1}[self.kind]


def round_trip(path: Sequence[int]) -> list[Stop]:
    """All visits of a microbatch, in order.

    Raises
    ------
    LoomError
        For a path that is empty or comes to a node twice.
    """
    if not path or len(set(path)) < len(path):
        raise LoomError(f"a microbatch's path has at least one node, and none twice (got {list(path)})")
    there = [Stop(node, Visit.FORWARD) for node in path]
    back = [Stop(node, Visit.BACKWARD) for node in reversed(path)]
    return [*there, Stop(path[0], Visit.LOSS), *back]


def follow(following: Mapping[int, int]) -> list[int]:
    """Path of a table of each node's next one; raises `LoomError` when the table is not one path."""
    starts = [node for node in following if node not in following.values()]
    if len(starts) != 1:
        raise LoomError(f"a path has one first node (got {starts})")
    path = [starts[0]]
    while path[-1] in following:
        path.append(following[path[-1]])
    if len(path) != len(following) + 1:
        raise LoomError(f"a path visits all of its nodes (got {len(path)} of {len(following) + 1})")
    return path
