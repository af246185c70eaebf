"""DistServe's prefill: the time of a batch of prompts as it was fitted, and the queue in front of it.

A batch of OPT-13B's prompts on one A100 takes 18.10 ms + 0.1019 ms a token + 7.12e-6 ms a pair of tokens of a prompt,
by the authors' fit; ours is the GPU model's. Prompts alike that come at random and are done one by one wait as in
M/D/1, TTFT = D + R D^2 / (2 (1 - R D)); ours is the simulated fleet with steps of D. Attainment at given rates is not
derived: the requests that it was measured with are not published with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch import load_system
from siliconloom.arch.document import Document
from siliconloom.arch.requests import ServedRequests
from siliconloom.arch.serving import Batching, ServeSettings
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.evaluate.step_costs import ReplicaCosts
from siliconloom.mapper.system.plan import Plan
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.sim.service.costs import EQUAL, RequestLengths
from siliconloom.sim.service.fleet import Fleet, ReplicaGroup
from siliconloom.workloads import Graph, load_workload

Float = NDArray[np.float64]

OPT_13B = {
    "kind": "transformer",
    "name": "opt-13b",
    "precision": "fp16",
    "model": {
        "model_type": "gpt2",
        "n_embd": 5120,
        "n_layer": 40,
        "n_head": 40,
        "n_positions": 2048,
        "vocab_size": 50272,
    },
}
"""OPT-13B's sizes in GPT-2's form, which has the same products (its activation is GELU and not ReLU)."""
FIXED_MS, TOKEN_MS, PAIR_MS = 18.10, 0.1019, 7.12e-6
PROMPTS = ((1, 128), (1, 256), (1, 512), (1, 1024), (1, 2048), (4, 512))
TOLERANCE = 0.1
LOADS = (0.3, 0.5, 0.7, 0.8)
REQUESTS, SEED = 40_000, 1
QUEUE = 0.05
"""Relative: so many requests that come at random leave the mean of their waits a scatter of a percent or two."""
HOST = (
    "the fit has 18 ms for each batch, whatever is in it, and 7 ms for a million pairs of tokens: launches by the "
    "host, and an attention kernel slower than the one that is modelled"
)


class SameSteps:
    """Steps that all take the same (`sim.service.costs.StepCosts`)."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def steps(
        self,
        chunks: Sequence[tuple[int, int]],
        ended: int,
        count: int,
        contexts: Float,
        lengths: RequestLengths = EQUAL,
    ) -> tuple[Float, Float]:
        """See `siliconloom.sim.service.costs.StepCosts`."""
        return np.full(len(contexts), self._seconds), np.zeros(len(contexts))


def simulated_ttft(seconds: float, load: float) -> float:
    """Mean time to the first token of prompts that take ``seconds`` each and come at random, one by one."""
    gaps = np.random.default_rng(SEED).exponential(seconds / load, REQUESTS)
    ones = np.ones(REQUESTS, np.int64)
    empty = np.zeros(0, np.int64)
    requests = ServedRequests(np.cumsum(gaps), ones, ones, (), empty, empty, empty)
    settings = ServeSettings(max_sequences=1, batching=Batching.PREFILL_FIRST, prefix_cache=False)
    fleet = Fleet(settings, requests, [ReplicaGroup(SameSteps(seconds), 1024, 1)])
    fleet.run()
    return float((fleet.log.first - fleet.log.arrival).mean())


def card() -> Card:
    """Time batches of prompts, and queues."""

    def ask(sets: Sequence[tuple[str, str]]) -> Graph:
        return load_workload(Document.of(OPT_13B, "OPT-13B"), list(sets))

    costs = ReplicaCosts(cluster_of(load_system("dgx-a100", [])).part(1), ask, Plan())
    rows = []
    for batch, tokens in PROMPTS:
        ours = float(costs.kernels([(tokens, 0)] * batch, batch, 0, np.zeros(1))[0][0]) * 1e3
        fitted = FIXED_MS + TOKEN_MS * batch * tokens + PAIR_MS * batch * tokens**2
        rows.append(CardRow(f"prompts, ms [{batch} of {tokens} tokens]", ours, fitted, TOLERANCE, HOST))
    seconds = (FIXED_MS + TOKEN_MS * 512 + PAIR_MS * 512**2) * 1e-3
    for load in LOADS:
        rate = load / seconds
        formula = seconds + rate * seconds**2 / (2 * (1 - load))
        ours = simulated_ttft(seconds, load)
        rows.append(CardRow(f"first token in M/D/1, ms [{load:.0%} busy]", ours * 1e3, formula * 1e3, QUEUE))
    return Card(
        "distserve",
        "DistServe: prompts of OPT-13B on one A100, and the queue in front of them",
        "Zhong et al., DistServe: Disaggregating Prefill and Decoding for Goodput-optimized LLM Serving, 2024",
        tuple(rows),
    )
