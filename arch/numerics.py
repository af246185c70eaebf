"""Integer functions that the vector unit's circuits and the golden model share: their tables, and how they are read.

Everything is an integer, so both sides give the same bits. What the tables approximate, and how well, is measured
against float64 in ``docs/numerics.md``.

- Powers: softmax counts in powers of two. ``EXP2`` holds 2^(-f/256) in 1/2^15; the maximum of a row is kept as an
  integer power of two, so that a new one rescales the running sum by a shift (Stevens et al., "Softermax:
  Hardware/Software Co-Design of an Efficient Softmax for Transformers", DAC 2021, section III).
- Reciprocals and reciprocal square roots: a table over the eight leading bits of a normalised 16-bit mantissa, linear
  in between.
- Activations: any function of one int8 value is a table of 256 bytes, made by `activation_table` and kept in memory as
  a parameter, so its scales are exact.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from siliconloom.arch.functions.activations import gelu, silu
from siliconloom.arch.vector import VectorFunction

EXP2_BITS = 8
"""Fraction bits of an exponent."""
EXP2_ONE = 15
"""Fraction bits of a power."""
EXP2 = tuple(round(2**EXP2_ONE * 2 ** (-f / 2**EXP2_BITS)) for f in range(2**EXP2_BITS))
"""2^(-f/256) in units of 2^-15."""
ONE = 127
"""A probability of one."""
CLOSING_BITS = 7
"""Fraction bits of a sum over its row's total, in steps of 1/`ONE`."""
MANTISSA_BITS = 16
RECIPROCAL_SHIFT = 24
"""`reciprocal` of a mantissa M is `ONE` * 2^24 / M."""
FALL = 2 * EXP2_ONE - RECIPROCAL_SHIFT
"""What is over a total with highest bit b is the product with its reciprocal over 2^(b - `FALL`)."""
ROOT_SHIFT = 23
"""`reciprocal_root` of a mantissa M is 2^23 / sqrt(M)."""
NORM_BITS = 8
"""Fraction bits of a normalised element."""
ROPE_BITS = 15
"""Fraction bits of cosines and sines."""

LOG2_BITS = 16
"""Fraction bits of the exponent of a power in floating point; `EXP2` has the upper ones, and is linear in between."""


def _pattern(value: float) -> int:
    """The fp32 pattern of the nearest number."""
    return int.from_bytes(struct.pack("<f", value), "little")


_STEEPNESS = 2 * math.sqrt(2 / math.pi)
SILU_SLOPE = _pattern(-math.log2(math.e))
"""Pattern of the number by which x is the exponent of what stands under silu(x) = x / (1 + 2^exponent)."""
GELU_SLOPE, GELU_CUBE = _pattern(-math.log2(math.e) * _STEEPNESS), _pattern(-math.log2(math.e) * _STEEPNESS * 0.044715)
"""Patterns of the numbers by which x and x³ make up that exponent of gelu(x): its form with a tanh (Hendrycks and
Gimpel, arXiv:1606.08415, section 2)."""

TANH_SLOPE = _pattern(-2 * math.log2(math.e))
"""Pattern of the number by which x is that exponent of tanh(x) = 2 / (1 + 2^exponent) - 1."""
TANH_LEAST = 127 - 5
"""Biased exponent of the least number whose tanh is computed so: of a smaller one, below 2^-5, it is the number."""

RECIPROCALS = {i: (ONE * 2 ** (RECIPROCAL_SHIFT - 8) + i // 2) // i for i in range(128, 257)}
"""By the leading eight bits of a mantissa of 2^15 to 2^16, and the end of the last interval."""
ROOTS = {i: (math.isqrt(4 * 2 ** (2 * ROOT_SHIFT - 8) // i) + 1) // 2 for i in range(64, 257)}
"""By the leading eight bits of a mantissa of 2^14 to 2^16, and the end of the last interval."""


def interpolated(table: dict[int, int], mantissa: int) -> int:
    """Value of ``table`` between its entries at a 16-bit mantissa."""
    index, low = mantissa >> 8, mantissa & 255
    return table[index] - (((table[index] - table[index + 1]) * low + 128) >> 8)


def activation_table(function: Callable[[float], float], scale_in: float, scale_out: float) -> bytes:
    """An activation of int8 values: byte ``x & 255`` is round(function(x * scale_in) / scale_out), saturated.

    Parameters
    ----------
    function
        Of real numbers, such as `gelu` or `silu`.
    scale_in, scale_out
        Real value of one step of the operand and of the result.
    """
    values = (x - 256 if x > 127 else x for x in range(256))
    return bytes(min(max(round(function(x * scale_in) / scale_out), -128), 127) & 255 for x in values)


ACTIVATIONS: dict[VectorFunction, Callable[[float], float]] = {
    function: function.spec.activation for function in VectorFunction if function.spec.activation is not None
}
"""The real function behind the table of each function of this package that has one."""

__all__ = [
    "ACTIVATIONS",
    "CLOSING_BITS",
    "EXP2",
    "EXP2_BITS",
    "EXP2_ONE",
    "FALL",
    "GELU_CUBE",
    "GELU_SLOPE",
    "LOG2_BITS",
    "MANTISSA_BITS",
    "NORM_BITS",
    "ONE",
    "RECIPROCALS",
    "RECIPROCAL_SHIFT",
    "ROOTS",
    "ROOT_SHIFT",
    "ROPE_BITS",
    "SILU_SLOPE",
    "TANH_LEAST",
    "TANH_SLOPE",
    "activation_table",
    "gelu",
    "interpolated",
    "silu",
]
