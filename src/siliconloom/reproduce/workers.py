"""Cards on several cores: processes that take the names of cards and give their results, as lines.

They are started afresh rather than forked, since Numba and the libraries below it do not promise to survive that, and
in a session of their own, so that an interruption reaches only the process that the user sees.

The last process takes the shortest card that is left, so that there is soon something to see; the others the longest,
so that none begins a long card when the rest is done.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from siliconloom.arch.errors import LoomError
from siliconloom.arch.processes import start_beside

MOST = 8
"""Processes at most: each holds some hundred megabytes."""
SERVE = "from siliconloom.reproduce.run import serve; serve()"

Worker = subprocess.Popen[str]


def results(names: Sequence[str], processes: int) -> Iterator[dict[str, Any]]:
    """The result of each card when it is there, from as many processes.

    Parameters
    ----------
    names
        Cards, the shortest first.

    Raises
    ------
    LoomError
        When a card cannot be derived, or its process ends before it is.
    """
    waiting = deque(names)
    busy: dict[Worker, str] = {}
    with selectors.DefaultSelector() as ready:
        try:
            for _ in range(min(processes, MOST, len(names))):
                worker = start_beside(SERVE, asked=True)
                busy[worker] = ""
                assert worker.stdout is not None
                ready.register(worker.stdout, selectors.EVENT_READ, worker)
            for worker in reversed(busy):
                _give(worker, waiting, busy)
            while any(busy.values()):
                for key, _ in ready.select():
                    yield _taken(key.data, busy)
                    _give(key.data, waiting, busy)
        finally:
            for worker in busy:
                worker.kill()
                worker.communicate()


def _give(worker: Worker, waiting: deque[str], busy: dict[Worker, str]) -> None:
    take = waiting.popleft if worker is next(reversed(busy)) else waiting.pop
    busy[worker] = take() if waiting else ""
    if busy[worker]:
        assert worker.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which the empty answer tells
            print(busy[worker], file=worker.stdin, flush=True)


def _taken(worker: Worker, busy: dict[Worker, str]) -> dict[str, Any]:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise LoomError(f"{busy[worker]}: its process ended with status {worker.wait()} before the card was derived")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise LoomError(f"{busy[worker]}: {answer['error']}")
    found: dict[str, Any] = answer["result"]
    return found
