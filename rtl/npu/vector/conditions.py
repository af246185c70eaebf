"""What the instruction under way in the vector unit asks for, as conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from amaranth import Module, Signal
from amaranth.hdl import Value

from siliconloom.arch.datatype import DataType
from siliconloom.arch.vector import FunctionSpec, Parameters, VectorFunction
from siliconloom.rtl.npu.decoding import any_of


class VectorConditions:
    """What the instruction under way is, as conditions; ``is_`` has them by the names of ways and of other groups.

    ``entry`` is the instruction under way, ``new`` the one that is offered, which becomes it while the unit is
    ``free``; ``ways`` are the functions that each way of the lanes takes part in, ``functions`` all of the unit.
    ``turns``: it reads two lines of the second operand for one of the first; ``seconds``: it reads that operand at
    all; ``has_columns``: columns have parameters; ``row_columns``: they do, and it is a row function; ``weighs``,
    ``indexes``, ``carries``: see `arch.vector.FunctionSpec`, as ``divides``; ``goes_on``: rows begin with the peaks
    and totals that are there.
    """

    def __init__(
        self,
        m: Module,
        entry: Any,
        new: Any,
        ways: Mapping[str, set[VectorFunction]],
        functions: Set[VectorFunction],
        dtype: DataType = DataType.INT8,
        *,
        free: Value,
    ) -> None:
        self.m, self.free = m, free
        self.entry, self.new, self.functions, self.dtype = entry, new, functions, dtype
        self.ways = tuple(ways)
        self.groups = dict(ways)
        self.from_sums, transposes, self.by_rows = (
            self.built(lambda spec: spec.from_sums),
            self.built(lambda spec: spec.transposes),
            self.built(lambda spec: spec.cost.by_row),
        )
        self.groups |= {"from_sums": self.from_sums, "transpose": transposes, "by_row": self.by_rows}
        # registers, since what they choose stands in front of multipliers
        self.is_ = {name: self._kept(functions, f"is_{name}") for name, functions in self.groups.items()}
        self.turns, self.seconds = self.asks(lambda spec: spec.second > 1), self.asks(lambda spec: spec.reads_second)
        self.weighs, self.indexes = self.asks(lambda spec: spec.weighs), self.asks(lambda spec: spec.indexes)
        self.carries = self.asks(lambda spec: spec.carries)
        self.goes_on = self.carries & entry.add
        self.divides = self.asks(lambda spec: spec.divides)
        self.has_columns = self.asks(lambda spec: Parameters.COLUMNS in spec.parameters_in(dtype))
        self.row_columns = self.asks(lambda spec: spec.cost.by_row and Parameters.COLUMNS in spec.parameters_in(dtype))

    def built(self, condition: Callable[[FunctionSpec], bool]) -> set[VectorFunction]:
        """Functions of the unit whose spec meets a condition."""
        return {function for function in self.functions if condition(function.spec)}

    def asks(self, condition: Callable[[FunctionSpec], bool]) -> Value:
        """Whether the instruction's function is one of those."""
        return self._kept(self.built(condition))

    def _kept(self, functions: Set[VectorFunction], name: str | None = None) -> Signal:
        """A register: whether the function of the instruction under way is one of these."""
        kept = Signal(name=name or "asks", init=any(function.code == 0 for function in functions))
        m = self.m
        with m.If(self.free):
            m.d.sync += kept.eq(any_of(functions, self.new))
        return kept


__all__ = ["VectorConditions"]
