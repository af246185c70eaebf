"""Hydragen's shared prefixes: throughput of CodeLlama-13b on eight A100 by how long the prefix of 1,024 requests is.

Steps are the GPU model's kernels, as a service with ``serve.shared_attention`` is costed (`evaluate.step_costs`),
without a host. A request's own tokens are 64 in the mean, those of answers of 128, which the abstracts do not state.
"""

from __future__ import annotations

import numpy as np

from siliconloom.arch import load_system
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.evaluate.served_model import read_model
from siliconloom.evaluate.step_costs import ReplicaCosts
from siliconloom.mapper.system.plan import Plan
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.sim.service.costs import EQUAL, RequestLengths, SharedPart

CODE_LLAMA_13B = {
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "num_hidden_layers": 40,
    "vocab_size": 32016,
    "max_position_embeddings": 32768,
}
"""Sizes of CodeLlama-13b in Llama 2's architecture (Rozière et al., 2023)."""
GPUS, REQUESTS, OWN = 8, 1024, 64
SHORT, LONG = 1024, 16384
"""Tokens of the prefix."""
FALLS = (
    "a prefix of 16K takes 14 ms of a step of 56, at two fifths of the tensor cores' rate, as the model's kernel that "
    "splits keys does; what the published engine's step has beside its kernels, which makes the share less, is left out"
)
FASTER = (
    "both sides are the GPU model's kernels here, those without sharing at nearly the memory's bandwidth; the "
    "published ones are engines of 2023 with their hosts"
)


def card() -> Card:
    """Time a token of all requests, with and without attention that reads the prefix once."""
    sets = [(f"model.{key}", str(value)) for key, value in CODE_LLAMA_13B.items()]
    cluster = cluster_of(load_system("dgx-a100", [])).part(GPUS)
    costs = ReplicaCosts(cluster, read_model("llama2-7b", sets).ask, Plan(tensor=GPUS), longest=LONG + 2 * OWN)

    def seconds(prefix: int, *, shared: bool) -> float:
        lengths = RequestLengths({}, 0, (SharedPart(prefix, REQUESTS),)) if shared else EQUAL
        return float(costs.kernels([], 0, REQUESTS, np.array([prefix + OWN], np.float64), lengths)[0][0])

    together = {prefix: seconds(prefix, shared=True) for prefix in (SHORT, LONG)}
    apart = {prefix: seconds(prefix, shared=False) for prefix in (SHORT, LONG)}
    kept, fell = together[SHORT] / together[LONG], apart[SHORT] / apart[LONG]
    rows = [
        CardRow("throughput behind 16K over that behind 1K [shared]", kept, 0.85, 0.0, FALLS, "at least"),
        CardRow("throughput behind 16K over that behind 1K [each by itself]", fell, 0.1, 0.0, sense="at most"),
        CardRow("shared over each by itself [1K]", apart[SHORT] / together[SHORT], 3.0, 0.0, FASTER, "at least"),
        CardRow("shared over each by itself [16K]", apart[LONG] / together[LONG], 30.0, 0.0, FASTER, "at least"),
    ]
    return Card(
        "hydragen",
        "Hydragen: CodeLlama-13b over shared prefixes on eight A100",
        "Juravsky et al., Hydragen: High-Throughput LLM Inference with Shared Prefixes, 2024",
        tuple(rows),
    )
