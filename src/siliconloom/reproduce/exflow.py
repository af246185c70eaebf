"""ExFlow: hops between GPUs of a Mixtral 8x7B token, with experts placed at random and by affinity.

At random, every one of the 31 transitions crosses GPUs but for the share of one of them: arithmetic. What affinity
saves depends on the model's routing, which is not published; the authors' repository has two results of it, on four
and on eight GPUs. A synthetic routing is made here, of one strength: from each expert to the next layer's with random
preferences, loads even. Its strength is set so that our placement on eight GPUs has the published hops; what the same
routing gives on four is then compared with the other result.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from siliconloom.mapper.experts import Routing, hops_of, place_experts, return_hops
from siliconloom.reproduce.card import Card, CardRow

LAYERS, EXPERTS = 32, 8
RANDOM, FOUR, EIGHT = 23.25, 17.495347692691237, 22.166013704896926
"""Published hops of a token: at random on four GPUs, and by affinity on four and on eight."""
SEED = 1
TOLERANCE = 0.05
SHAPE = (
    "the routing here has preferences drawn at random; Mixtral's, which is not published, has other ones, and the "
    "authors' solver stops after a time limit"
)


def synthetic(sharpness: float) -> Routing:
    """Preferences between the experts of neighbouring layers, sharper with larger ``sharpness``, loads even."""
    rng = np.random.default_rng(SEED)
    preference = np.exp(sharpness * rng.normal(size=(LAYERS - 1, EXPERTS, EXPERTS)))
    for _ in range(200):  # rows and columns in turn, until both are even (Sinkhorn)
        preference /= preference.sum(axis=2, keepdims=True)
        preference /= preference.sum(axis=1, keepdims=True)
    loads = np.full((LAYERS, EXPERTS), 1.0 / EXPERTS)
    return Routing(preference / EXPERTS, loads, np.zeros((LAYERS, EXPERTS, EXPERTS)))


def strength(hops: float, gpus: int) -> float:
    """Sharpness at which our placement on ``gpus`` has so many hops."""
    low, high = 0.0, 8.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if place_experts(synthetic(middle), gpus).hops > hops else (low, middle)
    return high


def staying(hops: float) -> float:
    """Share of transitions that stay on a GPU."""
    return 1 - hops / (LAYERS - 1)


def card() -> Card:
    """Hops at random, and of synthetic routing placed by affinity."""
    even: NDArray[np.float64] = np.full((LAYERS - 1, EXPERTS, EXPERTS), 1.0 / EXPERTS**2)
    rng = np.random.default_rng(SEED)
    anyhow = np.stack([rng.permutation(np.arange(EXPERTS) % 4) for _ in range(LAYERS)])
    routing = synthetic(strength(EIGHT, 8))
    placed = place_experts(routing, 4)
    rows = (
        CardRow("hops of a token, experts at random [4 GPUs]", hops_of(even, anyhow), RANDOM, 1e-9),
        CardRow(
            "all-to-alls of a token that goes on, of one that comes home",
            (hops_of(even, anyhow) / (LAYERS - 1)) / (return_hops(LAYERS, 4) / LAYERS),
            0.5,
            1e-9,
        ),
        CardRow(
            "hops of a token by affinity [synthetic routing as strong as 8 GPUs' result, 4 GPUs]",
            placed.hops,
            FOUR,
            TOLERANCE,
            SHAPE,
        ),
        CardRow(
            "transitions that stay [synthetic routing as strong as 8 GPUs' result, 4 GPUs]",
            staying(placed.hops),
            staying(FOUR),
            TOLERANCE,
            SHAPE,
        ),
    )
    return Card(
        "exflow",
        "ExFlow: hops between GPUs of a token of Mixtral 8x7B",
        "Yao et al., Exploiting Inter-Layer Expert Affinity for Accelerating MoE Model Inference, IPDPS 2024; its "
        "repository",
        rows,
    )
