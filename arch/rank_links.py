"""Links between ranks that lie some distance apart, as attention that they share uses them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class RankLink(Struct, frozen=True):
    """How ranks are joined.

    Parameters
    ----------
    bandwidth
        Bytes per second in one direction.
    latency
        Seconds.
    wiring
        ``port``: each rank has one way out and one in, through a switch; ``ring``: a link to either neighbour, over
        which messages to others go the shorter way; ``mesh``: a link to every other rank.
    """

    bandwidth: float
    latency: float = 0.0
    wiring: Literal["port", "ring", "mesh"] = "port"


class RankLinks(Struct, frozen=True):
    """Links within groups of ranks and between them; one group when there is no ``outer``."""

    inner: RankLink
    outer: RankLink | None = None
    group: int = 1

    def between(self, source: int, target: int) -> RankLink:
        """Link that a message takes."""
        return self.inner if self.outer is None or source // self.group == target // self.group else self.outer
