"""Every way that PyTorch has to run an operation or a layer."""

from __future__ import annotations

from siliconloom.baselines.jobs import Deployment
from siliconloom.baselines.measure import CannotRun
from siliconloom.baselines.operations import Op, Precision
from siliconloom.baselines.torch_layers import layer
from siliconloom.baselines.torch_operations import (
    ELEMENTWISE_CASES,
    Prepared,
    TorchDevice,
    attention,
    attention_backward,
    elementwise,
    gemm,
    grouped_gemm,
)


def prepare(place: TorchDevice, job: Deployment) -> list[Prepared]:
    """Every way to run an operation; raises `CannotRun`."""
    place.torch.backends.cuda.matmul.allow_tf32 = job.dtype is Precision.TF32
    if job.op is Op.GEMM:
        return [gemm(place, job)]
    if job.op is Op.GROUPED_GEMM:
        return [grouped_gemm(place, job)]
    if job.op in (Op.ATTENTION_PREFILL, Op.ATTENTION_DECODE):
        return attention(place, job)
    if job.op is Op.ATTENTION_BACKWARD:
        return attention_backward(place, job)
    if job.op in ELEMENTWISE_CASES:
        return elementwise(place, job)
    if job.op in (Op.LAYER_PREFILL, Op.LAYER_DECODE) and job.layer is not None:
        return layer(place, job, job.layer)
    raise CannotRun(f"{job.op} is not measured")
