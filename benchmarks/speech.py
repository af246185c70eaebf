"""How near a trained model comes to float32 in every format of a tile: greedy text, and perplexity.

Run ``python -m benchmarks.speech [--tokens 1000] [--format bf16 ...] [--write]`` after ``loom models get smollm2-135m``;
all of it takes about a quarter of an hour on one core. What is run are the exact readings of the graph, to which `loom run`
compares the golden model's programs logit by logit. The text is the first chapter of Pride and Prejudice (Jane Austen,
1813; in the public domain).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from siliconloom.arch import load_chip
from siliconloom.arch.tile import NpuTile
from siliconloom.execution.constants import constants_of
from siliconloom.execution.encoding import encoding_of
from siliconloom.execution.files import FileWeights
from siliconloom.execution.floats import FloatReading
from siliconloom.execution.generation import head_of
from siliconloom.execution.integers import IntegerReading
from siliconloom.execution.quantize import Quantizer
from siliconloom.execution.reference import Reference
from siliconloom.execution.run import parameters_of
from siliconloom.execution.walk import At, GraphWalk
from siliconloom.mapper.chip.mapping import fit_precision
from siliconloom.models.chat import asked_text
from siliconloom.models.source import needed_source
from siliconloom.models.tokenizer import tokenizer_of
from siliconloom.render.tables import table
from siliconloom.workloads import Gemm, load_workload

MODEL = "smollm2-135m"
SHORT = ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8")
"""Formats of elements and operands alike."""
KEPT = {f"bf16, elements fp32, keys and values {dtype}": dtype for dtype in ("fp8_e4m3", "int8", "int4")}
MIXED = {
    f"{precision}, elements fp32": (chip, [("precision", precision)])
    for chip, precision in (
        ("npu-edge", "bf16"),
        ("npu-edge", "w8a16"),
        ("npu-edge", "w4a16"),
        ("npu-edge-mx", "mxfp8_e4m3"),
        ("npu-edge-mx", "mxfp8_e5m2"),
        ("npu-edge-mx", "mxfp4"),
        ("npu-edge-w8a8", "w16a16"),
        ("npu-edge-w8a8", "w8a8"),
        ("npu-edge-w8a8", "w4a4"),
        ("npu-edge-w8a8", "fp8_e4m3"),
        ("npu-edge-w8a8", "fp8_e5m2"),
        ("npu-edge-w4a8", "w4a8"),
    )
}
MIXED |= {name: ("npu-edge", [("precision", "bf16"), ("cache_precision", dtype)]) for name, dtype in KEPT.items()}
"""Chips and precisions of arrays in short formats between elements in fp32, by what they are called."""
OPERANDS = {"w16a16": "int16", "w4a4": "int4", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
"""Operands of the array of a chip that has others, by precision."""
FORMATS = (*MIXED, *SHORT)
PROMPTS = (
    "What is the capital of France?",
    "Name three primary colors.",
    "Write one sentence about the sea.",
    "How many legs does a spider have?",
    "What do plants need to grow?",
)
ANSWER = 12
"""Tokens of an answer that are compared."""
TEXT = Path(__file__).parent / "texts" / "pride-and-prejudice.txt"
RESULTS = Path(__file__).parent / "results" / "speech.json"
ROWS = 64
"""Rows of logits at a time."""


class Reader:
    """A graph read in some numbers, token by token or a text at a time."""

    def __init__(self, walk: GraphWalk, reading: Any, scale: Any = None, encoding: Any = None) -> None:
        self.walk, self.reading, self.scale, self.encoding = walk, reading, scale, encoding
        self.head = head_of(walk.graph)
        (self.maker,) = walk.graph.dataflow.predecessors(self.head.name)
        keep, wanted = reading.keep, {self.head.name, self.maker}

        def lean(at: At, value: Any) -> None:  # of all layers' results no text is left in memory
            if isinstance(reading, Reference) or at.name in wanted:
                keep(at, value)

        reading.keep = lean
        self.cache: Any = {}

    def next(self, tokens: list[int]) -> int:
        """Take further tokens; the next one is that of the largest logit."""
        self.cache = self.walk.run(self.reading, np.array([tokens], np.int64), self.cache)
        return int(self._real(self.reading.results[At(self.head.name, 0)][-1:]).argmax())

    def answer(self, prompt: list[int], ends: frozenset[int]) -> list[int]:
        """Greedy tokens behind a prompt."""
        self.cache = {}
        found = [self.next(prompt)]
        while len(found) < ANSWER and found[-1] not in ends:
            found.append(self.next(found[-1:]))
        return found

    def perplexity(self, tokens: list[int]) -> float:
        """Of a text, over every token but its first."""
        self.walk.run(self.reading, np.array([tokens], np.int64))
        normed, chances = self.reading.results[At(self.maker, 0)], list[float]()
        for start in range(0, len(tokens) - 1, ROWS):
            rows = normed[start : min(start + ROWS, len(tokens) - 1)]
            logits = self._real(self.reading.product(At(self.head.name, 0), self.head, rows))
            peak = logits.max(1)
            total = peak + np.log(np.exp(logits - peak[:, None]).sum(1))
            following = tokens[start + 1 : start + 1 + len(rows)]
            chances += (logits[np.arange(len(rows)), following] - total).tolist()
        return math.exp(-float(np.mean(chances)))

    def _real(self, logits: Any) -> Any:
        if self.encoding is None:
            return np.asarray(logits, np.float64)
        return self.encoding.values(logits, self.scale)


def main() -> int:
    """Print a table, and what diverges where."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1000, help="of the text")
    parser.add_argument("--format", action="append", choices=FORMATS, help="all of them where left out")
    parser.add_argument("--write", action="store_true", help="into the table, in the place of the same formats")
    asked = parser.parse_args()
    source = needed_source(MODEL)
    tokenizer = tokenizer_of(source)
    graph = load_workload(MODEL, [("sequence", "4")])
    weights, constants = FileWeights(graph, str(source.path)), constants_of(MODEL, graph)
    walk, text = GraphWalk(graph), tokenizer.encode(TEXT.read_text(encoding="utf-8"), templated=False)[: asked.tokens]
    prompts = [tokenizer.encode(asked_text(tokenizer, each, None)[0], templated=True) for each in PROMPTS]

    def reference() -> Reference:
        kept = len(text)
        return Reference(weights, kept, 1, base=constants.base, epsilon=constants.epsilon, dtype=np.float32)

    real = reference()
    own = Reader(walk, real)
    perplexity = own.perplexity(text)
    answers = [Reader(walk, reference()).answer(each, tokenizer.ends) for each in prompts]
    rows = [{"format": "float32", "perplexity": perplexity, "agree": [len(each) for each in answers]}]
    for each, answer in zip(PROMPTS, answers, strict=True):
        print(f"{each} {tokenizer.decode(answer)!r}")
    for name in asked.format or FORMATS:
        began = time.perf_counter()
        if name in MIXED:
            library, stated = MIXED[name]
            operand = OPERANDS.get(stated[0][1])
            chip = load_chip(library, [("tile.array.operands", f"[{operand}]")] if operand else [])
        else:
            chip, stated = load_chip("npu-edge-int8", [("tile.array.operands", f"[{name}]")]), []
        tile, (fitted, _) = chip.tile, fit_precision(chip, load_workload(MODEL, [("sequence", "4"), *stated]))
        assert isinstance(tile, NpuTile)
        walk = GraphWalk(fitted)
        made = parameters_of(tile, walk, real)
        walk.run(made, np.zeros((1, 1), np.int64))
        depths = {o.name: o.k for o in fitted.operators() if isinstance(o, Gemm)}
        reading: Any = (
            IntegerReading(made, tile.vector.lanes) if isinstance(made, Quantizer) else FloatReading(made, tile, depths)
        )
        reader = Reader(walk, reading, made.made[At(own.head.name, 0)].scale, encoding_of(tile))
        found = [reader.answer(each, tokenizer.ends) for each in prompts]
        agree = [same(a, b) for a, b in zip(found, answers, strict=True)]
        rows.append({"format": name, "perplexity": reader.perplexity(text), "agree": agree})
        took = time.perf_counter() - began
        print(
            f"{name}: {rows[-1]['perplexity']:.4f}, {agree}, {took:.0f} s; {tokenizer.decode(found[0])!r}", flush=True
        )
    asks = [(f"{number}.", "right") for number, _ in enumerate(PROMPTS, 1)]
    columns = (("format", "left"), ("perplexity", "right"), ("over float32", "right"), *asks)
    shown = [
        (
            row["format"],
            f"{row['perplexity']:.2f}",
            f"{row['perplexity'] / rows[0]['perplexity'] - 1:+.2%}",
            *(f"{a}/{len(b)}" for a, b in zip(row["agree"], answers, strict=True)),
        )
        for row in rows
    ]
    Console().print(
        table(f"{MODEL}: perplexity on {len(text)} tokens, and tokens of answers as in float32", columns, shown)
    )
    if asked.write:
        for row in rows:  # JSON has no word for what is no number
            row["perplexity"] = row["perplexity"] if math.isfinite(row["perplexity"]) else None
        kept = {row["format"]: row for row in [*json.loads(RESULTS.read_text())["rows"], *rows]}
        ordered = [kept[name] for name in ("float32", *FORMATS) if name in kept]
        RESULTS.write_text(json.dumps({"model": MODEL, "tokens": len(text), "rows": ordered}, indent=1) + "\n")
    return 0


def same(found: list[int], expected: list[int]) -> int:
    """Tokens before the first that is another."""
    pairs = zip(found, expected, strict=False)
    return next((number for number, (a, b) in enumerate(pairs) if a != b), min(len(found), len(expected)))


if __name__ == "__main__":
    raise SystemExit(main())
