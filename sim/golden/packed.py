"""Packed weights, and keys and values, as the numbers they stand for: `arch.packing.unpacked`, but faster."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch import packing as layout
from siliconloom.arch.array import SystolicArray
from siliconloom.arch.datatype import INTEGER_CODES, DataType, Packing, scale_bits
from siliconloom.arch.floats import Words, narrowed, widened
from siliconloom.arch.kernels import kernel
from siliconloom.arch.layout import padded, panel_rows, unpacked
from siliconloom.arch.scaled import group_rows, is_scaled, numbers_of

Bytes = NDArray[np.uint8]


def weights_of(array: SystolicArray, packing: Packing, held: Bytes, n: int, k: int, narrow: int = 0) -> Words:
    """Fp32 patterns of operands that packed weights stand for, k rows of whole panels.

    Parameters
    ----------
    array, packing
        Who takes them, and how they are packed.
    held
        As they lie in local memory.
    n, k
        Columns and rows.
    narrow
        Whether the last panel may be.
    """
    dtype = array.circuit_format
    assert dtype is not None
    if is_scaled(array, packing):
        return widened(narrowed(numbers_of(*taken(array, packing, held, n, k), packing.dtype), dtype), dtype)
    if not packing.group:
        own = packing.dtype
        values = np.ascontiguousarray(held).view(f"<u{own.bits // 8}")
        by = int(narrow and layout.may_be_narrow(array, packing))
        words = widened(unpacked(array, values.reshape(-1, 1), k, n, by), own)
        return words if own is dtype else widened(narrowed(words, dtype), dtype)
    parts = layout.split_panels(array, packing, held, n, k, narrow)
    made = [_groups(each, packing, part, cols, k) for each, part, cols in parts]
    if len(made) == 1 and made[0].shape[1] == padded(n, array.cols):
        return made[0]
    found = np.zeros((k, padded(n, array.cols)), np.uint32)
    found[:, : sum(part.shape[1] for part in made)] = np.concatenate(made, 1)
    return found


def _groups(array: SystolicArray, packing: Packing, held: Bytes, n: int, k: int) -> Words:
    """Fp32 patterns of operands that weights in groups stand for, of whole panels."""
    dtype = array.circuit_format
    assert dtype is not None
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
    if dtype.is_integer:  # whose operands are made of elements
        return words
    if dtype is DataType.BF16:
        round_to_bf16(words.reshape(-1))
        return words
    return widened(narrowed(words, dtype), dtype)


def taken(array: SystolicArray, packing: Packing, held: Bytes, n: int, k: int) -> tuple[NDArray[np.int8], Bytes]:
    """Codes of keys or values (k x columns of whole panels), and the scale of each (`arch.scaled`)."""
    cols, group, four = array.cols, group_rows(array), packing.dtype is DataType.INT4
    lines = np.ascontiguousarray(held).reshape(-(-n // cols), -1)
    height, at = panel_rows(array, k), 0
    codes, scales = np.empty((height, len(lines), cols), np.int8), np.empty((height, len(lines), cols), np.uint8)
    for start in range(0, height, group):
        rows, body = min(group, height - start), at + group
        head, size = lines[:, at:body], rows * cols * packing.dtype.bits // 8
        values: NDArray[Any] = lines[:, body : body + size]
        if four:
            parts = np.stack([values << 4, values & 0xF0], axis=-1).view(np.int8) >> 4
            if packing.by_rows:
                values = parts.reshape(len(lines), rows, cols)
            else:
                values = parts.reshape(len(lines), rows // 2, cols, 2).swapaxes(2, 3)
        codes[start : start + rows] = values.reshape(len(lines), rows, cols).swapaxes(0, 1).view(np.int8)
        if packing.by_rows:
            scales[start : start + rows] = head.T[:rows, :, None]
        else:
            blocks = head.reshape(len(lines), -1, cols).swapaxes(0, 1)
            scales[start : start + rows] = np.repeat(blocks, cols, axis=0)[:rows]
        at = body + padded(size, layout.begin_unit(array, packing))
    return codes.reshape(height, -1)[:k], scales.reshape(height, -1)[:k]


def held_bytes(array: SystolicArray, packing: Packing, codes: NDArray[np.int8], scales: Bytes) -> Bytes:
    """The opposite of `taken`: bytes of codes of k rows, whose scales are those of each."""
    k, n = codes.shape
    cols, group, panels, height = array.cols, group_rows(array), -(-n // array.cols), panel_rows(array, k)
    wide, own = np.zeros((height, panels * cols), np.uint8), np.zeros((height, panels * cols), np.uint8)
    wide[:k, :n], own[:k, :n] = codes.view(np.uint8), scales
    found, at = np.zeros((panels, int(layout.panel_bytes(array, packing, k))), np.uint8), 0
    for start in range(0, height, group):
        rows, body = min(group, height - start), at + group
        values: NDArray[Any] = wide[start : start + rows].reshape(rows, panels, cols).swapaxes(0, 1)
        part = own[start : start + rows].reshape(rows, panels, cols).swapaxes(0, 1)
        head = part[:, :, 0] if packing.by_rows else part[:, ::cols].reshape(panels, -1)
        found[:, at : at + head.shape[1]] = head
        if packing.dtype is DataType.INT4:
            along = 2 if packing.by_rows else 1
            low, high = (values.take(range(first, values.shape[along], 2), along) for first in (0, 1))
            values = (low & 15) | high << 4
        values = values.reshape(panels, -1)
        found[:, body : body + values.shape[1]] = values
        at = body + padded(values.shape[1], layout.begin_unit(array, packing))
    return found.reshape(-1)


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


__all__ = ["held_bytes", "taken", "weights_of"]
