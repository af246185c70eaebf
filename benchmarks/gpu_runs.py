"""Bars of whole models, from measured runs of them: what runs are off beyond their kernels.

    python -m benchmarks.gpu_runs            prints how many runs of a model that was left out lie inside the bars
    python -m benchmarks.gpu_runs --write    and writes the bars into baselines/data/residuals/bars.json

Every program's runs of a model on so many GPUs of one kind count as much. The runs are LLM-Inference-Bench's (a batch
from prompts to last token), Splitwise's (a prompt, a token), a server's time per token with 8 to 32 requests, and
single layers by PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from benchmarks import gpu_models
from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines import tables
from siliconloom.baselines.bars import COVERED, FILE, packaged_bars, read_bars, run_bars, run_name, write_bars
from siliconloom.baselines.model import predict_model
from siliconloom.baselines.operations import Op
from siliconloom.baselines.stacks import NO_STACK
from siliconloom.workloads import load_workload

REQUESTS = (8, 16, 32)
LAYER = "layer"
"""Block of a workload's operators that a layer has."""


class Run(Struct, frozen=True):
    """A measured run: the logarithm of its time over the predicted one, and its kernels' bars together."""

    name: str
    group: str
    model: str
    off: float
    kernels: tuple[float, float]


@cache
def all_runs() -> tuple[Run, ...]:
    """Every measured run of the package."""
    found: list[Run] = []
    for software in ("TensorRT-LLM", "vLLM", "Deepspeed-MII"):
        for row in gpu_models.inference_bench(software):
            if row.waits:
                continue
            kernels = row.rounds[0].tokens[len(row.rounds[0].tokens) // 2].bars
            for stack in (NO_STACK, gpu_models.stack_of(software)):
                off = float(np.log(row.seconds / row.predicted(stack)))
                name = run_name(False, stack is not NO_STACK)
                found.append(Run(name, f"{software} {row.model} {row.tensor}", row.model, off, kernels))
    for requests in REQUESTS:
        for software, step in gpu_models.served(requests):
            off = float(np.log(step.seconds / step.step.kernels_s))
            group = f"{software} {step.model} {requests}"
            found.append(Run(run_name(False, False), group, step.model, off, step.step.bars))
    for step in gpu_models.splitwise():
        if step.possible:
            off = float(np.log(step.seconds / step.step.kernels_s))
            group = f"splitwise {step.gpu} {step.tensor} {step.phase}"
            found.append(Run(run_name(step.phase == "prefill", False), group, "llama2-70b", off, step.step.bars))
    return (*found, *layers())


def layers(models: Sequence[str] = ("", "-mixtral"), popularity: str = "") -> Iterator[Run]:
    """Layers by PyTorch, compiled and launched as one graph: all of a step's kernels but the head's.

    Experts are as popular as is said (``workload.expert_popularity``), evenly where nothing is.
    """
    said = [("expert_popularity", popularity)] if popularity else []
    for gpu, model in product(("h100", "h200"), models):
        name = f"torch-{gpu}{model}"
        table = tables.load(name)
        mask = table.operations.among(Op.LAYER_PREFILL, Op.LAYER_DECODE)
        table = table.select(mask & np.char.endswith(table.software.astype(str), "compiled"))
        for at, op in enumerate(table.operations.ops()):
            prompts, tokens = op is Op.LAYER_PREFILL, int(table.input_tokens[at])
            length = ("sequence", str(tokens)) if prompts else ("context", str(tokens - 1))
            asked = [("phase", "prefill" if prompts else "decode"), ("batch", str(table.operations.batch[at])), length]
            graph = load_workload(str(table.model[at]), [("model.num_hidden_layers", "1"), *asked, *said])
            found = predict_model(load_gpu(gpu), graph)
            named = {operator.name for operator in graph.operators() if operator.block == LAYER}
            inside = np.array([kernel.operator in named for kernel in found.kernels])
            seconds = found.seconds * inside
            bars = [float((seconds * bar).sum() / seconds.sum()) for bar in (found.error, found.error_90)]
            off = float(np.log(table.time_us[at] * 1e-6 / seconds.sum()))
            group = f"layer {name} {'prompts' if prompts else 'tokens'}"
            yield Run(run_name(prompts, False), group, f"layer in {name}", off, (bars[0], bars[1]))


def calibrated(runs: Iterable[Run]) -> dict[str, tuple[float, float]]:
    """Bars beyond the kernels' by what runs; prompts with a stack, of which no run is known, take tokens' with one."""
    parts: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        parts[run.name].append(run)
    found = {name: (_beyond(part, 0), _beyond(part, 1)) for name, part in parts.items()}
    return found | {run_name(True, True): found[run_name(False, True)]}


def _beyond(runs: list[Run], bar: int) -> float:
    """The smallest bar beyond the kernels' that holds its share of the runs, each group counting as one."""
    excess = np.sqrt([max(run.off**2 - run.kernels[bar] ** 2, 0.0) for run in runs])
    sizes: defaultdict[str, int] = defaultdict(int)
    for run in runs:
        sizes[run.group] += 1
    order = np.argsort(excess)
    shares = np.cumsum(np.array([1.0 / sizes[run.group] for run in runs])[order])
    return float(excess[order][np.searchsorted(shares / shares[-1], COVERED[bar])])


def left_out() -> list[dict[str, float | str | int]]:
    """For each model, its runs inside bars from the others' alone; Splitwise has one model and leaves out a GPU."""
    runs = [replace(r, model=r.group.split()[1]) if r.group.startswith("splitwise") else r for r in all_runs()]
    found: list[dict[str, float | str | int]] = []
    for name in sorted({run.name for run in runs}):
        for model in sorted({run.model for run in runs if run.name == name}):
            others = calibrated([r for r in runs if r.model != model or r.name != name])
            theirs = [r for r in runs if r.model == model and r.name == name]
            bars = replace(packaged_bars(), runs=others)
            wide = np.array([run_bars(bars, name, run.kernels) for run in theirs])
            off = np.abs([run.off for run in theirs])
            inside = (off[:, None] <= wide).mean(axis=0)
            medians = np.median(wide, axis=0)
            found.append(
                {"runs": len(theirs), "name": name, "model": model, "error": float(np.median(off))}
                | {"bar_50": float(medians[0]), "bar_90": float(medians[1])}
                | {"inside_50": float(inside[0]), "inside_90": float(inside[1])}
            )
    return found


def print_runs(rows: list[dict[str, float | str | int]]) -> None:
    """A line for each model that was left out."""
    print(f"\n{'whole models, each left out':44s}{'runs':>6s} {'error':>6s} {'+-50':>6s} {'+-90':>6s}  in 50  in 90")
    for row in rows:
        told = " ".join(f"{row[key]:6.1%}" for key in ("error", "bar_50", "bar_90"))
        inside = f"{row['inside_50']:6.0%} {row['inside_90']:6.0%}"
        print(f"{row['name'] + ': ' + str(row['model']):44s}{row['runs']:6d} {told} {inside}")
    shares = [np.average([float(r[k]) for r in rows], weights=[int(r["runs"]) for r in rows]) for k in INSIDE]
    print(f"{'all runs':71s} {shares[0]:6.0%} {shares[1]:6.0%}")


def print_experts() -> None:
    """Layers with experts, evenly routed and drawn; what was timed draws them."""
    print(
        f"\n{'layers of Mixtral, nothing fitted':44s}{'runs':>6s} {'even':>6s} {'drawn':>6s}  each, drawn: fast -, slow +"
    )
    even, drawn = (list(layers(("-mixtral",), popularity)) for popularity in ("", "chance"))
    for group in dict.fromkeys(run.group for run in even):
        both = [[run.off for run in runs if run.group == group] for runs in (even, drawn)]
        medians = " ".join(f"{np.median(np.abs(np.expm1(np.negative(offs)))):6.1%}" for offs in both)
        each = " ".join(f"{np.expm1(-off):+.1%}" for off in both[1])
        print(f"{group:44s}{len(both[0]):6d} {medians}  {each}")


INSIDE = ("inside_50", "inside_90")


def main(arguments: list[str] | None = None) -> int:
    """Print, and write."""
    parser = argparse.ArgumentParser(description="bars of whole models")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args(arguments)
    found = calibrated(all_runs())
    print_runs(left_out())
    print_experts()
    for name, pair in found.items():
        print(f"beyond the kernels: {name}: {pair[0]:.1%}, {pair[1]:.1%}")
    if asked.write:
        write_bars(replace(read_bars(FILE), runs=found), FILE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
