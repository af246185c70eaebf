"""Placements for even loads alone, which is all that counts where tokens come home after every layer.

Then layers do not depend on each other, and neither a token's next expert nor its others of the layer matter: the
fullest GPU of each layer is made as empty as possible.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.mapper.experts.copies import Copies, balance_copies, copy_hot, single
from siliconloom.mapper.experts.exact import is_small
from siliconloom.mapper.experts.place import place_experts
from siliconloom.mapper.experts.routing import Routing
from siliconloom.mapper.experts.search import level

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Placement = Literal["balanced", "in_order"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
NEAR = 1e-9
"""Loads that differ by less, relatively, are the same."""
ROUNDS = 50
"""Times that a layer's fullest GPU is made emptier at most."""


def place_loads(loads: Float, gpus: int, placement: Placement, spare: int = 0) -> Copies:
    """Which GPU holds which experts, from ``loads`` [layers, experts].

    Parameters
    ----------
    placement
        ``in_order``: consecutive experts on a GPU; ``balanced``: each layer's as evenly as was found.
    spare
        Further places on each GPU for copies of hot experts.

    Raises
    ------
    LoomError
        When the experts do not divide, or a GPU would have places for more than there are.
    """
    layers, experts = loads.shape
    if experts % gpus:
        raise LoomError(f"experts: {experts} cannot lie on {gpus} GPUs, equally many on each")
    if experts // gpus + spare > experts:
        raise LoomError(f"experts: {experts // gpus} and {spare} copies on each GPU are more than all {experts}")
    routing = _only_loads(loads)
    ordered = np.tile(np.arange(experts) // (experts // gpus), (layers, 1))
    if placement == "in_order":
        return copy_hot(routing, ordered, gpus, spare)
    even = place_evenly(loads, gpus)
    if not spare:
        return single(even, gpus)
    tried = [copy_hot(routing, even, gpus, spare), balance_copies(routing, gpus, spare)]
    tried.append(copy_hot(routing, ordered, gpus, spare))
    best = np.stack([copies.imbalances(loads) for copies in tried]).argmin(axis=0)
    return Copies(np.stack([tried[at].holds[layer] for layer, at in enumerate(best)]))


def place_evenly(loads: Float, gpus: int) -> Int:
    """GPU of each expert, [layers, experts], equally many on each, whose fullest GPU has the least load found.

    The largest goes to the emptiest first. Then what lies above the fullest GPU's load is taken from it, until nothing
    is: where a layer has few ways to place its experts all are tried, so that none is better; else experts are swapped.
    """
    layers, experts = loads.shape
    place: Int = balance_copies(_only_loads(loads), gpus).holds.argmax(axis=2)
    if gpus in (1, experts):
        return place
    small = is_small(experts, gpus)
    for layer in range(layers):
        load = loads[layer : layer + 1]
        mean = float(load.sum()) / gpus
        least = max(mean, float(load.max()))
        cap = least
        for _ in range(ROUNDS):
            most = _most(load, place[layer], gpus)
            if most <= least * (1 + NEAR):
                break
            trial = place[layer : layer + 1].copy()
            if small:
                trial = place_experts(_only_loads(load), gpus, imbalance=cap / mean).gpu
            else:
                level(load, np.array([cap]), trial, gpus)
            better = _most(load, trial[0], gpus) < most * (1 - NEAR)
            if better:
                place[layer] = trial[0]
            elif cap > least:
                break
            cap = _most(load, place[layer], gpus) * (1 - 2 * NEAR)
    return place


def _most(load: Float, place: Int, gpus: int) -> float:
    return float(np.bincount(place, weights=load[0], minlength=gpus).max())


def _only_loads(loads: Float) -> Routing:
    """Counts without transitions, of which nothing is read."""
    layers, experts = loads.shape
    return Routing(np.zeros((layers - 1, experts, experts)), loads, np.zeros((layers, experts, experts)))
