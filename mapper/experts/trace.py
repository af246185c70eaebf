"""Reads a trace of routing: which experts every token of a sample used, in every layer."""

from __future__ import annotations

import hashlib
import io
import math
import re
from array import array

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.budget import require_memory
from siliconloom.arch.errors import DescriptionError, LoomError, Position
from siliconloom.arch.inputs import TABLE_BYTES, decoded, read_bytes, source_name
from siliconloom.mapper.experts.routing import loads_of

MAGIC = b"\x93NUMPY"
"""Bytes that a file of NumPy's begins with."""
CELL_BYTES = 24
"""That a number takes while it is read and looked at."""
LINE_BYTES = 80
"""That a line takes besides its text."""
_LINE = re.compile(r"\s*\d{1,9}(?:(?:\s*,\s*|\s+)\d{1,9})*\s*", re.ASCII)
_CELL = re.compile(r"[^\s,]+")


class ModelRouting(Struct, frozen=True):
    """What a trace must be of.

    Parameters
    ----------
    layers
        Layers that have experts.
    chosen
        Experts of a token in each.
    """

    name: str
    layers: int
    experts: int
    chosen: int

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return self.layers * self.chosen

    @property
    def text(self) -> str:
        each = "1 expert" if self.chosen == 1 else f"{self.chosen} experts"
        return f"{self.layers} layer{'s' * (self.layers > 1)} with {each} of a token"


class RoutingTrace(Struct, frozen=True, eq=False):
    """Experts of every token.

    Parameters
    ----------
    source
        Name of the file.
    digest
        SHA-256 of its bytes, unpacked.
    tokens
        How many there are.
    loads
        [layers, experts]: tokens of each expert, of one token on average.
    """

    source: str
    digest: str
    tokens: int
    loads: NDArray[np.float64]


def read_trace(path: str, model: ModelRouting) -> RoutingTrace:
    """Read a trace of a model from a file.

    A ``.npy`` file has integers [tokens, layers, experts of a token], or [tokens, numbers of a token]; a text file has
    a line for each token, its numbers between commas or blanks. A token's numbers go layer by layer, the experts of a
    layer side by side. Blank lines are passed over. Either may be packed (``.gz``).

    Raises
    ------
    LoomError
        When it cannot be read, is of another model, has a number that is no expert's or an expert twice in a layer.
    """
    raw = read_bytes(path, TABLE_BYTES, "trace of routing")
    source = source_name(path)
    lines: NDArray[np.int64] | None = None
    if raw.startswith(MAGIC):
        picks = _from_numpy(source, raw, model)
    elif source.removesuffix(".gz").endswith(".npy"):
        raise LoomError(f"{source}: is no .npy file; text has another name")
    else:
        picks, lines = _from_text(source, decoded(path, raw), model)
    _check(source, picks, lines, model)
    digest = hashlib.sha256(raw).hexdigest()
    return RoutingTrace(source, digest, len(picks), loads_of(picks, model.experts))


def _from_numpy(source: str, raw: bytes, model: ModelRouting) -> NDArray[np.int64]:
    """Numbers of a ``.npy`` file, whose header is not believed before the file is as long as it says."""
    file = io.BytesIO(raw)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, SyntaxError, TypeError, KeyError, EOFError, MemoryError, RecursionError) as error:
        raise LoomError(f"{source}: is no .npy file that can be read ({error})") from None
    said = " x ".join(map(str, shape)) or "a single number"
    if dtype.kind not in "iu":
        raise LoomError(f"{source}: must be integers, the numbers of experts (got {dtype})")
    if not shape or not all(shape):
        raise LoomError(f"{source}: the trace is empty ({said})")
    if shape[1:] not in ((model.layers, model.chosen), (model.width,)):
        flat = f" (or {model.width} numbers)" if model.chosen > 1 else ""
        raise LoomError(f"{source}: has {said} numbers; a token of {model.name} has {model.text}{flat}")
    count, start = math.prod(shape), file.tell()
    if len(raw) - start != count * dtype.itemsize:
        raise LoomError(f"{source}: has {len(raw) - start} bytes of numbers, {said} of {dtype} are not that many")
    require_memory(f"{source}: {count:,} numbers", count * CELL_BYTES, "a shorter trace needs less")
    found = np.frombuffer(raw, dtype, count, start).reshape(shape, order="F" if fortran else "C")
    if dtype.kind == "u":  # those beyond int64, too
        found = np.minimum(found, model.experts)
    return np.ascontiguousarray(found, np.int64).reshape(shape[0], model.layers, model.chosen)


def _from_text(source: str, text: str, model: ModelRouting) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of a text file, and the line of each token."""
    estimate = 2 * len(text) + text.count("\n") * LINE_BYTES + len(text) // 2 * CELL_BYTES
    require_memory(f"{source}: {len(text):,} characters", estimate, "a shorter trace needs less, and .npy half as much")
    values, lines = array("q"), array("q")
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.isspace():
            continue
        if _LINE.fullmatch(line) is None:
            for cell in _CELL.finditer(line):
                if not re.fullmatch(r"\d{1,9}", cell.group(), re.ASCII):
                    at = Position(source, number, cell.start() + 1)
                    raise DescriptionError("must be the number of an expert", position=at, value=cell.group())
            raise DescriptionError("has a comma without a number beside it", position=Position(source, number, 1))
        row = list(map(int, line.replace(",", " ").split()))
        if len(row) != model.width:
            rule = f"has {len(row)} numbers, a token of {model.name} has {model.width}: {model.text}"
            raise DescriptionError(rule, position=Position(source, number, 1))
        values.extend(row)
        lines.append(number)
    if not lines:
        raise LoomError(f"{source}: the trace is empty: a line for each token")
    picks = np.frombuffer(values, np.int64).reshape(-1, model.layers, model.chosen)
    return picks, np.frombuffer(lines, np.int64)


def _check(source: str, picks: NDArray[np.int64], lines: NDArray[np.int64] | None, model: ModelRouting) -> None:
    """Every number is an expert's, and no layer of a token has one twice."""
    wrong = (picks < 0) | (picks >= model.experts)
    if wrong.any():
        at = _first(wrong)
        got = f"must be an expert of {model.name}, from 0 to {model.experts - 1}"
        raise _error(source, lines, at, got, int(picks[at]))
    if model.chosen > 1:
        ordered = np.sort(picks, axis=2)
        twice = ordered[:, :, 1:] == ordered[:, :, :-1]
        if twice.any():
            at = _first(twice)
            raise _error(source, lines, at, "a token uses an expert of a layer once", int(ordered[at]))


def _first(wrong: NDArray[np.bool_]) -> tuple[int, int, int]:
    token, layer, each = np.unravel_index(int(wrong.argmax()), wrong.shape)
    return int(token), int(layer), int(each)


def _error(
    source: str, lines: NDArray[np.int64] | None, at: tuple[int, int, int], rule: str, value: int
) -> DescriptionError:
    token, layer, _ = at
    if lines is None:
        return DescriptionError(rule, position=Position(source), path=f"[{token}, {layer}]", value=value)
    return DescriptionError(rule, position=Position(source, int(lines[token]), 1), path=f"layer {layer}", value=value)


__all__ = ["ModelRouting", "RoutingTrace", "read_trace"]
