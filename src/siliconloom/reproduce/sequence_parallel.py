"""Volumes of DeepSpeed-Ulysses and Megatron's sequence parallelism, and ring attention's least blocks.

Volumes are counted on the messages of our collectives: four all-to-alls of a chip's share of the tokens, against two
all-gathers and two reduce-scatters of all tokens. Ring attention's block hides its messages where computing on it takes
as long as passing it on.
"""

from __future__ import annotations

import numpy as np

from siliconloom.arch.gpu import load_gpu
from siliconloom.arch.network import LinkPort, Topology, wire
from siliconloom.mapper.collectives import collective
from siliconloom.reproduce.card import Card, Row

TOKENS, HIDDEN, ELEMENT = 65536, 8192, 2
CHIPS = (4, 8, 64)
BLOCKS = {"NVLink, 300 GB/s": (300e9, 1.0e3, 6.2e3), "InfiniBand, 12.5 GB/s": (12.5e9, 24.96e3, 149.8e3)}
"""Bandwidth; least tokens of a block and of a chip's sequence (table 2)."""
BUFFERS = 6
"""Blocks that a chip holds: query, key, value, the output, and the next key and value."""


def sent(operation: str, algorithm: str, chips: int, size: float) -> float:
    """Bytes that each chip sends in a collective."""
    link = LinkPort.model_validate({"bandwidth": "1 GB/s", "latency": "1 ns"})
    wiring = wire(Topology.model_validate({"kind": "fully_connected"}), link, chips)
    transfers = collective(operation, algorithm, wiring, size)
    each = np.bincount(transfers.source, weights=transfers.size, minlength=chips)
    assert np.allclose(each, each[0])
    return float(each[0])


def card() -> Card:
    """Count volumes in units of tokens times width, and divide rates."""
    whole = float(TOKENS * HIDDEN * ELEMENT)
    rows = []
    for chips in CHIPS:
        others = (chips - 1) / chips  # what a chip keeps for itself is not sent
        ulysses = 4 * sent("all_to_all", "direct", chips, whole / chips)
        megatron = 2 * sent("all_gather", "ring", chips, whole) + 2 * sent("reduce_scatter", "ring", chips, whole)
        rows += [
            Row(f"Ulysses, of a layer's tokens x width [{chips} chips]", ulysses / whole / others, 4 / chips, 1e-9),
            Row(f"Megatron's, of a layer's tokens x width [{chips} chips]", megatron / whole / others, 4.0, 1e-9),
        ]
    flops = load_gpu("a100").peak_flops("bf16")
    for name, (bandwidth, block, sequence) in BLOCKS.items():
        least = flops / bandwidth
        rows += [
            Row(f"ring attention, least block, tokens [{name}]", least, block, 0.05),
            Row(f"ring attention, least sequence of a chip, tokens [{name}]", BUFFERS * least, sequence, 0.05),
        ]
    return Card(
        "sequence-parallel",
        "Volumes of DeepSpeed-Ulysses, least blocks of ring attention",
        "Jacobs et al., DeepSpeed Ulysses, 2023; Liu et al., Ring Attention with Blockwise Transformers, 2023",
        tuple(rows),
    )
