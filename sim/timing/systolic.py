"""Cycle-exact timing of the systolic array, the counterpart of ``rtl.array.tile``.

An array works through *folds*: one stationary tile and the beats streamed past it (weight and input stationary), or
one output tile and its beats of both operands (output stationary). Cycles count from the cycle in which the first
operand is valid at the edge of the tile (cycle 0); every input passes a register slice, so a beat accepted in cycle
t enters the array (*fires*) in t + 1 at the earliest. R rows, C columns, s multiply stages, p load rows, h cycles from
row to row (one, and those of the adder's registers):

- Weight and input stationary: ``load_beats`` = ceil(rows used / p) beats, and of packed weights a line or two of
  scales before each group of rows (`arch.packing`), enter the shadow registers; the *swap* makes
  them active, at the earliest the cycle after the last load beat and in the cycle in which the previous fold's last
  moving beat fires; moving beats fire from the cycle after the swap; the next fold's load may fire from the swap on.
  A beat that fires in cycle f leaves the array in cycle f + R h + C - 1 + s.
  Where both operands enter at one port (``load_port: shared``) the next fold's load fires behind the last moving beat.
  Swaps are at least ``accumulate_stages`` apart, so that sums are there when the next fold's are added to them; the
  first one of a matmul is as many less one cycles later than the last moving beat of the matmul before.
- Output stationary: both operands' beats fire together; last beats of successive folds are at least R cycles apart
  (the drain chain moves one row per cycle), and those of a matmul's first fold ``accumulate_stages`` less one more from
  those of the matmul before; the first output row leaves R + C - 1 + s cycles after the last beat. A
  beat brings as many products of a sum as elements are deep.
- Elements without an adder (`arch.array.Element`): sums take the cycles in which they are resolved longer to leave.
- Digit-serial elements: a beat of operands fires once for each digit of that operand of A that has most which are not
  zero, once at least (`arch.digits`), from a cycle later on. The beats of a fold are these; of given operands they are
  known (`operand_folds`), of a distribution expected: each fold's are rounded so that those of a GEMM add up.

So a run of full folds advances by max(T, R/p), by T + 1 + R/p at a shared port, or by max(T, R), per fold and fills
once; where what stays is an operand by as many cycles as the accumulator adds in, at least.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.datatype import Packing
from siliconloom.arch.digits import beat_steps, expected_steps
from siliconloom.arch.packing import fold_loads, loads, worked_rows
from siliconloom.arch.timing import INPUT_SLICE
from siliconloom.arch.vector import Count


class Fold(Struct, frozen=True):
    """One pass of the array.

    Parameters
    ----------
    load_beats
        Beats of the stationary operand (0 for output stationary).
    stream_beats
        Beats of the moving operand, or of both operands (output stationary).
    output_beats
        Rows of the result that carry values (output stationary); ``stream_beats`` otherwise.
    """

    load_beats: int
    stream_beats: int
    output_beats: int


class FoldTimes(Struct, frozen=True):
    """Cycles of one fold at the array's edge."""

    first_fire: int
    last_fire: int
    first_output: int
    last_output: int


class ArrayTimeline:
    """Exact times of successive folds; carries over what one fold leaves for the next."""

    def __init__(self, array: SystolicArray) -> None:
        self.array = array
        self.output_latency = array.output_latency
        self.load_free = 0
        """First cycle in which the next stationary beat may fire."""
        self.stream_free = 0
        """First cycle in which the next moving beat may fire."""
        self.last_beat = -(2**62)
        """Cycle of the previous fold's last beat (output stationary)."""
        self.swapped = -(2**62)
        """Cycle of the previous fold's swap (weight and input stationary)."""

    def run(self, run: FoldRun, ready: int) -> FoldTimes:
        """Run a whole GEMM; equal to calling `fold` for each of its folds."""
        if self.array.dataflow == "output_stationary":
            first = max(ready, self.stream_free)
            apart = self.array.rows + self.array.products_apart
            last = max(first + run.stream_beats - 1, self.last_beat + apart) + run.advance
            self.last_beat = last
            self.stream_free = last + 1
            first_output = last - run.advance + self.output_latency
            return FoldTimes(first, last, first_output, last + self.output_latency + run.output_beats - 1)
        apart = self.array.products_apart
        swap = max(max(ready, self.load_free) + run.first_load, self.stream_free - 1 + apart, self._rested)
        first, last = swap + 1, swap + run.advance + run.stream_beats
        self.swapped = swap + run.advance
        self.stream_free = last + 1
        self.load_free = self.stream_free if self.array.load_port == "shared" else swap + run.advance
        return FoldTimes(first, last, first + self.output_latency, last + self.output_latency)

    def fold(self, fold: Fold, ready: int, *, begins: bool = False) -> FoldTimes:
        """Run one fold whose operands may fire from cycle ``ready`` on; whether a matmul ``begins`` with it."""
        apart = self.array.products_apart if begins else 0
        if self.array.dataflow == "output_stationary":
            first = max(ready, self.stream_free)
            last = max(first + fold.stream_beats - 1, self.last_beat + self.array.rows + apart)
            self.last_beat = last
            self.stream_free = last + 1
            output = last + self.output_latency
            return FoldTimes(first, last, output, output + fold.output_beats - 1)
        load_start = max(ready, self.load_free)
        swap = max(load_start + fold.load_beats, self.stream_free - 1 + apart, self._rested)
        first, last = swap + 1, swap + fold.stream_beats
        self.swapped = swap
        self.stream_free = last + 1
        self.load_free = self.stream_free if self.array.load_port == "shared" else swap
        return FoldTimes(first, last, first + self.output_latency, last + self.output_latency)

    @property
    def _rested(self) -> int:
        """First cycle in which sums may follow those of the previous fold."""
        return self.swapped + self.array.accumulate_stages


class FoldRun(Struct, frozen=True):
    """A whole GEMM as a run of folds, in closed form.

    Parameters
    ----------
    first_load
        Load beats of the first fold.
    stream_beats
        Beats of each fold, the same for all.
    folds
        Number of folds.
    advance
        Cycles from the first fold's swap (last beat, output stationary) to the last fold's.
    output_beats
        Result rows of the last fold.
    stationary_beats
        Load beats of all folds.
    work
        Beats of all folds.
    """

    first_load: int
    stream_beats: int
    folds: int
    advance: int
    output_beats: int
    stationary_beats: int
    work: int


def gemm_run(array: SystolicArray, m: int, n: int, k: int, packing: Packing | None = None) -> FoldRun:
    """Closed form of `gemm_folds`, at a cost that does not depend on the shape."""
    rows, cols = array.rows, array.cols
    if array.dataflow == "output_stationary":
        folds, last_rows = -(-m // rows) * -(-n // cols), m - (m - 1) // rows * rows
        if array.element == "digit_serial":
            beats, ends = _expected_ends(array, m, n, k)
            advance = int(ends[-1] - ends[0])
            return FoldRun(
                0, beats, folds, advance, last_rows, 0, min(_expected_beats(array, m, n, k), beats + advance)
            )
        beats = -(-k // array.depth)
        return FoldRun(0, beats, folds, (folds - 1) * max(beats, rows), last_rows, 0, folds * beats)
    outer, beats = (n, m) if array.dataflow == "weight_stationary" else (m, n)
    load = loads(array, k, packing)
    k = int(worked_rows(array, k, packing))
    panels, rest = -(-outer // cols), k % rows
    paced = load.few * fold_pace(array, load.short, beats) + load.many * fold_pace(array, load.long, beats)
    paced = panels * (paced + (fold_pace(array, load.rest, beats) if rest else 0))
    folds, advance = panels * (k // rows + (rest > 0)), paced - fold_pace(array, load.first, beats)
    return FoldRun(
        first_load=load.first,
        stream_beats=beats,
        folds=folds,
        advance=advance,
        output_beats=beats,
        stationary_beats=panels * load.beats,
        work=folds * beats,
    )


def fold_pace(array: SystolicArray, load: Count, beats: Count) -> Count:
    """Cycles from one fold's swap to the next one's, which has so many load beats, where what stays is an operand."""
    most = max if isinstance(load, int) and isinstance(beats, int) else np.maximum
    paced = beats + 1 + load if array.load_port == "shared" else most(load, beats)
    return most(paced, array.accumulate_stages)


def gemm_folds(array: SystolicArray, m: int, n: int, k: int, packing: Packing | None = None) -> list[Fold]:
    """Folds of C[m,n] = A[m,k] B[k,n] in the order in which the array runs them.

    Weight stationary: B tiles of R x C, n outer, k inner, m beats each. Input stationary: A^T tiles of R x C
    (rows k, columns m), m outer, k inner, n beats each. Output stationary: C tiles of R x C, m outer, n inner,
    k beats each, fewer where elements are deep. Only the rows in use are loaded or counted as output.
    """
    rows, cols = array.rows, array.cols
    if array.dataflow == "output_stationary":
        due = [min(rows, m - i) for i in range(0, m, rows) for _ in range(0, n, cols)]
        counts = [-(-k // array.depth)] * len(due)
        if array.element == "digit_serial":
            first, ends = _expected_ends(array, m, n, k)
            counts = [first, *map(int, np.diff(ends))]
        return [Fold(0, count, each) for count, each in zip(counts, due, strict=True)]
    outer, beats = (n, m) if array.dataflow == "weight_stationary" else (m, n)
    return [Fold(load, beats, beats) for load in fold_loads(array, k, packing)] * -(-outer // cols)


def _expected_ends(array: SystolicArray, m: int, n: int, k: int) -> tuple[int, NDArray[np.int64]]:
    """Beats expected of the first fold of a GEMM, and when every fold's last beat fires after a beginning, rounded."""
    rows, panels = array.rows, -(-n // array.cols)
    used = [rows] * (m // rows) + [m % rows] * (m % rows > 0)
    paced = {each: expected_steps(array, each, k, rows) for each in set(used)}
    ends = np.cumsum(np.repeat([paced[each] for each in used], panels))
    return round(expected_steps(array, used[0], k, 0)), np.rint(ends).astype(np.int64)


def _expected_beats(array: SystolicArray, m: int, n: int, k: int) -> int:
    """Beats expected of all folds of a GEMM, those in which the drain chain is waited for left out."""
    whole, rest = divmod(m, array.rows)
    of_all = whole * expected_steps(array, array.rows, k, 0)
    return round(-(-n // array.cols) * (of_all + (expected_steps(array, rest, k, 0) if rest else 0.0)))


def operand_folds(array: SystolicArray, a: NDArray[np.int64], n: int) -> list[Fold]:
    """Folds of C[m,n] = A[m,k] B[k,n] of a given A: those of `gemm_folds`, but that its digits are known."""
    m, k = a.shape
    if array.element != "digit_serial":
        return gemm_folds(array, m, n, k)
    blocks = [a[first : first + array.rows] for first in range(0, m, array.rows)]
    made = [Fold(0, int(beat_steps(array, block).sum()), len(block)) for block in blocks]
    return [fold for fold in made for _ in range(0, n, array.cols)]


def stall_free_schedule(array: SystolicArray, folds: list[Fold]) -> list[FoldTimes]:
    """Times of back-to-back folds on a bare tile whose operand streams are always valid."""
    timeline = ArrayTimeline(array)
    return [timeline.fold(fold, INPUT_SLICE) for fold in folds]
