"""Operator tables of one model on one GPU, as a serving engine's own profiler times them, read from a folder.

The folder has ``profile.yaml`` (what was timed, and where it comes from) and three tables, as CSV or gzipped, in
microseconds: ``dense`` (layer, tokens), what every new token passes through; ``per_sequence`` (layer, sequences), the
head and the sampler; ``attention`` (prefill_chunk, kv_prefill, n_decode, kv_decode), one call with a chunk of a prompt
behind cached tokens beside next tokens of so many requests of one length. A chunk of 0 is a call without one. These
are the columns of LLMServingSim's profiles (KAIST).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from pydantic import Field

from siliconloom.arch.document import Description, Document, Name
from siliconloom.arch.errors import LoomError
from siliconloom.baselines.cells import Cells, parse_cells, read_text
from siliconloom.baselines.tables import DATA

Float = NDArray[np.float64]
Int = NDArray[np.int64]

PROFILES = DATA / "profiles"
SUFFIXES = (".csv.gz", ".csv")
ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
MOST = 2**24
"""Most tokens or requests of a row."""
MICROSECONDS = 1e-6

Size = Annotated[int, Field(ge=1, le=2**24, strict=True)]


class ProfiledModel(Description):
    """What was timed: one GPU's part of a model, and the software that ran it.

    Parameters
    ----------
    gpu, tensor
        A GPU's name in the library, and how many of them share the model.
    products
        Columns of the result and length of the sums of each product of ``dense`` and ``per_sequence``, on one GPU.
    heads, kv_heads, head_dim
        Attention's, on one GPU.
    """

    kind: Literal["operator_profile"]
    name: Name
    title: str = Field(min_length=1)
    gpu: str = Field(min_length=1)
    tensor: Size = 1
    precision: Literal["bf16", "fp16"]
    software: str = Field(min_length=1)
    products: dict[str, tuple[Size, Size]] = Field(min_length=1)
    heads: Size
    kv_heads: Size
    head_dim: Size
    source: str = Field(min_length=1)
    commit: str = ""
    licence: str = ""
    licence_file: str | None = None
    changes: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()


class AttentionSlice(Struct, frozen=True):
    """Attention beside one chunk: seconds by requests (ascending) and by their length (ascending)."""

    counts: Int
    contexts: Int
    seconds: Float


class OperatorProfile(Struct, frozen=True):
    """Tables of a profile, in seconds.

    Parameters
    ----------
    dense, per_sequence
        By layer: numbers of tokens (of sequences), ascending, and seconds of each.
    attention
        By chunk, and by the tokens before it.
    """

    folder: Path
    described: ProfiledModel
    dense: dict[str, tuple[Int, Float]]
    per_sequence: dict[str, tuple[Int, Float]]
    attention: dict[int, dict[int, AttentionSlice]]


def profile_names() -> list[str]:
    """Profiles that come with the package, sorted."""
    return sorted(path.parent.name for path in PROFILES.glob("*/profile.yaml"))


@lru_cache(maxsize=32)
def describe_profile(folder: Path) -> ProfiledModel:
    """What a folder's profile is of; raises `LoomError`."""
    if not (folder / "profile.yaml").is_file():
        raise LoomError(
            f"{folder}: no profile.yaml there; a profile is a folder of profile.yaml, dense.csv, attention.csv and "
            "per_sequence.csv"
        )
    document = Document.load(folder / "profile.yaml")
    document.expect_kind(["operator_profile"])
    return document.validate(ProfiledModel)


@lru_cache(maxsize=8)
def load_profile(folder: Path) -> OperatorProfile:
    """All of a folder's tables.

    Raises
    ------
    LoomError
        With file, line and column, for what is missing, no positive time, given twice, or no grid.
    """
    described = describe_profile(folder)
    dense = _by_layer(_cells(folder, "dense", ("layer", "tokens", "time_us")), "tokens")
    per_sequence = _by_layer(_cells(folder, "per_sequence", ("layer", "sequences", "time_us")), "sequences")
    attention = _slices(_cells(folder, "attention", (*ATTENTION, "time_us")))
    return OperatorProfile(folder, described, dense, per_sequence, attention)


def _cells(folder: Path, name: str, columns: tuple[str, ...]) -> Cells:
    path = next((folder / f"{name}{suffix}" for suffix in SUFFIXES if (folder / f"{name}{suffix}").is_file()), None)
    if path is None:
        raise LoomError(f"{folder / name}.csv: no such file; a profile has dense, per_sequence and attention")
    source, text = read_text(path)
    cells = parse_cells(source, text, columns, columns)
    for column in columns:
        if "" in cells.columns[column]:
            raise cells.error("must not be empty", cells.columns[column].index(""), column)
    return cells


def _by_layer(cells: Cells, column: str) -> dict[str, tuple[Int, Float]]:
    sizes, seconds = cells.integers(column, _one_or_more, 0), cells.reals("time_us", _time, 0.0)
    layers = np.array(cells.columns["layer"])
    found: dict[str, tuple[Int, Float]] = {}
    for layer in sorted(set(cells.columns["layer"])):
        rows = np.flatnonzero(layers == layer)
        rows = rows[np.argsort(sizes[rows], kind="stable")]
        for row in rows[1:][np.diff(sizes[rows]) == 0][:1].tolist():
            raise cells.error(f"stands twice for {layer}", row, column, value=int(sizes[row]))
        found[layer] = sizes[rows], seconds[rows]
    return found


def _slices(cells: Cells) -> dict[int, dict[int, AttentionSlice]]:
    """Grids of the rows of each chunk; of a chunk behind so many tokens that was timed alone nothing is kept.

    Where next tokens were timed beside a chunk, the chunk alone is the row and column 0 of its grid.
    """
    sizes = np.stack([cells.integers(column, _none_or_more, 0) for column in ATTENTION])
    seconds = cells.reals("time_us", _time, 0.0)
    order = np.lexsort(sizes[::-1])
    sizes, seconds = sizes[:, order], seconds[order]
    for at in (np.flatnonzero(~np.diff(sizes, axis=1).any(axis=0)) + 1)[:1].tolist():
        raise cells.error("these four numbers stand twice", int(order[at]), ATTENTION[0])
    bounds = np.flatnonzero(np.diff(sizes[:2], axis=1).any(axis=0)) + 1
    found: dict[int, dict[int, AttentionSlice]] = {}
    for rows in np.split(np.arange(len(seconds)), bounds):
        chunk, known = (int(v) for v in sizes[:2, rows[0]])
        if len(rows) == 1 and chunk:
            continue
        counts, at = np.unique(sizes[2, rows], return_inverse=True)
        contexts, by = np.unique(sizes[3, rows], return_inverse=True)
        grid = np.full((len(counts), len(contexts)), np.nan)
        grid[at, by] = seconds[rows]
        if chunk and counts[0] == contexts[0] == 0:
            grid[0, :], grid[:, 0] = grid[0, 0], grid[0, 0]
        alone = chunk > 0 and not counts[0] == contexts[0] == 0
        if alone or np.isnan(grid).any() or len(counts) < 2 or len(contexts) < 2 or (not chunk and counts[0] < 1):
            rule = f"rows of a chunk of {chunk} behind {known} tokens are no grid of n_decode and kv_decode"
            raise cells.error(f"{rule}, with the chunk alone at 0 and 0", int(order[rows[0]]), ATTENTION[0])
        found.setdefault(chunk, {})[known] = AttentionSlice(counts, contexts, grid)
    for chunk, missing in ((0, "calls without a chunk"), (1, "chunks")):
        if not any(min(c, 1) == chunk for c in found):
            raise cells.error(f"the table has no {missing}", 0, ATTENTION[0])
    return found


def _time(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number of microseconds") from None
    if not 0 < value < 1e9:
        raise ValueError("must be a positive number of microseconds")
    return value * MICROSECONDS


def _none_or_more(text: str) -> int:
    if not text.isdecimal() or len(text) > len(str(MOST)) or int(text) > MOST:
        raise ValueError(f"must be a whole number from 0 to {MOST:,}")
    return int(text)


def _one_or_more(text: str) -> int:
    value = _none_or_more(text)
    if not value:
        raise ValueError(f"must be a whole number from 1 to {MOST:,}")
    return value


__all__ = [
    "PROFILES",
    "AttentionSlice",
    "OperatorProfile",
    "ProfiledModel",
    "describe_profile",
    "load_profile",
    "profile_names",
]
