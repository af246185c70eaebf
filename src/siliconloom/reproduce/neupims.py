"""NeuPIMs: an NPU whose memory computes attention, against the NPU alone, a blocked PIM, and a GPU.

Every figure is a decode step of one of its models on the library's ``neupims`` system: the arrays by the chip
simulator, attention and all traffic beside it by the channels' command timing. Lengths of sequences are drawn, not
copied: the answer's from a gamma distribution with the data set's mean and variation, each sequence caught at a random
point of its answer (so long answers are met more often).

Changes to the library's description, all of them: rows are four times as many and memory as large, because the
published simulator does not check that weights and cache fit; values lie one head to a row, as it lays them out; the
exchange between chips costs nothing, because it simulates one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from siliconloom.arch import Chip, System, load_chip, load_system
from siliconloom.reproduce.card import Card, Row
from siliconloom.systems import SystemSimulation, simulate_system
from siliconloom.systems.report import system_result
from siliconloom.workloads import Attention, Gemm, Graph, load_workload

MODELS = {"gpt3-7b": (4, 1), "gpt3-13b": (4, 1), "gpt3-30b": (4, 2), "gpt3-175b": (8, 4)}
"""Tensor and pipeline parallelism of each model."""
BATCHES = (64, 128, 256, 512)
LONGEST = 2048
SEED = 0
GPU_FLOPS, GPU_MEMORY = 312e12, 1555e9
"""Dense fp16 and memory of an A100-40GB (NVIDIA data sheet)."""
LARGER = [("pim.dram.organization.rows", "131072"), ("memory.hbm.capacity", "128 GiB")]
RATIO = 0.2
BASELINE = (
    "what hides attention can gain no more than attention's share: ours, blocked, is 28 % of the arrays' time of a "
    "layer on average (7B ShareGPT: 29 to 84 %), and 1.6 needs 60 %. Why the published one is larger is not known to "
    "us; our cycles for each activation of all banks (175) are what its load balancer counts with (184)"
)
HALVES = (
    "interleaved halves read the weights twice; on our arrays, which load the next weights while they work, products "
    "of up to 256 rows are bound by memory, so that costs more than attention hides. The published arrays take 254 "
    "cycles on top of each tile's rows: with that, ours would gain 0.89 instead of 0.73 at batch 256"
)
ROOFLINE = "our GPU is its roofline, without launches or unused bandwidth: the ratio to a measured one is larger"
BUSY = "128 rows at 1 TB/s keep the arrays at most half busy with multiplications; fill and drain may be counted, too"


@dataclass(frozen=True)
class Data:
    """Mean tokens of prompts and answers, and the answers' coefficient of variation (of the published statistics)."""

    prompt: float
    answer: float
    variation: float


DATA = {"ShareGPT": Data(80, 296, 0.885), "Alpaca": Data(12, 56, 0.990)}


def contexts(data: Data, batch: int, seed: int = SEED) -> list[int]:
    """Tokens that each of ``batch`` sequences attends to at a random moment."""
    chance = np.random.default_rng(seed)
    shape = 1 / data.variation**2
    met = chance.gamma(shape + 1, data.answer / shape, batch)  # gamma weighted by its own value
    return [
        int(min(max(data.prompt + length * at, 1), LONGEST))
        for length, at in zip(met, chance.random(batch), strict=True)
    ]


@cache
def described() -> tuple[System, Chip, Chip]:
    """The system, its chip, and the same with one row buffer."""
    chip = load_chip("neupims-device", LARGER)
    assert chip.pim is not None
    return load_system("neupims"), chip, chip.model_copy(
        update={"pim": chip.pim.model_copy(update={"dual_row_buffer": False})}
    )  # fmt: skip


@cache
def step(model: str, data: str, batch: int, blocked: bool, **policy: str) -> SystemSimulation:
    """A decode step under a policy."""
    system, chip, one_buffer = described()
    tensor, pipeline = MODELS[model]
    fixed = {"tensor": tensor, "pipeline": pipeline, "communicate": False, "weights": "npu", "values": "row"}
    system = system.model_copy(update={"policy": system.policy.model_copy(update=fixed | policy)})
    graph = load_workload(model, [("phase", "decode"), ("batch", str(batch))])
    return simulate_system(system, graph, contexts=contexts(DATA[data], batch), chip=one_buffer if blocked else chip)


def npu_only(model: str, data: str, batch: int) -> SystemSimulation:
    return step(model, data, batch, False, attention="npu")


def naive(model: str, data: str, batch: int) -> SystemSimulation:
    return step(model, data, batch, True, attention="pim", balance="round_robin", interleave="never")


def dual(model: str, data: str, batch: int) -> SystemSimulation:
    return step(model, data, batch, False, attention="pim", balance="round_robin", interleave="never")


def balanced(model: str, data: str, batch: int) -> SystemSimulation:
    return step(model, data, batch, False, attention="pim", interleave="never")


def interleaved(model: str, data: str, batch: int) -> SystemSimulation:
    return step(model, data, batch, False, attention="pim", interleave="always")


def neupims(model: str, data: str, batch: int) -> SystemSimulation:
    """Everything, interleaved where that is faster."""
    return min(balanced(model, data, batch), interleaved(model, data, batch), key=lambda s: s.cycles)


def gpu_seconds(model: str, data: str, batch: int) -> float:
    """A step on as many A100-40GB, each operator at its roofline; its chips' stages all at work, as ours."""
    tensor, _ = MODELS[model]
    graph: Graph = load_workload(model, [("phase", "decode"), ("batch", str(batch))])
    passes = MODELS[model][1]
    mean = sum(contexts(DATA[data], batch)) / batch
    total = 0.0
    for operator in graph.operators():
        if isinstance(operator, Attention):
            size = operator.input_bytes * mean / operator.kv_len
            total += operator.repeat * size / GPU_MEMORY / tensor
        elif isinstance(operator, Gemm):
            work, moved = operator.flops, operator.weight_bytes * passes + operator.input_bytes + operator.output_bytes
            total += operator.repeat * max(work / GPU_FLOPS, moved / GPU_MEMORY) / tensor
    return total


def cases() -> Iterator[tuple[str, str, int]]:
    """Models, data sets and batches of the published averages."""
    return product(MODELS, DATA, BATCHES)


def mean(values: Iterator[float]) -> float:
    return float(np.mean(list(values)))


def card() -> Card:
    """Derive the three ratios, the ablation and the utilisation."""
    example = ("gpt3-30b", "ShareGPT", 256)
    small = [("gpt3-7b", "ShareGPT", batch) for batch in BATCHES]
    alone, full = (system_result(s)["units"] for s in (naive(*example), neupims(*example)))
    rows = [
        Row("naive NPU + PIM over NPU only, mean of 32", mean(npu_only(*c).cycles / naive(*c).cycles for c in cases()),
            1.5, RATIO),
        Row("NeuPIMs over NPU only, mean of 32", mean(npu_only(*c).cycles / neupims(*c).cycles for c in cases()),
            2.4, RATIO, f"{HALVES}; {BASELINE}"),
        Row("NeuPIMs over naive, mean of 32", mean(naive(*c).cycles / neupims(*c).cycles for c in cases()), 1.6, RATIO,
            BASELINE),
        Row("NeuPIMs over GPU only, mean of 32", mean(gpu_seconds(*c) / neupims(*c).seconds for c in cases()),
            3.0, RATIO, ROOFLINE),
        Row("dual row buffers alone over naive, 7B ShareGPT", mean(naive(*c).cycles / dual(*c).cycles for c in small),
            1.697, RATIO, BASELINE),
    ]  # fmt: skip
    for case in small:
        gain = balanced(*case).cycles / interleaved(*case).cycles
        batch, pays = case[2], case[2] >= 256
        rows.append(
            Row(f"interleaving at batch {batch}, 7B ShareGPT, {'pays' if pays else 'does not pay'}", gain, 1.0, 0.0,
                HALVES, "at least" if pays else "at most")
        )  # fmt: skip
    rows += [
        Row("arrays in use, naive, 30B ShareGPT 256", alone["array"]["mac_utilization"], 0.28, RATIO),
        Row("arrays in use, NeuPIMs, same", full["array"]["mac_utilization"], 0.649, RATIO, f"{BUSY}; {HALVES}"),
        Row("PIM in use, naive, same", alone["pim"]["utilization"], 0.17, RATIO),
        Row("PIM in use, NeuPIMs, same", full["pim"]["utilization"], 0.264, RATIO, HALVES),
    ]
    return Card(
        "neupims",
        "NeuPIMs: decode of GPT-3 models on an NPU with processing in memory",
        "Heo et al., NeuPIMs: NPU-PIM Heterogeneous Acceleration for Batched LLM Inferencing, ASPLOS 2024",
        tuple(rows),
    )
