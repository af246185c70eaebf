"""Whole layers as PyTorch runs them, eagerly and compiled, with the float32 result beside them."""

from __future__ import annotations

import math
from typing import Any

from siliconloom.baselines.jobs import Deployment, LayerKernels
from siliconloom.baselines.measure import CannotRun
from siliconloom.baselines.operations import Op, Precision
from siliconloom.baselines.torch_operations import (
    CHECKED_TOKENS,
    Prepared,
    Tensor,
    TorchDevice,
    full_precision,
    fused,
    rope_angles,
    sdpa_attention,
    turn,
)


def layer(place: TorchDevice, job: Deployment, sizes: LayerKernels) -> list[Prepared]:
    """One layer of Llama or Mixtral: of whole prompts, or of one token more of each sequence, whose key is kept."""
    torch = place.torch
    if job.dtype.size < 2 or job.dtype is Precision.TF32 or (sizes.experts and job.dtype is not Precision.BF16):
        raise CannotRun(f"no whole layer in {job.dtype}")
    decode, tokens = job.op is Op.LAYER_DECODE, job.input_tokens
    here = 1 if decode else tokens
    cached = 2 * job.batch * tokens * sizes.kv_heads * sizes.head_dim
    feed_forward = 3 * sizes.intermediate * max(sizes.experts, 1)
    weights = sizes.hidden * (sizes.qkv + sizes.heads * sizes.head_dim + feed_forward)
    place.copies(int((cached + weights + 6 * job.batch * here * sizes.intermediate) * job.dtype.size))
    shapes: dict[str, tuple[int, ...]] = {
        "qkv": (sizes.qkv, sizes.hidden),
        "out": (sizes.hidden, sizes.heads * sizes.head_dim),
        "gate_up": (2 * sizes.intermediate, sizes.hidden),
        "down": (sizes.hidden, sizes.intermediate),
    }
    if sizes.experts:
        shapes |= {name: (sizes.experts, *shapes[name]) for name in ("gate_up", "down")}
        shapes["router"] = (sizes.experts, sizes.hidden)
    parameters = {
        name: place.random(*shape, dtype=job.dtype, stream=index + 1) / math.sqrt(shape[-1])
        for index, (name, shape) in enumerate(shapes.items())
    }
    parameters |= {name: torch.ones(sizes.hidden, dtype=place.type(job.dtype), device=place.device) for name in _NORMS}
    x = place.random(job.batch, here, sizes.hidden, dtype=job.dtype)
    if sizes.experts:
        parameters["preference"] = preferences(torch, x, sizes.experts)
    kv_shape = (job.batch, tokens, sizes.kv_heads, sizes.head_dim)
    cache = [place.random(*kv_shape, dtype=job.dtype, stream=s) for s in (8, 9)] if decode else []
    positions = torch.arange(tokens - here, tokens, device=place.device)
    angles = tuple(a[:, None].to(x.dtype) for a in rope_angles(torch, positions, sizes.head_dim))

    def run(x: Tensor, *cache: Tensor) -> Tensor:
        return llama_layer(torch, sizes, parameters, x, angles, cache)

    def check() -> tuple[Tensor, Tensor]:
        """Of the first tokens of the first sequence: causality keeps the others out."""
        few = min(here, CHECKED_TOKENS)
        part, wide = x[:1, :few], {name: p.float() for name, p in parameters.items()}
        if sizes.experts:
            wide["preference"] = wide["preference"][:1, :few]
        kept = [c[:1].clone() for c in cache]
        found = run(x, *cache)[:1, :few] if decode else run(x)[:1, :few]
        with full_precision(torch):
            turned = tuple(a[:few].float() for a in angles)
            return found, llama_layer(torch, sizes, wide, part.float(), turned, [c.float() for c in kept])

    made = [Prepared(software=f"{place.software} eager", calls=[lambda: run(x, *cache)], check=check)]
    quick, software = fused(place, run)
    if not software.endswith("eager"):

        def checked() -> tuple[Tensor, Tensor]:
            found, expected = check()
            return quick(x, *cache)[:1, : found.shape[1]], expected

        made.append(Prepared(software=software, calls=[lambda: quick(x, *cache)], check=checked))
    return made


_NORMS = ("norm_in", "norm_out")


def llama_layer(
    torch: Any, sizes: LayerKernels, parameters: dict[str, Tensor], x: Tensor, angles: tuple[Tensor, ...], cache: Any
) -> Tensor:
    """A Llama layer on x [batch, tokens, hidden]; with a cache, its last place takes the token's key and value."""
    functional, hidden = torch.nn.functional, (sizes.hidden,)
    batch, tokens = x.shape[:2]
    normed = functional.rms_norm(x, hidden, parameters["norm_in"], 1e-5)
    mixed = functional.linear(normed, parameters["qkv"]).view(batch, tokens, -1, sizes.head_dim)
    q, k, v = mixed.split((sizes.heads, sizes.kv_heads, sizes.kv_heads), 2)
    q, k = turn(torch, q, *angles), turn(torch, k, *angles)
    if len(cache):
        cache[0][:, -1:], cache[1][:, -1:] = k, v
        k, v = cache
    seen = sdpa_attention(torch, q, k, v, causal=not len(cache)).reshape(batch, tokens, -1)
    x = x + functional.linear(seen, parameters["out"])
    normed = functional.rms_norm(x, hidden, parameters["norm_out"], 1e-5)
    if sizes.experts:
        return x + mixture(torch, sizes, parameters, normed)
    gate, up = functional.linear(normed, parameters["gate_up"]).chunk(2, -1)
    return x + functional.linear(functional.silu(gate) * up, parameters["down"])


def preferences(torch: Any, x: Tensor, experts: int) -> Tensor:
    """What is added to each token's scores of experts, [batch, tokens, experts]: other experts for every token.

    Scores alone would let a rounding choose another expert than in float32.
    """
    generator = torch.Generator(x.device).manual_seed(7)
    drawn = torch.rand(*x.shape[:2], experts, device=x.device, generator=generator)
    return 16 * drawn.argsort(-1).to(x.dtype)


def mixture(torch: Any, sizes: LayerKernels, parameters: dict[str, Tensor], normed: Tensor) -> Tensor:
    """A mixture of experts: tokens sorted by expert, grouped products, and each token's weighted sum."""
    functional, chosen = torch.nn.functional, sizes.chosen
    flat = normed.reshape(-1, sizes.hidden)
    scores = functional.linear(flat, parameters["router"])
    experts = (scores + parameters["preference"].reshape(-1, sizes.experts)).topk(chosen, -1).indices
    weights = scores.gather(-1, experts).softmax(-1)
    owners = experts.flatten()
    order = owners.argsort(stable=True)
    counts = (owners[:, None] == torch.arange(sizes.experts, device=owners.device)).sum(0)
    gate, up = grouped_product(torch, flat[order // chosen], parameters["gate_up"], counts).chunk(2, -1)
    done = grouped_product(torch, functional.silu(gate) * up, parameters["down"], counts)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    return (done[back].view(-1, chosen, sizes.hidden) * weights[..., None]).sum(1).view(normed.shape)


def grouped_product(torch: Any, rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """Rows [m, k], ``counts`` of them for each expert, by weights [experts, n, k]; in float32 expert by expert."""
    if rows.dtype == torch.bfloat16:
        return torch._grouped_mm(rows, weights.transpose(1, 2), offs=counts.cumsum(0).to(torch.int32))
    parts = rows.split(counts.tolist())
    return torch.cat([part @ weight.t() for part, weight in zip(parts, weights, strict=True)])
