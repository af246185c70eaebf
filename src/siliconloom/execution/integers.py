"""A model's graph in the integers of an int8 tile, without tiles or layouts: what a golden run must give.

Where an attention's keys take several tiles, and peaks and totals of its rows are carried from one to the next, how
many keys a tile has is part of what is computed: powers are rounded below the peak so far. That is all that this
reading is told of the mapping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.vector import VectorFunction
from siliconloom.execution.quantize import Columns, Quantized, Quantizer, Scalars
from siliconloom.execution.walk import At, Past, Reading, by_expert
from siliconloom.sim.golden import functions
from siliconloom.workloads import Attention, Gemm, Vector

Integers = NDArray[np.int64]


def exact_product(a: NDArray[np.integer], b: NDArray[np.integer]) -> Integers:
    """The product of two matrices of int8 values; sums of their products are integers that float64 holds exactly."""
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)


def saturated(values: Integers) -> Integers:
    """Values as int8 holds them."""
    return np.clip(values, -128, 127)


class CarriedRows(Struct, frozen=True):
    """Queries ``start`` to ``start`` + ``count`` - 1 of an attention, whose keys come in tiles of ``keys``.

    Where these are parts of a block, ``columns`` are those of a part: of the keys that they share an exponent with.
    """

    start: int
    count: int
    keys: int
    columns: int | None = None


class IntegerReading(Reading):
    """The integer reading of a graph.

    Parameters
    ----------
    quantizer
        With parameters of every operator.
    lanes
        Of the vector unit: softmax adds up that many columns at a time.
    carried
        Of attentions by their names, the queries whose rows are carried from tile to tile.

    Members
    -------
    results
        Of every execution of every operator: int64 (rows, columns).
    saturated
        Of the same, the share of values that were cut off.
    """

    def __init__(
        self, quantizer: Quantizer, lanes: int, carried: Mapping[str, Sequence[CarriedRows]] | None = None
    ) -> None:
        self.quantizer, self.lanes, self.carried = quantizer, lanes, carried or {}
        self.results: dict[At, Integers] = {}
        self.saturated: dict[At, float] = {}

    def keep(self, at: At, value: Integers) -> None:
        self.results[at] = value

    def gather(self, at: At, operator: Vector, rows: Integers) -> Integers:
        table = self._of(at).weights
        assert table is not None
        return table[rows].astype(np.int64)

    def product(self, at: At, operator: Gemm, x: Integers) -> Integers:
        weights = self._of(at).weights
        assert weights is not None
        if operator.stored is None:
            sums = exact_product(x, weights)
        else:
            parts = zip(by_expert(operator, x), weights, strict=True)
            sums = np.concatenate([exact_product(part, own) for part, own in parts], axis=1)
        return self._cut(at, _requantized(sums, self._columns(at)))

    def norm(self, at: At, operator: Vector, x: Integers) -> Integers:
        c, centred = self._columns(at), operator.function == VectorFunction.LAYER_NORM
        return self._cut(at, functions.normalize(x, c.multiplier, c.bias, c.shift, centred=centred))

    def add(self, at: At, operator: Vector, *terms: Integers) -> Integers:
        made, cut = terms[0], 0.0
        for term, (first, second, shift) in zip(terms[1:], self._sums(at), strict=True):
            made = self._cut(at, functions.scaled_sum(made, term, (int(first), int(second)), shift))
            cut += self.saturated[at]
        self.saturated[at] = min(cut, 1.0)
        return made

    def activate(self, at: At, function: VectorFunction, x: Integers) -> Integers:
        if function == VectorFunction.RELU:
            return np.maximum(x, 0)
        return self._looked_up(at, x)

    def gate(self, at: At, function: VectorFunction, x: Integers, y: Integers) -> Integers:
        first, _, shift = self._scalars(at)
        return self._cut(at, functions.scaled_product(self._looked_up(at, x), y, first, shift))

    def choose(self, at: At, operator: Vector, x: Integers) -> Integers:
        multiplier, _, shift = self._scalars(at)
        return self._cut(at, functions.top_k(x, operator.chosen, multiplier, shift, self.lanes))

    def combine(self, at: At, operator: Vector, x: Integers, weights: Integers) -> Integers:
        multiplier, _, shift = self._scalars(at)
        made = x.reshape(len(x), -1, operator.cols)
        return self._cut(at, functions.weighted_sum(made, weights, multiplier, shift))

    def sample(self, at: At, operator: Vector, x: Integers) -> Integers:
        return np.asarray(x.argmax(1)[:, None])

    def turn(self, at: At, x: Integers, positions: Integers, head_dim: int) -> Integers:
        operator = self.quantizer.walk.graph.dataflow[at.name]
        assert isinstance(operator, Vector)
        return self._cut(at, functions.rotate(x, self.quantizer.turns(operator, positions)))

    def attend(self, at: At, operator: Attention, queries: Integers, past: Past) -> Integers:
        dim, group, made = operator.head_dim, operator.heads // operator.kv_heads, np.empty_like(queries)
        length, seen = queries.shape[1], past.keys.shape[1]
        valid = seen - length + 1 + np.arange(length) if operator.causal else np.full(length, seen)
        columns = self._columns(at)
        carried = (CarriedRows(0, length, max(seen, 1)), *self.carried.get(at.name, ()))
        for sequence in range(len(queries)):
            for head in range(operator.heads):
                own, shared = slice(head * dim, (head + 1) * dim), head // group
                theirs = slice(shared * dim, (shared + 1) * dim)
                scores = exact_product(queries[sequence, :, own], past.keys[sequence, :, theirs].T)
                values = past.values[sequence, :, theirs]
                for rows in carried:
                    part = slice(rows.start, rows.start + rows.count)
                    sums, total = self._powers(at, scores[part], values, valid[part], rows.keys)
                    found = functions.requantize_rows(sums, total, columns.bias, columns.multiplier, columns.shift)
                    made[sequence, part, own] = found
        return self._cut(at, made)

    def _powers(
        self, at: At, scores: Integers, values: Integers, valid: Integers, tile: int
    ) -> tuple[Integers, Integers]:
        """Sums of powers times values, tile by tile of keys, and the totals of the powers."""
        multiplier, _, shift = self._scalars(at)
        sums, before = np.zeros((len(scores), values.shape[1]), np.int64), None
        for start in range(0, scores.shape[1], tile):
            part = slice(start, start + tile)
            powers, before, rise = functions.softmax_online(
                scores[:, part], multiplier, shift, valid - start, self.lanes, before
            )
            sums = functions.rescaled(sums, rise) + exact_product(powers, values[part])
        assert before is not None
        return sums, before[1]

    def _looked_up(self, at: At, x: Integers) -> Integers:
        table = self._of(at).table
        assert table is not None
        return np.asarray(np.frombuffer(table, np.int8).astype(np.int64)[x & 255])

    def _cut(self, at: At, value: Integers) -> Integers:
        made = saturated(value)
        self.saturated[at] = float(np.mean(made != value))
        return made

    def _of(self, at: At) -> Quantized:
        return self.quantizer.made[at]

    def _columns(self, at: At) -> Columns:
        found = self._of(at).columns
        assert found is not None
        return found

    def _sums(self, at: At) -> tuple[Scalars, ...]:
        """Scalars of a sum of several results, pair by pair."""
        found = self._of(at)
        assert found.scalars is not None
        return found.scalars, *found.further

    def _scalars(self, at: At) -> tuple[int, int, int]:
        found = self._of(at).scalars
        assert found is not None
        first, second, shift = found
        return int(first), int(second), shift


def _requantized(sums: Integers, columns: Columns) -> Integers:
    return functions.requantize(sums, columns.bias, columns.multiplier, columns.shift)


__all__ = ["CarriedRows", "IntegerReading", "exact_product", "saturated"]
