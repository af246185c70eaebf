"""Splitwise's machines: medians of a prompt's and a token's time, Llama-2-70B on 2, 4 and 8 A100.

Steps are the GPU model's kernels, as a service is costed (`evaluate.step_costs`), without a host. The figures are
medians of the five runs in splitwise-sim's ``perf_model.csv`` (MIT), of answers of 128 tokens.
"""

from __future__ import annotations

import numpy as np

from siliconloom.arch import load_system
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.evaluate.served_model import read_model
from siliconloom.evaluate.step_costs import ReplicaCosts
from siliconloom.mapper.system.plan import Plan
from siliconloom.reproduce.card import Card, CardRow

PUBLISHED = {
    (2, 512, 1): (196.86, 54.86),
    (2, 1024, 1): (377.06, 54.77),
    (2, 512, 32): (6632.63, 72.19),
    (4, 512, 1): (126.96, 44.99),
    (4, 1024, 1): (227.08, 44.95),
    (4, 512, 32): (5131.73, 52.35),
    (8, 512, 1): (94.31, 44.85),
    (8, 1024, 1): (154.46, 44.97),
    (8, 512, 32): (3524.54, 53.02),
}
"""GPUs, tokens of a prompt, requests: milliseconds of the prompts, and of a token of each."""
OUTPUT = 128
TOLERANCE = 0.1
TOKEN = (
    "the host of 2023 launches each of a token's 883 kernels by itself: a token takes as long on eight GPUs as on "
    "four; kernels alone are counted here"
)
PROMPT = "the host launches kernels one by one, 50 to 240 us a kernel that nothing hides, and does prompts one by one"


def card() -> Card:
    """Time every prompt and token."""
    ask, rows = read_model("llama2-70b", []).ask, []
    for (gpus, tokens, batch), (prompt_ms, token_ms) in PUBLISHED.items():
        cluster = cluster_of(load_system("dgx-a100", [])).part(gpus)
        costs = ReplicaCosts(cluster, ask, Plan(tensor=gpus))
        prompt = float(costs.kernels([(tokens, 0)] * batch, batch, 0, np.zeros(1))[0][0]) * 1e3
        token = float(costs.kernels([], 0, batch, np.array([tokens + OUTPUT / 2]))[0][0]) * 1e3
        what = f"{tokens} tokens, {batch} request{'s' * (batch > 1)}, {gpus} A100"
        rows += [
            CardRow(f"prompts, ms [{what}]", prompt, prompt_ms, TOLERANCE, PROMPT),
            CardRow(f"a token, ms [{what}]", token, token_ms, TOLERANCE, TOKEN),
        ]
    return Card(
        "splitwise",
        "Splitwise: a prompt and a token of Llama-2-70B on A100",
        "Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, 2024",
        tuple(rows),
    )
