"""Kernels: functions that Numba compiles on their first call and keeps as machine code for later processes.

`kernel` is the only way to make one, and `KERNELS` holds all that were made. Numba takes kept machine code for fresh
when the file of the function itself has not changed; here it is fresh when nothing that went into it has: its own
code, every kernel that it calls, and the value of every constant that they name. What is kept lies in a folder of this
package in this place (``__pycache__``, or one that Numba names after its path under ``NUMBA_CACHE_DIR``), so that
checkouts that share a cache leave each other alone. A cache that cannot be written, or read, costs time and nothing
else.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, cast

PACKAGE = __name__.partition(".")[0]
KERNELS: dict[str, Any] = {}
"""Every kernel of the modules that were imported, by module and name."""

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(**options: Any) -> Callable[[Function], Function]:
    """Make a function a kernel; ``options`` are those of ``numba.njit``."""

    def make(function: Function) -> Function:
        made = _compiled(cast(FunctionType, function), options)
        KERNELS[f"{function.__module__}.{function.__qualname__}"] = made
        return cast(Function, made)

    return make


def _compiled(function: FunctionType, options: dict[str, Any]) -> Any:
    from numba import njit  # costs most of a second

    _announce()
    try:
        made = njit(cache=True, **options)(function)
    except RuntimeError:  # there is nowhere to keep it
        made = njit(**options)(function)
    store = getattr(made, "_cache", None)
    if getattr(store, "_cache_file", None) is not None:
        _guard(store, function, repr(sorted(options.items())))
    return made


def _guard(store: Any, function: FunctionType, options: str) -> None:
    """Let a kernel's cache know what the kernel is made of, and survive disks that are full and files that are not."""
    load, save = store.load_overload, store.save_overload

    def careful_load(signature: Any, target: Any) -> Any:
        store._cache_file._source_stamp = hashlib.sha256(f"{options} {kernel_digest(function)}".encode()).hexdigest()
        try:
            return load(signature, target)
        except Exception:  # whatever a damaged pickle makes Python do; it is compiled again
            return None

    def careful_save(signature: Any, made: Any) -> None:
        with contextlib.suppress(Exception):
            _forget_older(Path(store.cache_path), store._impl.filename_base)
            save(signature, made)

    store.load_overload, store.save_overload = careful_load, careful_save


def _forget_older(folder: Path, name: str) -> None:
    """Remove what is kept of this function from when it stood in another line: Numba never would."""
    function, _, place = name.rpartition("-")
    version = place.partition(".")[2]
    for path in folder.glob(f"{function}-*.{version}.*nb[ic]"):
        if not path.name.startswith(f"{name}."):
            path.unlink(missing_ok=True)


@cache
def kernel_digest(function: FunctionType) -> str:
    """SHA-256 over all that a kernel's machine code is made from, whichever files that stands in."""
    seen: set[str] = set()
    digest = hashlib.sha256()
    for part in _parts(function, seen):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def _parts(function: FunctionType, seen: set[str]) -> Iterator[str]:
    name = f"{function.__module__}.{function.__qualname__}"
    if name in seen:
        return
    seen.add(name)
    yield name
    for code in _codes(function.__code__):
        yield code.co_code.hex()
        yield repr([c for c in code.co_consts if not isinstance(c, CodeType)])
        yield repr((code.co_varnames, code.co_names))
        for word in code.co_names:
            if word in function.__globals__:
                yield from _value_parts(word, function.__globals__[word], code.co_names, seen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _value_parts(name: str, value: Any, words: tuple[str, ...], seen: set[str]) -> Iterator[str]:
    """What a global that a kernel names is, as text that is the same in every process."""
    inner = getattr(value, "py_func", value)
    if isinstance(inner, FunctionType):
        yield from _parts(inner, seen) if inner.__module__.startswith(PACKAGE) else (inner.__qualname__,)
    elif isinstance(value, ModuleType):
        yield value.__name__
        if value.__name__.startswith(f"{PACKAGE}."):
            for word in words:
                if hasattr(value, word):
                    yield from _value_parts(word, getattr(value, word), (), seen)
    elif isinstance(value, type) and issubclass(value, enum.Enum):
        yield repr([(each.name, each.value) for each in value])
    elif hasattr(value, "tobytes"):
        yield f"{name} {value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    elif isinstance(value, int | float | complex | str | bytes | tuple | bool | None):
        yield f"{name} {value!r}"
    else:  # classes such as named tuples: fields are all that a kernel sees of them
        yield f"{name} {type(value).__qualname__} {getattr(value, '_fields', '')}"


@cache
def _announce() -> None:
    """Say on standard error that a kernel is being compiled, which takes seconds and happens once."""
    from numba.core import event

    class Announcer(event.Listener):  # type: ignore[misc, unused-ignore]
        depth = 0

        def on_start(self, event: Any) -> None:
            function = event.data["dispatcher"].py_func
            if self.depth == 0 and function.__module__.startswith(f"{PACKAGE}."):
                name = f"{function.__module__.removeprefix(f'{PACKAGE}.')}.{function.__name__}"
                print(f"compiling {name}, once per installation ...", file=sys.stderr)
            self.depth += 1

        def on_end(self, event: Any) -> None:
            self.depth -= 1

    event.register("numba:compile", Announcer())  # type: ignore[no-untyped-call, unused-ignore]


__all__ = ["KERNELS", "kernel", "kernel_digest"]
