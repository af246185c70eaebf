"""Puts operators one after another into a graph, each joined to the makers of its operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from siliconloom.arch.datatype import DataType
from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.operators import Attention, Gemm, Operator, Vector


@dataclass(frozen=True)
class Value:
    """A result on its way to a consumer: who makes it, and how many of its elements the consumer takes."""

    operator: str
    elements: int

    def part(self, elements: int) -> Value:
        """``elements`` of this result."""
        return replace(self, elements=elements)


class Builder:
    """Builds a graph block by block.

    Parameters
    ----------
    precision
        Format of operators that no pattern matches.
    patterns
        Formats of the operators whose names match a shell-style pattern (``*.qkv``); the last match holds.
    """

    def __init__(self, precision: DataType, patterns: Mapping[str, DataType] | None = None) -> None:
        self.dataflow = Dataflow()
        self.precision, self.patterns = precision, dict(patterns or {})
        self._block, self._repeat, self._prefix = "", 1, ""

    def block(self, name: str, repeat: int = 1) -> None:
        """Start a block: the operators added from now on belong to it."""
        self._block, self._repeat, self._prefix = name, repeat, ""

    def layer(self, index: int | None) -> None:
        """Start the layer of that index in a block that holds several; ``None`` in a block that holds one."""
        self._prefix = "" if index is None else f"{index}."

    def gemm(self, name: str, *operands: Value, m: int, n: int, k: int, **options: Any) -> Value:
        """Add a `Gemm`; ``options`` are its other fields."""
        return self._add(Gemm(m=m, n=n, k=k, **options, **self._common(name)), operands)

    def attention(self, name: str, *operands: Value, **shape: Any) -> Value:
        """Add an `Attention`."""
        return self._add(Attention(**shape, **self._common(name)), operands)

    def vector(
        self, name: str, function: VectorFunction, *operands: Value, rows: int, cols: int, **options: Any
    ) -> Value:
        """Add a `Vector`; it reads as many operands of its shape as ``inputs`` says, else as are given."""
        options.setdefault("inputs", max(1, len(operands)))
        return self._add(Vector(function=function, rows=rows, cols=cols, **options, **self._common(name)), operands)

    def _common(self, name: str) -> dict[str, Any]:
        full = self._block if name == self._block else f"{self._block}.{self._prefix}{name}"
        precision = self.precision
        for pattern, dtype in self.patterns.items():
            if fnmatchcase(full, pattern):
                precision = dtype
        return {"name": full, "block": self._block, "repeat": self._repeat, "precision": precision}

    def _add(self, operator: Operator, operands: tuple[Value, ...]) -> Value:
        if operator.name in self.dataflow:
            raise ValueError(f"two operators are named {operator.name}")
        self.dataflow.add(operator)
        for value in operands:
            self.dataflow.connect(value.operator, operator.name, value.elements)
        return Value(operator.name, operator.output_elements)
