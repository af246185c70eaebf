"""Data classes whose methods are written when they are first called.

`dataclasses.dataclass` writes up to six methods for every class and compiles each of them while a module is imported.
A short command imports a hundred such classes and calls few of these methods; compiling the others took more time than
the command's own work. `dataclass` here does the same at another moment: fields are made at once, by the library's
own; what makes, compares or hashes an object is written at its first call, and from then on is as fast.

`dataclasses.field`, ``fields``, ``replace`` and ``astuple`` take these classes as any others. Not built: ``order``,
``slots``, ``InitVar``, and a frozen class of `dataclasses.dataclass` that inherits from one of these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # to whoever reads types it is the library's
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, kw_only=False):
        """As `dataclasses.dataclass`."""

        def made(cls):
            return _later(cls, frozen, eq, kw_only)

        return made if cls is None else made(cls)


def _later(cls: Any, frozen: bool, eq: bool, kw_only: bool) -> Any:
    """The class with its fields, and in the place of each method what writes it."""
    own = {name for name, value in cls.__dict__.items() if value is not None}
    dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    methods: dict[str, Any] = {"__init__": _first_call(cls, "__init__", frozen), "__repr__": _shown}
    if eq:
        methods["__eq__"] = _first_call(cls, "__eq__", frozen)
        methods["__hash__"] = _first_call(cls, "__hash__", frozen) if frozen else None
    if frozen:
        methods |= _refusals(cls)
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    return cls


def _first_call(cls: Any, name: str, frozen: bool) -> Callable[..., Any]:
    """What stands in a method's place until it is called: it writes the method, and calls that."""

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        written = _written(cls, name, frozen)
        setattr(cls, name, written)
        return written(self, *arguments, **named)

    return _named(method, cls, name)


def _written(cls: Any, name: str, frozen: bool) -> Callable[..., Any]:
    """A method, compiled from text, as nothing else that Python offers is as fast."""
    fields, names = dataclasses.fields(cls), dict[str, Any]()
    if name == "__init__":
        text = _making(cls, fields, names, frozen)
    elif name == "__hash__":
        hashed = (each.name for each in fields if (each.compare if each.hash is None else each.hash))
        text = f"def __hash__(self):\n return hash({_tuple_of('self', hashed)})"
    else:
        compared = [each.name for each in fields if each.compare]
        both = f"{_tuple_of('self', compared)} == {_tuple_of('other', compared)}"
        text = f"def __eq__(self, other):\n return {both} if other.__class__ is self.__class__ else NotImplemented"
    exec(text, names)
    return _named(names[name], cls, name)


def _making(cls: Any, fields: tuple[Field[Any], ...], names: dict[str, Any], frozen: bool) -> str:
    """The text of ``__init__``, and what it names: defaults and what makes them, by field."""
    parameters, body = list[str](), list[str]()
    names |= {"_set": object.__setattr__, "_absent": MISSING}
    for each in sorted(fields, key=lambda each: bool(each.kw_only)):
        name, value = each.name, each.name
        if each.kw_only and "*" not in parameters and each.init:
            parameters.append("*")
        if each.default_factory is not MISSING:
            names[f"_make_{name}"] = each.default_factory
            value = f"_make_{name}() if {name} is _absent else {name}" if each.init else f"_make_{name}()"
            parameters += [f"{name}=_absent"] if each.init else []
        elif each.default is not MISSING and each.init:
            names[f"_default_{name}"] = each.default
            parameters.append(f"{name}=_default_{name}")
        elif each.init:
            parameters.append(name)
        else:
            continue  # the class has it, or what comes after making
        body.append(f"_set(self, '{name}', {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    return f"def __init__({', '.join(['self', *parameters])}):\n " + "\n ".join(body or ["pass"])


def _tuple_of(owner: str, names: Any) -> str:
    return f"({''.join(f'{owner}.{name}, ' for name in names)})"


@recursive_repr()
def _shown(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refusals(cls: Any) -> dict[str, Any]:
    """What refuses to set fields and to delete them, and anything else of an object that is of no subclass."""
    names = frozenset(each.name for each in dataclasses.fields(cls))

    def set_it(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_it(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": set_it, "__delattr__": delete_it}


def _named(method: Any, cls: Any, name: str) -> Callable[..., Any]:
    method.__name__, method.__qualname__, method.__module__ = name, f"{cls.__qualname__}.{name}", cls.__module__
    named: Callable[..., Any] = method
    return named


__all__ = ["dataclass"]
