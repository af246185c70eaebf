"""Text on one tile: the golden model runs the program of the prompt, then one of every token, over one main memory.

Keys and values of earlier tokens stay where the programs before have put them. Real numbers in float32 make their own
text beside it, whose magnitudes give a tile in integers its scales.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.arch.layout import INDEX_BYTES
from siliconloom.arch.tile import NpuTile
from siliconloom.execution.constants import ModelConstants
from siliconloom.execution.encoding import encoding_of
from siliconloom.execution.image import Image, room_of, stored_columns
from siliconloom.execution.reference import Reference
from siliconloom.execution.run import ModelRun, carried_rows, exact_reading, parameters_of, vocabulary
from siliconloom.execution.walk import At, Cache, GraphWalk, Past
from siliconloom.execution.weights import Weights
from siliconloom.mapper.chip.memory import Kept
from siliconloom.mapper.chip.program import MappedWorkload
from siliconloom.sim.golden.npu import GoldenMachine, LoadedProgram
from siliconloom.workloads import Gemm, Graph, Vector
from siliconloom.workloads.roles import Role

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]


def head_of(graph: Graph) -> Gemm:
    """The product that makes logits; raises `LoomError` for a model without one."""
    found = next((o for o in graph.operators() if isinstance(o, Gemm) and o.role is Role.HEAD), None)
    if found is None:
        raise LoomError(f"{graph.name} has no head, and so no next token")
    return found


class RealText:
    """A decoder in float32 with its cache, token by token.

    Parameters
    ----------
    graph, weights, constants
        Of the model; lengths of the graph do not matter.
    """

    def __init__(self, graph: Graph, weights: Weights, constants: ModelConstants) -> None:
        self.walk, self.head = GraphWalk(graph), head_of(graph)
        base, epsilon = constants.base, constants.epsilon
        self.reading = Reference(weights, 1, 1, base=base, epsilon=epsilon, dtype=np.float32)
        self.cache: dict[At, Past] = {}

    def next(self, tokens: list[int]) -> int:
        """Take further tokens; the next one is that of the largest logit."""
        self.cache = self.walk.run(self.reading, np.array([tokens], np.int64), self.cache)
        return int(self.reading.results[At(self.head.name, 0)][0].argmax())

    def text(self, prompt: list[int], most: int, ends: frozenset[int]) -> Iterator[int]:
        """Tokens behind a prompt, the one that ends the text included."""
        token = self.next(prompt)
        for number in range(most):
            yield token
            if token in ends or number == most - 1:
                return
            token = self.next([token])


def perplexity(graph: Graph, weights: Weights, constants: ModelConstants, tokens: list[int]) -> float:
    """How many tokens a model in float32 finds as likely as the next one of a text, the geometric mean over it.

    Raises
    ------
    LoomError
        For a text of less than two tokens.
    """
    if len(tokens) < 2:
        raise LoomError(f"a perplexity needs two tokens or more (got {len(tokens)})")
    walk, head = GraphWalk(graph), head_of(graph)
    kept, base, epsilon = len(tokens), constants.base, constants.epsilon
    reading = Reference(weights, kept, 1, base=base, epsilon=epsilon, dtype=np.float32)
    walk.run(reading, np.array([tokens], np.int64))
    (maker,) = graph.dataflow.predecessors(head.name)
    logits = reading.product(At(head.name, 0), head, reading.results[At(maker, 0)][:-1]).astype(np.float64)
    peaks = logits.max(1)
    totals = peaks + np.log(np.exp(logits - peaks[:, None]).sum(1))
    chances = logits[np.arange(kept - 1), tokens[1:]] - totals
    return math.exp(-float(chances.mean()))


class GeneratedStep(Struct):
    """What one program has made.

    Parameters
    ----------
    mapped, made
        The program, and the memory that it starts from where that is kept.
    tokens
        That went in.
    token
        That came out.
    differing, values
        Logits, and how many are not those of the second reading.
    golden_s
        Seconds of the golden model.
    """

    mapped: MappedWorkload
    tokens: Integers
    token: int
    differing: int
    values: int
    golden_s: float
    made: LoadedProgram | None = None

    def as_run(self) -> ModelRun:
        """The program with its memory, as the RTL takes it."""
        assert self.made is not None
        return ModelRun(self.mapped, self.made, self.tokens)


@dataclass
class TileText:
    """A tile with a model in its memory.

    Parameters
    ----------
    tile
        That computes.
    kept
        Where parameters and cache lie in all programs.
    real
        The float32 reading, after a text: its magnitudes give the scales.
    """

    tile: NpuTile
    kept: Kept
    real: RealText
    memory: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))
    position: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    _filled: bool = False
    _caches: Cache = field(default_factory=dict)

    def __post_init__(self) -> None:
        began = time.perf_counter()
        self.quantizer = parameters_of(self.tile, self.real.walk, self.real.reading)
        self.real.walk.run(self.quantizer, np.zeros((1, 1), np.int64))
        self.seconds["quantisation"] = time.perf_counter() - began

    def run(
        self,
        mapped: MappedWorkload,
        tokens: list[int],
        share: Callable[[float], None] = lambda _: None,
        *,
        keep: bool = False,
    ) -> GeneratedStep:
        """Run the program of the tokens that come next; ``keep`` the memory that it starts from."""
        given, graph = np.array([tokens], np.int64), mapped.graph
        self._check(graph, given)
        at = self._fill(mapped, given)
        code = np.frombuffer(mapped.program.encode(), np.uint8)
        self.memory[at : at + len(code)] = code
        made = LoadedProgram(mapped.program, self.memory.copy(), at) if keep else None
        began, done, total = time.perf_counter(), 0, sum(task.repeat for task in mapped.tasks)

        def finished(_: int) -> None:
            nonlocal done
            done += 1
            share(done / total)

        GoldenMachine(mapped.chip, self.memory).run(mapped.program, finished)
        took = time.perf_counter() - began
        token, logits = self._read(mapped)
        differing = self._differing(mapped, given, logits)
        self.position += len(tokens)
        return GeneratedStep(mapped, given, token, differing, logits.size, took, made)

    def _check(self, graph: Graph, tokens: Integers) -> None:
        most = vocabulary(graph)
        wrong = tokens[(tokens < 0) | (tokens >= most)]
        if len(wrong):
            raise LoomError(f"{graph.name} has tokens 0 to {most - 1} (got {wrong[0]})")

    def _fill(self, mapped: MappedWorkload, tokens: Integers) -> int:
        """Write what a program starts from, parameters the first time only; where the program itself begins."""
        at, size = room_of(mapped)
        if size > len(self.memory):
            self.memory = np.concatenate([self.memory, np.zeros(size - len(self.memory), np.uint8)])
        graph, walk = mapped.graph, GraphWalk(mapped.graph)
        began = time.perf_counter()
        gathers = [o for o in graph.operators() if isinstance(o, Vector) and o.name in walk.kinds]
        numbers = {o.name: walk.numbers(o, tokens, self.position) for o in gathers}
        positions = self.position + np.arange(tokens.shape[1])
        ropes = (graph.dataflow[name] for name in walk.turns)
        turns = {o.name: self.quantizer.turns(o, positions) for o in ropes if isinstance(o, Vector)}
        image = Image(mapped, self.quantizer.made, turns=turns, numbers=numbers)
        image.write(self.memory, held=self.kept.taken.items if self._filled else ())
        if not self._filled:
            self.seconds["memory"] = time.perf_counter() - began
        self._filled = True
        return at

    def _read(self, mapped: MappedWorkload) -> tuple[int, NDArray[Any]]:
        """The next token and the logits that a program has left."""
        head, encoding = head_of(mapped.graph), encoding_of(self.tile)
        stored, columns = mapped.results[head.name], stored_columns(self.tile, mapped, head)
        logits = self.memory[stored.address : stored.address + stored.row].view(encoding.element)[columns]
        sample = next((o for o in mapped.graph.operators() if o.role is Role.SAMPLE), None)
        if sample is None:
            return int(encoding.values(logits, np.ones(len(logits))).argmax()), logits
        place = mapped.results[sample.name].address
        return int(self.memory[place : place + INDEX_BYTES].copy().view("<u4")[0]), logits

    def _differing(self, mapped: MappedWorkload, tokens: Integers, logits: NDArray[Any]) -> int:
        """Logits that are not those of the exact reading, which keeps a cache of its own."""
        reading = exact_reading(mapped, self.quantizer, carried_rows(mapped))
        self._caches = self.real.walk.run(reading, tokens, self._caches)
        return int((reading.results[At(head_of(mapped.graph).name, 0)][0] != logits).sum())


__all__ = ["GeneratedStep", "RealText", "TileText", "head_of", "perplexity"]
