"""Whole models: measured runs beside predicted ones, and the fit of what a serving stack adds.

The runs are LLM-Inference-Bench's (a batch from prompts to last token), Splitwise's (a prompt, a token) and a running
server's time per token at few requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines import tables
from siliconloom.baselines.operations import Op
from siliconloom.baselines.stacks import STACKS, Stack
from siliconloom.evaluate.runs import ServingRun, StepKernels, predict_run, predict_step
from siliconloom.workloads import load_workload

FITTED = "llama2-7b"
"""The model whose runs the stacks are fitted to."""
MODELS = ("llama2-7b", "llama3-8b", "mistral-7b", "llama2-70b", "llama3-70b")
CARD = "a100-40gb"
USABLE = 0.9
"""Share of the memory that weights and cache may take (vLLM's and TensorRT-LLM's default)."""
SERVED = {"llama3.1-8b": "llama3-8b", "llama3.1-70b": "llama3-70b", "qwen3-32b": "qwen3-32b"}
"""Models of the served runs, and the library's of the same shape."""
STEPS = np.arange(0, 8.01, 0.25) * 1e-3
LAUNCHES = np.array([0, 5, 10, 15, 20, 25, 30, 40, 50]) * 1e-6


@dataclass(frozen=True)
class Measured:
    """One measured run; ``rounds`` are the parts of the batch that run one after the other, as the cache holds them."""

    software: str
    model: str
    tensor: int
    batch: int
    prompt: int
    output: int
    seconds: float
    rounds: tuple[ServingRun, ...]

    @property
    def waits(self) -> bool:
        """Some sequences wait until others are done."""
        return len(self.rounds) > 1

    def predicted(self, stack: Stack) -> float:
        """Seconds by the model."""
        return sum(run.seconds(stack) for run in self.rounds)


@cache
def inference_bench(software: str = "") -> tuple[Measured, ...]:
    """LLM-Inference-Bench's Llama-class runs on the A100 with 40 GB."""
    table = tables.load("llm-inference-bench-a100")
    o, found = table.operations, []
    for i in range(len(table)):
        model, prompt, output = str(table.model[i]), int(table.input_tokens[i]), int(table.output_tokens[i])
        if model not in MODELS or (software and table.software[i] != software):
            continue
        batch, tensor = int(o.batch[i]), int(o.gpus[i])
        most = sequences_held(model, prompt + output, tensor)
        parts = [most] * (batch // most) + ([batch % most] if batch % most else [])
        messages = stack_of(str(table.software[i])).messages
        rounds = tuple(run_of(model, part, prompt, output, tensor, messages) for part in parts)
        found.append(
            Measured(
                str(table.software[i]), model, tensor, batch, prompt, output, float(table.time_us[i]) * 1e-6, rounds
            )
        )
    return tuple(found)


@cache
def run_of(model: str, batch: int, prompt: int, output: int, tensor: int, messages: str) -> ServingRun:
    asked = {"batch": batch, "prompt": prompt, "output": output, "tensor": tensor, "messages": messages}
    return predict_run(load_gpu(CARD), model, **asked)


@cache
def sequences_held(model: str, tokens: int, tensor: int) -> int:
    """Sequences whose cache fits beside the weights."""
    one = load_workload(model, [("phase", "decode"), ("batch", "1"), ("context", str(tokens)), ("precision", "bf16")])
    return max(1, int((USABLE * load_gpu(CARD).memory.capacity * tensor - one.weight_bytes) // one.kv_bytes))


def errors(rows: Sequence[Measured], stack: Stack) -> np.ndarray:
    """Predicted over measured time, less one."""
    return np.array([row.predicted(stack) / row.seconds - 1.0 for row in rows])


def fit_stack(software: str) -> Stack:
    """The stack of a grid with the least mean absolute logarithm on the fitted model's runs."""
    rows = [r for r in inference_bench(software) if r.model == FITTED and not r.waits]
    name = stack_of(software).name
    candidates = [Stack(name, float(step), float(kernel)) for step in STEPS for kernel in LAUNCHES]
    return min(candidates, key=lambda stack: np.abs(np.log1p(errors(rows, stack))).mean())


@dataclass(frozen=True)
class Stepped:
    """One measured step, and the model's."""

    gpu: str
    model: str
    phase: str
    tensor: int
    batch: int
    tokens: int
    seconds: float
    step: StepKernels

    @property
    def possible(self) -> bool:
        """The measured step is not faster than the roofline: of a batch that does not fit only a part was timed."""
        return self.seconds >= self.step.roofline


@cache
def splitwise() -> tuple[Stepped, ...]:
    """Splitwise's steps of Llama-2-70B; the library has no BLOOM."""
    table = tables.load("splitwise-models")
    o, found = table.operations, []
    for i in np.flatnonzero(table.model == "llama2-70b").tolist():
        gpu, phase, batch = str(table.gpu[i]), str(o.ops()[i]), int(o.batch[i])
        tokens = int(table.input_tokens[i]) + (int(table.output_tokens[i]) // 2 if phase == "decode" else 0)
        step = predict_step(load_gpu(gpu), "llama2-70b", phase, tokens=tokens, batch=batch, tensor=int(o.gpus[i]))
        seconds = float(table.time_us[i]) * 1e-6
        found.append(Stepped(gpu, "llama2-70b", phase, int(o.gpus[i]), batch, tokens, seconds, step))
    return tuple(found)


@cache
def served(requests: int = 8) -> tuple[tuple[str, Stepped], ...]:
    """Time per token of servers with ``requests`` in flight, by software.

    While a request's tokens are made each of the others starts once, and its prompt comes between them.
    """
    table = tables.load("aiconfigurator-serving-h100")
    o, found, gpu = table.operations, [], load_gpu("h100")
    for i in np.flatnonzero(o.among(Op.SERVE_TPOT) & (o.batch == requests)).tolist():
        model, tensor, precision = SERVED[str(table.model[i])], int(o.gpus[i]), str(o.dtypes()[i])
        prompt, output = int(table.input_tokens[i]), int(table.output_tokens[i])
        tokens = prompt + output // 2
        software = str(table.software[i]).partition(" ")[0]
        shared = {"tensor": tensor, "precision": precision, "messages": stack_of(software).messages}
        step = predict_step(gpu, model, "decode", tokens=tokens, batch=requests, **shared)
        other = predict_step(gpu, model, "prefill", tokens=prompt, **shared)
        share = (requests - 1) / output
        both = StepKernels(
            step.kernels_s + share * other.kernels_s, round(step.kernels + share * other.kernels), step.roofline
        )
        seconds = float(table.time_us[i]) * 1e-6
        found.append((software, Stepped("h100", model, "decode", tensor, requests, tokens, seconds, both)))
    return tuple(found)


def stack_of(software: str) -> Stack:
    """Stack by the tables' names of software."""
    return STACKS[{"trtllm": "tensorrt-llm", "vllm": "vllm-2024"}.get(software.lower(), software.lower())]


__all__ = [
    "FITTED",
    "MODELS",
    "Measured",
    "Stepped",
    "errors",
    "fit_stack",
    "inference_bench",
    "served",
    "splitwise",
    "stack_of",
]
