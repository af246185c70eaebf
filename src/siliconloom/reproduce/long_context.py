"""Long contexts: Yi-34B on an A100, prompts at its matrix units' full rate, tokens at its memory's full bandwidth.

The publication is arithmetic, and the first rows are the same arithmetic on the library's graph. The GPU model's times,
with real kernels, must lie above: those are the last rows.
"""

from __future__ import annotations

from siliconloom.arch.gpu import load_gpu
from siliconloom.evaluate.runs import predict_run
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.workloads import Attention, Graph, load_workload

MODEL = "yi-34b"
FLOPS, BANDWIDTH = 312e12, 2e12
"""Of an A100, as the publication rounds them."""
OUTPUT = 250
LENGTHS = {"4K": 4000, "50K": 50_000}
PREFILL = {"4K": 0.89, "50K": 14.1}
DECODE = {"4K": 8.5, "50K": 9.8}
KV_BYTES = 245_760
TOLERANCE = 0.05


def prompt(tokens: int) -> Graph:
    """The prompt's graph."""
    return load_workload(MODEL, [("sequence", str(tokens)), ("precision", "bf16")])


def token(context: int) -> Graph:
    """One token's."""
    return load_workload(MODEL, [("phase", "decode"), ("context", str(context)), ("precision", "bf16")])


def attention_seconds(graph: Graph) -> float:
    """Attention's part of the prompt at the full rate."""
    return sum(2.0 * o.macs * o.repeat for o in graph.operators() if isinstance(o, Attention)) / FLOPS


def card() -> Card:
    """Derive memory, prompt and tokens."""
    long = token(LENGTHS["50K"])
    rows = [CardRow("bytes of keys and values of a token", long.kv_bytes / LENGTHS["50K"], KV_BYTES, 0.0)]
    for name, tokens in LENGTHS.items():
        graph = prompt(tokens)
        ours, half = graph.flops / FLOPS, attention_seconds(graph) / 2
        row = CardRow(f"seconds of a prompt of {name}, 312 TFLOP/s", ours, PREFILL[name], TOLERANCE)
        if not row.within:
            cause = (
                f"attention's two products, causal, take {2 * half:.1f} s of ours; the published figure has half of "
                f"that: with one of them ours is {ours - half:.1f} s"
            )
            row = CardRow(row.name, ours, PREFILL[name], TOLERANCE, cause)
        rows.append(row)
    for name, context in LENGTHS.items():
        graph = token(context)
        ours = OUTPUT * (graph.weight_bytes + graph.kv_bytes) / BANDWIDTH
        rows.append(CardRow(f"seconds of {OUTPUT} tokens after {name}, 2 TB/s", ours, DECODE[name], TOLERANCE))
    for name, tokens in LENGTHS.items():
        run = predict_run(load_gpu("a100"), MODEL, batch=1, prompt=tokens, output=OUTPUT)
        rows += [
            CardRow(
                f"the same by the GPU model, prompt of {name}",
                run.prompt.kernels_s,
                PREFILL[name],
                0.0,
                sense="at least",
            ),
            CardRow(
                f"the same by the GPU model, tokens after {name}",
                OUTPUT * run.token_seconds(),
                DECODE[name],
                0.0,
                sense="at least",
            ),
        ]
    return Card(
        "long-context",
        "Yi-34B on an A100: prompts and tokens at 4K and 50K",
        "Fu, Challenges in Deploying Long-Context Transformers: A Theoretical Peak Performance Analysis, 2024",
        tuple(rows),
    )
