"""What every source of measured rows is read, thinned, checked and written by."""

import csv
import gzip
import shutil
from collections import defaultdict
from statistics import median

import numpy as np

from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.operations import COLUMNS
from siliconloom.baselines.roofline import Limits
from siliconloom.baselines.tables import Dropped, Provenance, build, write_table
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
