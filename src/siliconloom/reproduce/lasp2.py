"""LASP-2's messages: states of linear attention, gathered once in each pass, the same for every length."""

from __future__ import annotations

from siliconloom.mapper.context import context_schedule
from siliconloom.reproduce.card import Card, CardRow

RANKS, HEADS, WIDTH = 64, 16, 128
LENGTHS = (2048, 131072, 2097152)
"""From 2K to the paper's longest, 2048K on 64 GPUs."""


def card() -> Card:
    """What a chip sends each other one, in states of a head, and in how many steps."""
    rows = []
    for length in LENGTHS:
        schedule = context_schedule("lasp2", RANKS, [length], heads=HEADS, head_dim=WIDTH)
        states = float(schedule.sent.max()) / ((RANKS - 1) * HEADS * WIDTH**2)
        steps = len({message.step for message in schedule.messages})
        rows += [
            CardRow(f"sent to each other chip, d x d states of a head [{length} tokens]", states, 1.0, 0.0),
            CardRow(f"steps with messages of a pass [{length} tokens]", float(steps), 1.0, 0.0),
        ]
    return Card(
        "lasp-2",
        "LASP-2: linear attention's messages on 64 chips do not grow with the sequence",
        "Sun et al., LASP-2: Rethinking Sequence Parallelism for Linear Attention and Its Hybrid, 2025, section 3.4",
        tuple(rows),
    )
