"""TokenWeave on four H100: prompts with sums in line, without them, and with halves of the tokens that take turns.

The kernels' times are the GPU model's under the power limit; the overlap is a schedule of the halves' kernels and sums
on two streams (`siliconloom.planning.overlap`). The figures are figure 11b's, of the paper's repository (MIT licence).
"""

from __future__ import annotations

from siliconloom.arch.gpu import load_gpu
from siliconloom.planning.overlap import split_prefill
from siliconloom.planning.plan import shape_of
from siliconloom.reproduce.card import Card, Row
from siliconloom.workloads import load_workload

PUBLISHED = {
    1024: (82.17, 70.78, 72.49), 2048: (150.61, 132.51, 137.11), 4096: (295.20, 257.21, 261.90),
    8192: (609.61, 531.46, 529.55), 16384: (1288.28, 1130.39, 1125.92), 32768: (2880.84, 2546.31, 2558.78),
}  # fmt: skip
"""Tokens; ms of Llama-3.3-70B with sums by multimem, without sums, and overlapped."""
TOLERANCE = 0.1
GPUS = 4
SUMS = (
    "our sums are NCCL's: {ours:.0f} us each, the paper's own by multimem {theirs:.0f} us; there is more to hide, and "
    "the norms that go with them are taken from an A100's kernels"
)


def card() -> Card:
    """Time every prompt length of the figure."""
    gpu = load_gpu("h100")
    shape = shape_of(load_workload("llama3-70b", [("phase", "training")]))
    rows = []
    for tokens, (baseline, without, overlapped) in PUBLISHED.items():
        found = split_prefill(gpu, shape, tokens, GPUS)
        sums = 2 * shape.layers
        cause = SUMS.format(ours=(found.in_line - found.without) / sums * 1e6, theirs=(baseline - without) / sums * 1e3)
        rows += [
            Row(f"prompt with sums in line, ms [{tokens} tokens]", found.in_line * 1e3, baseline, TOLERANCE),
            Row(f"prompt without sums, ms [{tokens} tokens]", found.without * 1e3, without, TOLERANCE),
            Row(f"prompt overlapped, ms [{tokens} tokens]", found.overlapped * 1e3, overlapped, TOLERANCE, cause),
            Row(f"gain [{tokens} tokens]", found.in_line / found.overlapped, baseline / overlapped, TOLERANCE, cause),
        ]
    return Card(
        "tokenweave",
        "TokenWeave: Llama-3.3-70B prompts on four H100 (tensor parallel)",
        "TokenWeave: Efficient Compute-Communication Overlap for Distributed LLM Inference, 2025, figure 11b",
        tuple(rows),
    )
