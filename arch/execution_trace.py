"""Execution traces: what every rank of a system computes, sends and joins, as a graph of nodes, a graph a rank.

The nodes are those of MLCommons Chakra's schema (``et_def.proto``); how they lie in files is in
`siliconloom.evaluate.chakra_files`. Ids are a rank's own. A node begins when all that it waits for is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from msgspec import Struct

NODE_BYTES = 4000
"""Memory of a node with what it waits for, until it has been run."""
NODES_MOST = 2_000_000
SUFFIX = ".et"
"""How the name of an execution trace ends."""


class NodeKind(IntEnum):
    """What a node does, by its number in the schema."""

    METADATA = 1
    MEMORY_LOAD = 2
    MEMORY_STORE = 3
    COMPUTE = 4
    SEND = 5
    RECEIVE = 6
    COLLECTIVE = 7


class CollectiveKind(IntEnum):
    """What a collective does, by its number in the schema."""

    ALL_REDUCE = 0
    ALL_GATHER = 2
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    BARRIER = 9


class TraceNode(Struct, frozen=True):
    """A node of one rank.

    Parameters
    ----------
    id, name, kind
        A number that no other node of the rank has, a name for people, and what the node does.
    waits
        Ids of the nodes that must be done before.
    duration
        Picoseconds of work; ``None`` where the trace has none.
    operations, tensor
        Arithmetic operations and bytes of work that has no duration.
    on_host
        The host's processor does it, and not the chip.
    size
        Bytes of a message; of a collective a rank's input, as ASTRA-sim counts them.
    peer, tag
        Who else takes part in a message, and what tells messages of the same two ranks apart.
    collective, group
        What a collective does, and the name of its group; all ranks have none.
    """

    id: int
    name: str
    kind: NodeKind
    waits: tuple[int, ...] = ()
    duration: int | None = None
    operations: int = 0
    tensor: int = 0
    on_host: bool = False
    size: int = 0
    peer: int = -1
    tag: int = 0
    collective: CollectiveKind | None = None
    group: str = ""


class ExecutionTrace(Struct, frozen=True):
    """Nodes of every rank, in the order of their ids, and the ranks of every named group."""

    name: str
    ranks: tuple[tuple[TraceNode, ...], ...]
    groups: Mapping[str, tuple[int, ...]]

    def members(self, group: str) -> tuple[int, ...]:
        """Ranks of a group."""
        return self.groups[group] if group else tuple(range(len(self.ranks)))

    def node_text(self, rank: int, node: TraceNode) -> str:
        """A node as errors name it."""
        return f"rank {rank} node {node.id} ('{node.name}')"
