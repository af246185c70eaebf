"""A product fused with the ring reduce-scatter of its result: T3's track and trigger (Pati et al., ASPLOS 2024).

Every GPU computes its partial result in as many parts as there are GPUs, starting with the part that it must send
first. A part is sent the moment that it is computed and the partial sum from the GPU before has been added to it in
memory; nothing polls, and no multiprocessor copies. All GPUs do the same, so one stands for all: the compute stream
makes the parts, the link sends them, and memory serves both. Without arbitration the messages' memory accesses go
first and the product waits for them; with it they fill the product's gaps.
"""

from __future__ import annotations

from msgspec import Struct

from siliconloom.sim.system.streams import Tasks, run_tasks

COMPUTE, LINK = 0, 1
PICO = 1e12
UPDATE = 3.0
"""Memory accesses of a byte that arrives and is passed on: read and written where it is added, read to be sent."""


class Fused(Struct, frozen=True):
    """Seconds of a product and the all-reduce of its result, by how they are joined.

    Parameters
    ----------
    sequential
        Product, reduce-scatter, all-gather.
    triggered, arbitrated
        Product and reduce-scatter fused, then all-gather; without and with arbitration at the memory.
    ideal
        The longer of product and reduce-scatter, then all-gather.
    """

    sequential: float
    triggered: float
    arbitrated: float
    ideal: float


def ring_step(size: float, chips: int, bandwidth: float, latency: float) -> float:
    """Seconds of one step of a ring over ``chips``."""
    return size / chips / bandwidth + latency


def fuse(product: float, size: float, chips: int, *, bandwidth: float, latency: float, memory: float) -> Fused:
    """Join a product of ``product`` seconds with the all-reduce of its ``size`` bytes.

    Parameters
    ----------
    bandwidth, latency
        Of a link in one direction, bytes per second and seconds.
    memory
        Bytes per second of a GPU's memory, which adds where the data lies.
    """
    step = ring_step(size, chips, bandwidth, latency)
    add = size / chips / memory * UPDATE
    scatter = (chips - 1) * (step + add)
    gather = (chips - 1) * step

    def joined(each: float) -> float:
        tasks = Tasks()
        arrived: int | None = None
        for part in range(chips):
            made = tasks.add(f"part {part}", COMPUTE, round(each * PICO))
            if part == chips - 1:  # its own part: the last sum is added, nothing is sent
                last = tasks.add("last sum", COMPUTE, round(add * PICO))
                if arrived is not None:
                    tasks.wait(last, arrived)
                break
            sent = tasks.add(f"message {part}", LINK, round(step * PICO))
            tasks.wait(sent, made)
            if arrived is not None:
                tasks.wait(sent, arrived, round(add * PICO))
            arrived = sent
        return run_tasks(tasks).finish / PICO

    return Fused(
        sequential=product + scatter + gather,
        triggered=joined(product / chips + add) + gather,
        arbitrated=joined(product / chips) + gather,
        ideal=max(product, (chips - 1) * step) + gather,
    )
