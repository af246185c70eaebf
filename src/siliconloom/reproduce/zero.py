"""ZeRO's memory of model states: the formulas of the paper, to the digit."""

from __future__ import annotations

from siliconloom.mapper.system.memory import states
from siliconloom.reproduce.card import Card, CardRow

PARAMETERS = 7.5e9
PUBLISHED = {4: (52.5, 41.3, 30.0), 64: (31.4, 16.6, 1.88)}
"""Table 1: replicas; GB for each stage."""
ROUNDED = 0.003
"""The table has three digits."""


def card() -> Card:
    """Bytes of parameters, gradients and optimizer state on each GPU."""
    rows = [CardRow("model states without ZeRO, GB", sum(states(PARAMETERS, 2.0, 64, 0)) / 1e9, 120.0, 0.0)]
    for data, published in PUBLISHED.items():
        for stage, figure in enumerate(published, start=1):
            ours = sum(states(PARAMETERS, 2.0, data, stage)) / 1e9
            rows.append(CardRow(f"model states, GB [stage {stage}, {data} GPUs]", ours, figure, ROUNDED))
    return Card(
        "zero",
        "ZeRO: bytes of model states for each GPU",
        "Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020, table 1",
        tuple(rows),
    )
