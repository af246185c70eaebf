"""Packed weights of a matmul as the numbers they stand for: `arch.packing.unpacked`, at the speed of a model's run."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch import packing as layout
from siliconloom.arch.datatype import INTEGER_CODES, DataType, Packing, scale_bits
from siliconloom.arch.description import SystolicArray
from siliconloom.arch.floats import Words, narrowed, widened
from siliconloom.arch.kernels import kernel
from siliconloom.arch.layout import panel_rows, unpacked

Bytes = NDArray[np.uint8]


def weights_of(array: SystolicArray, packing: Packing, held: Bytes, n: int, k: int) -> Words:
    """Fp32 patterns of operands that packed weights stand for, k rows of whole panels.

    Parameters
    ----------
    array, packing
        Who takes them, and how they are packed.
    held
        As they lie in local memory.
    n, k
        Columns and rows.
    """
    dtype = array.circuit_format
    assert dtype is not None
    if not packing.group:
        own = packing.dtype
        values = np.ascontiguousarray(held).view(f"<u{own.bits // 8}")
        words = widened(unpacked(array, values.reshape(-1, 1), k), own)
        return words if own is dtype else widened(narrowed(words, dtype), dtype)
    assert array.weights is not None
    panels, height = -(-n // array.cols), panel_rows(array, k)
    lines = np.ascontiguousarray(held.reshape(panels, -1))
    found = np.empty((k, panels * array.cols), np.float32)
    room, unit = layout.header_room(array, packing.dtype), layout.granule(array, packing.dtype)
    code, minima = packing.dtype.bits, layout.has_minima(array, packing.dtype)
    scale = packing.scale_bits // 8
    places = np.array([packing.group, height, room, unit, array.cols, code, minima, scale], np.int64)
    unpack_panels(lines, _scales(packing.dtype), _codes(packing.dtype, minima), places, found)
    words = found.view(np.uint32)
    if dtype is DataType.INT8:  # whose operands are made of elements
        return words
    if dtype is DataType.BF16:
        round_to_bf16(words.reshape(-1))
        return words
    return widened(narrowed(words, dtype), dtype)


@cache
def _scales(dtype: DataType) -> NDArray[np.float32]:
    """The number of every pattern of a scale of codes of a format."""
    return layout.scale_words(np.arange(1 << scale_bits(dtype), dtype=np.uint16), dtype).view(np.float32)


@cache
def _codes(dtype: DataType, minima: bool) -> NDArray[np.float32]:
    """The number of every pattern of a code."""
    codes = np.arange(1 << dtype.bits)
    if dtype in INTEGER_CODES and not minima:
        codes = np.where(codes >= len(codes) // 2, codes - len(codes), codes)
    return layout.code_words(codes, dtype).view(np.float32)


@kernel()
def unpack_panels(lines: Bytes, scales: Any, numbers: Any, places: Any, found: Any) -> None:
    """What codes stand for, before they are rounded: products are exact in fp32, sums rounded once.

    ``scales`` has the number of every pattern of a scale, ``numbers`` that of every code. Scales in fp16 are multiples
    of 2^-24, and so is every sum; those of MX blocks may make products below the smallest normal number, which are
    zeros.
    """
    group, height, room, unit, cols = places[0], places[1], places[2], places[3], places[4]
    bits, minima, scale_bytes = places[5], places[6], places[7]
    smallest = np.float32(2.0**-126)
    for panel in range(lines.shape[0]):
        line = lines[panel]
        at, start = 0, 0
        while start < height:
            rows = min(group, height - start)
            body = at + room
            for row in range(min(rows, found.shape[0] - start)):
                target = found[start + row]
                for column in range(cols):
                    index = row * cols + column
                    if bits == 8:
                        code = np.int64(line[body + index])
                    else:
                        code = np.int64(line[body + (index >> 1)]) >> (4 * (index & 1)) & 15
                    head = at + scale_bytes * column
                    scale = np.int64(line[head])
                    if scale_bytes == 2:
                        scale |= np.int64(line[head + 1]) << 8
                    value = scales[scale] * numbers[code]
                    if abs(value) < smallest:
                        value = value * np.float32(0)
                    if minima != 0:
                        head += 2 * cols
                        value = value + scales[line[head] | np.int64(line[head + 1]) << 8]
                    target[panel * cols + column] = value
            taken = rows * cols * bits // 8
            at = body + (taken + unit - 1) // unit * unit
            start += rows


@kernel()
def round_to_bf16(words: Any) -> None:
    """Round fp32 patterns to those of bf16 numbers, halves to even; NaN is the canonical one."""
    for place in range(words.shape[0]):
        word = np.int64(words[place])
        if word & 0x7FFFFFFF > 0x7F800000:
            words[place] = 0x7FC00000
        else:
            words[place] = (word + 0x7FFF + (word >> 16 & 1)) & 0xFFFF0000


__all__ = ["weights_of"]
