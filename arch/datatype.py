"""Number formats of operands and accumulators."""

from __future__ import annotations

from enum import StrEnum


class DataType(StrEnum):
    """A number format; ``bits`` is its width, ``accumulator`` the format its products are summed in."""

    INT4 = "int4"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    FP8 = "fp8"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def bits(self) -> int:
        return _BITS[self]

    @property
    def is_integer(self) -> bool:
        return self.value.startswith("int")

    @property
    def accumulator(self) -> DataType:
        return DataType.INT32 if self.is_integer else DataType.FP32

    def size(self, elements: int) -> int:
        """Bytes that ``elements`` packed values take, rounded up to a whole byte."""
        return -(-elements * self.bits // 8)


_BITS = {
    DataType.INT4: 4,
    DataType.INT8: 8,
    DataType.INT16: 16,
    DataType.INT32: 32,
    DataType.FP8: 8,
    DataType.BF16: 16,
    DataType.FP16: 16,
    DataType.FP32: 32,
}
