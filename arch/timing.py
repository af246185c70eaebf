"""Latencies of the circuits that no description chooses, in cycles; simulator, mapper and RTL read them here.

What a user may choose (``multiply_stages``, the vector unit's ``latency``, ``issue_cycles`` ...) are fields of
`arch.array` and `arch.tile`. Here stands what follows from how the tile is built. A circuit that realises a latency by
its registers either builds as many as the constant says, or calls `confirm` with the stages that it has, so that a
constant which says something else is refused when the circuit is elaborated.
"""

from __future__ import annotations

from siliconloom.arch.errors import LoomError

INPUT_SLICE = 1
"""Cycles that the register slice at each operand stream of the array adds."""
OPERAND_LATENCY = 4
"""Cycles from a matmul leaving its queue to its first stationary operand firing: address, data, buffer, register."""
LOADER_GAP = 1
"""Cycles from the swap of a matmul's last fold until the next matmul may leave the queue."""
ACCUMULATOR_WRITE = 1
"""Cycles from the array's output to the accumulator holding it."""
QUEUE_POP = 1
"""Cycles from an instruction leaving its queue until the next one is seen."""
QUEUE_REFILL = 2
"""Cycles from an instruction leaving a full queue until another one can be seen at its end."""
BARRIER = 2
"""Cycles from a barrier starting to its posts, when nothing before it is still at work."""
TRANSFER_START = 1
"""Cycles from a transfer leaving its queue to its first address."""
GATHER_START = 5
"""Cycles by which a gather's first address is later than a load's: index, register, product, queue, register."""
LOAD_WRITE = 2
"""Cycles from the last data beat arriving to the scratchpad holding it."""
STORE_WRITE = 3
"""Cycles from the last local address to the last data beat on the bus."""
VECTOR_START = 1
"""Cycles from a vector instruction leaving its queue to its first address."""
VECTOR_STAGES = 15
"""Cycles from a vector operand's address to its row's state being there for the next pass; results take fewer."""
MOST_SUM_STAGES = 4
"""Stages of an addition in fp32 at most: operands in order, aligned and added, normalised, rounded; or 1, or 2."""
PIM_OFFER = 1
"""Cycles from an instruction for the channel of memory that computes leaving its queue to its first macro's offer."""
PIM_END = 2
"""Cycles from the last command going out, or the last datum arriving, of such an instruction to its being complete."""
PIM_REFRESH = 1
"""Cycle of a run from which a channel's first interval of refresh is counted."""
FETCH_START = 2
"""Cycles from the start of a run to the first instruction address on the bus, and from a word to its decoding."""


def sum_cycles(stages: int) -> int:
    """Cycles from a block's sum to its row's, beyond one, where an addition in floating point has so many stages.

    The partial sums, one of them to a stage, are made in one addition and put together by a tree of others.
    """
    return stages * (1 + (stages - 1).bit_length()) if stages > 1 else 0


def vector_stages(sum_stages: int) -> int:
    """`VECTOR_STAGES` of a unit whose additions have so many: those of a lane take them, and those of a row's sum."""
    return VECTOR_STAGES + sum_stages - 1 + sum_cycles(sum_stages)


def confirm(constant: str, **stages: int) -> None:
    """Hold a constant of this module against the stages of the circuit that realises it.

    Parameters
    ----------
    constant
        Its name.
    stages
        Cycles by what takes them, in the order in which they pass.

    Raises
    ------
    LoomError
        When the circuit takes another number of cycles.
    """
    stated, built = globals()[constant], sum(stages.values())
    if stated != built:
        parts = " + ".join(f"{name.replace('_', ' ')} {cycles}" for name, cycles in stages.items())
        raise LoomError(f"{constant} in arch/timing.py is {stated}, but the circuit takes {built} cycles ({parts})")


__all__ = [
    "ACCUMULATOR_WRITE",
    "BARRIER",
    "FETCH_START",
    "GATHER_START",
    "INPUT_SLICE",
    "LOADER_GAP",
    "LOAD_WRITE",
    "MOST_SUM_STAGES",
    "OPERAND_LATENCY",
    "PIM_END",
    "PIM_OFFER",
    "PIM_REFRESH",
    "QUEUE_POP",
    "QUEUE_REFILL",
    "STORE_WRITE",
    "TRANSFER_START",
    "VECTOR_STAGES",
    "VECTOR_START",
    "confirm",
    "sum_cycles",
    "vector_stages",
]
