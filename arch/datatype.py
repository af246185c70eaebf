"""Number formats of operands and accumulators."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct


class FloatLayout(Struct, frozen=True):
    """The fields of a floating-point format: a sign, an exponent, a fraction, from the high bits to the low ones.

    Parameters
    ----------
    exponent_bits, fraction_bits
        Widths of the two fields.
    infinities
        The largest exponent is that of infinities and NaN, as IEEE 754 has it. Otherwise it is one of numbers, and only
        the pattern of all ones is a NaN (OCP 8-bit Floating Point Specification, revision 1.0, table 1, E4M3).
    nans
        Some pattern is a NaN; E2M1 has none (OCP Microscaling Formats, version 1.0, section 5.3.3).
    """

    exponent_bits: int
    fraction_bits: int
    infinities: bool = True
    nans: bool = True

    @property
    def bias(self) -> int:
        """What the exponent field of 1.0 is."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def keeps_subnormals(self) -> bool:
        """Whether its subnormal numbers count: they do where fp32 has them as normal numbers."""
        return self.exponent_bits < FP32_LAYOUT.exponent_bits


FP32_LAYOUT = FloatLayout(8, 23)


class DataType(StrEnum):
    """A number format; ``bits`` is its width, ``accumulator`` the format its products are summed in.

    ``fp8`` is another name of ``fp8_e4m3``. New formats come last: programs count them.
    """

    INT4 = "int4"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    FP8_E4M3 = "fp8_e4m3"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP8_E5M2 = "fp8_e5m2"
    FP4_E2M1 = "fp4_e2m1"

    __hash__ = str.__hash__  # that of its text, which it equals; looked up more often than anything else

    @classmethod
    def _missing_(cls, value: object) -> DataType | None:
        return cls.FP8_E4M3 if value == "fp8" else None

    @property
    def bits(self) -> int:
        return _BITS[self]

    @property
    def is_integer(self) -> bool:
        return self.startswith("int")

    @property
    def layout(self) -> FloatLayout:
        """The fields of a floating-point format; raises `KeyError` for integers."""
        return _LAYOUTS[self]

    @property
    def accumulator(self) -> DataType:
        return DataType.INT32 if self.is_integer else DataType.FP32

    def size(self, elements: int) -> int:
        """Bytes that ``elements`` packed values take, rounded up to a whole byte."""
        return -(-elements * self.bits // 8)


SEXAGESIMAL = 2 * 60 + 4
"""What YAML 1.1 reads 2:4 as, where it has no quotation marks."""


def pattern_of(value: object) -> object:
    """A pattern of zeros by its name, or by the usual notation of the first."""
    return "2of4" if value in ("2:4", SEXAGESIMAL) else value


class Sparsity(NamedTuple):
    """Which weights are kept: of every ``of`` blocks below one another ``kept``, the others are zeros and not stored.

    2:4 is two of four blocks of one weight (NVIDIA A100 whitepaper, 2020: two bits say where a kept one stood). Larger
    blocks have as many rows as columns, and a bit each.
    """

    kept: int
    of: int
    block: int = 1

    def rows(self, k: Any) -> Any:
        """Weights of a column of ``k`` that are stored; an integer, or integers of an array."""
        turn, most = self.of * self.block, self.kept * self.block
        rest = k % turn
        return k // turn * most + (rest - (rest > most) * (rest - most))

    def metadata_bits(self, k: Any, n: Any) -> Any:
        """Bits that say where the kept ones of ``k`` rows and ``n`` columns stood."""
        if self.block == 1:
            return self.rows(k) * n * (self.of - 1).bit_length()
        return -(-k // self.block) * -(-n // self.block)

    def __str__(self) -> str:
        return f"{self.kept}:{self.of}" + (f" in blocks of {self.block}" if self.block > 1 else "")


class Packing(NamedTuple):
    """A format of packed weights: that of a code, and the rows of a group, a power of two (see `arch.packing`).

    Weights of 16 bits, and keys and values, have no groups; ``group`` is 0. Keys and values in whole numbers have
    scales nevertheless (`arch.scaled`), those of values ``by_rows``. ``sparsity``: only some are stored.
    """

    dtype: DataType
    group: int
    sparsity: Sparsity | None = None
    by_rows: bool = False

    @property
    def scale_bits(self) -> int:
        """Width of what every column of a group is scaled by: an fp16 number, a power of two, or nothing."""
        return scale_bits(self.dtype) if self.group else 0

    def __str__(self) -> str:
        groups = f" in groups of {self.group}" if self.group else " by rows" if self.by_rows else ""
        return f"{self.dtype.value}{groups}" + (f", {self.sparsity}" if self.sparsity else "")


CACHE_SCALE_BYTES = 4
"""Of the scale and the offset of a head's key or value of one position."""


class CacheFormat(NamedTuple):
    """In what keys and values are kept where that is not attention's own format.

    Whole numbers have ``scale_bytes`` for every ``group`` elements, those of a head's key, or value, of one position: a
    scale and an offset of 16 bits, or what a chip has instead. Other formats have none, and ``group`` is 0.
    """

    dtype: DataType
    group: int = 0
    scale_bytes: int = CACHE_SCALE_BYTES

    def size(self, elements: int) -> int:
        """Bytes of so many elements, a multiple of a group's."""
        scales = elements // self.group * self.scale_bytes if self.group else 0
        return self.dtype.size(elements) + scales

    def __str__(self) -> str:
        return self.dtype.value


INTEGER_CODES = (DataType.INT4, DataType.INT8)
"""Whole numbers as codes of packed weights, with fp16 scales."""
MX_ELEMENTS = (DataType.FP4_E2M1, DataType.FP8_E4M3, DataType.FP8_E5M2)
"""Elements of MX blocks, whose scale is a power of two (OCP Microscaling Formats, version 1.0)."""
CACHE_CODES = (DataType.FP8_E4M3, DataType.FP8_E5M2)
"""Formats of keys and values, without scales, that an array's edge makes operands of."""
CACHE_SCALED = (DataType.INT8, DataType.INT4)
"""Formats of keys and values that an array's edge makes operands of with a scale, a power of two (`arch.scaled`)."""
MX_BLOCK = 32
"""Elements of an MX block (the same, table 1)."""


def scale_bits(dtype: DataType) -> int:
    """Width of the scales of packed weights whose codes are ``dtype``; 0 of a format that has none."""
    return 16 if dtype in INTEGER_CODES else 8 if dtype in MX_ELEMENTS else 0


_LAYOUTS = {
    DataType.FP8_E4M3: FloatLayout(4, 3, infinities=False),
    DataType.FP8_E5M2: FloatLayout(5, 2),
    DataType.BF16: FloatLayout(8, 7),
    DataType.FP16: FloatLayout(5, 10),
    DataType.FP32: FP32_LAYOUT,
    DataType.FP4_E2M1: FloatLayout(2, 1, infinities=False, nans=False),
}
_BITS = {DataType.INT4: 4, DataType.INT8: 8, DataType.INT16: 16, DataType.INT32: 32} | {
    dtype: 1 + layout.exponent_bits + layout.fraction_bits for dtype, layout in _LAYOUTS.items()
}
