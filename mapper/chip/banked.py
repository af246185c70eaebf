"""Attention of a token in a channel of memory that computes: keys and values lie in its banks, and nowhere else.

A head's keys are vectors of ``head_dim`` elements: number t is in bank ``t % banks``, several of them one behind the
other in a row (segments), so that the sums of a round are the scores of keys in their order. Its values lie transposed:
the vector of column c has an element for each position, in bank ``c % banks``, and goes on in the rows behind its first
one where it is longer than a row. So a product leaves scores, or columns of the result, side by side.

The program that computes attention so has four kinds of banks of the scratchpad for it, the last ones: operands for the
channel that the DMA loads, those that the vector unit makes, scores that the channel leaves for the vector unit, and
results for the DMA. All other operators share the banks before them (`room_beside`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.layout import parameter_bytes
from siliconloom.arch.pim import CHANNEL_BYTES, RESULT_BYTES, PimTile
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import COLUMN_LIMIT, VectorFunction
from siliconloom.mapper.chip.operands import Cached, has_biases
from siliconloom.mapper.chip.rings import SLOTS
from siliconloom.mapper.chip.tasks import Task
from siliconloom.workloads import Attention, Graph

CHANNEL_BANKS = 4
"""Banks of the scratchpad that the channel's operands and results have to themselves."""


class ChannelTiling(Struct, frozen=True):
    """What a task moves in main memory, and what it should take, where a channel does it; nothing else is decided."""

    read_bytes: int
    write_bytes: int
    memory_cycles: int
    vector_cycles: int
    cycles: int

    @property
    def array_cycles(self) -> int:
        """Cycles that the array works."""
        return 0


class BankedLayout(Struct, frozen=True):
    """Where keys and values of an attention operator lie in a channel.

    Parameters
    ----------
    pim
        The channel.
    shape
        The operator.
    """

    pim: PimTile
    shape: Attention

    @property
    def burst(self) -> int:
        """Bytes of a burst."""
        return self.pim.dram.organization.request_bytes

    @property
    def elements(self) -> int:
        """Of a burst."""
        return self.burst // CHANNEL_BYTES

    @property
    def row_bytes(self) -> int:
        """Of a row of one bank."""
        return self.pim.dram.organization.row_bytes

    @property
    def key_bursts(self) -> int:
        """Of a key."""
        return self.shape.head_dim // self.elements

    @property
    def segments(self) -> int:
        """Keys in a row of a bank: as many as it has sums for, of keys whose places in a row are aligned."""
        bursts = self.key_bursts
        return 1 if bursts & (bursts - 1) else max(min(self.pim.accumulators, self.pim.row_columns // bursts), 1)

    @property
    def key_rounds(self) -> int:
        """Rounds that make the scores of all keys."""
        return -(-self.shape.kv_len // (self.segments * self.pim.banks))

    @property
    def key_rows(self) -> int:
        """Rows of every bank that the keys of a head have room in."""
        return -(-self.shape.positions // (self.segments * self.pim.banks))

    @property
    def seen_bursts(self) -> int:
        """Of the probabilities of all keys, filled up."""
        return -(-self.shape.kv_len // self.elements)

    @property
    def chunks(self) -> int:
        """Rows that a column of values takes."""
        bursts = -(-self.shape.positions // self.elements)
        return -(-bursts // self.pim.row_columns)

    @property
    def value_rounds(self) -> int:
        """Rounds that make all columns of a result."""
        return self.shape.v_head_dim // self.pim.banks

    @property
    def head_rows(self) -> int:
        """Rows of every bank that keys and values of a head take."""
        return self.key_rows + self.value_rounds * self.chunks

    @property
    def rows(self) -> int:
        """Rows of every bank of one execution."""
        return self.shape.batch * self.shape.kv_heads * self.head_rows

    def key_at(self, position: int) -> int:
        """Where a key begins, in bytes from where the head's rows do."""
        place, bank = divmod(position, self.pim.banks)
        row, segment = divmod(place, self.segments)
        return (row * self.pim.banks + bank) * self.row_bytes + segment * self.key_bursts * self.burst

    def value_at(self, column: int, position: int) -> int:
        """Where the burst of a position of a column of values begins, in bytes from where the head's rows do."""
        chunk, burst = divmod(position // self.elements, self.pim.row_columns)
        row = self.key_rows + column // self.pim.banks * self.chunks + chunk
        return (row * self.pim.banks + column % self.pim.banks) * self.row_bytes + burst * self.burst

    @property
    def plane(self) -> int:
        """Bytes of the channel from one head's rows to the next one's."""
        return self.head_rows * self.pim.banks * self.row_bytes

    @property
    def floor(self) -> int:
        """Cycles of the banks' lanes at least, of one execution: every key and every value once for each query head."""
        pim, shape = self.pim, self.shape
        scores = -(-shape.kv_len // pim.banks) * self.key_bursts
        context = self.value_rounds * self.seen_bursts
        return shape.batch * shape.heads * (scores + context) * pim.dot_interval


def layout_of(tile: NpuTile, shape: Attention) -> BankedLayout:
    """Where a tile's channel has the keys and values of an operator."""
    assert tile.pim is not None
    return BankedLayout(tile.pim, shape)


def why_not(tile: NpuTile, graph: Graph, shape: Attention) -> str | None:
    """Why an attention operator is not computed in the tile's channel; nothing where it is."""
    assert tile.pim is not None
    made, bank = BankedLayout(tile.pim, shape), tile.scratchpad.capacity // tile.scratchpad.banks
    slot = bank // SLOTS
    if shape.q_len != 1 or not shape.causal:
        return "keys and values of one new token of each sequence are read there, and no others"
    if shape.values_in_keys or shape.sinks or shape.cached is not None or shape.remade:
        return "keys and values lie there each by themselves, in bf16"
    if shape.window is not None and shape.window < shape.kv_len:
        return "all keys are read there, and not those of a window"
    if has_biases(graph, shape):
        return "scores have no biases there"
    if shape.precision is not tile.circuit_format:
        return f"elements are in {tile.circuit_format.value}"
    if shape.head_dim % made.elements:
        return f"keys are whole bursts of {made.elements} elements (got {shape.head_dim})"
    if shape.v_head_dim % tile.pim.banks:
        return f"values have a column for each of {tile.pim.banks} banks (got {shape.v_head_dim})"
    if made.key_bursts > tile.pim.row_columns:
        return "a key is longer than a row of a bank"
    words = tile.pim.global_buffer // made.burst
    if made.seen_bursts + made.key_bursts > words:
        most = (words - made.key_bursts) * made.elements
        return f"the global buffer holds the probabilities of {most:,} keys (tile.pim.global_buffer)"
    if -(-made.seen_bursts // tile.pim.row_columns) != made.chunks or shape.kv_len > COLUMN_LIMIT:
        return "probabilities are of as many rows of values as there is room for"
    scores = made.key_rounds * made.segments * tile.pim.banks * tile.element_bytes
    columns = shape.v_head_dim * made.elements * tile.element_bytes
    if max(scores, columns) > slot or tile.scratchpad.banks <= 2 * CHANNEL_BANKS:
        return f"a bank of the scratchpad holds two slots of {max(scores, columns):,} bytes"
    return None


def in_banks(chip: Chip, graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The same graph with attention in the tile's channel, where all of it can be there; and a note where it is not."""
    tile = chip.tile
    attentions = [operator for operator in graph.operators() if isinstance(operator, Attention)]
    if not isinstance(tile, NpuTile) or tile.pim is None:
        return graph, ()
    if chip.attention == "separate":
        return graph, ("the channel (tile.pim) rests: attention is operators of the array (attention: separate)",)
    if not attentions:
        return graph, ()
    reason = next((found for each in attentions if (found := why_not(tile, graph, each))), None)
    if reason is None:
        taken = sum(BankedLayout(tile.pim, each).rows * each.repeat for each in attentions)
        rows = tile.pim.dram.organization.rows
        if taken > rows:
            reason = f"keys and values take {taken:,} rows of every bank, which has {rows:,}"
    if reason is not None:
        return graph, (f"attention is computed by the array, and the channel (tile.pim) rests: {reason}",)
    return graph.with_operators({each.name: replace(each, banked=True) for each in attentions}), ()


def refuse_banked(chip: Chip, graph: Graph, what: str) -> None:
    """Raise `NotSupported` for something that is not built for attention in a channel, where a graph has it there."""
    if is_banked(graph):
        raise NotSupported(
            f"{what} where the channel computes attention (tile.pim of {chip.name}); with --set tile.pim=null it is "
            "the array that does"
        )


def array_alone(chip: Chip, graph: Graph, what: str) -> tuple[str, ...]:
    """Why the array computes attention on a chip with a channel: something is not built for that, or it cannot.

    Raises
    ------
    NotSupported
        Where it is to be in the channel whatever that takes.
    """
    banked, rests = in_banks(chip, graph)
    if not is_banked(banked):
        return rests
    if chip.attention == "channel":
        refuse_banked(chip, banked, what)
    return (f"attention is computed by the array, and the channel (tile.pim) rests: not built for {what}",)


def is_banked(graph: Graph) -> bool:
    """Whether attention of a graph is computed in a channel."""
    return any(isinstance(operator, Attention) and operator.banked for operator in graph.operators())


def first_rows(tile: NpuTile, graph: Graph) -> Mapping[str, int]:
    """By operator, the first row of the channel's banks that its keys and values have: one operator after the other."""
    found, row = dict[str, int](), 0
    for operator in graph.operators():
        if isinstance(operator, Attention) and operator.banked:
            found[operator.name] = row
            row += layout_of(tile, operator).rows * operator.repeat
    return found


@lru_cache(maxsize=64)
def _smaller(tile: NpuTile) -> NpuTile:
    scratchpad = tile.scratchpad
    bank = scratchpad.capacity // scratchpad.banks
    left = {"capacity": scratchpad.capacity - CHANNEL_BANKS * bank, "banks": scratchpad.banks - CHANNEL_BANKS}
    return tile.model_copy(update={"scratchpad": scratchpad.model_copy(update=left)})


def room_beside(tile: NpuTile, graph: Graph) -> NpuTile:
    """The tile with the banks of its scratchpad that operators have whose work is not the channel's."""
    return _smaller(tile) if is_banked(graph) else tile


def channel_tiling(chip: Chip, task: Task) -> ChannelTiling | None:
    """Of a task that a channel does, attention or what appends to its keys and values; nothing of others."""
    operator, cached = task.operator, task.cached
    assert isinstance(chip.tile, NpuTile)
    if isinstance(operator, Attention) and operator.banked:
        return attention_cost(chip.tile, operator)
    if isinstance(cached, Cached) and cached.attention.banked:
        return append_cost(chip.tile, cached.attention, keys=cached.keys)
    return None


def channel_needs(tile: NpuTile, task: Task) -> dict[str, int]:
    """Bytes of a slot of rings, by name, that a task takes which a channel does: of what appends values, for a head."""
    cached = task.cached
    if not isinstance(cached, Cached):
        return {"constants": parameter_bytes(tile, VectorFunction.SOFTMAX_ROWS, 1, narrow=1)}
    if cached.keys:
        return {}
    width = cached.width * tile.element_bytes
    return {"vector": layout_of(tile, cached.attention).elements * width, "results": width}


def attention_cost(tile: NpuTile, shape: Attention) -> ChannelTiling:
    """What attention of one execution should take: heads one after the other, each step by itself."""
    made, pim = layout_of(tile, shape), tile.pim
    assert pim is not None
    t, size = pim.dram.timing, shape.precision.size
    groups = pim.banks // pim.activate_group
    opening = t.tRCD + (groups - 1) * max(t.tRRD_L, t.tFAW * pim.activate_group // 4)
    closing = t.tRTP + t.tRP + t.tCCD_L * pim.banks * RESULT_BYTES // made.burst
    scores = made.key_rounds * (opening + closing + made.segments * made.key_bursts * pim.dot_interval)
    context = made.value_rounds * (opening + closing + made.seen_bursts * pim.dot_interval)
    moved = (made.key_bursts + made.seen_bursts) * t.tCCD_L + 4 * (t.CWL + t.tWTR_L)
    heads, softmax = shape.batch * shape.heads, -(-2 * shape.kv_len // tile.vector.lanes)
    return ChannelTiling(
        size(shape.query_elements), size(shape.output_elements), 0, heads * softmax, heads * (scores + context + moved)
    )


def append_cost(tile: NpuTile, shape: Attention, *, keys: bool) -> ChannelTiling:
    """What appending the new keys, or values, of one execution should take."""
    made, pim = layout_of(tile, shape), tile.pim
    assert pim is not None
    t, size, heads = pim.dram.timing, shape.precision.size, shape.batch * shape.kv_heads
    one = t.tRCD + t.CWL + t.tWR + t.tRP
    if keys:
        return ChannelTiling(size(heads * shape.head_dim), 0, 0, 0, heads * (one + made.key_bursts * t.tCCD_L))
    rows = heads * shape.v_head_dim
    block, turned = size(rows * made.elements), -(-rows * (made.elements + tile.vector.lanes) // tile.vector.lanes)
    return ChannelTiling(block, size(rows), 0, turned, rows * one // pim.bank_machines)


__all__ = [
    "BankedLayout",
    "CHANNEL_BANKS",
    "ChannelTiling",
    "append_cost",
    "array_alone",
    "channel_needs",
    "attention_cost",
    "channel_tiling",
    "first_rows",
    "in_banks",
    "is_banked",
    "layout_of",
    "refuse_banked",
    "room_beside",
    "why_not",
]
