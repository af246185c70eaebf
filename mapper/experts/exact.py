"""The best placement of all, by dynamic programming over layers.

A layer's state is how its experts fall into groups. Which GPU a group is does not matter, only which group follows
which: so a layer's best value is kept for each unlabelled partition, and followed by every labelling of it.
"""

from __future__ import annotations

from itertools import combinations, permutations
from math import factorial

import numpy as np
from numpy.typing import NDArray

from siliconloom.mapper.experts.assignment import best_assignment

Float = NDArray[np.float64]
Int = NDArray[np.int64]

WORK_MOST = 4_000_000
"""Pairs of a labelled and an unlabelled partition up to which all are tried in each layer."""


def work(experts: int, groups: int) -> int:
    """Pairs of partitions that a layer compares."""
    labelled = factorial(experts) // int(factorial(experts // groups) ** groups)
    return labelled * (labelled // factorial(groups))


def is_small(experts: int, groups: int) -> bool:
    """Tell whether `solve` can do it: few partitions, or one expert a group, where layers are assignment problems."""
    return experts == groups or work(experts, groups) <= WORK_MOST


def solve(gain: Float, own: Float, load: Float, cap: Float, penalty: float, groups: int) -> Int:
    """Group of each expert, [layers, experts], with the largest gain.

    Parameters
    ----------
    gain
        [layers - 1, experts, experts] of an expert and one of the next layer in one group.
    own
        [layers, experts, experts] of two experts of a layer in one group; symmetric.
    load, cap, penalty
        [layers, experts]; [layers] of a group; what a unit of load above the cap costs.
    """
    layers, experts = load.shape
    if experts == groups:
        found = np.zeros((layers, experts), np.int64)
        found[0] = np.arange(experts)
        for layer in range(1, layers):
            follows = best_assignment(gain[layer - 1])
            found[layer, follows] = found[layer - 1]
        return found
    subsets = list(combinations(range(experts), experts // groups))
    number = {subset: at for at, subset in enumerate(subsets)}
    member = np.zeros((len(subsets), experts))
    for at, subset in enumerate(subsets):
        member[at, list(subset)] = 1.0
    bare = np.array([[number[g] for g in p] for p in _partitions(tuple(range(experts)), experts // groups)], np.int64)
    orders = np.array(list(permutations(range(groups))), np.int64)
    labelled = bare[:, orders].reshape(-1, groups)
    of = np.repeat(np.arange(len(bare)), len(orders))

    def value(layer: int) -> Float:
        within = np.einsum("se,ef,sf->s", member, own[layer], member) / 2
        above = np.maximum(member @ load[layer] - cap[layer], 0.0)
        found: Float = (within - penalty * above)[bare].sum(axis=1)
        return found

    best = value(0)
    came: list[Int] = []
    for layer in range(1, layers):
        kept = member @ gain[layer - 1] @ member.T
        total = best[of][:, None] + sum(kept[labelled[:, g]][:, bare[:, g]] for g in range(groups))
        chosen = total.argmax(axis=0)
        came.append(chosen)
        best = total[chosen, np.arange(len(bare))] + value(layer)
    found = np.zeros((layers, experts), np.int64)
    state, name = int(best.argmax()), np.arange(groups)
    for layer in range(layers - 1, -1, -1):
        for group in range(groups):
            found[layer, list(subsets[bare[state, group]])] = name[group]
        if layer:
            before = int(came[layer - 1][state])
            state, earlier = int(of[before]), np.empty(groups, np.int64)
            earlier[orders[before % len(orders)]] = name
            name = earlier
    return found


def _partitions(items: tuple[int, ...], size: int) -> list[list[tuple[int, ...]]]:
    """Ways to cut ``items`` into sets of ``size``, whose order does not count."""
    if not items:
        return [[]]
    found = []
    for others in combinations(items[1:], size - 1):
        left = tuple(item for item in items[1:] if item not in others)
        found += [[(items[0], *others), *rest] for rest in _partitions(left, size)]
    return found
