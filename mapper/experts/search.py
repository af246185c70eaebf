"""Good placements where trying all would take too long, and a bound on how good any can be.

From several starts, each layer in turn gets the best assignment to its neighbours' groups, forwards and backwards;
then experts of a layer are swapped (Kernighan and Lin, 1970) while that gains, which sees loads and gains within a
layer, too. Everything is deterministic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.kernels import kernel
from siliconloom.mapper.experts.assignment import best_assignment

Float = NDArray[np.float64]
Int = NDArray[np.int64]

STARTS = 8
MANY, FEW_STARTS = 64, 2
"""Of more experts than this a layer, fewer starts are tried: an assignment's time grows with their cube."""
SWEEPS = 40
LEAST = 1e-4
"""Sweeps end when one gains less than this share."""
PENALTY = 1e4
"""Of a unit of load above a cap, where loads alone count: swaps gain down to 1e-13 of what a token uses."""
ROUNDS = 20
"""Of the dual prices of `most_kept`."""


def value_of(gain: Float, own: Float, load: Float, cap: Float, penalty: float, place: Int, groups: int) -> float:
    """What `search` and the exact solution maximise."""
    found = float((gain * (place[:-1, :, None] == place[1:, None, :])).sum())
    found += float((own * (place[:, :, None] == place[:, None, :])).sum()) / 2
    for layer, at in enumerate(place):
        each = np.bincount(at, weights=load[layer], minlength=groups)
        found -= penalty * float(np.maximum(each - cap[layer], 0.0).sum())
    return found


def search(gain: Float, own: Float, load: Float, cap: Float, penalty: float, groups: int, seed: int = 0) -> Int:
    """Group of each expert, [layers, experts]; arguments as of `siliconloom.mapper.experts.exact.solve`."""
    layers, experts = load.shape
    rng = np.random.default_rng(seed)
    best, most = np.zeros((layers, experts), np.int64), -np.inf
    for start in range(STARTS if experts <= MANY else FEW_STARTS):
        even = np.arange(experts) % groups
        place = np.tile(even if start == 0 else rng.permutation(even), (layers, 1))
        for layer in range(1, layers):
            place[layer] = _assigned(gain, place, layer, groups, after=False)
        value = value_of(gain, own, load, cap, penalty, place, groups)
        for _ in range(SWEEPS):
            for layer in (*range(layers), *range(layers - 2, -1, -1)):
                place[layer] = _assigned(gain, place, layer, groups, after=True)
            again = value_of(gain, own, load, cap, penalty, place, groups)
            if again <= value + LEAST * abs(value):
                break
            value = again
        _swap(gain, own, load, cap, penalty, place, groups)
        value = value_of(gain, own, load, cap, penalty, place, groups)
        if value > most + 1e-12:
            best, most = place, value
    return best


def level(load: Float, cap: Float, place: Int, groups: int) -> None:
    """Swap experts of a layer, in ``place``, while that takes load from above the caps; hops do not count."""
    layers, experts = load.shape
    none, own = np.zeros((layers - 1, experts, experts)), np.zeros((layers, experts, experts))
    _swap(none, own, load, cap, PENALTY, place, groups)


def _assigned(gain: Float, place: Int, layer: int, groups: int, *, after: bool) -> Int:
    """Groups of one layer's experts that gain most with the layer before, and with the one ``after`` it."""
    experts = place.shape[1]
    with_group = np.zeros((experts, groups))
    one = np.eye(groups)
    if layer:
        with_group += gain[layer - 1].T @ one[place[layer - 1]]
    if after and layer + 1 < len(place):
        with_group += gain[layer] @ one[place[layer + 1]]
    seat = best_assignment(np.repeat(with_group, experts // groups, axis=1))
    return np.asarray(seat // (experts // groups), np.int64)


@kernel()
def _swap(gain: Any, own: Any, load: Any, cap: Any, penalty: float, place: Any, groups: int) -> None:
    """Swap two experts of a layer while that gains."""
    layers, experts = load.shape
    with_group = np.empty((experts, groups))
    held = np.empty(groups)
    better = True
    while better:
        better = False
        for layer in range(layers):
            with_group[:] = 0.0
            held[:] = 0.0
            for e in range(experts):
                held[place[layer, e]] += load[layer, e]
                for f in range(experts):
                    if layer > 0:
                        with_group[e, place[layer - 1, f]] += gain[layer - 1, f, e]
                    if layer + 1 < layers:
                        with_group[e, place[layer + 1, f]] += gain[layer, e, f]
                    if f != e:
                        with_group[e, place[layer, f]] += own[layer, e, f]
            for e in range(experts):
                for f in range(e + 1, experts):
                    a, b = place[layer, e], place[layer, f]
                    if a == b:
                        continue
                    moved = load[layer, f] - load[layer, e]
                    over = max(held[a] - cap[layer], 0.0) + max(held[b] - cap[layer], 0.0)
                    then = max(held[a] + moved - cap[layer], 0.0) + max(held[b] - moved - cap[layer], 0.0)
                    # Each counted the other in the group that it leaves.
                    gained = with_group[e, b] - with_group[e, a] + with_group[f, a] - with_group[f, b]
                    gained += penalty * (over - then) - 2.0 * own[layer, e, f]
                    if gained <= 1e-9:
                        continue
                    better = True
                    place[layer, e], place[layer, f] = b, a
                    held[a] += moved
                    held[b] -= moved
                    for g in range(experts):
                        if g != e:
                            with_group[g, a] -= own[layer, g, e]
                            with_group[g, b] += own[layer, g, e]
                        if g != f:
                            with_group[g, b] -= own[layer, g, f]
                            with_group[g, a] += own[layer, g, f]


def most_kept(gain: Float, size: int) -> float:
    """No two layers' groups of ``size`` experts keep more than this of ``gain`` [experts, experts] within groups.

    Each expert shares its group with ``size`` of the other layer. That alone, as a linear program, has dual prices of
    rows and columns; any prices bound it, and rows' and columns' best ones in turn make the bound tight.
    """
    experts = len(gain)
    row, column = np.zeros(experts), np.zeros(experts)
    best = np.inf
    for turn in range(ROUNDS):
        if turn % 2 == 0:
            row = np.sort(gain - column, axis=1)[:, experts - size]
        else:
            column = np.sort(gain - row[:, None], axis=0)[experts - size]
        left = np.maximum(gain - row[:, None] - column, 0.0).sum()
        best = min(best, float(size * (row.sum() + column.sum()) + left))
    return best
