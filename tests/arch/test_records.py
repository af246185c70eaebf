"""Data classes that write their methods late are those of the library in all that a caller sees."""

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import Any, ClassVar

import pytest

from siliconloom.arch.records import dataclass


def _classes(make: Any) -> tuple[type, ...]:
    @make(frozen=True)
    class Point:
        x: int
        y: float = 2.5
        seen: list[int] = field(default_factory=list, compare=False)
        hidden: str = field(default="h", repr=False)
        kind: ClassVar[str] = "point"

    @make(frozen=True, kw_only=True)
    class Named(Point):
        name: str
        length: int = field(init=False, default=0)

        def __post_init__(self) -> None:
            object.__setattr__(self, "length", len(self.name))

    @make
    class Count:
        n: int = 0
        texts: list[str] = field(default_factory=lambda: ["a"])

    @make(frozen=True, eq=False)
    class Apart:
        n: int

    return Point, Named, Count, Apart


OURS, THEIRS = _classes(dataclass), _classes(dataclasses.dataclass)
CALLS: tuple[tuple[int, tuple[Any, ...], dict[str, Any]], ...] = (
    (0, (1,), {}),
    (0, (1, 2), {"hidden": "x"}),
    (0, (), {"x": 1, "seen": [3]}),
    (1, (1,), {"name": "four"}),
    (2, (), {}),
    (2, (5, ["b"]), {}),
    (3, (1,), {}),
)
WRONG: tuple[tuple[int, tuple[Any, ...], dict[str, Any]], ...] = (
    (0, (), {}),
    (0, (1, 2, [], "h", 5), {}),
    (0, (1,), {"z": 1}),
    (1, (1, 2.0, [], "h", "name"), {}),
    (1, (1,), {"name": "n", "length": 2}),
)


@pytest.mark.parametrize(("number", "arguments", "named"), CALLS)
def test_objects_are_made_shown_and_compared_as_the_librarys(number, arguments, named):
    ours, theirs = OURS[number](*arguments, **named), THEIRS[number](*arguments, **named)
    again = OURS[number](*arguments, **named)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert repr(ours) == repr(theirs)
    assert (ours == again) == (theirs == THEIRS[number](*arguments, **named))
    assert ours != theirs
    assert dataclasses.replace(ours) == ours or number == 3
    assert copy.deepcopy(ours) == ours or number == 3
    assert [f.name for f in dataclasses.fields(ours)] == [f.name for f in dataclasses.fields(theirs)]


@pytest.mark.parametrize(("number", "arguments", "named"), WRONG)
def test_wrong_arguments_are_told_in_the_same_words(number, arguments, named):
    with pytest.raises(TypeError) as theirs:
        THEIRS[number](*arguments, **named)
    with pytest.raises(TypeError) as ours:
        OURS[number](*arguments, **named)
    assert str(ours.value) == str(theirs.value)


def test_frozen_objects_are_hashed_alike_and_refuse_changes():
    made, same = OURS[0](1, seen=[1]), OURS[0](1, seen=[2])
    assert made == same
    assert len({made, same}) == 1
    for change in (lambda: setattr(made, "x", 2), lambda: setattr(made, "other", 2), lambda: delattr(made, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError, match=r"cannot (assign to|delete) field"):
            change()
    with pytest.raises(TypeError, match="unhashable"):
        hash(OURS[2]())
    assert len({OURS[3](1), OURS[3](1)}) == 2


def test_defaults_are_made_for_each_object():
    first, second = OURS[2](), OURS[2]()
    first.texts.append("b")
    assert second.texts == ["a"]


@dataclass(frozen=True)
class Kept:
    """At the top of a module, so that it can be pickled."""

    n: int

    def __hash__(self) -> int:
        return 7


def test_objects_pass_between_processes_and_own_methods_stay():
    assert pickle.loads(pickle.dumps(Kept(3))) == Kept(3)
    assert hash(Kept(3)) == 7
