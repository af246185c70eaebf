"""A whole model on the program that ``loom sim`` times: values beside those of float64 and of the exact reading.

The exact reading is of the graph in the tile's own numbers: `IntegerReading`, or `FloatReading`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.layout import INDEX_BYTES
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.arch.tile import NpuTile
from siliconloom.execution.encoding import encoding_of
from siliconloom.execution.floats import FloatParameters, FloatReading, depths_of
from siliconloom.execution.image import Image, read_cache, refuse, room_of, stored_columns
from siliconloom.execution.integers import CarriedRows, IntegerReading
from siliconloom.execution.quantize import Quantizer
from siliconloom.execution.reference import ROPE_BASE, Reference
from siliconloom.execution.walk import At, GraphWalk, Past
from siliconloom.execution.weights import Weights
from siliconloom.mapper.chip.attention_cost import AttentionTiling
from siliconloom.mapper.chip.attention_layout import AttentionLayout
from siliconloom.mapper.chip.attention_places import query_parts
from siliconloom.mapper.chip.epilogue import GATED
from siliconloom.mapper.chip.gemm_layout import BlockRows
from siliconloom.mapper.chip.operands import Operand, Turned
from siliconloom.mapper.chip.program import MappedTask, MappedWorkload
from siliconloom.mapper.chip.sharing import part_of
from siliconloom.sim.golden.npu import GoldenMachine, LoadedProgram
from siliconloom.workloads import Attention, Graph, Operator, Vector
from siliconloom.workloads.architecture import EPSILON
from siliconloom.workloads.roles import Role

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class OperatorValues(Struct, frozen=True):
    """What one execution of a task has made.

    Parameters
    ----------
    name
        Of the operator whose result it is: the last of those that are computed together.
    task, fused
        The operator it begins with, and those computed with it.
    execution
        Number of the execution of its block.
    relative_rms, largest
        Root of the mean square of the difference to float64, over that of float64's values; the largest difference.
        Nothing for what is no result of its own.
    saturated
        Share of values that were cut off at int8, or are no finite numbers.
    values, differing
        How many there are, and how many are not those of the exact reading.
    """

    name: str
    task: str
    fused: tuple[str, ...]
    execution: int
    relative_rms: float | None
    largest: float | None
    saturated: float
    values: int
    differing: int


class ModelRun(Struct):
    """What a run has shown.

    Members
    -------
    mapped, made
        The mapping, and its program with the memory that it starts from.
    after
        Main memory behind the golden run.
    rows
        Every execution of every task, in order.
    tensors
        Results in real values: ``golden/`` and ``float64/``, then operator, then execution.
    next_tokens, real_tokens
        Of every sequence the token with the largest logit, of the golden run and of float64; empty without a head.
    seconds
        That each part took.
    """

    mapped: MappedWorkload
    made: LoadedProgram
    tokens: Integers
    after: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))
    rows: list[OperatorValues] = field(default_factory=list)
    tensors: dict[str, Floats] = field(default_factory=dict)
    next_tokens: list[int] = field(default_factory=list)
    real_tokens: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def differing(self) -> int:
        """Values that are not those of the exact reading."""
        return sum(row.differing for row in self.rows)

    @property
    def agreeing(self) -> int:
        """Sequences whose next token is that of float64."""
        return sum(a == b for a, b in zip(self.next_tokens, self.real_tokens, strict=True))


def lengths(graph: Graph) -> tuple[int, int, int]:
    """Sequences of a graph, tokens of each with those before, and how many of them are new.

    Raises
    ------
    NotSupported
        For a graph without attention.
    """
    attention = next((o for o in graph.operators() if isinstance(o, Attention)), None)
    if attention is None:
        raise NotSupported(f"values of {graph.name}, which is no transformer")
    return attention.batch, attention.kv_len, attention.q_len


def vocabulary(graph: Graph) -> int:
    """Rows of a graph's table of tokens."""
    found = [o for o in graph.operators() if isinstance(o, Vector) and o.role is Role.TABLE]
    return found[0].weights // found[0].cols if found else 1


def run_model(
    mapped: MappedWorkload,
    weights: Weights,
    tokens: Integers,
    *,
    base: float = ROPE_BASE,
    epsilon: float = EPSILON,
    watcher: Watcher = NOBODY,
    keep: bool = False,
) -> ModelRun:
    """Run a mapped model on the golden machine, and read back what every operator has made.

    Parameters
    ----------
    mapped, weights
        The program of one tile, and the model's parameters.
    tokens
        Numbers of rows of the vocabulary, those before the new ones among them: shape (batch, tokens).
    base, epsilon
        Of rotary angles and of norms.
    keep
        Whether tensors of all operators are kept.

    Raises
    ------
    NotSupported
        For chips, tiles or operators whose values nothing here knows.
    LoomError
        For tokens that are not in the vocabulary.
    """
    refuse(mapped)
    graph, walk = mapped.graph, GraphWalk(mapped.graph)
    batch, length, new = lengths(graph)
    _check_tokens(walk, tokens, batch, length)
    seconds: dict[str, float] = {}
    clock = _Clock(seconds)
    with watcher.stage(f"values of {graph.name}") as tell:
        tell("float64")
        real = Reference(weights, new, batch, base=base, epsilon=epsilon)
        walk.run(real, tokens)
        clock.stop("float64")
        tell("quantisation")
        tile = mapped.chip.tile
        assert isinstance(tile, NpuTile)
        quantizer = parameters_of(tile, walk, real)
        walk.run(quantizer, tokens[:, -new:])
        clock.stop("quantisation")
        tell("exact reading")
        past = {}
        if length > new:
            past = walk.run(exact_reading(mapped, quantizer), tokens[:, :-new])
        exact = exact_reading(mapped, quantizer, carried_rows(mapped))
        caches = walk.run(exact, tokens[:, -new:], past)
        clock.stop("exact reading")
    gathers = [o for o in graph.operators() if isinstance(o, Vector) and o.name in walk.kinds]
    numbers = {o.name: walk.numbers(o, tokens[:, -new:], length - new) for o in gathers}
    positions = np.tile(np.arange(length - new, length), batch)
    ropes = (graph.dataflow[name] for name in walk.turns)
    turns = {o.name: quantizer.turns(o, positions) for o in ropes if isinstance(o, Vector)}
    at, size = room_of(mapped)
    memory = np.zeros(size, np.uint8)
    with watcher.share(f"memory of {graph.name}") as share:
        Image(mapped, quantizer.made, turns=turns, numbers=numbers, past=past).write(memory, share)
    clock.stop("memory")
    made = ModelRun(mapped, LoadedProgram(mapped.program, memory, at), tokens, seconds=seconds)
    _Golden(made, quantizer, real, exact, caches, keep).run(watcher)
    clock.stop("golden")
    return made


def parameters_of(tile: NpuTile, walk: GraphWalk, real: Reference) -> Quantizer | FloatParameters:
    """The reading that makes the parameters of a tile's format."""
    if tile.circuit_format.is_integer:
        return Quantizer(walk, real)
    own, operand = tile.array.weights, tile.array.circuit_format
    assert operand is not None
    return FloatParameters(walk, real, tile.circuit_format, operand, own is not None and own.minima)


def exact_reading(
    mapped: MappedWorkload,
    quantizer: Quantizer | FloatParameters,
    carried: Mapping[str, Sequence[CarriedRows]] | None = None,
) -> IntegerReading | FloatReading:
    """The reading of a mapped graph in its tile's numbers."""
    tile = mapped.chip.tile
    assert isinstance(tile, NpuTile)
    if isinstance(quantizer, Quantizer):
        return IntegerReading(quantizer, tile.vector.lanes, carried)
    depths = depths_of([(task.task.operator, task.tiling) for task in mapped.tasks])
    halved = {t.task.operator.name for t in mapped.tasks if any(each.function in GATED for each in t.task.fused)}
    return FloatReading(quantizer, tile, depths, carried, halved)


def carried_rows(mapped: MappedWorkload) -> dict[str, list[CarriedRows]]:
    """Of each attention the queries whose keys take several tiles, and are not normalised as whole rows."""
    found: dict[str, list[CarriedRows]] = {}
    for task in mapped.tasks:
        operator, tiling = task.task.operator, task.tiling
        if isinstance(operator, Attention) and isinstance(tiling, AttentionTiling) and not tiling.whole:
            columns = tiling.keys if _share_in_parts(mapped, task, tiling.keys) else None
            found[operator.name] = [
                CarriedRows(part.query_start, part.queries, keys, columns)
                for part in query_parts(operator)
                for keys in (tiling.keys if part.keys > tiling.keys else operator.kv_len,)
                if keys == tiling.keys or columns is not None
            ]
    return found


def _share_in_parts(mapped: MappedWorkload, task: MappedTask, keys: int) -> bool:
    """Whether tiles of so many keys are parts of blocks, and those of a row share an exponent in each."""
    shape, tile = part_of(task.task.operator, task.cut), mapped.chip.tile
    assert isinstance(shape, Attention)
    assert isinstance(tile, NpuTile)
    return tile.shares and AttentionLayout.of(mapped.chip, shape).may_cut(keys)


class _Clock:
    """Seconds since the last stop."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.last = seconds, time.perf_counter()

    def stop(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self.last = now - self.last, now


def _check_tokens(walk: GraphWalk, tokens: Integers, batch: int, length: int) -> None:
    graph, kinds = walk.graph, walk.kinds
    if tokens.shape != (batch, length):
        raise LoomError(
            f"{graph.name} takes {batch} sequences of {length} tokens (got {len(tokens)} of {tokens.shape[1]})"
        )
    most = vocabulary(graph)
    wrong = tokens[(tokens < 0) | (tokens >= most)]
    if len(wrong):
        raise LoomError(f"{graph.name} has tokens 0 to {most - 1} (got {wrong[0]})")
    for name, kind in kinds.items():
        table = graph.dataflow[name]
        assert isinstance(table, Vector)
        rows = table.weights // table.cols - table.first
        if kind == "positions" and rows < length:
            raise LoomError(f"{graph.name} has {rows} positions (got {length} tokens)")


class _Golden:
    """A golden run that is looked at after every task."""

    def __init__(
        self,
        made: ModelRun,
        quantizer: Quantizer | FloatParameters,
        real: Reference,
        exact: IntegerReading | FloatReading,
        caches: dict[At, Past],
        keep: bool,
    ) -> None:
        self.made, self.quantizer, self.real, self.exact, self.caches = made, quantizer, real, exact, caches
        self.keep, self.mapped = keep, made.mapped
        tile, memory = self.mapped.chip.tile, self.mapped.memory
        assert isinstance(tile, NpuTile)
        assert memory is not None
        self.encoding = encoding_of(tile)
        self.tile, self.objects = tile, {item.key: (address, item) for address, item in memory.objects()}
        self.executions = [0] * len(self.mapped.tasks)
        self.total = sum(task.repeat for task in self.mapped.tasks)

    def run(self, watcher: Watcher) -> None:
        """Run the program, and see what each task has made before anything overwrites it."""
        self.memory = self.made.made.loaded()
        machine = GoldenMachine(self.mapped.chip, self.memory)
        with watcher.share(f"{self.mapped.graph.name} on the golden model") as share:
            machine.run(self.made.made.program, lambda number: self._finished(number, share))
        self.made.after = self.memory
        if self.executions != [task.repeat for task in self.mapped.tasks]:
            raise AssertionError("a task was not seen as often as it is executed")

    def _finished(self, number: int, share: Callable[[float], None]) -> None:
        mapped = self.mapped.tasks[number]
        execution = self.executions[number]
        self.executions[number] += 1
        role = mapped.task.operator.role
        read = self._result if mapped.task.cached is None else self._cached
        self.made.rows.append((self._sampled if role is Role.SAMPLE else read)(mapped, execution))
        share(sum(self.executions) / self.total)

    def _result(self, mapped: MappedTask, execution: int) -> OperatorValues:
        """Read a result, and hold it against float64 and against the exact reading."""
        task = mapped.task
        last: Operator = task.fused[-1] if task.fused else task.operator
        at, stored = At(last.name, execution), self.mapped.results[last.name]
        expected = self.exact.results[at]
        columns = stored_columns(self.tile, self.mapped, last)
        experts = expected.shape[1] // len(columns)  # the rows of one follow those of another
        rows = experts * len(expected)
        lines = self.memory[stored.address : stored.address + rows * stored.row].view(self.encoding.element)
        parts = lines.reshape(experts, len(expected), -1)[:, :, columns]
        found = parts.transpose(1, 0, 2).reshape(expected.shape)
        reals = self.real.results[at]
        values = self.encoding.values(found, self.quantizer.made[at].scale)
        error = values - reals
        power = float(np.sqrt(np.mean(reals**2)))
        if self.keep:
            self.made.tensors[f"golden/{last.name}/{execution}"] = values
            self.made.tensors[f"float64/{last.name}/{execution}"] = reals
        if last.role is Role.HEAD:
            self.made.next_tokens = values.argmax(1).tolist()
            self.made.real_tokens = reals.argmax(1).tolist()
        return OperatorValues(
            last.name,
            task.operator.name,
            tuple(each.name for each in task.fused),
            execution,
            float(np.sqrt(np.mean(error**2))) / power if power else 0.0,
            float(np.abs(error).max()),
            self.exact.saturated.get(at, 0.0),
            found.size,
            int((found != expected).sum()),
        )

    def _sampled(self, mapped: MappedTask, execution: int) -> OperatorValues:
        """Read the next tokens, which are the indices of the largest logits."""
        name = mapped.task.operator.name
        at, stored = At(name, execution), self.mapped.results[name]
        expected = self.exact.results[at][:, 0]
        lines = self.memory[stored.address : stored.address + len(expected) * stored.row]
        indices = lines.reshape(len(expected), stored.row)[:, :INDEX_BYTES]
        found = np.ascontiguousarray(indices).view("<u4")[:, 0]
        self.made.next_tokens = found.tolist()
        self.made.real_tokens = self.real.results[at][:, 0].astype(int).tolist()
        differing = int((found != expected).sum())
        return OperatorValues(name, name, (), execution, None, None, 0.0, INDEX_BYTES * len(found), differing)

    def _cached(self, mapped: MappedTask, execution: int) -> OperatorValues:
        """Read what a cache holds, older keys or values among it, and hold it against the exact reading."""
        cached = mapped.task.cached
        if isinstance(cached, Turned):
            return self._turned(mapped, cached, execution)
        assert cached is not None
        attention, role = cached.attention, "keys" if cached.keys else "values"
        address, item = self.objects[attention.name, role]
        room = self.memory[address + execution * item.unit_bytes :][: item.unit_bytes]
        layout = AttentionLayout(self.tile, self.mapped.chip.nearest, attention)
        found = read_cache(room, layout, attention.kv_len, cached.keys)
        whole = self.caches[At(attention.name, execution)]
        expected = whole.keys if cached.keys else whole.values
        name = mapped.task.operator.name
        differing = int((found != expected).sum())
        return OperatorValues(name, name, (), execution, None, None, 0.0, found.size, differing)

    def _turned(self, mapped: MappedTask, turned: Turned, execution: int) -> OperatorValues:
        """Read rows that were transposed, and hold them against the result that they are rows of."""
        found = turned.found(self.mapped.graph)
        assert isinstance(found, Operand)
        stored = self.mapped.results[found.maker]
        every = self.memory[stored.address :][: self.mapped.memory.used if self.mapped.memory else 0]
        products, tokens, width = turned.sequences, turned.tokens, turned.width
        places = stored.row * (found.row + found.step * np.arange(products * tokens)) + found.column
        element = self.encoding.element
        lines = every[places[:, None] + np.arange(element.itemsize * width)]
        expected = np.ascontiguousarray(lines).view(element).reshape(products, tokens, width)
        address, item = self.objects[turned.owner.name, turned.role]
        blocks = BlockRows(self.tile, width, 8 * element.itemsize, turned.rows)
        planes = self.memory[address : address + item.size][: products * blocks.plane(tokens)].reshape(products, -1)
        held = np.stack([blocks.read(each, tokens, element) for each in planes])
        name, differing = mapped.task.operator.name, int((held != expected).sum())
        return OperatorValues(name, name, (), execution, None, None, 0.0, expected.size, differing)


__all__ = ["ModelRun", "OperatorValues", "lengths", "run_model", "vocabulary"]
