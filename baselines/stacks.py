"""What a serving stack adds to the kernels' time of a step: scheduling, sampling, launches that are not hidden.

TensorRT-LLM, DeepSpeed-MII and vLLM of 2024 were fitted by ``benchmarks/gpu_fit.py --stacks`` to one model's whole runs
(Llama-2-7B on an A100; LLM-Inference-Bench) and judged on the others'. The two newer vLLM were fitted by
``benchmarks/serving.py --fit`` to some requests of served runs and judged on the rest ([GPUs](gpu.md#served-runs)).
Both have vLLM's own all-reduces; those of 2024 have NCCL's, with which their whole runs come out nearer.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError, nearest_name

Float = NDArray[np.float64]


class Stack(Struct, frozen=True):
    """Seconds of the host for each step, and for each kernel that it launches; the GPU waits for the slower of both.

    ``sequence`` and ``shared`` are of a serving engine's step: for each request in it, and where GPUs share the model.
    ``messages`` is the program whose all-reduces it has (`siliconloom.baselines.one_shot`), NCCL's where it is empty.
    """

    name: str
    step: float
    kernel: float
    sequence: float = 0.0
    shared: float = 0.0
    messages: str = ""

    def host(self, sequences: int, tensor: int) -> float:
        """Seconds of the host in a step with so many requests, on so many GPUs."""
        return self.step + self.sequence * sequences + (self.shared if tensor > 1 else 0.0)

    def seconds(self, kernels_s: float, kernels: float, sequences: int = 1, tensor: int = 1) -> float:
        """Time of a step with so many requests on so many GPUs, whose kernels take ``kernels_s`` together."""
        return max(kernels_s, kernels * self.kernel) + self.host(sequences, tensor)

    def step_seconds(self, kernels_s: Float, kernels: float | Float, sequences: int, tensor: int) -> Float:
        """What `seconds` says, of steps in a row."""
        return np.maximum(kernels_s, kernels * self.kernel) + self.host(sequences, tensor)


NO_STACK = Stack("none", 0.0, 0.0)
STACKS = {
    "none": NO_STACK,
    "tensorrt-llm": Stack("tensorrt-llm", 0.0, 0.0),
    "vllm": Stack("vllm", 0.90e-3, 0.0, sequence=25e-6, shared=1.05e-3, messages="vllm"),
    "vllm-async": Stack("vllm-async", 1.25e-3, 0.0, messages="vllm"),
    "vllm-2024": Stack("vllm-2024", 1.25e-3, 0.0),
    "deepspeed-mii": Stack("deepspeed-mii", 4.5e-3, 25e-6),
}
"""By name. ``vllm`` is the v1 engine of 2025, which schedules between steps; ``vllm-async`` is 0.19, which schedules
while a step runs; ``vllm-2024`` and DeepSpeed-MII are of 2024. The fit finds no time of TensorRT-LLM's host
beside its kernels: what there is lies within how far they are off. Of ``vllm`` four GPUs were timed, which tell the sum
of ``step`` and ``shared`` alone: the latter is what the fit found more than with NCCL's slower messages, the time that
ranks wait for each other."""


def find_stack(name: str) -> Stack:
    """Stack of that name; raises `LoomError` with the nearest one."""
    found = STACKS.get(name.lower())
    if found is None:
        near = nearest_name(name, STACKS)
        raise LoomError(
            f"--stack: must be one of {', '.join(STACKS)} (got '{name}')"
            + (f"; did you mean '{near}'?" if near else "")
        )
    return found
