"""Where points are evaluated: in this process, in processes of this machine, or on a Dask cluster.

All of them take questions as they come and hand back answers in whatever order they are found, each question once.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures import Executor as Executors
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, suppress
from functools import partial
from multiprocessing.connection import wait as wait_for
from types import TracebackType
from typing import Protocol, Self

from siliconloom.arch.errors import LoomError
from siliconloom.arch.processes import cores
from siliconloom.sweeps.likeness import Question, Shares
from siliconloom.sweeps.question import PointAnswer, PointSetting, answer

Answered = tuple[int, PointAnswer]
AHEAD = 4
"""Questions of each worker: one is under way, the others wait for it."""
DEATHS = 2
"""Workers that may die of a question before it is said to kill them."""
MOST_FRUITLESS = 6
"""How often workers may die one after the other before any has answered, or without a question."""
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


class _Worker:
    """A process, and what it was asked: one question after the other."""

    def __init__(self, pool: Executors) -> None:
        self.pool = pool
        self.running: dict[Future[PointAnswer], Question] = {}

    def lost(self) -> list[Question]:
        """Take back, of a process that died, what it has not answered, in the order in which it was asked."""
        gone = [each for each in self.running if not each.done() or each.exception() is not None]
        return [self.running.pop(each) for each in gone]


class LocalProcesses:
    """Processes of this machine, started anew, so that they share nothing with this one.

    Points that are alike go to the same one, as long as there are others for the rest (`Shares`). Each works on one
    question at a time: the one that it died of is asked again, and has failed when a second one dies of it. Those that
    waited behind it are asked again as any others.
    """

    def __init__(self, setting: PointSetting, workers: int) -> None:
        self._setting = setting
        self._before = {process.pid for process in multiprocessing.active_children()}
        self._fruitless, self._answered = 0, False
        self._workers = [_Worker(self._started()) for _ in range(workers)]

    def _started(self) -> Executors:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, context, begin_worker, (self._setting,))

    def _restart(self, worker: _Worker, *, asked: bool) -> None:
        """Begin anew after it died; raises `LoomError` where they die whatever they are asked.

        Once one has answered, those that die of what they are ``asked`` are no more than questions can kill.
        """
        worker.pool.shutdown(wait=False)
        self._fruitless += not (asked and self._answered)
        if self._fruitless > MOST_FRUITLESS:
            hint = 'a script needs if __name__ == "__main__":, or workers=1 (--workers 1)'
            when = "as they begin" if self._answered else "before they answer anything"
            raise LoomError(f"worker processes die {when}, {self._fruitless} in a row; {hint}")
        worker.pool = self._started()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for worker in self._workers:
            worker.pool.shutdown(wait=kind is None, cancel_futures=True)
        if kind is not None:  # whoever interrupts does not wait for what is under way
            for process in multiprocessing.active_children():
                if process.pid not in self._before:
                    process.kill()

    def answers(self, questions: Iterable[Question]) -> Iterator[Answered]:
        shares = Shares(list(questions), len(self._workers))
        deaths: dict[int, int] = {}
        again: list[Question] = []
        while True:
            for number, worker in enumerate(self._workers):
                self._ask(worker, partial(shares.following, number), again)
            running = {future: worker for worker in self._workers for future in worker.running}
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                worker = running[future]
                if future not in worker.running:  # lost with another one, below
                    continue
                try:
                    found = future.result()
                    self._fruitless, self._answered = 0, True
                    yield worker.running.pop(future)[0], found
                except BrokenProcessPool:
                    # the first was under way, or would have been; the others have only waited
                    first, *waited = worker.lost()
                    self._restart(worker, asked=True)
                    again += waited
                    deaths[first[0]] = deaths.get(first[0], 0) + 1
                    if deaths[first[0]] < DEATHS:
                        again.append(first)
                    else:
                        yield first[0], KILLED

    def _ask(self, worker: _Worker, following: Callable[[], Question | None], again: list[Question]) -> None:
        """Give it what there is room for, first what was lost."""
        while len(worker.running) < AHEAD:
            question = again.pop(0) if again else following()
            if question is None:
                return
            try:
                worker.running[worker.pool.submit(answer, self._setting, question[1])] = question
            except BrokenProcessPool:  # it died while it had nothing to do
                again.insert(0, question)
                if worker.running:
                    return
                self._restart(worker, asked=False)


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
