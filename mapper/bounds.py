"""Lower bounds: no mapping of a workload to a chip can be faster than these."""

from __future__ import annotations

from dataclasses import dataclass

from siliconloom.arch.description import Chip, NpuTile
from siliconloom.arch.vector import VectorFunction, vector_cost
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
        on chip and are left out of a whole workload's bound.
    vector_cycles
        Passes of the vector unit over all elements, over its lanes.
    """

    compute_cycles: int
    memory_cycles: int
    vector_cycles: int

    @property
    def lower_bound_cycles(self) -> int:
        return max(self.compute_cycles, self.memory_cycles, self.vector_cycles)

    @property
    def name(self) -> str:
        """What binds: compute, memory or vector."""
        return max((self.compute_cycles, "compute"), (self.memory_cycles, "memory"), (self.vector_cycles, "vector"))[1]

    def as_dict(self) -> dict[str, int | str]:
        """The figures and what binds, as results show them."""
        names = ("compute_cycles", "memory_cycles", "vector_cycles", "lower_bound_cycles", "name")
        return {name: getattr(self, name) for name in names}


def operator_bound(chip: Chip, operator: Operator) -> Bound:
    """Bound of one execution of ``operator`` with its operands and results in memory."""
    used = _used_weight_bytes(operator)
    return _bound(chip, operator.macs, used + operator.input_bytes + operator.output_bytes, _vector_slots(operator))


def graph_bound(chip: Chip, graph: Graph) -> Bound:
    """Bound of a whole workload."""
    operators = graph.operators()
    macs = sum(o.macs * o.repeat for o in operators)
    data = sum((_used_weight_bytes(o) + _cache_bytes(o)) * o.repeat for o in operators)
    if graph.digraph.number_of_edges() == 0:
        data = sum((_used_weight_bytes(o) + o.input_bytes + o.output_bytes) * o.repeat for o in operators)
    return _bound(chip, macs, data, sum(_vector_slots(o) * o.repeat for o in operators))


def _bound(chip: Chip, macs: int, data: int, slots: int) -> Bound:
    memory_cycles = vector_cycles = 0
    if chip.memory:
        memory = next(iter(chip.memory.values()))
        memory_cycles = -(-data * chip.clock // memory.bandwidth)
    if isinstance(chip.tile, NpuTile):
        vector_cycles = -(-slots // (chip.tile.vector.lanes * chip.tile_count))
    return Bound(-(-macs // chip.peak_macs), memory_cycles, vector_cycles)


def _vector_slots(operator: Operator) -> int:
    if isinstance(operator, Vector):
        return vector_cost(operator.function).passes * operator.rows * operator.cols
    if isinstance(operator, Attention):
        pairs = operator.macs // (operator.head_dim + operator.v_head_dim)
        return vector_cost(VectorFunction.SOFTMAX).passes * pairs
    return 0


def _used_weight_bytes(operator: Operator) -> int:
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
