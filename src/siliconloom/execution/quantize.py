"""From float64 to the integers of an int8 tile: scales, weights, and the parameters of every function.

Every result has one static scale: the largest magnitude that the float64 reading has seen in it is 127. Queries, keys
and values of one product have a scale each, as have the two halves that are gated; weights have one for each column of
results. The scales flow through the graph as values do: `Quantizer` is a reading whose values they are, one to a
column.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.arch.numerics import ACTIVATIONS, EXP2_BITS, NORM_BITS, ONE, ROPE_BITS, activation_table
from siliconloom.arch.packing import Packed
from siliconloom.arch.vector import VectorFunction
from siliconloom.execution.reference import Reference, angles
from siliconloom.execution.walk import GATED, At, GraphWalk, Past, Reading
from siliconloom.workloads import Attention, Gemm, Operator, Vector
from siliconloom.workloads.roles import Role

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
LARGEST = 127
MULTIPLIER_BITS = 15
BIAS_LIMIT = 2.0**31 - 1
SHIFT_LIMIT = 54
"""Of a result of 53 bits any larger shift leaves nothing."""


class Columns(Struct, frozen=True):
    """Bias, multiplier and shift of every column: int64 (columns,) each.

    In floating point bias and multiplier are float64, and there is no shift: zeros.
    """

    bias: NDArray[Any]
    multiplier: NDArray[Any]
    shift: Integers

    def part(self, start: int, end: int) -> Columns:
        """Some of the columns."""
        return Columns(self.bias[start:end], self.multiplier[start:end], self.shift[start:end])


Scalars = tuple[float, float, int]
"""Two multipliers and a shift; in floating point there is none, and it is 0."""


class Quantized(Struct, frozen=True):
    """What one execution of an operator needs of numbers as the tile has them.

    Parameters
    ----------
    scale
        Real value of one step of each column of the result: float64 (columns,); ones in floating point.
    weights
        Of a product, elements (k, n), of experts (experts, k, n); of a gather its table, elements (rows, columns).
    packed
        Of a product whose weights are packed, what these elements are made from; of experts a list.
    columns, scalars, table
        Parameters of its functions, where it has such.
    further
        Scalars of the sums behind the first, where there are more than two results.
    """

    scale: Floats
    weights: NDArray[Any] | None = None
    packed: tuple[Packed, ...] | None = None
    columns: Columns | None = None
    scalars: Scalars | None = None
    table: bytes | None = None
    further: tuple[Scalars, ...] = ()

    def of_expert(self, number: int) -> Quantized:
        """What one expert's product needs of that of all."""
        assert self.weights is not None
        assert self.columns is not None
        start, end = (at * self.weights.shape[2] for at in (number, number + 1))
        packed = self.packed and self.packed[number : number + 1]
        columns = self.columns.part(start, end)
        return Quantized(self.scale[start:end], weights=self.weights[number], packed=packed, columns=columns)


def scaled(*factors: float) -> Scalars:
    """Integer multipliers and their common shift: each factor is multiplier / 2^shift, in 15 bits and a sign."""
    made = columns_of(np.array([max(factors, key=abs)]), np.zeros(1), after=False)
    shift = int(made.shift[0])
    first, *others = (round(factor * 2.0**shift) for factor in factors)
    return first, (others[0] if others else 0), shift


def columns_of(factors: Floats, biases: Floats, *, after: bool) -> Columns:
    """Of each column a factor, as multiplier / 2^shift, and a bias that is added before the product or ``after`` it."""
    size = np.abs(factors)
    highest = np.floor(np.log2(np.where(size > 0, size, 1.0)))
    shift = np.clip(MULTIPLIER_BITS - 1 - highest, 0, SHIFT_LIMIT)
    if after:  # the bias has the result's units times 2^shift, and 32 bits
        room = np.floor(np.log2(BIAS_LIMIT / np.maximum(np.abs(biases), 1e-9)))
        shift = np.minimum(shift, np.clip(room, 0, None))
    shift -= np.rint(size * 2.0**shift) >= 1 << MULTIPLIER_BITS
    if (shift < 0).any():
        raise LoomError(f"scale {size.max():g} is beyond what a multiplier of {MULTIPLIER_BITS} bits holds")
    multiplier = np.rint(factors * 2.0**shift)
    bias = np.clip(np.rint(biases * (2.0**shift if after else 1.0)), -BIAS_LIMIT, BIAS_LIMIT)
    return Columns(bias.astype(np.int64), multiplier.astype(np.int64), shift.astype(np.int64))


def _step(largest: float) -> float:
    """Real value of one step where so large a magnitude is 127."""
    return (largest or 1.0) / LARGEST


@dataclass
class Quantizer(Reading):
    """The reading of scales.

    Parameters
    ----------
    walk
        Of the graph.
    real
        The float64 reading of the same tokens, and of those before them.

    Members
    -------
    made
        Integers of every execution of every operator.
    turns
        Of every rotation, cosines and sines of each token in 1/2^15: int64 (tokens, columns).
    """

    walk: GraphWalk
    real: Reference
    made: dict[At, Quantized] = field(default_factory=dict)

    def keep(self, at: At, value: Floats) -> None:
        self.real.weights.forget(at)  # in integers they take a fourth of the memory

    def gather(self, at: At, operator: Vector, rows: Integers) -> Floats:
        table = self.real.weights.table(at, operator)
        step = _step(max(float(table.max()), -float(table.min())))
        made = np.rint(table * (1 / np.asarray(step, table.dtype)))
        np.clip(made, -LARGEST, LARGEST, out=made)
        return self._made(at, len(rows), np.full(operator.cols, step), weights=made.astype(np.int8))

    def product(self, at: At, operator: Gemm, x: Floats) -> Floats:
        taken, scale = float(x[0, 0]), self._sections(at, operator)
        weights, bias = self.real.weights.matrix(at, operator), self.real.weights.bias(at, operator)
        steps = np.maximum(weights.max(-2), -weights.min(-2)).astype(np.float64) / LARGEST
        # a bias is counted in steps of the sums, in 32 bits
        steps = np.maximum(steps, np.abs(bias) / taken / 2.0**30)
        steps[steps == 0] = 1.0
        made = weights * (1 / steps).astype(weights.dtype)[..., None, :]
        np.rint(made, out=made)
        np.clip(made, -LARGEST, LARGEST, out=made)
        sums, bias = taken * steps.reshape(-1), np.broadcast_to(bias, steps.shape).reshape(-1)
        columns = columns_of(sums / scale, bias / sums, after=False)
        return self._made(at, len(x), scale, weights=made.astype(np.int8), columns=columns)

    def norm(self, at: At, operator: Vector, x: Floats) -> Floats:
        gamma, beta = (each.astype(np.float64) for each in self.real.weights.norm(at, operator))
        step = self._whole(at)
        columns = columns_of(gamma / 2.0**NORM_BITS / step, beta / step, after=True)
        return self._made(at, len(x), np.full(operator.cols, step), columns=columns)

    def add(self, at: At, operator: Vector, *terms: Floats) -> Floats:
        first, *others = (float(term[0, 0]) for term in terms)
        steps = [*map(_step, self.real.sums[at]), self._whole(at)]
        before = [first, *steps[:-1]]
        each = [scaled(a / step, b / step) for a, b, step in zip(before, others, steps, strict=True)]
        scale = np.full(operator.cols, steps[-1])
        return self._made(at, len(terms[0]), scale, scalars=each[0], further=tuple(each[1:]))

    def activate(self, at: At, function: VectorFunction, x: Floats) -> Floats:
        if function == VectorFunction.RELU:  # which takes no parameters, so its steps are its operand's
            return self._made(at, len(x), x[0])
        step = self._whole(at)
        table = activation_table(ACTIVATIONS[function], float(x[0, 0]), step)
        return self._made(at, len(x), np.full(x.shape[1], step), table=table)

    def gate(self, at: At, function: VectorFunction, x: Floats, y: Floats) -> Floats:
        step, middle = self._whole(at), _step(self.real.gates[at])
        table = activation_table(ACTIVATIONS[function], float(x[0, 0]), middle)
        scalars = scaled(middle * float(y[0, 0]) / step)
        return self._made(at, len(x), np.full(x.shape[1], step), scalars=scalars, table=table)

    def choose(self, at: At, operator: Vector, x: Floats) -> Floats:
        scalars = scaled(float(x[0, 0]) * math.log2(math.e) * 2**EXP2_BITS)
        return self._made(at, len(x), np.full(operator.cols, 1 / ONE), scalars=scalars)

    def combine(self, at: At, operator: Vector, x: Floats, weights: Floats) -> Floats:
        step = self._whole(at)
        scalars = scaled(float(x[0, 0]) * float(weights[0, 0]) / step)
        return self._made(at, len(x), np.full(operator.cols, step), scalars=scalars)

    def sample(self, at: At, operator: Vector, x: Floats) -> Floats:
        return self._made(at, len(x), np.ones(1))

    def turn(self, at: At, x: Floats, positions: Integers, head_dim: int) -> Floats:
        return self._made(at, len(x), x[0])

    def attend(self, at: At, operator: Attention, queries: Floats, past: Past) -> Floats:
        batch, length, width = queries.shape
        logit = queries[0, 0, 0] * past.keys[0, 0, 0] / math.sqrt(operator.head_dim)
        step = self._whole(at)
        factors = np.full(operator.v_head_dim, past.values[0, 0, 0] / ONE / step)
        columns = columns_of(factors, np.zeros(operator.v_head_dim), after=False)
        scalars = scaled(float(logit) * math.log2(math.e) * 2**EXP2_BITS)
        scale = np.full(width, step)
        return self._made(at, batch * length, scale, columns=columns, scalars=scalars).reshape(batch, length, -1)

    def turns(self, rope: Vector, positions: Integers) -> Integers:
        """Cosines and sines of a rotation in 1/2^15, at the columns that read them: int64 (positions, columns)."""
        dim = self.walk.head_dim(rope.name)
        turned = angles(positions, dim, self.real.base)
        limit = (1 << ROPE_BITS) - 1
        heads = rope.cols // dim
        made = np.empty((len(positions), rope.cols), np.int64)
        made[:, 0::2] = np.tile(np.rint(np.cos(turned) * limit), heads)
        made[:, 1::2] = np.tile(np.rint(np.sin(turned) * limit), heads)
        return made

    def _made(self, at: At, rows: int, scale: Floats, **parts: Any) -> Floats:
        self.made[at] = Quantized(scale, **parts)
        return np.broadcast_to(scale, (rows, len(scale)))

    def _whole(self, at: At) -> float:
        return _step(float(self.real.peaks[at].max()))

    def _sections(self, at: At, operator: Gemm) -> Floats:
        """One step for all columns of a product; one each for queries, keys and values, and for halves.

        Experts have the same steps: what is computed of their results has the same parameters.
        """
        peaks, ends = self.real.peaks[at].reshape(-1, operator.n).max(0), [operator.n]
        readers = [self.walk.graph.dataflow[name] for name in self.walk.graph.dataflow.successors(operator.name)]
        if operator.role is Role.QKV:
            attended = next(a for a in self.walk.attended.values() if a.values == operator.name)
            ends = [attended.query_width, attended.query_width + attended.key_width, operator.n]
            if attended.keys != operator.name:  # a rotation keeps the scale, and may enlarge what is turned
                turned = self.real.peaks[At(attended.keys, at.execution)]
                peaks[: ends[1]] = np.maximum(peaks[: ends[1]], turned)
        elif any(_gates(reader) for reader in readers):
            ends = [operator.n // 2, operator.n]
        made = np.empty(operator.n)
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            made[start:end] = _step(float(peaks[start:end].max()))
        return np.tile(made, len(self.real.peaks[at]) // operator.n)


def _gates(operator: Operator) -> bool:
    return isinstance(operator, Vector) and operator.function in GATED


def quantized(values: Floats, scale: Floats) -> Integers:
    """Real values in steps of a scale, rounded and saturated."""
    return np.asarray(np.clip(np.rint(values / scale), -LARGEST - 1, LARGEST), np.int64)


__all__ = ["Columns", "Quantized", "Quantizer", "Scalars", "columns_of", "quantized", "scaled"]
