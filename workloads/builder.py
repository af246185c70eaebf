"""Puts operators one after another into a graph, each joined to the makers of its operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.operators import Attention, Gemm, Operator, Vector
from siliconloom.workloads.precision import NOTHING_MORE, Stated, Unpacked
from siliconloom.workloads.recurrence import Recurrence
from siliconloom.workloads.roles import Place, Role, Section

NORMS = (VectorFunction.LAYER_NORM, VectorFunction.RMS_NORM)


class Value(Struct, frozen=True):
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
        What is stated of the operators whose names match a shell-style pattern (``*.qkv``); the last match holds.
    packing
        Of stored matrices but the head's and the routers', which stay as they are (so GPTQ and AWQ store models).
    epsilon
        Of norms.
    unpacked
        Of stored matrices beside their format: compression, but of routers' and of those whose rows an embedding reads;
        zeros, but of the head's and of routers'.
    """

    def __init__(
        self,
        precision: DataType,
        patterns: Mapping[str, Stated] | None = None,
        epsilon: float = 0.0,
        packing: Packing | None = None,
        unpacked: Unpacked = NOTHING_MORE,
    ) -> None:
        self.dataflow = Dataflow()
        self.precision, self.patterns, self.epsilon, self.packing = precision, dict(patterns or {}), epsilon, packing
        self.unpacked = unpacked
        self._block, self._section, self._repeat, self._layer = "", Section.LIST, 1, 0
        self._prefix = ""

    def block(self, name: str, section: Section, repeat: int = 1) -> None:
        """Start a block: the operators added from now on belong to it."""
        self._block, self._section, self._repeat = name, section, repeat
        self.layer(None)

    def layer(self, index: int | None) -> None:
        """Start the layer of that index in a block that holds several; ``None`` in a block that holds one."""
        self._layer, self._prefix = (0, "") if index is None else (index, f"{index}.")

    def gemm(self, name: str, role: Role, *operands: Value, m: int, n: int, k: int, **options: Any) -> Value:
        """Add a `Gemm`; ``options`` are its other fields."""
        some = self.unpacked.packed
        packing = None if role in (Role.HEAD, Role.ROUTER) or (some and role not in some) else self.packing
        for stated in self._stated(self._full(name)):
            packing = stated.packing
        by_row = role is Role.ROUTER or self._read_by_row(self._full(name))
        compression = None if by_row else self.unpacked.compression
        sparsity = None if role in (Role.HEAD, Role.ROUTER) else self.unpacked.sparsity
        if not options.get("weight", True):
            packing = compression = sparsity = None
        own = {**options, **self._common(name, role)}
        made = Gemm(m=m, n=n, k=k, packing=packing, compression=compression, sparsity=sparsity, **own)
        return self._add(made, operands)

    def _read_by_row(self, full: str) -> bool:
        """Whether an operator before reads rows of the parameters of the one of that name."""
        operators = (self.dataflow[name] for name in self.dataflow)
        return any(isinstance(operator, Vector) and operator.tied == full for operator in operators)

    def attention(self, name: str, *operands: Value, role: Role = Role.ATTENTION, **shape: Any) -> Value:
        """Add an `Attention`."""
        return self._add(Attention(**shape, **self._common(name, role)), operands)

    def vector(
        self, name: str, role: Role, function: VectorFunction, *operands: Value, rows: int, cols: int, **options: Any
    ) -> Value:
        """Add a `Vector`; it reads as many operands of its shape as ``inputs`` says, else as are given."""
        options.setdefault("inputs", max(1, len(operands)))
        if function in NORMS:
            options.setdefault("epsilon", self.epsilon)
        common = self._common(name, role)
        return self._add(Vector(function=function, rows=rows, cols=cols, **options, **common), operands)

    def recurrence(
        self, name: str, function: VectorFunction, *operands: Value, rows: int, cols: int, **options: Any
    ) -> Value:
        """Add a `Recurrence`; of its result the states are no part of what others use."""
        common = self._common(name, Role.STATE)
        made = self._add(Recurrence(function=function, rows=rows, cols=cols, **options, **common), operands)
        return made.part(rows * cols)

    def _common(self, name: str, role: Role) -> dict[str, Any]:
        full, precision = self._full(name), self.precision
        for stated in self._stated(full):
            precision = stated.dtype or self.precision
        place = Place(role=role, section=self._section, layer=self._layer)
        return {"name": full, "block": self._block, "repeat": self._repeat, "precision": precision, "place": place}

    def _full(self, name: str) -> str:
        return self._block if name == self._block else f"{self._block}.{self._prefix}{name}"

    def _stated(self, full: str) -> Iterator[Stated]:
        """What patterns say of an operator, the last of them last."""
        return (stated for pattern, stated in self.patterns.items() if fnmatchcase(full, pattern))

    def _add(self, operator: Operator, operands: tuple[Value, ...]) -> Value:
        if operator.name in self.dataflow:
            raise ValueError(f"two operators are named {operator.name}")
        self.dataflow.add(operator)
        for value in operands:
            self.dataflow.connect(value.operator, operator.name, value.elements)
        return Value(operator.name, operator.output_elements)
