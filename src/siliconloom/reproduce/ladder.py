"""Ladder-residual on eight H100: how much faster a 70B model generates when no half of a layer waits for the last sum.

The layer's operators and its sums are the plan's (`siliconloom.mapper.system.overlap`): compute goes on beside the sum
of the half before. A prompt of 1,024 tokens and 512 after it, as the paper's benchmark; its batches are 1 to 64.
"""

from __future__ import annotations

from siliconloom.arch import load_system
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.plan import Plan
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.workloads import load_workload

PROMPT, GENERATED, GPUS = 1024, 512, 8
BATCHES = (1, 4, 16)
PUBLISHED, TOLERANCE = 1.3, 0.1


def gain(batch: int) -> float:
    """Times that generating takes in line, over with a ladder."""
    cluster = cluster_of(load_system("dgx-h100"))
    seconds = {"none": 0.0, "ladder": 0.0}
    for phase, length, times in (("prefill", PROMPT, 1), ("decode", PROMPT + GENERATED // 2, GENERATED)):
        sets = [("phase", phase), ("batch", str(batch)), ("context" if phase == "decode" else "sequence", str(length))]
        server = Server(cluster, load_workload("llama3-70b", sets))
        for overlap in ("none", "ladder"):
            seconds[overlap] += times * server.step(Plan(tensor=GPUS, microbatch=0, overlap=overlap)).seconds
    return seconds["none"] / seconds["ladder"]


def card() -> Card:
    """A few batch sizes against the paper's one figure."""
    rows = [CardRow(f"times as fast [{b} sequences]", gain(b), PUBLISHED, TOLERANCE) for b in BATCHES]
    return Card(
        "ladder-residual",
        "Ladder-residual: generation by a 70B model on eight H100, times as fast as with sums in line",
        "Zhang et al., Ladder-residual: parallelism-aware architecture for accelerating large model inference, 2025",
        tuple(rows),
    )
