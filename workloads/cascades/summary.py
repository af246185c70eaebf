"""What is derived of a cascade, as data: ``loom cascade --json``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pydantic_core import PydanticCustomError

from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.arch.quantity import BYTES, parse
from siliconloom.workloads.cascades.einsum import Cascade, EinsumNumber
from siliconloom.workloads.cascades.passes import PassPlan, plan_passes
from siliconloom.workloads.cascades.tiles import kernel_traffic
from siliconloom.workloads.cascades.traffic import (
    Footprint,
    FusedTraffic,
    compulsory_traffic,
    fused_traffic,
    unfused_traffic,
)

SCHEMA = "siliconloom.cascade/1"


def parse_buffer(text: str) -> float:
    """Bytes of a quantity such as ``16 MiB``; raises `LoomError` where it is none, or not above zero."""
    try:
        found = float(parse(text, BYTES, "16 MiB"))
    except PydanticCustomError as error:
        raise LoomError(f"--buffer: {error} (got '{text}')") from None
    if not 0 < found < 2**62:
        raise LoomError(f"--buffer: must be bytes, more than none (got '{text}')")
    return found


def cascade_summary(
    cascade: Cascade,
    buffer: float | None = None,
    *,
    stream: str | None = None,
    element_bytes: int = 2,
    staged: Sequence[str] = (),
) -> dict[str, Any]:
    """Einsums, passes over every rank, live footprints and least traffic of a cascade.

    Parameters
    ----------
    buffer
        Bytes of on-chip buffer; any amount without it.
    stream
        Rank along which operands pass by, instead of the cascade's own.
    element_bytes
        Bytes of an element of every tensor.
    staged
        Transient tensors that lie in the buffer for whole blocks.
    """
    walked = [
        rank for rank in cascade.extents if any(cascade.ranks[v] == rank for e in cascade.einsums for v in e.variables)
    ]
    stream = stream or cascade.stream
    if stream not in walked:
        near = nearest_name(stream, walked)
        hint = f"did you mean '{near}'?" if near else f"ranks: {', '.join(walked)}"
        raise LoomError(f"{cascade.name}: no Einsum walks along a rank {stream}; {hint}")
    for tensor in staged:
        if tensor not in cascade.intermediates:
            near = nearest_name(tensor, cascade.intermediates)
            hint = f"did you mean '{near}'?" if near else f"known: {', '.join(cascade.intermediates)}"
            raise LoomError(f"{cascade.name} makes no tensor {tensor} that it reads; {hint}")
    room = math.inf if buffer is None else buffer
    plan = plan_passes(cascade, stream)
    fused: FusedTraffic | None = None
    reason = ""
    try:
        fused = fused_traffic(cascade, room, stream=stream, element_bytes=element_bytes, staged=staged)
    except LoomError as error:
        reason = str(error)
    alone = (
        unfused_traffic(cascade, element_bytes=element_bytes)
        if buffer is None
        else kernel_traffic(cascade, buffer, element_bytes=element_bytes)
    )
    return {
        "schema": SCHEMA,
        "name": cascade.name,
        "description": cascade.description,
        "source": cascade.source,
        "ranks": cascade.extents,
        "instances": cascade.instances,
        "stream": stream,
        "element_bytes": element_bytes,
        "buffer_bytes": buffer,
        "einsums": [
            {
                "einsum": e.text,
                "tensor": e.name,
                "pass": plan.at[place],
                "walks": plan.walks[place],
                "points": cascade.points(e),
                "operations": dict(e.operations()),
            }
            for place, e in enumerate(cascade.einsums)
            if not isinstance(e.expression, EinsumNumber)
        ],
        "operations": dict(cascade.operations()),
        "passes": {rank: plan_passes(cascade, rank).count for rank in walked},
        "footprint": None if fused is None else footprint_data(cascade, plan, fused.footprint, element_bytes),
        "traffic": {
            "compulsory": compulsory_traffic(cascade, element_bytes=element_bytes),
            "fused": None if fused is None else fused.total,
            "fused_tensors": None if fused is None else fused.tensors,
            "spilled": [] if fused is None else list(fused.spilled),
            "not_fused": reason,
            "unfused": sum(alone.values()),
        },
    }


def footprint_data(cascade: Cascade, plan: PassPlan, found: Footprint, element_bytes: int) -> dict[str, Any]:
    """What lies in the buffer, each tensor with its kind, the ranks that say how much, elements and bytes."""
    tensors = []
    kinds = {"held": found.held, "passing": found.passing, "transient": found.transient}
    for kind, its in kinds.items():
        for tensor, elements in its.items():
            named = "held whole" if tensor in plan.whole else kind
            tensors.append(_tensor(cascade, plan, found, tensor, named, elements, element_bytes))
    for tensor, elements in found.fibers.items():
        named = "kept" if tensor in found.kept else "spilled"
        tensors.append(_tensor(cascade, plan, found, tensor, named, elements, element_bytes))
    return {
        "block": {cascade.ranks[v]: size for v, size in found.block.items()},
        "tensors": tensors,
        "between_passes": found.between,
        "bytes": found.elements * element_bytes,
    }


def _tensor(
    cascade: Cascade, plan: PassPlan, found: Footprint, tensor: str, kind: str, elements: int, element_bytes: int
) -> dict[str, Any]:
    """A tensor of a footprint; its expression has a rank in angle brackets where a block of it counts."""
    ranks = list(cascade.ranks_of(tensor))
    if kind not in ("kept", "spilled", "held whole") and plan.rank in ranks:
        ranks.remove(plan.rank)
    outer = {cascade.ranks[v] for v in found.block}
    shown = [f"<{rank}>" if rank in outer else rank for rank in ranks]
    return {
        "tensor": tensor,
        "kind": kind,
        "expression": " ".join(shown) or "1",
        "elements": elements,
        "bytes": elements * element_bytes,
    }


__all__ = ["SCHEMA", "cascade_summary", "parse_buffer"]
