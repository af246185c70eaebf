"""What the functions of the public API take: names, files, dictionaries, and descriptions that were read already."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from siliconloom.arch import Chip, Description, Document, LoomError, System
from siliconloom.arch.description import load_chip as read_chip
from siliconloom.arch.gpu import Gpu
from siliconloom.arch.quantity import Parsed
from siliconloom.workloads import Graph
from siliconloom.workloads import load_workload as read_workload

Machine: TypeAlias = str | PathLike[str] | Mapping[str, Any] | Chip | System | Gpu
"""A library name, a file, a description as a dictionary, or one that was read."""
Workload: TypeAlias = str | PathLike[str] | Mapping[str, Any] | Graph
"""A library name, a file, a description or a Hugging Face configuration as a dictionary, or one that was read."""
Mapped: TypeAlias = str | PathLike[str] | Mapping[str, Any]
"""A mapping: a file, or a dictionary."""
Sets: TypeAlias = Mapping[str, Any]
"""Values by their key paths, as ``--set`` gives them: ``{"tile.array.rows": 32, "workload.phase": "decode"}``."""


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
    "Machine",
    "Mapped",
    "Sets",
    "Workload",
    "assignments",
    "load_chip",
    "load_workload",
    "mapping_document",
    "named_machine",
    "named_workload",
]
