"""From operators to tasks: element-wise work joins the GEMM before it, and tiles share every task."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction
from siliconloom.mapper.chip.epilogue import GATED
from siliconloom.mapper.chip.gemm_layout import GemmShape
from siliconloom.mapper.chip.operands import (
    ROUTED,
    Cached,
    Operand,
    Turned,
    attended,
    columns,
    in_its_cache,
    is_append,
    operands,
    takes_all,
)
from siliconloom.workloads import Attention, Gemm, Graph, Operator, Vector
from siliconloom.workloads.graph import Phase

ACTIVATIONS = frozenset({VectorFunction.GELU, VectorFunction.SILU, VectorFunction.RELU, VectorFunction.TANH})


class Task(Struct, frozen=True):
    """An operator with the element-wise operators computed on its results before they leave the tile."""

    operator: Operator
    fused: tuple[Vector, ...] = ()
    depends: bool = True
    """Reads a result of the task before it, or of an earlier one that nothing has waited for yet."""
    serves: str | None = None
    """Operator of the workload that this one brings operands into order for; itself when ``None``."""
    held: int = 0
    """Columns of the rows that hold its first operand, where it reads some of them only."""
    step: int = 1
    """Rows of its first operand from one that it reads to the next."""
    cached: Cached | Turned | None = None
    """The cache that its results go into."""
    common: bool = False
    """Every product of its batch has the same rows: all experts take all tokens."""
    block: int = 0
    """Rows of a block of its first operand, where an array takes it in such; as many as that has where it is zero."""

    def held_by(self, part: Operator) -> int:
        """The same as ``held``, of a part of the operator."""
        return max(self.held * columns(part) // columns(self.operator), columns(part)) if self.held else 0

    @property
    def owner(self) -> str:
        """Operator of the workload that the task's time belongs to."""
        return self.serves or self.operator.name


def refuse_training(chip: Chip, graph: Graph) -> None:
    """Raise `NotSupported` for a training step: our tiles have circuits for what the forward pass is made of alone."""
    if graph.phase is Phase.TRAINING:
        raise NotSupported(
            f"training {graph.name} on {chip.name}: its tiles have no circuit for the loss and the optimizer's step, "
            "and take no gradients, which are products of two results; GPUs train (loom plan dgx-h100, loom sim h100)"
        )


def block_tasks(
    graph: Graph,
    operators: list[Operator],
    tile: NpuTile,
    most: Mapping[str, int] | None = None,
    blocks: Mapping[str, int] = MappingProxyType({}),
) -> list[Task]:
    """Tasks of one block in program order.

    ``most`` says of products how many operators join them at most, and ``blocks`` what `Task.block` is of them.
    """
    linked = graph.dataflow.linked
    tasks: list[Task] = []
    index = 0
    while index < len(operators):
        first = operators[index]
        fused: list[Vector] = []
        index += 1
        tasks += rearrangements(graph, first, tile, linked, blocks.get(first.name, 0))
        if is_append(first) and (appends := _appends(graph, first)):
            tasks += appends
            continue
        limit = len(operators) if most is None else most.get(first.name, len(operators))
        while isinstance(first, Gemm) and index < len(operators) and len(fused) < limit:
            follower = operators[index]
            before = fused[-1] if fused else first
            if not (isinstance(follower, Vector) and _joins(graph, first, fused, before, follower)):
                break
            fused.append(follower)
            index += 1
        found = operands(graph, first)
        held, step = _strides(found[0], columns(first)) if found and linked else (0, 1)
        gathers = isinstance(first, Vector) and first.function is VectorFunction.GATHER
        # gathers keep indices at the end of the results: they wait for one another even where nothing else does
        common = _is_common(graph, first)
        block, waits = blocks.get(first.name, 0), linked or gathers
        tasks.append(Task(first, tuple(fused), waits, held=held, step=step, common=common, block=block))
    return tasks


def _strides(operand: Operand | str, own: int) -> tuple[int, int]:
    """Columns held beside one's own, and rows from one to the next."""
    if isinstance(operand, str):
        return 0, 1
    return (operand.held if operand.held > own else 0), operand.step


def rearrangements(graph: Graph, operator: Operator, tile: NpuTile, linked: bool, block: int = 0) -> list[Task]:
    """What brings operands into the order in which the array takes them, where the workload does not say how.

    - Keys are made token by token, as values are, but the array multiplies with their transpose: what loads B by its
      rows needs new keys transposed. Older ones lie transposed in the cache; their own run has paid for it. Those of
      cross-attention are new in prefill alone. What appends to a cache does so; where nothing does (an encoder), keys
      and values are brought there all the same.
    - Experts take the rows of their tokens, which lie anywhere; where each takes all of them they are in order.
    - An array that keeps its sums takes rows of what it multiplies column by column: they are transposed into blocks.
      What no operator makes (an image's patches) comes in blocks.
    """
    common: dict[str, Any] = {"block": operator.block, "repeat": operator.repeat, "precision": operator.precision}
    if isinstance(operator, Attention):
        if operator.banked and not linked:
            return []  # keys and values are there already
        if linked and in_its_cache(graph, operator):
            return []
        makers = graph.dataflow.predecessors(operator.name) if linked else []
        if any(_appends(graph, graph.dataflow[name]) for name in makers):
            return []
        if fills_cache(operator) and linked:
            return [
                replace(each, serves=operator.name)
                for each in (_append(graph, operator, f"{operator.name}.{kind}", kind) for kind in ("keys", "values"))
            ]
        tokens = operator.kv_len - operator.past
        rows, cols = operator.batch * tokens, operator.kv_heads * operator.head_dim
        name, function = f"{operator.name}.transpose", VectorFunction.TRANSPOSE
        made = Vector(name=name, function=function, rows=rows, cols=cols, **common)
        return [Task(made, (), linked, operator.name)]
    if not isinstance(operator, Gemm):
        return []
    tasks = []
    if _is_expert(operator) and not _after_expert(graph, operator.name) and not takes_all(graph, operator):
        rows = operator.batch * operator.m
        name, function = f"{operator.name}.gather", VectorFunction.GATHER
        made = Vector(name=name, function=function, rows=rows, cols=operator.k, **common)
        tasks.append(Task(made, (), linked, operator.name))
    comes = linked and bool(graph.dataflow.predecessors(operator.name))
    if tile.array.dataflow == "output_stationary" and comes and operator.weight:
        tasks.append(_turned(graph, operator, common, block))
    return tasks


def _turned(graph: Graph, product: Gemm, common: dict[str, Any], block: int) -> Task:
    """Transpose what a product reads into blocks of rows."""
    found = operands(graph, product)
    step = _strides(found[0], columns(product))[1] if found else 1
    turned = Turned(product, _is_common(graph, product), step, block)
    name, rows = f"{product.name}.transpose", turned.sequences * turned.tokens
    made = Vector(name=name, function=VectorFunction.TRANSPOSE, rows=rows, cols=product.k, **common)
    return Task(made, serves=product.name, cached=turned)


def _is_common(graph: Graph, operator: Operator) -> bool:
    """Whether all experts read the same rows."""
    return takes_all(graph, operator) and not _after_expert(graph, operator.name)


def fills_cache(attention: Attention) -> bool:
    """Whether keys and values lie in blocks and panels, as the array takes them."""
    return not attention.values_in_keys


def _appends(graph: Graph, operator: Operator) -> list[Task]:
    """What appends keys, and what appends values, where a graph's operator does both; nothing where it does not."""
    flow = graph.dataflow
    readers = [flow[name] for name in flow.successors(operator.name)] if is_append(operator) else []
    if len(readers) != 1 or not isinstance(readers[0], Attention) or not fills_cache(readers[0]):
        return []
    attention = readers[0]
    keys = replace(_append(graph, attention, f"{operator.name}.keys", "keys"), serves=operator.name)
    return [keys, _append(graph, attention, operator.name, "values")]


def _append(graph: Graph, attention: Attention, name: str, kind: str) -> Task:
    """Transpose the new keys of an attention operator into its cache, or copy its new values."""
    cached = Cached(attention, kind == "keys")
    maker = attended(graph, attention)[1 if cached.keys else 2]
    function = VectorFunction.TRANSPOSE if cached.keys else VectorFunction.KV_APPEND
    common: dict[str, Any] = {"block": attention.block, "repeat": attention.repeat, "precision": attention.precision}
    rows, cols = attention.batch * cached.tokens, attention.kv_heads * cached.width
    common |= {"cached": attention.cached, "banked": attention.banked and cached.keys}
    made = Vector(name=name, function=function, rows=rows, cols=cols, **common)
    return Task(made, held=0 if isinstance(maker, str) else maker.held, cached=cached)


def unlaid(task: Task) -> str | None:
    """Why operands of a task do not lie as the circuits read them, whatever its program says; nothing where they do.

    The program has the cycles of such a task, and no assembler sees what is in its operands.
    """
    operator = task.operator
    if task.serves and isinstance(operator, Vector) and operator.function is VectorFunction.GATHER:
        return ROUTED
    if isinstance(operator, Attention) and operator.values_in_keys:
        return "no layout for a latent cache"  # one tile is read as it lies and transposed
    if isinstance(operator, Attention) and operator.sinks:
        return "no circuit for a score that belongs to no key"
    if isinstance(operator, Attention) and operator.window is not None and operator.window < operator.kv_len:
        return "no layout for a sliding window"  # it begins within a block, and masks have no lower edge
    if isinstance(operator, Gemm) and not operator.weight and task.depends:
        return "no layout for a product of two results"  # the second one lies in rows, and not in panels
    return None


def _is_expert(operator: Operator) -> bool:
    return isinstance(operator, Gemm) and operator.stored is not None


def _after_expert(graph: Graph, name: str) -> bool:
    """Whether an operand is an expert's result, perhaps through an activation: its rows are in order already."""
    for before in graph.dataflow.predecessors(name):
        operator = graph.dataflow[before]
        if _is_expert(operator) or (
            isinstance(operator, Vector)
            and any(_is_expert(graph.dataflow[n]) for n in graph.dataflow.predecessors(before))
        ):
            return True
    return False


def _joins(graph: Graph, gemm: Gemm, fused: list[Vector], before: Operator, follower: Vector) -> bool:
    if graph.dataflow.successors(before.name) != [follower.name]:
        return False
    elements = gemm.batch * gemm.m * gemm.n
    if any(v.function in GATED for v in fused):
        elements //= 2
    own = follower.rows * follower.cols
    if follower.function in ACTIVATIONS:
        return own == elements
    if follower.function in GATED:
        return own * 2 == elements and gemm.n % 2 == 0 and not fused
    return (
        follower.function == VectorFunction.ADD
        and follower.inputs == 2
        and own == elements
        and not any(v.function == VectorFunction.ADD for v in fused)
    )


def gemm_shape(part: Operator, task: Task) -> GemmShape:
    """What a tile computes of a product, its epilogue included."""
    assert isinstance(part, Gemm)
    functions = tuple(v.function for v in task.fused) or (VectorFunction.REQUANTIZE,)
    return GemmShape(
        batch=part.batch,
        m=part.m,
        n=part.n,
        k=part.k,
        dtype=part.precision,
        weight=part.weight,
        functions=functions,
        output_halved=any(f in GATED for f in functions),
        residual=VectorFunction.ADD in functions,
        listed=not task.depends,
        step=task.step,
        common=task.common,
        packing=part.stored_as,
        compression=part.compression,
        block=task.block,
    )
