"""Experts on chips: where each lies so that tokens stay where they are, or loads are even."""

from siliconloom.mapper.experts.balance import PLACEMENTS, Placement, place_evenly, place_loads
from siliconloom.mapper.experts.copies import Copies, balance_copies, copy_hot, expert_hops
from siliconloom.mapper.experts.place import ExpertPlacement, place_experts
from siliconloom.mapper.experts.routing import (
    Routing,
    fanout_of,
    hops_of,
    imbalance_of,
    loads_of,
    return_hops,
    routing_of,
    traffic_of,
)
from siliconloom.mapper.experts.trace import ModelRouting, RoutingTrace, read_trace

__all__ = [
    "PLACEMENTS",
    "Copies",
    "ModelRouting",
    "ExpertPlacement",
    "Placement",
    "Routing",
    "RoutingTrace",
    "balance_copies",
    "copy_hot",
    "expert_hops",
    "fanout_of",
    "hops_of",
    "imbalance_of",
    "loads_of",
    "place_evenly",
    "place_experts",
    "place_loads",
    "read_trace",
    "return_hops",
    "routing_of",
    "traffic_of",
]
