"""What a bench runs: GEMMs as streams of beats, their golden results, and the check of the values that came out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.datatype import DataType
from siliconloom.arch.digits import chances_of
from siliconloom.arch.floats import chain_product, patterns_of, widened
from siliconloom.arch.layout import fold_tile, summing_order
from siliconloom.rtl.array.elements import arithmetic_of

Matrix = NDArray[np.int64]


class ArrayProduct(Struct, frozen=True):
    """C[m,n] = A[m,k] B[k,n] with random operands."""

    m: int
    n: int
    k: int


class FoldTime(Struct, frozen=True):
    """First and last output cycle of a fold, cycle 0 being the first with a valid operand."""

    first_output: int
    last_output: int


class FoldCase(Struct, frozen=True):
    """GEMMs that run back to back on one tile.

    Parameters
    ----------
    gemms
        In order.
    seed
        Of operand values and stalls.
    dtype
        Format of the values (int4 values also run on an int8 array).
    stall
        Probability, per stream (and ``output``), that a beat is held back for a cycle; empty for none.
    schedule
        Predicted times of every fold, in order, for whoever compares them; they hold when nothing stalls.
    sigma
        Standard deviation of A, of whole numbers as `arch.digits.chances_of` has them; ``None``: as ``values`` says.
    values
        ``any``: the ends of the format more often than others, so that sums go wrong where they can; ``uniform``: from
        one end to the other, of floating-point formats from -1 to 1; ``normal``: with a standard deviation of a sixth
        of the largest integer, of floating-point formats of 1.
    """

    gemms: tuple[ArrayProduct, ...]
    seed: int
    dtype: DataType = DataType.INT8
    stall: dict[str, float] = field(default_factory=dict)
    schedule: tuple[FoldTime, ...] = ()
    sigma: float | None = None
    values: Literal["any", "uniform", "normal"] = "any"


class CaseResult(Struct, frozen=True):
    """What the RTL did with a case.

    Parameters
    ----------
    folds
        Observed times of every fold.
    value_errors
        Result beats that are not the golden ones, or are missing, or were not due, in words.
    value_bytes
        Bytes of results that came and were compared.
    cycles
        Observed cycles of the case, from the first operand to the last result.
    """

    case: FoldCase
    folds: tuple[FoldTime, ...]
    value_errors: tuple[str, ...]
    value_bytes: int
    cycles: int


class FoldBeats(Struct):
    """Streams of one fold and its golden result, one row of C sums per due output beat."""

    streams: dict[str, list[tuple[Matrix, int]]]
    golden: Matrix
    due: int


def operands(case: FoldCase) -> list[tuple[Matrix, Matrix]]:
    """Random A and B of every product, as integers or as patterns of a floating-point format.

    Extreme values are frequent, since that is where sums go wrong: the ends of integers; of floating-point numbers
    half of the products have any patterns, infinities and NaN among them, the others only finite ones, many of them
    alike in size, with zeros and the smallest numbers.
    """
    chance = np.random.default_rng(case.seed)
    made = []
    for gemm in case.gemms:
        shapes = ((gemm.m, gemm.k), (gemm.k, gemm.n))
        draw = _integers if case.dtype.is_integer else _any_patterns if chance.random() < 0.5 else _numbers
        if case.values != "any":
            draw = _evenly if case.values == "uniform" else _normally
        a, b = (draw(chance, case.dtype, shape) for shape in shapes)
        if case.sigma is not None:
            a = _spread(chance, case.dtype, case.sigma, shapes[0])
        made.append((a, b))
    return made


def _spread(chance: np.random.Generator, dtype: DataType, sigma: float, shape: tuple[int, int]) -> Matrix:
    """Values of a normal distribution as evenly spread over it as so many can be, in any order."""
    values, chances = chances_of(dtype, sigma)
    count = shape[0] * shape[1]
    places = np.searchsorted(np.cumsum(chances), (np.arange(count) + chance.random()) / count)
    return chance.permutation(values[np.minimum(places, len(values) - 1)]).reshape(shape)


def _integers(chance: np.random.Generator, dtype: DataType, shape: tuple[int, int]) -> Matrix:
    low, high = -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1
    values = chance.integers(low, high, size=shape, endpoint=True)
    extreme = chance.choice(np.array([low, high, 0, -1]), size=shape)
    return np.where(chance.random(shape) < 0.2, extreme, values)


def _evenly(chance: np.random.Generator, dtype: DataType, shape: tuple[int, int]) -> Matrix:
    return _in_format(chance.uniform(-1, 1, shape), dtype, 1.0)


def _normally(chance: np.random.Generator, dtype: DataType, shape: tuple[int, int]) -> Matrix:
    return _in_format(chance.standard_normal(shape), dtype, 6.0)


def _in_format(values: NDArray[np.float64], dtype: DataType, largest: float) -> Matrix:
    """Numbers in a format, whose largest integer stands for ``largest``."""
    if not dtype.is_integer:
        return np.asarray(patterns_of(values, dtype).astype(np.int64))
    most = (1 << dtype.bits - 1) - 1
    return np.clip(np.rint(values * most / largest), -most - 1, most).astype(np.int64)


def _any_patterns(chance: np.random.Generator, dtype: DataType, shape: tuple[int, int]) -> Matrix:
    found = chance.integers(0, 1 << dtype.bits, size=shape)
    special = patterns_of(np.array([np.inf, -np.inf, np.nan, -0.0]), dtype).astype(np.int64)
    return np.where(chance.random(shape) < 0.1, chance.choice(special, size=shape), found)


def _numbers(chance: np.random.Generator, dtype: DataType, shape: tuple[int, int]) -> Matrix:
    values = chance.standard_normal(shape) * 2.0 ** chance.integers(-3, 4, size=shape)
    if chance.random() < 0.5:  # few different ones, whose sums cancel
        values = chance.integers(-4, 5, size=shape) / 2
    found: Matrix = patterns_of(values, dtype).astype(np.int64)
    smallest = chance.integers(0, 1 << dtype.layout.fraction_bits, size=shape)
    signs = chance.integers(0, 2, size=shape) << (dtype.bits - 1)
    return np.where(chance.random(shape) < 0.15, smallest | signs, found)


def folds_of(array: SystolicArray, a: Matrix, b: Matrix, dtype: DataType) -> list[FoldBeats]:
    """Cut a GEMM of such operands into the folds of the array, in the order of ``sim.timing.systolic.gemm_folds``."""
    rows, cols = array.rows, array.cols
    if array.dataflow == "output_stationary":
        return [
            _output_fold(array, a[i : i + rows], b[:, j : j + cols], dtype)
            for i in range(0, a.shape[0], rows)
            for j in range(0, b.shape[1], cols)
        ]
    # weight stationary: B stays, rows of A move; input stationary: A^T stays, columns of B move
    stationary, moving = (b, a) if array.dataflow == "weight_stationary" else (a.T, b.T)
    return [
        _stationary_fold(array, stationary[k : k + rows, j : j + cols], moving[:, k : k + rows], dtype)
        for j in range(0, stationary.shape[1], cols)
        for k in range(0, stationary.shape[0], rows)
    ]


def _stationary_fold(array: SystolicArray, stationary: Matrix, moving: Matrix, dtype: DataType) -> FoldBeats:
    used = stationary.shape[0]
    tile = fold_tile(array, stationary)
    loads = [tile[i : i + array.load_rows].ravel() for i in range(0, len(tile), array.load_rows)]
    lanes = _padded(moving, moving.shape[0], array.rows)
    order = [row for row in summing_order(array) if row < used]
    golden = _product(lanes[:, order], tile[order], dtype)
    return FoldBeats({"stationary": _marked(loads), "moving": _marked(list(lanes))}, golden, golden.shape[0])


def _output_fold(array: SystolicArray, a: Matrix, b: Matrix, dtype: DataType) -> FoldBeats:
    deep = -(-a.shape[1] // array.depth)
    left, right = _padded(a, array.rows, deep * array.depth), _padded(b, deep * array.depth, array.cols)
    a_beats = left.reshape(array.rows, deep, array.depth).transpose(1, 0, 2).reshape(deep, -1)
    b_beats = right.reshape(deep, array.depth, array.cols).transpose(0, 2, 1).reshape(deep, -1)
    streams = {"a": _marked(list(a_beats)), "b": _marked(list(b_beats))}
    return FoldBeats(streams, _product(left, right, dtype), a.shape[0])


def _product(a: Matrix, b: Matrix, dtype: DataType) -> Matrix:
    """Sums of 32 bits as two's complement, whatever they are patterns of."""
    if dtype.is_integer:
        return a @ b
    return chain_product(widened(a, dtype), widened(b, dtype)).view(np.int32).astype(np.int64)


def _padded(values: Matrix, rows: int, cols: int) -> Matrix:
    made = np.zeros((rows, cols), np.int64)
    made[: values.shape[0], : values.shape[1]] = values
    return made


def _marked(beats: Sequence[Matrix]) -> list[tuple[Matrix, int]]:
    return [(beat, int(index == len(beats) - 1)) for index, beat in enumerate(beats)]


def pack(values: Matrix, bits: int) -> str:
    """Lanes as one hexadecimal word, lane 0 in the low bits."""
    word = 0
    for lane, value in enumerate(values.tolist()):
        word |= (value & ((1 << bits) - 1)) << (lane * bits)
    return f"{word:x}"


def unpack(word: str, lanes: int, bits: int) -> Matrix:
    """Two's-complement lanes of ``bits`` bits of a hexadecimal word."""
    whole, top = int(word, 16), 1 << bits - 1
    fields = (whole >> lane * bits & 2 * top - 1 for lane in range(lanes))
    return np.array([(field ^ top) - top for field in fields], np.int64)


def job_case(array: SystolicArray, case: FoldCase, lane_bits: int) -> tuple[dict[str, Any], list[FoldBeats]]:
    """The case as the simulator side reads it, and its folds."""
    folds = [fold for a, b in operands(case) for fold in folds_of(array, a, b, case.dtype)]
    streams: dict[str, list[tuple[str, int]]] = {}
    for fold in folds:
        for name, beats in fold.streams.items():
            streams.setdefault(name, []).extend((pack(values, lane_bits), last) for values, last in beats)
    total = sum(len(s) for s in streams.values()) + sum(len(f.golden) for f in folds)
    fill = 4 * (array.rows + array.cols) + 100
    slowest = 1 - max([0.0, *case.stall.values()])
    job = {
        "streams": streams,
        "seed": case.seed,
        "stall": case.stall,
        "outputs": sum(len(f.golden) for f in folds),
        "limit": int((total + len(folds) * fill) * 6 / slowest),
        "quiet": fill,
    }
    return job, folds


def _shown(sums: Matrix, dtype: DataType) -> list[Any]:
    """Sums as people read them: integers, or fp32 patterns."""
    return sums.tolist() if dtype.is_integer else [f"{each & 0xFFFFFFFF:08x}" for each in sums.tolist()]


def judge(array: SystolicArray, case: FoldCase, folds: Sequence[FoldBeats], outcome: dict[str, Any]) -> CaseResult:
    """Compare what came out with the golden values, and take the times of every fold."""
    outputs, position, compared, bits = outcome["outputs"], 0, 0, arithmetic_of(array).sum_bits
    values: list[str] = []
    observed: list[FoldTime] = []
    for number, fold in enumerate(folds):
        beats = outputs[position : position + len(fold.golden)]
        position += len(fold.golden)
        for row, (_, word, last) in enumerate(beats):
            got = unpack(word, array.cols, bits)
            compared += array.cols * bits // 8
            if not np.array_equal(got, fold.golden[row]):
                found, wanted = _shown(got, case.dtype), _shown(fold.golden[row], case.dtype)
                values.append(f"fold {number}, row {row}: RTL {found}, NumPy {wanted}")
            if last != (row == len(fold.golden) - 1):
                values.append(f"fold {number}, row {row}: output_last is {last}")
        if len(beats) < len(fold.golden):
            values.append(f"fold {number}: {len(beats)} of {len(fold.golden)} result beats came")
            break
        observed.append(FoldTime(beats[0][0], beats[fold.due - 1][0]))
    if len(outputs) > position:
        values.append(f"{len(outputs) - position} result beats came that were not due")
    last_cycle = observed[-1].last_output + 1 if observed else 0
    return CaseResult(case, tuple(observed), tuple(values), compared, last_cycle)
