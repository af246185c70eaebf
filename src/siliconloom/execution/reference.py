"""A model's graph in real numbers: what its operators compute, without tiles, layouts or integers."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.numerics import ACTIVATIONS
from siliconloom.arch.vector import VectorFunction
from siliconloom.execution.walk import At, Past, Reading, by_expert
from siliconloom.execution.weights import Weights
from siliconloom.workloads import Attention, Gemm, Vector
from siliconloom.workloads.architecture import EPSILON

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
ROPE_BASE = 10000.0
"""Base of the rotary angles (Su et al., arXiv:2104.09864, equation 15), where nothing else is said."""


def angles(positions: Integers, head_dim: int, base: float) -> Floats:
    """Angles of rotation, one to a pair of columns of a head: shape (positions, head_dim / 2)."""
    return np.asarray(positions[:, None] * base ** (-np.arange(0, head_dim, 2) / head_dim))


def activated(function: VectorFunction, x: Floats) -> Floats:
    """An activation of every element, as `arch.numerics.ACTIVATIONS` has it, computed for whole matrices."""
    if function == VectorFunction.RELU:
        return np.maximum(x, 0.0)
    if function == VectorFunction.TANH:
        return np.asarray(np.tanh(x))
    if function == VectorFunction.SILU:
        return np.asarray(x / (1 + np.exp(-np.maximum(x, -700.0))))
    return np.asarray(np.vectorize(ACTIVATIONS[function], otypes=[np.float64])(x), x.dtype)


class Reference(Reading):
    """The reading of a graph in real numbers: float64, or float32 where speed counts.

    Parameters
    ----------
    weights
        Of every execution of every operator.
    kept
        Rows at the end of each sequence that are kept of every result.
    batch
        Sequences.
    base, epsilon
        Of rotary angles, and of norms.
    dtype
        Of all values.

    Members
    -------
    results
        Those rows, of every execution of every operator.
    peaks
        Largest magnitude of each column over all rows of all runs: (columns,).
    gates
        Largest magnitude of what a gated activation multiplies with its second operand.
    sums
        Of a sum of more than two results, the largest magnitude of the first two together, of the first three ...
    """

    def __init__(
        self,
        weights: Weights,
        kept: int,
        batch: int,
        *,
        base: float = ROPE_BASE,
        epsilon: float = EPSILON,
        dtype: type[np.floating[Any]] = np.float64,
    ) -> None:
        self.weights, self.kept, self.batch, self.base, self.epsilon = weights, kept, batch, base, epsilon
        self.dtype = dtype
        self.results: dict[At, Floats] = {}
        self.peaks: dict[At, Floats] = {}
        self.gates: dict[At, float] = {}
        self.sums: dict[At, list[float]] = {}

    def keep(self, at: At, value: Floats) -> None:
        rows = value.reshape(self.batch, -1, value.shape[1])
        self.results[at] = rows[:, -self.kept :].reshape(-1, value.shape[1])
        peaks = np.abs(value).max(0)
        self.peaks[at] = np.maximum(peaks, self.peaks[at]) if at in self.peaks else peaks

    def gather(self, at: At, operator: Vector, rows: Integers) -> Floats:
        return np.asarray(self.weights.table(at, operator)[rows], self.dtype)

    def product(self, at: At, operator: Gemm, x: Floats) -> Floats:
        matrix = np.asarray(self.weights.matrix(at, operator), self.dtype)
        if operator.stored is None:
            return x @ matrix + np.asarray(self.weights.bias(at, operator), self.dtype)
        products = [part @ own for part, own in zip(by_expert(operator, x), matrix, strict=True)]
        return np.concatenate(products, axis=1)

    def norm(self, at: At, operator: Vector, x: Floats) -> Floats:
        gamma, beta = (np.asarray(each, self.dtype) for each in self.weights.norm(at, operator))
        centred = x - x.mean(1, keepdims=True) if operator.function == VectorFunction.LAYER_NORM else x
        deviation = np.sqrt((centred**2).mean(1, keepdims=True) + self.epsilon)
        return np.asarray(centred / deviation * gamma + beta)

    def add(self, at: At, operator: Vector, *terms: Floats) -> Floats:
        *parts, total = list(accumulate(terms, np.add))[1:]
        found = [float(np.abs(each).max()) for each in parts]
        self.sums[at] = [max(pair) for pair in zip(found, self.sums.get(at, found), strict=True)]
        return np.asarray(total)

    def activate(self, at: At, function: VectorFunction, x: Floats) -> Floats:
        return activated(function, x)

    def gate(self, at: At, function: VectorFunction, x: Floats, y: Floats) -> Floats:
        made = activated(function, x)
        self.gates[at] = max(float(np.abs(made).max()), self.gates.get(at, 0.0))
        return made * y

    def choose(self, at: At, operator: Vector, x: Floats) -> Floats:
        powers = np.exp(x - x.max(1, keepdims=True))
        order = np.argsort(-x, axis=1, kind="stable")
        np.put_along_axis(powers, order[:, operator.chosen :], 0.0, axis=1)
        return np.asarray(powers / powers.sum(1, keepdims=True))

    def combine(self, at: At, operator: Vector, x: Floats, weights: Floats) -> Floats:
        made = x.reshape(len(x), -1, operator.cols)
        return np.asarray((made * weights[:, :, None]).sum(1))

    def sample(self, at: At, operator: Vector, x: Floats) -> Floats:
        return np.asarray(x.argmax(1)[:, None], np.float64)

    def turn(self, at: At, x: Floats, positions: Integers, head_dim: int) -> Floats:
        turned = angles(positions, head_dim, self.base)
        heads = x.shape[1] // head_dim
        cosine, sine = (np.asarray(np.tile(each, heads), self.dtype) for each in (np.cos(turned), np.sin(turned)))
        made = np.empty_like(x)
        made[:, 0::2] = x[:, 0::2] * cosine - x[:, 1::2] * sine
        made[:, 1::2] = x[:, 0::2] * sine + x[:, 1::2] * cosine
        return made

    def attend(self, at: At, operator: Attention, queries: Floats, past: Past) -> Floats:
        dim, group, made = operator.head_dim, operator.heads // operator.kv_heads, np.empty_like(queries)
        length, seen = queries.shape[1], past.keys.shape[1]
        hidden = np.arange(seen) > np.arange(seen - length, seen)[:, None] if operator.causal else False
        for head in range(operator.heads):
            own, shared = slice(head * dim, (head + 1) * dim), head // group
            theirs = slice(shared * dim, (shared + 1) * dim)
            scores = queries[:, :, own] @ past.keys[:, :, theirs].transpose(0, 2, 1) / math.sqrt(dim)
            scores = np.where(hidden, -np.inf, scores)
            powers = np.exp(scores - scores.max(2, keepdims=True))
            made[:, :, own] = powers / powers.sum(2, keepdims=True) @ past.values[:, :, theirs]
        return made


__all__ = ["EPSILON", "ROPE_BASE", "Reference", "activated", "angles"]
