"""Kernels of a step on GPUs that somebody measured at this very size."""

from __future__ import annotations

from siliconloom.arch import LoomError
from siliconloom.arch.gpu import Gpu, load_gpu
from siliconloom.baselines.lookup import MeasuredTime, measured
from siliconloom.baselines.machine import GpuMachine
from siliconloom.baselines.model import ModelPrediction
from siliconloom.baselines.operations import COLLECTIVES
from siliconloom.workloads import Graph, Phase


def measured_kernels(
    machine: GpuMachine, graph: Graph, found: ModelPrediction, *, one_node: bool
) -> list[MeasuredTime | None]:
    """What the tables have of every kernel of a part.

    It is nothing where what was measured is not what runs: on a GPU that is not as the library describes it, under the
    power limit (the tables are of bursts), in training, of kernels that another one takes along, and of messages over
    links that are not the GPU's own, or not within ``one_node``.
    """
    nothing: list[MeasuredTime | None] = [None] * len(found.kernels)
    own = _described(machine.gpu.name)
    if own is None or machine.sustained or graph.phase is Phase.TRAINING:
        return nothing
    if machine.gpu.model_copy(update={"link": own.link}) != own:
        return nothing
    links = machine.gpu.link, own.link
    joined = one_node and len({(link.bandwidth, link.in_switch) for link in links}) == 1
    message = found.operations.among(*COLLECTIVES)
    known = measured(own.name, found.operations)
    return [
        None if kernel.fused or (sent and not joined) else time
        for kernel, sent, time in zip(found.kernels, message.tolist(), known, strict=True)
    ]


def _described(name: str) -> Gpu | None:
    """The library's GPU of that name."""
    try:
        return load_gpu(name)
    except LoomError:
        return None
