"""Parameters of a model by operator and execution: random ones, or those of a file under any of several names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.vector import VectorFunction
from siliconloom.execution.walk import At
from siliconloom.workloads import Gemm, Graph, Operator, Vector
from siliconloom.workloads.roles import Role, Section

Floats = NDArray[np.floating[Any]]
SPREAD = 0.02
"""Standard deviation of random weights (Radford et al., 2019, as GPT-2 is initialised)."""
TABLES = (VectorFunction.GATHER,)
NORMS = (VectorFunction.LAYER_NORM, VectorFunction.RMS_NORM)


def shapes(operator: Operator) -> dict[str, tuple[int, ...]]:
    """Parameters that an operator stores, in one execution, by what they are."""
    if isinstance(operator, Gemm):
        experts = () if operator.stored is None else (operator.stored,)
        found: dict[str, tuple[int, ...]] = {"weight": (*experts, operator.k, operator.n)}
        return found | ({"bias": (operator.n,)} if operator.bias else {})
    if not isinstance(operator, Vector) or operator.tied or not operator.weights:
        return {}
    if operator.function in TABLES:
        return {"table": (operator.weights // operator.cols, operator.cols)}
    if operator.function in NORMS:
        beta = {"beta": (operator.cols,)} if operator.weights == 2 * operator.cols else {}
        gamma: dict[str, tuple[int, ...]] = {"gamma": (operator.cols,)}
        return gamma | beta
    return {}


class Weights(ABC):
    """Parameters of every execution of every operator of ``graph``."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._held: dict[tuple[At, str], Floats] = {}

    @abstractmethod
    def find(self, at: At, operator: Operator, what: str, shape: tuple[int, ...]) -> Floats:
        """One parameter, of the shape that is asked for."""

    def table(self, at: At, operator: Vector) -> Floats:
        """Rows that a gather takes; the head's columns where both share them."""
        if operator.tied:
            head = self.graph.dataflow[operator.tied]
            assert isinstance(head, Gemm)
            return self.matrix(At(operator.tied, 0), head).T
        return self._parameter(at, operator, "table", 0.0)

    def matrix(self, at: At, operator: Gemm) -> Floats:
        """Weights of shape (k, n); of experts (experts, k, n)."""
        return self._parameter(at, operator, "weight", 0.0)

    def bias(self, at: At, operator: Gemm) -> Floats:
        """Of every column of a product; zeros where it has none."""
        return self._parameter(at, operator, "bias", 0.0, operator.n)

    def norm(self, at: At, operator: Vector) -> tuple[Floats, Floats]:
        """What a norm multiplies every column with, and what it adds."""
        cols = operator.cols
        return self._parameter(at, operator, "gamma", 1.0, cols), self._parameter(at, operator, "beta", 0.0, cols)

    def _parameter(self, at: At, operator: Operator, what: str, otherwise: float, columns: int = 0) -> Floats:
        key = at, what
        if key not in self._held:
            shape = shapes(operator).get(what)
            self._held[key] = np.full(columns, otherwise) if shape is None else self.find(at, operator, what, shape)
        return self._held[key]

    def forget(self, at: At) -> None:
        """Let go of the parameters of one execution; they are found again when they are asked for."""
        for key in [key for key in self._held if key[0] == at]:
            del self._held[key]


class RandomWeights(Weights):
    """Seeded random parameters with the spread of a model before its training.

    Matrices are normal with a deviation of 0.02, those that add to the residual stream divided by the root of their
    number; norms' factors are near one, biases near zero, as they stay in training.
    """

    def __init__(self, graph: Graph, seed: int) -> None:
        super().__init__(graph)
        self.seed = seed
        self._sums = max(sum(o.repeat for o in graph.operators() if o.role is Role.RESIDUAL), 1)

    def find(self, at: At, operator: Operator, what: str, shape: tuple[int, ...]) -> Floats:
        chance = np.random.default_rng([self.seed, crc32(at.name.encode()), at.execution, crc32(what.encode())])
        made = chance.standard_normal(shape, np.float32)
        made *= np.float32(SPREAD)
        if what == "weight" and operator.role in (Role.ROW_PARALLEL, Role.EXPERT_ROW):
            made /= np.float32(self._sums**0.5)
        return made + np.float32(1) if what == "gamma" else made


def labels(graph: Graph) -> dict[str, tuple[str, int, int]]:
    """Of every operator with parameters: what it is, its first layer, and layers from one execution to the next."""
    found: dict[str, tuple[str, int, int]] = {}
    first = 0
    for _, repeat, operators in graph.blocks():
        if operators[0].place.section is not Section.LAYER:
            for operator in operators:
                if shapes(operator) or getattr(operator, "tied", None):
                    found[operator.name] = _outside(operator, found), 0, 0
            continue
        count = max(o.place.layer for o in operators) + 1
        seen: dict[tuple[int, Role], int] = {}
        for operator in operators:
            if shapes(operator):
                key = operator.place.layer, operator.role
                number = seen.get(key, 0)
                seen[key] = number + 1
                found[operator.name] = f"{operator.role.value}.{number}", first + operator.place.layer, count
        first += repeat * count
    return found


def _outside(operator: Operator, found: Mapping[str, tuple[str, int, int]]) -> str:
    """What an operator outside of layers is."""
    if operator.role is Role.EMBEDDING and isinstance(operator, Vector) and operator.function in TABLES:
        return "types" if any(label == "positions" for label, _, _ in found.values()) else "positions"
    return operator.role.value


__all__ = ["SPREAD", "RandomWeights", "Weights", "labels", "shapes"]
