"""Whole runs of a model on GPUs: the prompts of a batch, then token after token, under a serving stack.

The time of a token grows evenly with what it looks at, so a few contexts are predicted and joined by straight lines.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from siliconloom.arch.gpu import Gpu
from siliconloom.arch.system import Policy
from siliconloom.baselines.stacks import NO_STACK, Stack
from siliconloom.evaluate.cluster import with_messages
from siliconloom.evaluate.gpus import gpus_of
from siliconloom.evaluate.machine import DescribedMachine, evaluate
from siliconloom.workloads import load_workload

CONTEXTS = 4
"""Contexts between the first and the last token that are predicted."""
ROOM = 1 << 50
"""Bytes of each GPU: whether a run fits, and in how many parts, is asked by whoever has its figures."""


class StepKernels(Struct, frozen=True):
    """Seconds of a step's kernels together, how many are launched, and the time below which they cannot be.

    ``sequences`` and ``tensor`` are its requests, and the GPUs that share it, ``bars`` those of its kernels together.
    """

    kernels_s: float
    kernels: int
    roofline: float
    sequences: int = 1
    tensor: int = 1
    bars: tuple[float, float] = (0.0, 0.0)

    def seconds(self, stack: Stack) -> float:
        """Time of the step under a serving stack."""
        return stack.seconds(self.kernels_s, self.kernels, self.sequences, self.tensor)


class ServingRun(Struct, frozen=True):
    """The prompts of a batch and the tokens that follow.

    Parameters
    ----------
    prompt
        From the prompts to the first token.
    contexts, tokens
        Keys that a token looks at, and its step, at both ends and between.
    output
        Tokens of every sequence.
    """

    prompt: StepKernels
    contexts: tuple[int, ...]
    tokens: tuple[StepKernels, ...]
    output: int

    def token_seconds(self, stack: Stack = NO_STACK) -> float:
        """Mean time of a token."""
        times = [step.seconds(stack) for step in self.tokens]
        if len(times) == 1:
            return times[0]
        return float(np.trapezoid(times, self.contexts) / (self.contexts[-1] - self.contexts[0]))

    def seconds(self, stack: Stack = NO_STACK) -> float:
        """Time of the whole run."""
        return self.prompt.seconds(stack) + self.output * self.token_seconds(stack)


def predict_step(
    gpu: Gpu,
    model: str,
    phase: str,
    *,
    tokens: int,
    batch: int = 1,
    tensor: int = 1,
    precision: str = "bf16",
    sustained: bool = False,
    messages: str = "",
) -> StepKernels:
    """One step of a library model on ``tensor`` GPUs that share every operator, whether it fits or not.

    Parameters
    ----------
    tokens
        Of each prompt (``prefill``), or of what each new token looks at (``decode``).
    messages
        Serving software whose all-reduces run (`Stack.messages`).
    """
    length = "sequence" if phase == "prefill" else "context"
    sets = [("phase", phase), ("batch", str(batch)), (length, str(tokens)), ("precision", precision)]
    roomy = gpu.model_copy(update={"memory": gpu.memory.model_copy(update={"capacity": ROOM})})
    cluster = with_messages(gpus_of(roomy, tensor, sustained=sustained), messages)
    machine = DescribedMachine(gpu.name, cluster=cluster, policy=Policy(tensor=tensor))
    result = evaluate(machine, load_workload(model, sets)).result
    launched = sum(kernel["repeat"] for kernel in result["operators"] if not kernel["fused"])
    floor = sum(kernel["roofline_s"] for kernel in result["operators"])
    whole = sum(kernel["seconds"] for kernel in result["operators"])
    bars = [
        sum(k["seconds"] * math.log1p(k[bar]) for k in result["operators"]) / whole for bar in ("error", "error_90")
    ]
    return StepKernels(result["seconds"], launched, floor, batch, tensor, (bars[0], bars[1]))


def predict_run(
    gpu: Gpu,
    model: str,
    *,
    batch: int,
    prompt: int,
    output: int,
    tensor: int = 1,
    precision: str = "bf16",
    messages: str = "",
) -> ServingRun:
    """A batch of prompts of one length, and ``output`` tokens for each; see `predict_step`."""
    asked = {"batch": batch, "tensor": tensor, "precision": precision, "messages": messages}
    points = np.unique(np.linspace(prompt + 1, prompt + output, CONTEXTS).astype(int)).tolist()

    def step(phase: str, tokens: int) -> StepKernels:
        return predict_step(gpu, model, phase, tokens=tokens, **asked)  # type: ignore[arg-type]

    return ServingRun(step("prefill", prompt), tuple(points), tuple(step("decode", c) for c in points), output)
