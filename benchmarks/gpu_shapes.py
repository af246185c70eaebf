"""Writes the operations that `loom measure --shapes FILE` timed for the tables ``torch-*``.

Usage: python -m benchmarks.gpu_shapes all|held|later|grouped|grouped-later FILE.csv

``all`` are products, attention forward and backward, and element-wise operations, some of them of kinds that no other
table has: chunks behind earlier tokens, products in batches, attention without a mask, element-wise kernels on Hopper.
``held`` are large ones, to be timed at the power limit. ``later`` were timed after constants had been fitted to the
others, to judge these. ``grouped`` are products of experts in one kernel, ``grouped-later`` those of other models, to
which nothing is fitted. Sizes are those of models, and others that no model has.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

from siliconloom.baselines.operations import ELEMENTWISE, Op

Row = dict[str, Any]
WEIGHTS = (
    (6144, 4096),
    (4096, 4096),
    (28672, 4096),
    (4096, 14336),
    (10240, 8192),
    (8192, 8192),
    (8192, 28672),
    (1280, 8192),
    (7168, 8192),
    (5120, 5120),
    (3072, 3072),
    (2304, 768),
    (1000, 3000),
)
"""n and k of Llama-3-8B's and 70B's products, of a part of eight of the latter's, and others."""
TOKENS = (1, 8, 16, 37, 64, 128, 200, 256, 512, 1000, 2048, 4096, 8192)
FEW_TOKENS = (1, 16, 64, 256, 1024, 4096)
HEADS = ((32, 8, 128), (64, 8, 128), (8, 1, 128), (32, 32, 128), (12, 12, 64), (16, 16, 64), (16, 8, 256))
"""Query heads, key heads and their size."""
PROMPTS = ((1, 256), (1, 1000), (1, 2048), (1, 8192), (8, 512), (16, 1024), (2, 4096))
CHUNKS = ((1, 512, 4096), (1, 512, 16384), (4, 256, 2048), (8, 64, 4096), (1, 2048, 8192), (16, 4, 4096))
CONTEXTS = tuple(product((1, 4, 16, 64, 256), (512, 2048, 8192, 32768)))
MOST_CACHE = 6e9
BACKWARD = ((1, 2048), (1, 4096), (1, 16384), (4, 2048), (16, 1024), (2, 8192))
ROWS = (1, 16, 64, 256, 1024, 2048, 4096, 16384)
COLUMNS = {Op.SOFTMAX: (512, 2048, 8192, 32000), Op.ROPE: (1280, 5120, 9216)}
WIDTHS = (768, 4096, 5120, 8192, 14336)
COMPILED = (Op.RMSNORM, Op.SILU_MUL, Op.ROPE)
FEW_ROWS, FEW_WIDTHS = (1, 64, 512, 2048, 8192), (4096, 8192, 14336)
"""Each size of a compiled kernel takes a second or two to compile."""


def shapes() -> Iterator[Row]:
    """Everything that is timed in short bursts."""
    yield from _products()
    yield from _attention()
    yield from _elementwise()


def _products() -> Iterator[Row]:
    for (n, k), m in product(WEIGHTS, TOKENS):
        yield {"op": Op.GEMM, "m": m, "n": n, "k": k, "dtype": "bf16"}
    for (n, k), m in product(WEIGHTS[:9], FEW_TOKENS):
        yield {"op": Op.GEMM, "m": m, "n": n, "k": k, "dtype": "fp8"}
    for (n, k), m in product(WEIGHTS[1:4], (64, 1024, 4096)):
        yield {"op": Op.GEMM, "m": m, "n": n, "k": k, "dtype": "fp16"}
        yield {"op": Op.GEMM, "m": m, "n": n, "k": k, "dtype": "int8"}
        yield {"op": Op.GEMM, "m": m, "n": n, "k": k, "dtype": "tf32"}
    for batch, (m, n, k) in product(
        (8, 64, 256), ((16, 1536, 2048), (128, 2048, 768), (512, 64, 512), (512, 512, 64), (1024, 1024, 128))
    ):
        yield {"op": Op.GEMM, "m": m, "n": n, "k": k, "batch": batch, "dtype": "bf16"}


def _attention() -> Iterator[Row]:
    for (heads, kv_heads, size), (batch, length) in product(HEADS, PROMPTS):
        row = {"heads": heads, "kv_heads": kv_heads, "head_dim": size, "batch": batch, "dtype": "bf16"}
        yield {"op": Op.ATTENTION_PREFILL, **row, "q_len": length, "causal": "true"}
        if length <= 2048:
            yield {"op": Op.ATTENTION_PREFILL, **row, "q_len": length, "causal": "false"}
    for (heads, kv_heads, size), (batch, queries, keys) in product((HEADS[0], HEADS[3], HEADS[5]), CHUNKS):
        row = {"heads": heads, "kv_heads": kv_heads, "head_dim": size, "batch": batch, "dtype": "bf16"}
        yield {"op": Op.ATTENTION_PREFILL, **row, "q_len": queries, "kv_len": keys, "causal": "true"}
    for (heads, kv_heads, size), (batch, context) in product(HEADS[:5], CONTEXTS):
        row = {"heads": heads, "kv_heads": kv_heads, "head_dim": size, "batch": batch, "dtype": "bf16"}
        if 4.0 * batch * context * kv_heads * size <= MOST_CACHE:
            yield {"op": Op.ATTENTION_DECODE, **row, "kv_len": context}
    for (heads, kv_heads, size), (batch, length) in product((HEADS[0], HEADS[3], HEADS[5]), BACKWARD):
        for causal in ("true", "false"):
            row = {"heads": heads, "kv_heads": kv_heads, "head_dim": size, "batch": batch, "dtype": "bf16"}
            yield {"op": Op.ATTENTION_BACKWARD, **row, "q_len": length, "causal": causal}


def _elementwise() -> Iterator[Row]:
    for op in ELEMENTWISE:
        few = op in COMPILED
        widths = COLUMNS.get(op, FEW_WIDTHS if few else WIDTHS)
        for n, m in product(widths, FEW_ROWS if few else ROWS):
            yield {"op": op, "m": m, "n": n, "dtype": "bf16"}
    for op, n, m in product((Op.LAYERNORM, Op.SOFTMAX, Op.GELU, Op.ADD), (1024, 8192), (64, 1024, 8192)):
        yield {"op": op, "m": m, "n": n, "dtype": "fp32"}


def held() -> Iterator[Row]:
    """What is timed for seconds, where the board's power limit acts."""
    for (n, k), m in product((WEIGHTS[2], WEIGHTS[3], WEIGHTS[5], WEIGHTS[6]), (16, 256, 1024, 2048, 4096, 8192)):
        yield {"op": Op.GEMM, "m": m, "n": n, "k": k, "dtype": "bf16"}
        yield {"op": Op.GEMM, "m": m, "n": n, "k": k, "dtype": "fp8"}
    for (heads, kv_heads, size), (batch, length) in product((HEADS[0], HEADS[4]), ((1, 8192), (16, 1024))):
        row = {"heads": heads, "kv_heads": kv_heads, "head_dim": size, "batch": batch, "dtype": "bf16"}
        yield {"op": Op.ATTENTION_PREFILL, **row, "q_len": length, "causal": "true"}
        yield {"op": Op.ATTENTION_DECODE, **row, "batch": 64, "kv_len": length}
    for op in (Op.ADD, Op.LAYERNORM):
        yield {"op": op, "m": 16384, "n": 8192, "dtype": "bf16"}


LATER_WEIGHTS = ((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944), (12288, 4608), (1536, 8960), (777, 2048))
LATER_TOKENS = (3, 24, 96, 384, 700, 1536, 3000, 6000)
LATER_HEADS = ((28, 4, 128), (40, 40, 128), (24, 8, 64))
LATER_PROMPTS = ((1, 384), (3, 700), (1, 1536), (2, 3072), (1, 6144), (1, 12000))
LATER_CONTEXTS = ((2, 700), (8, 1500), (24, 3000), (48, 6000), (2, 24000), (96, 1000), (1, 12000))
LATER_BACKWARD = ((1, 3072), (1, 6144), (1, 12288), (6, 1024))
LATER_ROWS, LATER_WIDTHS = (4, 48, 384, 1500, 3000, 6000, 12000), (2304, 3584, 6144, 11008)


def later() -> Iterator[Row]:
    """What was timed after everything else had been fitted."""
    for (n, k), m in product(LATER_WEIGHTS, LATER_TOKENS):
        yield {"op": Op.GEMM, "m": m, "n": n, "k": k, "dtype": "bf16"}
    for (n, k), m in product(LATER_WEIGHTS[:4], LATER_TOKENS[1::2]):
        yield {"op": Op.GEMM, "m": m, "n": n, "k": k, "dtype": "fp8"}
    for heads, kv_heads, size in LATER_HEADS:
        row = {"heads": heads, "kv_heads": kv_heads, "head_dim": size, "dtype": "bf16"}
        for batch, length in LATER_PROMPTS:
            yield {"op": Op.ATTENTION_PREFILL, **row, "batch": batch, "q_len": length, "causal": "true"}
        for batch, length in LATER_PROMPTS[:3]:
            yield {"op": Op.ATTENTION_PREFILL, **row, "batch": batch, "q_len": length, "causal": "false"}
            chunk = {"q_len": length // 2, "kv_len": 3 * length}
            yield {"op": Op.ATTENTION_PREFILL, **row, "batch": batch, **chunk, "causal": "true"}
        for batch, context in LATER_CONTEXTS:
            yield {"op": Op.ATTENTION_DECODE, **row, "batch": batch, "kv_len": context}
        for (batch, length), causal in product(LATER_BACKWARD, ("true", "false")):
            yield {"op": Op.ATTENTION_BACKWARD, **row, "batch": batch, "q_len": length, "causal": causal}
    for op in ELEMENTWISE:
        few = op in COMPILED
        widths = (1280, 8960) if op is Op.ROPE else LATER_WIDTHS[:2] if few else LATER_WIDTHS
        for n, m in product(widths, LATER_ROWS[::2] if few else LATER_ROWS):
            yield {"op": op, "m": m, "n": n, "dtype": "bf16"}


EXPERTS = (
    (8, 28672, 4096),
    (8, 4096, 14336),
    (128, 1536, 2048),
    (128, 2048, 768),
    (32, 4096, 7168),
    (32, 7168, 2048),
    (32, 5760, 2880),
    (32, 2880, 2880),
)
"""Experts, n and k of Mixtral-8x7B, Qwen3-30B-A3B, an eighth of DeepSeek-V3's and gpt-oss-20b."""
DEALT = (1, 2, 8, 32, 128, 512, 2048, 8192, 32768)
"""Rows in all: tokens times the experts that each has."""
LATER_EXPERTS = (
    (64, 2048, 2048),
    (64, 2048, 1024),
    (16, 16384, 5120),
    (16, 5120, 8192),
    (64, 2816, 2048),
    (64, 2048, 1408),
    (20, 3072, 1536),
    (3, 12288, 4096),
)
"""Of OLMoE-1B-7B, Llama 4 Scout, DeepSeek-V2-Lite, and two of no model."""
LATER_DEALT = (5, 24, 100, 400, 1500, 6000, 24000)


def grouped() -> Iterator[Row]:
    """Products of experts, the rows dealt evenly."""
    for (experts, n, k), m in product(EXPERTS, DEALT):
        yield {"op": Op.GROUPED_GEMM, "m": m, "n": n, "k": k, "batch": experts, "dtype": "bf16"}
    for (experts, n, k), m in product(EXPERTS[:6], DEALT[2::2]):
        yield {"op": Op.GROUPED_GEMM, "m": m, "n": n, "k": k, "batch": experts, "dtype": "fp8"}


def grouped_later() -> Iterator[Row]:
    """The same of other models."""
    for (experts, n, k), m in product(LATER_EXPERTS, LATER_DEALT):
        yield {"op": Op.GROUPED_GEMM, "m": m, "n": n, "k": k, "batch": experts, "dtype": "bf16"}
    for (experts, n, k), m in product(LATER_EXPERTS[:4], LATER_DEALT[1::2]):
        yield {"op": Op.GROUPED_GEMM, "m": m, "n": n, "k": k, "batch": experts, "dtype": "fp8"}


def main(which: str, path: str) -> None:
    """Write the rows as a CSV file."""
    kinds = {"all": shapes, "held": held, "later": later, "grouped": grouped, "grouped-later": grouped_later}
    rows = list(kinds[which]())
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} operations to {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
