"""GPUs that are held below what they could do: a locked clock (``nvidia-smi -lgc``), a lower power limit (``-pl``).

Every kernel is predicted at lower clocks of its multiprocessors, while DRAM and links go on as fast: work that waits
for memory is hardly slower, work that computes is slower by as much. Energy of the matrix units goes with the square
of the voltage, which falls about as the clock does (as in `baselines.mechanism` under the board's limit); that of the
DRAM's bytes stays. Under a power limit a kernel has the highest clock at which it draws no more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from msgspec import Struct

from siliconloom.arch.errors import LoomError
from siliconloom.arch.gpu import LEAST_CLOCK, Gpu, load_gpu
from siliconloom.baselines.operations import Float

CLOCKS = np.linspace(1.0, LEAST_CLOCK, 17)
"""Shares of the clock at which kernels are predicted; between them in straight lines of logarithms."""


class Hold(Struct, frozen=True):
    """What holding a GPU does to each kernel.

    Parameters
    ----------
    slower
        Its time, relative to that of the GPU as it is described without.
    clock, usual
        Share of the clock that it has, and that it would have without.
    watts
        The board's own limit.
    """

    slower: Float
    clock: Float
    usual: Float
    watts: float


@cache
def library_gpu(name: str) -> Gpu | None:
    """The library's GPU of that name, where there is one."""
    try:
        return load_gpu(name)
    except LoomError:
        return None


def as_held(gpu: Gpu, *, limited: bool) -> Gpu:
    """The GPU as it is held: a library's GPU with less power is that one under a cap.

    Constants of bursts, which know no limit, were fitted to the library's; ``limited`` times know the board's own.
    """
    theirs = library_gpu(gpu.name)
    if limited or theirs is None or gpu.power >= theirs.power or gpu.idle_power >= gpu.power:
        return gpu
    cap = gpu.power if gpu.power_cap is None else min(gpu.power_cap, gpu.power)
    return gpu.model_copy(update={"power": theirs.power, "power_cap": cap})


def free(gpu: Gpu) -> Gpu:
    """The same GPU with nothing that holds it."""
    if gpu.locked_clock is None and gpu.power_cap is None:
        return gpu
    return gpu.model_copy(update={"locked_clock": None, "power_cap": None})


def hold(
    gpu: Gpu, at_clock: Callable[[Gpu], Float], usual_s: Float, work: tuple[Float, Float], *, limited: bool
) -> Hold:
    """What a locked clock and a power limit make of kernels.

    Parameters
    ----------
    gpu
        With ``locked_clock`` or ``power_cap``.
    at_clock
        Seconds of the kernels on a GPU of another clock, under no limit of power.
    usual_s
        Seconds on the GPU without either, under the board's own limit where that is counted.
    work
        Joules above idle power at the full clock, of the multiprocessors and of the DRAM.
    limited
        Whether ``usual_s`` is under the board's own limit.
    """
    base = free(gpu)
    locked = 1.0 if gpu.locked_clock is None else gpu.locked_clock / gpu.clock
    clocks = CLOCKS if gpu.power_cap is not None or limited else np.array([1.0, locked])
    seconds = np.array([at_clock(base.model_copy(update={"clock": round(base.clock * f)})) for f in clocks])
    flops, moved = work
    whole = np.maximum(flops + moved, 1e-30)
    usual_room = (gpu.power - gpu.idle_power) * usual_s  # of which the model counts no more (`joules_of`)
    counted = np.minimum(whole, usual_room) / whole
    saved = (flops * clocks[:, np.newaxis] ** 2 + moved) / whole
    usual = np.ones(len(whole))
    if limited:
        usual = _highest(clocks, whole * saved / seconds, gpu.power - gpu.idle_power)
    scale = counted / _between(clocks, saved, usual)  # joules that are counted without a hold are those at its clock
    cap = gpu.power if gpu.power_cap is None else gpu.power_cap
    slower = seconds / _between(clocks, seconds, usual)
    clock = _highest(clocks, whole * scale * saved / (usual_s * slower), cap - gpu.idle_power)
    clock = np.minimum(clock, np.minimum(locked, usual))
    spent = whole * scale * _between(clocks, saved, clock)
    times = np.maximum(_between(clocks, slower, clock), spent / (cap - gpu.idle_power) / usual_s)
    return Hold(np.maximum(times, 1.0), clock, usual, gpu.power)


def _highest(clocks: Float, watts: Float, room: float) -> Float:
    """The highest share of the clock at which each kernel draws no more than that, or the lowest there is; (kernels,).

    ``watts`` are those at ``clocks``, above idle power.
    """
    within = watts <= room * (1 + 1e-12)
    first = np.where(within.any(0), within.argmax(0), len(clocks) - 1)
    before = np.maximum(first - 1, 0)
    columns = np.arange(watts.shape[1])
    high, low = np.log(np.maximum(watts[before, columns], 1e-30)), np.log(np.maximum(watts[first, columns], 1e-30))
    share = np.where(high > low, (high - np.log(room)) / np.maximum(high - low, 1e-30), 0.0)
    found: Float = clocks[before] + (clocks[first] - clocks[before]) * np.clip(share, 0.0, 1.0)
    return np.where(first == before, clocks[first], found)


def _between(clocks: Float, values: Float, clock: Float) -> Float:
    """Values at ``clocks``, evenly apart, for each kernel's share of the clock."""
    step = clocks[0] - clocks[1]
    at = np.clip(((clocks[0] - clock) / step).astype(np.int64), 0, len(clocks) - 2)
    share = (clocks[at] - clock) / step
    columns = np.arange(values.shape[1])
    low, high = np.log(np.maximum(values[at, columns], 1e-300)), np.log(np.maximum(values[at + 1, columns], 1e-300))
    return np.asarray(np.exp(low + (high - low) * share), np.float64)


__all__ = ["Hold", "as_held", "free", "hold", "library_gpu"]
