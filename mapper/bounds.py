"""Lower bounds: no mapping of a workload to a chip can be faster than these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from siliconloom.arch.description import Chip, NpuTile
from siliconloom.arch.vector import VectorFunction, vector_cost
from siliconloom.mapper.placement import Placement
from siliconloom.workloads import Attention, Gemm, Graph, Operator, Vector


@dataclass(frozen=True)
class Bound:
    """Cycles that work and data alone need.

    Parameters
    ----------
    compute_cycles
        Multiply-accumulates over the array's peak rate.
    memory_cycles
        Bytes that must cross the memory port once, over its bandwidth: parameters in use, the key-value cache, and
        for a single operator its operands and results as well. Results that one operator hands to the next could stay
        on chip and are left out of a whole workload's bound. With several memory levels: of the level that needs
        the longest for what lies in it.
    vector_cycles
        Passes of the vector unit over all elements, over its lanes.
    level_cycles
        The same as ``memory_cycles``, for each level.
    """

    compute_cycles: int
    memory_cycles: int
    vector_cycles: int
    level_cycles: dict[str, int] = field(default_factory=dict)

    @property
    def lower_bound_cycles(self) -> int:
        return max(self.compute_cycles, self.memory_cycles, self.vector_cycles)

    @property
    def name(self) -> str:
        """What binds: compute, memory or vector."""
        return max((self.compute_cycles, "compute"), (self.memory_cycles, "memory"), (self.vector_cycles, "vector"))[1]

    def as_dict(self) -> dict[str, Any]:
        """The figures and what binds, as results show them."""
        names = ("compute_cycles", "memory_cycles", "vector_cycles", "level_cycles", "lower_bound_cycles", "name")
        return {name: getattr(self, name) for name in names}


def operator_bound(chip: Chip, operator: Operator) -> Bound:
    """Bound of one execution of ``operator`` with its operands and results in the nearest memory."""
    used = used_weight_bytes(operator)
    return _bound(chip, operator.macs, _near(chip, used + _data(operator)), _vector_slots(operator))


def placed_bound(chip: Chip, operator: Operator, placement: Placement | None) -> Bound:
    """Bound of all executions of ``operator`` with its operands and results where they are placed."""
    times = operator.repeat
    if placement is None:
        one = operator_bound(chip, operator)
        levels = {name: times * cycles for name, cycles in one.level_cycles.items()}
        return Bound(times * one.compute_cycles, times * one.memory_cycles, times * one.vector_cycles, levels)
    data = _level_bytes(chip, operator, placement, activations=True)
    return _bound(chip, operator.macs * times, data, _vector_slots(operator) * times)


def mean_bound(chip: Chip, operator: Operator, placement: Placement | None) -> Bound:
    """Bound of one execution: `operator_bound`, or the mean of all executions where they are placed, rounded up."""
    if placement is None:
        return operator_bound(chip, operator)
    whole, times = placed_bound(chip, operator, placement), operator.repeat
    levels = {name: -(-cycles // times) for name, cycles in whole.level_cycles.items()}
    return Bound(
        -(-whole.compute_cycles // times), max(levels.values(), default=0), -(-whole.vector_cycles // times), levels
    )


def graph_bound(chip: Chip, graph: Graph, placement: Placement | None = None) -> Bound:
    """Bound of a whole workload, its objects in the nearest memory or where they are placed."""
    operators = graph.operators()
    macs = sum(o.macs * o.repeat for o in operators)
    listed = not graph.dataflow.linked
    data: dict[str, int]
    if placement is not None:
        data = dict.fromkeys(chip.memory, 0)
        for operator in operators:
            for level, count in _level_bytes(chip, operator, placement, activations=listed).items():
                data[level] += count
    elif listed:
        data = _near(chip, sum((used_weight_bytes(o) + _data(o)) * o.repeat for o in operators))
    else:
        data = _near(chip, sum((used_weight_bytes(o) + _cache_bytes(o)) * o.repeat for o in operators))
    return _bound(chip, macs, data, sum(_vector_slots(o) * o.repeat for o in operators))


def _near(chip: Chip, data: int) -> dict[str, int]:
    return {next(iter(chip.memory)): data} if chip.memory else {}


def _data(operator: Operator) -> int:
    return operator.input_bytes + operator.output_bytes


def _level_bytes(chip: Chip, operator: Operator, placement: Placement, *, activations: bool) -> dict[str, int]:
    """Bytes that all executions must move at each level at least.

    Operands of a product that are no earlier result, and its results, count where they lie; other operators'
    activations count at the fastest level that holds any of them: a tile has one port to all levels, so those that lie
    elsewhere take longer still.
    """
    data = dict.fromkeys(chip.memory, 0)
    cache = _cache_bytes(operator)
    roles = {"parameters": used_weight_bytes(operator), "keys": 0, "values": 0}
    if isinstance(operator, Attention) and cache:
        roles["keys"] = cache * operator.head_dim // (operator.head_dim + operator.v_head_dim)
        roles["values"] = cache - roles["keys"]
    for role, size in roles.items():
        for level, units in placement.shares((operator.name, role)).items():
            data[level] += size * units
    if activations and isinstance(operator, Gemm):
        parts = {"input": operator.batch * operator.m * operator.k, "result": operator.batch * operator.m * operator.n}
        if not operator.weight:
            parts["operand 1"] = operator.batch * operator.k * operator.n
        for role, elements in parts.items():
            for level in placement.shares((operator.name, role)):
                data[level] += operator.precision.size(elements) * operator.repeat
    elif activations:
        held = {level for key in placement.homes if key[0] == operator.name for level in placement.shares(key)}
        fastest = max(chip.memory, key=lambda name: (name in held, chip.memory[name].total_bandwidth))
        data[fastest] += (_data(operator) - cache) * operator.repeat
    return data


def _bound(chip: Chip, macs: int, data: dict[str, int], slots: int) -> Bound:
    levels = {
        name: -(-data.get(name, 0) * chip.clock // memory.total_bandwidth) for name, memory in chip.memory.items()
    }
    vector_cycles = 0
    if isinstance(chip.tile, NpuTile):
        vector_cycles = -(-slots // (chip.tile.vector.lanes * chip.tile_count))
    return Bound(-(-macs // chip.peak_macs), max(levels.values(), default=0), vector_cycles, levels)


def _vector_slots(operator: Operator) -> int:
    if isinstance(operator, Vector):
        return vector_cost(operator.function).passes * operator.rows * operator.cols
    if isinstance(operator, Attention):
        pairs = operator.macs // (operator.head_dim + operator.v_head_dim)
        return vector_cost(VectorFunction.SOFTMAX).passes * pairs
    return 0


def used_weight_bytes(operator: Operator) -> int:
    """Parameters that one execution reads: only the active experts, only the rows a gather takes."""
    if isinstance(operator, Gemm):
        if not operator.weight:
            return 0
        return operator.precision.size(operator.batch * operator.k * operator.n)
    if isinstance(operator, Vector) and operator.function == VectorFunction.GATHER:
        return 0
    return operator.weight_bytes


def _cache_bytes(operator: Operator) -> int:
    """Keys and values of an attention operator, each read once."""
    if not isinstance(operator, Attention):
        return 0
    reach = operator.kv_len if operator.window is None else min(operator.kv_len, operator.window + operator.q_len)
    if operator.q_len > 1:
        return 0  # at prefill they were just made and may still be on chip
    return operator.precision.size(
        operator.batch * operator.kv_heads * reach * (operator.head_dim + operator.v_head_dim)
    )
