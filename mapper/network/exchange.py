"""All-to-all of equal or any sizes: who sends whose bytes to whom.

A square of bytes says what each chip (row) has for each (column). Direct and ring send every part by itself; in the
hierarchical algorithm parts travel together along one dimension after the other, nearest first. With leaves that is
the 2DH all-to-all of Tutel (Hwang et al., 2023): within a leaf each part goes to the chip whose place is that of the
part's target in its own leaf, and then all that a leaf's chip has for its counterpart goes as one message. Leaves may
be of unequal sizes: places are taken modulo the sender's leaf.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.network import Wiring
from siliconloom.mapper.network.book import NONE, Book, Int

Float = NDArray[np.float64]


def equal_parts(chips: int, size: float) -> Float:
    """What each chip has for each where all have ``size`` bytes, the same part of them for every chip."""
    return np.full((chips, chips), size / chips)


def direct_exchange(book: Book, wiring: Wiring, matrix: Float) -> None:
    """Every chip to every other at once, each starting with its own successor."""
    n = wiring.chips
    source = np.tile(np.arange(n), n - 1)
    target = (source + np.repeat(np.arange(1, n), n)) % n
    size = matrix[source, target]
    there = size > 0
    book.add(source[there], target[there], size[there], False, 0)


def ring_exchange(book: Book, wiring: Wiring, matrix: Float) -> None:
    """One partner at a time: in step k the chip k places further. What is empty is not sent."""
    n = wiring.chips
    chips = np.arange(n)
    last: Int = np.full(n, NONE)
    for shift in range(1, n):
        size = matrix[chips, (chips + shift) % n]
        there = size > 0
        sent = book.add(chips[there], (chips[there] + shift) % n, size[there], False, shift - 1, last[there])
        last = last.copy()
        last[there] = sent


def hierarchical_exchange(book: Book, wiring: Wiring, matrix: Float) -> None:
    """Dimension by dimension, what goes the same way as one message."""
    n = wiring.chips
    holder, target = np.divmod(np.arange(n * n), n)
    held: Float = matrix.reshape(-1)
    heard: list[Int] = []
    for step, via in enumerate(_ways(wiring)):
        following = via(holder, target)
        moved: Float = np.bincount(holder * n + following, weights=held, minlength=n * n).astype(np.float64)
        moved[:: n + 1] = 0.0
        ends = np.flatnonzero(moved)
        source, sink = np.divmod(ends, n)
        order = np.argsort((sink - source) % n, kind="stable")  # each starts with its own successor
        source, sink, ends = source[order], sink[order], ends[order]
        sent = book.add(source, sink, moved[ends], False, step, *(h[source] for h in heard))
        arrived = book.add(np.arange(n), np.arange(n), 0.0, False, step, *_by_target(n, sink, sent), *heard)
        heard = [arrived]
        held = np.bincount(following * n + target, weights=held, minlength=n * n).astype(np.float64)


def exchange_bound(wiring: Wiring, matrix: Float) -> float:
    """Seconds that no all-to-all of these bytes can beat: what must leave and enter each chip, and each leaf."""
    leaf = np.repeat(np.arange(len(wiring.leaves)), wiring.leaves)
    found = _cut_bound(wiring, np.arange(wiring.chips), matrix)
    return max(found, _cut_bound(wiring, leaf, matrix)) if len(wiring.leaves) > 1 else found


def _cut_bound(wiring: Wiring, part: Int, matrix: Float) -> float:
    """Bytes out of and into each part of the chips over the bandwidth of the links between it and all else.

    A switch is of the part to which all chips that it joins belong.
    """
    parts = int(part.max()) + 1
    low, high = np.full(wiring.nodes, parts), np.full(wiring.nodes, NONE)
    low[: wiring.chips] = high[: wiring.chips] = part
    up = (wiring.source < wiring.chips) & (wiring.target >= wiring.chips)
    if parts < wiring.chips:
        np.minimum.at(low, wiring.target[up], part[wiring.source[up]])
        np.maximum.at(high, wiring.target[up], part[wiring.source[up]])
    home = np.where(low == high, low, parts)
    leaving, entering = home[wiring.source], home[wiring.target]
    cut = leaving != entering
    out = np.bincount(leaving[cut], weights=wiring.bandwidth[cut], minlength=parts + 1)[:parts]
    into = np.bincount(entering[cut], weights=wiring.bandwidth[cut], minlength=parts + 1)[:parts]
    between = np.zeros((parts, parts))
    np.add.at(between, (part[:, None], part[None, :]), matrix)
    np.fill_diagonal(between, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.concatenate([between.sum(axis=1) / out, between.sum(axis=0) / into])
    return float(np.nan_to_num(times, nan=0.0).max())


def _ways(wiring: Wiring) -> list[Callable[[Int, Int], Int]]:
    """For each step the chip to which a holder passes what is for a target."""
    if len(wiring.shape) > 1:
        return [_along(wiring.shape, axis) for axis in range(len(wiring.shape) - 1, -1, -1) if wiring.shape[axis] > 1]
    sizes = np.array(wiring.leaves)
    begin = np.cumsum(sizes) - sizes
    leaf = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(wiring.chips) - begin[leaf]

    def within(holder: Int, target: Int) -> Int:
        home = leaf[holder]
        near = begin[home] + place[target] % sizes[home]
        return np.where(home == leaf[target], target, near)

    return [within, lambda holder, target: target]


def _along(shape: tuple[int, ...], axis: int) -> Callable[[Int, Int], Int]:
    stride, side = prod(shape[axis + 1 :]), shape[axis]

    def via(holder: Int, target: Int) -> Int:
        return holder + (target // stride % side - holder // stride % side) * stride

    return via


def _by_target(chips: int, target: Int, messages: Int) -> list[Int]:
    """Columns of the messages that come to each chip, filled up with `NONE`."""
    count = np.bincount(target, minlength=chips)
    table = np.full((int(count.max(initial=0)), chips), NONE)
    order = np.argsort(target, kind="stable")
    row = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    table[row, target[order]] = messages[order]
    return list(table)
