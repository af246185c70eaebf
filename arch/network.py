"""How chips are joined: topologies, links and routes, down to every directed link.

A topology names how many chips there are and which links join them; `Wiring` is the graph it stands for, chips first
and switches after them. A link of the description is full duplex: one directed link each way, each with the whole
bandwidth.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field
from pydantic import Field, model_validator

from siliconloom.arch.budget import require_memory
from siliconloom.arch.document import Description, Document, Name, find_file, rule_at
from siliconloom.arch.errors import DescriptionError, LoomError, Position
from siliconloom.arch.names import LIBRARY
from siliconloom.arch.quantity import Bandwidth, Duration

if TYPE_CHECKING:  # loading NumPy takes longer than checking a description
    import numpy as np
    from numpy.typing import NDArray

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]

LINK_BYTES = 160
"""Memory of one full-duplex link while the graph is made."""

TopologyKind = Literal[
    "ring", "switch", "fully_connected", "mesh", "torus", "fat_tree", "dragonfly", "hierarchical", "edges"
]
Algorithm = Literal[
    "auto",
    "ring",
    "bidirectional_ring",
    "tree",
    "double_tree",
    "halving_doubling",
    "direct",
    "hierarchical",
    "in_switch",
]


class LinkPort(Description):
    """A chip's port to a chip-to-chip link."""

    count: int = Field(default=1, ge=1, le=1024)
    bandwidth: Bandwidth = Field(description="per direction and port")
    latency: Duration


class Edge(Description):
    """One link of a topology given link by link; also a change to one link of a regular topology."""

    between: tuple[int, int] = Field(description="nodes: chips from 0, then switches")
    bandwidth: Bandwidth | None = Field(default=None, description="per direction; the system's link's when absent")
    latency: Duration | None = Field(default=None, description="the system's link's when absent")
    failed: bool = False


class Topology(Description):
    """How the chips of a system are joined.

    ``ring``; ``mesh`` and ``torus`` of a ``shape``; ``fully_connected``; ``switch``, one for all; ``fat_tree`` of
    leaves with ``chips_per_leaf`` and ``spines`` switches above, one uplink from each leaf to each; ``dragonfly`` of
    ``groups`` of ``routers`` with ``chips_per_leaf``, routers of a group all joined, one link between any two groups;
    ``hierarchical``: nodes of ``chips_per_leaf`` behind a switch each, and one switch over them, reached by each chip's
    own network port (``uplink``); ``edges``, link by link.
    """

    kind: TopologyKind
    shape: tuple[int, ...] | None = Field(default=None, description="chips along each dimension of a mesh or torus")
    chips_per_leaf: int | None = Field(default=None, ge=1, le=4096, description="chips of a leaf, router or node")
    spines: int = Field(default=1, ge=1, le=1024, description="upper switches of a fat tree")
    routers: int = Field(default=1, ge=1, le=1024, description="routers of a dragonfly's group")
    uplink: LinkPort | None = Field(default=None, description="upper links; the system's link when absent")
    switches: int = Field(default=0, ge=0, le=65536, description="nodes of `edges` that are no chips")
    edges: tuple[Edge, ...] = Field(default=(), description="of `edges` all links, otherwise changes to single ones")
    adds: bool | None = Field(
        default=None, description="whether the switch of a `switch` adds (in_switch); as its GPUs' links do when absent"
    )
    routing: Literal["static", "ecmp"] = Field(
        default="static", description="first shortest path always, or one of the equal ones by a hash of its ends"
    )
    forwarding: Literal["cut_through", "store_and_forward"] = Field(default="cut_through")

    @model_validator(mode="after")
    def _check(self) -> Topology:
        if self.kind in ("fat_tree", "dragonfly", "hierarchical") and self.chips_per_leaf is None:
            raise ValueError(f"chips_per_leaf is missing; a {self.kind} needs it")
        if self.adds and self.kind != "switch":
            raise rule_at("adds", f"is of one switch for all; a {self.kind} does not read it", "true")
        if self.kind == "edges" and not self.edges:
            raise ValueError("edges is missing; a topology given link by link needs at least one")
        if self.shape is not None and any(side < 1 for side in self.shape):
            raise ValueError(f"shape must be positive (got {list(self.shape)})")
        return self


class Endpoint(Description):
    """What a chip does with a message, where no chip is described."""

    memory: Bandwidth = Field(default=3350 * 10**9, description="reads and writes of sums that are added up")
    delay: Duration = Field(default=10_000, description="from a message's arrival to what depends on it")


class Network(Description):
    """Equal chips that only communicate, for studies of collectives alone."""

    kind: Literal["network"]
    name: Name
    description: str = ""
    chips: int = Field(ge=1, le=2**20)
    topology: Topology
    link: LinkPort
    algorithm: Algorithm = "auto"
    endpoint: Endpoint = Endpoint()


class Wiring(Struct, frozen=True):
    """Every directed link between nodes; the first ``chips`` nodes are chips, the others switches.

    Parameters
    ----------
    source, target
        Nodes of each link.
    bandwidth
        Bytes per second.
    latency
        Picoseconds.
    leaves
        Chips of each leaf, node or group of routers, where there are such; chips are numbered one leaf after the other.
    """

    chips: int
    nodes: int
    source: Int
    target: Int
    bandwidth: Float
    latency: Int
    topology: Topology
    shape: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()
    names: dict[int, str] = field(default_factory=dict)

    def label(self, node: int) -> str:
        """What a node is called: ``chip 3``, ``leaf 0``."""
        return f"chip {node}" if node < self.chips else self.names.get(node, f"switch {node - self.chips}")

    def outgoing(self) -> tuple[Int, Int]:
        """Links by source node: first positions, and link numbers."""
        import numpy as np

        order = np.argsort(self.source, kind="stable")
        first = np.zeros(self.nodes + 1, np.int64)
        np.cumsum(np.bincount(self.source, minlength=self.nodes), out=first[1:])
        return first, order


class _Builder:
    """Full-duplex links, many at once: columns of ends, bandwidths and latencies."""

    def __init__(self, link: LinkPort) -> None:
        import numpy as np

        self.link = link
        self.ends: list[Int] = [np.zeros((0, 2), np.int64)]
        self.rates: list[Float] = [np.zeros(0)]
        self.delays: list[Int] = [np.zeros(0, np.int64)]
        self.names: dict[int, str] = {}

    def join(self, a: int | Int, b: int | Int, link: LinkPort | None = None) -> None:
        """Full-duplex links between nodes and nodes, each both ways, one link after the other."""
        import numpy as np

        found = link or self.link
        pairs = np.stack(np.broadcast_arrays(np.atleast_1d(np.asarray(a, np.int64)), b), axis=1)
        count = 2 * len(pairs)
        self.ends.append(np.stack([pairs, pairs[:, ::-1]], axis=1).reshape(count, 2))
        self.rates.append(np.full(count, float(found.count * found.bandwidth)))
        self.delays.append(np.full(count, found.latency, np.int64))


def wire(topology: Topology, link: LinkPort, chips: int) -> Wiring:
    """The graph of a topology of ``chips`` chips.

    Raises
    ------
    LoomError
        When the chips do not fill the topology's shape, or a link names a node that is not there.
    """
    import numpy as np

    builder = _Builder(link)
    shape: tuple[int, ...] = ()
    group = 0
    nodes = chips
    upper = topology.uplink or link
    kind = topology.kind
    if kind in ("ring", "mesh", "torus"):
        shape = (chips,) if kind == "ring" else _shape(topology, chips)
        _grid(builder, shape, wrap=kind != "mesh")
    elif kind == "fully_connected":
        require_memory(f"fully connected, {chips:,} chips", chips**2 * LINK_BYTES, "fewer --chips need less")
        builder.join(*np.triu_indices(chips, 1))
    elif kind == "switch":
        nodes = chips + 1
        builder.names[chips] = "switch"
        builder.join(np.arange(chips), chips)
    elif kind == "fat_tree":
        group = _leaf(topology, chips)
        leaves = chips // group
        nodes = chips + leaves + (topology.spines if leaves > 1 else 0)
        for leaf in range(leaves):
            builder.names[chips + leaf] = f"leaf {leaf}"
        builder.join(np.arange(chips), chips + np.arange(chips) // group)
        for spine in range(topology.spines if leaves > 1 else 0):
            builder.names[chips + leaves + spine] = f"spine {spine}"
            builder.join(chips + np.arange(leaves), chips + leaves + spine, upper)
    elif kind == "hierarchical":
        group = _leaf(topology, chips)
        leaves = chips // group
        nodes = chips + leaves + (1 if leaves > 1 else 0)
        builder.names.update({chips + node: f"node {node}" for node in range(leaves)})
        builder.join(np.arange(chips), chips + np.arange(chips) // group)
        if leaves > 1:
            builder.names[chips + leaves] = "fabric"
            builder.join(np.arange(chips), chips + leaves, upper)
    elif kind == "dragonfly":
        group = _leaf(topology, chips)
        routers = chips // group
        nodes = chips + routers
        if routers % topology.routers:
            raise LoomError(f"dragonfly: {routers} routers do not fill groups of {topology.routers}")
        for router in range(routers):
            builder.names[chips + router] = f"router {router}"
            builder.join(np.arange(router * group, (router + 1) * group), chips + router)
            others = np.arange(router + 1, (router // topology.routers + 1) * topology.routers)
            builder.join(np.full(len(others), chips + router), chips + others)
        groups = routers // topology.routers
        require_memory(f"dragonfly, {groups:,} groups", groups**2 * LINK_BYTES, "fewer or larger groups need less")
        a, b = np.triu_indices(groups, 1)  # a group's links to the others are spread over its routers
        ra, rb = a * topology.routers + (b - 1) % topology.routers, b * topology.routers + a % topology.routers
        builder.join(chips + ra, chips + rb, upper)
        group *= topology.routers
    else:
        nodes = chips + topology.switches
        for edge in topology.edges:
            if edge.failed:
                continue
            for node in edge.between:
                if not 0 <= node < nodes:
                    raise LoomError(f"edges: node {node} is outside 0 to {nodes - 1}, the chips and then the switches")
            builder.join(*edge.between, _changed(link, edge))
    ends, rates, delays = np.concatenate(builder.ends), np.concatenate(builder.rates), np.concatenate(builder.delays)
    if kind != "edges" and topology.edges:
        ends, rates, delays = _with_changes(topology, link, ends, rates, delays, nodes)
    sizes = (group,) * (chips // group) if group else ()
    return Wiring(
        chips, nodes, ends[:, 0].copy(), ends[:, 1].copy(), rates, delays, topology, shape, sizes, builder.names
    )


def _changed(link: LinkPort, edge: Edge) -> LinkPort:
    bandwidth = link.bandwidth * link.count if edge.bandwidth is None else edge.bandwidth
    latency = link.latency if edge.latency is None else edge.latency
    return link.model_copy(update={"count": 1, "bandwidth": bandwidth, "latency": latency})


def _with_changes(
    topology: Topology, link: LinkPort, ends: Int, rates: Float, delays: Int, nodes: int
) -> tuple[Int, Float, Int]:
    import numpy as np

    keep = np.ones(len(ends), bool)
    for edge in topology.edges:
        a, b = edge.between
        found = ((ends[:, 0] == a) & (ends[:, 1] == b)) | ((ends[:, 0] == b) & (ends[:, 1] == a))
        if not found.any():
            raise LoomError(f"edges: the {topology.kind} has no link between {a} and {b} (nodes 0 to {nodes - 1})")
        if edge.failed:
            keep &= ~found
        if edge.bandwidth is not None:
            rates[found] = edge.bandwidth
        if edge.latency is not None:
            delays[found] = edge.latency
    return ends[keep], rates[keep], delays[keep]


def _shape(topology: Topology, chips: int) -> tuple[int, ...]:
    """The stated shape, or the squarest of two dimensions."""
    if topology.shape is not None:
        if prod(topology.shape) != chips:
            shown = " x ".join(map(str, topology.shape))
            raise LoomError(f"topology.shape {shown} has {prod(topology.shape)} places for {chips} chips")
        return topology.shape
    side = max(d for d in range(1, int(chips**0.5) + 1) if chips % d == 0)
    return (chips // side, side)


def _leaf(topology: Topology, chips: int) -> int:
    group = topology.chips_per_leaf or 1
    if chips <= group:
        return chips
    if chips % group:
        raise LoomError(
            f"{topology.kind}: {chips} chips do not fill leaves of {group}; {chips - chips % group} or "
            f"{chips + group - chips % group} do"
        )
    return group


def _grid(builder: _Builder, shape: tuple[int, ...], *, wrap: bool) -> None:
    """Neighbours along every dimension, the last one fastest; of two chips in a row one link, not two."""
    import numpy as np

    total = prod(shape)
    chips = np.arange(total)
    stride = total
    for side in shape:
        stride //= side
        place = chips // stride % side
        ends = np.where(place + 1 < side, chips + stride, chips - (side - 1) * stride)
        there = (place + 1 < side) | (wrap and side > 2)
        builder.join(chips[there], ends[there])


READ_BY = {
    "shape": ("mesh", "torus"),
    "chips_per_leaf": ("fat_tree", "dragonfly", "hierarchical"),
    "spines": ("fat_tree",),
    "adds": ("switch",),
    "routers": ("dragonfly",),
    "uplink": ("fat_tree", "dragonfly", "hierarchical"),
    "switches": ("edges",),
}
"""Kinds of topologies that read a key, where not all of them do."""


def refuse_idle_topology(topology: Topology, overrides: list[tuple[str, str]]) -> None:
    """Refuse overrides of what this kind of topology does not read; raises `DescriptionError`."""
    for path, value in overrides:
        key = path.removeprefix("topology.").partition(".")[0]
        kinds = READ_BY.get(key) if path.startswith("topology.") else None
        if kinds is not None and topology.kind not in kinds:
            why = f"changes nothing: a {topology.kind} does not read it, {' and '.join(kinds)} do"
            raise DescriptionError(why, position=Position(f"--set {path}={value}"), path=path)


def load_network(name: str, overrides: list[tuple[str, str]] | None = None) -> Network:
    """Read a bare network from a file or the library."""
    document = Document.load(find_file(name, LIBRARY / "network", "network"))
    document.override(overrides or [])
    document.expect_kind(["network"])
    network = document.validate(Network)
    refuse_idle_topology(network.topology, overrides or [])
    return network
