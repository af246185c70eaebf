"""Latencies of Hopper and Ampere, as pointer chases found them, and what they imply.

The published cycles are inputs: they stand in the library's descriptions (a test holds them there). The rows join them
to the rates by Little's law: bytes under way are bandwidth times latency, so that a level's rate must be within what a
multiprocessor can have under way, and a block of keys that nothing hides takes no less than one access to memory.
"""

from __future__ import annotations

from siliconloom.arch.gpu import Gpu, load_gpu
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.reproduce.card import Card, CardRow

CLOCKS = {"h100": 1755e6, "a100": 1395e6}
"""Hz at which the pointers were chased; of the H100's description, an H800."""
THREADS, LOAD = 2048, 16
"""Resident threads of a multiprocessor, and bytes of the widest load (CUDA programming guide)."""


def implied_rows(gpu: Gpu) -> list[CardRow]:
    """What latency and rate of each level say of each other."""
    assert gpu.memory.latency_cycles is not None
    assert gpu.l2.latency_cycles is not None
    fitted, product = load_efficiency(gpu.architecture), gpu.name.upper()
    dram_s = gpu.memory.latency_cycles / CLOCKS[gpu.name]
    under_way = gpu.memory_bandwidth * dram_s / gpu.multiprocessors
    most = THREADS * LOAD * gpu.multiprocessors / dram_s
    from_l2 = fitted.gemm.l2_rate * gpu.l2.latency_cycles
    return [
        CardRow(
            f"{product}: bytes under way to DRAM fit a first level, KiB",
            under_way / 1024,
            gpu.first_level.capacity / 1024,
            0.0,
            sense="at most",
        ),
        CardRow(
            f"{product}: one load of every thread under way reaches DRAM's rate, GB/s",
            most / 1e9,
            gpu.memory_bandwidth / 1e9,
            0.0,
            sense="at least",
        ),
        CardRow(
            f"{product}: bytes under way at products' rate from L2 fit a first level, KiB",
            from_l2 / 1024,
            gpu.first_level.capacity / 1024,
            0.0,
            sense="at most",
        ),
        CardRow(
            f"{product}: decode's block of keys alone, cycles, no less than DRAM's",
            fitted.decode.latency,
            float(gpu.memory.latency_cycles),
            0.0,
            sense="at least",
        ),
        CardRow(
            f"{product}: a split's join, ns, no less than a write and a read of far L2",
            fitted.decode.join * 1e9,
            2e9 * (gpu.l2.far_latency_cycles or 0) / CLOCKS[gpu.name],
            0.0,
            sense="at least",
        ),
    ]


def card() -> Card:
    """Put what the latencies imply beside the rates."""
    rows = [*implied_rows(load_gpu("h100")), *implied_rows(load_gpu("a100"))]
    return Card(
        "hopper-latency",
        "memory latencies of H800 and A100 by pointer chase: Little's law on the rates",
        "Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking, 2024",
        tuple(rows),
    )
