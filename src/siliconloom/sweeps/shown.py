"""A sweep and what is known of its points, as one result (`arch.swept`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace
from pydantic import ValidationError

from siliconloom import __version__
from siliconloom.arch.document import Document
from siliconloom.arch.errors import LoomError
from siliconloom.arch.sweep import SEARCHES, Sweep, SweepMethod
from siliconloom.arch.swept import (
    KeyEffect,
    KeySensitivity,
    SweepResult,
    SweptConstraint,
    SweptCounts,
    SweptKey,
    SweptMetric,
    SweptPoint,
    SweptQuestion,
)
from siliconloom.sweeps.analysis import ParetoFront, effects_of, feasible, monotone_breaks, sensitivity_of
from siliconloom.sweeps.axes import Axis, Indices, axes_of, fixed_sets, sets_at
from siliconloom.sweeps.metrics import constraints_of, objectives_of
from siliconloom.sweeps.question import PointAnswer, file_digest
from siliconloom.sweeps.search import drawn_at_first
from siliconloom.sweeps.store import Damaged, Store, StoredPoint, check_sets

MOST_DAMAGED = 5
"""Damaged points that are told one by one."""


class DescribedSweep:
    """A sweep with its axes, objectives and constraints.

    Raises
    ------
    LoomError
        For an objective or a constraint that cannot be had, with its place in the file.
    """

    def __init__(self, sweep: Sweep, document: Document, name: str) -> None:
        self.sweep, self.document, self.name = sweep, document, name
        self.objectives: tuple[SweptMetric, ...] = objectives_of(sweep, document)
        self.constraints: tuple[SweptConstraint, ...] = constraints_of(sweep, document)
        self.axes: tuple[Axis, ...] = axes_of(sweep)
        self.fixed = fixed_sets(sweep)

    def text(self) -> str:
        """The description as JSON."""
        return self.sweep.model_copy(update={"name": self.name}).model_dump_json(by_alias=True, exclude_unset=True)

    def question(self) -> SweptQuestion:
        """All that is asked."""
        sweep = self.sweep
        return SweptQuestion(
            name=self.name,
            machine=sweep.machine,
            workload=sweep.workload,
            set=dict(self.fixed),
            keys=tuple(
                SweptKey(axis.path, axis.levels, {p: v for p, v in axis.values.items() if p != axis.path})
                for axis in self.axes
            ),
            method=sweep.method.value,
            seed=sweep.seed,
            objectives=self.objectives,
            constraints=self.constraints,
            mapping=sweep.mapping.model_dump(mode="json"),
            trace=sweep.trace,
            slo=sweep.slo,
            stack=sweep.stack,
        )

    def values_at(self, place: Indices) -> dict[str, str]:
        """The value of every swept key at a point."""
        return {path: v for axis, level in zip(self.axes, place, strict=True) for path, v in axis.sets(level)}

    def has(self, place: Indices) -> bool:
        """Whether these are values of the keys, one of each."""
        return len(place) == len(self.axes) and all(n < len(axis) for n, axis in zip(place, self.axes, strict=True))

    def feasible(self, answer: PointAnswer) -> bool:
        """Whether a point keeps all constraints."""
        return answer.why is None and feasible(answer.metrics, self.constraints)

    def lacks(self, answer: PointAnswer) -> tuple[tuple[str | int, ...], str] | None:
        """A figure that the sweep asks and a point that is done does not have, and where it is asked; if there is."""
        if answer.why is not None:
            return None
        wanted: list[tuple[tuple[str | int, ...], str]] = [
            (("objectives", number), each.name) for number, each in enumerate(self.objectives)
        ]
        wanted += [(("constraints", number, "metric"), each.metric) for number, each in enumerate(self.constraints)]
        return next(((path, name) for path, name in wanted if name not in answer.metrics), None)


def point_of(described: DescribedSweep, number: int, place: Indices, answer: PointAnswer, asked: int) -> SweptPoint:
    """A point with its answer."""
    return SweptPoint(
        number=number,
        values=described.values_at(place),
        asked=asked,
        state="done" if answer.why is None else "failed",
        why=answer.why,
        metrics=answer.metrics,
        feasible=None if answer.why is not None else described.feasible(answer),
        bound=answer.bound,
    )


def told(described: DescribedSweep, member: StoredPoint) -> PointAnswer:
    """The answer of a point; without a figure that the sweep asks it has failed."""
    assert member.answer is not None
    lacking = described.lacks(member.answer)
    return member.answer if lacking is None else replace(member.answer, why=f"it has no {lacking[1]}")


def point_name(described: DescribedSweep, key: str, place: Indices) -> str:
    """A point by its values, or by its key in the file where these are not known."""
    if not described.has(place):
        return key[:12]
    values = described.values_at(place)
    return ", ".join(f"{axis.path}={values[axis.path]}" for axis in described.axes)


def at_most(notes: Sequence[str]) -> list[str]:
    """The first notes of a kind, and how many more there are."""
    left = len(notes) - MOST_DAMAGED
    return [*notes[:MOST_DAMAGED], *([f"and {left:,} more such points"] if left > 0 else [])]


def checked(described: DescribedSweep, member: StoredPoint) -> StoredPoint:
    """A member of a file, with what is damaged of it where its values are none of the sweep's."""
    if member.damage is not None:
        return member
    if not described.has(member.place):
        return replace(member, place=(), answer=None, damage="its values are none of the keys' values")
    try:
        if member.answer is not None:
            check_sets(member.sets, sets_at(described.axes, described.fixed, member.place))
    except Damaged as error:
        return replace(member, place=(), answer=None, damage=str(error))
    return member


def _choice_notes(sweep: Sweep, asked: int, distinct: int) -> list[str]:
    """Where the method chose other points than its name promises."""
    if sweep.method in SEARCHES and sweep.points is not None and sweep.points <= drawn_at_first(sweep):
        return [
            f"nothing is searched: the first {drawn_at_first(sweep):,} points of {sweep.method.value} are drawn at "
            f"random, and there are {sweep.points:,}; take more points or a smaller population"
        ]
    if sweep.method is SweepMethod.LATIN_HYPERCUBE and distinct < asked:
        return [
            f"{asked - distinct:,} of {asked:,} points are the same as others: every value of a key comes as often "
            f"among the points that are drawn, not among the {distinct:,} different ones"
        ]
    return []


def result_of(
    described: DescribedSweep,
    members: Sequence[StoredPoint],
    *,
    complete: bool,
    seconds: float,
    evaluated: int,
    notes: Sequence[str] = (),
) -> SweepResult:
    """The result of a sweep, of whose points those count that have answers."""
    times: dict[str, int] = {}
    for member in members:
        times[member.key] = times.get(member.key, 0) + 1
    numbers: dict[str, int] = {}
    points: list[SweptPoint] = []
    places: list[Indices] = []
    for member in members:
        if member.answer is not None and member.key not in numbers:
            numbers[member.key] = len(points)
            points.append(point_of(described, len(points), member.place, told(described, member), times[member.key]))
            places.append(member.place)
    front = ParetoFront(described.objectives)
    for point in points:
        if point.feasible:
            front.add(point.number, point.metrics)
    notes = [*notes, *_choice_notes(described.sweep, len(members), len(times))]
    sensitivity: tuple[KeySensitivity, ...] = ()
    if complete:
        asked = [points[numbers[member.key]] for member in members]
        try:
            sensitivity = sensitivity_of(described.sweep, described.axes, described.objectives, asked)
        except LoomError as error:
            notes.append(str(error))
    failed = sum(point.state == "failed" for point in points)
    if points and failed == len(points):
        notes.append(f"every point failed; the first: {points[0].why}")
    effects: tuple[KeyEffect, ...] = ()
    if described.sweep.method not in SEARCHES:
        effects, told_of = effects_of(described.axes, described.objectives, points, places)
        notes += told_of
    return SweepResult(
        version=__version__,
        asked=described.question(),
        complete=complete,
        seconds=seconds,
        counts=SweptCounts(
            asked=len(members),
            distinct=len(times),
            evaluated=evaluated,
            reused=max(len(points) - evaluated, 0),
            failed=failed,
            feasible=sum(bool(point.feasible) for point in points),
        ),
        front=front.numbers(),
        points=tuple(points),
        effects=effects,
        sensitivity=sensitivity,
        monotone=monotone_breaks(described.axes, points, places),
        notes=tuple(notes),
    )


def _changed_since(files: Mapping[str, str]) -> list[str]:
    """Notes of files that are not what they were when a sweep ran; of one that is not here nothing is known."""
    found = []
    for path, digest in files.items():
        try:
            changed = Path(path).is_file() and file_digest(path) != digest
        except (OSError, ValueError, LoomError):
            continue
        if changed:
            found.append(f"{path} has changed since: these are the results of what it was; loom sweep evaluates anew")
    return found


def stored_result(path: str | Path, name: str | None = None) -> tuple[SweepResult, list[str]]:
    """The last sweep of a file of results, or the last one of a name, and the names of all.

    Raises
    ------
    LoomError
        For a file that is none of results, or has no such sweep.
    """
    with Store(path, write=False) as store:
        known = store.sweeps()
        names = list(dict.fromkeys(each.name for each in known))
        found = next((each for each in known if name is None or each.name == name), None)
        if found is None:
            said = f"has no sweep named '{name}'; it has {', '.join(names)}" if names else "has no sweep yet"
            raise LoomError(f"{path}: {said}")
        try:
            sweep = Sweep.model_validate_json(found.description)
        except ValidationError as error:
            raise LoomError(
                f"{path}: the sweep '{found.name}' is of another version ({error.error_count()} keys)"
            ) from None
        described = DescribedSweep(sweep, Document({}, {}, str(path)), found.name)
        members = [checked(described, each) for each in store.points(found.number)]
        files = store.files(found.number)
    damaged = {each.key: each for each in members if each.damage is not None}
    notes = [
        f"the point {point_name(described, key, each.place)} is damaged and left out: {each.damage}; "
        "the same loom sweep puts it right"
        for key, each in damaged.items()
    ]
    notes = [*at_most(notes), *_changed_since(files)]
    complete = found.complete and all(each.answer is not None for each in members)
    spent, count = found.seconds, found.evaluated
    made = result_of(described, members, complete=complete, seconds=spent, evaluated=count, notes=notes)
    return made, names


__all__ = ["DescribedSweep", "at_most", "point_name", "point_of", "result_of", "stored_result"]
