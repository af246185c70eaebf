"""FLAT, and attention that is not fused at all: the two machines that FuseMax was compared with."""

from __future__ import annotations

from siliconloom.reproduce.card import Card, CardRow
from siliconloom.reproduce.flat_events import flat_event_latency
from siliconloom.reproduce.fusemax import EVENTS, table_rows
from siliconloom.reproduce.fusemax_model import flat, flat_linear, unfused
from siliconloom.reproduce.fusemax_tables import published


def card() -> Card:
    """Derive every row of the artifact's tables for the two baselines."""
    return Card(
        "flat",
        "FLAT and unfused attention on 256 x 256 elements and 256 lanes, BERT and T5, 1K to 1M tokens",
        "Kao et al., FLAT, ASPLOS 2023, as evaluated by Nayak et al., FuseMax, MICRO 2024",
        (
            *table_rows("attn-flat", "FLAT", flat),
            *(
                CardRow(
                    f"FLAT as events: latency, s [{p.model.name} {p.length_name}]",
                    flat_event_latency(p.model, p.length),
                    p.latency,
                    EVENTS,
                )
                for p in published("attn-flat")
            ),
            *table_rows("attn-unfused", "unfused", unfused),
            *table_rows("end2end-flat", "linear layers", flat_linear),
        ),
    )
