"""Lower bounds: no mapping of a workload to a chip can be faster than these."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct, field

from siliconloom.arch.description import Chip
from siliconloom.arch.memory import Memory
from siliconloom.arch.pim import PimTile
from siliconloom.arch.tile import NpuTile, SystolicTile
from siliconloom.arch.vector import VectorFunction
from siliconloom.mapper.chip.banked import layout_of
from siliconloom.mapper.chip.floors import array_floor, read_floor, vector_floor
from siliconloom.mapper.chip.orientation import oriented
from siliconloom.mapper.chip.placement import Placement
from siliconloom.workloads import Attention, Gemm, Graph, Operator, Vector
from siliconloom.workloads.recurrence import Recurrence

ADDED = (VectorFunction.ADD,)
"""Fused functions that read a second operand from memory."""


class Bound(Struct, frozen=True):
    """Cycles that work and data alone need.

    Parameters
    ----------
    compute_cycles
        Beats of the array's whole folds, or the loads of their stationary operand: what does not fill a fold takes as
        long as one that does.
    memory_cycles
        Bytes that must cross the memory port, over its bandwidth: parameters in use, the key-value cache, and for a
        single operator its operands and results as well, those of a product as often as buffers of this size make it
        read them. Results that one operator hands to the next could stay on chip and are left out of a whole
        workload's bound. With several memory levels: of the level that needs the longest for what lies in it, once.
    vector_cycles
        Passes of the vector unit over all elements, over its lanes, with the parameters that it reads for each block.
    decompression_cycles
        Bytes that the decompressors of all tiles must make of compressed weights in use, over their rate.
    level_cycles
        The same as ``memory_cycles``, for each level.
    """

    compute_cycles: int
    memory_cycles: int
    vector_cycles: int
    level_cycles: dict[str, int] = field(default_factory=dict)
    decompression_cycles: int = 0

    @property
    def lower_bound_cycles(self) -> int:
        return max(self.compute_cycles, self.memory_cycles, self.vector_cycles, self.decompression_cycles)

    @property
    def name(self) -> str:
        """What binds: compute, memory, vector or decompression."""
        pipes = ("compute", "decompression", "memory", "vector")
        return max((getattr(self, f"{pipe}_cycles"), pipe) for pipe in pipes)[1]

    def as_dict(self) -> dict[str, Any]:
        """The figures and what binds, as results show them."""
        names = ("compute_cycles", "memory_cycles", "vector_cycles", "level_cycles", "lower_bound_cycles", "name")
        found = {name: getattr(self, name) for name in names}
        return found | ({"decompression_cycles": self.decompression_cycles} if self.decompression_cycles else {})


def operator_bound(chip: Chip, operator: Operator, fused: Sequence[Vector] = ()) -> Bound:
    """Bound of one execution of ``operator`` with its operands and results in the nearest memory.

    ``fused`` is computed on its results before they leave the tile.
    """
    data = _near(chip, least_traffic(chip, operator, fused))
    return _bound(chip, data, *_unit_cycles(chip, operator, fused), _decompression_cycles(chip, operator))


def least_bytes(chip: Chip, bound: Bound) -> int:
    """Bytes of main memory's traffic that a bound's memory cycles are, rounded down."""
    return bound.memory_cycles * _reached(chip, chip.nearest) // int(chip.clock)


def placed_bound(chip: Chip, operator: Operator, placement: Placement | None, fused: Sequence[Vector] = ()) -> Bound:
    """Bound of all executions of ``operator`` with its operands and results where they are placed."""
    times = operator.repeat
    if placement is None:
        one = operator_bound(chip, operator, fused)
        levels = {name: times * cycles for name, cycles in one.level_cycles.items()}
        return Bound(
            times * one.compute_cycles,
            times * one.memory_cycles,
            times * one.vector_cycles,
            levels,
            times * one.decompression_cycles,
        )
    data = _level_bytes(chip, operator, placement, fused, activations=True)
    compute, vector = _unit_cycles(chip, operator, fused)
    return _bound(chip, data, compute * times, vector * times, _decompression_cycles(chip, operator) * times)


def mean_bound(chip: Chip, operator: Operator, placement: Placement | None, fused: Sequence[Vector] = ()) -> Bound:
    """Bound of one execution: `operator_bound`, or the mean of all executions where they are placed, rounded up."""
    if placement is None:
        return operator_bound(chip, operator, fused)
    whole, times = placed_bound(chip, operator, placement, fused), operator.repeat
    levels = {name: -(-cycles // times) for name, cycles in whole.level_cycles.items()}
    return Bound(
        -(-whole.compute_cycles // times),
        max(levels.values(), default=0),
        -(-whole.vector_cycles // times),
        levels,
        -(-whole.decompression_cycles // times),
    )


def graph_bound(chip: Chip, graph: Graph, placement: Placement | None = None) -> Bound:
    """Bound of a whole workload, its objects in the nearest memory or where they are placed."""
    operators = graph.operators()
    listed = not graph.dataflow.linked
    data: dict[str, int]
    if placement is not None:
        data = dict.fromkeys(chip.memory, 0)
        for operator in operators:
            for level, count in _level_bytes(chip, operator, placement, (), activations=listed).items():
                data[level] += count
    elif listed:
        data = _near(chip, sum(least_traffic(chip, o, ()) * o.repeat for o in operators))
    else:
        own = sum((used_weight_bytes(o) + _cache_bytes(o) + read_again(chip, o)) * o.repeat for o in operators)
        data = _near(chip, own)
    compute = vector = made = 0
    for operator in operators:
        cycles, passes = _unit_cycles(chip, operator, ())
        compute += cycles * operator.repeat
        made += _decompression_cycles(chip, operator) * operator.repeat
        # what follows a product may be computed on its sums, in the pass that takes them from the accumulator
        after = (graph.dataflow[name] for name in graph.dataflow.successors(operator.name))
        followed = any(isinstance(follower, Vector) for follower in after)
        vector += 0 if isinstance(operator, Gemm) and followed else passes * operator.repeat
    return _bound(chip, data, compute, vector, made)


def _near(chip: Chip, data: int) -> dict[str, int]:
    return {next(iter(chip.memory)): data} if chip.memory else {}


def data_bytes(operator: Operator, fused: Sequence[Vector]) -> int:
    """Bytes of the operands and of the result that is stored: that of the last fused operator."""
    added = sum(operator.precision.size(v.rows * v.cols) * (v.inputs - 1) for v in fused if v.function in ADDED)
    return operator.input_bytes + added + (fused[-1] if fused else operator).output_bytes


def least_traffic(chip: Chip, operator: Operator, fused: Sequence[Vector]) -> int:
    """Bytes that one execution moves at least with everything in one memory, through buffers of the tiles' size."""
    return used_weight_bytes(operator) + data_bytes(operator, fused) + read_again(chip, operator)


def read_again(chip: Chip, operator: Operator) -> int:
    """Bytes of a product's operands that one execution reads more than once, as buffers hold no more at a time.

    Whether the first operand comes from main memory or is made on the chip: what of it the scratchpad does not keep
    while all columns pass comes again from there, or the columns do.
    """
    if not (isinstance(operator, Gemm) and isinstance(chip.tile, NpuTile)):
        return 0
    once = operator.batch * (operator.precision.size(operator.m * operator.k) + operator.matrix_bytes)
    return max(read_floor(chip.tile, operator) - once, 0)


def _unit_cycles(chip: Chip, operator: Operator, fused: Sequence[Vector]) -> tuple[int, int]:
    """Cycles of the array and of the vector unit for one execution, all tiles at work."""
    if isinstance(chip.tile, PimTile):
        return -(-operator.macs // chip.peak_macs), 0
    return _tile_cycles(chip.tile, chip.tile_count, operator, tuple(fused))


@lru_cache(maxsize=1 << 12)
def _tile_cycles(
    tile: SystolicTile | NpuTile, tiles: int, operator: Operator, fused: tuple[Vector, ...]
) -> tuple[int, int]:
    """As `_unit_cycles`, of so many tiles, whatever their memory and clock."""
    array, vector = tile.array, 0
    if isinstance(tile, NpuTile) and isinstance(operator, Attention) and operator.banked:
        return layout_of(tile, operator).floor, vector_floor(tile, operator, fused)
    if isinstance(tile, NpuTile):
        array, vector = oriented(tile).array, vector_floor(tile, operator, fused)
    return -(-array_floor(array, operator) // tiles), -(-vector // tiles)


def _level_bytes(
    chip: Chip, operator: Operator, placement: Placement, fused: Sequence[Vector], *, activations: bool
) -> dict[str, int]:
    """Bytes that all executions must move at each level at least.

    Operands of a product that are no earlier result, and its results, count where they lie; other operators'
    activations count at the fastest level that holds any of them: a tile has one port to all levels, so those that lie
    elsewhere take longer still.
    """
    data = dict.fromkeys(chip.memory, 0)
    cache = _cache_bytes(operator)
    roles = {"parameters": used_weight_bytes(operator), "keys": 0, "values": 0}
    if isinstance(operator, Attention) and cache:
        width = operator.head_dim + (0 if operator.values_in_keys else operator.v_head_dim)
        roles["keys"] = cache * operator.head_dim // width
        roles["values"] = cache - roles["keys"]
    if isinstance(operator, Recurrence):
        roles["state"] = cache
    for role, size in roles.items():
        for level, units in placement.shares((operator.name, role)).items():
            data[level] += size * units
    if activations and isinstance(operator, Gemm):
        stored = (fused[-1] if fused else operator).output_elements
        parts = {"input": operator.batch * operator.m * operator.k, "result": stored}
        if not operator.weight:
            parts["operand 1"] = operator.batch * operator.k * operator.n
        for role, elements in parts.items():
            for level in placement.shares((operator.name, role)):
                data[level] += operator.precision.size(elements) * operator.repeat
    elif activations:
        held = {level for key in placement.homes if key[0] == operator.name for level in placement.shares(key)}
        if (operator.name, "input") not in placement.homes:  # it is another operator's result, wherever that lies
            held = set(chip.memory)
        fastest = max(chip.memory, key=lambda name: (name in held, chip.memory[name].total_bandwidth))
        data[fastest] += (data_bytes(operator, fused) - cache) * operator.repeat
    return data


def _decompression_cycles(chip: Chip, operator: Operator) -> int:
    """Cycles in which the decompressors of all tiles make what one execution reads of compressed weights."""
    if not (isinstance(operator, Gemm) and operator.compression is not None and isinstance(chip.tile, NpuTile)):
        return 0
    rate = (chip.tile.dma.decompression or 1) * chip.tile_count
    return -(-operator.batch * operator.expanded_bytes // rate)


def _bound(chip: Chip, data: dict[str, int], compute: int, vector: int, decompression: int = 0) -> Bound:
    levels = {
        name: -(-data.get(name, 0) * chip.clock // _reached(chip, memory)) for name, memory in chip.memory.items()
    }
    return Bound(compute, max(levels.values(), default=0), vector, levels, decompression)


def _reached(chip: Chip, memory: Memory) -> int:
    """Bytes per second of a memory that the tiles' data buses carry."""
    return chip.path_bandwidth(memory) if isinstance(chip.tile, NpuTile) else memory.total_bandwidth


def used_weight_bytes(operator: Operator) -> int:
    """Parameters that one execution reads: only the active experts, only the rows a gather takes."""
    if isinstance(operator, Gemm):
        if not operator.weight:
            return 0
        return operator.batch * operator.matrix_bytes
    if isinstance(operator, Vector) and operator.function == VectorFunction.GATHER:
        return 0
    return operator.weight_bytes


def _cache_bytes(operator: Operator) -> int:
    """Keys and values of an attention operator, each read once; states that a step goes on from, read and written."""
    if isinstance(operator, Recurrence):
        return 2 * operator.state_bytes if operator.begun else 0
    if not isinstance(operator, Attention):
        return 0
    if operator.q_len == 1:
        return operator.kv_read_bytes
    # those of several new tokens were just made and may still be on chip
    earlier = min(operator.past, operator.kv_read - operator.q_len) if operator.past else 0
    return operator.kv_read_bytes * max(earlier, 0) // operator.kv_read
