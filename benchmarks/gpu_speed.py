"""Seconds of ``loom gpu`` on 100,000 operations, a whole process, beside what any such process takes."""

from __future__ import annotations

import random
import resource
import statistics
import sys

from benchmarks.measure import CACHE, LOOM, measured

ROWS = 100_000
WIDTHS = (128, 256, 512, 1024, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 11008, 14336, 28672)
HEADER = "op,m,n,k,batch,q_len,kv_len,heads,kv_heads,head_dim,causal,dtype,gpus,bytes"


def operations_csv(rows: int) -> str:
    """Products (half of them), attention and collectives of random sizes."""
    draw = random.Random(1)
    lines = [HEADER]
    for _ in range(rows):
        kind = draw.random()
        if kind < 0.5:
            n, k, dtype = draw.choice(WIDTHS), draw.choice(WIDTHS), draw.choice(("bf16", "fp16", "fp8"))
            lines.append(f"gemm,{draw.randint(1, 16384)},{n},{k},,,,,,,,{dtype},,")
        elif kind < 0.65:
            length = draw.randint(16, 8192)
            lines.append(f"attention_prefill,,,,{draw.randint(1, 16)},{length},{length},32,8,128,true,bf16,,")
        elif kind < 0.85:
            lines.append(f"attention_decode,,,,{draw.randint(1, 256)},1,{draw.randint(16, 32768)},32,8,128,,bf16,,")
        else:
            op = draw.choice(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
            lines.append(f"{op},,,,,,,,,,,fp16,{draw.choice((2, 4, 8))},{draw.randint(1024, 2**28)}")
    return "\n".join(lines) + "\n"


def speed() -> dict[str, float]:
    """Medians of five processes each, kernels compiled before."""
    CACHE.mkdir(parents=True, exist_ok=True)
    many, one = CACHE / "operations.csv", CACHE / "operation.csv"
    many.write_text(operations_csv(ROWS))
    one.write_text(operations_csv(1))
    command = [*LOOM, "gpu", "h100"]
    measured([*command, str(one), "--json", "-"])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    runs = [measured([*command, str(many), "--json", "-"])[0] for _ in range(5)]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "rows": ROWS,
        "process_s": statistics.median(runs),
        "cpu_s": used / len(runs),
        "one_row_s": statistics.median(measured([*command, str(one), "--json", "-"])[0] for _ in range(5)),
        "python_s": statistics.median(measured([sys.executable, "-c", "import numpy, numba"])[0] for _ in range(5)),
    }


__all__ = ["ROWS", "operations_csv", "speed"]
