"""Sarathi-Serve on two A100: next tokens that ride along with a chunk of a prompt, and what cutting a prompt costs.

Steps are the GPU model's kernels of Yi-34B, tensor parallel, as a service is costed (`evaluate.step_costs`). The
figures are those of the paper's repository (Apache-2.0): table 2, figures 2 and 9.
"""

from __future__ import annotations

import numpy as np

from siliconloom.arch import load_system
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.evaluate.served_model import read_model
from siliconloom.evaluate.step_costs import ReplicaCosts
from siliconloom.mapper.system.plan import Plan
from siliconloom.reproduce.card import Card, CardRow

GPUS = 2
CONTEXT = 1024
"""Tokens that each next token looks at; the table does not say."""
ALONE_MS, HYBRID_MS = 217.236, 217.650
"""Table 2: a prompt of 1,024 tokens, and 1,021 of one beside three next tokens."""
PROMPTS_MS = {512: 105.582, 1024: 214.301, 2048: 366.025, 4096: 757.603, 8192: 1863.265}
"""Figure 2: prompts by their tokens."""
CHUNKED = {
    (2047, 512): 1.1522,
    (4095, 512): 1.1889,
    (8191, 512): 1.1165,
    (2047, 1024): 1.1746,
    (4095, 1024): 1.2022,
    (8191, 1024): 1.1095,
    (4095, 2048): 1.0238,
    (8191, 2048): 0.9368,
}
"""Figure 9: time of a prompt in chunks over that of the whole one, by its tokens and those of a chunk."""
TOLERANCE, RELATIVE = 0.1, 0.05
HOST = (
    "steps of the paper's engine hold its host's time and kernels launched one by one, which are left out here; its "
    "256 tokens take longer than its 512"
)
CUT = (
    "the engine's 1,024 tokens take 17 % longer for each than its 2,048, and its whole prompts of 8,191 longer than "
    "chunks of 2,048; the modelled kernels show neither"
)


def card() -> Card:
    """Time a hybrid step, prompts, and prompts in chunks."""
    cluster = cluster_of(load_system("dgx-a100", [])).part(GPUS)
    costs = ReplicaCosts(cluster, read_model("yi-34b", []).ask, Plan(tensor=GPUS))

    def step(chunks: list[tuple[int, int]], ended: int, count: int = 0) -> float:
        return float(costs.kernels(chunks, ended, count, np.array([float(CONTEXT)]))[0][0]) * 1e3

    def chunked(tokens: int, size: int) -> float:
        starts = range(0, tokens, size)
        return sum(step([(min(size, tokens - at), at)], int(at + size >= tokens)) for at in starts)

    alone, hybrid = step([(1024, 0)], 1), step([(1021, 0)], 1, 3)
    rows = [
        CardRow("three next tokens beside a chunk, over the chunk alone", hybrid / alone, HYBRID_MS / ALONE_MS, 0.01),
        *(
            CardRow(f"prompt, ms [{tokens} tokens]", step([(tokens, 0)], 1), published, TOLERANCE, HOST)
            for tokens, published in PROMPTS_MS.items()
        ),
        *(
            CardRow(
                f"in chunks, over the whole [{tokens} tokens by {size}]",
                chunked(tokens, size) / step([(tokens, 0)], 1),
                published,
                RELATIVE,
                CUT,
            )
            for (tokens, size), published in CHUNKED.items()
        ),
    ]
    return Card(
        "sarathi",
        "Sarathi-Serve: chunks of prompts and hybrid steps, Yi-34B on two A100",
        "Agrawal et al., Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve, 2024",
        tuple(rows),
    )
