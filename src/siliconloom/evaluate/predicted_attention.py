"""Attention of a serving step on a GPU: kernels of all lengths at once, without the graph of a step for each.

Serving stacks launch one kernel for all requests that get their next token, whatever their lengths, and one for the
prompts' chunks (`baselines.model`). Kernels are found once, in the graph of a small step, and asked for the numbers
and lengths that come up. Layers that see a window have kernels of their own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.baselines.machine import GpuMachine
from siliconloom.baselines.model import kernels_of, predict_rows
from siliconloom.sim.service.costs import RequestLengths
from siliconloom.workloads import Attention, Graph

Float = NDArray[np.float64]
Sets = Sequence[tuple[str, str]]
Kernel = tuple[dict[str, Any], int, int | None]
"""A row of `baselines.operations`, how often a step has it, and the tokens that its layers see."""


class PredictedAttention:
    """Seconds, and joules above what the chips draw anyway, of all chips that do every layer together.

    Parameters
    ----------
    part
        One chip's operators of a step, by keys of a workload.
    lengths
        Tokens that next tokens are asked for, with straight lines between.
    guesses
        Tokens that a step checks for each request beside its next one.
    sharing
        Chips that do every layer together.
    """

    def __init__(
        self, machine: GpuMachine, part: Callable[[Sets], Graph], lengths: Sequence[int], guesses: int, sharing: int
    ) -> None:
        self._machine, self._part, self._lengths = machine, part, lengths
        self._guesses, self._sharing = guesses, sharing
        self._rows: dict[int, list[Kernel]] = {}
        self._curves: dict[tuple[int, int | None], tuple[Float, Float, Float]] = {}

    @property
    def asked(self) -> int:
        """Lengths whose kernels were looked for."""
        return len(self._rows)

    def tokens(self, count: int, contexts: Float, lengths: RequestLengths) -> tuple[Float, Float]:
        """Of next tokens in steps in a row (`sim.service.costs.StepCosts`)."""
        seconds, joules = np.zeros(len(contexts)), np.zeros(len(contexts))
        for window in self._windows:
            seen = contexts if window is None else lengths.within(window, contexts)
            at, curve_s, curve_j = self._curve(count, window, float(seen[-1]))
            seconds += np.interp(seen, at, curve_s)
            joules += np.interp(seen, at, curve_j)
        return seconds, joules

    def chunks(self, new: int, known: int, many: int) -> tuple[float, float]:
        """Of so many chunks of ``new`` tokens behind ``known`` ones."""
        rows = []
        for row, _, window in self._of_chunks:
            seen = new + known if window is None else min(new + known, new + window - 1)
            rows.append(row | {"batch": many, "q_len": new, "kv_len": seen})
        seconds, joules = self._asked_of(rows, [repeat for _, repeat, _ in self._of_chunks])
        return float(seconds.sum()), float(joules.sum())

    @cached_property
    def _of_chunks(self) -> list[Kernel]:
        return self._kernels([("requests", "[{new: 2, context: 2}]")])

    @cached_property
    def _windows(self) -> tuple[int | None, ...]:
        """Tokens that layers see of those before; all, where nothing is said."""
        seen = {window for _, _, window in self._of_tokens(self._lengths[0])}
        return tuple(sorted(seen, key=lambda window: (window is None, window or 0)))

    def _of_tokens(self, length: int) -> list[Kernel]:
        if length not in self._rows:
            self._rows[length] = self._kernels(next_tokens(1, length, self._guesses))
        return self._rows[length]

    def _kernels(self, sets: Sets) -> list[Kernel]:
        part = self._part(sets)
        windows = {o.name: o.window for o in part.operators() if isinstance(o, Attention)}
        return [(k.row, k.repeat, windows[k.operator]) for k in kernels_of(part) if k.operator in windows]

    def _curve(self, count: int, window: int | None, longest: float) -> tuple[Float, Float, Float]:
        """Of layers that see a window, by the tokens that each request attends to in the mean: lengths, and the two."""
        known = self._curves.get((count, window))
        if known is not None and known[0][-1] >= longest:
            return known
        lengths = list(self._lengths[: min(bisect_left(self._lengths, longest) + 1, len(self._lengths))])
        if window is not None:
            lengths = [*(n for n in lengths if n < window), window]
        rows: list[dict[str, Any]] = []
        repeats: list[int] = []
        ends: list[int] = []
        for length in lengths:
            mine = [(row, repeat) for row, repeat, seen in self._of_tokens(length) if seen == window]
            rows += [row | {"batch": count * row["batch"]} for row, _ in mine]
            repeats += [repeat for _, repeat in mine]
            ends.append(len(rows))
        total_s, total_j = (np.cumsum(each) for each in self._asked_of(rows, repeats))
        at = np.array(ends) - 1
        curve_s, curve_j = (np.diff(total[at], prepend=0.0) for total in (total_s, total_j))
        self._curves[count, window] = np.array(lengths, np.float64), curve_s, curve_j
        return self._curves[count, window]

    def _asked_of(self, rows: Sequence[dict[str, Any]], repeats: Sequence[int]) -> tuple[Float, Float]:
        """What kernels take as often as a step has them."""
        machine = self._machine
        seconds, joules = predict_rows(machine.gpu, rows, sustained=machine.sustained)
        above = np.maximum(joules - seconds * machine.gpu.idle_power, 0.0) * self._sharing
        return seconds * np.array(repeats), above * np.array(repeats)


def next_tokens(count: int, length: int, guesses: int) -> list[tuple[str, str]]:
    """Keys of a step of the next tokens of requests whose first new token attends to ``length``."""
    sets = [("phase", "decode"), ("batch", str(count)), ("context", str(length + guesses))]
    return [*sets, ("sequence", str(guesses + 1))] if guesses else sets


__all__ = ["PredictedAttention", "next_tokens"]
