"""FLAT, and attention that is not fused at all: the two machines that FuseMax was compared with."""

from __future__ import annotations

from siliconloom.reproduce.card import Card
from siliconloom.reproduce.fusemax import table_rows
from siliconloom.reproduce.fusemax_model import flat, flat_linear, unfused


def card() -> Card:
    """Derive every row of the artifact's tables for the two baselines."""
    return Card(
        "flat",
        "FLAT and unfused attention on 256 x 256 elements and 256 lanes, BERT and T5, 1K to 1M tokens",
        "Kao et al., FLAT, ASPLOS 2023, as evaluated by Nayak et al., FuseMax, MICRO 2024",
        (
            *table_rows("attn-flat", "FLAT", flat),
            *table_rows("attn-unfused", "unfused", unfused),
            *table_rows("end2end-flat", "linear layers", flat_linear),
        ),
    )
