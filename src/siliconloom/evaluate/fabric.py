"""Seconds of a plan's messages: collectives of equal groups of chips, and a message from one stage to the next.

Chips are numbered with the tensor dimension innermost, then context, data and pipeline, so a dimension's groups are
``size`` chips that lie ``stride`` apart. All groups of a dimension communicate at once.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch.budget import require_memory
from siliconloom.arch.memo import QUICK, key_of, shared_memo
from siliconloom.arch.network import Endpoint, LinkPort, Topology, Wiring, wire
from siliconloom.arch.rank_links import RankLink, RankLinks
from siliconloom.arch.transfers import Transfers, join
from siliconloom.mapper.network.collectives import collective
from siliconloom.sim.network.messages import run_transfers

Float = NDArray[np.float64]

ALGORITHMS = {
    "all_reduce": ("ring", "bidirectional_ring", "halving_doubling", "direct"),
    "all_gather": ("ring", "bidirectional_ring", "halving_doubling", "direct"),
    "reduce_scatter": ("ring", "bidirectional_ring", "halving_doubling", "direct"),
    "all_to_all": ("direct", "ring"),
}
"""Those whose steps lie between the chips of any group, whatever joins them."""
IN_SWITCH = "in_switch"
"""The one of a switch for all that adds, all-reduce's alone."""
PROBE = float(1 << 24)
"""Bytes of messages, all chips' at once, by which a topology's rate between neighbours along a dimension is told."""
JOINED_BYTES = 200
"""Memory of a message of groups that communicate at once: its own table's, that of all groups, and its run's."""
INSTANT = 1e30
"""Bytes per second of what takes no time."""
DIRECT_MOST = 64
"""Chips of a group up to which all send to all at once."""


@dataclass(frozen=True)
class NetworkFabric:
    """Any topology, by the network simulator: every message of all groups in the links' queues at once.

    Parameters
    ----------
    places
        Chip of each rank.
    algorithm
        Of every collective that knows it; the fastest of `ALGORITHMS` with ``auto``.
    """

    wiring: Wiring
    endpoint: Endpoint
    places: tuple[int, ...]
    algorithm: str = "auto"
    _found: dict[tuple[str, int, int, int], float] = field(default_factory=dict, init=False, compare=False, repr=False)

    def seconds(self, operation: str, size: float, stride: int, chips: int, precision: str = "fp16") -> float:
        if chips == 1 or not size:
            return 0.0
        key = operation, round(size), stride, chips
        if key not in self._found:
            steps = 2 * chips if operation != "all_to_all" else chips
            key_text = f"{operation} of groups of {chips} among {len(self.places):,} chips"
            require_memory(key_text, len(self.places) * steps * JOINED_BYTES, "fewer chips need less")
            groups = [
                [self.places[base + lane + i * stride] for i in range(chips)]
                for base in range(0, len(self.places) - stride * chips + 1, stride * chips)
                for lane in range(stride)
            ]
            names = [a for a in ALGORITHMS[operation] if a != "direct" or chips <= DIRECT_MOST]
            if operation == "all_reduce" and self.wiring.topology.adds:
                names.append(IN_SWITCH)
            if self.algorithm in names or self.algorithm in ALGORITHMS[operation]:
                names = [self.algorithm]
            self._found[key] = self._recalled(
                key, lambda: min(self._run([self._of(operation, a, size, g) for g in groups]) for a in names)
            )
        return self._found[key]

    def _recalled(self, key: tuple[str, int, int, int], find: Callable[[], float]) -> float:
        """What was found for the same messages on the same links, here or by another process."""
        question = key_of("messages", self._described, repr((self.places, self.algorithm, key)))
        found: float = shared_memo().recall(question, lambda: {"seconds": find()}, quick=QUICK)["seconds"]
        return found

    @cached_property
    def _described(self) -> str:
        w = self.wiring
        links = [np.asarray(each).tobytes() for each in (w.source, w.target, w.bandwidth, w.latency)]
        rest = (w.chips, w.nodes, w.shape, w.leaves, w.topology.model_dump_json(), self.endpoint.model_dump_json())
        return hashlib.sha256(repr(rest).encode() + b"".join(links)).hexdigest()

    def _of(self, operation: str, algorithm: str, size: float, members: Sequence[int]) -> Transfers:
        """A collective among some chips by their numbers in the whole, after them the switch of all for sums in it."""
        kind = {"kind": "switch", "adds": True} if algorithm == IN_SWITCH else {"kind": "ring"}
        port = LinkPort.model_validate({"bandwidth": "1 GB/s", "latency": "1 ns"})
        found = collective(operation, algorithm, wire(Topology.model_validate(kind), port, len(members)), size)
        number = np.array([*members, self.wiring.chips], np.int32)
        return replace(found, source=number[found.source], target=number[found.target])

    def _run(self, parts: Sequence[Transfers]) -> float:
        run = run_transfers(self.wiring, join(list(parts)), self.endpoint)
        return float(run.done.max()) * 1e-12

    def hop(self, size: float, stride: int) -> float:
        key = "hop", round(size), stride, 2
        if key not in self._found:
            n = len(self.places)
            pairs = [[self.places[a], self.places[a + stride]] for a in range(n - stride)]
            self._found[key] = (
                self._recalled(key, lambda: self._run([_message(a, b, size) for a, b in pairs])) if pairs else 0.0
            )
        return self._found[key]

    def links(self, stride: int) -> RankLinks:
        wait = self.hop(1.0, stride)
        return RankLinks(RankLink(PROBE / max(self.hop(PROBE, stride) - wait, 1e-12), wait))

    def placed(self, places: tuple[int, ...]) -> NetworkFabric:
        """The same links with each rank on the chip that ``places`` says."""
        return dataclasses.replace(self, places=places)

    def exchange(self, sent: Float, places: Sequence[int]) -> float:
        source, target = np.nonzero(sent)
        if not len(source):
            return 0.0
        ends = zip(source.tolist(), target.tolist(), strict=True)
        return self._run([_message(places[a], places[b], float(sent[a, b])) for a, b in ends])


class SilentFabric(Struct, frozen=True):
    """Messages that take no time, for what is asked without them (``policy.communicate``)."""

    inner: NetworkFabric

    def seconds(self, operation: str, size: float, stride: int, chips: int, precision: str = "fp16") -> float:
        return 0.0

    def hop(self, size: float, stride: int) -> float:
        return 0.0

    def links(self, stride: int) -> RankLinks:
        return RankLinks(RankLink(INSTANT, 0.0))

    def placed(self, places: tuple[int, ...]) -> SilentFabric:
        return SilentFabric(self.inner.placed(places))

    def exchange(self, sent: Float, places: Sequence[int]) -> float:
        return 0.0


def _message(source: int, target: int, size: float) -> Transfers:
    return Transfers(
        np.array([source], np.int32),
        np.array([target], np.int32),
        np.array([size]),
        np.array([False]),
        np.zeros(2, np.int64),
        np.zeros(0, np.int64),
        np.zeros(1, np.int32),
    )
