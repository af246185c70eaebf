"""Attention of a decode step in memory: where keys and values lie, which channel has which sequence, which macros run.

**Keys** of a sequence lie head-wise: a bank's row holds the key of one token for as many heads as fit, the next token
is in the next bank. One activation of all banks gives the scores of that many tokens for each of those heads.
**Values** lie transposed: a bank's row holds, for one component of a head, the values of the tokens; the next component
is in the next bank. While a sequence is short, several heads share a row (``packed``): room for twice the tokens is
made when it is full. Heads that share keys and values (grouped queries) read the same rows once for each.

A channel works on its sequences in turn: the scores of the next one come before the values of this one, so that the
vector unit's softmax is hidden behind them. Vectors that the global buffer cannot hold go in pieces, whose results
the vector unit adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.pim import Macro, MacroKind, PimTile
from siliconloom.mapper.pim.layout import plan_gemv
from siliconloom.workloads import Attention, Gemm

Values = Literal["packed", "row"]
Balance = Literal["greedy", "round_robin"]


class Head(Struct, frozen=True):
    """What attention in memory looks like for every sequence.

    Parameters
    ----------
    heads, kv_heads
        Of one chip.
    width, value_width
        Elements of a key and of a value.
    dtype
        Format of both.
    values
        How values lie, see the module's text.
    """

    heads: int
    kv_heads: int
    width: int
    value_width: int
    dtype: DataType
    values: Values = "packed"

    @classmethod
    def of(cls, attention: Attention, values: Values = "packed") -> Head:
        """Of an attention operator; raises `NotSupported` for what cannot be computed in memory."""
        if attention.q_len != 1:
            raise NotSupported(f"{attention.name}: attention of several queries in memory (workload.sequence)")
        if (attention.window or attention.kv_len) < attention.kv_len or attention.values_in_keys:
            raise NotSupported(f"{attention.name}: attention in memory with a window, or with values within keys")
        return cls(
            attention.heads, attention.kv_heads, attention.head_dim, attention.v_head_dim, attention.precision, values
        )


class CacheShape(Struct, frozen=True):
    """Rows and rounds of one sequence in one channel.

    Parameters
    ----------
    together
        Heads whose keys share a row.
    key_rounds, key_groups
        Activations of all banks per group of heads, and groups.
    packed
        Heads whose values share a row.
    value_rounds, value_groups, value_chunks
        Activations of all banks per group and chunk, groups of heads, rows along the tokens.
    """

    together: int
    key_rounds: int
    key_groups: int
    packed: int
    value_rounds: int
    value_groups: int
    value_chunks: int

    @property
    def rows(self) -> int:
        """Rows of every bank that the sequence takes in one layer."""
        return self.key_rounds * self.key_groups + self.value_rounds * self.value_groups * self.value_chunks


def shape_of(tile: PimTile, head: Head, context: int) -> CacheShape:
    """How a sequence of ``context`` tokens lies in a channel; raises `LoomError` when a key does not fit a row."""
    elements = tile.burst_elements(head.dtype)
    columns = -(-head.width // elements)
    if columns > tile.row_columns:
        raise NotSupported(f"keys of {head.width} elements, which are longer than a row of the banks")
    together = min(tile.row_columns // columns, tile.accumulators, head.kv_heads)
    room = elements
    while room < context:
        room *= 2
    packed = 1
    if head.values == "packed":
        packed = max(min(tile.row_columns * elements // room, tile.accumulators, head.kv_heads), 1)
    return CacheShape(
        together,
        -(-context // tile.banks),
        -(-head.kv_heads // together),
        packed,
        -(-head.value_width // tile.banks),
        -(-head.kv_heads // packed),
        -(-context // (tile.row_columns * elements)),
    )


def load_of(tile: PimTile, head: Head, context: int) -> int:
    """Activations of all banks that a sequence costs in one layer: what channels are balanced by."""
    shape = shape_of(tile, head, context)
    return shape.rows * (head.heads // head.kv_heads)


def shared(tile: PimTile, head: Head, sequences: int) -> tuple[Head, int]:
    """Heads of every share of a sequence, and shares of each.

    A sequence lies in one channel; when there are fewer of them than channels, its heads are spread over several.
    """
    split = max(min(head.kv_heads, tile.channels // sequences), 1)
    together = -(-head.kv_heads // split)
    return replace(head, kv_heads=together, heads=together * (head.heads // head.kv_heads)), split


def balance(loads: Sequence[int], channels: int, how: Balance) -> list[list[int]]:
    """Sequences of every channel, by number.

    ``round_robin`` deals them out in turn; ``greedy`` takes the heaviest first and gives each to the least loaded
    channel (longest processing time first: at most 4/3 of the best, Graham 1969).
    """
    dealt: list[list[int]] = [[] for _ in range(channels)]
    if how == "round_robin":
        for number in range(len(loads)):
            dealt[number % channels].append(number)
        return dealt
    total = [(0, channel) for channel in range(channels)]
    for number in sorted(range(len(loads)), key=lambda n: (-loads[n], n)):
        load, least = total[0]
        dealt[least].append(number)
        heapreplace(total, (load + loads[number], least))
    return dealt


def attention_macros(tile: PimTile, head: Head, contexts: Sequence[int], softmax: Sequence[int]) -> list[Macro]:
    """Macros of one channel for one layer's attention of its sequences.

    Parameters
    ----------
    tile, head
        The channel, and the heads of each sequence.
    contexts
        Tokens of each sequence of this channel.
    softmax
        Cycles from a sequence's last score to its first probability.

    Raises
    ------
    LoomError
        When the sequences take more rows than a bank has.
    """
    macros: list[Macro] = []
    row = 0
    waiting: tuple[int, int, int, int] | None = None  # context, its rows, its last score, softmax

    def scores(context: int, row: int) -> None:
        shape = shape_of(tile, head, context)
        columns = -(-head.width // tile.burst_elements(head.dtype))
        fitting = max(tile.global_buffer // tile.dram.organization.request_bytes // (shape.together * columns), 1)
        queries = head.heads // head.kv_heads
        steps = [(group, query) for group in range(shape.key_groups) for query in range(queries)]
        for start in range(0, len(steps), fitting):
            batch = steps[start : start + fitting]
            sizes = [min(shape.together, head.kv_heads - group * shape.together) for group, _ in batch]
            macros.append(Macro(kind=MacroKind.GWRITE, columns=sum(sizes) * columns, dtype=head.dtype))
            column = 0
            for (group, _), size in zip(batch, sizes, strict=True):
                macros.append(
                    Macro(
                        kind=MacroKind.GEMV,
                        row=row + group * shape.key_rounds,
                        rounds=shape.key_rounds,
                        segments=size,
                        columns=columns,
                        column=column,
                        apart=True,
                        dtype=head.dtype,
                    )
                )
                column += size * columns

    def values(context: int, row: int, after: int, delay: int) -> None:
        shape = shape_of(tile, head, context)
        row += shape.key_rounds * shape.key_groups
        columns = -(-context // tile.burst_elements(head.dtype))
        buffer = tile.global_buffer // tile.dram.organization.request_bytes
        for group in range(shape.value_groups):
            size = min(shape.packed, head.kv_heads - group * shape.packed)
            first = row + group * shape.value_rounds * shape.value_chunks
            for _ in range(head.heads // head.kv_heads):
                for chunk, width in _pieces(columns, tile.row_columns, buffer // size):
                    macros.append(
                        Macro(kind=MacroKind.GWRITE, columns=size * width, dtype=head.dtype, after=after, delay=delay)
                    )
                    chunks = -(-width // tile.row_columns)
                    wide = min(width, tile.row_columns)
                    macros.append(
                        Macro(
                            kind=MacroKind.GEMV,
                            row=first + chunk * shape.value_rounds,
                            rounds=shape.value_rounds,
                            chunks=chunks,
                            segments=size,
                            columns=wide,
                            last_columns=width - (chunks - 1) * wide,
                            apart=True,
                            dtype=head.dtype,
                        )
                    )

    for context, delay in zip(contexts, softmax, strict=True):
        scores(context, row)
        last = len(macros) - 1
        if waiting is not None:
            values(*waiting)
        waiting = (context, row, last, delay)
        row += shape_of(tile, head, context).rows
    if waiting is not None:
        values(*waiting)
    if row > tile.dram.organization.rows:
        raise LoomError(f"keys and values take {row} rows of a bank in one layer, of {tile.dram.organization.rows}")
    return macros


def weight_macros(tile: PimTile, rows: int, length: int, dtype: DataType) -> list[Macro]:
    """Macros of one channel for a vector's product with ``rows`` rows of a weight matrix of ``length`` columns."""
    return plan_gemv(tile, rows, length, dtype).macros()


def can_compute(operator: object) -> bool:
    """Tell whether an operator is a product with stored weights that memory can compute: operands as they are."""
    if not (isinstance(operator, Gemm) and operator.weight and operator.batch == 1 and operator.stored is None):
        return False
    return operator.packing is None and operator.compression is None and operator.sparsity is None


def _pieces(columns: int, row_columns: int, buffer: int) -> list[tuple[int, int]]:
    """First chunk and bursts of every piece of a vector that the buffer holds, whole rows but for the last."""
    most = columns if columns <= buffer else buffer // row_columns * row_columns
    if most < 1:
        raise LoomError(f"global_buffer holds {buffer} bursts, and a row needs {row_columns}")
    return [(start // row_columns, min(most, columns - start)) for start in range(0, columns, most)]
