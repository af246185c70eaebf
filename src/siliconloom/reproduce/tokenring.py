"""TokenRing and ring attention on four A10: 24,000 tokens, 32 heads of 128, causal, dealt in zigzag.

Blocks are the GPU model's. The server's links are not published: its GPUs sit behind PCIe bridges. At the A10's own
rate (PCIe 4.0 x16) its rings would wait for blocks, not for messages, which the published profile contradicts. So the
rate of one transfer is taken from the published ring step, whose length is its keys and values; TokenRing's messages
at that rate are then predicted, each on a way of its own, as in the paper's full mesh.
"""

from __future__ import annotations

from siliconloom.arch.gpu import load_gpu
from siliconloom.arch.rank_links import RankLink
from siliconloom.mapper.context import Kind, Schedule, context_schedule
from siliconloom.mapper.system.context import time_context
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.reproduce.context_blocks import gpu_blocks

GPUS, TOKENS, HEADS, WIDTH, ELEMENT = 4, 24000, 32, 128, 2.0
RING, QUERIES, BOTH = 7.6e-3, 3.5e-3, 4.6e-3
"""Published seconds of a step: the ring's, TokenRing's with queries on the way, and with queries and results."""
TOLERANCE = 0.1
LINKS = (
    "the A10's PCIe 4.0 takes 3.1 ms for a step's keys and values, the published profile 7.6 ms: its server moves "
    "12.9 GB/s, by what is not published"
)
BLOCKS = (
    "a block takes {ours:.1f} ms in the GPU model, 3.9 were its clock not held down by 150 W (GA10x's constants are "
    "Ampere's, not measured); in the published profile about 3.5 ms"
)
BRIDGES = "the paper gives the slower connection (several bridges) as the reason, but not its rate"


def step(schedule: Schedule, link: RankLink) -> float:
    """Seconds from the second block to the third; every step between is the same."""
    starts = time_context(schedule, gpu_blocks(load_gpu("a10"), head_dim=WIDTH), link, element=ELEMENT).starts
    return starts[2] - starts[1]


def card() -> Card:
    """Steps at the GPU's own rate, and messages at that of the published ring."""
    made = {s: context_schedule(s, GPUS, [TOKENS], heads=HEADS, head_dim=WIDTH) for s in ("zigzag", "token_ring")}

    def elements(scheme: str, kind: Kind) -> int:
        return max(message.elements for message in made[scheme].messages if message.kind is kind)

    pcie = RankLink(load_gpu("a10").link_bandwidth, wiring="mesh")
    rate = elements("zigzag", Kind.KV) * ELEMENT / RING
    ring, token = (step(made[scheme], RankLink(rate, wiring="mesh")) for scheme in made)
    query = elements("token_ring", Kind.Q) * ELEMENT / rate
    result = elements("token_ring", Kind.OUT) * ELEMENT / rate
    slow = BLOCKS.format(ours=token * 1e3)
    rows = [
        CardRow("ring step, ms [PCIe 4.0]", step(made["zigzag"], pcie) * 1e3, RING * 1e3, TOLERANCE, LINKS),
        CardRow(
            "TokenRing's step, ms [PCIe 4.0]", step(made["token_ring"], pcie) * 1e3, QUERIES * 1e3, TOLERANCE, slow
        ),
        CardRow("message of queries, ms [at the published ring's rate]", query * 1e3, QUERIES * 1e3, TOLERANCE),
        CardRow(
            "message of queries or results, ms [at the published ring's rate]",
            max(query, result) * 1e3,
            BOTH * 1e3,
            TOLERANCE,
            BRIDGES,
        ),
        CardRow(
            "ring step over TokenRing's [at the published ring's rate]", ring / token, RING / QUERIES, TOLERANCE, slow
        ),
    ]
    return Card(
        "tokenring",
        "TokenRing: steps of attention on four A10",
        "Wang et al., TokenRing: An Efficient Parallelism Framework for Infinite-Context LLMs, 2024; its repository",
        tuple(rows),
    )
