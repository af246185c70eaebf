"""SN40L: three tiers of memory for a composition of experts, against GPUs that fetch experts from their host.

Decode is simulated: one eighth of Llama2-7B (tensor parallelism over the sockets) on the library's ``sn40l`` socket. A
switch is a copy of all parameters from DDR into HBM, of the host's memory into the GPUs'. The GPUs decode at the rate
of their memory, the least time that is possible; exchange between sockets and between GPUs and the prompt's own
computation are left out on both sides.
"""

from __future__ import annotations

from itertools import product

from siliconloom.arch import load_chip, load_system
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.system.shard import tensor_shard
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.reproduce.tiers import copy_time
from siliconloom.workloads import Attention, Gemm, Graph, load_workload

EXPERT = "llama2-7b"
NODE_COPY = 10**12
"""Bytes per second from DDR to HBM that the paper states for a node ("over 1 TB/s")."""
HOSTS = {"DGX A100": 32 * 10**9, "DGX H100": 64 * 10**9}
"""Bytes per second from host memory that the paper states for each."""
GPU_MEMORY = {"DGX A100": 8 * 2039 * 10**9, "DGX H100": 8 * 3350 * 10**9}
"""Bytes per second of eight A100-80GB-SXM and eight H100-SXM (NVIDIA data sheets)."""
GPU_CAPACITY = 8 * 80 * 2**30
SWITCH = {"DGX A100": 31.0, "DGX H100": 15.0}
OVERALL = {"DGX A100": 6.6, "DGX H100": 3.7}
BATCHES, OUTPUTS = (1, 8), (20, 200)
CONTEXT = 256
"""Tokens that an answer attends to on average; ours, the parameters weigh far more."""
RATIO = 0.05
"""Allowed error of a ratio that follows from stated bandwidths; published with two digits."""

FUSION = (
    "ours counts traffic and arithmetic only, and starts kernels in no time; the paper's upper end comes from small "
    "operators, whose launches cost more than their work"
)


def switch_seconds(size: int) -> float:
    """Time to bring an expert's parameters from DDR into HBM on a node, all sockets at once."""
    system = load_system("sn40l-node")
    chip, sockets = load_chip(system.chips[0].chip), system.chips[0].count
    memory = chip.memory
    return copy_time(memory["ddr"], memory["hbm"], size, engines=sockets, path=NODE_COPY // sockets).seconds


def decode_seconds(batch: int) -> float:
    """Time of one token for each of ``batch`` sequences on a node, tensor parallel, one socket simulated."""
    sets = [("phase", "decode"), ("precision", "bf16"), ("context", str(CONTEXT)), ("batch", str(batch))]
    system = load_system("sn40l-node")
    graph = tensor_shard(load_workload(EXPERT, sets), system.chips[0].count)
    return simulate(load_chip(system.chips[0].chip), graph).seconds


def overall(name: str, size: int) -> list[float]:
    """Time on a DGX over time on a node, an expert switched in for each batch; batches 1 and 8, 20 and 200 tokens."""
    ratios = []
    for batch, tokens in product(BATCHES, OUTPUTS):
        gpu = size / HOSTS[name] + tokens * size / GPU_MEMORY[name]
        ratios.append(gpu / (switch_seconds(size) + tokens * decode_seconds(batch)))
    return ratios


def fusion_ratio(graph: Graph) -> float:
    """Time operator by operator through HBM over the time of all at once, on a socket, both at their floors.

    Unfused, every operand and result goes through memory, the scores of attention too (written, read and written by
    the softmax, read again). Fused, only parameters, key-value cache and the activations that enter and leave do.
    """
    chip = load_chip("sn40l")
    bandwidth, peak = chip.nearest.total_bandwidth, 2 * chip.peak_macs * chip.clock
    apart = flops = 0.0
    operators = graph.operators()
    moved = operators[0].input_bytes + operators[-1].output_bytes
    for operator in operators:
        size = operator.input_bytes + operator.output_bytes
        if isinstance(operator, Gemm):
            size += operator.weight_bytes
            moved += operator.weight_bytes * operator.repeat
        work = 2.0 * operator.macs
        if isinstance(operator, Attention):
            scores = operator.batch * operator.heads * operator.q_len * operator.kv_len
            size += 4 * operator.precision.size(scores)
            cache = operator.batch * operator.kv_heads * operator.kv_len * (operator.head_dim + operator.v_head_dim)
            moved += operator.precision.size(cache) * operator.repeat
        apart += operator.repeat * max(work / peak, size / bandwidth)
        flops += operator.repeat * work
    return apart / max(flops / peak, moved / bandwidth)


def fusion_ratios() -> list[float]:
    """`fusion_ratio` of prompts and of decode, of the models that the library has in the paper's sizes."""
    found = []
    for name, phase, sequence in product((EXPERT, "llama2-70b"), ("prefill", "decode"), (2048, 4096)):
        sets = [
            ("phase", phase),
            ("precision", "bf16"),
            ("context" if phase == "decode" else "sequence", str(sequence)),
        ]
        found.append(fusion_ratio(load_workload(name, sets)))
    return found


def card() -> Card:
    """Derive the switch, the footprint, the speed of a composition of experts, and the gain from fusion."""
    size = load_workload(EXPERT).weight_bytes
    system = load_system("sn40l-node")
    tier = load_chip(system.chips[0].chip).memory["ddr"].total_capacity * system.chips[0].count
    rows = [
        CardRow(f"model switch, {name} over SN40L node", size / rate / switch_seconds(size), SWITCH[name], RATIO)
        for name, rate in HOSTS.items()
    ]
    rows.append(CardRow("footprint: DDR of a node over HBM of a DGX", tier / GPU_CAPACITY, 19.0, RATIO))
    for name, published in OVERALL.items():
        ratios = overall(name, size)
        rows.append(
            CardRow(
                f"overall over {name}, lower end of batch 1, 8 x 20, 200 tokens",
                min(ratios),
                published,
                0.0,
                sense="at most",
            )
        )
        rows.append(
            CardRow(f"overall over {name}, upper end of the same", max(ratios), published, 0.0, sense="at least")
        )
    gains = fusion_ratios()
    rows.append(
        CardRow("fused over unfused, most of Llama2 prompts and decode", max(gains), 2.0, 0.0, FUSION, "at least")
    )
    rows.append(CardRow("fused over unfused, upper end of the paper's range", max(gains), 13.0, 0.2, FUSION))
    return Card(
        "sn40l",
        "SN40L: 150 experts of Llama2-7B on a node of eight sockets, against DGX A100 and DGX H100",
        "Prabhakar et al., SambaNova SN40L: Scaling the AI Memory Wall with Dataflow and Composition of Experts, MICRO "
        "2024",
        tuple(rows),
    )
