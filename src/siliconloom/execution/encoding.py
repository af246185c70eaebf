"""How values lie in memory: elements, parameters and angles in the bytes of a tile's format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.floats import patterns_of, values_of
from siliconloom.arch.layout import line_values, padded
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import Parameters, VectorFunction
from siliconloom.execution.quantize import Columns, Quantized, Scalars
from siliconloom.sim.golden.npu import (
    float_parameter_planes,
    float_scalar_bytes,
    float_turn_planes,
    parameter_planes,
    scalar_bytes,
    turn_planes,
)

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]


class Encoding(ABC):
    """Of one tile's format."""

    def __init__(self, tile: NpuTile) -> None:
        self.dtype: DataType = tile.circuit_format
        self.lanes, self.size = tile.vector.lanes, tile.element_bytes
        self.element: np.dtype[Any] = np.dtype("i1" if self.dtype.is_integer else f"u{self.size}")
        """Of arrays of elements."""

    @abstractmethod
    def columns(self, line: int, bias: Any, multiplier: Any, shift: Any) -> Bytes:
        """Parameters of columns in lines of so many."""

    @abstractmethod
    def scalars(self, scalars: Scalars) -> Bytes:
        """Scalars as they lie at ``d``, without what fills up their line."""

    @abstractmethod
    def turns(self, turns: Any) -> Bytes:
        """Cosines and sines of some rows, at the columns that read them; short rows lie in narrow lines."""

    @abstractmethod
    def values(self, elements: NDArray[Any], scale: Floats) -> Floats:
        """Real values of elements, whose steps are ``scale`` where they are integers."""

    def planes(self, columns: Columns) -> Bytes:
        """Parameters of columns, filled up to whole lines, or to a narrow one."""
        line = line_values(len(columns.bias), self.lanes)
        missing = -len(columns.bias) % line
        parts = (columns.bias, columns.multiplier, columns.shift)
        return self.columns(line, *(np.pad(each, (0, missing)) for each in parts)).reshape(-1)

    def lines(self, values: Bytes) -> Bytes:
        """Bytes, filled up to whole lines of the vector unit."""
        return np.pad(values, (0, padded(len(values), self.size * self.lanes) - len(values)))

    def parameters(self, function: VectorFunction, made: Quantized) -> list[Bytes]:
        """All that a function reads at ``d``, group by group."""
        found = []
        for group in function.spec.parameters_in(self.dtype):
            if group is Parameters.COLUMNS:
                assert made.columns is not None
                found.append(self.planes(made.columns))
            elif group is Parameters.SCALARS:
                assert made.scalars is not None
                found += [self.lines(self.scalars(each)) for each in (made.scalars, *made.further)]
            else:
                assert made.table is not None
                found.append(self.lines(np.frombuffer(made.table, np.uint8)))
        return found


class IntegerEncoding(Encoding):
    """Of int8."""

    def columns(self, line: int, bias: Any, multiplier: Any, shift: Any) -> Bytes:
        return parameter_planes(bias, multiplier, shift, line)

    def scalars(self, scalars: Scalars) -> Bytes:
        first, second, shift = scalars
        return scalar_bytes(int(first), int(second), shift)

    def turns(self, turns: Any) -> Bytes:
        return turn_planes(turns, line_values(turns.shape[1], self.lanes))

    def values(self, elements: NDArray[Any], scale: Floats) -> Floats:
        return elements * scale


class FloatEncoding(Encoding):
    """Of a format of floating point, whose parameters are fp32."""

    def columns(self, line: int, bias: Any, multiplier: Any, shift: Any) -> Bytes:
        words = [np.asarray(each, np.float32).view(np.uint32) for each in (bias, multiplier)]
        return float_parameter_planes(words[0], words[1], line, self.size)

    def scalars(self, scalars: Scalars) -> Bytes:
        first, second, _ = scalars
        return float_scalar_bytes(first, second, self.size)

    def turns(self, turns: Any) -> Bytes:
        return float_turn_planes(turns, line_values(turns.shape[1], self.lanes), self.size)

    def values(self, elements: NDArray[Any], scale: Floats) -> Floats:
        return values_of(elements, self.dtype).astype(np.float64) * scale

    def elements(self, values: NDArray[Any]) -> NDArray[Any]:
        """Elements nearest to real values."""
        return patterns_of(values, self.dtype)


def encoding_of(tile: NpuTile) -> IntegerEncoding | FloatEncoding:
    """That of a tile's format."""
    return IntegerEncoding(tile) if tile.circuit_format.is_integer else FloatEncoding(tile)


__all__ = ["Encoding", "FloatEncoding", "IntegerEncoding", "encoding_of"]
