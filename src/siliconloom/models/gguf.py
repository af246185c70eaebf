"""Reads GGUF: metadata and tensors of a model in one file, little endian, versions 2 and 3.

The format is that of ggml's ``docs/gguf.md``. Tensors are read when they are asked for.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_DIMENSIONS = 4
MOST_DEPTH = 2
"""Arrays in arrays, at most."""
ALIGNMENT = 32
"""Bytes that tensors begin at multiples of, where ``general.alignment`` says nothing."""


class TensorFormat(NamedTuple):
    """How numbers of a tensor are stored: so many to a block, and bytes of a block."""

    name: str
    values: int
    size: int


FORMATS = {
    0: TensorFormat("F32", 1, 4),
    1: TensorFormat("F16", 1, 2),
    2: TensorFormat("Q4_0", 32, 18),
    3: TensorFormat("Q4_1", 32, 20),
    6: TensorFormat("Q5_0", 32, 22),
    7: TensorFormat("Q5_1", 32, 24),
    8: TensorFormat("Q8_0", 32, 34),
    10: TensorFormat("Q2_K", 256, 84),
    11: TensorFormat("Q3_K", 256, 110),
    12: TensorFormat("Q4_K", 256, 144),
    13: TensorFormat("Q5_K", 256, 176),
    14: TensorFormat("Q6_K", 256, 210),
    20: TensorFormat("IQ4_NL", 32, 18),
    23: TensorFormat("IQ4_XS", 256, 136),
    28: TensorFormat("F64", 1, 8),
    30: TensorFormat("BF16", 1, 2),
}
"""By the number that a file has for them."""
PLAIN = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2"}
"""Formats that are numbers as they stand; bfloat16 is the upper half of a float32."""
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class GgufTensor(Struct, frozen=True):
    """A tensor in a file; its shape has the dimension that is contiguous last, as in NumPy."""

    name: str
    shape: tuple[int, ...]
    format: TensorFormat
    read: Callable[[], NDArray[Any]]


class GgufFile(Struct, frozen=True):
    """Metadata by key, and tensors by name."""

    path: str
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def is_gguf(path: str | Path) -> bool:
    """Whether a file is called, or begins, as a GGUF file does; of a pipe nothing is read."""
    if not Path(path).is_file():
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC or str(path).endswith(".gguf")
    except OSError:
        return False


def read_gguf(path: str | Path) -> GgufFile:
    """Metadata of a GGUF file, and where its tensors lie.

    Raises
    ------
    LoomError
        When it cannot be read, is damaged, or has tensors in a format that is not known.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise LoomError(f"{path}: {error.strerror or error}") from None
    return _read(str(path), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=2)
def _read(path: str, changed: int, size: int) -> GgufFile:
    """A file as it was last changed: its tokens alone are a tenth of a second's reading."""
    del changed
    try:
        with open(path, "rb") as file:
            held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        reason = getattr(error, "strerror", None) or f"it has {size} B"
        raise LoomError(f"{path}: no GGUF file that can be read: {reason}") from None
    return _Reader(path, held).file()


class _Reader:
    """A file in the reading."""

    def __init__(self, path: str, held: mmap.mmap) -> None:
        self.path, self.held, self.at = path, held, 0

    def file(self) -> GgufFile:
        if self._bytes(len(MAGIC)) != MAGIC:
            raise LoomError(f"{self.path}: no GGUF file: it begins with other bytes than 'GGUF'")
        version = self._scalar("I")
        if version not in VERSIONS:
            raise LoomError(f"{self.path}: GGUF of version {version}; versions 2 and 3 in little endian are read")
        count, keys = self._scalar("Q"), self._scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(self._sane(keys, 12)):
            key = self._string()
            if key in metadata:
                raise self._unsound(f"it has {key} twice")
            metadata[key] = self._value(self._scalar("I"))
        entries = [self._entry() for _ in range(self._sane(count, 24))]
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment % 8:
            raise self._unsound(f"general.alignment must be a multiple of 8 (got {alignment!r})")
        start = -(-self.at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in entries:
            if name in tensors:
                raise self._unsound(f"it has the tensor {name} twice")
            tensors[name] = self._tensor(name, shape, kind, start + offset)
        return GgufFile(self.path, metadata, tensors)

    def _unsound(self, why: str) -> LoomError:
        return LoomError(f"{self.path}: no sound GGUF file: {why}")

    def _sane(self, count: int, each: int) -> int:
        """A number of things that take at least ``each`` bytes."""
        if count * each > len(self.held) - self.at:
            raise self._unsound(f"it says that {count:,} entries follow byte {self.at:,}, and has {len(self.held):,} B")
        return count

    def _bytes(self, count: int) -> bytes:
        if count > len(self.held) - self.at:
            raise self._unsound(f"it ends at byte {len(self.held):,}, within its metadata")
        found = self.held[self.at : self.at + count]
        self.at += count
        return found

    def _scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self._bytes(struct.calcsize("<" + code)))[0]

    def _string(self) -> str:
        found = self._bytes(self._scalar("Q"))
        try:
            return found.decode("utf-8")
        except UnicodeDecodeError:
            raise self._unsound(f"the text before byte {self.at:,} is not UTF-8") from None

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self._scalar(SCALARS[kind])
        if kind == STRING:
            return self._string()
        if kind != ARRAY or depth == MOST_DEPTH:
            raise self._unsound(f"a value before byte {self.at:,} is of the unknown kind {kind}")
        inner, count = self._scalar("I"), self._scalar("Q")
        if inner in SCALARS:
            code = f"<{self._sane(count, struct.calcsize(SCALARS[inner]))}{SCALARS[inner]}"
            return list(struct.unpack(code, self._bytes(struct.calcsize(code))))
        return [self._value(inner, depth + 1) for _ in range(self._sane(count, 8))]

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._string(), self._scalar("I")
        if dimensions > MOST_DIMENSIONS:
            raise self._unsound(f"{name} has {dimensions} dimensions, at most {MOST_DIMENSIONS}")
        shape = tuple(self._scalar("Q") for _ in range(dimensions))
        return name, shape[::-1], self._scalar("I"), self._scalar("Q")

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> GgufTensor:
        found = FORMATS.get(kind)
        if found is None:
            known = ", ".join(each.name for each in FORMATS.values())
            raise LoomError(f"{self.path}: {name} is stored in format number {kind}; those that are read: {known}")
        count = 1
        for extent in shape:
            count *= extent
        if count % found.values or (shape and shape[-1] % found.values):
            raise self._unsound(f"{name} in {found.name} has rows of {shape[-1]}, no multiple of {found.values}")
        size = count // found.values * found.size
        if start + size > len(self.held):
            rule = f"{name} takes {size:,} B from byte {start:,} on, and the file has {len(self.held):,} B"
            raise self._unsound(rule)

        def read() -> NDArray[Any]:
            raw = np.frombuffer(self.held, np.uint8, size, start)
            return dequantized(raw, kind, shape)

        return GgufTensor(name, shape, found, read)


def dequantized(raw: NDArray[np.uint8], kind: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Numbers of a tensor from its bytes; those in blocks as float32."""
    form = FORMATS[kind]
    if form.name in PLAIN:
        plain = raw.view(PLAIN[form.name]).reshape(shape)
        return (plain.astype(np.uint32) << 16).view(np.float32) if form.name == "BF16" else plain
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError:
        raise missing("gguf", f"numbers in {form.name}") from None
    rows = raw.reshape(-1, shape[-1] // form.values * form.size)
    with np.errstate(all="ignore"):  # what is no number is named by whoever takes it
        return np.asarray(quants.dequantize(rows, GGMLQuantizationType(kind)), np.float32).reshape(shape)


def missing(package: str, what: str, extra: str = "models") -> LoomError:
    """Make the error for a package of an extra that is not installed."""
    return LoomError(f"{what} need the package {package}: pip install 'siliconloom[{extra}]'")


__all__ = ["FORMATS", "GgufFile", "GgufTensor", "dequantized", "is_gguf", "missing", "read_gguf"]
