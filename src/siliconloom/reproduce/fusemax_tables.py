"""The artifact's tables and the models in them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct

DATA = Path(__file__).parent / "data" / "fusemax"
BATCH = 64
LENGTHS = {"1K": 1 << 10, "4K": 1 << 12, "16K": 1 << 14, "64K": 1 << 16, "256K": 1 << 18, "1M": 1 << 20}
"""Sequence lengths of the tables; queries and keys are as many."""


class Model(Struct, frozen=True):
    """An encoder layer: width D, head width E (keys) = F (values), heads H, hidden width S of the feed-forward."""

    name: str
    width: int
    head_dim: int
    heads: int
    hidden: int


MODELS = (
    Model("BERT", 768, 64, 12, 3072),
    Model("TrXL", 1024, 64, 16, 4096),
    Model("T5", 512, 64, 8, 2048),
    Model("XLM", 2048, 128, 16, 8192),
)
"""BERT and T5 have rows in the tables; TrXL (Transformer-XL) and XLM belong to the published means."""


class Published(Struct, frozen=True):
    """A row of a table: seconds, bytes, and the shares of the latency that the arrays work (0 where not given)."""

    model: Model
    length_name: str
    length: int
    latency: float
    traffic: float
    util_2d: float
    util_1d: float


def published(name: str) -> Iterator[Published]:
    """Rows of a table, such as ``attn-flat``."""
    models = {model.name: model for model in MODELS}
    with (DATA / f"{name}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            yield Published(
                models[row["model"]],
                row["seq_len"],
                LENGTHS[row["seq_len"]],
                float(row["latency"]),
                float(row["traffic"]),
                float(row.get("util_2d") or 0),
                float(row.get("util_1d") or 0),
            )


class FlatMapping(Struct, frozen=True):
    """Where FLAT keeps its tensors: on chip or not; ``rows`` are the queries whose scores are held at a time."""

    q: bool
    k: bool
    scores: bool
    v: bool
    out: bool
    rows: int


@cache
def flat_mapping(head_dim: int, length: int) -> FlatMapping:
    """The mapping that FLAT's own search chose for a head width and a length."""
    names = {value: name for name, value in LENGTHS.items()}
    with (DATA / "flat-mappings.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if int(row["head_dim"]) == head_dim and row["seq_len"] == names[length]:
                held = {name: row[name] == "on" for name in ("q", "k", "scores", "v", "out")}
                return FlatMapping(**held, rows=length if row["rows"] == "all" else int(row["rows"]))
    raise KeyError((head_dim, length))
