"""Machine code of kernels as shared libraries, which run without Numba.

Importing Numba and letting it register what it knows takes half a second, the machine code itself a millisecond. So
what Numba has compiled is also kept as a shared library (LLVM's code, linked by the system's linker), and later
processes call it through `ctypes` by Numba's calling convention: the place of the result, the place of an exception,
then every argument with arrays, tuples and named tuples flattened. Where there is no linker, or a kernel does what
such a library cannot (raise, allocate, return arrays), there is none, and Numba's own cache serves as before.

Only processors with the same instructions may use a library: their flags are part of its name.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

SCALARS: dict[str, Any] = {
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "int32": ctypes.c_int32,
    "uint8": ctypes.c_uint8,
    "float64": ctypes.c_double,
    "bool": ctypes.c_uint8,
}
"""Scalars that are passed, and the C types that they are passed as."""
ELEMENTS = frozenset({*SCALARS, "float32", "int8", "int16", "uint16", "uint32"})
"""Elements of arrays that are passed: of an array only its place and its shape are."""
DTYPES = {np.dtype(name).char: name for name in ELEMENTS}
"""Names of elements by NumPy's code for them: a dtype makes its name anew each time that it is asked."""
LINKERS = ("cc", "gcc", "clang")
RELEASE = """
declare void @free(ptr)

define void @NRT_MemInfo_call_dtor(ptr %info) {
  call void @free(ptr %info)
  ret void
}
"""
"""Called for memory whose count falls to zero: a kernel's own, as arrays of NumPy's come without a count."""
ALLOCATION = """
declare ptr @malloc(i64)

define ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align) {
begin:
  %step = zext i32 %align to i64
  %front = add i64 %step, 48
  %room = add i64 %front, %size
  %info = call ptr @malloc(i64 %room)
  %none = icmp eq ptr %info, null
  br i1 %none, label %done, label %fill
fill:
  store i64 1, ptr %info
  %behind = getelementptr i8, ptr %info, i64 %front
  %place = ptrtoint ptr %behind to i64
  %mask = sub i64 0, %step
  %aligned = and i64 %place, %mask
  %data = inttoptr i64 %aligned to ptr
  %held = getelementptr i8, ptr %info, i64 24
  store ptr %data, ptr %held
  br label %done
done:
  ret ptr %info
}
"""
"""Memory for a kernel's own arrays, behind a record of its count and its place."""
RECORD = ("i64", "i8*", "i8*", "i8*", "i64")
"""Fields of such a record as Numba lays it out, the memory's place the fourth of eight bytes."""
NOTHING = 0, -2
"""Return codes of a call without exception; the second returned ``None``."""


class FixedArgument:
    """An argument that is passed again and again: its type, and the numbers that it is passed as, are found once.

    Its arrays must stay those that they are; what they hold may change.
    """

    def __init__(self, value: Any) -> None:
        self.value, self.key, self.flat = value, type_key(value), list[Any]()
        _plain(value, self.flat)

    @staticmethod
    def plain(argument: Any) -> Any:
        """The argument itself, whether it is prepared or not."""
        return argument.value if isinstance(argument, FixedArgument) else argument


def type_key(value: Any) -> str | None:
    """The type of an argument as text, such as ``A int64 2 C``; ``None`` for one that cannot be passed."""
    if isinstance(value, FixedArgument):
        return value.key
    if isinstance(value, np.ndarray):
        flags, dtype = value.flags, value.dtype
        if not flags.aligned or not dtype.isnative:
            return None
        order = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        return _array_key(DTYPES.get(dtype.char) or dtype.name, value.ndim, order, flags.writeable)
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, int):
        return "int64" if -(2**63) <= value < 2**63 else None
    if isinstance(value, float):  # also numpy's float64
        return "float64"
    if isinstance(value, np.generic):
        return value.dtype.name if value.dtype.name in SCALARS else None
    if isinstance(value, tuple):
        return _tuple_key(_named(type(value)), map(type_key, value))
    return None


@cache
def _array_key(dtype: str, dimensions: int, order: str, writeable: bool) -> str | None:
    if dtype not in ELEMENTS:
        return None
    return f"A{'' if writeable else ' const'} {dtype} {dimensions} {order}"


@cache
def _named(kind: type) -> str:
    """A class of named tuples with its fields, of which machine code knows only the places; a plain tuple has none."""
    fields: tuple[str, ...] = getattr(kind, "_fields", ())
    return f"{kind.__name__}[{' '.join(fields)}]" if fields else ""


def _tuple_key(name: str, members: Iterable[str | None]) -> str | None:
    found = list(members)
    if any(each is None for each in found):
        return None
    return f"{name}({', '.join(each for each in found if each)})"


def compiled_key(kind: Any) -> str | None:
    """`type_key` of the values that have a type of Numba's."""
    from numba.core import types

    if isinstance(kind, types.Array):
        if not kind.aligned:
            return None
        dtype = str(kind.dtype)
        return _array_key("bool" if dtype == "boolean" else dtype, kind.ndim, kind.layout, kind.mutable)
    if isinstance(kind, types.Boolean):
        return "bool"
    if isinstance(kind, types.NamedTuple | types.NamedUniTuple):
        return _tuple_key(_named(kind.instance_class), map(compiled_key, kind.types))
    if isinstance(kind, types.Tuple | types.UniTuple):
        return _tuple_key("", map(compiled_key, kind.types))
    return str(kind) if str(kind) in SCALARS else None


def call_key(arguments: tuple[Any, ...]) -> str | None:
    """The types of a call's arguments as text."""
    return _tuple_key("", map(type_key, arguments))


def compiled_call_key(signature: Any) -> str | None:
    """`call_key` of the calls that have a signature of Numba's."""
    return _tuple_key("", map(compiled_key, getattr(signature, "args", signature)))


def library_path(folder: Path, name: str, key: str, digest: str) -> Path:
    """Where the library of a kernel called with such arguments is kept, if it is fresh."""
    text = f"{key} {digest} {processor()}"
    return folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:24]}.loom.so"


@cache
def processor() -> str:
    """What tells processors apart that cannot run each other's code."""
    flags = ""
    with contextlib.suppress(OSError):
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
    return f"{platform.system()} {platform.machine()} {flags}"


def find_linker() -> str | None:
    """The program that links libraries here; ``None`` where there is none, or on another system than Linux."""
    if platform.system() != "Linux":
        return None
    return next((found for found in map(shutil.which, LINKERS) if found), None)


def has_code(compiled: Any) -> bool:
    """Tell whether a ``CompileResult`` of Numba's holds the code that it was made from: not after its cache."""
    return not getattr(compiled.library, "_disable_inspection", True)


def emit_library(compiled: Any, path: Path) -> bool:
    """Write what Numba has just compiled as a shared library; false when none can be made of it.

    Parameters
    ----------
    compiled
        Numba's ``CompileResult``, not one that was loaded from its cache.
    path
        The file to write, which appears whole or not at all. Beside it stand the function's name, the type of its
        result and the file's SHA-256.

    Raises
    ------
    OSError, subprocess.CalledProcessError
        When it could not be written or linked this time.
    """
    linker = find_linker()
    result = _result_key(compiled.signature.return_type)
    if linker is None or result is None:
        return False
    from llvmlite import binding

    name = compiled.fndesc.llvm_func_name
    module = binding.parse_assembly(compiled.library.get_llvm_str())
    if module.get_function(name).is_declaration:
        return False
    module.link_in(binding.parse_assembly(RELEASE))
    if _has_our_records():
        module.link_in(binding.parse_assembly(ALLOCATION))
    for function in module.functions:
        if not function.is_declaration and function.name != name:
            function.linkage = "internal"
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        reloc="pic",
        codemodel="small",
    )
    # once more: now that nothing but the kernel is called from outside, its parts may be put into it
    options = binding.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    runtime = [f.name for f in module.functions if f.is_declaration and f.name.startswith(("NRT_", "Py", "numba_"))]
    if runtime:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".loom-", dir=path.parent) as work:
        made = Path(work) / "kernel.so"
        (Path(work) / "kernel.o").write_bytes(machine.emit_object(module))
        command = [linker, "-shared", "-o", str(made), str(Path(work) / "kernel.o"), "-lm"]
        subprocess.run(command, capture_output=True, check=True)
        digest = hashlib.sha256(made.read_bytes()).hexdigest()
        (Path(work) / "kernel.txt").write_text(f"{name}\n{result}\n{digest}\n", encoding="utf-8")
        os.replace(Path(work) / "kernel.txt", path.with_suffix(".txt"))
        os.replace(made, path)
    return True


def _has_our_records() -> bool:
    """Whether this Numba lays out records of memory as `ALLOCATION` does."""
    from numba.core.runtime.nrtdynmod import _meminfo_struct_type

    return tuple(map(str, _meminfo_struct_type.elements)) == RECORD


def _result_key(kind: Any) -> str | None:
    """A scalar, a flat tuple of scalars, or nothing."""
    if str(kind) == "none":
        return "none"
    key = compiled_key(kind)
    return None if key is None or "A" in key or key.count("(") > 1 else key


def load_library(path: Path) -> Callable[..., Any] | None:
    """The kernel of a library, to be called with arguments of the types that it was made for; ``None`` without one."""
    try:
        name, result, digest = path.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            return None  # damaged: running it would end the process
        function = getattr(ctypes.CDLL(str(path)), name)
    except (OSError, ValueError, AttributeError):
        return None
    return _caller(function, result)


def _caller(function: Any, result: str) -> Callable[..., Any]:
    function.restype = ctypes.c_int32
    members = [SCALARS[each] for each in result.strip("()").split(", ")] if result != "none" else []
    place = type("Result", (ctypes.Structure,), {"_fields_": [(f"_{i}", each) for i, each in enumerate(members)]})
    truths = [each == "bool" for each in result.strip("()").split(", ")]

    def call(*arguments: Any) -> Any:
        out, fault = place(), ctypes.c_void_p()
        flat = list[Any]()
        if not function.argtypes:  # the same for every call: a library is made for arguments of these types
            typed = [type(each) for argument in arguments for each in _flatten(FixedArgument.plain(argument))]
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *typed]
        for argument in arguments:
            _plain(argument, flat)
        status = function(ctypes.byref(out), ctypes.byref(fault), *flat)
        if status not in NOTHING:
            raise AssertionError(f"a kernel ended with status {status}: a bug")
        if not members:
            return None
        values = tuple(
            bool(getattr(out, f"_{i}")) if truth else getattr(out, f"_{i}") for i, truth in enumerate(truths)
        )
        return values if result.startswith("(") else values[0]

    return call


def _plain(value: Any, flat: list[Any]) -> None:
    """As `_flatten`, in Python's own numbers: to be converted to types that are known."""
    if isinstance(value, np.ndarray):
        flat += (None, None, value.size, value.itemsize, value.__array_interface__["data"][0])
        flat += value.shape
        flat += value.strides
    elif isinstance(value, tuple):
        for each in value:
            _plain(each, flat)
    elif isinstance(value, FixedArgument):
        flat += value.flat
    else:
        flat.append(value.item() if isinstance(value, np.generic) else value)


def _flatten(value: Any) -> Iterator[Any]:
    """An argument as Numba passes it: of an array its owner (none), items, bytes of one, data, shape and strides."""
    if isinstance(value, np.ndarray):
        yield ctypes.c_void_p(0)
        yield ctypes.c_void_p(0)
        yield ctypes.c_int64(value.size)
        yield ctypes.c_int64(value.itemsize)
        yield ctypes.c_void_p(value.__array_interface__["data"][0])
        for extent in value.shape + value.strides:
            yield ctypes.c_int64(extent)
    elif isinstance(value, tuple):
        for each in value:
            yield from _flatten(each)
    elif isinstance(value, bool | np.bool_):
        yield ctypes.c_uint8(bool(value))
    elif isinstance(value, float):
        yield ctypes.c_double(value)
    elif isinstance(value, np.generic):
        yield SCALARS[value.dtype.name](value.item())
    else:
        yield ctypes.c_int64(value)


__all__ = [
    "FixedArgument",
    "call_key",
    "compiled_call_key",
    "emit_library",
    "find_linker",
    "has_code",
    "library_path",
    "load_library",
]
