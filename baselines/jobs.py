"""What `loom measure` times: the operations of a model, or the rows of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.document import Document
from siliconloom.arch.errors import LoomError, NotSupported, nearest_name
from siliconloom.arch.names import library_names
from siliconloom.baselines.operation_rows import read_operations
from siliconloom.baselines.operations import ALIASES, MASKED, PRECISIONS, Dealt, Op, Operations, Precision
from siliconloom.workloads.names import LIBRARY


class LayerKernels(Struct, frozen=True, kw_only=True):
    """Sizes of a Llama-like layer: grouped attention with rotary embedding, RMS norms, SwiGLU, no biases.

    With ``experts`` its feed-forward is a mixture of them, ``chosen`` for each token (Mixtral's).
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    experts: int = 0
    chosen: int = 0

    @property
    def qkv(self) -> int:
        """Columns of queries, keys and values together."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


class Deployment(Struct, frozen=True, kw_only=True):
    """One operation to time; the fields are the columns of `operations`, 0 where not meant.

    ``model``, ``layer`` and ``input_tokens`` are those of ``layer_prefill`` (tokens of each sequence) and
    ``layer_decode`` (keys that the token looks at).
    """

    op: Op
    dtype: Precision = Precision.BF16
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 0
    q_len: int = 0
    kv_len: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    causal: bool = False
    gpus: int = 0
    bytes: int = 0
    dealt: Dealt = Dealt.EVEN
    top_k: int = 0
    model: str = ""
    input_tokens: int = 0
    layer: LayerKernels | None = None

    def columns(self) -> dict[str, Any]:
        """Columns of `operations`, to write down."""
        values = {name: getattr(self, name) for name in _SIZES}
        return {"op": str(self.op), "dtype": str(self.dtype), **{k: v or None for k, v in values.items()}} | (
            {"causal": self.causal}
            if self.op in MASKED
            else {"dealt": self.dealt if self.dealt is Dealt.CHANCE else None, "top_k": self.top_k or None}
        )

    def __str__(self) -> str:
        sizes = [f"{name}={getattr(self, name)}" for name in (*_SIZES, "input_tokens") if getattr(self, name)]
        dealt = ["by chance"] if self.dealt is Dealt.CHANCE else []
        dealt += [f"{self.top_k} of a token"] if self.top_k else []
        return " ".join([self.op, self.model, *sizes, self.dtype, *dealt]).replace("  ", " ")


_SIZES = ("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "gpus", "bytes")

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
QUICK_TOKENS = (1, 64, 1024)
PROMPTS = ((1, 512), (1, 1024), (1, 2048), (1, 4096), (1, 8192), (8, 1024), (4, 2048))
QUICK_PROMPTS = ((1, 1024),)
CONTEXTS = tuple((batch, context) for batch in (1, 8, 32, 128) for context in (512, 2048, 8192))
QUICK_CONTEXTS = ((1, 2048), (32, 2048))
LAYER_PROMPTS = ((1, 128), (1, 512), (1, 2048), (1, 8192))
LAYER_CONTEXTS = ((1, 1024), (1, 8192), (16, 1024), (64, 1024), (64, 4096))
BUFFERS = tuple(2**power for power in range(12, 29))
QUICK_BUFFERS = (2**16, 2**24)
DTYPES = (Precision.BF16, Precision.FP8)
"""Precisions that are timed when none is asked for."""


def parse_dtypes(text: str) -> tuple[Precision, ...]:
    """Precisions of a comma-separated list."""
    found = []
    for part in text.split(","):
        name = ALIASES.get(part.strip().lower(), part.strip().lower())
        if name not in list(PRECISIONS):
            near = nearest_name(name, map(str, PRECISIONS))
            hint = f"; did you mean '{near}'?" if near else ""
            raise LoomError(f"--dtype: must be among {', '.join(PRECISIONS)} (got '{part.strip()}'){hint}")
        found.append(Precision(name))
    return tuple(dict.fromkeys(found))


def load_layer(model: str) -> LayerKernels:
    """Sizes of the layers of a Llama-like model of the workload library."""
    config = Document.load(LIBRARY / f"{model}.yaml").data.get("model") or {}
    if config.get("model_type") not in ("llama", "mixtral"):
        rule = "only the layers of models like Llama and Mixtral can be measured; or write a CSV file"
        raise LoomError(f"--shapes {model}: {rule}")
    heads = config["num_attention_heads"]
    return LayerKernels(
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads", heads),
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocabulary=config["vocab_size"],
        experts=config.get("num_local_experts", 0),
        chosen=config.get("num_experts_per_tok", 0),
    )


def load_jobs(
    shapes: Sequence[str], dtypes: Sequence[Precision] = DTYPES, *, quick: bool = False, gpus: int = 1
) -> list[Deployment]:
    """Jobs of several ``--shapes``: names of models, or CSV files of operations; each once.

    A model's operations are timed in every precision of ``dtypes`` that they have (attention and element-wise
    operations not in those of eight bits or fewer), a file's in its own.
    """
    jobs: list[Deployment] = []
    for shape in shapes:
        if Path(shape).suffix in (".csv", ".gz") or shape == "-" or Path(shape).exists():
            jobs += from_operations(read_operations(shape))
        elif shape in library_names(LIBRARY):
            jobs += model_jobs(shape, load_layer(shape), dtypes, quick=quick)
        else:
            near = nearest_name(shape, library_names(LIBRARY))
            hint = f"did you mean '{near}'?" if near else "give llama3-8b, llama3-70b or a CSV file"
            raise LoomError(f"--shapes {shape}: no such file and no workload of that name; {hint}")
    if gpus > 1:
        sizes = QUICK_BUFFERS if quick else BUFFERS
        jobs += [Deployment(op=Op.ALL_REDUCE, gpus=gpus, bytes=size) for size in sizes]
    return list(dict.fromkeys(jobs))


def from_operations(operations: Operations) -> list[Deployment]:
    """Jobs of the rows of a file; raises `NotSupported` for those that no kernel here does."""
    stored = operations.packed() | operations.sparse() | operations.cached() | (operations.window > 0)
    if stored.any():
        first = operations.describe(int(np.argmax(stored)))
        known = "packed and sparse weights, caches in another format and windows are predicted"
        raise NotSupported(f"measuring {first}: {known}")
    jobs = []
    for index in range(len(operations)):
        row = operations.row(index)
        jobs.append(
            Deployment(
                **{
                    **row,
                    "op": Op(row["op"]),
                    "dtype": Precision(row["dtype"]),
                    "dealt": Dealt(row.get("dealt", Dealt.EVEN)),
                }
            )
        )
    return jobs


def model_jobs(
    model: str, layer: LayerKernels, dtypes: Sequence[Precision], *, quick: bool = False
) -> Iterator[Deployment]:
    """Products, attention, norms, gates and one whole layer of a model."""
    tokens = QUICK_TOKENS if quick else TOKENS
    products = (
        (layer.qkv, layer.hidden),
        (layer.hidden, layer.heads * layer.head_dim),
        (2 * layer.intermediate, layer.hidden),
        (layer.hidden, layer.intermediate),
        (layer.vocabulary, layer.hidden),
    )
    for dtype in dtypes:
        for n, k in products:
            expert = bool(layer.experts) and (n, k) in products[2:4]
            kind = {"op": Op.GROUPED_GEMM, "batch": layer.experts} if expert else {"op": Op.GEMM, "batch": 1}
            for m in tokens:
                rows = m * layer.chosen if expert else m
                yield Deployment(m=rows, n=n, k=k, dtype=dtype, **kind)  # type: ignore[arg-type]
    for dtype in (d for d in dtypes if d.size >= 2 and d is not Precision.TF32):
        shared = Deployment(
            op=Op.ATTENTION_PREFILL, heads=layer.heads, kv_heads=layer.kv_heads, head_dim=layer.head_dim, dtype=dtype
        )
        for batch, length in QUICK_PROMPTS if quick else PROMPTS:
            yield replace(shared, batch=batch, q_len=length, kv_len=length, causal=True)
        for batch, length in QUICK_CONTEXTS if quick else CONTEXTS:
            yield replace(shared, op=Op.ATTENTION_DECODE, batch=batch, q_len=1, kv_len=length)
        for m in tokens:
            yield Deployment(op=Op.RMSNORM, m=m, n=layer.hidden, dtype=dtype)
            yield Deployment(op=Op.SILU_MUL, m=m, n=layer.intermediate, dtype=dtype)
        for batch, length in LAYER_PROMPTS[-2:-1] if quick else LAYER_PROMPTS:
            yield _whole(Op.LAYER_PREFILL, model, layer, dtype, batch, length)
        for batch, length in LAYER_CONTEXTS[:1] if quick else LAYER_CONTEXTS:
            yield _whole(Op.LAYER_DECODE, model, layer, dtype, batch, length)


def _whole(op: Op, model: str, layer: LayerKernels, dtype: Precision, batch: int, tokens: int) -> Deployment:
    return Deployment(op=op, model=model, layer=layer, dtype=dtype, batch=batch, input_tokens=tokens, gpus=1)


__all__ = [
    "DTYPES",
    "Deployment",
    "LayerKernels",
    "from_operations",
    "load_jobs",
    "load_layer",
    "model_jobs",
    "parse_dtypes",
]
