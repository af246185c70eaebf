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


def waited(comes: Iterable[float], leaves: Iterable[float], work: Iterable[float], bandwidth: float) -> float:
    """Seconds that a pass waits for what its blocks need, and for room where what they make has not left.

    What a block needs comes from the beginning of the pass of the block before; what it makes leaves beside the next
    one, and what the last one makes stays. Both ways of the link are busy at once.

    Parameters
    ----------
    comes, leaves
        Bytes of each block.
    work
        Seconds of each.
    """
    rows = list(zip(comes, leaves, work, strict=True))
    total = inbound = outbound = 0.0
    ends, gone = [0.0, 0.0], [0.0, 0.0]
    for number, (come, leave, seconds) in enumerate(rows):
        inbound = max(inbound, ends[-2]) + come / bandwidth
        ends.append(max(ends[-1], inbound, gone[-2]) + seconds)
        if number < len(rows) - 1:
            outbound = max(outbound, ends[-1]) + leave / bandwidth
            gone.append(outbound)
        total += seconds
    return max(ends[-1], outbound) - total


__all__ = ["UPDATED", "UpdatedBlock", "left_after", "waited"]
