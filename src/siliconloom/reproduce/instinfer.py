"""InstInfer: keys and values stay in flash, and the drive itself computes attention with them.

The baseline reads the key-value cache of every token over the drive's host link. In the drive the same bytes come over
the flash channels; the attention is simulated on the library's ``csd-flash``, in which the cache is placed and streamed
as on any chip: two tiles of keys or values in flight, so that short contexts wait for the flash's latency. Queries and
results cross the host link (a few bytes per key-value page).
"""

from __future__ import annotations

from msgspec.structs import replace

from siliconloom.arch import load_chip
from siliconloom.evaluate.chip import simulate
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.workloads import Attention, Graph, Phase, load_workload
from siliconloom.workloads.dataflow import Dataflow

MODEL = "gpt3-13b"
"""40 layers, 40 heads of 128: the shape of OPT-13B."""
BATCH, CONTEXT = 16, 2048
GPU_MEMORY = 768 * 10**9
"""Bytes per second of the A6000 that runs everything else (NVIDIA data sheet)."""
HOST_LINK = 3_940_000_000
"""Bytes per second of PCIe 3.0 x4 before packets: 4 lanes of 8 Gb/s, 128 bits of 130."""
PAGE = 4096
SPARSE = 8
"""The paper's drive also has a mode that reads about one key in eight (from memory, unverified)."""


def decode(batch: int, context: int) -> Graph:
    """One token for each of ``batch`` sequences of a 13B model."""
    sets = [("phase", "decode"), ("precision", "bf16"), ("batch", str(batch)), ("context", str(context))]
    return load_workload(MODEL, sets)


def attention_only(graph: Graph) -> Graph:
    """The attention of all layers of ``graph``, nothing else."""
    dataflow = Dataflow()
    for operator in graph.operators():
        if isinstance(operator, Attention):
            dataflow.add(operator)
    return replace(
        graph, name=f"{graph.name}.attention", phase=Phase.DECODE, explicit_precision=True, dataflow=dataflow
    )


def step_seconds(batch: int, context: int) -> tuple[float, float]:
    """Time of a decode step with the cache behind the host link, and with the attention in the drive."""
    graph, chip = decode(batch, context), load_chip("csd-flash")
    dense = graph.weight_bytes / GPU_MEMORY
    attention = attention_only(graph)
    crossing = sum(
        operator.repeat
        * (
            operator.output_bytes * 2
            + operator.precision.size(2 * operator.batch * operator.kv_heads * operator.head_dim)
        )
        for operator in attention.operators()
        if isinstance(operator, Attention)
    )  # queries, results, and the new token's key and value
    inside = simulate(chip, attention).seconds
    return dense + graph.kv_bytes / HOST_LINK, dense + inside + crossing / HOST_LINK


def card() -> Card:
    """Derive the bandwidth ratio and the range in which the published speed must lie."""
    chip = load_chip("csd-flash")
    channels = chip.memory["flash"].total_bandwidth
    outside, inside = step_seconds(BATCH, CONTEXT)
    dense = outside / inside
    head_dim = next(o.head_dim for o in decode(1, CONTEXT).operators() if isinstance(o, Attention))
    rows = (
        CardRow("tokens of one head in a flash page", PAGE / (head_dim * 2), 16.0, 0.0),
        CardRow("flash channels over host link, at least even", channels / HOST_LINK, 1.0, 0.0, sense="at least"),
        CardRow("in-storage over SSD offload, at least even", dense, 1.0, 0.0, sense="at least"),
        CardRow("in-storage over SSD offload, all keys, below the published best", dense, 11.1, 0.0, sense="at most"),
        CardRow("the same if one key in eight is read, above it", dense * SPARSE, 11.1, 0.0, sense="at least"),
        CardRow(
            "in-storage over SSD offload, all keys, against the published best",
            dense,
            11.1,
            0.2,
            "the published figure is the best of several runs with sparse attention in the drive and against FlexGen's "
            "software path; ours is the ratio of the bandwidths, all keys read, the host link at its full rate",
        ),
    )
    return Card(
        "instinfer",
        "InstInfer: attention of a 13B model in a computational storage drive",
        "Pan et al., InstInfer: In-Storage Attention Offloading for Cost-Effective Long-Context LLM Inference, arXiv "
        "2409.04992, 2024",
        rows,
    )
