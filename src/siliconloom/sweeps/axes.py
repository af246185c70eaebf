"""What is swept: axes, each one key or several that move together, and whether their schemas have these keys."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path

from msgspec import Struct

from siliconloom.arch.document import Document
from siliconloom.arch.errors import DescriptionError, LoomError, NotSupported
from siliconloom.arch.kinds import machine_kind
from siliconloom.arch.overrides import split_overrides
from siliconloom.arch.service_level import parse_level
from siliconloom.arch.serving import read_settings
from siliconloom.arch.sweep import Sweep, amount_of, text_of
from siliconloom.evaluate.fleets import served_stack
from siliconloom.evaluate.machine import read_machine
from siliconloom.evaluate.served_model import OF_STEPS
from siliconloom.workloads import load_workload
from siliconloom.workloads.load import workload_document
from siliconloom.workloads.serving.trace import load_trace

Indices = tuple[int, ...]
"""A point: of each axis which of its values."""
Sets = tuple[tuple[str, str], ...]
NO_KEY = ("unknown key", "is a single value and has no keys below it", "the list has ", "a key path has names")
"""How rules begin that a key breaks whatever its value is."""
OTHER_ROOMS = {
    "run": "run keys in a sweep, whose points are single steps; loom plan has them",
    "slow": "slow keys in a sweep, whose points are single steps; loom plan has them",
    "decode": "decode keys in a sweep, whose points are single steps; loom plan has them",
}


class Axis(Struct, frozen=True):
    """Keys that move together, and the values of each.

    Parameters
    ----------
    path
        The key that the axis is called by.
    values
        Of each key its values, all as many; the axis's own key is first.
    """

    path: str
    values: dict[str, tuple[str, ...]]

    @property
    def levels(self) -> tuple[str, ...]:
        return self.values[self.path]

    def __len__(self) -> int:
        return len(self.levels)

    @property
    def rises(self) -> bool:
        """Whether its values are numbers or quantities of one kind, each larger than the one before."""
        found = [amount_of(level) for level in self.levels]
        known = [each for each in found if each is not None]
        if len(known) < len(found) or any(each.kind is not known[0].kind for each in known):
            return False
        return all(a.base < b.base for a, b in itertools.pairwise(known))

    def sets(self, level: int) -> list[tuple[str, str]]:
        return [(path, values[level]) for path, values in self.values.items()]


def axes_of(sweep: Sweep) -> tuple[Axis, ...]:
    """The axes of a sweep, in the order in which its keys stand."""
    return tuple(Axis(path, {path: key.levels, **key.linked_levels()}) for path, key in sweep.keys.items())


def size_of(axes: Sequence[Axis]) -> int:
    """Points of the whole grid."""
    return prod(map(len, axes))


def fixed_sets(sweep: Sweep) -> list[tuple[str, str]]:
    """What is set in all points."""
    return [(path, text_of(value)) for path, value in sweep.set.items()]


def sets_at(axes: Sequence[Axis], fixed: Sequence[tuple[str, str]], point: Indices) -> Sets:
    """Everything that a point sets, by key path, a key before those below it."""
    chosen = [pair for axis, level in zip(axes, point, strict=True) for pair in axis.sets(level)]
    return tuple(sorted([*fixed, *chosen], key=lambda pair: pair[0].split(".")))


def check_keys(sweep: Sweep, document: Document, axes: Sequence[Axis]) -> None:
    """End a sweep with a key that no schema has, before any point.

    Each key is tried alone with its first value; a value that the machine refuses is a matter of the points.

    Raises
    ------
    LoomError
        With the place of the key in the sweep's file.
    """
    for key, name, find in (("machine", sweep.machine, machine_kind), ("workload", sweep.workload, workload_document)):
        try:
            find(name)
        except DescriptionError:
            raise
        except LoomError as error:
            other = _is_file(str(Path(document.source).parent / name)) and not _is_file(name)
            hint = "; there is one beside this file, and paths are from the current folder" if other else ""
            raise document.error(f"{error}{hint}", (key,)) from None
    _check_service(sweep, document)
    for path, value in sweep.set.items():
        _check_key(sweep, document, ("set", path), path, text_of(value))
    for axis in axes:
        for path, values in axis.values.items():
            place = ("keys", axis.path) if path == axis.path else ("keys", axis.path, "with")
            _check_key(sweep, document, place, path, values[0])


def _check_service(sweep: Sweep, document: Document) -> None:
    """Read what a sweep's points serve; raises `LoomError` with the place of what cannot be."""
    if sweep.trace is None:
        return
    checks: list[tuple[str, Callable[[], object]]] = [
        ("trace", lambda: load_trace(str(sweep.trace))),
        ("slo", lambda: sweep.slo is None or parse_level(sweep.slo)),
        ("stack", lambda: sweep.stack is None or served_stack(read_machine(sweep.machine, []), sweep.stack)),
    ]
    for key, check in checks:
        try:
            check()
        except LoomError as error:
            raise document.error(str(error).removeprefix(f"--{key}: "), (key,)) from None


def _check_key(sweep: Sweep, document: Document, place: tuple[str, ...], path: str, value: str) -> None:
    room = path.partition(".")[0]
    if room in OTHER_ROOMS and "." in path:
        raise document.error(f"not supported: {OTHER_ROOMS[room]}", place, value=path)
    if room == "serve" and sweep.trace is None:
        raise document.error("is of a service, and the sweep has no trace", place, value=path)
    chip_sets, workload_sets = split_overrides([(path, value)])
    if sweep.trace is not None and workload_sets and path.split(".")[1] in OF_STEPS:
        raise document.error("the requests say this of every step", place, value=path)
    try:
        if room == "serve":
            read_settings([(path, value)])
        elif workload_sets:
            load_workload(sweep.workload, workload_sets)
        else:
            read_machine(sweep.machine, chip_sets)
    except DescriptionError as error:
        if error.rule.startswith(NO_KEY) and _names(error, path):
            raise document.error(error.rule, place, nearest=error.nearest) from None
    except NotSupported:
        return  # of a value, or of what another key changes
    except LoomError as error:
        text = str(error)
        if path.startswith("plan.") and ("unknown key" in text or "is of a system" in text):
            raise document.error(text.removeprefix(f"--set {path}={value}: "), place, value=path) from None


def _names(error: DescriptionError, path: str) -> bool:
    """Whether an error is of the key that was set, and not of the file around it."""
    return error.position.source.startswith("--set ") or error.path == path or path.startswith(f"{error.path}.")


def user_files(sweep: Sweep, read: Iterator[str] | Sequence[str], axes: Sequence[Axis]) -> list[str]:
    """Files of the user that points depend on: what was read for the sweep's own keys, and what values name."""
    values = [v for axis in axes for levels in axis.values.values() for v in levels]
    values += [text for _, text in fixed_sets(sweep)]
    named = [value for value in values if len(value) < 4096 and "\n" not in value and _is_file(value)]
    return sorted({str(Path(each)) for each in (*read, *named)})


def _is_file(value: str) -> bool:
    try:
        return Path(value).is_file()
    except (OSError, ValueError):
        return False


__all__ = ["Axis", "Indices", "Sets", "axes_of", "check_keys", "fixed_sets", "sets_at", "size_of", "user_files"]
