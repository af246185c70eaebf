"""A workload: operators in program order, the data that flows between them, and its totals."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.datatype import CacheFormat, DataType, Packing, Sparsity
from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.operators import Attention, Gemm, Operator, Vector
from siliconloom.workloads.recurrence import Recurrence
from siliconloom.workloads.roles import Pass, Role
from siliconloom.workloads.shared import Collective, SharedAttention

if TYPE_CHECKING:
    import networkx

SCHEMA = "siliconloom.workload/1"


class Phase(StrEnum):
    """What a model is asked to do.

    ``prefill`` processes ``sequence`` tokens of each sequence, from an empty cache or, as a chunk of a prompt, behind
    the ``context`` tokens that lie there. ``decode`` makes one token per sequence: at context c the new token is the
    c-th of its sequence and attends to c keys, its own among them; of several (``sequence``) that is the last one.
    ``training`` is one step: forward, backward and optimizer, over ``sequence`` tokens of each sequence.
    """

    PREFILL = "prefill"
    DECODE = "decode"
    TRAINING = "training"


class RequestGroup(Struct, frozen=True, kw_only=True):
    """Requests of one step that are alike.

    Parameters
    ----------
    new, context
        New tokens of each, and tokens of each that lie in the cache already.
    count
        How many requests there are.
    """

    new: int
    context: int
    count: int

    @property
    def length(self) -> int:
        """Tokens of each, earlier and new ones."""
        return self.context + self.new


class Graph(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """Operators and their data dependencies.

    Parameters
    ----------
    name
        Of the model or list.
    phase
        What is done; lists of GEMMs and convolutions are ``prefill``.
    precision
        Operand format of every operator that states no other.
    explicit_precision
        The description or an override states it; otherwise it is the model's stored format or bf16.
    batch
        Sequences (images of a convolution list).
    tokens
        Tokens processed by one execution of the graph.
    dataflow
        Operators in program order, and the elements that flow between them. A block that is executed several times
        stands once: the edges from one execution to the next are those from the block before it, repeated.
    resting
        Operators of another phase that this one does not run, whose parameters lie in memory meanwhile (a decode step
        of a model with an encoder).
    images
        Images of one execution, of a workload that takes images; 0 of others.
    requests
        Groups of sequences of unequal lengths, where there are several: each has an attention operator of its own.
    notes
        What whoever reads a result of this workload should know.
    """

    name: str
    phase: Phase
    precision: DataType
    explicit_precision: bool
    batch: int
    tokens: int
    dataflow: Dataflow
    resting: tuple[Operator, ...] = ()
    images: int = 0
    requests: tuple[RequestGroup, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        position = {name: index for index, name in enumerate(self.dataflow)}
        for source, target, _ in self.dataflow.edges():
            if position[source] >= position[target]:
                raise ValueError(f"{target} uses {source} before it is made")
        seen: set[str] = set()
        for block, repeat, operators in self.blocks():
            if block in seen or any(operator.repeat != repeat for operator in operators):
                raise ValueError(f"the operators of block {block} are not one run with one repeat")
            seen.add(block)

    def operators(self) -> list[Operator]:
        """All operators in program order, which is a topological order; those of one block are contiguous."""
        return self.dataflow.operators()

    @cached_property
    def digraph(self) -> networkx.DiGraph:
        """The same as a graph of NetworkX's: nodes carry ``operator=``, edges ``elements=`` and ``bytes=``."""
        import networkx  # a sixth of a second that no command needs

        made = networkx.DiGraph()
        for operator in self.operators():
            made.add_node(operator.name, operator=operator)
        for source, target, elements in self.dataflow.edges():
            made.add_edge(source, target, elements=elements, bytes=self.dataflow.bytes_of(source, elements))
        return made

    def blocks(self) -> list[tuple[str, int, list[Operator]]]:
        """Block name, number of executions and operators, in program order."""
        blocks: list[tuple[str, int, list[Operator]]] = []
        for operator in self.operators():
            if not blocks or blocks[-1][0] != operator.block:
                blocks.append((operator.block, operator.repeat, []))
            blocks[-1][2].append(operator)
        return blocks

    def beside(self, operator: Operator, role: Role) -> Operator | None:
        """The operator of that role in the forward pass of the layer that ``operator`` is part of, or none."""
        return self._layers.get((operator.forward_block, operator.place.layer, role))

    @cached_property
    def _layers(self) -> dict[tuple[str, int, Role], Operator]:
        """Operators of the forward pass by block, layer and role; the last one where several are alike in them."""
        forward = (o for o in self.operators() if o.place.step is Pass.FORWARD)
        return {(o.block, o.place.layer, o.place.role): o for o in forward}

    @property
    def parameters(self) -> int:
        """Parameter elements stored."""
        return sum(operator.parameters * operator.repeat for operator in (*self.operators(), *self.resting))

    @property
    def active_parameters(self) -> int:
        """Parameter elements that one token uses."""
        return sum(operator.active_parameters * operator.repeat for operator in (*self.operators(), *self.resting))

    @property
    def macs(self) -> int:
        """Multiply-accumulates of matrix work that the masks admit."""
        return sum(operator.macs * operator.repeat for operator in self.operators())

    @property
    def flops(self) -> int:
        """Floating-point operations of matrix work: two per multiply-accumulate."""
        return 2 * self.macs

    @property
    def unmasked_flops(self) -> int:
        """As `flops`, counting the pairs that attention masks as well."""
        return sum(2 * operator.unmasked_macs * operator.repeat for operator in self.operators())

    @property
    def weight_bytes(self) -> int:
        """Bytes of all stored parameters, each at its operator's precision."""
        return sum(operator.weight_bytes * operator.repeat for operator in self.operators()) + self.resting_bytes

    @property
    def resting_bytes(self) -> int:
        """Bytes of parameters that nothing of this phase reads."""
        return sum(operator.weight_bytes * operator.repeat for operator in self.resting)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token of one sequence adds to the key-value cache, over all layers.

        Of a decoder behind an encoder those of its own keys and values: a token adds none to cross-attention's.
        """
        own = (append for append, attention in self.caches() if attention.role is not Role.CROSS_ATTENTION)
        layers = {(append.block, append.place.layer): append for append in own}  # one of a layer's, if it has several
        return sum(append.row_bytes * append.repeat for append in layers.values())

    @property
    def cross_bytes(self) -> int:
        """Bytes of the keys and values of cross-attention, all positions of the encoder in all decoder layers."""
        return sum(self.cross_bytes_of(o) * o.repeat for o in self.operators() if isinstance(o, Attention))

    def cross_bytes_of(self, attention: Attention) -> int:
        """Those of one execution of an attention operator, as they are kept; none where it is no cross-attention."""
        if attention.role is not Role.CROSS_ATTENTION:
            return 0
        makers = (self.dataflow[name] for name in self.dataflow.predecessors(attention.name))
        for maker in makers:
            if isinstance(maker, Vector) and maker.role is Role.CROSS_CACHE:
                return maker.output_bytes
        return attention.kv_read_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes that the key-value cache has room for; a window keeps its last keys only.

        With those of cross-attention, where a decoder attends to an encoder's positions.
        """
        total = self.cross_bytes
        for append, attention in self.caches():
            if attention.role is Role.CROSS_ATTENTION:
                continue
            length = min(attention.positions, attention.window or attention.positions)
            total += append.row_bytes * attention.batch * length * append.repeat
        return total

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of recurrent layers, of all sequences: as many whatever the tokens before."""
        return sum(o.state_bytes * o.repeat for o in self.operators() if isinstance(o, Recurrence))

    @property
    def packings(self) -> tuple[Packing, ...]:
        """Ways in which weights are packed."""
        return tuple(dict.fromkeys(o.packing for o in self.operators() if isinstance(o, Gemm) and o.packing))

    @property
    def compressions(self) -> tuple[float, ...]:
        """Bytes in memory of a byte of weights, of those that are compressed without loss."""
        return tuple(
            dict.fromkeys(o.compression for o in self.operators() if isinstance(o, Gemm) and o.compression is not None)
        )

    @property
    def sparsities(self) -> tuple[Sparsity, ...]:
        """Patterns of zeros among weights."""
        return tuple(dict.fromkeys(o.sparsity for o in self.operators() if isinstance(o, Gemm) and o.sparsity))

    @property
    def cache_formats(self) -> tuple[CacheFormat, ...]:
        """Formats of keys and values that are kept in another one than attention's."""
        appends = (o for o in self.operators() if isinstance(o, Vector))
        found = (_own_format(append, append.cached) for append in appends)
        return tuple(dict.fromkeys(cached for cached in found if cached is not None))

    @property
    def formats(self) -> str:
        """The formats of operands, packed weights and the cache; how far weights are compressed, and which are kept."""
        smaller = [f"compressed to {ratio:g}" for ratio in self.compressions]
        smaller += [f"{sparsity} sparse" for sparsity in self.sparsities]
        cached = [f"keys and values {each}" for each in self.cache_formats]
        return ", ".join([", weights ".join([self.precision.value, *map(str, self.packings), *smaller]), *cached])

    def with_precision(self, dtype: DataType) -> Graph:
        """Return the same graph at another operand format, as if it had been stated.

        Operators whose format differs from the graph's keep theirs, and so does the state of the optimizer.
        """
        dataflow = Dataflow()
        for operator in self.operators():
            if operator.precision == self.precision and not is_optimizer(operator):
                operator = _in_format(operator, dtype)
            dataflow.add(operator)
        for source, target, elements in self.dataflow.edges():
            dataflow.connect(source, target, elements)
        resting = tuple(_in_format(o, dtype) if o.precision == self.precision else o for o in self.resting)
        return replace(self, precision=dtype, explicit_precision=True, dataflow=dataflow, resting=resting)

    def in_elements(self, dtype: DataType, weights: Packing) -> Graph:
        """Return the same graph with all operators in one format, and weights that are not packed in that of others."""

        def changed(operator: Operator) -> Operator:
            if isinstance(operator, Gemm) and operator.weight and operator.packing is None:
                operator = replace(operator, packing=weights)
            return replace(operator, precision=dtype)

        dataflow = Dataflow()
        for operator in self.operators():
            dataflow.add(changed(operator))
        for source, target, elements in self.dataflow.edges():
            dataflow.connect(source, target, elements)
        return replace(self, precision=dtype, dataflow=dataflow, resting=tuple(map(changed, self.resting)))

    def with_operators(self, changed: Mapping[str, Operator]) -> Graph:
        """Return the same graph with some operators, by name, in place of those that have these names."""
        dataflow = Dataflow()
        for operator in self.operators():
            dataflow.add(changed.get(operator.name, operator))
        for source, target, elements in self.dataflow.edges():
            dataflow.connect(source, target, elements)
        return replace(self, dataflow=dataflow)

    def with_scales(self, together: int) -> Graph:
        """Return the same graph where keys and values in whole numbers have a byte for so many elements of a head."""
        dataflow = Dataflow()
        for operator in self.operators():
            if isinstance(operator, Attention | Vector) and operator.cached is not None and operator.cached.group:
                scales = -(-operator.cached.group // together)
                operator = replace(operator, cached=operator.cached._replace(scale_bytes=scales))
            dataflow.add(operator)
        for source, target, elements in self.dataflow.edges():
            dataflow.connect(source, target, elements)
        return replace(self, dataflow=dataflow)

    def read_as_kept(self) -> Graph:
        """Return the same graph where attention reads keys and values as they are kept, those of a prompt, too.

        A cache in the format of attention's operands needs no word of it.
        """
        kept: dict[str, CacheFormat | None] = {}
        for append, attention in self.caches():
            kept[append.name] = kept[attention.name] = _own_format(attention, append.cached)
        for operator in self.operators():
            if isinstance(operator, Attention) and operator.role is Role.CROSS_ATTENTION and operator.name not in kept:
                kept[operator.name] = _own_format(operator, operator.cached)  # filled in another phase
        dataflow = Dataflow()
        for operator in self.operators():
            if isinstance(operator, Attention | Vector) and operator.name in kept:
                operator = replace(operator, cached=kept[operator.name])
            dataflow.add(operator)
        for source, target, elements in self.dataflow.edges():
            dataflow.connect(source, target, elements)
        return replace(self, dataflow=dataflow)

    def summary(self) -> dict[str, Any]:
        """Plain data for printing as JSON, under the schema ``siliconloom.workload/1``."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "phase": self.phase.value,
            "batch": self.batch,
            "tokens": self.tokens,
            "precision": self.formats,
            "parameters": self.parameters,
            "active_parameters": self.active_parameters,
            "flops": self.flops,
            "unmasked_flops": self.unmasked_flops,
            "macs": self.macs,
            "weight_bytes": self.weight_bytes,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes": self.kv_bytes,
            "state_bytes": self.state_bytes,
            "notes": list(self.notes),
            "operators": [_row(operator) for operator in self.operators()],
        }

    def caches(self) -> list[tuple[Vector, Attention]]:
        """Each append to the key-value cache with the attention, next in its block, that the cache serves."""
        waiting: deque[Vector] = deque()
        pairs = []
        for operator in self.operators():
            if isinstance(operator, Vector) and operator.function is VectorFunction.KV_APPEND:
                waiting.append(operator)
            elif isinstance(operator, Attention) and waiting:
                pairs.append((waiting.popleft(), operator))
        return pairs


def is_optimizer(operator: Operator) -> bool:
    """Tell whether the operator updates parameters."""
    return isinstance(operator, Vector) and operator.function is VectorFunction.OPTIMIZER


def _own_format(operator: Operator, cached: CacheFormat | None) -> CacheFormat | None:
    """The format of a cache where it is not that of the operator that reads or fills it."""
    return None if cached is None or cached.dtype is operator.precision else cached


def _in_format(operator: Operator, dtype: DataType) -> Operator:
    """An operator in another format; a cache that is kept in that needs no word of it."""
    operator = replace(operator, precision=dtype)
    if isinstance(operator, Attention | Vector) and operator.cached is not None:
        return replace(operator, cached=_own_format(operator, operator.cached))
    return operator


def _row(operator: Operator) -> dict[str, Any]:
    shape = {key: value.value if isinstance(value, StrEnum) else value for key, value in operator.shape.items()}
    return {
        "name": operator.name,
        "block": operator.block,
        "role": operator.role.value,
        "kind": operator.kind,
        "repeat": operator.repeat,
        "precision": operator.precision.value,
        **({"weights": str(operator.packing)} if isinstance(operator, Gemm) and operator.packing else {}),
        **(
            {"compression": operator.compression}
            if isinstance(operator, Gemm) and operator.compression is not None
            else {}
        ),
        **({"sparsity": str(operator.sparsity)} if isinstance(operator, Gemm) and operator.sparsity else {}),
        "macs": operator.macs,
        "flops": operator.flops,
        "weight_bytes": operator.weight_bytes,
        "input_bytes": operator.input_bytes,
        "output_bytes": operator.output_bytes,
        "shape": shape,
    }


__all__ = [
    "SCHEMA",
    "Attention",
    "Collective",
    "Dataflow",
    "Gemm",
    "Graph",
    "Operator",
    "Phase",
    "RequestGroup",
    "SharedAttention",
    "Vector",
    "is_optimizer",
]
