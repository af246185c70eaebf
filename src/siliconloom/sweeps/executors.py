"""Where points are evaluated: in this process, in processes of this machine, or on a Dask cluster.

All of them take questions as they come and hand back answers in whatever order they are found, each question once.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import wait as wait_for
from types import TracebackType
from typing import Protocol, Self

from siliconloom.arch.errors import LoomError
from siliconloom.arch.processes import cores
from siliconloom.sweeps.axes import Sets
from siliconloom.sweeps.question import PointAnswer, PointSetting, answer

Question = tuple[int, Sets]
Answered = tuple[int, PointAnswer]
AHEAD = 4
"""Questions for each worker that are under way or wait for one."""
DEATHS = 2
"""Workers that may die of a question before it is said to kill them."""
MOST_FRUITLESS = 6
"""How often workers may die one after the other without an answer between."""
KILLED = PointAnswer({}, why="its worker process died, twice", again=True)


class Executor(AbstractContextManager["Executor"], Protocol):
    """Evaluates questions."""

    def answers(self, questions: Iterable[Question]) -> Iterator[Answered]:
        """Answers by the numbers of their questions, as they are found."""


class InProcess:
    """One question after the other, in this process."""

    def __init__(self, setting: PointSetting) -> None:
        self._setting = setting

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def answers(self, questions: Iterable[Question]) -> Iterator[Answered]:
        for number, sets in questions:
            yield number, answer(self._setting, sets)


class LocalProcesses:
    """Processes of this machine, started anew, so that they share nothing with this one.

    A worker that dies takes its question with it to another one; a question that two have died of has failed.
    """

    def __init__(self, setting: PointSetting, workers: int) -> None:
        self._setting, self._workers = setting, workers
        self._before = {process.pid for process in multiprocessing.active_children()}
        self._fruitless = 0
        self._pool = self._started()

    def _started(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._workers, context, begin_worker, (self._setting,))

    def _restart(self) -> None:
        """Begin anew after a worker died; raises `LoomError` where they die whatever they are asked."""
        self._pool.shutdown(wait=False)
        self._fruitless += 1
        if self._fruitless > MOST_FRUITLESS:
            hint = 'a script needs if __name__ == "__main__":, or workers=1 (--workers 1)'
            raise LoomError(f"worker processes die before they answer anything; {hint}")
        self._pool = self._started()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=True)
        if kind is not None:  # whoever interrupts does not wait for what is under way
            for process in multiprocessing.active_children():
                if process.pid not in self._before:
                    process.kill()

    def answers(self, questions: Iterable[Question]) -> Iterator[Answered]:
        waiting = iter(questions)
        running: dict[Future[PointAnswer], Question] = {}
        deaths: dict[int, int] = {}
        again: list[Question] = []
        while True:
            alone = bool(again) and deaths.get(again[0][0], 0) >= DEATHS - 1
            while len(running) < (1 if alone else AHEAD * self._workers):
                following = again.pop(0) if again else None if alone else next(waiting, None)
                if following is None:
                    break
                try:
                    running[self._pool.submit(answer, self._setting, following[1])] = following
                except BrokenProcessPool:  # a worker died while it had nothing to do
                    again.insert(0, following)
                    if running:
                        break
                    self._restart()
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                asked = running.pop(future)
                try:
                    found = future.result()
                    self._fruitless = 0
                    yield asked[0], found
                except BrokenProcessPool:
                    lost = [asked, *running.values()]
                    running.clear()
                    self._restart()
                    for question in lost:
                        if alone and deaths.get(question[0], 0) >= DEATHS - 1:
                            yield question[0], KILLED
                        else:
                            deaths[question[0]] = deaths.get(question[0], 0) + 1
                            again.append(question)
                    break


def begin_worker(setting: PointSetting) -> None:
    """Make a new process ready: it ends with the one that started it, and Ctrl-C is that one's to tell."""
    import gc
    import signal

    del setting
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    from siliconloom.evaluate import machine

    del machine
    gc.set_threshold(1_000_000)
    gc.freeze()


def _end_with(sentinel: int) -> None:
    wait_for([sentinel])
    os._exit(1)


def executor_of(setting: PointSetting, scheduler: str | None, workers: int | None) -> Executor:
    """Where points are evaluated: on a Dask cluster at ``scheduler``, else by so many local ``workers``.

    Raises
    ------
    LoomError
        For a number of workers that is none, or a scheduler that does not answer.
    """
    if scheduler is not None:
        if workers is not None:
            raise LoomError("--workers: a Dask cluster has the workers that joined it")
        from siliconloom.sweeps.dask_cluster import DaskCluster

        return DaskCluster(setting, scheduler)
    if workers is not None and workers < 1:
        raise LoomError(f"--workers: at least 1 (got {workers})")
    count = cores() if workers is None else workers
    return InProcess(setting) if count == 1 else LocalProcesses(setting, count)


__all__ = ["Answered", "Executor", "InProcess", "LocalProcesses", "Question", "begin_worker", "executor_of"]
