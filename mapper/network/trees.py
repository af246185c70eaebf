"""Reductions and broadcasts along trees, in pieces that follow each other."""

from __future__ import annotations

import numpy as np

from siliconloom.arch.network import Wiring
from siliconloom.mapper.network.book import NONE, Book, Int

PIECES_MOST = 64


def pieces_of(wiring: Wiring, size: float, depth: int) -> int:
    """Pieces in which ``size`` bytes go through ``depth`` levels soonest, by latency and the slowest link."""
    slowest = float(wiring.bandwidth.min())
    latency = float(wiring.latency.max()) * 1e-12
    return int(min(max((size / slowest * depth / max(latency, 1e-12)) ** 0.5 / 2, 1), PIECES_MOST))


def binomial_tree(book: Book, wiring: Wiring, size: float, *, both: tuple[bool, bool]) -> None:
    """Binomial tree to chip 0 and back, in pieces that follow each other."""
    n = wiring.chips
    depth = (n - 1).bit_length()
    pieces = pieces_of(wiring, size, depth)
    book.group(pieces)
    arrived: Int = np.full((n, depth), NONE)
    last: Int = np.full(n, NONE)
    if both[0]:
        for level in range(depth):
            source = np.arange(1 << level, n, 2 << level)
            waits = [arrived[source, below] for below in range(level)]
            sent = book.add(source, source - (1 << level), size / pieces, True, level, *waits)
            arrived[source - (1 << level), level] = sent
        for level in range(depth):
            last[0] = max(last[0], arrived[0, level])
    roots = [arrived[0, level] for level in range(depth)] if both[0] else []
    if both[1]:
        known = last.copy()
        for level in range(depth - 1, -1, -1):
            target = np.arange(1 << level, n, 2 << level)
            source = target - (1 << level)
            waits = [known[source]]
            if both[0]:
                waits += [np.where(source == 0, root, NONE) for root in roots]
            begin = (depth if both[0] else 0) + depth - 1 - level
            known[target] = book.add(source, target, size / pieces, False, begin, *waits)


def double_tree(book: Book, wiring: Wiring, size: float) -> None:
    """Two binary trees over the leaves, half of the data in each, and a chain through each leaf's chips.

    After Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009): who
    passes data on in one tree only ends the other, so every leaf sends and receives as much as it can. Leaves may be
    of any sizes; without leaves every chip is one.
    """
    sizes = np.array(wiring.leaves if len(wiring.leaves) > 1 else (1,) * wiring.chips)
    begin = np.cumsum(sizes) - sizes
    n = len(sizes)
    for second in (False, True):
        places = (n - 1 - np.arange(n) if n % 2 == 0 else (np.arange(n) + 1) % n) if second else np.arange(n)
        parent = np.full(wiring.chips, NONE)
        for leaf in range(n):
            chips = begin[leaf] + np.arange(sizes[leaf])
            parent[chips[:-1] if second else chips[1:]] = chips[1:] if second else chips[:-1]
        heads = begin + sizes - 1 if second else begin
        at = {int(place): leaf for leaf, place in enumerate(places)}
        for leaf in range(n):
            above = _above(int(places[leaf]), n)
            if above != NONE:
                parent[heads[leaf]] = heads[at[above]]
        depth = n.bit_length() + int(sizes.max())
        _up_and_down(book, parent, size / 2, pieces_of(wiring, size / 2, depth))


def _above(place: int, count: int) -> int:
    """Parent of a place in the in-order binary tree of ``count`` places, whose odd places are its ends."""
    if place == 0:
        return NONE
    low = place & -place
    above = (place - low) | 2 * low
    return above if above < count else place - low


def _up_and_down(book: Book, parent: Int, size: float, pieces: int) -> None:
    """Sums towards the root of a tree, and from there back to all."""
    depth = np.zeros(len(parent), np.int64)
    above = parent.copy()
    while (there := above != NONE).any():
        depth += there
        above = np.where(there, parent[above], NONE)
    deepest = int(depth.max())
    levels = [np.flatnonzero(depth == level) for level in range(deepest + 1)]
    root = int(levels[0][0])
    child = np.zeros(len(parent), np.int64)  # which of its parent's children a chip is
    children: dict[int, int] = {}
    for chip, up in enumerate(parent.tolist()):
        child[chip] = children.get(up, 0)
        children[up] = int(child[chip]) + 1
    most = max(children.values())
    book.group(pieces)
    arrived: Int = np.full((most, len(parent)), NONE)
    for level in range(deepest, 0, -1):
        chips = levels[level]
        sent = book.add(
            chips, parent[chips], size / pieces, True, deepest - level, *(arrived[i][chips] for i in range(most))
        )
        arrived[child[chips], parent[chips]] = sent
    known: Int = np.full(len(parent), NONE)
    for level in range(1, deepest + 1):
        chips = levels[level]
        sums = [np.where(parent[chips] == root, arrived[i][root], NONE) for i in range(most)]
        known[chips] = book.add(
            parent[chips], chips, size / pieces, False, deepest + level - 1, known[parent[chips]], *sums
        )
