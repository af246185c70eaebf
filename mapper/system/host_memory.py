"""What a training step keeps in the memory of the host beside its chips, and what waits for it.

``optimizer``
    The optimizer's state is the host's, and so is the update (ZeRO-Offload, Ren et al., USENIX ATC 2021): a block's
    gradients leave with the last backward pass as they are made, the host updates block by block, and parameters come
    back.
``parameters``
    Parameters are the host's, too (ZeRO-Infinity, Rajbhandari et al., SC 2021): those of the next block come while one
    is computed, forward and backward, and stay there when they are updated.

Activations that are kept for the backward pass may lie there as well (SSDTrain, Wu et al., 2024): they leave with the
forward pass and come back with the backward one. Each chip has a link of its own, which carries both ways at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from siliconloom.mapper.system.memory import GRADIENT, STATE

UPDATED = GRADIENT + 2 * STATE
"""Bytes of the host's memory that an update moves for a parameter, beside the parameter as chips have it: its gradient,
and its fp32 copy, momentum and variance, read and written."""


class UpdatedBlock(Struct, frozen=True):
    """A block of which a chip updates so many parameters, of ``element`` bytes each, after ``seconds`` backward."""

    seconds: float
    parameters: float
    element: float


def left_after(blocks: Iterable[UpdatedBlock], bandwidth: float, memory_bandwidth: float, *, returns: bool) -> float:
    """Seconds from the end of the last backward pass until the host has updated all, and parameters are back.

    Parameters
    ----------
    blocks
        In the order of the backward pass.
    bandwidth, memory_bandwidth
        Bytes a second of a chip's link, each way, and of its share of the host's memory.
    returns
        Whether parameters go back to the chip, or stay.
    """
    made = here = updated = back = 0.0
    for block in blocks:
        made += block.seconds
        here = max(here, made) + block.parameters * GRADIENT / bandwidth
        updated = max(updated, here) + block.parameters * (UPDATED + block.element) / memory_bandwidth
        back = max(back, updated) + (block.parameters * block.element / bandwidth if returns else 0.0)
    return back - made


def beside(moved: Iterable[float], work: Iterable[float], bandwidth: float) -> float:
    """Seconds that work waits for what comes block by block: the first, then what takes longer than the block before.

    ``moved`` are bytes of each block, ``work`` its seconds.
    """
    waited = before = 0.0
    for size, seconds in zip(moved, work, strict=True):
        waited += max(size / bandwidth - before, 0.0)
        before = seconds
    return waited


def left_behind(moved: Iterable[float], work: Iterable[float], bandwidth: float) -> float:
    """Seconds that work waits until what blocks have made has left: each beside the next block; the last's stays."""
    waited, made = 0.0, 0.0
    for size, seconds in zip(moved, work, strict=True):
        waited += max(made / bandwidth - seconds, 0.0)
        made = size
    return waited


__all__ = ["UPDATED", "UpdatedBlock", "beside", "left_after", "left_behind"]
