"""A model's graph in a tile's floating point: its parameters in that format, and what a golden run must give.

`FloatParameters` are what `Quantizer` is for integers, without scales: a number keeps its size. Only weights of
formats of one byte have a power of two for each column, which its multiplier takes back. `FloatReading` is what
`IntegerReading` is: it knows no layouts, and of the mapping only what changes the order of sums: how deep tiles of
products are, and of how many keys those of carried rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.datatype import CACHE_SCALED, DataType
from siliconloom.arch.floats import (
    SIGN,
    Words,
    float_product,
    float_sum,
    flushed,
    narrowed,
    patterns_of,
    values_of,
    widened,
)
from siliconloom.arch.layout import summing_order
from siliconloom.arch.packing import quantised, unpacked
from siliconloom.arch.scaled import numbers_of, scaled_codes
from siliconloom.arch.shared import CODE_FORMATS, WholeNumbers, is_coded, shared_product
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import RISE_LIMIT, VectorFunction
from siliconloom.execution.integers import CarriedRows
from siliconloom.execution.quantize import Columns, Quantized
from siliconloom.execution.reference import Reference, angles
from siliconloom.execution.walk import At, GraphWalk, Past, Reading, by_expert
from siliconloom.sim.golden import float_functions
from siliconloom.sim.golden.products import folded_product, folds_of
from siliconloom.workloads import Attention, Gemm, Operator, Vector

Elements = NDArray[Any]
"""Patterns of the tile's format."""
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
ONE_BYTE_LARGEST = 256.0
"""Largest weight of a column where a number has one byte: both formats of fp8 hold it."""


@dataclass
class FloatParameters(Reading):
    """What every operator reads, in a format.

    Parameters
    ----------
    walk
        Of the graph.
    real
        The float64 reading, which has the weights.
    dtype, operand
        Of elements, and of the array's operands.
    minima
        Whether groups of packed weights have minima.

    Members
    -------
    made
        Of every execution of every operator.
    """

    walk: GraphWalk
    real: Reference
    dtype: DataType
    operand: DataType
    minima: bool = False
    made: dict[At, Quantized] = field(default_factory=dict)

    def keep(self, at: At, value: Elements) -> None:
        self.real.weights.forget(at)

    def gather(self, at: At, operator: Vector, rows: Integers) -> Elements:
        table = patterns_of(self.real.weights.table(at, operator), self.dtype)
        return self._made(at, len(rows), operator.cols, weights=table)

    def product(self, at: At, operator: Gemm, x: Elements) -> Elements:
        weights, bias = self.real.weights.matrix(at, operator), self.real.weights.bias(at, operator)
        steps = np.ones(weights.shape[:-2] + weights.shape[-1:])
        plain = operator.packing is not None and not operator.packing.group
        stored = self.operand if plain else self.dtype
        if stored.bits == 8 and not stored.is_integer:
            largest = np.maximum(np.abs(weights).max(-2), 2.0**-100).astype(np.float64)
            steps = 2.0 ** np.ceil(np.log2(largest / ONE_BYTE_LARGEST))
            weights = weights / steps[..., None, :]
        bias = np.broadcast_to(bias, steps.shape).reshape(-1).astype(np.float64)
        columns = _columns(steps.reshape(-1), bias)
        if operator.packing is None:
            return self._made(at, len(x), bias.size, weights=patterns_of(weights, self.dtype), columns=columns)
        if self.operand.is_integer and plain:
            codes, worth = whole_numbers(weights, self.operand)
            columns = _columns(worth.reshape(-1), bias)
            return self._made(at, len(x), bias.size, weights=codes, columns=columns)
        if plain:
            elements = patterns_of(weights, self.operand)
            return self._made(at, len(x), bias.size, weights=elements, columns=columns)
        matrices = weights.reshape(-1, *weights.shape[-2:])
        packed = tuple(quantised(matrix, operator.packing, self.minima) for matrix in matrices)
        made = self.dtype if self.operand.is_integer else self.operand
        elements = np.stack([unpacked(each, operator.packing, made) for each in packed]).reshape(weights.shape)
        return self._made(at, len(x), bias.size, weights=elements, packed=packed, columns=columns)

    def norm(self, at: At, operator: Vector, x: Elements) -> Elements:
        gamma, beta = (each.astype(np.float64) for each in self.real.weights.norm(at, operator))
        return self._made(at, len(x), operator.cols, columns=_columns(gamma, beta))

    def add(self, at: At, operator: Vector, *terms: Elements) -> Elements:
        one = (1.0, 1.0, 0)
        return self._made(at, len(terms[0]), operator.cols, scalars=one, further=(one,) * (len(terms) - 2))

    def activate(self, at: At, function: VectorFunction, x: Elements) -> Elements:
        return self._made(at, len(x), x.shape[1])

    def gate(self, at: At, function: VectorFunction, x: Elements, y: Elements) -> Elements:
        return self._made(at, len(x), x.shape[1], scalars=(1.0, 0.0, 0))

    def choose(self, at: At, operator: Vector, x: Elements) -> Elements:
        return self._made(at, len(x), operator.cols, scalars=(math.log2(math.e), 0.0, 0))

    def combine(self, at: At, operator: Vector, x: Elements, weights: Elements) -> Elements:
        return self._made(at, len(x), operator.cols, scalars=(1.0, 0.0, 0))

    def sample(self, at: At, operator: Vector, x: Elements) -> Elements:
        return self._made(at, len(x), 1)

    def turn(self, at: At, x: Elements, positions: Integers, head_dim: int) -> Elements:
        return self._made(at, len(x), x.shape[1])

    def attend(self, at: At, operator: Attention, queries: Elements, past: Past) -> Elements:
        batch, length, width = queries.shape
        ones = np.ones(operator.v_head_dim)
        logit = math.log2(math.e) / math.sqrt(operator.head_dim)
        made = self._made(at, batch * length, width, columns=_columns(ones, 0 * ones), scalars=(logit, 0.0, 0))
        return made.reshape(batch, length, -1)

    def turns(self, rope: Vector, positions: Integers) -> NDArray[np.float32]:
        """Cosines and sines of a rotation, at the columns that read them: shape (positions, columns)."""
        dim = self.walk.head_dim(rope.name)
        turned, heads = angles(positions, dim, self.real.base), rope.cols // dim
        made = np.empty((len(positions), rope.cols), np.float32)
        made[:, 0::2] = np.tile(np.cos(turned), heads)
        made[:, 1::2] = np.tile(np.sin(turned), heads)
        if self.dtype.bits == 8:  # of two elements
            return values_of(patterns_of(made, DataType.BF16), DataType.BF16)
        return made

    def _made(self, at: At, rows: int, cols: int, **parts: Any) -> Elements:
        self.made[at] = Quantized(np.ones(cols), **parts)
        return np.broadcast_to(np.zeros((), np.uint8), (rows, cols))


def _columns(multiplier: NDArray[Any], bias: NDArray[Any]) -> Columns:
    return Columns(bias, multiplier, np.zeros(len(bias), np.int64))


def whole_numbers(weights: NDArray[Any], dtype: DataType) -> tuple[WholeNumbers, NDArray[np.float32]]:
    """Codes of weights (..., k, n), and what one is worth in each column: its peak is the largest code."""
    form = CODE_FORMATS[dtype]
    steps = (np.abs(weights).max(-2) / form.most).astype(np.float32)
    steps = np.where(steps < np.finfo(np.float32).tiny, np.float32(1), steps)  # a column of zeros
    codes = np.clip(np.rint(weights / steps[..., None, :]), -form.most, form.most)
    return codes.astype(form.stored), steps


class FloatReading(Reading):
    """The reading of a graph in a tile's format, bit by bit.

    Parameters
    ----------
    parameters
        Of every operator.
    tile
        In whose order numbers are added.
    depths
        Rows of tiles of weights, by the product's name.
    carried
        Of attentions by their names, the queries whose rows are carried from tile to tile.
    halved
        Names of products whose two halves begin with panels of their own, as what gates one by the other is fused.

    Members
    -------
    results
        Of every execution of every operator: elements (rows, columns).
    saturated
        Of the same, the share of values that are no finite numbers.
    """

    def __init__(
        self,
        parameters: FloatParameters,
        tile: NpuTile,
        depths: Mapping[str, int],
        carried: Mapping[str, Sequence[CarriedRows]] | None = None,
        halved: Collection[str] = (),
    ) -> None:
        self.parameters, self.dtype = parameters, parameters.dtype
        self.lanes, self.stages = tile.vector.lanes, tile.vector.sum_stages
        self.halved = halved
        self.operand, self.shares = parameters.operand, tile.shares
        self.array, self.depths, self.carried = tile.array, depths, carried or {}
        self.results: dict[At, Elements] = {}
        self.saturated: dict[At, float] = {}

    def keep(self, at: At, value: Elements) -> None:
        self.results[at] = value
        self.saturated[at] = float(np.mean(~np.isfinite(self._wide(value).view(np.float32))))

    def gather(self, at: At, operator: Vector, rows: Integers) -> Elements:
        table = self._of(at).weights
        assert table is not None
        return np.asarray(table[rows])

    def product(self, at: At, operator: Gemm, x: Elements) -> Elements:
        weights, depth = self._of(at).weights, self.depths[at.name]
        assert weights is not None
        multiplier, bias = self._columns(at)
        stored = self.operand if operator.packing is not None else self.dtype
        halves = 2 if at.name in self.halved else 1
        parts = [(x, weights)] if operator.stored is None else zip(by_expert(operator, x), weights, strict=True)
        made = [
            self._sums(part, half, depth, stored=stored)
            for part, own in parts
            for half in np.split(own, halves, axis=1)
        ]
        sums = made[0] if len(made) == 1 else np.concatenate(made, axis=1)
        return self._narrow(float_sum(float_product(sums, multiplier[None]), bias[None]))

    def norm(self, at: At, operator: Vector, x: Elements) -> Elements:
        multiplier, bias = self._columns(at)
        epsilon = widened(patterns_of(np.array([operator.epsilon]), DataType.BF16), DataType.BF16)
        centred = operator.function == VectorFunction.LAYER_NORM
        found = float_functions.normalize(
            self._wide(x), multiplier[None], bias[None], epsilon, self.lanes, centred=centred, stages=self.stages
        )
        return self._narrow(found)

    def add(self, at: At, operator: Vector, *terms: Elements) -> Elements:
        first, second = self._scalars(at)  # of every pair
        made = terms[0]
        for term in terms[1:]:
            parts = float_product(self._wide(made), first), float_product(self._wide(term), second)
            made = self._narrow(float_sum(*parts))
        return made

    def activate(self, at: At, function: VectorFunction, x: Elements) -> Elements:
        wide = self._wide(x)
        if function == VectorFunction.TANH:
            return self._narrow(float_functions.tanh(wide))
        if function == VectorFunction.RELU:
            return self._narrow(np.where(wide & SIGN, np.uint32(0), wide))
        return self._narrow(float_functions.activation(wide, cubic=function == VectorFunction.GELU))

    def gate(self, at: At, function: VectorFunction, x: Elements, y: Elements) -> Elements:
        made = float_functions.activation(self._wide(x), cubic=function == VectorFunction.GELU)
        return self._narrow(float_product(made, float_product(self._wide(y), self._scalars(at)[0])))

    def choose(self, at: At, operator: Vector, x: Elements) -> Elements:
        order, chosen = float_functions.order_of(self._wide(x)), np.zeros(x.shape, bool)
        first = np.argsort(-order, axis=1, kind="stable")[:, : operator.chosen]
        np.put_along_axis(chosen, first, True, axis=1)
        t = float_product(self._wide(x), self._scalars(at)[0])
        return self._narrow(float_functions.softmax(t, chosen, self.lanes, stages=self.stages))

    def combine(self, at: At, operator: Vector, x: Elements, weights: Elements) -> Elements:
        made, chances = self._wide(x).reshape(len(x), -1, operator.cols), self._wide(weights)
        total = np.full((len(x), operator.cols), SIGN)
        for number in range(made.shape[1]):
            total = float_sum(float_product(made[:, number], chances[:, number, None]), total)
        return self._narrow(float_product(total, self._scalars(at)[0]))

    def sample(self, at: At, operator: Vector, x: Elements) -> Elements:
        return np.asarray(float_functions.order_of(self._wide(x)).argmax(1)[:, None])

    def turn(self, at: At, x: Elements, positions: Integers, head_dim: int) -> Elements:
        operator = self.parameters.walk.graph.dataflow[at.name]
        assert isinstance(operator, Vector)
        turns = self.parameters.turns(operator, positions).view(np.uint32)
        wide = self._wide(x)
        cosine, sine = (np.repeat(turns[:, part::2], 2, axis=1) for part in (0, 1))
        pair = wide.reshape(len(x), -1, 2)[:, :, ::-1].reshape(x.shape).copy()
        pair[:, 0::2] ^= SIGN
        return self._narrow(float_sum(float_product(wide, cosine), float_product(pair, sine)))

    def as_kept(self, operator: Attention, x: Elements) -> Elements:
        if operator.cached is None:
            return x
        if operator.kept in CACHE_SCALED:
            return self._narrow(self._shared(operator, self._wide(x)))
        return self._narrow(widened(narrowed(self._wide(x), operator.kept), operator.kept))

    def _shared(self, operator: Attention, words: Words) -> Words:
        """Numbers of heads side by side as they come from a cache with scales."""
        together, dtype, width = self.array.cols, operator.kept, operator.head_dim
        flat = flushed(words).reshape(-1, width)
        codes, scales = scaled_codes(flat, dtype, together)
        found = numbers_of(codes, np.repeat(scales, together, axis=1)[:, :width], dtype)
        return found.reshape(words.shape)

    def attend(self, at: At, operator: Attention, queries: Elements, past: Past) -> Elements:
        dim, group, made = operator.head_dim, operator.heads // operator.kv_heads, np.empty_like(queries)
        length, seen = queries.shape[1], past.keys.shape[1]
        valid = seen - length + 1 + np.arange(length) if operator.causal else np.full(length, seen)
        multiplier, bias = self._columns(at)
        carried = (CarriedRows(0, length, max(seen, 1)), *self.carried.get(at.name, ()))
        for sequence in range(len(queries)):
            for head in range(operator.heads):
                own, shared = slice(head * dim, (head + 1) * dim), head // group
                theirs = slice(shared * dim, (shared + 1) * dim)
                asked, keys = queries[sequence, :, own], past.keys[sequence, :, theirs].T
                values, scores = past.values[sequence, :, theirs], self._sums(asked, keys, dim)
                for rows in carried:
                    part = slice(rows.start, rows.start + rows.count)
                    found = self._sums(asked[part], keys, dim, across=rows.columns) if rows.columns else scores[part]
                    sums, total = self._powers(at, found, values, valid[part], rows.keys)
                    quotients = float_product(sums, float_functions.reciprocal(total)[:, None])
                    found = float_sum(float_product(quotients, multiplier[None]), bias[None])
                    made[sequence, part, own] = self._narrow(found)
        return made

    def _powers(self, at: At, scores: Words, values: Elements, valid: Integers, tile: int) -> tuple[Words, Words]:
        """Sums of powers times values, tile by tile of keys, and the totals of the powers."""
        factor = self._scalars(at)[0]
        sums: Words | None = None
        before: tuple[Integers, Words] | None = None
        for start in range(0, scores.shape[1], tile):
            part = slice(start, start + tile)
            t = float_product(scores[:, part], factor)
            within = start + np.arange(t.shape[1]) < valid[:, None]
            peak, total = float_functions.reduced(t, within, self.lanes, before, stages=self.stages)
            powers = np.where(within, float_functions.powers_of(t, peak), 0).astype(np.uint32)
            older = None
            if before is not None and sums is not None:
                rise = np.minimum(peak - before[0], RISE_LIMIT)
                older = float_functions.lowered(sums, rise[:, None])
            sums, before = self._sums(self._narrow(powers), values[part], t.shape[1], older), (peak, total)
        assert sums is not None
        assert before is not None
        return sums, before[1]

    def _sums(
        self,
        a: Elements,
        b: Elements,
        depth: int,
        older: Words | None = None,
        stored: DataType | None = None,
        across: int | None = None,
    ) -> Words:
        """A product in fp32, fold by fold of tiles so deep; the format that the second operand is ``stored`` in.

        Columns of so many ``across`` share exponents, or of a panel.
        """
        if self.shares:
            right = b if is_coded(b) else self._wide(b)
            form = CODE_FORMATS[self.operand]
            return shared_product(self._wide(a), right, self.array.rows, across or self.array.cols, depth, older, form)
        count = a.shape[1]
        keeps_sums = self.array.dataflow == "output_stationary"
        folds = folds_of(count, depth, tuple(range(count) if keeps_sums else summing_order(self.array)))
        left, right = self._operand(a, self.dtype), self._operand(b, stored or self.dtype)
        return folded_product(left, right, folds, older)

    def _operand(self, x: Elements, dtype: DataType) -> Words:
        """As the array takes what lies in memory: rounded where it is wider."""
        words = widened(x, dtype)
        return words if dtype is self.operand else widened(narrowed(words, self.operand), self.operand)

    def _wide(self, x: Elements) -> Words:
        return widened(x, self.dtype)

    def _narrow(self, words: Words) -> Elements:
        return narrowed(words, self.dtype)

    def _of(self, at: At) -> Quantized:
        return self.parameters.made[at]

    def _columns(self, at: At) -> tuple[Words, Words]:
        found = self._of(at).columns
        assert found is not None
        multiplier, bias = (np.asarray(each, np.float32).view(np.uint32) for each in (found.multiplier, found.bias))
        return multiplier, bias

    def _scalars(self, at: At) -> tuple[Words, Words]:
        found = self._of(at).scalars
        assert found is not None
        first, second = (np.array([each], np.float32).view(np.uint32) for each in found[:2])
        return first, second


def depths_of(operators: Sequence[tuple[Operator, Any]]) -> dict[str, int]:
    """Rows of tiles of weights, by the product's name, of operators and their tilings."""
    return {o.name: tiling.k for o, tiling in operators if isinstance(o, Gemm)}


__all__ = ["FloatParameters", "FloatReading", "depths_of"]
