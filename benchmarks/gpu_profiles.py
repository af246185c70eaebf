"""Curates operator profiles, and a served run, in baselines/data from a folder of public measurements.

    python -m benchmarks.gpu_profiles FOLDER [--output DIR]

FOLDER is that of `gpu_tables`, with ``llmservingsim`` in it. What comes out is committed. Same input, same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import shutil
from pathlib import Path

import yaml

from siliconloom.arch.files import write_file
from siliconloom.baselines.profile_tables import PROFILES
from siliconloom.baselines.tables import DATA

DIGITS = 4
SOURCE = "github.com/casys-kaist/LLMServingSim"
COMMIT = "5daddb21a545658d5150b535712d0494584b5278"
MODELS = {
    "llama3-8b": (
        "Llama-3.1-8B",
        {"qkv_proj": (6144, 4096), "o_proj": (4096, 4096), "gate_up_proj": (28672, 4096), "down_proj": (4096, 14336)},
        (128256, 4096),
        (32, 8, 128),
    ),
    "qwen3-32b": (
        "Qwen3-32B",
        {"qkv_proj": (10240, 5120), "o_proj": (5120, 8192), "gate_up_proj": (51200, 5120), "down_proj": (5120, 25600)},
        (151936, 5120),
        (64, 8, 128),
    ),
}
"""The library's models: the source's name, products (columns, sums), head, and heads, key-value heads, head size."""
SUMS_CUT = ("o_proj", "down_proj")
"""Products whose sums are cut over GPUs; of the others it is the columns."""


def described(model: str, tensor: int) -> dict[str, object]:
    """The text of ``profile.yaml``."""
    _, products, head, (heads, kv_heads, size) = MODELS[model]
    cut = {
        name: [n, k // tensor] if name in SUMS_CUT else [n // tensor, k]
        for name, (n, k) in {**products, "lm_head": head}.items()
    }
    of = "alone" if tensor == 1 else f"one of {tensor}"
    return {
        "kind": "operator_profile",
        "name": f"rtx-pro-6000-{model}-tp{tensor}",
        "title": f"Operators of {model} in vLLM on an RTX PRO 6000 Blackwell, {of}",
        "gpu": "rtx-pro-6000",
        "tensor": tensor,
        "precision": "bf16",
        "software": "vllm 0.19.0",
        "products": cut,
        "heads": heads // tensor,
        "kv_heads": kv_heads // tensor,
        "head_dim": size,
        "source": f"{SOURCE}: profiles of RTXPRO6000",
        "commit": COMMIT,
        "licence": "MIT",
        "licence_file": "LICENSES/llmservingsim.txt",
        "changes": [f"times to {DIGITS} significant digits"],
        "caveats": ["messages between GPUs are not among them"],
    }


def rounded(text: str) -> str:
    """CSV text whose last column has few digits."""
    lines = text.splitlines()
    found = [lines[0]]
    for line in lines[1:]:
        keys, _, time = line.rpartition(",")
        found.append(f"{keys},{float(f'{float(time):.{DIGITS}g}'):g}")
    return "\n".join(found) + "\n"


def packed(text: str) -> bytes:
    """Gzipped text, the same bytes every time."""
    raw = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(text.encode())
    return raw.getvalue()


RUN = "e2e_vllm/RTXPRO6000_Llama-3.1-8B"
TIMES = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


def served_run(source: Path, output: Path) -> None:
    """Write a measured run of a server: a trace of requests with the times that they had."""
    rows = [json.loads(line) for line in (source / RUN / "requests.jsonl").read_text().splitlines()]
    lines = [",".join(("input_toks", "output_toks", *TIMES))]
    lines += [",".join((f"{r['input_toks']},{r['output_toks']}", *(f"{r[t]:.6f}" for t in TIMES))) for r in rows]
    name = "rtx-pro-6000-llama3-8b"
    provenance = {
        "title": "300 requests of ShareGPT at 10 a second, Llama-3.1-8B in bf16 on one RTX PRO 6000, by vLLM 0.19.0",
        "source": f"{SOURCE}: {RUN}",
        "commit": COMMIT,
        "licence": "MIT",
        "licence_file": "LICENSES/llmservingsim.txt",
        "settings": {"max_num_seqs": 128, "max_num_batched_tokens": 2048, "tensor_parallel_size": 1},
        "details": "seconds; arrival_time is the client's clock, the others are the server's",
        "changes": ["JSON lines to CSV", "microseconds"],
    }
    output.mkdir(parents=True, exist_ok=True)
    write_file(output / f"{name}.csv.gz", packed("\n".join(lines) + "\n"))
    write_file(output / f"{name}.yaml", yaml.safe_dump(provenance, sort_keys=False, width=110).encode())


def main(arguments: list[str] | None = None) -> None:
    """Write all profiles and the run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, default=PROFILES)
    options = parser.parse_args(arguments)
    source = options.folder / "llmservingsim"
    shutil.copyfile(source / "LICENSE", DATA / "LICENSES" / "llmservingsim.txt")
    served_run(source, DATA / "served")
    for model, (theirs, *_) in MODELS.items():
        for tensor in (1, 2):
            profile = described(model, tensor)
            folder = options.output / str(profile["name"])
            folder.mkdir(parents=True, exist_ok=True)
            text = yaml.safe_dump(profile, sort_keys=False, width=110)
            write_file(folder / "profile.yaml", text.encode())
            size = 0
            for table in ("dense", "per_sequence", "attention"):
                path = source / f"ops_RTXPRO6000_{theirs}_tp{tensor}_{table}.csv.gz"
                raw = packed(rounded(gzip.decompress(path.read_bytes()).decode()))
                write_file(folder / f"{table}.csv.gz", raw)
                size += len(raw)
            print(f"{profile['name']:32} {size:9,} bytes")


if __name__ == "__main__":
    main()
