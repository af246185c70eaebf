"""One point as a question, and its answer, in whatever process it is asked.

A machine and a workload that several points share are read once a process; equal questions, of this sweep or of
another, are evaluated once (`arch.memo`).
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from siliconloom.arch.errors import LoomError, NotSupported, one_line, shortened
from siliconloom.arch.inputs import read_bytes
from siliconloom.arch.memo import key_of, shared_memo, source_digest
from siliconloom.arch.names import LIBRARY
from siliconloom.arch.overrides import split_overrides
from siliconloom.arch.sweep import SweepMapping
from siliconloom.sweeps.axes import Sets
from siliconloom.sweeps.metrics import metrics_of

if TYPE_CHECKING:
    from siliconloom.evaluate.machine import DescribedMachine, Evaluation
    from siliconloom.workloads import Graph
    from siliconloom.workloads.serving.trace import RequestTrace

MOST_WHY = 400
KEPT_GRAPHS = 256
"""Graphs of workloads that a process keeps."""
FILE_BYTES = 2**33
WORKLOADS = Path(__file__).resolve().parent.parent / "workloads"
LIBRARIES = (LIBRARY, *((WORKLOADS / name).resolve() for name in ("library", "serving/library")))


class PointSetting(Struct, frozen=True):
    """What all points of a sweep share.

    Parameters
    ----------
    files
        Paths of users' files that points depend on, with the SHA-256 of each.
    trace, slo, stack
        Requests that the workload answers at every point, where it is no single step; limits and software.
    """

    machine: str
    workload: str
    search: bool
    seed: int | None
    objective: str
    placement: str | None
    files: tuple[tuple[str, str], ...]
    code: str
    trace: str | None = None
    slo: str | None = None
    stack: str | None = None

    def key(self, sets: Sets) -> str:
        """Hash of the question that a point with these overrides asks."""
        files = [f"{path} {digest}" for path, digest in self.files]
        asked = [self.machine, self.workload, f"{self.search} {self.seed} {self.objective} {self.placement}", *files]
        if self.trace is not None:
            asked.append(f"served {self.trace!r} {self.slo!r} {self.stack!r}")
        return key_of("point", self.code, *asked, *(text for pair in sets for text in pair))


class PointAnswer(Struct, frozen=True):
    """What a point came to: its metrics, or why there are none.

    Parameters
    ----------
    again
        The failure is not the point's own: another run may ask it again.
    parts
        Seconds of its parts: read, map, simulate, and all.
    """

    metrics: dict[str, float]
    bound: str | None = None
    why: str | None = None
    again: bool = False
    parts: dict[str, float] = {}


class StaleError(LoomError):
    """The files or the code of a point are not those of its sweep, which ends the sweep."""


def setting_of(
    machine: str,
    workload: str,
    mapping: SweepMapping,
    files: Mapping[str, str],
    *,
    trace: str | None = None,
    slo: str | None = None,
    stack: str | None = None,
) -> PointSetting:
    """The setting of a sweep in this process."""
    return PointSetting(
        machine,
        workload,
        mapping.search,
        mapping.seed,
        mapping.objective,
        mapping.placement,
        tuple(sorted(files.items())),
        version_digest(),
        *(trace, slo, stack),
    )


@cache
def version_digest() -> str:
    """SHA-256 of the code of this package and of all machines and workloads of its library."""
    digest = hashlib.sha256(source_digest().encode())
    for folder in LIBRARIES:
        for path in sorted(each for each in folder.rglob("*") if each.is_file() and each.suffix != ".py"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def is_of_library(path: str) -> bool:
    """Whether a file is one of this package's own machines and workloads, which its version says."""
    return any(folder in Path(path).resolve().parents for folder in LIBRARIES)


def file_digest(path: str) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(read_bytes(path, FILE_BYTES)).hexdigest()


def answer(setting: PointSetting, sets: Sets) -> PointAnswer:
    """Evaluate a point; what is wrong with it is its answer.

    Raises
    ------
    StaleError
        When files or code differ from those of the sweep.
    """
    check_setting(setting)
    before = [_state(path) for path, _ in setting.files]
    found = _found(setting, sets)
    for (path, _), state in zip(setting.files, before, strict=True):
        if _state(path) != state:  # even if it is what it was before by now
            _graph.cache_clear()
            _requests.cache_clear()
            raise StaleError(f"{path}: is not the file that the sweep began with, or was written meanwhile")
    return found


def _found(setting: PointSetting, sets: Sets) -> PointAnswer:
    began = time.perf_counter()
    parts: dict[str, float] = {}
    try:
        metrics, bound = _evaluated(setting, sets, parts)
    except LoomError as error:
        return PointAnswer({}, why=str(error))
    except Exception as error:  # of one point: the others have their answers
        text = shortened(one_line(f"{type(error).__name__}: {error}"), MOST_WHY)
        return PointAnswer({}, why=f"internal error: {text}", again=True)
    parts["all"] = time.perf_counter() - began
    return PointAnswer(metrics, bound, parts=parts)


def check_setting(setting: PointSetting) -> None:
    """Compare code and files with those that the sweep began with.

    Raises
    ------
    StaleError
        When they differ.
    """
    if setting.code != version_digest():
        raise StaleError("a worker runs another version of siliconloom than the sweep; install the same one")
    for path, digest in setting.files:
        if _digest_now(path) != digest:
            raise StaleError(f"{path}: is not the file that the sweep began with")


def _digest_now(path: str) -> str:
    """SHA-256 of a file as it is; it is read again where its time, its size or its place on the disk has changed."""
    state = _state(path)
    return _digest_of(path, *state) if state else ""


def _state(path: str) -> tuple[int, ...]:
    """What changes with a file: its times, its size, its place on the disk; nothing of one that is not there."""
    try:
        now = os.stat(path)
    except OSError:
        return ()
    return now.st_mtime_ns, now.st_ctime_ns, now.st_size, now.st_ino


@lru_cache(maxsize=1024)
def _digest_of(path: str, *state: int) -> str:
    del state
    return file_digest(path)


def _evaluated(setting: PointSetting, sets: Sets, parts: dict[str, float]) -> tuple[dict[str, float], str | None]:
    from siliconloom.evaluate.asked import workload_digest
    from siliconloom.evaluate.machine import read_machine

    if setting.trace is not None:
        return _served(setting, sets, parts), None
    began = time.perf_counter()
    chip_sets, workload_sets = split_overrides(list(sets))
    graph = _graph(setting.workload, tuple(workload_sets), setting.files)
    machine = read_machine(setting.machine, chip_sets)
    parts["read"] = time.perf_counter() - began
    options = f"{setting.search} {setting.seed} {setting.objective} {setting.placement}"
    key = key_of("step", *_identity(machine), workload_digest(graph), options)

    def find() -> dict[str, Any]:
        done = _step(setting, machine, graph, sets)
        if done.simulation is not None:
            parts["map"], parts["simulate"] = done.simulation.map_s, done.simulation.run.wall_s
        figures = {**metrics_of(done.result), "bound": done.result["bound"]["name"]}
        # one array is packed sooner than many
        return {"figures": np.frombuffer(json.dumps(figures).encode(), np.uint8)}

    found = json.loads(shared_memo().recall(key, find, quick=0.005)["figures"].tobytes())
    bound = str(found.pop("bound"))
    return {name: float(value) for name, value in found.items()}, bound


def _served(setting: PointSetting, sets: Sets, parts: dict[str, float]) -> dict[str, float]:
    """Figures of a point that serves requests."""
    from siliconloom.arch.service_level import parse_level
    from siliconloom.evaluate.fleets import prepare_named
    from siliconloom.evaluate.serving_run import serve

    assert setting.trace is not None
    began = time.perf_counter()
    requests = _requests(setting.trace, setting.files)
    served = prepare_named(setting.machine, setting.workload, requests, sets, setting.stack)
    parts["read"] = time.perf_counter() - began
    objective = None if setting.slo is None else parse_level(setting.slo)
    return metrics_of(serve(served, objective, sets, audits=0))


@lru_cache(maxsize=4)
def _requests(trace: str, files: tuple[tuple[str, str], ...]) -> RequestTrace:
    """Requests of a trace while its file is what it is."""
    del files
    from siliconloom.workloads.serving.trace import load_trace

    return load_trace(trace)


def _step(setting: PointSetting, machine: DescribedMachine, graph: Graph, sets: Sets) -> Evaluation:
    from siliconloom.evaluate.machine import computes_in_memory, evaluate
    from siliconloom.evaluate.objectives import budget_of

    mapped = setting.search or setting.objective != "time" or setting.placement is not None
    if mapped and (machine.chip is None or machine.system is not None or computes_in_memory(machine, graph)):
        raise NotSupported("mapping in a sweep of what is no chip whose tiles alone do the work")
    search = budget_of(setting.search, None, setting.seed)
    return evaluate(
        machine, graph, sets, search=search, objective=setting.objective, placement=setting.placement, figures=True
    )


@lru_cache(maxsize=KEPT_GRAPHS)
def _graph(workload: str, sets: Sets, files: tuple[tuple[str, str], ...]) -> Graph:
    """The graph of a workload while its files are what they are."""
    del files
    from siliconloom.workloads import load_workload

    return load_workload(workload, list(sets))


def _identity(machine: DescribedMachine) -> tuple[str, ...]:
    """Everything that a machine's times depend on."""
    chip = "" if machine.chip is None else machine.chip.digest
    cluster = "" if machine.cluster is None else machine.cluster.digest
    policy = "" if machine.policy is None else machine.policy.model_dump_json()
    system = "" if machine.system is None else machine.system.model_dump_json()
    return chip, cluster, policy, system, repr(sorted(machine.plan.items())), repr(machine.stack)


__all__ = [
    "PointAnswer",
    "PointSetting",
    "StaleError",
    "answer",
    "file_digest",
    "is_of_library",
    "setting_of",
    "version_digest",
]
