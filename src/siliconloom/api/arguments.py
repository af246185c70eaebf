"""Types of arguments: what is of another one is refused by name, before anything is done with it."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from os import PathLike
from typing import Any, ParamSpec, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints, runtime_checkable

from siliconloom.arch.errors import LoomError

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


@runtime_checkable
class ColumnFrame(Protocol):
    """A data frame of any library (pandas, polars): its columns by their names."""

    @property
    def columns(self) -> Any:
        """Names of the columns."""

    def __getitem__(self, key: Any) -> Any:
        """A column by its name."""


WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    PathLike: "a path",
    Mapping: "a mapping",
    Sequence: "a list",
    ColumnFrame: "a data frame",
}


def checked(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """The function, whose arguments must be of the types that it declares; raises `LoomError` for others."""

    @functools.wraps(function)
    def asked(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        hints, bound = _hints(function), inspect.signature(function).bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            wanted = _classes(hints[name])
            if not any(_is_of(value, each) for each in wanted):
                words = [WORDS.get(each, each.__name__) for each in wanted if each is not type(None)]
                raise LoomError(f"{name}: must be {' or '.join(words)} (got {type(value).__name__})")
        try:
            return function(*args, **kwargs)
        except LoomError as error:
            if error.args and isinstance(error.args[0], str):
                error.args = (_in_python(error.args[0], hints), *error.args[1:])
            raise

    return asked


FLAG = re.compile(r"(?<![\w-])--([a-z][a-z-]*)")
"""An option of a command."""
NAMED = {"set": "sets", "gpu": "gpus", "price": "prices"}
"""Arguments whose options have other names."""


def _in_python(text: str, arguments: Mapping[str, Any]) -> str:
    """An error's text with options of the command under the names of a function's ``arguments``, where it has them."""

    def named(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        return next((each for each in (name, NAMED.get(name)) if each in arguments and each is not None), found[0])

    return FLAG.sub(named, text)


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(function)


def _classes(annotation: Any) -> list[type]:
    """Classes that a value may be of."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [each for member in get_args(annotation) for each in _classes(member)]
    return [get_origin(annotation) or annotation]


def _is_of(value: object, wanted: type) -> bool:
    if wanted in (int, float):
        return isinstance(value, Integral if wanted is int else Real) and not isinstance(value, bool)
    return isinstance(value, wanted)


__all__ = ["ColumnFrame", "checked"]
