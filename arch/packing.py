"""How parameters of fewer bits lie in memory, and what they stand for: codes in groups, each with its scale.

An array that computes in bf16 or fp16 may take its weights in int8 or int4 (W8A16, W4A16): they are *packed*. The rows
of a panel are cut into groups; of every column of a group there is one fp16 scale s and, where the array's weights have
minima, one fp16 minimum b. A code q stands for s q + b, computed in fp32 and rounded once to the operands' format.
Codes are whole numbers without a sign where there are minima, and in two's complement otherwise. Q4_1 is such a format
with minima (groups of 32), Q4_0 and Q8_0 are ones without; GPTQ's scales and zero points are scales and minima (of
128).

MX blocks (OCP Microscaling Formats, version 1.0) are groups of 32 whose codes are numbers in fp4_e2m1, fp8_e4m3 or
fp8_e5m2, and whose scale is one byte x, 2^(x - 127), or no number where x is 255; there are no minima. A scale of
2^-127, which is below the smallest normal fp32 number, counts as zero, as such numbers do everywhere
(`arch.floats`).

In memory a group is a *header*, the scales of C columns and then any minima, followed by its rows: as in
`arch.layout` beats of p x C values, of four or eight bits each, the first one in the low bits. Headers and rows are
filled up so that both begin with a part of a line that the array's port reads at once, where lines are powers of two.
A panel begins with a header, whatever its number of rows; the last group has the rows that are left.

A tile whose elements are wider than the array's operands may have its weights in the operands' own format: beats
without headers. The last panel of weights may lie in narrow lines as that of elements does (`may_be_narrow`): with
groups it is as one of an array of so many columns, its headers included. Keys
and values may have fewer bits than elements, too (`SystolicArray.cache`): beats of numbers in that format, without
headers, whatever their format is elsewhere the element of; or whole numbers in groups of p x C rows, with headers of as
many bytes (`arch.scaled`).

Loading takes a cycle for each beat and each line of a header (`loads`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.datatype import INTEGER_CODES, DataType, Packing, scale_bits
from siliconloom.arch.floats import NAN, Patterns, Words, float_product, float_sum, narrowed, patterns_of, widened
from siliconloom.arch.layout import fold_beats, is_power, line_values, padded, panel_beats, panel_rows
from siliconloom.arch.scaled import group_rows, is_scaled
from siliconloom.arch.vector import Count

SCALE = DataType.FP16
"""Format of the scales and minima of whole numbers."""
SCALE_BYTES = SCALE.bits // 8
NO_SCALE = 255
"""The scale of an MX block that is no number."""
SCALE_BIAS = 127


class Packed(NamedTuple):
    """Weights of k rows and n columns: codes (k x n), patterns of scales and minima (groups x n).

    Codes are whole numbers, or patterns of the elements of MX blocks; scales are fp16, or bytes of MX blocks.
    """

    codes: NDArray[np.integer[Any]]
    scales: NDArray[np.uint16]
    minima: NDArray[np.uint16] | None

    def columns(self, some: slice) -> Packed:
        """Those of some columns."""
        return self.each(lambda values: values[:, some])

    def each(self, made: Callable[[NDArray[Any]], NDArray[Any]]) -> Packed:
        """What is made of codes, of scales, and of minima where there are any."""
        return Packed(made(self.codes), made(self.scales), None if self.minima is None else made(self.minima))


def line_bytes(array: SystolicArray) -> int:
    """What the array's port reads of the stationary operand at once: ``load_rows`` rows of operands."""
    assert array.circuit_format is not None
    return array.load_rows * array.cols * array.circuit_format.bits // 8


def beat_bytes(array: SystolicArray, dtype: DataType) -> int:
    """``load_rows`` rows of codes."""
    return array.load_rows * array.cols * dtype.bits // 8


def has_minima(array: SystolicArray, dtype: DataType) -> bool:
    """Whether groups of codes of this format have minima."""
    return array.weights is not None and array.weights.minima and dtype in INTEGER_CODES


def has_groups(array: SystolicArray, dtype: DataType) -> bool:
    """Whether weights of this format have groups with scales: none have that are the array's own operands."""
    return array.weights is not None and dtype in array.weights.formats


def header_bytes(array: SystolicArray, dtype: DataType) -> int:
    """Scales, and minima, of the columns of a panel."""
    if array.weights is None:
        return 0
    return (1 + has_minima(array, dtype)) * scale_bits(dtype) // 8 * array.cols


def header_lines(array: SystolicArray, dtype: DataType) -> int:
    """Reads that bring a header."""
    return -(-header_bytes(array, dtype) // line_bytes(array))


def granule(array: SystolicArray, dtype: DataType) -> int:
    """Bytes at whose multiples headers and the rows of a group begin; one where lines are read from anywhere."""
    line = line_bytes(array)
    if line & line - 1:
        return 1
    return max(min(header_bytes(array, dtype), line), beat_bytes(array, dtype)) if scale_bits(dtype) else line


def header_room(array: SystolicArray, dtype: DataType) -> int:
    """Bytes from where a header begins to the first of its rows."""
    return padded(header_bytes(array, dtype), granule(array, dtype))


def has_header(array: SystolicArray, packing: Packing | None) -> bool:
    """Whether what is packed so comes in groups that begin with a header."""
    return packing is not None and (packing.group > 0 or is_scaled(array, packing))


def begin_unit(array: SystolicArray, packing: Packing) -> int:
    """As `granule`: of keys and values with scales a header, which is at least a beat."""
    if not is_scaled(array, packing):
        return granule(array, packing.dtype)
    line = line_bytes(array)
    return 1 if line & line - 1 else group_rows(array)


def lines_before(array: SystolicArray, packing: Packing) -> int:
    """As `header_lines`: one of keys and values with scales."""
    return 1 if is_scaled(array, packing) else header_lines(array, packing.dtype)


def room_before(array: SystolicArray, packing: Packing) -> int:
    """As `header_room`, of keys and values with scales, too."""
    return group_rows(array) if is_scaled(array, packing) else header_room(array, packing.dtype)


def worked_rows(array: SystolicArray, k: Count, packing: Packing | None) -> Count:
    """Rows of weights that take rows of elements: all, or those that are stored where the array skips the others."""
    if packing is None or packing.sparsity is None or array.sparsity is None or not array.sparsity.skips:
        return k
    return cast(Count, packing.sparsity.rows(k))


def group_beats(array: SystolicArray, packing: Packing) -> int:
    """Beats that bring the rows of a whole group."""
    return (packing.group or group_rows(array)) // array.load_rows


def panel_bytes(array: SystolicArray, packing: Packing, k: Count) -> Count:
    """Bytes of a panel of ``k`` rows."""
    dtype, beats = packing.dtype, panel_beats(array, k)
    if packing.sparsity is not None:
        bits: Any = packing.sparsity.metadata_bits(k, array.cols)
        beat = beat_bytes(array, dtype)
        stored: Any = panel_beats(array, packing.sparsity.rows(k)) * beat
        return cast(Count, stored + padded(-(-bits // 8), beat))  # whole beats, so that the next panel begins with one
    if not has_header(array, packing):
        return beats * beat_bytes(array, dtype)
    whole = group_beats(array, packing)
    room, unit, beat = room_before(array, packing), begin_unit(array, packing), beat_bytes(array, dtype)
    rest = beats % whole
    some: Any = rest > 0
    found: Any = beats // whole * (room + padded(whole * beat, unit)) + some * room + padded(rest * beat, unit)
    return cast(Count, found)


def may_be_narrow(array: SystolicArray, packing: Packing | None) -> bool:
    """Whether a last panel may lie in narrow lines: of elements, of beats in the array's own format, and of groups.

    Not in the array's own format where a column of a beat is half of a byte. Of groups only where columns are a power
    of two and each read of a header brings scales or minima of all of them, so that parts of panels are as whole ones;
    and not before an array of whole numbers, whose rows share an exponent over a panel (`arch.shared`): what is in one
    may not hang on how a product is tiled.
    """
    if packing is None:
        return True
    if packing.sparsity is not None or is_scaled(array, packing):
        return False
    if not packing.group:
        return packing.dtype is array.circuit_format and not array.load_rows * packing.dtype.bits % 8
    assert array.circuit_format is not None
    shares = array.circuit_format.is_integer
    if shares or not (is_power(array.cols) and is_power(line_bytes(array)) and has_groups(array, packing.dtype)):
        return False
    return header_lines(array, packing.dtype) <= 1 + has_minima(array, packing.dtype)


def least_columns(array: SystolicArray, dtype: DataType) -> int:
    """Columns of the lines of a narrow panel, at least: so many that those of a beat take whole bytes."""
    return max(8 // (array.load_rows * dtype.bits), 1)


def panel_columns(array: SystolicArray, dtype: DataType, cols: Count) -> Count:
    """Columns of the lines that ``cols`` columns of a last panel lie in, where it may be narrow."""
    lines, least = line_values(cols, array.cols), least_columns(array, dtype)
    return np.maximum(lines, least) if isinstance(lines, np.ndarray) else max(lines, least)


def panels_of(array: SystolicArray, packing: Packing, n: int, narrow: int) -> list[tuple[SystolicArray, int]]:
    """Whose whole panels ``n`` columns lie in, and how many columns each has.

    The array's, and where the last one is ``narrow`` those of one that has as many columns as its lines.
    """
    rest = n % array.cols
    wide = panel_columns(array, packing.dtype, rest)
    if not narrow or not rest or wide == array.cols or not may_be_narrow(array, packing):
        return [(array, n)]
    slim = array.model_copy(update={"cols": wide})
    return [*([(array, n - rest)] if n > rest else []), (slim, rest)]


def weight_bytes(array: SystolicArray, packing: Packing, n: Count, k: Count, narrow: int = 0) -> Count:
    """Bytes of weights of ``k`` rows and ``n`` columns, as the array takes them; the last panel may be ``narrow``."""
    if narrow and may_be_narrow(array, packing):
        rest = n % array.cols
        filled = n - rest + (rest > 0) * panel_columns(array, packing.dtype, rest)
        return filled * panel_bytes(array, packing, k) // array.cols
    return -(-n // array.cols) * panel_bytes(array, packing, k)


class Loads(NamedTuple):
    """Cycles of loading the folds of one panel: what most whole folds take, those with a header more, and the rest.

    ``few`` folds take ``short`` cycles and ``many`` take ``long``; the first of all takes ``first``, and the rest,
    where there is one, ``rest``.
    """

    short: Any
    few: Any
    long: Any
    many: Any
    rest: Any
    first: Any

    @property
    def beats(self) -> Any:
        """Of all folds."""
        return self.few * self.short + self.many * self.long + self.rest


def loads(array: SystolicArray, k: Count, packing: Packing | None = None) -> Loads:
    """Cycles of loading each fold of a panel of ``k`` rows.

    A header comes before the first beat of every group. Whole folds of B beats have ceil or floor of B over a group's
    beats of them; together those of their last beat's place.
    """
    k = worked_rows(array, k, packing)
    full, rest = k // array.rows, k % array.rows
    every, last = fold_beats(array, array.rows), fold_beats(array, rest)
    if packing is None or not has_header(array, packing):
        return Loads(every, full, every, 0 * full, last, _either(full, every, last))
    group, lines = group_beats(array, packing), lines_before(array, packing)
    before = -(-full * every // group)
    least = every // group
    many = before - least * full
    behind = last + lines * (-(-(full * every + last) // group) - before)
    most = every + lines * -(-every // group)
    first = _either(full, most, last + lines * -(-last // group))
    return Loads(every + lines * least, full - many, every + lines * (least + 1), many, behind, first)


def _either(some: Count, first: Any, other: Any) -> Any:
    """The first where there are ``some``."""
    return np.where(some > 0, first, other) if isinstance(some, np.ndarray) else first if some else other


def fold_loads(array: SystolicArray, k: int, packing: Packing | None = None) -> list[int]:
    """Cycles of loading each fold of a panel, one after the other."""
    k = int(worked_rows(array, k, packing))
    found, place = list[int](), 0
    for start in range(0, k, array.rows):
        beats = fold_beats(array, min(array.rows, k - start))
        begun = 0
        if packing is not None and has_header(array, packing):
            group = group_beats(array, packing)
            begun = lines_before(array, packing) * (-(-(place + beats) // group) - -(-place // group))
        found.append(beats + begun)
        place += beats
    return found


def packed_weights(array: SystolicArray, packing: Packing, weights: Packed, narrow: int = 0) -> NDArray[np.uint8]:
    """Weights as they lie in memory, from their first byte to their last; the last panel may be ``narrow``."""
    begin, made = 0, list[NDArray[np.uint8]]()
    for each, cols in panels_of(array, packing, weights.codes.shape[1], narrow):
        made.append(_packed_panels(each, packing, weights.columns(slice(begin, begin + cols))))
        begin += cols
    return np.concatenate(made)


def _packed_panels(array: SystolicArray, packing: Packing, weights: Packed) -> NDArray[np.uint8]:
    """Weights of whole panels."""
    k, n = weights.codes.shape
    dtype, panels = packing.dtype, -(-n // array.cols)
    height, wide = panel_rows(array, k), panels * array.cols
    codes = np.zeros((height, wide), np.int64)
    codes[:k, :n] = weights.codes
    groups = -(-height // packing.group)
    parts = [weights.scales] + ([weights.minima] if weights.minima is not None else [])
    head = np.zeros((groups, len(parts), wide), _scale_type(dtype))
    for number, each in enumerate(parts):
        head[: len(each), number, :n] = each
    room, unit = header_room(array, dtype), granule(array, dtype)
    found = np.zeros((panels, panel_bytes(array, packing, k)), np.uint8)
    at = 0
    for group in range(groups):
        own = head[group].reshape(len(parts), panels, array.cols).transpose(1, 0, 2)
        own_bytes = np.ascontiguousarray(own).view(np.uint8).reshape(panels, -1)
        found[:, at : at + own_bytes.shape[1]] = own_bytes
        at += room
        rows = codes[group * packing.group : (group + 1) * packing.group]
        values = rows.reshape(len(rows), panels, array.cols).transpose(1, 0, 2).reshape(panels, -1)
        own_bytes = _bytes_of(values, dtype)
        found[:, at : at + own_bytes.shape[1]] = own_bytes
        at += padded(own_bytes.shape[1], unit)
    return found.reshape(-1)


def split_panels(
    array: SystolicArray, packing: Packing, held: NDArray[np.uint8], n: int, k: int, narrow: int
) -> list[tuple[SystolicArray, NDArray[np.uint8], int]]:
    """Packed weights by arrays whose whole panels they lie in (`panels_of`), with the columns of each."""
    found, begin = list[tuple[SystolicArray, NDArray[np.uint8], int]](), 0
    for each, cols in panels_of(array, packing, n, narrow):
        size = int(weight_bytes(each, packing, cols, k))
        found.append((each, held.reshape(-1)[begin : begin + size], cols))
        begin += size
    return found


def unpacked_weights(
    array: SystolicArray, packing: Packing, held: NDArray[np.uint8], n: int, k: int, narrow: int = 0
) -> Packed:
    """The opposite of `packed_weights`; columns of whole panels, or of a narrow one."""
    parts = [
        _unpacked_panels(each, packing, part, cols, k)
        for each, part, cols in split_panels(array, packing, held, n, k, narrow)
    ]
    minima = [part.minima for part in parts if part.minima is not None]
    return Packed(
        np.concatenate([part.codes for part in parts], 1),
        np.concatenate([part.scales for part in parts], 1),
        np.concatenate(minima, 1) if minima else None,
    )


def _unpacked_panels(array: SystolicArray, packing: Packing, held: NDArray[np.uint8], n: int, k: int) -> Packed:
    """Weights of whole panels."""
    assert array.weights is not None
    dtype, panels, height = packing.dtype, -(-n // array.cols), panel_rows(array, k)
    room, unit, minima = header_room(array, dtype), granule(array, dtype), has_minima(array, dtype)
    kinds = 1 + minima
    lines = held.reshape(panels, -1)
    codes = np.zeros((height, panels * array.cols), np.int16)
    heads = list[NDArray[np.uint16]]()
    at = 0
    for start in range(0, height, packing.group):
        head = np.ascontiguousarray(lines[:, at : at + header_bytes(array, dtype)]).view(_scale_type(dtype))
        heads.append(head.reshape(panels, kinds, array.cols).transpose(1, 0, 2).reshape(kinds, -1).astype(np.uint16))
        at += room
        rows = min(packing.group, height - start)
        taken = rows * array.cols * dtype.bits // 8
        values = _codes_of(lines[:, at : at + taken], dtype, signed=dtype in INTEGER_CODES and not minima)
        codes[start : start + rows] = values.reshape(panels, rows, array.cols).transpose(1, 0, 2).reshape(rows, -1)
        at += padded(taken, unit)
    parts = np.stack(heads, axis=1)
    return Packed(codes[:k], parts[0], parts[1] if minima else None)


def set_scales(
    array: SystolicArray,
    packing: Packing,
    held: NDArray[np.uint8],
    scales: NDArray[np.uint16],
    k: int,
    n: int,
    narrow: int = 0,
) -> None:
    """Write scales (groups x columns, as `unpacked_weights` has them) into packed weights of ``k`` rows."""
    begin = 0
    for each, part, cols in split_panels(array, packing, held, n, k, narrow):
        wide = padded(cols, each.cols)
        _set_scales(each, packing, part, scales[:, begin : begin + wide], k)
        begin += wide


def _set_scales(
    array: SystolicArray, packing: Packing, held: NDArray[np.uint8], scales: NDArray[np.uint16], k: int
) -> None:
    """Those of whole panels."""
    lines = held.reshape(-1, panel_bytes(array, packing, k))
    room, unit, at = header_room(array, packing.dtype), granule(array, packing.dtype), 0
    for number, own in enumerate(scales):
        head = np.ascontiguousarray(own.reshape(-1, array.cols).astype(_scale_type(packing.dtype))).view(np.uint8)
        lines[:, at : at + head.shape[1]] = head
        rows = min(packing.group, panel_rows(array, k) - number * packing.group)
        at += room + padded(rows * array.cols * packing.dtype.bits // 8, unit)


def unpacked(weights: Packed, packing: Packing, dtype: DataType) -> Patterns:
    """Patterns of the operands' format that packed weights stand for, as the circuit at the array's edge has them."""
    rows = np.arange(len(weights.codes)) // packing.group
    found = float_product(scale_words(weights.scales, packing.dtype)[rows], code_words(weights.codes, packing.dtype))
    if weights.minima is not None:
        found = float_sum(found, widened(weights.minima, SCALE)[rows])
    return narrowed(found, dtype)


def scale_words(scales: NDArray[np.integer[Any]], dtype: DataType) -> Words:
    """Fp32 patterns of the scales of codes of a format."""
    if dtype in INTEGER_CODES:
        return widened(scales, SCALE)
    return np.where(scales == NO_SCALE, NAN, scales.astype(np.uint32) << 23).astype(np.uint32)


def code_words(codes: NDArray[np.integer[Any]], dtype: DataType) -> Words:
    """Fp32 patterns of the numbers that codes are."""
    return codes.astype(np.float32).view(np.uint32) if dtype in INTEGER_CODES else widened(codes, dtype)


def _scale_type(dtype: DataType) -> str:
    return f"<u{scale_bits(dtype) // 8}"


def _blocks_of(values: NDArray[np.floating[Any]], group: int) -> NDArray[np.float64]:
    """Groups of rows (groups, rows, columns); the last row again where the last group has fewer."""
    short = -len(values) % group
    whole = np.concatenate([values, np.repeat(values[-1:], short, axis=0)]) if short else values
    return np.asarray(whole, np.float64).reshape(-1, group, values.shape[1])


def _in_blocks(values: NDArray[np.floating[Any]], packing: Packing) -> Packed:
    """MX blocks of real weights: the scale has the exponent of the largest, less that of the largest element.

    What is beyond the largest element then is that element (OCP Microscaling Formats, version 1.0, section 6.3). A
    block of which a weight is not finite is no numbers.
    """
    blocks, dtype = _blocks_of(values, packing.group), packing.dtype
    finite: NDArray[np.bool_] = np.asarray(np.isfinite(blocks).all(axis=1))
    blocks = np.where(finite[:, None], blocks, 0)
    peak = np.abs(blocks).max(axis=1)
    largest = float(widened(np.array([_largest(dtype)]), dtype).view(np.float32)[0])
    exponent = np.frexp(np.where(peak > 0, peak, 1.0))[1] - np.frexp(largest)[1] + SCALE_BIAS
    scales = np.clip(exponent, 1, NO_SCALE - 1).astype(np.uint16)
    steps = 2.0 ** (scales.astype(np.float64) - SCALE_BIAS)
    elements = np.clip(blocks / steps[:, None], -largest, largest)
    codes = patterns_of(elements, dtype).astype(np.int16)
    scales = np.where(finite, scales, NO_SCALE).astype(np.uint16)
    return Packed(codes.reshape(-1, values.shape[1])[: len(values)], scales, None)


def _largest(dtype: DataType) -> int:
    """The pattern of the largest number of a short format."""
    layout = dtype.layout
    top = (1 << dtype.bits - 1) - 1
    return top - (1 << layout.fraction_bits) if layout.infinities else top - layout.nans


def quantised(values: NDArray[np.floating[Any]], packing: Packing, minima: bool) -> Packed:
    """Weights nearest to real ones (k x n), with the range of every group, or its peak where there are no minima.

    MX blocks have neither, and take a power of two as their scale.

    Scales and minima beyond the largest fp16 number are that number. What was made of such groups in the first place,
    with every end of the range in use, comes out as it was. Without minima a scale takes the sign with which the peak
    becomes the code of most negative value, as Q4_0 does.
    """
    if packing.dtype not in INTEGER_CODES:
        return _in_blocks(values, packing)
    k, n = values.shape
    bits, blocks = packing.dtype.bits, _blocks_of(values, packing.group)
    if minima:
        low, high = blocks.min(axis=1), blocks.max(axis=1)
        scales = _halves((high - low) / ((1 << bits) - 1))
        least = _halves(low)
        lowest, highest, offset = 0, (1 << bits) - 1, least.astype(np.float64)
    else:
        at = np.abs(blocks).argmax(axis=1)[:, None]
        peak = np.take_along_axis(blocks, at, axis=1)[:, 0]
        half = 1 << bits - 1
        scales = _halves(peak / -half if bits < 8 else np.abs(peak) / (half - 1))
        least, lowest, highest, offset = None, -half, half - 1, np.zeros_like(peak)
    steps = scales.astype(np.float64)
    divisors = np.where(steps == 0, 1, steps)
    codes = np.clip(np.rint((blocks - offset[:, None]) / divisors[:, None]), lowest, highest).astype(np.int16)
    return Packed(codes.reshape(-1, n)[:k], scales.view(np.uint16), None if least is None else least.view(np.uint16))


def _halves(values: NDArray[np.float64]) -> NDArray[np.float16]:
    """Fp16 numbers nearest to real ones, finite ones of finite ones."""
    most = float(np.finfo(np.float16).max)
    return np.clip(values, -most, most).astype(np.float16)


def _bytes_of(values: NDArray[np.integer[Any]], dtype: DataType) -> NDArray[np.uint8]:
    """Codes of each row, packed into bytes."""
    if dtype.bits == 8:
        return (values & 255).astype(np.uint8)
    nibbles = (values & 15).astype(np.uint8)
    return np.asarray(nibbles[:, 0::2] | nibbles[:, 1::2] << 4, np.uint8)


def _codes_of(held: NDArray[np.uint8], dtype: DataType, *, signed: bool) -> NDArray[np.int16]:
    """The opposite of `_bytes_of`."""
    values = held.astype(np.int16)
    if dtype.bits == 4:
        values = np.stack([values & 15, values >> 4], axis=-1).reshape(len(held), -1)
    half = 1 << dtype.bits - 1
    return np.where(values >= half, values - 2 * half, values).astype(np.int16) if signed else values


__all__ = [
    "NO_SCALE",
    "SCALE",
    "SCALE_BIAS",
    "Loads",
    "Packed",
    "Packing",
    "beat_bytes",
    "begin_unit",
    "code_words",
    "fold_loads",
    "granule",
    "group_beats",
    "has_groups",
    "has_header",
    "has_minima",
    "header_bytes",
    "header_lines",
    "header_room",
    "least_columns",
    "line_bytes",
    "lines_before",
    "loads",
    "may_be_narrow",
    "packed_weights",
    "panel_bytes",
    "panel_columns",
    "quantised",
    "room_before",
    "scale_words",
    "set_scales",
    "split_panels",
    "unpacked",
    "unpacked_weights",
    "weight_bytes",
    "worked_rows",
]
