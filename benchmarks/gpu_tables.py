"""Curates the measured tables in baselines/data from a folder of public measurements.

    python -m benchmarks.gpu_tables FOLDER [--output DIR]

FOLDER holds one sub-folder for each source, with its LICENSE and its files as CSV. Nothing else in the project reads
it: what comes out is committed. Same input, same bytes.
"""

import argparse
import csv
import gzip
import shutil
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

import numpy as np

from siliconloom.baselines.operations import COLUMNS, make_operations
from siliconloom.baselines.roofline import Limits
from siliconloom.baselines.tables import DATA, Dropped, Method, Provenance, build, write_table
from siliconloom.baselines.validation import possible, validate

DIGITS = 4
"""Significant digits that are kept: 0.05 %, where the best laboratories differ by 1 %."""

LIMITS = {
    "a100": Limits(
        flops={"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12, "int8": 624e12},
        memory_bandwidth=2.039e12,
        l2_bytes=40 * 2**20,
        link_bandwidth=300e9,
    ),
    "h100": Limits(
        flops={
            "fp32": 67e12,
            "tf32": 494.7e12,
            "bf16": 989.4e12,
            "fp16": 989.4e12,
            "fp8": 1978.9e12,
            "int8": 1978.9e12,
        },
        memory_bandwidth=3.35e12,
        l2_bytes=50 * 2**20,
        link_bandwidth=450e9,
    ),
    "h200": Limits(
        flops={
            "fp32": 67e12,
            "tf32": 494.7e12,
            "bf16": 989.4e12,
            "fp16": 989.4e12,
            "fp8": 1978.9e12,
            "int8": 1978.9e12,
        },
        memory_bandwidth=4.8e12,
        l2_bytes=50 * 2**20,
        link_bandwidth=450e9,
    ),
    "v100": Limits(
        flops={"fp32": 15.7e12, "fp16": 125e12}, memory_bandwidth=900e9, l2_bytes=6 * 2**20, link_bandwidth=150e9
    ),
    "v100-pcie-32gb": Limits(flops={"fp32": 14e12, "fp16": 112e12}, memory_bandwidth=900e9, l2_bytes=6 * 2**20),
    "t4": Limits(flops={"fp32": 8.1e12, "fp16": 65e12}, memory_bandwidth=320e9, l2_bytes=4 * 2**20),
    "p100-pcie-16gb": Limits(flops={"fp32": 9.3e12, "fp16": 18.7e12}, memory_bandwidth=732e9, l2_bytes=4 * 2**20),
    "p4": Limits(flops={"fp32": 5.5e12}, memory_bandwidth=192e9, l2_bytes=2 * 2**20),
    "a100-pcie-40gb": Limits(
        flops={"fp32": 19.5e12, "bf16": 312e12, "fp16": 312e12},
        memory_bandwidth=1.555e12,
        l2_bytes=40 * 2**20,
        link_bandwidth=300e9,
    ),
    "a100-pcie-80gb": Limits(
        flops={"fp32": 19.5e12, "bf16": 312e12, "fp16": 312e12},
        memory_bandwidth=1.935e12,
        l2_bytes=40 * 2**20,
        link_bandwidth=300e9,
    ),
}
LIMITS["a100-80gb"] = LIMITS["a100"]
"""Datasheet figures (NVIDIA), to refuse rows above them."""

AIC = "github.com/ai-dynamo/aiconfigurator"
AIC_COMMIT = "095f58a51c4ca8e61b66ec108d86f223f8d559ce"
AIC_GPUS = {"A100-SXM4-80GB": "a100", "H100-SXM-80GB": "h100", "H200-SXM-141GB": "h200"}
AIC_METHOD = (
    "CUDA-graph replay, 3 warm-ups, 6 replays of 1 to 6 copies between two CUDA events: a few ms, clocks near their "
    "highest. The activations are reused (warm in L2); weights rotate over copies."
)
AIC_CHANGES = ("milliseconds to microseconds", "dtype names")
VIDUR = {"source": "github.com/microsoft/vidur", "commit": "7d47513363ec447a741ac5e47241580b47724fbf", "licence": "MIT"}
MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama2-7b",
    "meta-llama/Llama-2-70b-hf": "llama2-70b",
    "meta-llama/Meta-Llama-3-8B": "llama3-8b",
    "meta-llama/Meta-Llama-3-70B": "llama3-70b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "Qwen/Qwen2-7B": "qwen2-7b",
    "Deci/DeciLM-7B": "decilm-7b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama3.1-70b",
    "llama2-70b": "llama2-70b",
    "bloom-176b": "bloom-176b",
}
"""Names of models as our library has them, where it has them. Llama 3.1 has Llama 3's shapes."""


def read(path):
    """Rows of a CSV file as mappings."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        return list(csv.DictReader(file))


def thin(rows, family, order, stride):
    """Every ``stride``-th row of each family in ``order``, each family beginning one later than the one before."""
    families = defaultdict(list)
    for row in rows:
        families[family(row)].append(row)
    kept = []
    for number, key in enumerate(sorted(families)):
        members = sorted(families[key], key=order)
        kept += [row for index, row in enumerate(members) if (index + number) % stride == 0]
    return kept


def merged(rows, key):
    """One row for each key, with the median of its times."""
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return [{**members[0], "time_us": median(r["time_us"] for r in members)} for members in groups.values()]


def rounded(value):
    """A number with `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")


def shape(row):
    return tuple((name, row.get(name) or 0) for name in COLUMNS if name != "dtype")


class Curator:
    """Writes tables and remembers what was written."""

    def __init__(self, folder, output):
        self.folder, self.output, self.written = folder, output, []

    def licence(self, source):
        (self.output / "LICENSES").mkdir(parents=True, exist_ok=True)
        name = f"LICENSES/{source}.txt"
        shutil.copyfile(self.folder / source / "LICENSE", self.output / name)
        return name

    def write(self, name, rows, dropped=(), **described):
        """Check, sort and write one table; rows are mappings of column to value."""
        rows = sorted(
            rows,
            key=lambda r: (
                r["gpu"],
                r.get("software", ""),
                r["op"],
                r.get("dtype", ""),
                r.get("model", ""),
                shape(r),
                r.get("input_tokens", 0),
                r.get("output_tokens", 0),
            ),
        )
        operations = make_operations([{k: v for k, v in row.items() if k in COLUMNS} for row in rows])
        times = np.array([rounded(row["time_us"]) for row in rows])
        gpus = np.array([row["gpu"] for row in rows])
        keep = np.ones(len(rows), bool)
        for gpu in set(gpus):
            if gpu in LIMITS:
                keep &= (gpus != gpu) | possible(operations, times / 1e6, LIMITS[gpu])
        if broken := int((~keep).sum()):
            dropped = (*dropped, Dropped(what="above the roofline of the datasheet", rows=broken, why="impossible"))
        chosen = np.flatnonzero(keep).tolist()
        rows = [rows[i] for i in chosen]

        def column(key, default):
            return [row.get(key, default) for row in rows]

        provenance = Provenance(
            gpus=tuple(sorted({row["gpu"] for row in rows})),
            dropped=tuple(dropped),
            software=tuple(sorted({row.get("software", "") for row in rows} - {""})),
            **described,
        )
        table = build(
            name,
            provenance,
            operations.select(chosen),
            gpu=column("gpu", ""),
            time_us=times[chosen],
            software=column("software", ""),
            power_w=column("power_w", np.nan),
            model=column("model", ""),
            input_tokens=column("input_tokens", 0),
            output_tokens=column("output_tokens", 0),
        )
        validate(table, LIMITS)
        path = self.output / f"{name}.csv.gz"
        write_table(table, path)
        self.written.append((name, len(table), path.stat().st_size, broken))


def aiconfigurator_gemm(curator):
    licence = curator.licence("aiconfigurator")
    strides = {
        ("h100", "trtllm", "bf16"): 1,
        ("h100", "trtllm", "fp8"): 1,
        ("h100", "sglang", "bf16"): 2,
        ("h100", "sglang", "fp8"): 2,
        ("h100", "vllm", "bf16"): 6,
        ("a100", "trtllm", "bf16"): 1,
        ("a100", "sglang", "bf16"): 2,
        ("a100", "vllm", "bf16"): 3,
        ("h200", "vllm", "bf16"): 1,
    }
    for long, gpu in AIC_GPUS.items():
        read_rows = read(curator.folder / "aiconfigurator" / f"gemm_{long}_shared.csv.gz")
        kinds, tables = Counter(), defaultdict(list)
        for row in read_rows:
            framework, dtype = row["framework"], row["dtype"].replace("bfloat16", "bf16")
            kinds[framework, dtype] += 1
            if (gpu, framework.partition("/")[0], dtype) not in strides:
                continue
            made = {
                "op": "gemm",
                "gpu": gpu,
                "m": int(row["m"]),
                "n": int(row["n"]),
                "k": int(row["k"]),
                "dtype": dtype,
                "time_us": float(row["time_us"]),
                "software": framework,
            }
            if row.get("power_w"):
                made["power_w"] = rounded(float(row["power_w"]))
            tables[framework, dtype].append(made)
        kept, dropped = defaultdict(list), defaultdict(list)
        for (framework, dtype), rows in tables.items():
            stride = strides[gpu, framework.partition("/")[0], dtype]
            name = f"aiconfigurator-gemm-{gpu}" + ("-vllm" if framework.startswith("vllm") else "")
            thinned = thin(rows, lambda r: (r["n"], r["k"]), lambda r: r["m"], stride)
            kept[name] += thinned
            if stride > 1:
                why = f"every {stride}. value of m is kept, another one for each n and k, to keep the package small"
                dropped[name].append(Dropped(what=f"{framework} {dtype}", rows=len(rows) - len(thinned), why=why))
        for name, rows in kept.items():
            vllm = name.endswith("vllm")
            blocks = sum(count for (_, dtype), count in kinds.items() if dtype == "fp8_block")
            others = (
                [Dropped(what="fp8_block", rows=blocks, why="block-scaled: another operation than fp8")]
                if blocks and not vllm
                else []
            )
            if gpu == "h100" and vllm:
                others.append(
                    Dropped(what="vllm fp8", rows=kinds["vllm/0.24.0", "fp8"], why="two other laboratories have fp8")
                )
            caveats = []
            if vllm:
                caveats.append(
                    "bf16 weights are uninitialised memory: above 50 GFLOP the burst tables are 4.4 % (H100) and 0.8 % (A100) faster in the median, some up to 15 %, than with random weights"
                )
            if any(r["dtype"] == "fp8" for r in rows):
                caveats.append(
                    "fp8 rows include the dynamic quantisation of the activations, in kernels of its own: TensorRT-LLM needs at least 12 us, SGLang 4.4 us"
                )
            sustained = gpu == "h200"
            if sustained:
                caveats.append("large products run at about 690 of 700 W: about 16 % slower than a short burst")
            curator.write(
                name,
                rows,
                (*dropped[name], *others),
                title=f"Matrix products on one {gpu.upper()}" + (", vLLM" if vllm else ""),
                source=f"{AIC}: aic-core/src/aiconfigurator_core/systems/data/{gpu}_sxm/gemm",
                commit=AIC_COMMIT,
                licence="Apache-2.0",
                licence_file=licence,
                changes=(*AIC_CHANGES, f"times to {DIGITS} significant digits"),
                method=Method.SUSTAINED if sustained else Method.SHORT_BURST,
                details="0.3 to 1 s of launches for each row, with power. Weights rotate over copies."
                if sustained
                else AIC_METHOD,
                caveats=tuple(caveats),
                fit=not vllm or sustained,
            )


def aiconfigurator_attention(curator):
    licence = "LICENSES/aiconfigurator.txt"
    strides = {("h100", "trtllm"): 2}
    for long, gpu in AIC_GPUS.items():
        by_framework = defaultdict(list)
        for row in read(curator.folder / "aiconfigurator" / f"attention_{long}_shared.csv.gz"):
            made = {
                "op": f"attention_{row['phase']}",
                "gpu": gpu,
                "batch": int(row["batch"]),
                "q_len": int(row["q_len"]),
                "kv_len": int(row["kv_len"]),
                "heads": int(row["num_heads"]),
                "kv_heads": int(row["num_kv_heads"]),
                "head_dim": int(row["head_dim"]),
                "dtype": "bf16",
                "time_us": float(row["time_us"]),
                "software": f"{row['framework']} {row['kernel_source']}",
            }
            if row.get("power_w"):
                made["power_w"] = rounded(float(row["power_w"]))
            by_framework[row["framework"]].append(made)
        rows, dropped = [], []
        for framework, found in sorted(by_framework.items()):
            stride = strides.get((gpu, framework.partition("/")[0]), 1)
            kept = thin(
                found,
                lambda r: (r["op"], r["heads"], r["kv_heads"], r["head_dim"]),
                lambda r: (r["batch"], r["kv_len"]),
                stride,
            )
            rows += kept
            if stride > 1:
                why = f"every {stride}. of each family of heads is kept, to keep the package small"
                dropped.append(Dropped(what=framework, rows=len(found) - len(kept), why=why))
        dropped.append(
            Dropped(
                what="TRT-LLM decode 1.0.0, 1.2.0rc5, 1.3.0rc10; prefill vLLM 0.19.0 (H200); decode SGLang 0.5.14 (H100)",
                why="whole tables break the roofline; they are not in the files read here",
            )
        )
        dropped.append(Dropped(what="rows with an fp8 cache", why="not vetted; they are not in the files read here"))
        caveats = {
            "a100": "the two programs differ by 31 % in decode and 14 % in prefill above 100 us (median)",
            "h100": "TensorRT-LLM's prefill (its torch flow) takes 21 % longer than vLLM's (FlashAttention-3) in the median, decode 9 % apart; SGLang and vLLM are 9 % and 3 % apart",
            "h200": "one program only, so there is nothing to compare it with",
        }
        curator.write(
            f"aiconfigurator-attention-{gpu}",
            rows,
            dropped,
            title=f"Attention on one {gpu.upper()}",
            source=f"{AIC}: aic-core/src/aiconfigurator_core/systems/data/{gpu}_sxm/attention",
            commit=AIC_COMMIT,
            licence="Apache-2.0",
            licence_file=licence,
            changes=(*AIC_CHANGES, f"times to {DIGITS} significant digits"),
            method=Method.SUSTAINED if gpu == "h200" else Method.SHORT_BURST,
            details="Prefill: causal, q_len = kv_len; vLLM's rows include writing the cache. Decode: one query token. "
            + ("With power, 0.3 to 1 s of launches for each row." if gpu == "h200" else AIC_METHOD),
            caveats=(caveats[gpu],),
        )


def aiconfigurator_collectives(curator):
    names = {"alltoall": "all_to_all"}
    rows = [
        {
            "op": names.get(row["op"], row["op"]),
            "gpu": AIC_GPUS[row["gpu"]],
            "gpus": int(row["num_gpus"]),
            "bytes": int(row["bytes"]),
            "dtype": row["dtype"],
            "time_us": float(row["time_us"]),
            "software": row["lib"],
        }
        for row in read(curator.folder / "aiconfigurator" / "collectives_shared.csv")
    ]
    curator.write(
        "aiconfigurator-collectives",
        rows,
        title="Collectives within one node of A100 and H100",
        source=f"{AIC}: aic-core/src/aiconfigurator_core/systems/data/*/comm",
        commit=AIC_COMMIT,
        licence="Apache-2.0",
        licence_file="LICENSES/aiconfigurator.txt",
        method=Method.SHORT_BURST,
        changes=(*AIC_CHANGES, "message sizes from elements to bytes", f"times to {DIGITS} significant digits"),
        details="nccl-tests, out of place, -w 40 -n 60 or 100, one thread for each GPU; the serving frameworks' own all-reduce kernels apart, in a CUDA graph or eagerly.",
        caveats=(
            "another laboratory needs 1.4 % (H100) and 17 % (A100) longer from 16 MiB on, and 76 % longer below 1 MiB",
        ),
    )


def aiconfigurator_serving(curator):
    rows, unknown = [], 0
    for row in read(curator.folder / "aiconfigurator" / "e2e_serving_shared.csv"):
        assert row["mode"] == "agg"
        version = row["backend_version"] or "(version not recorded)"
        unknown += not row["precision"]
        common = {
            "gpu": row["system"].removesuffix("_sxm"),
            "model": MODELS[row["model_path"]],
            "batch": int(float(row["concurrency"] or row["batch_size"])),
            "gpus": int(float(row["tp_size"])) * int(float(row["pp_size"])),
            "dtype": row["precision"] or "bf16",
            "input_tokens": int(row["isl"]),
            "output_tokens": int(row["osl"]),
            "software": f"{row['backend']} {version}",
        }
        rows.append({**common, "op": "serve_ttft", "time_us": float(row["silicon_ttft_ms"]) * 1e3})
        rows.append({**common, "op": "serve_tpot", "time_us": float(row["silicon_tpot_ms"]) * 1e3})
    curator.write(
        "aiconfigurator-serving-h100",
        rows,
        title="Serving whole models on 1 to 8 H100, tensor parallel",
        source=f"{AIC}: aic-core/src/aiconfigurator_core/systems/silicon_sample.csv",
        commit=AIC_COMMIT,
        licence="Apache-2.0",
        licence_file="LICENSES/aiconfigurator.txt",
        method=Method.SERVING,
        changes=(
            "milliseconds to microseconds",
            f"times to {DIGITS} significant digits",
            "batch is the number of clients, each with one request in flight",
        ),
        details="Mean time to first token and per output token of a running server; the first includes queueing. Parallelism inside a mixture of experts is not kept apart.",
        caveats=(f"the precision of Llama-3.1-8B is not recorded ({unknown} runs); written here as bf16",),
        fit=False,
    )


def vidur(curator):
    licence = curator.licence("vidur")
    resolution = 20.0
    why = f"the source's clock steps by 0.5 to 1 us: 5 % below {resolution:g} us"
    common = {**VIDUR, "licence_file": licence, "method": Method.PROFILER}
    found = [
        {
            "op": "gemm",
            "gpu": "a100-80gb",
            "m": int(r["m"]),
            "n": int(r["n"]),
            "k": int(r["k"]),
            "dtype": "fp16",
            "time_us": float(r["time_us"]),
        }
        for r in read(curator.folder / "vidur" / "gemm_A100-80GB.csv.gz")
    ]
    once = merged(found, lambda r: (r["m"], r["n"], r["k"]))
    timed = [r for r in once if r["time_us"] >= resolution]
    kept = thin(timed, lambda r: (r["n"], r["k"]), lambda r: r["m"], 4)
    form = "whether the card is an SXM or a PCIe module is not recorded; its memory is 6 % slower and its large products 14 % slower than those of the SXM cards of another laboratory, as a PCIe card's would be"
    curator.write(
        "vidur-gemm-a100",
        kept,
        (
            Dropped(
                what="repeats of one product under several models",
                rows=len(found) - len(once),
                why="their median is kept; they spread by 1 %, at most by 25 %",
            ),
            Dropped(what="short times", rows=len(once) - len(timed), why=why),
            Dropped(
                what="values of m",
                rows=len(timed) - len(kept),
                why="every 4. is kept, another one for each n and k, to keep the package small",
            ),
        ),
        title="Matrix products of language models on one A100 80 GB",
        details="fp16, events around each call in a running model, median; tensor parallelism emulated by smaller shapes. Versions of software are not recorded.",
        caveats=(form,),
        **common,
    )
    kinds = {
        "add": "add",
        "attn_rope": "rope",
        "emb": "embedding",
        "input_layernorm": "rmsnorm",
        "mlp_act": "silu_mul",
        "post_attention_layernorm": "rmsnorm",
    }
    source = read(curator.folder / "vidur" / "elementwise_A100-80GB.csv.gz")
    rows, unsplit, partial = [], 0, 0
    for r in source:
        split, phi = int(r["tp"]), r["model"].startswith("microsoft/phi")
        width, heads, kv = int(r["n_embd"]), int(r["n_head"]), int(r["n_kv_head"])
        op = kinds[r["op"]]
        if split > 1 and op not in ("silu_mul", "rope"):
            unsplit += 1
            continue
        if phi and op == "rope":
            partial += 1
            continue
        op = {"rmsnorm": "layernorm", "silu_mul": "gelu"}.get(op, op) if phi else op
        columns = {
            "silu_mul": int(r["n_ff"]) // split,
            "gelu": int(r["n_ff"]) // split,
            "rope": (heads + kv) * (width // heads) // split,
        }
        rows.append(
            {
                "op": op,
                "gpu": "a100-80gb",
                "m": int(r["tokens"]),
                "n": columns.get(op, width),
                "dtype": "fp16",
                "time_us": float(r["time_us"]),
            }
        )
    once = merged(rows, lambda r: (r["op"], r["m"], r["n"]))
    timed = [r for r in once if r["time_us"] >= resolution]
    kept = thin(timed, lambda r: (r["op"], r["n"]), lambda r: r["m"], 3)
    curator.write(
        "vidur-elementwise-a100",
        kept,
        (
            Dropped(
                what="tensor-parallel runs of operations that it does not split",
                rows=unsplit,
                why="the same operation again",
            ),
            Dropped(what="rope of phi-2", rows=partial, why="it turns a part of each head only"),
            Dropped(what="repeats", rows=len(rows) - len(once), why="their median is kept"),
            Dropped(what="short times", rows=len(once) - len(timed), why=why),
            Dropped(
                what="values of m",
                rows=len(timed) - len(kept),
                why="every 3. is kept, another one for each width, to keep the package small",
            ),
        ),
        title="Norms, activations, rotary embedding, residual, embedding on one A100 80 GB",
        details="fp16; rmsnorm, and layernorm and gelu of phi-2; silu_mul has n columns of its result and reads twice that; rope turns (heads + kv_heads) x head_dim columns in place.",
        caveats=(
            form,
            "norms reach half of the memory bandwidth and embeddings a quarter: the framework's kernels, not the card",
        ),
        **common,
    )
    network = read(curator.folder / "vidur" / "network_a100.csv")
    rows = []
    for r in network:
        together = r["num_gpus"] == r["gpus_per_node"]
        if r["op"] != "all_reduce" or not together or (r["node"] == "a100_pairwise_nvlink" and r["num_gpus"] != "2"):
            continue
        gpu = "a100" if r["node"] == "a100_dgx" else "a100-pcie-80gb"
        rows.append(
            {
                "op": "all_reduce",
                "gpu": gpu,
                "gpus": int(r["num_gpus"]),
                "bytes": int(r["bytes"]),
                "dtype": "fp16",
                "time_us": float(r["time_us"]),
            }
        )
    once = merged(rows, lambda r: (r["gpu"], r["gpus"], r["bytes"]))
    kept = thin(once, lambda r: (r["gpu"], r["gpus"]), lambda r: r["bytes"], 8)
    curator.write(
        "vidur-allreduce-a100",
        kept,
        (
            Dropped(what="send_recv", rows=sum(r["op"] == "send_recv" for r in network), why="no operation of ours"),
            Dropped(
                what="all_reduce between nodes, or over PCIe",
                rows=sum(r["op"] == "all_reduce" for r in network) - len(rows),
                why="the rows do not say what the network is",
            ),
            Dropped(what="sizes", rows=len(rows) - len(kept), why="every 8. is kept"),
        ),
        title="All-reduce within one node of A100",
        details="Called from a running model, median; the launch is part of the time. a100: DGX; a100-pcie-80gb: two PCIe cards with an NVLink bridge.",
        caveats=("the clock steps by 0.5 to 1 us",),
        **common,
    )


def llmcompass(curator):
    licence = curator.licence("llmcompass")
    rows = []

    def lines(name):
        return [
            [cell.strip() for cell in line.split(",")]
            for line in (curator.folder / "llmcompass" / name).read_text().splitlines()
            if line.strip()
        ]

    for m, n, k, time, _ in lines("matmul_A100.csv"):
        rows.append(
            {
                "op": "gemm",
                "m": int(m),
                "n": int(n),
                "k": int(k),
                "dtype": "bf16",
                "time_us": float(time.removesuffix("ms")) * 1e3,
            }
        )
    for name in ("softmax", "layernorm"):
        for m, n, rate in lines(f"{name}_A100.csv"):
            rows.append(
                {"op": name, "m": int(m), "n": int(n), "dtype": "fp16", "time_us": int(m) * int(n) / float(rate) / 1e3}
            )
    for n, rate in lines("gelu_A100.csv"):
        rows.append({"op": "gelu", "m": 1, "n": int(n), "dtype": "fp16", "time_us": int(n) / float(rate) / 1e3})
    rows = merged(
        [{**row, "gpu": "a100", "software": "torch 2.0.0"} for row in rows],
        lambda r: (r["op"], r["m"], r["n"], r.get("k")),
    )
    curator.write(
        "llmcompass-a100",
        rows,
        title="Products and element-wise operations on one A100 (LLMCompass, figure 5)",
        source="github.com/PrincetonUniversity/LLMCompass: ae/figure5",
        commit="2e015fd2ee750e6cad8d7152df52551e5b41ef20",
        licence="BSD-3-Clause",
        licence_file=licence,
        method=Method.WALL_CLOCK,
        details="time.time() around one operation and a synchronisation, median: 10 to 50 us of launch are part of every row.",
        changes=("element-wise rates to times", "a product given twice: the median"),
        fit=False,
    )


def neusight(curator):
    licence = curator.licence("neusight")
    gpus = {
        "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
        "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
        "Tesla T4": "t4",
        "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
        "Tesla P4": "p4",
    }
    ops = {"ln": "layernorm", "softmax": "softmax", "add": "add", "gelu": "gelu"}
    rows, other, once = [], Counter(), 0
    for name in ("ln", "softmax", "elem"):
        for r in read(curator.folder / "neusight" / f"train_{name}.csv.gz"):
            if r["OPName"] not in ops:
                other[r["OPName"]] += 1
                continue
            rows.append(
                {
                    "op": ops[r["OPName"]],
                    "gpu": gpus[r["Device"]],
                    "m": int(r["B"]),
                    "n": int(r["H"]),
                    "dtype": "fp32",
                    "time_us": float(r["Latency"]) * 1e3,
                    "software": "torch 2.1.0",
                }
            )
    once = merged(rows, lambda r: (r["op"], r["gpu"], r["m"], r["n"]))
    curator.write(
        "neusight-elementwise",
        once,
        (
            Dropped(
                what=", ".join(sorted(other)),
                rows=sum(other.values()),
                why="no operations of ours, and all of them as fast as add or gelu",
            ),
            Dropped(what="repeats", rows=len(rows) - len(once), why="their median is kept"),
            Dropped(what="products", why="fp32 without TF32: no tensor core runs"),
        ),
        title="Element-wise operations in fp32 on five cards",
        source="github.com/sitar-lab/NeuSight",
        commit="6945927d9afcca2b9daf021f8395e53edc5b4eef",
        licence="MIT",
        licence_file=licence,
        method=Method.UNKNOWN,
        details="fp32, torch 2.1.0, CUDA 12.1; times from 35 us on, the launch is likely part of them.",
        changes=("milliseconds to microseconds", f"times to {DIGITS} significant digits"),
    )


def deepbench(curator):
    licence = curator.licence("deepbench")
    rows, dropped = [], Counter()
    dtypes = {"Results - FP16 ip, Mixed math": "fp16", "Results FP32": "fp32"}
    for r in read(curator.folder / "deepbench" / "gemm.csv"):
        if r["sheet"] not in dtypes or r["gpu"] not in ("V100", "T4"):
            dropped["P100"] += 1
            continue
        layout = r["transA"] + r["transB"]
        rows.append(
            {
                "op": "gemm",
                "gpu": r["gpu"].lower(),
                "m": int(r["n"]),
                "n": int(r["m"]),
                "k": int(r["k"]),
                "dtype": dtypes[r["sheet"]],
                "time_us": float(r["time_us"]),
                "software": f"cuBLAS {layout}",
            }
        )
    curator.write(
        "deepbench-gemm",
        rows,
        (Dropped(what="P100", rows=dropped["P100"], why="no tensor cores, and its fp16 sheet computes in fp32"),),
        title="Matrix products on V100 and T4 (DeepBench, training)",
        source="github.com/baidu-research/DeepBench: results/train",
        commit="da81ba7820739e2e506dc27f382d15be5479f98f",
        licence="Apache-2.0",
        licence_file=licence,
        method=Method.WALL_CLOCK,
        details="cuBLAS with fp16 inputs (tensor cores) or fp32, whole microseconds; form of the V100 is not recorded, its best product (112.3 TFLOP/s) is above a PCIe card's peak.",
        changes=(
            "cuBLAS counts columns first: its m is our n, its n our m",
            "software names the layout of the operands: TN is a layer's weights as frameworks keep them",
        ),
    )


def splitwise(curator):
    licence = curator.licence("splitwise")
    gpus = {"a100-80gb": "a100", "h100-80gb": "h100"}
    rows, derived = [], 0
    for r in read(curator.folder / "splitwise" / "perf_model.csv"):
        if r["derived"] == "True":
            derived += 1
            continue
        common = {
            "gpu": gpus[r["hardware"]],
            "model": MODELS[r["model"]],
            "batch": int(r["batch_size"]),
            "dtype": "fp16",
            "gpus": int(r["tensor_parallel"]),
            "input_tokens": int(r["prompt_size"]),
            "output_tokens": int(r["token_size"]),
        }
        rows.append({**common, "op": "decode", "time_us": float(r["token_time"]) * 1e3})
        rows.append({**common, "op": "prefill", "output_tokens": 0, "time_us": float(r["prompt_time"]) * 1e3})
    once = merged(
        rows, lambda r: (r["op"], r["gpu"], r["model"], r["batch"], r["gpus"], r["input_tokens"], r["output_tokens"])
    )
    curator.write(
        "splitwise-models",
        once,
        (
            Dropped(
                what="h100-80gb-pcap",
                rows=derived,
                why="derived, not measured: prompts exactly 1.30 times the H100's, tokens equal",
            ),
            Dropped(
                what="repeats",
                rows=len(rows) - len(once),
                why="median of five runs, and of the prompts of all output lengths",
            ),
            Dropped(
                what="whole-request times and power",
                why="the times are far from prompt + tokens x token time in some runs; power is a mean over both phases",
            ),
        ),
        title="Prefill and decode of Llama-2-70B and BLOOM-176B on DGX-A100 and DGX-H100",
        source="github.com/Mutinifni/splitwise-sim: data/perf_model.csv",
        commit="8f99e7dc9b407f4ce2488d03dd44c0b8b946dab0",
        licence="MIT",
        licence_file=licence,
        method=Method.SERVING,
        details="decode: mean time of one token of every sequence; prefill: time to the first token of the batch.",
        changes=("milliseconds to microseconds", f"times to {DIGITS} significant digits"),
        caveats=(
            "decode is bound by the software of 2023: Llama-2-70B on 8 H100 takes 29.8 ms a token, where its weights alone need 5",
        ),
        fit=False,
    )


def llm_inference_bench(curator):
    licence = curator.licence("llm_inference_bench")
    rows, llama = [], 0
    for r in read(curator.folder / "llm_inference_bench" / "results_A100_shared.csv"):
        if r["framework"] == "llama.cpp":
            llama += 1
            continue
        rows.append(
            {
                "op": "serve",
                "gpu": "a100-40gb",
                "model": MODELS[r["model"]],
                "batch": int(r["batch"]),
                "gpus": int(r["num_devices"]),
                "dtype": "fp16",
                "input_tokens": int(r["in_out_len"]),
                "output_tokens": int(r["in_out_len"]),
                "time_us": float(r["latency_s"]) * 1e6,
                "software": r["framework"],
            }
        )
    once = merged(rows, lambda r: (r["software"], r["model"], r["batch"], r["gpus"], r["input_tokens"]))
    curator.write(
        "llm-inference-bench-a100",
        once,
        (
            Dropped(
                what="llama.cpp",
                rows=llama,
                why="from batch 2 on its latencies are not those of the batch (they fall as it grows), and it splits layers, not tensors",
            ),
            Dropped(what="repeats", rows=len(rows) - len(once), why="their median is kept"),
        ),
        title="Whole models on 1 to 4 A100, a batch from prompts to last tokens",
        source="github.com/argonne-lcf/LLM-Inference-Bench",
        commit="4211f5d4e9bc0145ed541b6d372d5d8223b44235",
        licence="BSD-3-Clause",
        licence_file=licence,
        method=Method.SERVING,
        details="16 bits, tensor parallel; output tokens as many as input tokens. Where the batch does not fit, sequences wait: their time is part of the row.",
        changes=("seconds to microseconds", f"times to {DIGITS} significant digits"),
        caveats=(
            "the size of the card's memory is not recorded; 40 GB by the paper",
            "versions of software are not recorded",
        ),
        fit=False,
    )


SOURCES = (
    aiconfigurator_gemm,
    aiconfigurator_attention,
    aiconfigurator_collectives,
    aiconfigurator_serving,
    vidur,
    llmcompass,
    neusight,
    deepbench,
    splitwise,
    llm_inference_bench,
)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, default=DATA)
    options = parser.parse_args(arguments)
    if not (options.folder / "aiconfigurator").is_dir():
        sys.exit(f"{options.folder}: no folder of measurements")
    curator = Curator(options.folder, options.output)
    for source in SOURCES:
        source(curator)
    for name, rows, size, broken in curator.written:
        print(f"{name:32} {rows:7,} rows {size:9,} bytes, {broken} above the roofline")
    print(f"{'':32} {sum(w[1] for w in curator.written):7,} rows {sum(w[2] for w in curator.written):9,} bytes")


if __name__ == "__main__":
    main()
