"""Where tokens go in a mixture of experts, as counts, and what they cost in a placement."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from siliconloom.arch.errors import LoomError

Float = NDArray[np.float64]
Int = NDArray[np.int64]


class Routing(Struct, frozen=True, eq=False):
    """Counts of a trace, of one token on average.

    Parameters
    ----------
    transitions
        [layers - 1, experts, experts]: tokens that go from an expert of a layer to one of the next; a layer's sum to 1.
    loads
        [layers, experts]: tokens of each expert; a layer's sum to the experts that a token uses.
    together
        [layers, experts, experts]: tokens that use both of two experts of a layer; symmetric, nothing on the diagonal.
    """

    transitions: Float
    loads: Float
    together: Float

    @property
    def layers(self) -> int:
        return len(self.loads)

    @property
    def experts(self) -> int:
        return int(self.loads.shape[1])


def routing_of(trace: ArrayLike, experts: int) -> Routing:
    """Counts of a trace [tokens, layers] of expert numbers, or [tokens, layers, experts of a token].

    With several experts of a token, each pair of one layer's and the next's counts as a part of a transition.

    Raises
    ------
    LoomError
        When a number is no expert's.
    """
    picks = np.asarray(trace)
    picks = picks[..., None] if picks.ndim == 2 else picks
    if picks.ndim != 3 or not len(picks) or picks.min() < 0 or picks.max() >= experts:
        raise LoomError(f"routing: a trace is tokens by layers, of numbers from 0 to {experts - 1}")
    tokens, layers, each = picks.shape
    loads = loads_of(picks, experts)
    transitions = np.zeros((layers - 1, experts, experts))
    together = np.zeros((layers, experts, experts))
    for a in range(each):
        for b in range(each):
            for layer in range(layers):
                if a != b:
                    np.add.at(together[layer], (picks[:, layer, a], picks[:, layer, b]), 1.0)
                if layer:
                    np.add.at(transitions[layer - 1], (picks[:, layer - 1, a], picks[:, layer, b]), 1.0)
    return Routing(transitions / (tokens * each**2), loads, together / tokens)


def loads_of(picks: NDArray[Any], experts: int) -> Float:
    """Tokens of each expert, [layers, experts], of one token of a trace [tokens, layers, experts of a token]."""
    counts = [np.bincount(picks[:, layer].ravel(), minlength=experts) for layer in range(picks.shape[1])]
    found: Float = np.stack(counts) / len(picks)
    return found


def hops_of(transitions: Float, place: Int) -> float:
    """Transitions from one place to another, of a token in all layers; ``place`` is [layers, experts]."""
    crossing = place[:-1, :, None] != place[1:, None, :]
    return float((transitions * crossing).sum())


def return_hops(layers: int, gpus: int) -> float:
    """Hops of a token that comes home after every layer (two all-to-alls), its home being any of the GPUs."""
    return 2.0 * layers * (gpus - 1) / gpus


def imbalance_of(loads: Float, place: Int, places: int) -> float:
    """Load of the fullest place over the mean, in the worst layer; 1 when all are even."""
    worst = 1.0
    for layer, at in zip(loads, place, strict=True):
        each = np.bincount(at, weights=layer, minlength=places)
        if each.sum():
            worst = max(worst, float(each.max() / each.mean()))
    return worst


def traffic_of(transitions: Float, place: Int, places: int) -> Float:
    """Tokens that go from each place to each other between layers, [layers - 1, places, places], of one token."""
    at = np.eye(places)[place]
    found: Float = np.einsum("lea,lef,lfb->lab", at[:-1], transitions, at[1:])
    return found


def fanout_of(trace: ArrayLike, place: Int) -> Float:
    """Places that a token's experts lie on, of each layer on average: what it is sent to once for all experts there.

    ``trace`` is [tokens, layers, experts of a token], ``place`` [layers, experts].
    """
    picks = np.asarray(trace)
    at = np.sort(np.take_along_axis(place[None], picks, axis=2), axis=2)
    found: Float = 1.0 + (at[:, :, 1:] != at[:, :, :-1]).sum(axis=2).mean(axis=0)
    return found
