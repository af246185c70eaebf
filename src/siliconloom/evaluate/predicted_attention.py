"""Attention of a serving step on a GPU: kernels of all lengths at once, without the graph of a step for each.

Serving stacks launch one kernel for all requests that get their next token, whatever their lengths, and one for the
prompts' chunks (`baselines.model`). Kernels are found once, in the graph of a small step, and asked for the numbers
and lengths that come up. Layers that see a window have kernels of their own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.baselines.machine import GpuMachine
from siliconloom.baselines.model import kernels_of, predict_rows
from siliconloom.sim.service.costs import RequestLengths, SharedPart
from siliconloom.workloads import Attention, Graph

Float = NDArray[np.float64]
Sets = Sequence[tuple[str, str]]
Kernel = tuple[dict[str, Any], int, int | None]
"""A row of `baselines.operations`, how often a step has it, and the tokens that its layers see."""

SUM_COLUMNS = 4 / 3
"""Elements of two bytes, read twice and written once, that stand for two sums of four bytes that are read."""


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
        self._parts: dict[tuple[int, int], tuple[float, float]] = {}
        self._joins: dict[int, tuple[float, float]] = {}
        self._curves: dict[tuple[int, int | None], tuple[Float, Float, Float]] = {}

    @property
    def asked(self) -> int:
        """Lengths whose kernels were looked for."""
        return len(self._rows)

    def tokens(self, count: int, contexts: Float, lengths: RequestLengths) -> tuple[Float, Float, float | Float]:
        """Of next tokens in steps in a row (`sim.service.costs.StepCosts`), and kernels more than one a layer."""
        seconds, joules = np.zeros(len(contexts)), np.zeros(len(contexts))
        more: float | Float = 0.0
        for window in self._windows:
            if window is None and lengths.shared:
                here_s, here_j, more = self._together(count, contexts, lengths.shared)
                seconds, joules = seconds + here_s, joules + here_j
                continue
            seen = contexts if window is None else lengths.within(window, contexts)
            at, curve_s, curve_j = self._curve(count, window, float(seen[-1]))
            seconds += np.interp(seen, at, curve_s)
            joules += np.interp(seen, at, curve_j)
        return seconds, joules, more

    def _together(self, count: int, contexts: Float, shared: Sequence[SharedPart]) -> tuple[Float, Float, Float]:
        """Of next tokens some of which attend together to what their requests share: seconds, joules, kernels more.

        Parts whose keys are read the fewest times less are left to each request first: every step takes of 1, 2, 4 and
        so on of the others, or of none of them, what is fastest. The requests' rests are a token's kernel as ever, of
        their mean length.
        """
        at, curve_s, curve_j = self._curve(count, None, float(contexts[-1]))
        seconds, joules = np.interp(contexts, at, curve_s), np.interp(contexts, at, curve_j)
        kernels = np.zeros(len(contexts))
        order = sorted(shared, key=lambda part: (part.requests - 1) * part.tokens, reverse=True)
        self._ask_parts(order)
        numbers = [*(2**k for k in range(len(order).bit_length()) if 2**k < len(order)), len(order)]
        for taken in (order[:many] for many in numbers):
            rest = contexts - sum(part.tokens * part.requests for part in taken) / count
            parts = [self._parts[part.tokens, part.requests] for part in taken]
            launch, join = self._parts[0, 0], self._join(sum(part.requests for part in taken))
            extra_s, extra_j = (launch[i] + join[i] + sum(part[i] for part in parts) for i in (0, 1))
            here = np.interp(rest, at, curve_s) + extra_s
            faster = here < seconds
            seconds = np.where(faster, here, seconds)
            joules = np.where(faster, np.interp(rest, at, curve_j) + extra_j, joules)
            kernels = np.where(faster, 2.0 * sum(repeat for _, repeat in self._of_whole), kernels)
        return seconds, joules, kernels

    def _ask_parts(self, shared: Sequence[SharedPart]) -> None:
        """Find what attention to shared parts takes: one kernel for all parts of a layer, without a causal mask.

        Its queries are those of all of a part's requests. It is a prompt's kernel, where the heads that share a key
        head stand behind each other, or the one that splits keys over several blocks, as libraries do where the blocks
        of queries are too few to fill a machine: the faster of both. What any kernel takes is counted once, under no
        tokens.
        """
        new = [p for p in dict.fromkeys(shared) if (p.tokens, p.requests) not in self._parts]
        if not new:
            return
        whole, split = list[dict[str, Any]](), list[dict[str, Any]]()
        for tokens, requests in ((0, 0), *((p.tokens, p.requests) for p in new)):
            for row, _ in self._of_whole:
                group, queries = row["heads"] // row["kv_heads"], max(requests * row["q_len"], 1)
                part = row | {"batch": 1, "q_len": queries, "kv_len": max(tokens, 1), "causal": "false"}
                packed = {"q_len": queries * group, "heads": row["kv_heads"]}
                whole.append(part | packed | {"op": "attention_prefill"})
                split.append(part | {"op": "attention_decode"})
        repeats = [repeat for _, repeat in self._of_whole] * (len(new) + 1)
        found = []
        for rows in (whole, split):
            totals = [each.reshape(len(new) + 1, -1).sum(axis=1) for each in self._asked_of(rows, repeats, new=False)]
            found.append(np.stack(totals))
        least = max(found, key=lambda of: float(of[0, 0]))[:, 0].tolist()
        self._parts[0, 0] = least[0], least[1]
        for at, part_of in enumerate(new, 1):
            best = min((np.maximum(of[:, at] - of[:, 0], 0.0) for of in found), key=lambda each: float(each[0]))
            self._parts[part_of.tokens, part_of.requests] = float(best[0]), float(best[1])

    def _join(self, requests: int) -> tuple[float, float]:
        """Of the pass that joins two partial results of each request's heads: both are read, and one is written.

        Beside its elements a head's result has the logarithm of its sum of exponentials, of four bytes.
        """
        if requests not in self._joins:
            rows, repeats = [], []
            for row, repeat in self._of_whole:
                columns = row["heads"] * (row["head_dim"] + SUM_COLUMNS)
                rows.append({"op": "add", "m": requests * row["q_len"], "n": ceil(columns), "dtype": "fp16"})
                repeats.append(repeat)
            seconds, joules = self._asked_of(rows, repeats)
            self._joins[requests] = float(seconds.sum()), float(joules.sum())
        return self._joins[requests]

    @cached_property
    def _of_whole(self) -> list[tuple[dict[str, Any], int]]:
        """Kernels of next tokens in layers that see all tokens."""
        return [(row, repeat) for row, repeat, window in self._of_tokens(self._lengths[0]) if window is None]

    def chunks(self, new: int, known: int, many: int) -> tuple[float, float]:
        """Of so many chunks of ``new`` tokens behind ``known`` ones."""
        rows = []
        for row, _, window in self._of_chunks:
            rows.append(row | {"batch": many, "q_len": new, "kv_len": new + known, "window": window})
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

    def _asked_of(
        self, rows: Sequence[dict[str, Any]], repeats: Sequence[int], *, new: bool = True
    ) -> tuple[Float, Float]:
        """What kernels take as often as a step has them; prompts of no ``new`` tokens write nothing to the cache."""
        machine = self._machine
        seconds, joules = predict_rows(machine.gpu, rows, sustained=machine.sustained, cache_write=new)
        above = np.maximum(joules - seconds * machine.gpu.idle_power, 0.0) * self._sharing
        return seconds * np.array(repeats), above * np.array(repeats)


def next_tokens(count: int, length: int, guesses: int) -> list[tuple[str, str]]:
    """Keys of a step of the next tokens of requests whose first new token attends to ``length``."""
    sets = [("phase", "decode"), ("batch", str(count)), ("context", str(length + guesses))]
    return [*sets, ("sequence", str(guesses + 1))] if guesses else sets


__all__ = ["PredictedAttention", "next_tokens"]
