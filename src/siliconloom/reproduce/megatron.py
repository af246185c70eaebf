"""Megatron-LM's scaling study: TFLOP/s of each A100 for models from 1.7 to 530 billion parameters.

Layers' passes come from the GPU model (products, unfused attention with its scores in memory, all recomputed), the
pipeline from its schedule on streams, gradients from the ring over each GPU's network port; nothing is fitted to the
table. The paper's FLOPs count the recomputation.
"""

from __future__ import annotations

from msgspec import Struct

from siliconloom.arch import load_system
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.training import Trainer
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.workloads import load_workload

SEQUENCE, VOCABULARY = 2048, 51200
TOLERANCE = 0.1
FAST = (
    "with three stages of one layer on each device, as published, the pipeline's bubble is 4 % of the step (12 % with "
    "one of three layers, where ours gives 173); were all messages between stages in line with the passes, which they "
    "are not here, they would take 1.3 %. What takes the rest of the published step is not published"
)
SLOW = (
    "the sum of gradients after the last backward pass, which we do not overlap, is {after:.0%} of our step; the rest "
    "is in element-wise kernels, a larger share of a narrow model, which Megatron-LM fuses"
)


class PublishedRun(Struct, frozen=True):
    """One row of table 1."""

    billions: float
    heads: int
    hidden: int
    layers: int
    tensor: int
    pipeline: int
    gpus: int
    batch: int
    microbatch: int
    chunks: int
    published: float


RUNS = (
    PublishedRun(1.7, 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137),
    PublishedRun(7.5, 32, 4096, 36, 4, 1, 128, 512, 16, 1, 142),
    PublishedRun(39.1, 64, 8192, 48, 8, 2, 512, 1536, 4, 2, 138),
    PublishedRun(145.6, 96, 12288, 80, 8, 8, 1536, 2304, 2, 2, 148),
    PublishedRun(529.6, 128, 20480, 105, 8, 35, 2520, 2520, 1, 3, 163),
)
"""Billions of parameters, heads, width, layers, tensor, pipeline, GPUs, batch, microbatch, TFLOP/s. The number of
stages on a device is the table's interleaving: one layer each of the largest model's 105."""


def teraflops(run: PublishedRun) -> tuple[float, float]:
    """TFLOP/s of each GPU by the paper's count (its equation 3), and the share of the step that is no pipeline."""
    h = run.hidden
    model = {"n_embd": h, "n_layer": run.layers, "n_head": run.heads}
    sets = [("phase", "training"), ("batch", str(run.batch)), *((f"model.{k}", str(v)) for k, v in model.items())]
    system = load_system("dgx-a100x128", [("chips", f"[{{chip: a100, count: {run.gpus}}}]")])
    trainer = Trainer(cluster_of(system), load_workload("gpt-145b", sets))
    plan = Plan(
        data=run.gpus // (run.tensor * run.pipeline),
        tensor=run.tensor,
        pipeline=run.pipeline,
        microbatch=run.microbatch,
        schedule="interleaved" if run.chunks > 1 else "1f1b",
        chunks=run.chunks,
        recompute="full",
        attention="unfused",
        overlap_gradients=False,
    )
    step = trainer.step(plan)
    work = 96.0 * run.batch * SEQUENCE * run.layers * h * h
    work *= 1 + SEQUENCE / (6 * h) + VOCABULARY / (16 * run.layers * h)
    return work / step.seconds / run.gpus / 1e12, 1 - step.pipeline / step.seconds


def card() -> Card:
    """Every row of the study that the card states."""
    rows = []
    for run in RUNS:
        ours, after = teraflops(run)
        cause = ""
        if abs(ours / run.published - 1) > TOLERANCE:
            cause = FAST if ours > run.published else SLOW.format(after=after)
        name = f"TFLOP/s of each GPU [{run.billions:g} G parameters, {run.gpus} GPUs]"
        rows.append(CardRow(name, ours, run.published, TOLERANCE, cause))
    return Card(
        "megatron",
        "Megatron-LM: throughput of each A100 from 1.7 to 530 billion parameters",
        "Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021",
        tuple(rows),
    )
