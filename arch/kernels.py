"""Kernels: functions that Numba compiles on their first call and keeps as machine code for later processes.

`kernel` makes one, `part` a function that only kernels call, and `KERNELS` holds all that were made. Numba takes kept
machine code for fresh when the file of the function itself has not changed; here it is fresh when nothing that went
into it has: its own code, every kernel that it calls, and the value of every constant that they name. What is kept
lies in a folder of this package in this place (``__pycache__``, or one that Numba names after its path under
``NUMBA_CACHE_DIR``), so that checkouts that share a cache leave each other alone. A cache that cannot be written, or
read, costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, cast

import numpy as np

from siliconloom.arch.budget import require_library
from siliconloom.arch.interrupts import compiling
from siliconloom.arch.machine_code import (
    FixedArgument,
    call_key,
    compiled_call_key,
    emit_library,
    find_linker,
    has_code,
    library_path,
    load_library,
)

PACKAGE = __name__.partition(".")[0]
KERNELS: dict[str, Kernel] = {}
"""Every kernel of the modules that were imported, by module and name."""

Function = TypeVar("Function", bound=Callable[..., Any])


ONLY_KEPT: ContextVar[bool] = ContextVar("ONLY_KEPT", default=False)
"""Whether kernels raise `NotKept` in place of being compiled: for who asks whether the next run has to wait."""


class Kernel:
    """A function that runs as machine code: from a library where one is kept, else through Numba.

    Numba is imported when the first kernel is called for which there is no library (`siliconloom.arch.machine_code`).

    Parameters
    ----------
    function
        What is compiled; with ``NUMBA_DISABLE_JIT=1`` it runs as it stands.
    options
        Those of ``numba.njit``.
    alone
        Whether Python calls it compiled; otherwise only other kernels do.
    """

    def __init__(self, function: FunctionType, options: dict[str, Any], *, alone: bool = True) -> None:
        self.py_func, self.options, self.alone = function, options, alone
        self._libraries: dict[str, Callable[..., Any] | None] = {}
        self._calls = 0
        self.__doc__, self.__name__, self.__module__ = function.__doc__, function.__name__, function.__module__

    @cached_property
    def dispatcher(self) -> Any:
        """Numba's own object for the function."""
        with compiling():  # importing Numba takes half a second
            return _compiled(self)

    @property
    def signatures(self) -> list[str]:
        """Types with which it has been called in this process."""
        found = [key for key, library in self._libraries.items() if library is not None]
        return found + [str(s) for s in getattr(self.__dict__.get("dispatcher"), "signatures", ())]

    def __call__(self, *arguments: Any) -> Any:
        if INTERPRETED:
            with np.errstate(all="ignore"):  # of which machine code says nothing either
                return self.py_func(*map(FixedArgument.plain, arguments))
        if not self.alone:
            return self.py_func(*map(FixedArgument.plain, arguments))
        dispatcher = self.__dict__.get("dispatcher")
        if dispatcher is not None:
            if FixedArgument in map(type, arguments):
                arguments = tuple(map(FixedArgument.plain, arguments))
            return dispatcher(*arguments)
        self._calls += 1
        if self._calls > OFTEN:  # Numba takes half a second to start, and a call of it a tenth of a call of ours
            return self.dispatcher(*map(FixedArgument.plain, arguments))
        key = call_key(arguments)
        if key is not None and key not in self._libraries:
            self._libraries[key] = self._library(key)
        library = self._libraries.get(key) if key is not None else None
        if library is not None:
            return library(*arguments)
        if ONLY_KEPT.get():
            raise NotKept(self.__name__)
        outcome = self.dispatcher(*map(FixedArgument.plain, arguments))
        if key is not None:
            with compiling():
                self._keep(key)
        return outcome

    def _library(self, key: str) -> Callable[..., Any] | None:
        paths = (self._path(folder, key) for folder in _folders(self.py_func))
        return next((found for found in map(load_library, paths) if found is not None), None)

    def _path(self, folder: Path, key: str) -> Path:
        digest = hashlib.sha256(f"{sorted(self.options.items())} {kernel_digest(self.py_func)}".encode()).hexdigest()
        module = self.py_func.__module__.rpartition(".")[2]
        return library_path(folder, f"{module}.{self.py_func.__name__}", key, digest)

    def _keep(self, key: str) -> None:
        """Keep what Numba has compiled for arguments of these types as a library, in the first folder that takes it."""
        if find_linker() is None:
            return
        signature = next((s for s in self.dispatcher.overloads if compiled_call_key(s) == key), None)
        for folder in _folders(self.py_func) if signature is not None else ():
            path = self._path(folder, key)
            mark = path.with_suffix(".no")
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if mark.exists() and (mark.read_text() == "none" or time.time() - mark.stat().st_mtime < PATIENCE):
                    return  # none can be made, or another process is making it
                mark.write_text("trying")
            except OSError:
                continue
            try:
                _forget_libraries(path)
                made = self.dispatcher.overloads[signature]
                if not has_code(made):  # Numba had kept it, without what a library is made from
                    made = _fresh(self, signature)
                if emit_library(made, path):
                    mark.unlink()
                else:
                    mark.write_text("none")
            except KeyboardInterrupt:
                mark.unlink(missing_ok=True)
                raise
            except Exception:  # Numba keeps it, too
                pass
            return


PATIENCE = 600.0
"""Seconds after which a process that began to make a library is taken to have died."""
OFTEN = 2000
"""Calls of a kernel in a process from which on Numba pays."""
INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
"""Kernels run as Python."""


def kernel(**options: Any) -> Callable[[Function], Function]:
    """Make a function a kernel; ``options`` are those of ``numba.njit``."""

    def make(function: Function) -> Function:
        made = Kernel(cast(FunctionType, function), options)
        KERNELS[f"{function.__module__}.{function.__qualname__}"] = made
        return cast(Function, made)

    return make


def part(*, inside: bool = True) -> Callable[[Function], Function]:
    """Make a function a part of kernels: compiled code of theirs, of which Python sees nothing.

    It allocates nothing. What it is compiled to is put ``inside`` each of its callers, which costs each of them the
    time to compile it, or is called. Called by Python, such as from a kernel that runs as it stands, it does, too.
    """

    def make(function: Function) -> Function:
        options = {**UNCOUNTED, "forceinline": inside, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        made = Kernel(cast(FunctionType, function), options, alone=False)
        KERNELS[f"{function.__module__}.{function.__qualname__}"] = made
        return cast(Function, made)

    return make


class NotKept(LookupError):
    """A kernel was called of which no machine code is kept, where none is to be made (`ONLY_KEPT`)."""


UNCOUNTED = {"_nrt": False}
"""Options of a kernel that allocates nothing: Numba need not count who uses its arrays. Counting takes several times as
long as the work where small functions hand each other named tuples of many arrays."""


def _folders(function: FunctionType) -> Iterator[Path]:
    """Where libraries of a kernel may be kept: as Numba does beside the module, or where its variable says."""
    here = Path(function.__code__.co_filename).resolve().parent
    named = os.environ.get("NUMBA_CACHE_DIR")
    place = hashlib.sha256(str(here).encode()).hexdigest()[:16]
    if named:
        yield Path(named) / f"{here.name}_{place}"
    else:
        yield here / "__pycache__"
        with contextlib.suppress(RuntimeError):  # there is no home
            yield Path.home() / ".cache" / PACKAGE / f"{here.name}_{place}"


def _forget_libraries(path: Path) -> None:
    """Remove the oldest libraries of the same kernel; what other checkouts keep lies elsewhere."""
    name = path.name.rpartition("-")[0]
    kept = sorted(path.parent.glob(f"{name}-*.loom.so"), key=lambda each: each.stat().st_mtime)
    for stale in kept[: max(len(kept) - KEPT, 0)]:
        stale.unlink(missing_ok=True)
        stale.with_suffix(".txt").unlink(missing_ok=True)


KEPT = 16
"""Libraries of one kernel that are kept: for types of arguments, processors, and the code of the last few changes."""


def _fresh(made_for: Kernel, signature: Any) -> Any:
    """What Numba makes of a kernel for a signature, compiled now."""
    from numba import njit

    dispatcher = njit(**made_for.options)(made_for.py_func)
    dispatcher.compile(signature)
    return dispatcher.overloads[signature]


def _compiled(made_for: Kernel) -> Any:
    if "numba" not in sys.modules:
        require_library("Numba")
    from numba import njit  # costs most of a second
    from numba.core import types
    from numba.extending import typeof_impl

    if Kernel not in typeof_impl.registry:
        typeof_impl.register(Kernel)(lambda value, context: types.Dispatcher(value.dispatcher))
    _announce()
    function, options = made_for.py_func, made_for.options
    try:
        made = njit(cache=True, **options)(function)
    except RuntimeError:  # there is nowhere to keep it
        made = njit(**options)(function)
    store = getattr(made, "_cache", None)
    if getattr(store, "_cache_file", None) is not None:
        _guard(store, made_for, repr(sorted(options.items())))
    return made


def _guard(store: Any, made_for: Kernel, options: str) -> None:
    """Let a kernel's cache know what the kernel is made of, and survive disks that are full and files that are not."""
    load, save, function = store.load_overload, store.save_overload, made_for.py_func

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

    def careful_key(signature: Any, codegen: Any) -> Any:
        # Numba's own key has a named tuple's name and types, not the order of its fields
        return *index_key(signature, codegen), compiled_call_key(signature)

    index_key = store._index_key
    store._index_key = careful_key
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
    if isinstance(value, Kernel):
        yield repr(sorted(value.options.items()))
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
        listening = contextlib.ExitStack()

        def on_start(self, event: Any) -> None:
            function = event.data["dispatcher"].py_func
            if self.depth == 0 and function.__module__.startswith(f"{PACKAGE}."):
                name = f"{function.__module__.removeprefix(f'{PACKAGE}.')}.{function.__name__}"
                require_library("the compiler of kernels")
                print(f"compiling {name}, once per installation ...", file=sys.stderr)
                self.listening.enter_context(compiling())
            self.depth += 1

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if self.depth == 0:
                self.listening.close()

    event.register("numba:compile", Announcer())  # type: ignore[no-untyped-call, unused-ignore]


__all__ = ["KERNELS", "UNCOUNTED", "Kernel", "kernel", "kernel_digest", "part"]
