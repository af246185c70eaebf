"""Attention on chips of its own: queries, keys and values go there, results come back (core attention disaggregation).

Attention has no parameters, so any chip can do any of it: a pool of chips takes all workers' attention in equal shares,
whatever the lengths of sequences or the stage of a pipeline. Workers do the rest. Two halves of a microbatch take
turns, so that a worker has something to do while the other half is away; where a microbatch cannot be halved it waits.
"""

from __future__ import annotations

from collections.abc import Mapping

from siliconloom.arch import NotSupported
from siliconloom.mapper.system.contracts import Fabric, Machine
from siliconloom.mapper.system.overlap import COMPUTE, OverlapSegment, steady, turns
from siliconloom.mapper.system.parallel import CHUNK
from siliconloom.mapper.system.plan import Plan
from siliconloom.workloads import Attention, Graph, Operator, Phase, SharedAttention
from siliconloom.workloads.roles import Pass
from siliconloom.workloads.subgraph import alone

SEND, POOL, RECEIVE = 10, 11, 12
"""Streams: to the pool, the pool, from it."""


def pooled_seconds(
    part: Graph, operators: list[Operator], plan: Plan, pool: Machine, fabric: Fabric, seconds: Mapping[str, float]
) -> float:
    """Seconds of one execution of a block's forward or backward pass on a worker.

    Parameters
    ----------
    operators
        Of the pass, weight gradients left out.
    pool
        Kind of the chips that do attention.
    seconds
        Of each operator on a worker, messages among them.

    Raises
    ------
    NotSupported
        With attention that is shared by context parallelism already, or of decode, whose keys stay where they are.
    """
    if part.phase is Phase.DECODE:
        raise NotSupported("plan.attention_chips in decode: keys and values would travel with every token")
    share = plan.workers / plan.attention_chips
    stride = plan.workers  # the pool lies behind all workers
    chain: list[OverlapSegment] = []
    parts = 2 if part.batch % 2 == 0 else 1

    def add(name: str, stream: int, time: float) -> None:
        if chain and chain[-1].stream == stream:
            chain[-1] = OverlapSegment(chain[-1].name, stream, chain[-1].seconds + time)
        else:
            chain.append(OverlapSegment(name, stream, time))

    for operator in operators:
        if isinstance(operator, SharedAttention):
            raise NotSupported("plan.attention_chips with plan.context: the pool shares sequences by itself")
        if isinstance(operator, Attention) and operator.follows:
            raise NotSupported(f"plan.attention_chips of {CHUNK}: earlier keys and values would travel every time")
        if not isinstance(operator, Attention):
            add(operator.name, COMPUTE, seconds.get(operator.name, 0.0) / parts)
            continue
        gradient = operator.place.backward
        if operator.place.step is Pass.VALUES_GRADIENT:  # done with the keys' gradient, at once
            add(operator.name, POOL, _on(pool, part, operator) * share / parts)
            continue
        sent, got = _traffic(operator, backward=gradient)
        there, back = (fabric.hop(size * max(share, 1.0) / parts, stride) for size in (sent, got))
        at = len(chain)
        add(f"{operator.name}.send", SEND, there)
        if gradient and at and chain[at - 1].stream == POOL:  # what goes there goes before both products
            chain[at - 1], chain[at] = chain[at], chain[at - 1]
        add(operator.name, POOL, _on(pool, part, operator) * share / parts)
        add(f"{operator.name}.receive", RECEIVE, back)
    if len(chain) > 1 and chain[0].stream == chain[-1].stream:  # a layer's end and the next one's start, at once
        chain[-1] = OverlapSegment(chain[-1].name, chain[-1].stream, chain[-1].seconds + chain[0].seconds)
        del chain[0]
    return steady(lambda tasks, layers: turns(tasks, [chain] * parts, layers))


def _on(pool: Machine, part: Graph, attention: Attention) -> float:
    return pool.seconds(alone(part, attention))[attention.name]


def _traffic(attention: Attention, *, backward: bool) -> tuple[float, float]:
    """Bytes to the pool and back: forward queries, keys, values and the result; backward those and the gradients."""
    width = attention.v_head_dim // 2 if backward else attention.v_head_dim
    keys = attention.head_dim if not backward else width
    rows, size = attention.batch * attention.q_len, attention.precision.size
    inputs = attention.heads * keys + attention.kv_heads * (keys + width)
    result = attention.heads * width
    if backward:  # the result and its gradient go along; three gradients come back
        return float(size(rows * (inputs + 2 * result))), float(size(rows * inputs))
    return float(size(rows * inputs)), float(size(rows * result))
