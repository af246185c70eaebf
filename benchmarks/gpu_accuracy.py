"""How far the GPU model is from the measured tables, by GPU, source, operation and size; and how fast it is.

    python -m benchmarks.gpu_accuracy

prints the tables and writes ``benchmarks/results/gpu_accuracy.json``. Every figure stands for the shape families that
neither the constants nor the residuals saw (`siliconloom.baselines.families`): those of the package are made anew from
the other rows. Beside it stands the mechanism alone, then how far two laboratories are apart on such rows
(`gpu_noise`), below which no model can be. The roofline's error on the same rows, in the same run, says what the model
adds to a datasheet. Then come the bars: which part of rows, GPUs and models that were left out lies inside.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import gpu_models, gpu_runs
from benchmarks.gpu_coverage import other_gpus, print_gpus, print_withheld, trained, withheld
from benchmarks.gpu_noise import LABORATORIES, SUSTAINED
from benchmarks.gpu_speed import speed
from benchmarks.measure import HERE, machine
from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines import tables
from siliconloom.baselines.families import split
from siliconloom.baselines.operations import COLLECTIVES, ELEMENTWISE, Op, Operations
from siliconloom.baselines.predict import predict
from siliconloom.baselines.residuals import NO_FIELDS
from siliconloom.baselines.roofline import flops
from siliconloom.baselines.stacks import STACKS
from siliconloom.baselines.tables import Table

Band = tuple[str, Callable[[Table], np.ndarray]]
GEMM_BANDS: tuple[Band, ...] = (
    ("below 1 GFLOP", lambda t: flops(t.operations) < 1e9),
    ("1-50 GFLOP", lambda t: (flops(t.operations) >= 1e9) & (flops(t.operations) <= 50e9)),
    ("above 50 GFLOP", lambda t: flops(t.operations) > 50e9),
)
ATTENTION_BANDS: tuple[Band, ...] = (
    ("below 0.1 ms", lambda t: t.time_us < 100),
    ("0.1-1 ms", lambda t: (t.time_us >= 100) & (t.time_us <= 1000)),
    ("above 1 ms", lambda t: t.time_us > 1000),
)
COLLECTIVE_BANDS: tuple[Band, ...] = (
    ("below 64 KiB", lambda t: t.operations.bytes < 2**16),
    ("from 64 KiB", lambda t: t.operations.bytes >= 2**16),
)
ELEMENTWISE_BANDS: tuple[Band, ...] = (
    ("below 20 us", lambda t: t.time_us < 20),
    ("from 20 us", lambda t: t.time_us >= 20),
)


@dataclass(frozen=True)
class Source:
    """Rows of a table, and how they are predicted."""

    table: str
    card: str
    gpu: str
    ops: tuple[Op, ...]
    bands: tuple[Band, ...]
    software: str = ""
    dtype: str = ""
    note: str = ""
    sets: tuple[tuple[str, str], ...] = ()
    options: dict[str, bool] = field(default_factory=dict)
    unfitted: bool = False

    def rows(self) -> Table:
        """The rows meant."""
        table = tables.load(self.table)
        keep = (table.gpu == self.card) & table.operations.among(*self.ops)
        keep &= np.char.startswith(table.software.astype(str), self.software)
        if self.dtype:
            keep &= np.array([str(d) == self.dtype for d in table.operations.dtypes()])
        return table.select(keep)


ATTENTION = (Op.ATTENTION_PREFILL, Op.ATTENTION_DECODE)
BURST = "aiconfigurator-"
SOURCES = (
    *(Source(f"{BURST}gemm-a100", "a100", "a100", (Op.GEMM,), GEMM_BANDS, s, "bf16") for s in ("trtllm", "sglang")),
    Source("vidur-gemm-a100", "a100-80gb", "a100", (Op.GEMM,), GEMM_BANDS, note="in a running model"),
    *(
        Source(f"{BURST}gemm-h100", "h100", "h100", (Op.GEMM,), GEMM_BANDS, s, d)
        for d in ("bf16", "fp8")
        for s in ("trtllm", "sglang")
    ),
    *(
        Source(f"{BURST}attention-a100", "a100", "a100", (op,), ATTENTION_BANDS, s)
        for op in ATTENTION
        for s in ("vllm", "sglang")
    ),
    *(
        Source(f"{BURST}attention-h100", "h100", "h100", (op,), ATTENTION_BANDS, s)
        for op in ATTENTION
        for s in ("vllm", "sglang", "trtllm")
    ),
    *(
        Source(f"{BURST}collectives", g, g, (op,), COLLECTIVE_BANDS, "NCCL", "fp16")
        for g in ("a100", "h100")
        for op in COLLECTIVES
    ),
    *(
        Source(f"{BURST}collectives", g, g, (Op.ALL_REDUCE,), COLLECTIVE_BANDS, s, note="not NCCL")
        for g in ("a100", "h100")
        for s in ("TRT-LLM custom", "vLLM custom")
    ),
    Source("vidur-allreduce-a100", "a100", "a100", (Op.ALL_REDUCE,), COLLECTIVE_BANDS, note="in a running model"),
    Source("vidur-elementwise-a100", "a100-80gb", "a100", ELEMENTWISE, ELEMENTWISE_BANDS, note="in a running model"),
    Source("llmcompass-a100", "a100", "a100", ELEMENTWISE, ELEMENTWISE_BANDS, note="wall clock"),
    Source("neusight-elementwise", "a100-pcie-40gb", "a100-40gb", ELEMENTWISE, ELEMENTWISE_BANDS, dtype="fp32"),
    Source(
        f"{BURST}gemm-h200-vllm",
        "h200",
        "h200",
        (Op.GEMM,),
        GEMM_BANDS,
        note="sustained",
        options={"sustained": True},
        unfitted=True,
    ),
    *(
        Source(
            f"{BURST}attention-h200",
            "h200",
            "h200",
            (op,),
            ATTENTION_BANDS,
            note="sustained",
            options={"sustained": True},
            unfitted=True,
        )
        for op in ATTENTION
    ),
    *(
        Source(
            "deepbench-gemm",
            "v100",
            "v100",
            (Op.GEMM,),
            GEMM_BANDS,
            dtype=d,
            note="wall clock",
            options={"graph": False},
            unfitted=True,
        )
        for d in ("fp16", "fp32")
    ),
    Source(
        "neusight-elementwise",
        "v100-pcie-32gb",
        "v100",
        ELEMENTWISE,
        ELEMENTWISE_BANDS,
        dtype="fp32",
        sets=(("clock", "1380 MHz"), ("power", "250")),
        unfitted=True,
    ),
)
"""The H100's memory-bound constants serve the H200; nothing of the GPUs marked unfitted was ever seen."""


def statistics(ratio: np.ndarray) -> dict[str, float | int] | None:
    """Of predicted over measured, less one: how many, median, median and 90 % quantile of the absolute."""
    if not len(ratio):
        return None
    return {
        "rows": len(ratio),
        "bias": float(np.median(ratio)),
        "median": float(np.median(np.abs(ratio))),
        "q90": float(np.quantile(np.abs(ratio), 0.9)),
    }


def operation_name(ops: tuple[Op, ...]) -> str:
    return str(ops[0]) if len(ops) == 1 else "element-wise"


def judged(source: Source) -> Iterator[dict[str, Any]]:
    """Statistics of a source, band by band; of GPUs that nothing was fitted to, the mechanism alone on all rows."""
    table = source.rows()
    ours, alone, floor = errors(source, table)
    unseen = np.ones(len(table), bool) if source.unfitted else split(table)[1]
    software = source.software or source.note or source.table.partition("-")[0]
    for name, band in source.bands:
        mask = band(table)
        if not mask.any():
            continue
        operation = operation_name(source.ops)
        known = f"{operation} fp8" if source.dtype == "fp8" else operation
        noise = LABORATORIES.get((known, source.card, name))
        if source.options.get("sustained") and operation == "gemm" and name == "above 50 GFLOP":
            noise = SUSTAINED
        yield {
            "gpu": source.card,
            "predicted_as": source.gpu,
            "table": source.table,
            "software": software,
            "note": source.note,
            "operation": operation,
            "dtype": source.dtype,
            "band": name,
            "unfitted": source.unfitted,
            "unseen": statistics(ours[mask & unseen]),
            "mechanism": statistics(alone[mask & unseen]),
            "roofline": statistics(floor[mask & unseen] if (mask & unseen).any() else floor[mask]),
            "laboratories": noise,
        }


def errors(source: Source, table: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a source's rows: ours with what the training families say, the mechanism's, and the roofline's error."""
    gpu = load_gpu(source.gpu, list(source.sets))
    fields, bars = trained()
    chosen = NO_FIELDS if source.unfitted else fields
    found = predict(gpu, table.operations, fields=chosen, bars=bars, software=program(source), **source.options)
    alone = predict(gpu, table.operations, fields=NO_FIELDS, bars=bars, **source.options)
    ours, mechanism, floor = (s * 1e6 / table.time_us - 1.0 for s in (found.seconds, alone.seconds, found.roofline))
    return ours, mechanism, floor


def program(source: Source) -> str:
    """Software as fields name it; that of default predictions for tables of others."""
    return {"trtllm": "tensorrt-llm", "sglang": "sglang", "vllm": "vllm"}.get(source.software, "")


def whole_models() -> Iterator[dict[str, Any]]:
    """Whole runs: the stack fitted to one model's, judged on the others'."""
    for software in ("TensorRT-LLM", "vLLM", "Deepspeed-MII"):
        stack = gpu_models.stack_of(software)
        runs = gpu_models.inference_bench(software)
        chosen = [r for r in runs if not r.waits]
        groups = [
            (f"{m} x{t}", [r for r in chosen if r.model == m and r.tensor == t])
            for m in gpu_models.MODELS
            for t in (1, 2, 4)
        ]
        others = [r for r in chosen if r.model != gpu_models.FITTED]
        groups += [("all but llama2-7b", others), ("cache does not fit", [r for r in runs if r.waits])]
        for name, rows in groups:
            if rows:
                yield model_row("LLM-Inference-Bench", software, name, gpu_models.errors(rows, stack)) | {
                    "unseen": not name.startswith(gpu_models.FITTED)
                }
    for requests in (8, 16, 32):
        for name in sorted({(software, step.model) for software, step in gpu_models.served(requests)}):
            steps = [s for software, s in gpu_models.served(requests) if (software, s.model) == name]
            stack = STACKS["none"]
            ratio = np.array([s.step.seconds(stack) / s.seconds - 1.0 for s in steps])
            yield model_row("H100 servers, token", name[0], f"{name[1]}, {requests} in flight", ratio)
    for gpu in ("a100", "h100"):
        for phase in ("prefill", "decode"):
            for tensor in (2, 4, 8):
                steps = [s for s in gpu_models.splitwise() if (s.gpu, s.phase, s.tensor) == (gpu, phase, tensor)]
                steps = [s for s in steps if s.possible]
                ratio = np.array([s.step.kernels_s / s.seconds - 1.0 for s in steps])
                gap = np.median([(s.seconds - s.step.kernels_s) / s.step.kernels for s in steps])
                row = model_row("Splitwise", "software of 2023", f"llama2-70b {phase}, {tensor} x {gpu}", ratio)
                yield row | {"host_us_per_kernel": float(gap * 1e6)}


def model_row(source: str, software: str, name: str, ratio: np.ndarray) -> dict[str, Any]:
    return {"source": source, "software": software, "name": name, "error": statistics(ratio), "unseen": True}


ASKED = (
    ("GEMM from 1 GFLOP, A100", 0.06),
    ("GEMM from 1 GFLOP, A100, second laboratory", 0.06),
    ("GEMM below 1 GFLOP, A100", 0.15),
    ("GEMM from 1 GFLOP, H100", 0.06),
    ("GEMM from 1 GFLOP, H100, second laboratory", 0.06),
    ("GEMM below 1 GFLOP, H100", 0.15),
    ("attention, A100", 0.10),
    ("attention, A100, second laboratory", 0.10),
    ("attention, H100", 0.10),
    ("attention, H100, second laboratory", 0.10),
    ("all-reduce from 64 KiB", 0.10),
    ("whole models, TensorRT-LLM", 0.15),
    ("whole models, vLLM", 0.15),
    ("never measured: H200 GEMM", 0.20),
    ("never measured: H200 attention", 0.20),
    ("never measured: V100 GEMM", 0.20),
)


def headline(models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the project asks of itself: medians over unseen rows, and the roofline's on the same."""
    found = []
    for name, asked in ASKED:
        if name.startswith("whole"):
            software = name.rpartition(" ")[2]
            ours = next(m["error"] for m in models if m["software"] == software and m["name"] == "all but llama2-7b")
            floor = None
        else:
            ours, floor = pooled(*POOLS[name])
        found.append({"name": name, "asked": asked, "error": ours, "roofline": floor})
    return found


def pooled(
    sources: Callable[[Source], bool], rows: Callable[[Operations], np.ndarray]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Statistics of several sources' unseen rows together, ours and the roofline's."""
    ratios: list[np.ndarray] = []
    floors: list[np.ndarray] = []
    for source in filter(sources, SOURCES):
        table = source.rows()
        mask = np.ones(len(table), bool) if source.unfitted else split(table)[1]
        ours, _, floor = errors(source, table.select(mask & rows(table.operations)))
        ratios.append(ours)
        floors.append(floor)
    return statistics(np.concatenate(ratios)), statistics(np.concatenate(floors))


def _from(source: str, card: str, software: str = "", dtype: str = "") -> Callable[[Source], bool]:
    return lambda s: (s.table, s.card) == (f"{BURST}{source}", card) and s.software == software and s.dtype == dtype


def _all(o: Operations) -> np.ndarray:
    return np.ones(len(o), bool)


POOLS: dict[str, tuple[Callable[[Source], bool], Callable[[Operations], np.ndarray]]] = {
    "GEMM from 1 GFLOP, A100": (_from("gemm-a100", "a100", "trtllm", "bf16"), lambda o: flops(o) >= 1e9),
    "GEMM from 1 GFLOP, A100, second laboratory": (
        _from("gemm-a100", "a100", "sglang", "bf16"),
        lambda o: flops(o) >= 1e9,
    ),
    "GEMM from 1 GFLOP, H100, second laboratory": (
        _from("gemm-h100", "h100", "sglang", "bf16"),
        lambda o: flops(o) >= 1e9,
    ),
    "attention, A100, second laboratory": (_from("attention-a100", "a100", "sglang"), _all),
    "attention, H100, second laboratory": (_from("attention-h100", "h100", "sglang"), _all),
    "GEMM below 1 GFLOP, A100": (_from("gemm-a100", "a100", "trtllm", "bf16"), lambda o: flops(o) < 1e9),
    "GEMM from 1 GFLOP, H100": (_from("gemm-h100", "h100", "trtllm", "bf16"), lambda o: flops(o) >= 1e9),
    "GEMM below 1 GFLOP, H100": (_from("gemm-h100", "h100", "trtllm", "bf16"), lambda o: flops(o) < 1e9),
    "attention, A100": (_from("attention-a100", "a100", "vllm"), _all),
    "attention, H100": (_from("attention-h100", "h100", "vllm"), _all),
    "all-reduce from 64 KiB": (
        lambda s: s.ops == (Op.ALL_REDUCE,) and s.software == "NCCL",
        lambda o: o.bytes >= 2**16,
    ),
    "never measured: H200 GEMM": (lambda s: s.card == "h200" and s.ops == (Op.GEMM,), _all),
    "never measured: H200 attention": (lambda s: s.card == "h200" and s.ops != (Op.GEMM,), _all),
    "never measured: V100 GEMM": (lambda s: s.card == "v100" and s.dtype == "fp16", lambda o: flops(o) >= 1e9),
}


def main() -> int:
    """Measure, print, write."""
    rows = [row for source in SOURCES for row in judged(source)]
    models = list(whole_models())
    asked = headline(models)
    fields, bars = trained()
    families, gpus, runs = list(withheld(fields, bars)), list(other_gpus(fields)), gpu_runs.left_out()
    timing = speed()
    print_rows([r for r in rows if not r["unfitted"]], "GPUs that constants were fitted on")
    print_rows([r for r in rows if r["unfitted"]], "GPUs that nothing was fitted on (asked: 20 %)")
    print_models(models)
    print(f"\n{'unseen rows, also those of another laboratory':52s}{'asked':>5s} {HEAD} {'roofline':>9s}")
    for line in asked:
        verdict = "" if line["error"]["median"] <= line["asked"] else " MISSED"
        floor = f"{line['roofline']['median']:9.0%}" if line["roofline"] else f"{'–':>9s}"
        print(f"{line['name']:52s}{line['asked']:5.0%} {cells(line['error'])} {floor}{verdict}")
    print_withheld(families)
    print_gpus(gpus)
    gpu_runs.print_runs(runs)
    print(f"\n100,000 rows as a process: {timing['process_s']:.2f} s, {timing['cpu_s']:.2f} s of processor")
    print(f"one row: {timing['one_row_s']:.2f} s; Python with NumPy and Numba alone: {timing['python_s']:.2f} s")
    path = HERE / "results" / "gpu_accuracy.json"
    result = {"machine": machine(), "asked": asked, "rows": rows, "models": models}
    result |= {"families": families, "gpus_left_out": gpus, "models_left_out": runs, "speed": timing}
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {path.relative_to(HERE.parent)}")
    return 0


HEAD = f"{'rows':>6s} {'bias':>6s} {'median':>6s} {'q90':>6s}"


def print_rows(rows: list[dict[str, Any]], title: str) -> None:
    print(f"\n{title}\n{'':35s}{'unseen families':>27s}  {'mechanism alone':>26s} {'labs':>5s}")
    print(f"{'':35s}{HEAD}  {HEAD} {'apart':>5s}")
    last = ()
    for row in rows:
        if (row["gpu"], row["operation"]) != last:
            last = (row["gpu"], row["operation"])
            print(f"{row['gpu']} {row['operation']}")
        label = f"  {row['software']} {row['dtype']}".rstrip()[:20]
        noise = f"{row['laboratories']:5.0%}" if row["laboratories"] else "    –"
        print(f"{label:20s} {row['band']:14s}{cells(row['unseen'])}  {cells(row['mechanism'])} {noise}")


def cells(found: dict[str, Any] | None) -> str:
    if found is None:
        return f"{'–':>6s} {'–':>6s} {'–':>6s} {'–':>6s}"
    return f"{found['rows']:6d} {found['bias']:+6.0%} {found['median']:6.1%} {found['q90']:6.1%}"


def print_models(models: list[dict[str, Any]]) -> None:
    print(f"\n{'whole models':64s}{HEAD}")
    last = ""
    for row in models:
        if row["source"] != last:
            last = row["source"]
            print(f"{last} {NOTES[last]}")
        seen = "" if row["unseen"] else ", fitted to"
        gap = f"; {row['host_us_per_kernel']:.0f} us a kernel" if "host_us_per_kernel" in row else ""
        print(f"  {row['software'] + ': ' + row['name'] + seen + gap:62s}{cells(row['error'])}")


NOTES = {
    "LLM-Inference-Bench": "(A100 40 GB; batch from prompts to last token; stacks fitted to llama2-7b)",
    "H100 servers, token": "(no stack; the other requests' prompts come between)",
    "Splitwise": "(kernels alone: the software of 2023 launches each, and the GPU waits)",
}

if __name__ == "__main__":
    sys.exit(main())
