"""A model's graph, walked operator by operator: which results, and which of their rows and columns, each one reads.

Nothing here knows of tiles or of addresses. Where every token goes to every expert, what these make of it stands side
by side in its row: the columns of the first expert, then those of the second. What is computed is a `Reading`: in
float64 (`execution.reference`), of scales (`execution.quantize`), in integers (`execution.integers`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import NotSupported
from siliconloom.arch.vector import VectorFunction
from siliconloom.mapper.chip.operands import ROUTED, takes_all
from siliconloom.workloads import Attention, Gemm, Graph, Operator, Vector
from siliconloom.workloads.graph import Phase
from siliconloom.workloads.roles import Role, Section

Array = NDArray[Any]
Integers = NDArray[np.int64]
NORMS = (VectorFunction.LAYER_NORM, VectorFunction.RMS_NORM)
PLAIN = (VectorFunction.GELU, VectorFunction.SILU, VectorFunction.RELU, VectorFunction.TANH)
GATED = {VectorFunction.GATED_GELU: VectorFunction.GELU, VectorFunction.GATED_SILU: VectorFunction.SILU}
"""Gated functions, and what their first operand goes through."""


class At(NamedTuple):
    """One execution of an operator, by name and number."""

    name: str
    execution: int


class Past(NamedTuple):
    """Keys and values that attention finds in its cache, shape (batch, positions, heads x width)."""

    keys: Array
    values: Array


Cache = Mapping[At, Past]
"""Of every execution of an attention operator."""


class Attended(Struct, frozen=True):
    """Makers of what an attention operator reads, and the columns of its queries and of its keys in all heads."""

    queries: str
    keys: str
    values: str
    append: str | None
    query_width: int
    key_width: int


def by_expert(operator: Gemm, x: Array) -> list[Array]:
    """What each expert's product takes: all the same columns, or those that its own expert has made."""
    many = x.shape[1] // operator.k
    return np.split(x, many, axis=1) if many > 1 else [x] * operator.batch


class Reading(ABC):
    """What every kind of operator computes; matrices have a row to a token, sequence by sequence."""

    @abstractmethod
    def gather(self, at: At, operator: Vector, rows: Integers) -> Array:
        """Rows of a table."""

    @abstractmethod
    def product(self, at: At, operator: Gemm, x: Array) -> Array:
        """A product with parameters, and their bias; of experts that of each, see `by_expert`."""

    @abstractmethod
    def norm(self, at: At, operator: Vector, x: Array) -> Array:
        """A layer norm or an RMS norm of every row."""

    @abstractmethod
    def add(self, at: At, operator: Vector, *terms: Array) -> Array:
        """The sum of two results or more, one after the other."""

    @abstractmethod
    def activate(self, at: At, function: VectorFunction, x: Array) -> Array:
        """A function of every element."""

    @abstractmethod
    def gate(self, at: At, function: VectorFunction, x: Array, y: Array) -> Array:
        """A function of every element of ``x``, times that of ``y``."""

    @abstractmethod
    def choose(self, at: At, operator: Vector, x: Array) -> Array:
        """Weights of experts: the softmax of every row over the largest that are chosen."""

    @abstractmethod
    def combine(self, at: At, operator: Vector, x: Array, weights: Array) -> Array:
        """The sum of what experts have made of every token, each times its weight."""

    @abstractmethod
    def sample(self, at: At, operator: Vector, x: Array) -> Array:
        """The column of the largest value of every row."""

    @abstractmethod
    def turn(self, at: At, x: Array, positions: Integers, head_dim: int) -> Array:
        """Neighbours (2i, 2i + 1) of every head turned by angles that grow with the position."""

    @abstractmethod
    def attend(self, at: At, operator: Attention, queries: Array, past: Past) -> Array:
        """Attention to keys and values, new ones among them; ``queries`` is of the shape of a `Past`'s."""

    def as_kept(self, operator: Attention, x: Array) -> Array:
        """Keys or values as they come from an attention's cache: where it keeps elements, as they were made."""
        return x

    def keep(self, at: At, value: Array) -> None:  # noqa: B027
        """See a result."""


class GraphWalk:
    """A graph that can be read, with what its operators read.

    Raises
    ------
    NotSupported
        For operators, or uses of results, that no reading knows.
    """

    def __init__(self, graph: Graph) -> None:
        if graph.phase is Phase.TRAINING:
            raise NotSupported(f"values of a training step ({graph.name})")
        if any(operator.role is Role.CROSS_ATTENTION for operator in graph.operators()):
            raise NotSupported(f"values of {graph.name}, an encoder with a decoder that attends to it")
        if graph.requests:
            raise NotSupported(f"values of requests of unequal lengths ({graph.name}, workload.requests)")
        self.graph = graph
        self.attended: dict[str, Attended] = {}
        self.turns: dict[str, Attended] = {}
        """Of a rotation: the attention operator whose queries and keys it turns."""
        self.appends: dict[str, Attended] = {}
        self.kinds: dict[str, str] = {}
        """Of a gather: which numbers its rows have; tokens, positions or types."""
        self.lengths = {o.q_len for o in graph.operators() if isinstance(o, Attention)}
        for operator in graph.operators():
            self._check(operator)
        if not self.attended or len(self.lengths) != 1:
            raise NotSupported(f"values of {graph.name}, which is no transformer with one length of sequences")

    @property
    def length(self) -> int:
        """Tokens of each sequence."""
        return next(iter(self.lengths))

    def run(self, reading: Reading, tokens: Integers, past: Cache | None = None) -> dict[At, Past]:
        """GraphWalk the graph; ``tokens`` is of shape (batch, length), whatever the graph's own lengths are.

        Returns
        -------
        The caches, of earlier and new tokens.
        """
        past, caches = past or {}, dict[At, Past]()
        values: dict[str, Array] = {}
        for _, repeat, operators in self.graph.blocks():
            names, last = {o.name for o in operators}, operators[-1].name
            for execution in range(repeat):
                for operator in operators:
                    at = At(operator.name, execution)
                    read = [
                        values[last if execution and name not in names else name]
                        for name in self.graph.dataflow.predecessors(operator.name)
                    ]
                    made = self._compute(reading, at, operator, read, values, tokens, past, caches)
                    values[operator.name] = made
                    reading.keep(at, made)
        return caches

    def _compute(
        self,
        reading: Reading,
        at: At,
        operator: Operator,
        read: list[Array],
        values: Mapping[str, Array],
        tokens: Integers,
        past: Cache,
        caches: dict[At, Past],
    ) -> Array:
        batch, length = tokens.shape
        if isinstance(operator, Gemm):
            return reading.product(at, operator, self._rows(operator, read[0], batch))
        if isinstance(operator, Attention):
            whole = self._extended(reading, at, operator, values, batch, past.get(at))
            caches[at] = whole
            a = self.attended[operator.name]
            queries = values[a.queries][:, : a.query_width].reshape(batch, length, -1)
            return reading.attend(at, operator, queries, whole).reshape(batch * length, -1)
        assert isinstance(operator, Vector)
        function = operator.function
        if function == VectorFunction.GATHER:
            return reading.gather(at, operator, self._numbers(operator, tokens, past))
        if function in NORMS:
            return reading.norm(at, operator, read[0])
        if function == VectorFunction.ADD:
            return reading.add(at, operator, *read)
        if function in GATED:
            halves = read[0].reshape(len(read[0]), -1, 2, operator.cols)  # of every expert
            first, second = (halves[:, :, half].reshape(len(halves), -1) for half in range(2))
            return reading.gate(at, GATED[function], first, second)
        if function == VectorFunction.ARGMAX:
            return reading.sample(at, operator, read[0])
        if function == VectorFunction.TOP_K:
            return reading.choose(at, operator, read[0])
        if function == VectorFunction.COMBINE:
            makers = self.graph.dataflow.predecessors(operator.name)
            weighs = [self.graph.dataflow[name].role is Role.ROUTE for name in makers]
            chances, made = read[weighs.index(True)], read[weighs.index(False)]
            return reading.combine(at, operator, made, chances)
        if function == VectorFunction.ROPE:
            head_dim = self.head_dim(operator.name)
            return reading.turn(at, read[0][:, : operator.cols], self._positions(tokens, past), head_dim)
        if function == VectorFunction.KV_APPEND:
            return np.concatenate(self._new(self.appends[operator.name], values), axis=1)
        return reading.activate(at, function, read[0])

    def head_dim(self, rope: str) -> int:
        """Columns of each head that a rotation turns."""
        attended = self.turns[rope]
        attention = next(o for o in self.attended if self.attended[o] is attended)
        found = self.graph.dataflow[attention]
        assert isinstance(found, Attention)
        return found.head_dim

    def _rows(self, operator: Gemm, x: Array, batch: int) -> Array:
        """What a product takes of its operand: the head the last rows of each sequence, the pooler the first ones.

        The head has a row of each sequence in prefill, and one of each new token in decode.
        """
        section = operator.place.section
        if section not in (Section.HEAD, Section.POOLER):
            return x
        each = operator.m // self.graph.batch
        rows = x.reshape(batch, -1, x.shape[1])
        taken = rows[:, -each:] if section is Section.HEAD else rows[:, :each]
        return taken.reshape(-1, x.shape[1])

    def _new(self, a: Attended, values: Mapping[str, Array]) -> tuple[Array, Array]:
        """Keys and values of new tokens."""
        start, end = a.query_width, a.query_width + a.key_width
        return values[a.keys][:, start:end], values[a.values][:, end:]

    def _extended(
        self, reading: Reading, at: At, operator: Attention, values: Mapping[str, Array], batch: int, past: Past | None
    ) -> Past:
        made = (reading.as_kept(operator, x) for x in self._new(self.attended[at.name], values))
        new = Past(*(x.reshape(batch, len(x) // batch, -1) for x in made))
        if past is None:
            return new
        return Past(*(np.concatenate([old, x], axis=1) for old, x in zip(past, new, strict=True)))

    def _positions(self, tokens: Integers, past: Cache) -> Integers:
        start = next(iter(past.values())).keys.shape[1] if past else 0
        return np.tile(start + np.arange(tokens.shape[1]), len(tokens))

    def _numbers(self, operator: Vector, tokens: Integers, past: Cache) -> Integers:
        kind = self.kinds[operator.name]
        if kind == "tokens":
            return tokens.reshape(-1)
        positions = self._positions(tokens, past)
        if kind != "positions":
            return np.zeros_like(positions)
        if operator.padding is not None:  # of the tokens that have one; an encoder has no past
            counts = tokens != operator.padding
            positions = (np.cumsum(counts, axis=1) * counts).reshape(-1) - 1
        return positions + operator.first

    def numbers(self, operator: Vector, tokens: Integers, start: int) -> Integers:
        """Which rows of its table a gather takes, for tokens of shape (batch, length) from position ``start`` on."""
        attention = next(iter(self.attended))
        held = np.zeros((len(tokens), start, 0))
        return self._numbers(operator, tokens, {At(attention, 0): Past(held, held)})

    # What can be read ------------------------------------------------------------------------------------------------

    def _check(self, operator: Operator) -> None:
        why = self._why_not(operator)
        if why:
            raise NotSupported(f"values of {why} (operator {operator.name})")

    def _why_not(self, operator: Operator) -> str:
        makers = self.graph.dataflow.predecessors(operator.name)
        if isinstance(operator, Gemm) and operator.stored is not None:
            if operator.bias:
                return "experts with a bias"
            return "" if takes_all(self.graph, operator) else f"experts that not every token goes to: {ROUTED}"
        if isinstance(operator, Gemm) and operator.weight and not makers:
            return "products of what no operator makes (an image's patches, operands of a list)"
        if isinstance(operator, Gemm):
            plain = operator.weight and operator.batch == 1 and len(makers) == 1
            return "" if plain else "products of heads, or without parameters"
        if isinstance(operator, Attention):
            return self._why_not_attended(operator, makers)
        if not isinstance(operator, Vector):
            return f"{operator.kind} operators"
        function = operator.function
        if operator.role is Role.NONE and not makers:
            return "functions of what no operator makes (operands of a list)"
        if function == VectorFunction.GATHER:
            return "a gather of results" if makers else self._gathers(operator)
        if function == VectorFunction.ADD:
            return "" if len(makers) == operator.inputs >= 2 else "sums of one result, or of what no operator makes"
        if function in NORMS:
            apart = operator.role in (Role.QUERY_NORM, Role.KEY_NORM, Role.LATENT_NORM)
            return "norms of queries and keys" if apart or len(makers) != 1 else ""
        if function in GATED:
            return "" if len(makers) == 1 else "gates that two operators make"
        if function in (VectorFunction.TOP_K, VectorFunction.ARGMAX):
            return ""
        if function == VectorFunction.COMBINE:
            return "" if len(makers) == 2 else "experts that all tokens share"
        if function == VectorFunction.ROPE:
            whole = len(makers) == 1 and operator.role is Role.ROPE
            return "" if whole else "rotations of queries and keys that several operators make"
        if function in PLAIN:
            squashes = operator.place.section is Section.HEAD
            return "logits that are squashed" if squashes else ""
        return "" if function == VectorFunction.KV_APPEND else f"the vector function {function.value}"

    def _gathers(self, operator: Vector) -> str:
        if operator.role is Role.TABLE:
            self.kinds[operator.name] = "tokens"
        else:  # positions come before types of tokens
            self.kinds[operator.name] = "positions" if "positions" not in self.kinds.values() else "types"
        return ""

    def _why_not_attended(self, operator: Attention, makers: list[str]) -> str:
        flow = self.graph.dataflow
        if operator.values_in_keys:
            return "attention to a latent cache"
        if operator.sinks:
            return "attention with scores that belong to no key"
        if operator.window is not None and operator.window < operator.kv_len:
            return "a sliding window"

        def is_a(name: str, function: VectorFunction) -> bool:
            found = flow[name]
            return isinstance(found, Vector) and found.function == function

        append = next((name for name in makers if is_a(name, VectorFunction.KV_APPEND)), None)
        others = [name for name in makers if name != append]
        news = flow.predecessors(append) if append else others
        rope = next((name for name in news if is_a(name, VectorFunction.ROPE)), None)
        made = [name for name in news if flow[name].role is Role.QKV]
        widths = operator.heads * operator.head_dim, operator.kv_heads * operator.head_dim
        if len(made) != 1 or len(news) > 2 or operator.head_dim != operator.v_head_dim:
            return "attention whose queries, keys and values no single product makes"
        if others and set(others) - {rope, made[0]}:
            return "attention whose queries are neither a product's nor turned"
        if rope is not None:
            turned = flow[rope]
            assert isinstance(turned, Vector)
            if turned.cols != sum(widths) or len(others) > 1 + (append is None):
                return "rotations of a part of each head"
        turns = rope or made[0]
        self.attended[operator.name] = found = Attended(turns, turns, made[0], append, *widths)
        if rope is not None:
            self.turns[rope] = found
        if append is not None:
            self.appends[append] = found
        return ""


__all__ = ["At", "Attended", "Cache", "Past", "Reading", "GraphWalk", "by_expert"]
