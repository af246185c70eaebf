"""Volumes of DeepSpeed-Ulysses and of Megatron's sequence parallelism, counted on their messages.

Ulysses exchanges queries, keys, values and results, each rank a share of its tokens; Megatron gathers all tokens twice
and scatters sums of them twice.
"""

from __future__ import annotations

import numpy as np

from siliconloom.arch.network import LinkPort, Topology, wire
from siliconloom.mapper.context import context_schedule
from siliconloom.mapper.network.collectives import collective
from siliconloom.reproduce.card import Card, CardRow

TOKENS, HEADS, WIDTH = 65536, 64, 128
CHIPS = (4, 8, 64)


def sent(operation: str, chips: int, size: float) -> float:
    """Bytes that each chip sends in a ring's collective."""
    link = LinkPort.model_validate({"bandwidth": "1 GB/s", "latency": "1 ns"})
    wiring = wire(Topology.model_validate({"kind": "fully_connected"}), link, chips)
    transfers = collective(operation, "ring", wiring, size)
    each = np.bincount(transfers.source, weights=transfers.size, minlength=chips)
    assert np.allclose(each, each[0])
    return float(each[0])


def card() -> Card:
    """Volumes of a layer in units of tokens times width, without what a chip keeps for itself."""
    whole = float(TOKENS * HEADS * WIDTH)
    rows = []
    for chips in CHIPS:
        others = (chips - 1) / chips
        forward, backward = (
            float(context_schedule("ulysses", chips, [TOKENS], heads=HEADS, head_dim=WIDTH, backward=back).sent.max())
            for back in (False, True)
        )
        megatron = 2 * sent("all_gather", chips, whole) + 2 * sent("reduce_scatter", chips, whole)
        rows += [
            CardRow(f"Ulysses, forward [{chips} chips]", forward / whole / others, 4 / chips, 1e-9),
            CardRow(f"Ulysses, backward [{chips} chips]", backward / whole / others, 4 / chips, 1e-9),
            CardRow(f"Megatron's, forward [{chips} chips]", megatron / whole / others, 4.0, 1e-9),
        ]
    return Card(
        "ulysses",
        "DeepSpeed-Ulysses: what a chip sends, of a layer's tokens times width",
        "Jacobs et al., DeepSpeed Ulysses: System Optimizations for Extreme Long Sequence Transformer Models, 2023",
        tuple(rows),
    )
