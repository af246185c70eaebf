"""Experts on chips: where each lies so that tokens stay where they are, and loads are even."""

from siliconloom.mapper.experts.copies import Copies, balance_copies, copy_hot, expert_hops
from siliconloom.mapper.experts.place import Placed, place_experts
from siliconloom.mapper.experts.routing import (
    Routing,
    fanout_of,
    hops_of,
    imbalance_of,
    return_hops,
    routing_of,
    traffic_of,
)

__all__ = [
    "Copies",
    "Placed",
    "Routing",
    "balance_copies",
    "copy_hot",
    "expert_hops",
    "fanout_of",
    "hops_of",
    "imbalance_of",
    "place_experts",
    "return_hops",
    "routing_of",
    "traffic_of",
]
