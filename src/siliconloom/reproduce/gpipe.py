"""GPipe's normalised throughput of a 48-layer transformer: fill and drain, with recomputation while stages wait."""

from __future__ import annotations

from siliconloom.reproduce.card import Card, CardRow
from siliconloom.sim.system.streams import Tasks, run_tasks

PUBLISHED = {32: (1.8, 3.4, 6.3), 4: (1.7, 3.2, 4.8), 1: (1.0, 1.07, 1.3)}
"""Table 2: microbatches; 2, 4 and 8 partitions, relative to 2 partitions and 1 microbatch."""
PARTITIONS = (2, 4, 8)
TOLERANCE = 0.1
BACKWARD = 2
"""Times of a forward pass: gradients of inputs and of weights."""
BATCH = (
    "the paper gives every run the largest batch that fits, so more partitions also mean larger batches and busier "
    "cores; at a fixed batch, {bubble:.0%} of the time is bubble"
)


def iteration(partitions: int, microbatches: int) -> int:
    """Ticks of one iteration at a fixed batch: all forward passes, then recomputation and backward passes.

    A stage computes a microbatch again while it waits for its gradient (Huang et al., 2019, section 2.3).
    """
    tick = 5040 // partitions * 1000 // microbatches
    tasks = Tasks()
    number: dict[tuple[str, int, int], int] = {}
    for stage in range(partitions):
        for m in range(microbatches):
            number["F", m, stage] = tasks.add(f"F{m} of stage {stage}", stage, tick)
        for m in range(microbatches):
            tasks.add(f"R{m} of stage {stage}", stage, tick)
            number["B", m, stage] = tasks.add(f"B{m} of stage {stage}", stage, BACKWARD * tick)
    for (kind, m, stage), task in number.items():
        if kind == "F" and stage:
            tasks.wait(task, number["F", m, stage - 1])
        if kind == "B" and stage < partitions - 1:
            tasks.wait(task, number["B", m, stage + 1])
    return run_tasks(tasks).finish


def card() -> Card:
    """All entries of the table but the one that the others are divided by."""
    base = iteration(2, 1)
    rows = []
    for microbatches, published in PUBLISHED.items():
        for partitions, figure in zip(PARTITIONS, published, strict=True):
            if (partitions, microbatches) == (2, 1):
                continue
            ours = base / iteration(partitions, microbatches)
            bubble = (partitions - 1) / (microbatches + partitions - 1)
            cause = "" if abs(ours / figure - 1) <= TOLERANCE else BATCH.format(bubble=bubble)
            rows.append(
                CardRow(
                    f"normalised throughput [{partitions} partitions, {microbatches} microbatches]",
                    ours,
                    figure,
                    TOLERANCE,
                    cause,
                )
            )
    return Card(
        "gpipe",
        "GPipe: throughput by partitions and microbatches",
        "Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, 2019, table 2",
        tuple(rows),
    )
