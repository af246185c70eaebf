"""Operations as PyTorch runs them: operands of random numbers, the call that is timed, the float32 result beside it.

PyTorch is passed in as a module, never imported here, so that reading this package needs none.
"""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from msgspec import Struct

from siliconloom.baselines.jobs import Deployment
from siliconloom.baselines.measure import CannotRun
from siliconloom.baselines.operations import Dealt, Op, Precision

Tensor = Any
CHECKED_ROWS = 16
"""Rows of a product, and queries of an attention, whose result is compared with float32."""
CHECKED_TOKENS = 256
COLD = 4
"""Copies of what is read rotate over this many times the last cache."""
MOST_COPIES = 512


class Prepared(Struct, frozen=True, kw_only=True):
    """One way to run an operation.

    Parameters
    ----------
    software
        What runs it.
    calls
        The operation on each of its copies of weights, or keys and values.
    check
        Its result and the float32 result on the same operands, of as many rows as are compared.
    stream
        On which its calls must be recorded, where that is not any: a backward pass runs on its forward pass's.
    """

    software: str
    calls: list[Callable[[], Tensor]]
    check: Callable[[], tuple[Tensor, Tensor]]
    stream: Any = None


class TorchDevice(Struct, frozen=True, kw_only=True):
    """Where operands go: the torch module, a device, its last cache and its free memory in bytes, and a seed."""

    torch: Any
    device: str
    cache_bytes: int
    memory_bytes: int
    seed: int = 0

    def copies(self, size: int) -> int:
        """How many copies of ``size`` bytes push each other out of the last cache; raises `CannotRun`."""
        if size > 0.7 * self.memory_bytes:
            raise CannotRun(f"its operands take {size / 2**30:.1f} GiB, {self.memory_bytes / 2**30:.1f} GiB are free")
        wanted = math.ceil(COLD * self.cache_bytes / max(size, 1))
        return max(1, min(wanted, MOST_COPIES, int(0.3 * self.memory_bytes // max(size, 1))))

    def random(self, *shape: int, dtype: Precision, stream: int = 0) -> Tensor:
        """Normally distributed numbers, the same for one seed; int8: all values equally often."""
        generator = self.torch.Generator(self.device).manual_seed(self.seed * 1000 + stream)
        if dtype is Precision.INT8:
            return self.torch.randint(-128, 128, shape, dtype=self.torch.int8, device=self.device, generator=generator)
        wide = {
            Precision.FP64: self.torch.float64,
            Precision.FP32: self.torch.float32,
            Precision.TF32: self.torch.float32,
        }
        made = self.torch.randn(
            shape, dtype=wide.get(dtype, self.torch.bfloat16), device=self.device, generator=generator
        )
        return made.to(self.type(dtype))

    def type(self, dtype: Precision) -> Any:
        """PyTorch's type for operands of a precision; raises `CannotRun`."""
        name = _TYPES.get(dtype)
        if name is None or not hasattr(self.torch, name):
            raise CannotRun(f"PyTorch {self.torch.__version__} has no {dtype}")
        return getattr(self.torch, name)

    @property
    def software(self) -> str:
        """How PyTorch stands in tables."""
        return f"torch {self.torch.__version__}"


_TYPES = {
    Precision.FP64: "float64",
    Precision.FP32: "float32",
    Precision.TF32: "float32",
    Precision.FP16: "float16",
    Precision.BF16: "bfloat16",
    Precision.FP8: "float8_e4m3fn",
    Precision.INT8: "int8",
}


@contextmanager
def full_precision(torch: Any) -> Iterator[None]:
    """Float32 products in float32, whatever is being timed."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def gemm(place: TorchDevice, job: Deployment) -> Prepared:
    """A product as a linear layer has it: x[m,k], weights [n,k] read along k, result [m,n]."""
    torch, batch = place.torch, job.batch
    size = int(batch * job.n * job.k * job.dtype.size)
    x = place.random(batch, job.m, job.k, dtype=job.dtype)
    weights = [place.random(batch, job.n, job.k, dtype=job.dtype, stream=i + 1) for i in range(place.copies(size))]
    if batch > 1 and job.dtype.size < 2:
        raise CannotRun(f"no batched products in {job.dtype}")
    flat = x[0]

    def call(weight: Tensor) -> Tensor:
        if job.dtype is Precision.FP8:
            if job.n % 16 or job.k % 16:
                raise CannotRun("fp8 products need n and k in multiples of 16")
            one = _one(torch, place.device)
            found = torch._scaled_mm(flat, weight[0].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
            return found[0] if isinstance(found, tuple) else found
        if job.dtype is Precision.INT8:
            return torch._int_mm(flat, weight[0].t())
        return torch.bmm(x, weight.transpose(1, 2)) if batch > 1 else torch.mm(flat, weight[0].t())

    def check() -> tuple[Tensor, Tensor]:
        wide = torch.float64 if job.dtype in (Precision.FP64, Precision.INT8) else torch.float32
        rows = spaced(job.m, CHECKED_ROWS)
        found = call(weights[0]).reshape(batch, job.m, job.n)[0, rows]
        with full_precision(torch):
            return found, flat[rows].to(wide) @ weights[0][0].to(wide).t()

    calls: list[Callable[[], Tensor]] = [lambda w=w: call(w) for w in weights]  # type: ignore[misc]
    return Prepared(software=place.software, calls=calls, check=check)


def grouped_gemm(place: TorchDevice, job: Deployment) -> Prepared:
    """PyTorch's grouped product: rows [m, k] one group after the other, weights [experts, n, k], result [m, n]."""
    torch, fp8 = place.torch, job.dtype is Precision.FP8
    if not fp8 and job.dtype is not Precision.BF16:
        raise CannotRun(f"no grouped products in {job.dtype}")
    if job.n * job.dtype.size % 16 or job.k * job.dtype.size % 16:
        raise CannotRun("grouped products need rows of n and k that are multiples of 16 bytes")
    size = int(job.batch * job.n * job.k * job.dtype.size)
    x = place.random(job.m, job.k, dtype=job.dtype)
    weights = [place.random(job.batch, job.n, job.k, dtype=job.dtype, stream=i + 1) for i in range(place.copies(size))]
    ends = group_ends(job.m, job.batch, job.dealt, place.seed, job.top_k or 1)
    offsets = torch.tensor(ends, dtype=torch.int32, device=place.device)
    scales = [torch.ones(shape, dtype=torch.float32, device=place.device) for shape in ((job.m,), (job.batch, job.n))]

    def call(weight: Tensor) -> Tensor:
        turned = weight.transpose(1, 2)
        if fp8:
            return torch._scaled_grouped_mm(x, turned, *scales, offs=offsets, out_dtype=torch.bfloat16)
        return torch._grouped_mm(x, turned, offs=offsets)

    def check() -> tuple[Tensor, Tensor]:
        rows = spaced(job.m, CHECKED_ROWS)
        owners = [next(group for group, end in enumerate(ends) if row < end) for row in rows]
        found = call(weights[0])[rows]
        with full_precision(torch):
            wide = [x[row].float() @ weights[0][owner].float().t() for row, owner in zip(rows, owners, strict=True)]
        return found, torch.stack(wide)

    calls: list[Callable[[], Tensor]] = [lambda w=w: call(w) for w in weights]  # type: ignore[misc]
    return Prepared(software=place.software, calls=calls, check=check)


def group_ends(rows: int, groups: int, dealt: Dealt = Dealt.EVEN, seed: int = 0, used: int = 1) -> list[int]:
    """Where each group's rows end: evenly, the first ones with one more, or by chance, the same for one seed.

    By chance ``used`` rows at a time are of one token, and go to different groups.
    """
    if dealt is Dealt.CHANCE:
        draws = random.Random(seed)
        owners = draws.choices(range(groups), k=rows) if used == 1 else []
        for _ in range(rows // used if used > 1 else 0):
            owners += draws.sample(range(groups), used)
        return list(accumulate(owners.count(group) for group in range(groups)))
    each, more = divmod(rows, groups)
    return [(group + 1) * each + min(group + 1, more) for group in range(groups)]


_ONES: dict[str, Tensor] = {}


def _one(torch: Any, device: str) -> Tensor:
    """The scale of fp8 operands, made once: nothing is to be made while a graph is recorded."""
    if device not in _ONES:
        _ONES[device] = torch.ones((), dtype=torch.float32, device=device)
    return _ONES[device]


def attention(place: TorchDevice, job: Deployment) -> list[Prepared]:
    """Attention by each kernel of ``scaled_dot_product_attention``, and by flash_attn where that is installed.

    Keys and values of decode lie in a cache that is as long as the context.
    """
    torch = place.torch
    _check_attention(job)
    size = int(2 * job.batch * job.kv_heads * job.kv_len * job.head_dim * job.dtype.size)
    shape = (job.batch, job.kv_len, job.kv_heads, job.head_dim)
    q = place.random(job.batch, job.q_len, job.heads, job.head_dim, dtype=job.dtype)
    caches = [
        (
            place.random(*shape, dtype=job.dtype, stream=2 * i + 1),
            place.random(*shape, dtype=job.dtype, stream=2 * i + 2),
        )
        for i in range(place.copies(size))
    ]
    causal = job.op is Op.ATTENTION_PREFILL and job.causal

    def expected() -> Tensor:
        with full_precision(torch):
            return reference_attention(torch, q, *caches[0], causal=causal)

    def checked(result: Tensor) -> Tensor:
        return result[0, spaced(job.q_len, CHECKED_ROWS), 0]

    def prepared(software: str, kernel: Callable[[tuple[Tensor, Tensor]], Tensor]) -> Prepared:
        return Prepared(
            software=software,
            calls=[lambda c=c: kernel(c) for c in caches],  # type: ignore[misc]
            check=lambda: (checked(kernel(caches[0])), expected()),
        )

    def sdpa(cache: tuple[Tensor, Tensor], only: str) -> Tensor:
        with chosen_kernel(only):
            return sdpa_attention(torch, q, *cache, causal=causal)

    made = [
        prepared(f"{place.software} {name}", lambda cache, only=only: sdpa(cache, only))  # type: ignore[misc]
        for name, only in attention_kernels(place, job.dtype)
    ]
    if place.device.startswith("cuda") and job.dtype.size == 2 and importlib.util.find_spec("flash_attn"):
        library: Any = importlib.import_module("flash_attn")

        def flash(cache: tuple[Tensor, Tensor]) -> Tensor:
            if job.op is Op.ATTENTION_DECODE:
                return library.flash_attn_with_kvcache(q, *cache, causal=False)
            return library.flash_attn_func(q, *cache, causal=causal)

        made.append(prepared(f"flash_attn {library.__version__}", flash))
    return made


def attention_backward(place: TorchDevice, job: Deployment) -> list[Prepared]:
    """Gradients of queries, keys and values by each kernel of ``scaled_dot_product_attention``, by PyTorch's autograd.

    Its forward pass runs once, outside what is timed.
    """
    torch = place.torch
    _check_attention(job)
    size = int(4 * job.batch * (job.heads * job.q_len + job.kv_heads * job.kv_len) * job.head_dim * job.dtype.size)
    shapes = (
        (job.batch, job.q_len, job.heads, job.head_dim),
        *[(job.batch, job.kv_len, job.kv_heads, job.head_dim)] * 2,
    )
    operands = [
        tuple(
            place.random(*shape, dtype=job.dtype, stream=4 * copy + i).requires_grad_()
            for i, shape in enumerate(shapes)
        )
        for copy in range(min(place.copies(size), MOST_BACKWARD))
    ]
    gradient = place.random(*shapes[0], dtype=job.dtype, stream=3)
    stream = torch.cuda.Stream() if place.device.startswith("cuda") else None

    def prepared(software: str, only: str) -> Prepared:
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())
        with chosen_kernel(only), torch.cuda.stream(stream):  # of none: where it is
            results = [sdpa_attention(torch, *each, causal=job.causal) for each in operands]

        def call(copy: int) -> tuple[Tensor, ...]:
            return torch.autograd.grad(results[copy], operands[copy], gradient, retain_graph=True)  # type: ignore[no-any-return]

        def check() -> tuple[Tensor, Tensor]:
            found = call(0)[0]
            rows = spaced(job.q_len, CHECKED_ROWS)
            with full_precision(torch):
                return found[0, rows, 0], _reference_gradient(torch, operands[0], gradient, job.causal)[rows]

        calls: list[Callable[[], Tensor]] = [lambda c=c: call(c) for c in range(len(operands))]  # type: ignore[misc]
        return Prepared(software=software, calls=calls, check=check, stream=stream)

    made, refused = [], ""
    for name, only in attention_kernels(place, job.dtype):
        try:
            made.append(prepared(f"{place.software} {name}", only))
        except (RuntimeError, TypeError) as error:
            refused = str(error).strip().splitlines()[0]
    if not made:
        raise CannotRun(refused)
    return made


MOST_BACKWARD = 8
"""Copies of a backward pass's operands at most."""


def _check_attention(job: Deployment) -> None:
    if job.dtype.size < 2 or job.dtype is Precision.TF32:
        raise CannotRun(f"no attention in {job.dtype}")


def _reference_gradient(torch: Any, operands: tuple[Tensor, ...], gradient: Tensor, causal: bool) -> Tensor:
    """Float32 gradient of the queries of the first head of the first sequence: [q_len, head_dim]."""
    wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
    q, k, v = (each.detach()[0, :, 0].to(wide) for each in operands)
    scale = 1 / math.sqrt(q.shape[-1])
    scores = q @ k.t() * scale
    if causal:
        last = len(k) - len(q) + torch.arange(len(q), device=q.device)
        scores = scores.masked_fill(torch.arange(len(k), device=q.device) > last[:, None], float("-inf"))
    weights = scores.softmax(-1)
    wanted = gradient[0, :, 0].to(wide) @ v.t()
    return weights * (wanted - (weights * wanted).sum(-1, keepdim=True)) @ k * scale


def attention_kernels(place: TorchDevice, dtype: Precision) -> list[tuple[str, str]]:
    """How each kernel of ``scaled_dot_product_attention`` stands in tables, and PyTorch's name of it."""
    if not place.device.startswith("cuda"):
        return [("sdpa", "")]
    if dtype.size > 2:
        return [("sdpa efficient", "EFFICIENT_ATTENTION")]
    return [("sdpa flash", "FLASH_ATTENTION"), ("sdpa cudnn", "CUDNN_ATTENTION")]


@contextmanager
def chosen_kernel(name: str) -> Iterator[None]:
    """Only that kernel of ``scaled_dot_product_attention``; PyTorch's choice when empty."""
    if not name:
        yield
        return
    chosen: Any = importlib.import_module("torch.nn.attention")
    with chosen.sdpa_kernel(getattr(chosen.SDPBackend, name)):
        yield


def sdpa_attention(torch: Any, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Attention of tensors [batch, tokens, heads, head_dim]; the last query sees the last key."""
    grouped = {"enable_gqa": True} if q.shape[2] != k.shape[2] else {}
    mask: dict[str, Any] = {"is_causal": causal}
    if causal and q.shape[1] != k.shape[1]:  # is_causal would let the first query see the first key only
        bias: Any = importlib.import_module("torch.nn.attention.bias")
        mask = {"attn_mask": bias.causal_lower_right(q.shape[1], k.shape[1])}
    heads_first = (tensor.transpose(1, 2) for tensor in (q, k, v))
    found = torch.nn.functional.scaled_dot_product_attention(*heads_first, **mask, **grouped)
    return found.transpose(1, 2)


def reference_attention(torch: Any, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Float32 attention of the first head of the first sequence, of `CHECKED_ROWS` queries: [rows, head_dim]."""
    rows = torch.tensor(spaced(q.shape[1], CHECKED_ROWS), device=q.device)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = q[0, rows, 0].to(wide) @ k[0, :, 0].to(wide).t() / math.sqrt(q.shape[-1])
    if causal:
        last = k.shape[1] - q.shape[1] + rows
        scores = scores.masked_fill(torch.arange(k.shape[1], device=q.device) > last[:, None], float("-inf"))
    return scores.softmax(-1) @ v[0, :, 0].to(wide)


def elementwise(place: TorchDevice, job: Deployment) -> list[Prepared]:
    """An operation on m rows of n columns; its operands stay in the cache when they fit, as after the one before.

    RMS norm has a kernel of PyTorch's own beside the one that it compiles.
    """
    torch = place.torch
    make, compiled = ELEMENTWISE_CASES[job.op]
    if job.dtype.size < 2 or job.dtype is Precision.TF32:
        raise CannotRun(f"no {job.op} in {job.dtype}")
    place.copies(int(3 * job.m * job.n * job.dtype.size))
    function, operands = make(place, job)
    ways = [fused(place, function) if compiled else (function, place.software)]
    if job.op is Op.RMSNORM and not ways[0][1].endswith("eager"):
        ways.append((function, f"{place.software} eager"))

    def checked(run: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        wide = [o if o.dtype in (torch.int64, torch.float64) else o.float() for o in operands]
        return run(*operands), function(*wide)

    return [
        Prepared(software=software, calls=[lambda r=run: r(*operands)], check=lambda r=run: checked(r))  # type: ignore[misc]
        for run, software in ways
    ]


def fused(place: TorchDevice, function: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], str]:
    """A function as one kernel, where PyTorch can compile for the device; and how it stands in tables."""
    if not place.device.startswith("cuda") or importlib.util.find_spec("triton") is None:
        return function, f"{place.software} eager"
    dynamo: Any = importlib.import_module("torch._dynamo")
    dynamo.reset()  # beyond a few shapes of one function it would fall back without a word
    return place.torch.compile(function, dynamic=False), f"{place.software} compiled"


def _rms_norm(place: TorchDevice, job: Deployment) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    norm, n = place.torch.nn.functional.rms_norm, job.n
    x, g = place.random(job.m, n, dtype=job.dtype), place.random(n, dtype=job.dtype, stream=1)
    return lambda x, g: norm(x, (n,), g, 1e-5), (x, g)


def _layer_norm(place: TorchDevice, job: Deployment) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    norm, n = place.torch.nn.functional.layer_norm, job.n
    x = place.random(job.m, n, dtype=job.dtype)
    return lambda x, g, b: norm(x, (n,), g, b), (x, *(place.random(n, dtype=job.dtype, stream=i) for i in (1, 2)))


def _softmax(place: TorchDevice, job: Deployment) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    return lambda x: x.softmax(-1), (place.random(job.m, job.n, dtype=job.dtype),)


def _silu_mul(place: TorchDevice, job: Deployment) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    silu, n = place.torch.nn.functional.silu, job.n
    return lambda x: silu(x[:, :n]) * x[:, n:], (place.random(job.m, 2 * n, dtype=job.dtype),)


def _gelu(place: TorchDevice, job: Deployment) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    return place.torch.nn.functional.gelu, (place.random(job.m, job.n, dtype=job.dtype),)


def _add(place: TorchDevice, job: Deployment) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    return lambda x, y: x + y, tuple(place.random(job.m, job.n, dtype=job.dtype, stream=i) for i in (0, 1))


def _embedding(place: TorchDevice, job: Deployment) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    rows = 32768  # of the table; what is read of it are m rows
    generator = place.torch.Generator(place.device).manual_seed(place.seed)
    index = place.torch.randint(0, rows, (job.m,), device=place.device, generator=generator)
    return lambda i, t: place.torch.nn.functional.embedding(i, t), (index, place.random(rows, job.n, dtype=job.dtype))


def _rope(place: TorchDevice, job: Deployment) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    torch, width = place.torch, 128
    if job.n % width:
        raise CannotRun(f"rope is measured on heads of {width} columns, of which n is a multiple")
    x = place.random(job.m, job.n // width, width, dtype=job.dtype)
    angles = rope_angles(torch, torch.arange(job.m, device=place.device), width)
    return lambda x, c, s: turn(torch, x, c, s), (x, *(a[:, None].to(x.dtype) for a in angles))


ELEMENTWISE_CASES: dict[
    Op, tuple[Callable[[TorchDevice, Deployment], tuple[Callable[..., Tensor], tuple[Tensor, ...]]], bool]
] = {
    Op.RMSNORM: (_rms_norm, True),
    Op.LAYERNORM: (_layer_norm, False),
    Op.SOFTMAX: (_softmax, False),
    Op.SILU_MUL: (_silu_mul, True),
    Op.GELU: (_gelu, False),
    Op.ADD: (_add, False),
    Op.ROPE: (_rope, True),
    Op.EMBEDDING: (_embedding, False),
}
"""How each is made, and whether it is several kernels unless compiled."""


def rope_angles(torch: Any, positions: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, width / 2] of rotary embedding (RoFormer, arXiv:2104.09864, equation 15)."""
    speeds = 500000.0 ** (-torch.arange(0, width, 2, device=positions.device).double() / width)
    angles = positions.double()[:, None] * speeds
    return angles.cos().float(), angles.sin().float()


def turn(torch: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the pairs (first half, second half) of the last dimension."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


def spaced(size: int, most: int) -> list[int]:
    """At most ``most`` indices below ``size``, evenly spaced, the first and the last among them."""
    count = min(size, most)
    return [round(i * (size - 1) / max(count - 1, 1)) for i in range(count)]


__all__ = ["Prepared", "TorchDevice", "full_precision", "spaced"]
