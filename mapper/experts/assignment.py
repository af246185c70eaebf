"""The assignment problem: one column for each row, with the largest sum (Kuhn 1955; shortest augmenting paths)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.kernels import kernel


def best_assignment(gain: NDArray[np.float64]) -> NDArray[np.int64]:
    """Column of each row of a square matrix of gains, each column once."""
    found = np.empty(len(gain), np.int64)
    assign(gain, found)
    return found


@kernel()
def assign(gain: Any, found: Any) -> None:
    """Fill ``found`` with the columns; dual prices of rows and columns keep every reduced cost non-negative."""
    n = gain.shape[0]
    row_price, column_price = np.zeros(n), np.zeros(n)
    row_of = np.full(n, -1, np.int64)
    slack, before = np.empty(n), np.empty(n, np.int64)
    for start in range(n):
        closed = np.zeros(n, np.bool_)
        slack[:] = np.inf
        before[:] = -1
        row, reached = start, -1
        while True:  # a shortest-path tree over columns, until one is free
            nearest, step = -1, np.inf
            for column in range(n):
                if closed[column]:
                    continue
                cost = -gain[row, column] - row_price[row] - column_price[column]
                if cost < slack[column]:
                    slack[column] = cost
                    before[column] = reached
                if slack[column] < step:
                    step = slack[column]
                    nearest = column
            row_price[start] += step
            for column in range(n):
                if closed[column]:
                    column_price[column] -= step
                    row_price[row_of[column]] += step
                else:
                    slack[column] -= step
            closed[nearest] = True
            reached = nearest
            if row_of[nearest] < 0:
                break
            row = row_of[nearest]
        while reached >= 0:  # turn the path round
            previous = before[reached]
            row_of[reached] = start if previous < 0 else row_of[previous]
            reached = previous
    for column in range(n):
        found[row_of[column]] = column
