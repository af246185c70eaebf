"""Points on a Dask cluster: workers may come and go, and each question is answered once."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from queue import Empty, Queue
from typing import Any, Self

from siliconloom.arch.errors import LoomError
from siliconloom.sweeps.extras import required
from siliconloom.sweeps.question import PointAnswer, PointSetting, answer

Question = tuple[int, tuple[tuple[str, str], ...]]
CONNECT_S = 10
"""Seconds in which a scheduler must answer."""
AHEAD = 8
"""Questions for each worker that are with the scheduler."""
OF_DASK = ("distributed", "tornado")
"""Loggers, by the first of their names, that print what Dask's connections end with."""
POLL_S = 1.0
"""Seconds between two looks at whether the scheduler is still there."""


def _silence() -> None:
    """Keep Dask's loggers from printing tracebacks of their own: what is lost is told in one line."""
    for name in [*logging.root.manager.loggerDict]:
        if name.partition(".")[0] in OF_DASK:
            logging.getLogger(name).setLevel(logging.CRITICAL)


PORT = re.compile(r":\d+/?$")
"""How an address ends."""


class DaskCluster:
    """The workers of a Dask scheduler; they must have this package, and see the sweep's files at the same paths.

    Parameters
    ----------
    scheduler
        Its address, such as ``tcp://10.0.0.1:8786``.

    Raises
    ------
    LoomError
        For a scheduler that does not answer or has no workers.
    """

    def __init__(self, setting: PointSetting, scheduler: str) -> None:
        self._setting, self._address = setting, scheduler
        if not PORT.search(scheduler):
            wanted = "expected HOST:PORT of a Dask scheduler, such as tcp://10.0.0.1:8786"
            raise LoomError(f"--scheduler: {wanted} (got '{scheduler}')")
        self._dask = required("distributed", "dask", "--scheduler")
        _silence()
        try:
            self._client = self._dask.Client(scheduler, timeout=CONNECT_S, set_as_default=False)
        except Exception as error:  # whatever answers there, it is no scheduler
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise LoomError(f"--scheduler {scheduler}: does not answer within {CONNECT_S} s ({reason})") from None
        if not self._threads():
            self._client.close()
            raise LoomError(f"--scheduler {scheduler}: has no workers; start them with dask worker {scheduler}")

    def _threads(self) -> int:
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        return sum(each["nthreads"] for each in workers.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):  # the scheduler may be gone
            self._client.close(timeout=2)

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[int, PointAnswer]]:
        waiting = iter(questions)
        running: dict[str, tuple[int, Any]] = {}
        ended: Queue[Any] = Queue()
        most = AHEAD * max(self._threads(), 1)
        try:
            while True:
                while len(running) < most and (following := next(waiting, None)) is not None:
                    future = self._client.submit(answer, self._setting, following[1], pure=False)
                    running[future.key] = following[0], future
                    future.add_done_callback(ended.put)
                if not running:
                    return
                number, future = running.pop(self._next(ended).key)
                yield number, self._answer_of(future)
                future.release()
        finally:
            with suppress(Exception):
                self._client.cancel([future for _, future in running.values()], force=True)

    def _next(self, ended: Queue[Any]) -> Any:
        """The next future that ends; raises `LoomError` when the scheduler is gone."""
        while True:
            try:
                return ended.get(timeout=POLL_S)
            except Empty:
                if self._client.status != "running":
                    raise self._lost() from None

    def _lost(self) -> LoomError:
        return LoomError(f"--scheduler {self._address}: is gone")

    def _answer_of(self, future: Any) -> PointAnswer:
        if future.status in ("cancelled", "lost"):
            raise self._lost()
        try:
            found: PointAnswer = future.result(timeout=CONNECT_S)
        except self._dask.KilledWorker:
            return PointAnswer({}, why="its worker processes died, one after the other", again=True)
        except (TimeoutError, OSError, CancelledError):
            raise self._lost() from None
        return found


__all__ = ["DaskCluster"]
