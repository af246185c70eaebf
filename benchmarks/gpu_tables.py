"""Curates the measured tables in baselines/data from a folder of public measurements.

    python -m benchmarks.gpu_tables FOLDER [--output DIR]

FOLDER holds one sub-folder for each source, with its LICENSE and its files as CSV. Nothing else in the project reads
it: what comes out is committed. Same input, same bytes.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from benchmarks.gpu_aiconfigurator import (
    aiconfigurator_attention,
    aiconfigurator_collectives,
    aiconfigurator_gemm,
    aiconfigurator_serving,
)
from benchmarks.gpu_curator import DIGITS, MODELS, Curator, merged, read, thin
from siliconloom.baselines.tables import DATA, Dropped, Method

VIDUR = {"source": "github.com/microsoft/vidur", "commit": "7d47513363ec447a741ac5e47241580b47724fbf", "licence": "MIT"}


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
