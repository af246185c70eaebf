"""Time of the all-reduces that serving software has beside NCCL's, between GPUs that reach each other's memory.

- One shot: after a barrier every GPU reads the buffers of all others and adds, (n-1) s bytes for a buffer of s.
- Two shots: every GPU adds an n-th of all buffers, and after another barrier reads the others' sums, 2 (n-1)/n s bytes.
- In the switch (multimem): every GPU has the switch add its n-th and hand the sum to all.

Which one runs is a rule of the program by the buffer's size and the number of GPUs. vLLM's is in its
``custom_all_reduce.cuh`` and ``all_reduce_utils.py``. TensorRT-LLM's ``customAllReduceKernels`` has the sizes of one
shot; where its two shots would begin, its tables of tactics take NCCL. What no rule takes is NCCL's.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.gpu import Gpu
from siliconloom.baselines.collective import LATENCY, LINK
from siliconloom.baselines.efficiency import OneShotEfficiency
from siliconloom.baselines.operations import Float, Int

KIB, MIB = 2**10, 2**20
NCCL, ONE, TWO, SWITCH = 0, 1, 2, 3
"""What an all-reduce is done by."""
MOST_GPUS = 8


class Rule(Struct, frozen=True):
    """Of a number of GPUs: sizes in bytes up to which each way is taken, the first that holds."""

    one: float
    two: float = 0.0
    switch: float = 0.0


RULES: dict[str, dict[int, Rule]] = {
    "vllm": {
        2: Rule(8 * MIB - 1),
        4: Rule(512 * KIB - 1, 8 * MIB - 1),
        6: Rule(256 * KIB - 1, 8 * MIB - 1),
        8: Rule(256 * KIB - 1, 8 * MIB - 1),
    },
    "tensorrt-llm": {2: Rule(MIB), 4: Rule(1e6), 6: Rule(512 * KIB), 8: Rule(512 * KIB)},
}
"""By program and number of GPUs; others have NCCL. TensorRT-LLM's for 2 and 8 are where its times (1.0 on A100, 1.3 on
H100) become NCCL's, and for 4, which were not timed, what its source says."""
SWITCHED: dict[str, dict[int, Rule]] = {
    "vllm": {
        2: Rule(64 * MIB),
        4: Rule(512 * KIB - 1, 32 * MIB),
        6: Rule(256 * KIB - 1, 512 * KIB - 1, 64 * MIB),
        8: Rule(256 * KIB - 1, 0.0, 64 * MIB),
    },
    "tensorrt-llm": {2: Rule(8 * MIB), 4: Rule(1e6), 6: Rule(512 * KIB), 8: Rule(512 * KIB)},
}
"""The same where the switch adds, on Hopper."""
BLACKWELL: dict[str, dict[int, Rule]] = {
    "vllm": {
        2: Rule(2 * MIB, 8 * MIB),
        4: Rule(512 * KIB - 1, 32 * MIB),
        6: Rule(256 * KIB - 1, MIB, 128 * MIB),
        8: Rule(256 * KIB - 1, MIB, 128 * MIB),
    }
}
"""The same of data-centre Blackwell, whose constants are Hopper's; no row is of it."""


def ways(gpu: Gpu, program: str, fitted: OneShotEfficiency, gpus: Int, size: Int) -> Int:
    """How a program does all-reduces of ``size`` bytes among ``gpus`` GPUs of a node."""
    found = np.full(len(size), NCCL)
    if gpu.link.kind != "nvlink" or not gpu.link.switched:
        return found
    switched = BLACKWELL if gpu.architecture == "blackwell" else SWITCHED
    rules = RULES.get(program, {}) | (switched.get(program, {}) if gpu.link.in_switch else {})
    for count, rule in rules.items():
        among = (gpus == count) & (count <= gpu.link.per_node)
        switch, two = rule.switch if fitted.switch else 0.0, rule.two if fitted.two else 0.0
        for way, most in ((SWITCH, switch), (TWO, two), (ONE, rule.one)):
            found[among & (size <= most)] = way
    return found


def one_shot_times(
    gpu: Gpu, fitted: OneShotEfficiency, way: Int, gpus: Float, size: Float
) -> tuple[Float, NDArray[np.int64]]:
    """Seconds of all-reduces that are not NCCL's, and what limits each."""
    waiting = fitted.launch + fitted.peer * (gpus - 1)
    moving = (gpus - 1) * size / fitted.share
    if (two := fitted.two) is not None:
        waiting = np.where(way == TWO, waiting + two.barrier, waiting)
        moving = np.where(way == TWO, 2 * (gpus - 1) / gpus * size / two.share, moving)
    if (switch := fitted.switch) is not None:
        waiting = np.where(way == SWITCH, switch.launch, waiting)
        moving = np.where(way == SWITCH, size * (1 + 1 / gpus) / switch.share, moving)
    moving = moving / gpu.link_bandwidth
    return waiting + moving, np.where(moving > waiting, LINK, LATENCY)
