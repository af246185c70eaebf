"""Experts that lie in the host's memory, and come to a replica's chips when a token uses them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Float = NDArray[np.float64]
Mask = NDArray[np.bool_]

ONE_BY_ONE = 4096
"""Up to so many pairs of a token and an expert, tokens draw their experts one by one."""
OFTEN = 4
"""So does any number of them, where all experts are as likely and each is used so often at most, in the mean."""


class ExpertRouting(Struct, frozen=True):
    """Experts of the layers that have them, all layers alike.

    Parameters
    ----------
    layers
        How many have experts.
    chances
        Of each expert, that a token uses it; together as many as a token uses.
    slots
        Experts of a layer that lie on the chips at once.
    load_s
        Seconds to bring one.
    ahead
        Whether the layer before says which are used, so that they come while that one computes.
    """

    layers: int
    chances: tuple[float, ...]
    slots: int
    load_s: float
    ahead: bool = False


class OffloadedExperts:
    """Which experts a replica's chips have, step after step: of each layer those that were used last.

    They begin with the first ones of `ExpertRouting.chances`. In a step a layer uses those first that are there, then
    brings the others one by one, each in place of the one that was used longest ago.

    Parameters
    ----------
    seed, index
        Of what is drawn, and the replica's number.

    Members
    -------
    used, loads
        Experts that steps have used, each layer's counted by itself, and those of them that were brought.
    waited_s
        Seconds that steps took longer for that.
    """

    def __init__(self, routing: ExpertRouting, seed: int, index: int) -> None:
        self.routing = routing
        self.used = self.loads = 0
        self.waited_s = 0.0
        self._random = np.random.default_rng((seed, index, 1))
        self._chances = np.array(routing.chances)
        self._per_token = round(float(self._chances.sum()))
        self._step = 0
        self._last = np.zeros((0, 0), np.int64)
        """When each expert of each layer was used last; of a step's, those that were there come before the others."""
        self._there = np.zeros((0, 0), np.bool_)
        self.clear()

    def clear(self) -> None:
        """The chips have what they begin with."""
        experts, routing = len(self._chances), self.routing
        self._step = 0
        self._last = np.tile(-np.arange(1, experts + 1), (routing.layers, 1))
        self._there = np.tile(np.arange(experts) < routing.slots, (routing.layers, 1))

    def steps(self, tokens: int, seconds: Float, limit_s: float, layers: Float | None = None) -> Float:
        """Seconds of steps of so many tokens, with what they wait for; of those alone that begin within the limit.

        ``seconds`` are the steps' own, ``layers`` those of one layer. The first step is always taken.
        """
        found, elapsed = list[float](), 0.0
        of_layer = np.zeros(len(seconds)) if layers is None else layers
        for own, layer in zip(seconds.tolist(), of_layer.tolist(), strict=True):
            if found and elapsed >= limit_s:
                break
            waited = self._waits(self.bring(self.drawn(tokens)), layer)
            self.waited_s += waited
            found.append(own + waited)
            elapsed += found[-1]
        return np.array(found)

    def _waits(self, loads: NDArray[np.int64], layer_s: float) -> float:
        """Seconds that a step whose layers take ``layer_s`` waits for so many experts of each layer.

        Where the layer before says which they are, what comes with the first is waited for, and of the others what
        takes longer than a layer does.
        """
        routing = self.routing
        brought = loads * routing.load_s
        if not routing.ahead:
            return float(brought.sum())
        return float(brought[0] + np.maximum(brought[1:] - layer_s, 0.0).sum())

    def drawn(self, tokens: int) -> Mask:
        """Experts of each layer that so many tokens use: (layers, experts).

        Tokens draw one by one as many as each uses, with the chances that are given; of many, whether an expert is used
        is drawn for each by itself.
        """
        layers, experts, used = self.routing.layers, len(self._chances), self._per_token
        if used == experts:
            return np.ones((layers, experts), np.bool_)
        alike = bool((self._chances == self._chances[0]).all())
        if alike and used**2 <= experts and tokens * used <= OFTEN * experts:
            return self._alike(tokens)
        if tokens * experts > ONE_BY_ONE:
            return np.asarray(self._random.random((layers, experts)) < 1 - (1 - self._chances) ** tokens, np.bool_)
        # experts in an order of chance on a line, each as long as its chance; points at a distance of 1 from each other
        order = np.argsort(self._random.random((layers, tokens, experts)), axis=-1)
        ends = np.cumsum(self._chances[order], axis=-1)
        ends[..., -1] = used
        first = 1.0 - self._random.random((layers, tokens, 1))
        points = np.floor(ends - first)
        hit = np.diff(points, axis=-1, prepend=-1.0) > 0
        found = np.zeros((layers, experts), np.bool_)
        found[hit.nonzero()[0], order[hit]] = True
        return found

    def _alike(self, tokens: int) -> Mask:
        """The same of experts that are all as likely: who has drawn one twice draws anew."""
        layers, experts = self.routing.layers, len(self._chances)
        drawn = np.sort(self._random.integers(0, experts, (layers * tokens, self._per_token)), axis=1)
        while len(twice := np.flatnonzero((np.diff(drawn, axis=1) == 0).any(axis=1))):
            drawn[twice] = np.sort(self._random.integers(0, experts, (len(twice), self._per_token)), axis=1)
        found = np.zeros((layers, experts), np.bool_)
        found[np.repeat(np.arange(layers), tokens * self._per_token), drawn.ravel()] = True
        return found

    def bring(self, used: Mask) -> NDArray[np.int64]:
        """A step uses these of each layer; returns how many of them are brought: (layers,)."""
        slots, experts = self.routing.slots, used.shape[1]
        missing = used & ~self._there
        loads: NDArray[np.int64] = missing.sum(axis=1)
        self.used += int(used.sum())
        self.loads += int(loads.sum())
        self._step += 1
        when = 2 * experts * self._step + np.arange(experts) + experts * missing
        self._last = np.where(used, when, self._last)
        changed = loads > 0
        if changed.any():
            some = self._last[changed]
            kept = np.argpartition(some, experts - slots, axis=1)[:, experts - slots :]
            there = np.zeros(some.shape, np.bool_)
            np.put_along_axis(there, kept, True, axis=1)
            self._there[changed] = there
        return loads


__all__ = ["ExpertRouting", "OffloadedExperts"]
