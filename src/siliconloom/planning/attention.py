"""Seconds of attention whose sequences are shared by several chips."""

from __future__ import annotations

from siliconloom.arch import NotSupported
from siliconloom.planning.fabric import Fabric
from siliconloom.planning.machines import Machine
from siliconloom.planning.plan import Plan
from siliconloom.workloads import Graph, SharedAttention


def shared_seconds(operator: SharedAttention, part: Graph, plan: Plan, machine: Machine, fabric: Fabric) -> float:
    """Of a chip, its messages included; the slowest chip's."""
    raise NotSupported(f"context parallelism by {operator.scheme}")
