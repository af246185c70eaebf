"""Places experts: as many on every GPU, tokens kept where they are, loads even.

ExFlow (Yao et al., IPDPS 2024) keeps the context of all tokens on all GPUs, so that a token need not come home after a
layer but goes on to where the next layer's expert lies: one all-to-all a layer for two, and none where it already is.
MoETuner (Go and Mahajan, 2025) weighs that against even loads.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.mapper.experts.exact import is_small, solve
from siliconloom.mapper.experts.routing import Routing, hops_of, imbalance_of
from siliconloom.mapper.experts.search import most_kept, search

Float = NDArray[np.float64]
Int = NDArray[np.int64]


class ExpertPlacement(Struct, frozen=True, eq=False):
    """A placement and what it costs.

    Parameters
    ----------
    gpu
        [layers, experts]; GPUs of a node are consecutive.
    hops, node_hops
        Of a token in all layers, from GPU to GPU, and of these from node to node.
    bound
        No placement has fewer hops from GPU to GPU.
    exact
        Nothing is better: of one node in hops, of several in hops between nodes.
    imbalance
        Load of the fullest GPU over the mean, in the worst layer.
    """

    gpu: Int
    hops: float
    node_hops: float
    bound: float
    exact: bool
    imbalance: float


def place_experts(
    routing: Routing,
    gpus: int,
    *,
    nodes: int = 1,
    imbalance: float | None = None,
    together: float = 0.0,
    exhaustive: bool | None = None,
) -> ExpertPlacement:
    """Place every layer's experts on ``gpus``, equally many on each.

    Experts are placed on nodes first, with the fewest hops between them, then on the GPUs of each node.

    Parameters
    ----------
    imbalance
        Loads above this many times the mean are avoided before hops are.
    together
        What it is worth, in hops, that two experts that a token uses in one layer lie on one GPU.
    exhaustive
        Whether to find the best of all; where that is quick, if not given.

    Raises
    ------
    LoomError
        When experts or GPUs do not divide.
    """
    experts, layers = routing.experts, routing.layers
    if experts % gpus or gpus % nodes:
        raise LoomError(f"experts: {experts} cannot lie on {gpus} GPUs of {nodes} nodes, equally many on each")
    exact = True
    node = np.zeros((layers, experts), np.int64)
    if nodes > 1:
        node, exact = _solved(routing, np.tile(np.arange(experts), (layers, 1)), nodes, imbalance, together, exhaustive)
    gpu = np.empty((layers, experts), np.int64)
    each = gpus // nodes
    for number in range(nodes):
        chosen = np.stack([np.flatnonzero(at == number) for at in node])
        found, all_of_them = _solved(routing, chosen, each, imbalance, together, exhaustive)
        np.put_along_axis(gpu, chosen, found + number * each, axis=1)
        exact = exact and (all_of_them or nodes > 1)
    hops = hops_of(routing.transitions, gpu)
    bound = hops
    if not exact or nodes > 1 or together or imbalance is not None:
        bound = sum(float(t.sum()) - most_kept(t, experts // gpus) for t in routing.transitions)
    return ExpertPlacement(
        gpu,
        hops,
        hops_of(routing.transitions, gpu // each),
        min(max(bound, 0.0), hops),
        exact,
        imbalance_of(routing.loads, gpu, gpus),
    )


def _solved(
    routing: Routing, chosen: Int, groups: int, imbalance: float | None, together: float, exhaustive: bool | None
) -> tuple[Int, bool]:
    """Groups of some experts of each layer, and whether nothing is better."""
    layers, experts = chosen.shape
    if groups == 1:
        return np.zeros_like(chosen), True
    gain = np.stack(
        [routing.transitions[n][np.ix_(chosen[n], chosen[n + 1])] for n in range(layers - 1)]
        or [np.zeros((experts, experts))]
    )[: layers - 1]
    own = np.stack([together * routing.together[n][np.ix_(at, at)] for n, at in enumerate(chosen)])
    load = np.take_along_axis(routing.loads, chosen, axis=1)
    cap = np.full(layers, np.inf) if imbalance is None else imbalance * load.mean(axis=1) * experts / groups
    penalty = 0.0 if imbalance is None else 1e4 * float(gain.sum() + own.sum() + 1.0)
    small = is_small(experts, groups)
    if exhaustive and not small:
        raise LoomError(f"experts: too many ways to place {experts} on {groups} to try them all")
    if small and exhaustive is not False:
        return solve(gain, own, load, cap, penalty, groups), True
    return search(gain, own, load, cap, penalty, groups), False
