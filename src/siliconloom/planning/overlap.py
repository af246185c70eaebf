"""Token splitting: the sums of one half of the tokens pass while the other half computes (TokenWeave, 2025).

A schedule transform on the kernels of a tensor-parallel prefill. Each layer's work is cut at its two all-reduces; the
halves of the tokens take turns on the compute stream, their sums go over the links on another one. What they take from
each other is in the machine, not in a factor: kernels see fewer multiprocessors while sums need some, halves are
smaller products, the second half's queries see the first half's keys. The residual sum and norm after a sum are done
within it, on a part of the tokens of each GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from siliconloom.arch import NotSupported
from siliconloom.arch.gpu import Gpu
from siliconloom.baselines.operations import make_operations
from siliconloom.baselines.predict import predict
from siliconloom.planning.plan import Shape
from siliconloom.sim.streams import Tasks, run_tasks

SUM_MULTIPROCESSORS = 8
"""That TokenWeave's fused sum runs on (section 4: 2 to 8 of an H100's 132)."""
COMPUTE, LINKS = 0, 1


@dataclass(frozen=True)
class Prefill:
    """Seconds of a prompt: with sums in line, without any, and with halves that take turns."""

    in_line: float
    without: float
    overlapped: float

    @property
    def hidden(self) -> float:
        """Share of the sums' time that the other half's work hides; above 1 where fused norms save more."""
        return (self.in_line - self.overlapped) / (self.in_line - self.without)


def split_prefill(
    gpu: Gpu, shape: Shape, tokens: int, tensor: int, *, gated: bool = True, dtype: str = "bf16",
    sustained: bool = True,
) -> Prefill:  # fmt: skip
    """Time the prefill of one prompt on ``tensor`` GPUs.

    Raises
    ------
    NotSupported
        For prompts that cannot be halved, and for one GPU, which sums nothing.
    """
    if tensor < 2 or tokens % 2:
        raise NotSupported(f"token splitting of {tokens} tokens on {tensor} GPU: it takes two halves and two GPUs")
    whole = _parts(gpu, shape, tokens, 0, tensor, gated, dtype, sustained, fused=False)
    attend, first, feed, second = whole
    in_line = shape.layers * (attend + first + feed + second)
    sums = shape.layers * 2 * _sum(gpu, shape, tokens, tensor, dtype)
    fewer = gpu.model_copy(update={"multiprocessors": gpu.multiprocessors - SUM_MULTIPROCESSORS})
    halves = [
        _parts(fewer, shape, tokens // 2, seen, tensor, gated, dtype, sustained, fused=True)
        for seen in (0, tokens // 2)
    ]
    tasks = Tasks()
    ready: list[int | None] = [None, None]
    for layer in range(shape.layers):
        for block, (work, reduce) in enumerate(((0, 1), (2, 3))):
            done = []
            for half in range(2):
                name = f"layer {layer}, block {block}, half {half}"
                task = tasks.add(f"compute of {name}", COMPUTE, round(halves[half][work] * 1e12))
                before = ready[half]
                if before is not None:
                    tasks.wait(task, before)
                done.append(task)
            for half in range(2):
                name = f"layer {layer}, block {block}, half {half}"
                task = tasks.add(f"sum of {name}", LINKS, round(halves[half][reduce] * 1e12))
                tasks.wait(task, done[half])
                ready[half] = task
    return Prefill(in_line, in_line - sums, run_tasks(tasks).finish * 1e-12)


def _sum(gpu: Gpu, shape: Shape, tokens: int, tensor: int, dtype: str) -> float:
    row = {"op": "all_reduce", "gpus": tensor, "bytes": tokens * shape.hidden * 2, "dtype": dtype}
    return float(predict(gpu, make_operations([row])).seconds[0])


def _parts(
    gpu: Gpu,
    shape: Shape,
    tokens: int,
    seen: int,
    tensor: int,
    gated: bool,
    dtype: str,
    sustained: bool,
    *,
    fused: bool,
) -> tuple[float, float, float, float]:
    """Seconds of attention's kernels, the sum after them, the feed-forward's, the sum after those."""
    h, inner = shape.hidden, shape.inner // tensor
    mixed = shape.heads * shape.head_dim // tensor
    keys = max(shape.kv_heads // tensor, 1)
    qkv = mixed + 2 * keys * shape.head_dim
    norm: list[dict[str, Any]] = [{"op": "rmsnorm", "m": tokens, "n": h}, {"op": "add", "m": tokens, "n": h}]
    groups: list[list[dict[str, Any]]] = [
        [
            {"op": "gemm", "m": tokens, "n": qkv, "k": h},
            {"op": "rope", "m": tokens, "n": qkv - keys * shape.head_dim},
            {"op": "attention_prefill", "batch": 1, "q_len": tokens, "kv_len": tokens + seen,
             "heads": shape.heads // tensor, "kv_heads": keys, "head_dim": shape.head_dim, "causal": "true"},
            {"op": "gemm", "m": tokens, "n": h, "k": mixed},
        ],
        [
            {"op": "gemm", "m": tokens, "n": inner * (2 if gated else 1), "k": h},
            {"op": "silu_mul" if gated else "gelu", "m": tokens, "n": inner},
            {"op": "gemm", "m": tokens, "n": h, "k": inner},
        ],
        norm,
    ]  # fmt: skip
    rows = [{"dtype": dtype, **row} for group in groups for row in group]
    seconds = predict(gpu, make_operations(rows), sustained=sustained).seconds
    attend = float(seconds[: len(groups[0])].sum())
    feed = float(seconds[len(groups[0]) : len(groups[0]) + len(groups[1])].sum())
    norms = float(seconds[-len(norm) :].sum())
    reduce = _sum(gpu, shape, tokens, tensor, dtype)
    if fused:
        return attend, reduce + norms / tensor, feed, reduce + norms / tensor
    return attend + norms, reduce, feed + norms, reduce
