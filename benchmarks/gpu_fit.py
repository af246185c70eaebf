"""Fit the constants of `siliconloom.baselines.efficiency` to the training split of the measured tables.

    python -m benchmarks.gpu_fit ampere hopper      (needs `pip install siliconloom[fit]`)
    python -m benchmarks.gpu_fit --stacks

The first writes ``src/siliconloom/baselines/efficiency/<architecture>.yaml``. Each kind of kernel is fitted by itself, by CMA-ES
from several starts, to the mean of the absolute logarithms of predicted over measured time, each at most `CLIP`.
Nothing of the test split (`siliconloom.baselines.families`) is seen; the error bars written are measured on it.

The second finds what a serving stack adds to a step, on a grid, from one model's whole runs (`gpu_models.FITTED`), and
prints it beside `siliconloom.baselines.stacks`; it exits with status 1 where they differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import gpu_models
from siliconloom.arch.gpu import Gpu, load_gpu
from siliconloom.baselines import mechanism as model
from siliconloom.baselines import one_shot, tables
from siliconloom.baselines.efficiency import (
    FOLDER,
    AttentionKernel,
    Backward,
    Constants,
    Efficiency,
    Elementwise,
    GroupedEfficiency,
    OneShotEfficiency,
    load_efficiency,
)
from siliconloom.baselines.families import split
from siliconloom.baselines.operation_rows import join
from siliconloom.baselines.operations import COLLECTIVES, ELEMENTWISE, Op, Operations
from siliconloom.baselines.roofline import compulsory_bytes, flops

CLIP = 0.4
ROWS = 1500
STARTS = 6
LIMITS = {
    "stream": (0.4, 0.97),
    "norm": (1.5, 6.0),
    "tail": (0.01, 1.0),
    "overlap": (0.01, 0.95),
    "narrow": (0.5, 1.0),
    "share_simple": (0.3, 1.0),
    "share_ll": (0.02, 1.0),
    "pair_ll": (0.2, 1.0),
    "share_ll128": (0.1, 1.0),
    "share_nvls": (0.3, 1.0),
    "share_direct": (0.3, 1.0),
    "share_small": (0.001, 1.0),
    "local": (0.05, 1.0),
    "spread": (1e-8, 1e-5),
    "spread_each": (1e-9, 1e-6),
    "ramp": (1e-7, 2e-4),
    "filled": (1e-6, 5e-4),
    "step_ll128": (1e-8, 3e-6),
    "step_simple": (1e-8, 3e-6),
    "cached": (1.0, 8.0),
    "tau": (1e-4, 2e-2),
    "slow": (1e-3, 0.3),
    **{str(op): (0.05, 0.97) for op in ELEMENTWISE},
    "kept": (0.2, 1.0),
}
"""Outside of these a constant has no meaning; the main loop's share has its own rule below."""


@dataclass(frozen=True)
class Task:
    """One kind of kernel: rows to learn from and to judge by, and which constants are free.

    ``train_on`` and ``test_on`` are the GPUs of the rows, where these are not all of the one that is fitted.
    """

    part: str
    names: tuple[str, ...]
    train: Operations
    train_s: np.ndarray
    test: Operations
    test_s: np.ndarray
    run: Callable[[Gpu, Efficiency, Operations, bool], tuple[np.ndarray, list[str]]]
    train_on: np.ndarray | None = None
    test_on: np.ndarray | None = None

    def seconds(self, gpu: Gpu, efficiency: Efficiency, rows: Operations, cards: np.ndarray | None) -> np.ndarray:
        """Predicted seconds of rows, each on its GPU of ``cards``, or all on ``gpu``."""
        if cards is None:
            return self.run(gpu, efficiency, rows, True)[0]
        found = np.empty(len(rows))
        for card in np.unique(cards).tolist():
            found[cards == card] = self.run(load_gpu(card), efficiency, rows.select(cards == card), True)[0]
        return found


MEASURED = {
    "ampere": {
        "gpu": "a100",
        "gemm": ("aiconfigurator-gemm-a100", "trtllm"),
        "attention": ("aiconfigurator-attention-a100", "vllm"),
    },
    "hopper": {
        "gpu": "h100",
        "gemm": ("aiconfigurator-gemm-h100", "trtllm"),
        "attention": ("aiconfigurator-attention-h100", "vllm"),
        "elementwise": "torch-h100",
        "grouped": ("h100", "h200"),  # alike but for their memory: what it limits, and what multiprocessors load
        "programs": {"torch-flash": "flash-attention-2", "torch-cudnn": "flash-attention-3"},
    },
}
KERNEL_OF = {"torch-flash": "sdpa flash", "torch-cudnn": "sdpa cudnn"}
"""How a program's attention ends in the table's column ``software``."""


def rows(name: str, software: str = "", *ops: Op, dtype: str | None = None) -> tuple[Any, Any, Any, Any]:
    """Training and test operations of one table with their seconds."""
    table = tables.load(name)
    keep = np.char.startswith(table.software.astype(str), software)
    if ops:
        keep &= table.operations.among(*ops)
    if dtype is not None:
        keep &= np.array([str(d) == dtype for d in table.operations.dtypes()])
    table = table.select(keep)
    train, test = split(table)
    return (
        table.operations.select(train),
        table.time_us[train] * 1e-6,
        table.operations.select(test),
        table.time_us[test] * 1e-6,
    )


def tasks(architecture: str) -> list[Task]:
    """What is fitted, in order: later ones build on the constants of earlier ones."""
    known = MEASURED[architecture]
    gpu = str(known["gpu"])
    name, software = known["gemm"]
    narrow = ("quantize", "narrow")
    every = tuple(
        n for n in model.load_efficiency(architecture).gemm.__class__.model_fields if n not in (*narrow, "norm")
    )
    found = [Task("gemm", every, *rows(name, software, dtype="bf16"), model._gemm)]
    if architecture == "hopper":
        found.append(Task("gemm", narrow, *rows(name, software, dtype="fp8"), model._gemm))
    if "grouped" in known:
        found.append(grouped_task(known["grouped"]))
    name, software = known["attention"]
    for part, op, run in (
        ("prefill", Op.ATTENTION_PREFILL, model._prefill),
        ("decode", Op.ATTENTION_DECODE, model._decode),
    ):
        free = tuple(type(getattr(load_efficiency(architecture), part)).model_fields)
        found.append(Task(part, free, *rows(name, software, op), run))
    free = tuple(type(load_efficiency(architecture).collective).model_fields)
    table = tables.load("aiconfigurator-collectives")
    keep = (table.gpu == gpu) & np.char.startswith(table.software.astype(str), "NCCL")
    keep &= table.operations.among(*COLLECTIVES) & np.array([str(d) == "fp16" for d in table.operations.dtypes()])
    table = table.select(keep)
    train, test = split(table)
    found.append(
        Task(
            "collective",
            free,
            table.operations.select(train),
            table.time_us[train] * 1e-6,
            table.operations.select(test),
            table.time_us[test] * 1e-6,
            model._collective,
        )
    )
    return found


def grouped_task(cards: tuple[str, ...]) -> Task:
    """Products of experts on several GPUs of an architecture; those dealt by chance and some models' are unseen."""
    train, test = [], []
    for card in cards:
        table = tables.load(f"torch-{card}-grouped")
        for part, mask in zip((train, test), split(table), strict=True):
            part.append(table.select(mask))
    columns = [
        (
            join([t.operations for t in part]),
            *(np.concatenate(c) for c in ([t.time_us * 1e-6 for t in part], [t.gpu for t in part])),
        )
        for part in (train, test)
    ]
    (seen, seen_s, seen_on), (unseen, unseen_s, unseen_on) = columns
    free = tuple(GroupedEfficiency.model_fields)

    def run(gpu: Gpu, efficiency: Efficiency, rows: Operations, _: bool) -> tuple[np.ndarray, list[str]]:
        return model._grouped(gpu, efficiency, rows, False)

    return Task("grouped", free, seen, seen_s, unseen, unseen_s, run, seen_on, unseen_on)


def fit(gpu: Gpu, efficiency: Efficiency, task: Task, evaluations: int) -> Efficiency:
    """Efficiency with the task's constants fitted."""
    import cma

    part: Constants = getattr(efficiency, task.part)
    start = np.array([getattr(part, n) for n in task.names])
    rng = np.random.default_rng(1)
    chosen = rng.permutation(len(task.train))[:ROWS]
    sample, seconds = task.train.select(chosen), task.train_s[chosen]
    cards = None if task.train_on is None else task.train_on[chosen]
    weight = np.where((flops(sample) > 0) & (flops(sample) < 1e9) & sample.among(Op.GEMM), 0.4, 1.0)

    def constants(q: np.ndarray) -> tuple[Efficiency, float]:
        values = start * np.exp(q)
        outside = 0.0
        for i, name in enumerate(task.names):
            low, high = LIMITS.get(name, (1e-12, 1e15))
            if name == "mainloop" and task.part != "gemm":
                low, high = 0.3, 1.0
            inside = min(max(values[i], low), high)
            outside += abs(np.log(values[i] / inside))
            values[i] = inside
        made = part.model_copy(update=dict(zip(task.names, values.tolist(), strict=True)))
        return efficiency.model_copy(update={task.part: made}), outside

    def loss(q: np.ndarray) -> float:
        made, outside = constants(q)
        found = np.abs(np.log(task.seconds(gpu, made, sample, cards) / seconds))
        return float((weight * np.minimum(found, CLIP)).sum() / weight.sum() + outside + 1e-3 * np.abs(q).mean())

    best, at = np.inf, np.zeros(len(start))
    for attempt in range(STARTS):
        first = rng.normal(0, 0.3, len(start)) if attempt else np.zeros(len(start))
        search = cma.CMAEvolutionStrategy(
            first, 0.3, {"maxfevals": evaluations, "verbose": -9, "seed": attempt + 1, "tolfun": 1e-6}
        )
        search.optimize(loss)
        if search.result.fbest < best:
            best, at = search.result.fbest, search.result.xbest
    return constants(at)[0]


ELEMENTWISE_FROM = {
    "rmsnorm": "vidur-elementwise-a100",
    "silu_mul": "vidur-elementwise-a100",
    "add": "vidur-elementwise-a100",
    "rope": "vidur-elementwise-a100",
    "embedding": "vidur-elementwise-a100",
    "gelu": "neusight-elementwise",
    "layernorm": "neusight-elementwise",
    "softmax": "neusight-elementwise",
}
"""Table of each kind's kernels: those of a serving stack, PyTorch's where it has none."""
LARGE = 60e6
"""Bytes from which a kernel's time is its bytes'."""


def elementwise_rows(name: str) -> tables.Table:
    """Element-wise kernels of a table of PyTorch's; of RMS norms the compiled ones, as serving software has them."""
    table = tables.load(name)
    eager = np.char.endswith(table.software.astype(str), "eager")
    return table.select(table.operations.among(*ELEMENTWISE) & ~eager)


def fit_elementwise(gpu: Gpu, efficiency: Efficiency, name: str, evaluations: int) -> tuple[Efficiency, float]:
    """All constants of element-wise kernels, and the median error on the columns that are withheld."""
    table = elementwise_rows(name)
    train, test = split(table)
    free = tuple(Elementwise.model_fields)
    start = efficiency.elementwise.model_copy(update={n: START.get(n.split("_")[0], 0.8) for n in free} | STARTING)
    task = Task(
        "elementwise",
        free,
        table.operations.select(train),
        table.time_us[train] * 1e-6,
        table.operations.select(test),
        table.time_us[test] * 1e-6,
        model._elementwise,
    )
    found = fit(gpu, efficiency.model_copy(update={"elementwise": start}), task, 8 * evaluations)
    return found, report(gpu, found, task)


START = {"columns": 0.3, "elements": 4.0}
STARTING = {"launch": 1.2e-6, "kept": 0.7, "l2_rate": 30.0, "reduce": 6e-7}


def fit_program(gpu: Gpu, efficiency: Efficiency, program: str, kernels: str, evaluations: int) -> Efficiency:
    """Efficiency with the attention of another program fitted to its rows of the table of PyTorch's."""
    start = Backward(launch=1e-5, mainloop=0.6, item=1000.0, tail=0.9, stream=0.9, norm=4.0)
    splits = kernels == "flash-attention-2"
    made = efficiency.model_copy(update={"attention": kernels, "backward": start, "splits": splits})
    table = tables.load(f"torch-{gpu.name}")
    table = table.select(np.char.find(table.software.astype(str), KERNEL_OF[program]) >= 0)
    for part, op, run in (
        ("prefill", Op.ATTENTION_PREFILL, lambda g, e, o, _: model._prefill(g, e, o, False)),
        ("decode", Op.ATTENTION_DECODE, model._decode),
        ("backward", Op.ATTENTION_BACKWARD, model._backward),
    ):
        rows = table.select(table.operations.among(op))
        train, test = split(rows)
        if not test.any():
            test = train
        task = Task(
            part,
            tuple(type(getattr(made, part)).model_fields),
            rows.operations.select(train),
            rows.time_us[train] * 1e-6,
            rows.operations.select(test),
            rows.time_us[test] * 1e-6,
            run,
        )
        made = fit(gpu, made, task, evaluations)
        print(f"{program}: ", end="")
        report(gpu, made, task)
    kernel = AttentionKernel.model_validate(
        {"kernels": kernels, "splits": splits}
        | {"prefill": made.prefill, "decode": made.decode, "backward": made.backward}
    )
    changed = {"attention_by": efficiency.attention_by | {program: kernel}}
    best = {"backward": made.backward} if kernels == efficiency.attention else {}  # training has the faster one
    return efficiency.model_copy(update=changed | best)


def fit_shares(efficiency: Efficiency) -> tuple[Efficiency, float]:
    """Shares of the bandwidth by kind of element-wise kernel, and the median error on what is withheld.

    A100s: their tables have large kernels only.
    """
    found, errors = {}, []
    launch = efficiency.elementwise.launch
    for kind, name in ELEMENTWISE_FROM.items():
        gpu = load_gpu("a100" if name.startswith("vidur") else "a100-40gb")
        table = tables.load(name)
        known = np.isin(table.gpu, ["a100-80gb", "a100-pcie-40gb"]) & table.operations.among(Op(kind))
        table = table.select(known)
        train, test = split(table)
        moved, seconds = compulsory_bytes(table.operations), table.time_us * 1e-6
        large = train & (moved > LARGE)
        share = np.median(moved[large] / (seconds[large] - launch)) / gpu.memory_bandwidth
        found[kind] = float(min(share, 0.95))
        if name.startswith("vidur"):
            errors.append(launch + moved[test] / (gpu.memory_bandwidth * share) - seconds[test])
            errors[-1] /= seconds[test]
    median = float(np.median(np.abs(np.concatenate(errors))))
    print(f"elementwise  {sum(map(len, errors)):6d} rows unseen: median |error| {median:.1%}", flush=True)
    made = efficiency.elementwise.model_copy(update=found)
    return efficiency.model_copy(update={"elementwise": made}), median


SHOTS = {"vllm": ("vLLM custom", "graph"), "tensorrt-llm": ("TRT-LLM custom", "")}
"""What serving software's own all-reduces are called in the table, and the launches that are taken."""


def fit_one_shots(gpu: Gpu, efficiency: Efficiency, only: int = 0) -> Efficiency:
    """Efficiency with the all-reduces of serving software, fitted to all of their rows, or to those of ``only`` GPUs.

    What no row says of this architecture stays as it is: two shots of four H100 are Ampere's.
    """
    import cma

    made = dict(efficiency.one_shot_by)
    for program, own in efficiency.one_shot_by.items():
        rows = one_shot_rows(gpu.name, program)
        o, seconds = rows.operations, rows.time_us * 1e-6
        way = one_shot.ways(gpu, program, own, o.gpus, o.bytes)
        seen = (way != one_shot.NCCL) & ((o.gpus == only) | (only == 0))
        parts = {one_shot.ONE: own, one_shot.TWO: own.two, one_shot.SWITCH: own.switch}
        names = {
            one_shot.ONE: ("launch", "peer", "share"),
            one_shot.TWO: ("barrier", "share"),
            one_shot.SWITCH: ("launch", "share"),
        }
        free = [(w, n) for w, part in parts.items() if part is not None and (way[seen] == w).any() for n in names[w]]
        start = np.array([max(getattr(parts[w], n), 1e-9) for w, n in free])

        def constants(q: np.ndarray, own=own, free=free, start=start, parts=parts) -> OneShotEfficiency:
            values = (start * np.exp(q)).tolist()
            chosen = {w: {n: v for (at, n), v in zip(free, values, strict=True) if at == w} for w in parts}
            two, switch = (
                part and part.model_copy(update={n: min(v, 1.0) for n, v in chosen[w].items()})
                for w, part in ((one_shot.TWO, own.two), (one_shot.SWITCH, own.switch))
            )
            mine = {n: min(v, 1.0) for n, v in chosen[one_shot.ONE].items()}
            return own.model_copy(update=mine | {"two": two, "switch": switch})

        def loss(q: np.ndarray, o=o, way=way, seen=seen, seconds=seconds, constants=constants) -> float:
            sizes = o.gpus[seen].astype(float), o.bytes[seen].astype(float)
            found = one_shot.one_shot_times(gpu, constants(q), way[seen], *sizes)[0]
            return float(np.minimum(np.abs(np.log(found / seconds[seen])), CLIP).mean() + 1e-3 * np.abs(q).mean())

        search = cma.CMAEvolutionStrategy(np.zeros(len(free)), 0.3, {"maxfevals": 4000, "verbose": -9, "seed": 1})
        search.optimize(loss)
        made[program] = constants(search.result.xbest)
    return efficiency.model_copy(update={"one_shot_by": made})


def one_shot_rows(card: str, program: str) -> tables.Table:
    """All-reduces of a program on a GPU, launched from graphs."""
    table, (name, launches) = tables.load("aiconfigurator-collectives"), SHOTS[program]
    named = table.software.astype(str)
    return table.select((table.gpu == card) & np.char.startswith(named, name) & (np.char.find(named, launches) >= 0))


def report_one_shots(gpu: Gpu, efficiency: Efficiency) -> None:
    """Median errors of the rows that are not NCCL's: of all, and of each number of GPUs by constants of the other's."""
    for program in efficiency.one_shot_by:
        rows = one_shot_rows(gpu.name, program)
        o, seconds = rows.operations, rows.time_us * 1e-6
        sizes = o.gpus.astype(float), o.bytes.astype(float)
        text = f"one shot     {program} on {gpu.name}:"
        for what, made, mask in (
            ("all", efficiency, np.ones(len(rows), bool)),
            ("2 by 8", fit_one_shots(gpu, efficiency, 8), o.gpus == 2),
            ("8 by 2", fit_one_shots(gpu, efficiency, 2), o.gpus == 8),
        ):
            own = made.one_shot_by[program]
            way = one_shot.ways(gpu, program, own, o.gpus, o.bytes)
            chosen = mask & (way == one_shot.ONE if what != "all" else way != one_shot.NCCL)
            off = np.abs(np.log(one_shot.one_shot_times(gpu, own, way, *sizes)[0] / seconds))[chosen]
            text += f" {what} {np.median(off):.1%} (90 % {np.quantile(off, 0.9):.0%}, {len(off)} rows)"
        print(text, flush=True)


def fit_power(efficiency: Efficiency) -> Efficiency:
    """Energy of an operation and of a byte, from H200 products run for seconds at the board's limit.

    Their times and their power are both predicted; the weights of this table are not initialised, so that its power is
    a lower bound of what random data takes.
    """
    import cma

    gpu = load_gpu("h200")
    table = tables.load("aiconfigurator-gemm-h200-vllm")
    train, _ = split(table)
    table = table.select(train & (table.power_w > 0) & (flops(table.operations) > 1e10))
    table = table.select(np.random.default_rng(1).permutation(len(table))[:ROWS])
    start = np.log([efficiency.power.flop, efficiency.power.byte])

    def made(q: np.ndarray) -> Efficiency:
        flop, byte = np.exp(start + q).tolist()
        return efficiency.model_copy(update={"power": efficiency.power.model_copy(update={"flop": flop, "byte": byte})})

    def loss(q: np.ndarray) -> float:
        seconds, joules = model.predict_with(gpu, made(q), table.operations, sustained=True)
        time = np.abs(np.log(seconds * 1e6 / table.time_us))
        power = np.abs(np.log(joules / seconds / table.power_w))
        return float(np.minimum(time, CLIP).mean() + np.minimum(power, CLIP).mean())

    search = cma.CMAEvolutionStrategy(np.zeros(2), 0.3, {"maxfevals": 200, "verbose": -9, "seed": 1})
    search.optimize(loss)
    found = made(search.result.xbest)
    seconds, joules = model.predict_with(gpu, found, table.operations, sustained=True)
    ratio = joules / seconds / table.power_w - 1.0
    print(
        f"power        {len(ratio):6d} rows: median |error| {np.median(np.abs(ratio)):.1%}, {found.power}", flush=True
    )
    return found


def report(gpu: Gpu, efficiency: Efficiency, task: Task) -> float:
    """Median absolute error on the test split, printed."""
    ratio = task.seconds(gpu, efficiency, task.test, task.test_on) / task.test_s - 1.0
    median = float(np.median(np.abs(ratio)))
    large = flops(task.test) > 1e9
    text = f"{task.part:12s} {len(ratio):6d} rows unseen: median |error| {median:.1%}, bias {np.median(ratio):+.1%}"
    if task.part == "gemm":
        median = float(np.median(np.abs(ratio[large])))
        text += f"; above 1 GFLOP {median:.1%}"
    print(text, flush=True)
    return median


def text_of(efficiency: Efficiency) -> str:
    """YAML of an efficiency, one line a part."""
    lines = []
    for key, value in efficiency.model_dump(exclude_defaults=True).items():
        if key == "attention_by":
            lines.append(f"{key}:")
            for program, parts in value.items():
                lines.append(f"  {program}:")
                lines += [
                    f"    {part}: " + (_flow(inner, " " * 7) if isinstance(inner, dict) else str(inner).lower())
                    for part, inner in parts.items()
                ]
        elif key == "one_shot_by":
            lines += [f"{key}:", *(f"  {program}: {_flow(own, ' ' * 4)}" for program, own in value.items())]
        elif isinstance(value, dict):
            lines.append(f"{key}:" + (" " if len(_flow(value)) < 110 else "\n  ") + _flow(value, " " * 3))
        else:
            shown = json.dumps(value) if key == "basis" else str(value).lower() if isinstance(value, bool) else value
            lines.append(f"{key}: {shown}")
    return "\n".join(lines) + "\n"


def _flow(value: dict[str, Any], indent: str = "") -> str:
    """A mapping of numbers in braces, broken into lines of at most 110 characters."""
    shown = ((n, _flow(v) if isinstance(v, dict) else _number(v)) for n, v in value.items() if v is not None)
    cells = ", ".join(f"{name}:{_TIED}{text}" for name, text in shown)
    return "{" + textwrap.fill(cells, 110, subsequent_indent=indent).replace(_TIED, " ") + "}"


_TIED = "\u00a0"


def _number(value: float) -> str:
    shown = f"{value:.3e}"
    number = float(shown)
    return f"{number:g}" if 1e-3 <= abs(number) < 1e5 else shown


def stacks() -> int:
    """Fit the serving stacks; 1 if any is not what the package has."""
    differs = 0
    for software in ("TensorRT-LLM", "vLLM", "Deepspeed-MII"):
        found, stated = gpu_models.fit_stack(software), gpu_models.stack_of(software)
        rows = [r for r in gpu_models.inference_bench(software) if not r.waits]
        same = abs(found.step - stated.step) < 1e-9 and abs(found.kernel - stated.kernel) < 1e-9
        differs |= not same
        text = f"{software:14s} step {found.step * 1e3:.2f} ms, kernel {found.kernel * 1e6:.0f} us"
        for seen, what in ((True, "fitted to"), (False, "others")):
            chosen = [r for r in rows if (r.model == gpu_models.FITTED) == seen]
            error = np.median(np.abs(gpu_models.errors(chosen, found)))
            text += f"; {what} {len(chosen)} runs: median |error| {error:.1%}"
        print(text + ("" if same else f"; the package has {stated}"), flush=True)
    return int(differs)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="*", help=", ".join(sorted(MEASURED)))
    parser.add_argument("--stacks", action="store_true", help="what serving stacks add, from whole runs")
    parser.add_argument("--evaluations", type=int, default=1500)
    parser.add_argument("--only", default="", help="parts, comma-separated")
    parser.add_argument("--dry", action="store_true", help="print, do not write")
    asked = parser.parse_args(arguments)
    if unknown := [a for a in asked.architectures if a not in MEASURED]:
        parser.error(f"no measurements of {unknown[0]}; known: {', '.join(sorted(MEASURED))}")
    if asked.stacks:
        return stacks()
    for architecture in asked.architectures:
        gpu = load_gpu(str(MEASURED[architecture]["gpu"]))
        efficiency = load_efficiency(architecture)
        error = efficiency.error.model_dump()
        print(f"{architecture} ({gpu.name})")
        for task in tasks(architecture):
            if asked.only and task.part not in asked.only.split(","):
                continue
            efficiency = fit(gpu, efficiency, task, asked.evaluations)
            median = report(gpu, efficiency, task)
            name = {"prefill": "attention_prefill", "decode": "attention_decode"}.get(task.part, task.part)
            if task.names != ("quantize", "narrow") and name in error:
                error[name] = round(median, 3)
        only = asked.only.split(",") if asked.only else []
        own = str(MEASURED[architecture].get("elementwise", ""))
        if not only or "elementwise" in only:
            if own:
                efficiency, median = fit_elementwise(gpu, efficiency, own, asked.evaluations)
            else:
                efficiency, median = fit_shares(efficiency)
            error["elementwise"] = round(median, 3)
        for program, kernels in MEASURED[architecture].get("programs", {}).items():
            if not only or "programs" in only:
                efficiency = fit_program(gpu, efficiency, program, kernels, asked.evaluations)
        if efficiency.one_shot_by and (not only or "one_shot" in only):
            efficiency = fit_one_shots(gpu, efficiency)
            report_one_shots(gpu, efficiency)
        if architecture == "hopper" and (not asked.only or "power" in asked.only.split(",")):
            efficiency = fit_power(efficiency)
        basis = f"{gpu.product}: benchmarks/gpu_fit.py on the training split of baselines/data"
        efficiency = efficiency.model_copy(update={"basis": basis, "error": efficiency.error.model_copy(update=error)})
        if not asked.dry:
            (FOLDER / f"{architecture}.yaml").write_text(text_of(efficiency), encoding="utf-8")
    return 0


__all__ = ["Task", "fit", "main", "report", "rows", "stacks", "tasks", "text_of"]

if __name__ == "__main__":
    sys.exit(main())
