"""Runs a sweep: asks its points, keeps what they come to, and says what they are together."""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from siliconloom.arch.document import Document
from siliconloom.arch.errors import LoomError
from siliconloom.arch.inputs import files_read, forget_files_read
from siliconloom.arch.sweep import SEARCHES, Sweep, load_sweep
from siliconloom.arch.swept import SweepProgress, SweepResult
from siliconloom.sweeps.analysis import ParetoFront
from siliconloom.sweeps.axes import Indices, check_keys, sets_at, user_files
from siliconloom.sweeps.designs import DesignError, design_of
from siliconloom.sweeps.executors import Executor, executor_of
from siliconloom.sweeps.likeness import in_groups
from siliconloom.sweeps.question import PointAnswer, PointSetting, file_digest, is_of_library, setting_of
from siliconloom.sweeps.search import PointSearch
from siliconloom.sweeps.shown import DescribedSweep, at_most, point_name, point_of, result_of
from siliconloom.sweeps.store import Store

SweepWatch = Callable[[SweepProgress], None]
"""Is told, several times a second, how far a sweep is."""
EVERY_S = 0.1
"""Seconds between two reports to a watcher."""


class SweepInterrupted(KeyboardInterrupt):
    """A sweep that Ctrl-C ended; the text says what is kept and how it goes on."""


def run_sweep(
    described: Sweep | Document | str | Path,
    results: str | Path | None = None,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    watcher: SweepWatch | None = None,
) -> SweepResult:
    """Run a sweep, or what is left of it.

    Parameters
    ----------
    described
        A YAML file, what was read of one, or a description.
    results
        SQLite file that keeps all points: those that it has are not evaluated again. In memory by default.
    scheduler
        Address of a Dask scheduler, in place of processes of this machine.
    workers
        Local processes, by default as many as there are cores; of 1, points are evaluated in this one. A script that
        starts several begins with ``if __name__ == "__main__":``, as Python's own pools of processes want it.
    watcher
        Is told how far the sweep is.

    Raises
    ------
    LoomError
        For a bad description, a key that no schema has, a file that is no results', a scheduler that is gone, and an
        objective that a point lacks; finished points are kept.
    SweepInterrupted
        After Ctrl-C.
    """
    forget_files_read()
    if isinstance(described, Sweep):
        name = described.name or "sweep"
        loaded = DescribedSweep(described, Document({}, {}, name), name)
    else:
        sweep, document = load_sweep(described)
        source = str(document.source) if isinstance(described, Document) else described
        loaded = DescribedSweep(sweep, document, sweep.name or Path(source).stem)
    check_keys(loaded.sweep, loaded.document, loaded.axes)
    try:
        design = None if loaded.sweep.method in SEARCHES else design_of(loaded.sweep, loaded.axes)
        search = PointSearch(loaded.sweep, loaded.axes, loaded.objectives) if design is None else None
    except DesignError as error:
        raise loaded.document.error(error.rule, (error.key,), value=error.value) from None
    except LoomError as error:
        raise LoomError(f"{loaded.document.source}: {error}") from None
    own = str(loaded.document.source)
    read = [path for path in files_read() if path != own and not is_of_library(path)]
    files = {path: file_digest(path) for path in user_files(loaded.sweep, read, loaded.axes)}
    asked = loaded.sweep
    setting = setting_of(
        *(asked.machine, asked.workload, asked.mapping, files), trace=asked.trace, slo=asked.slo, stack=asked.stack
    )
    with Store(results) as store:
        run = SweepRun(loaded, setting, store, scheduler=scheduler, workers=workers, watcher=watcher)
        return run.run(design, search)


class SweepRun:
    """One run of a sweep: what it knows of its points, and how far it is."""

    def __init__(
        self,
        described: DescribedSweep,
        setting: PointSetting,
        store: Store,
        *,
        scheduler: str | None,
        workers: int | None,
        watcher: SweepWatch | None,
    ) -> None:
        self._described, self._setting, self._store = described, setting, store
        self._scheduler, self._workers, self._watcher = scheduler, workers, watcher
        self._began = self._told = time.monotonic()
        self._front = ParetoFront(described.objectives)
        self._known: dict[str, PointAnswer] = {}
        self._places: dict[str, Indices] = {}
        self._numbers: dict[str, int] = {}
        self._asked = self._evaluated = self._reused = self._failed = 0
        self._total = 0
        self._executor: Executor | None = None
        self._interrupted: list[int] = []
        self._ends = ExitStack()
        text = described.text()
        digest = hashlib.sha256(f"{setting.code} {setting.files} {text}".encode()).hexdigest()
        self._sweep = store.begin(digest, described.name, text, setting.code, dict(setting.files))

    def run(self, design: list[Indices] | None, search: PointSearch | None) -> SweepResult:
        """Ask all points, whether they are known before (a design) or found on the way (a search)."""
        complete = False
        try:
            with self._ends, _remembered() as self._interrupted:
                if design is not None:
                    self._total = len(design)
                    self._ask(design)
                else:
                    assert search is not None
                    assert self._described.sweep.points is not None
                    self._total = self._described.sweep.points
                    while self._asked < self._total:
                        self._step(search)
            complete = True
        except KeyboardInterrupt:
            raise SweepInterrupted(f"{self._kept()}; the same command goes on from there") from None
        except LoomError as error:
            raise type(error)(f"{error}; {self._kept()}") from None
        finally:
            self._store.end(self._sweep, time.monotonic() - self._began, self._evaluated, complete=complete)
        members = self._store.points(self._sweep)
        if self._store.lost():
            raise LoomError(f"{self._store.path}: was removed or replaced while the sweep ran, and its points with it")
        seconds = time.monotonic() - self._began
        told = [
            f"the point {point_name(self._described, key, self._places.get(key, ()))} was damaged in "
            f"{self._store.path}, and is evaluated again: {why}"
            for key, why in self._store.damaged.items()
        ]
        return result_of(
            self._described,
            members,
            complete=all(each.answer is not None for each in members),
            seconds=seconds,
            evaluated=self._evaluated,
            notes=at_most(told),
        )

    def _kept(self) -> str:
        count = len(self._known)
        where = "in memory alone, and lost" if self._store.path is None else f"kept in {self._store.path}"
        return f"{count:,} finished point{'s' * (count != 1)} {'is' if count == 1 else 'are'} {where}"

    def _step(self, search: PointSearch) -> None:
        """Ask a batch of a search, and tell what it came to."""
        batch = search.ask(min(search.population, self._total - self._asked))
        answers = self._ask(batch)
        told: list[tuple[list[float], list[float]] | None] = []
        for each in answers:
            if each.why is not None:
                told.append(None)
                continue
            wanted = [each.metrics[objective.name] for objective in self._described.objectives]
            excess = [bound.excess(each.metrics[bound.metric]) for bound in self._described.constraints]
            told.append((wanted, excess))
        search.tell(told)

    def _ask(self, places: Sequence[Indices]) -> list[PointAnswer]:
        """Answers to points in their order; those that nobody knows are evaluated."""
        described = self._described
        sets = [sets_at(described.axes, described.fixed, place) for place in places]
        keys = [self._setting.key(each) for each in sets]
        self._store.add_members(self._sweep, self._asked, zip(keys, places, strict=True))
        self._asked += len(places)
        new = {key: n for n, key in reversed(list(enumerate(keys))) if key not in self._known}
        order = sorted(new.values())
        for number in order:
            self._numbers[keys[number]] = len(self._numbers)
            self._places[keys[number]] = places[number]
        for key, found in self._store.known([keys[n] for n in order], dict(zip(keys, sets, strict=True))).items():
            if described.lacks(found) is not None:  # which is told if it lacks that again
                self._store.ask_again(key)
                continue
            self._reused += 1
            self._learn(key, found)
        left = in_groups((n, sets[n]) for n in order if keys[n] not in self._known)
        if left:
            for number, found in self._evaluator(len(left)).answers(iter(left)):
                self._heed()  # what was under way may have made an error, or worse, of the interruption
                self._store.put(keys[number], sets[number], found)
                self._evaluated += 1
                self._learn(keys[number], found)
                self._heed()
        self._tell(last=True)
        return [self._known[key] for key in keys]

    def _heed(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt

    def _evaluator(self, points: int) -> Executor:
        """Where points are evaluated, begun when the first one is; few points take few processes."""
        if self._executor is None:
            workers = self._workers
            if self._scheduler is None and points == 1 and self._described.sweep.method not in SEARCHES:
                workers = 1
            self._executor = self._ends.enter_context(executor_of(self._setting, self._scheduler, workers))
        return self._executor

    def _learn(self, key: str, found: PointAnswer) -> None:
        self._known[key] = found
        self._failed += found.why is not None
        lacking = self._described.lacks(found)
        if lacking is not None:
            values = ", ".join(f"{path}={value}" for path, value in self._values(key).items())
            place, name = lacking
            raise LoomError(str(self._described.document.error(f"the point {values} has no {name}", place)))
        if self._described.feasible(found):
            self._front.add(self._numbers[key], found.metrics)
        self._tell()

    def _values(self, key: str) -> dict[str, str]:
        return self._described.values_at(self._places[key])

    def _tell(self, *, last: bool = False) -> None:
        now = time.monotonic()
        if self._watcher is None or (not last and now - self._told < EVERY_S):
            return
        self._told = now
        keys = {number: key for key, number in self._numbers.items()} if self._front.numbers() else {}
        front = tuple(
            point_of(self._described, number, self._places[key], self._known[key], 1)
            for number in self._front.numbers()
            for key in (keys[number],)
        )
        self._watcher(
            SweepProgress(
                total=self._total,
                done=self._asked if last else len(self._known),
                reused=self._reused,
                failed=self._failed,
                seconds=now - self._began,
                objectives=self._described.objectives,
                front=front,
            )
        )


@contextmanager
def _remembered() -> Iterator[list[int]]:
    """Signals of Ctrl-C that came: a library in whose callback one is raised may say nothing of it.

    Where it is not this thread that hears signals, or nobody is to hear this one, the list stays empty.
    """
    heard: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield heard
        return

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        before(number, frame)

    signal.signal(signal.SIGINT, hear)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, before)


__all__ = ["SweepInterrupted", "SweepRun", "SweepWatch", "run_sweep"]
