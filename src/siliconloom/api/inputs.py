"""What the functions of the public API take: names, files, dictionaries, and descriptions that were read already."""

from __future__ import annotations

import json
from collections.abc import Mapping
from numbers import Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from siliconloom.api.arguments import ColumnFrame
from siliconloom.arch import Chip, Description, Document, LoomError, System
from siliconloom.arch.description import load_chip as read_chip
from siliconloom.arch.gpu import Gpu
from siliconloom.arch.quantity import Parsed
from siliconloom.arch.service_level import ServiceLevel, parse_level
from siliconloom.workloads import Graph
from siliconloom.workloads import load_workload as read_workload
from siliconloom.workloads.serving.trace import RequestTrace, trace_of

Machine: TypeAlias = str | PathLike[str] | Mapping[str, Any] | Chip | System | Gpu
"""A library name, a file, a description as a dictionary, or one that was read."""
Workload: TypeAlias = str | PathLike[str] | Mapping[str, Any] | Graph
"""A library name, a file, a description or a Hugging Face configuration as a dictionary, or one that was read."""
Mapped: TypeAlias = str | PathLike[str] | Mapping[str, Any]
"""A mapping: a file, or a dictionary."""
Sets: TypeAlias = Mapping[str, Any]
"""Values by their key paths, as ``--set`` gives them: ``{"tile.array.rows": 32, "workload.phase": "decode"}``."""

Trace: TypeAlias = str | PathLike[str] | Mapping[str, Any] | ColumnFrame
"""Requests: a library name, a file, ``512x128``, or columns under the names that files have."""
Limits: TypeAlias = str | Mapping[str, Any]
"""What requests should keep to: ``"ttft=2s,tpot=50ms"``, or ``{"ttft": 2, "tpot": "50 ms"}``, numbers in seconds."""


def named_machine(machine: Machine, what: str = "machine") -> str | Document:
    """The machine as the readers of descriptions take it; raises `LoomError` for what is none."""
    if isinstance(machine, Description):
        return Document.of(_in_base_units(machine.model_dump(exclude_unset=True)), machine.name)
    return _named(machine, what)


def named_workload(workload: Workload) -> str | Document | Graph:
    """The workload as the readers of descriptions take it; raises `LoomError` for what is none."""
    return workload if isinstance(workload, Graph) else _named(workload, "workload")


def mapping_document(mapping: Mapped | None) -> Document | None:
    """The mapping as a document; raises `LoomError` for what is none."""
    if mapping is None:
        return None
    found = _named(mapping, "mapping")
    return found if isinstance(found, Document) else Document.load(found)


def assignments(sets: Sets | None) -> list[tuple[str, str]]:
    """Pairs of key path and text, as the command line has them; raises `LoomError` for what is no value."""
    if sets is None:
        return []
    if not isinstance(sets, Mapping):
        raise LoomError(f"sets: must be a mapping of key paths to values (got {type(sets).__name__})")
    return [(str(path), _text(str(path), value)) for path, value in sets.items()]


def request_trace(trace: Trace) -> str | RequestTrace:
    """The requests as `prepare_named` takes them: a name, or columns that were read; raises `LoomError`."""
    if isinstance(trace, str | PathLike):
        return str(Path(fspath(trace))) if isinstance(trace, PathLike) else trace
    names = list(trace) if isinstance(trace, Mapping) else list(trace.columns)
    columns: dict[str, list[Any]] = {}
    for name in names:
        try:
            columns[str(name)] = [_cell(value) for value in trace[name]]
        except TypeError:
            raise LoomError(
                f"trace: {name}: must be a value for each request (got {type(trace[name]).__name__})"
            ) from None
        if isinstance(trace[name], str | bytes):
            raise LoomError(f"trace: {name}: must be a value for each request (got text)")
    return trace_of(columns)


def service_level(slo: Limits | None) -> ServiceLevel | None:
    """Limits of requests; raises `LoomError` for others than ``ttft``, ``tpot`` and ``e2e``."""
    if slo is None:
        return None
    if isinstance(slo, Mapping):
        slo = ",".join(
            f"{name}={value if isinstance(value, str) else _seconds(name, value)}" for name, value in slo.items()
        )
    return parse_level(slo)


def load_chip(chip: str | PathLike[str] | Mapping[str, Any] | Chip, sets: Sets | None = None) -> Chip:
    """Read a chip's description.

    Parameters
    ----------
    chip
        A library name, a file, a dictionary, or a chip that was read.
    sets
        Values to override, by key path.

    Raises
    ------
    LoomError
        When there is no such file, or the description breaks a rule; the text says which, and where.

    Examples
    --------
    >>> import siliconloom as sl
    >>> sl.load_chip("npu-edge", {"tile.array.rows": 32}).tile.array.rows
    32
    """
    return read_chip(named_machine(chip, "chip"), assignments(sets))


def load_workload(workload: Workload, sets: Sets | None = None) -> Graph:
    """Read a workload: a graph of operators.

    Parameters
    ----------
    workload
        A library name, a file, a dictionary, or a graph.
    sets
        Values to override, by key path: ``{"phase": "decode"}``; a leading ``workload.`` is accepted.

    Raises
    ------
    LoomError
        When there is no such file, or the description breaks a rule; the text says which, and where.

    Examples
    --------
    >>> import siliconloom as sl
    >>> sl.load_workload("gpt2").parameters
    124439808
    """
    pairs = [(path.removeprefix("workload."), value) for path, value in assignments(sets)]
    return read_workload(named_workload(workload), pairs)


def _in_base_units(data: Any) -> Any:
    """What was read of a description, its numbers marked as read, so that quantities are taken without their units."""
    if isinstance(data, dict):
        return {key: _in_base_units(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_in_base_units(value) for value in data]
    return Parsed(data) if type(data) is int else data


def _named(given: object, what: str) -> str | Document:
    if isinstance(given, Mapping):
        return Document.of(given, what)
    if isinstance(given, str | PathLike):
        path = fspath(given)
        if isinstance(path, str):
            return str(Path(path)) if isinstance(given, PathLike) else path
    raise LoomError(
        f"{what}: must be a name, a file, a dictionary or what was read of one (got {type(given).__name__})"
    )


def _cell(value: Any) -> Any:
    """A value of a trace as files have it: numbers, text, lists; nothing where a data frame has none."""
    if value is None or isinstance(value, str | bool | int | list):
        return value
    if isinstance(value, np.ndarray | tuple):
        return [_cell(each) for each in value]
    if isinstance(value, np.generic | float):
        value = value.item() if isinstance(value, np.generic) and not isinstance(value, np.datetime64) else value
        return None if value != value else str(value) if isinstance(value, np.datetime64) else value
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    return str(value)


def _seconds(name: object, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise LoomError(
            f"slo: {name}: must be seconds, or text with a unit such as '50 ms' (got {type(value).__name__})"
        )
    return f"{float(value):.15g} s"


def _text(path: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, np.integer):
        value = int(value)
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        kind = type(value).__name__
        raise LoomError(
            f"sets: {path}: must be text, a number, true or false, or a list of them (got {kind})"
        ) from None


__all__ = [
    "Limits",
    "Machine",
    "Mapped",
    "Sets",
    "Trace",
    "Workload",
    "assignments",
    "load_chip",
    "load_workload",
    "mapping_document",
    "named_machine",
    "named_workload",
    "request_trace",
    "service_level",
]
