"""AIConfigurator's measurements of products, attention, collectives and serving."""

from collections import Counter, defaultdict

from benchmarks.gpu_curator import DIGITS, MODELS, read, rounded, thin
from siliconloom.baselines.tables import Dropped, Method

AIC = "github.com/ai-dynamo/aiconfigurator"
AIC_COMMIT = "095f58a51c4ca8e61b66ec108d86f223f8d559ce"
AIC_GPUS = {"A100-SXM4-80GB": "a100", "H100-SXM-80GB": "h100", "H200-SXM-141GB": "h200"}
AIC_METHOD = (
    "CUDA-graph replay, 3 warm-ups, 6 replays of 1 to 6 copies between two CUDA events: a few ms, clocks near their "
    "highest. The activations are reused (warm in L2); weights rotate over copies."
)
AIC_CHANGES = ("milliseconds to microseconds", "dtype names")


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
