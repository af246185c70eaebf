"""The part of a workload that one chip does when several share it: a transform of the operator graph.

Tensor parallelism is Megatron's (Shoeybi et al., arXiv:1909.08053, section 3): what makes queries, keys and values and
what widens the feed-forward network are cut by columns, what follows attention and what narrows it again by rows, with
a sum over the chips after each of those two, and after the input gradient of the former on the way back; norms and
residual sums are repeated on every chip, or with sequence parallelism shared by tokens (Korthikanti et al.,
arXiv:2205.05198), which cuts each sum into a reduce-scatter and an all-gather. Context parallelism shares the tokens
of every sequence, expert parallelism the experts, to which tokens travel and from which they come back.

The messages become operators of the graph, `Collective`, between those that make what they carry and those that use it.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil, gcd
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.workloads import Attention, Collective, Gemm, Graph, Operator, Phase, SharedAttention, Vector
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.graph import is_optimizer
from siliconloom.workloads.recurrence import Recurrence
from siliconloom.workloads.roles import EXPERTS, Pass, Role, Section

COLUMNS = frozenset({Role.QKV, Role.COLUMN_PARALLEL, Role.CROSS_KEYS_VALUES, Role.SHARED_COLUMN, Role.HEAD})
"""Products whose result is cut."""
ROWS = frozenset({Role.ROW_PARALLEL, Role.SHARED_ROW})
"""Products whose sum is cut."""
WHOLE = frozenset({Role.ROUTER, Role.WHOLE})
"""Products that every chip does itself."""
CUT = frozenset({Role.CACHE, Role.CROSS_CACHE, Role.LATENT_CACHE, Role.ROPE, Role.LATENT_ROPE, Role.ACTIVATION})
"""Functions whose columns are cut with the product before them."""
RESIDUAL = frozenset({Role.NORM, Role.RESIDUAL, Role.JOINT_NORM, Role.JOINT_RESIDUAL, Role.ENTRY})
"""What is done to the residual stream, between the layers' halves."""
REPEATED = frozenset(
    {Role.TABLE, Role.EMBEDDING, Role.WHOLE, Role.ROUTE, Role.COMBINE, Role.FINAL_NORM, Role.LATENT_NORM, Role.SAMPLE}
)
"""Functions that every chip does itself, of all of its tokens."""
SIZES = {Pass.FORWARD: ("m", "n", "k"), Pass.INPUT_GRADIENT: ("m", "k", "n"), Pass.WEIGHT_GRADIENT: ("k", "n", "m")}
"""Rows, columns and sums of C[m,n] = A[m,k] B[k,n], and where they are in C' B^T [m,k,n] and in A^T C' [k,n,m]."""


class Split(Struct, frozen=True):
    """Chips that share a replica of the model.

    Parameters
    ----------
    tensor
        Chips that share every product.
    sequence
        Those chips share norms and residual sums too, by tokens.
    context, scheme
        Chips that share every sequence, and how their attention meets all keys: a scheme of `mapper.context`.
    expert
        Chips that hold different experts. Their tokens are different too: they are chips of the data or context
        dimension, or of the tensor dimension as far as ``expert_tensor`` is smaller than ``tensor``.
    expert_tensor
        Chips that share each expert; ``None`` means as many as ``tensor``.
    expert_load
        Rows of the experts of the chip that gets most, over the mean (`mapper.experts` has it of a placement).
    expert_copies
        Further experts on each chip, copies of others'; all are taken to be used, so that their weights are read.
    """

    tensor: int = 1
    sequence: bool = False
    context: int = 1
    scheme: str = "ring"
    expert: int = 1
    expert_tensor: int | None = None
    expert_load: float = 1.0
    expert_copies: int = 0

    @property
    def sharing(self) -> int:
        """Chips that share each expert."""
        return self.tensor if self.expert_tensor is None else self.expert_tensor


def share(graph: Graph, split: Split, *, messages: bool = True, key: str = "plan") -> Graph:
    """The part of one chip; the others' are alike.

    Parameters
    ----------
    messages
        Put collectives into the graph.
    key
        Where degrees are set, for errors: ``plan`` or ``policy``.

    Raises
    ------
    LoomError
        When heads, widths, tokens or experts cannot be shared evenly.
    NotSupported
        For operators that have no place in the schemes.
    """
    if split == Split():
        return graph
    refuse_recurrent(graph, f"{key} of")
    return _Sharing(graph, split, messages, key).run()


def refuse_recurrent(graph: Graph, what: str) -> None:
    """Raise `NotSupported` for a model whose sequences have states: there is no scheme that shares those."""
    found = next((o for o in graph.operators() if isinstance(o, Recurrence)), None)
    if found is not None:
        name = f"{found.name} ({found.function.value})"
        raise NotSupported(f"{what} {graph.name}: chips have no scheme to share the states of {name}; take one chip")


def first_expert(graph: Graph, operator: Operator) -> Gemm:
    """The first product of the experts of the layer that an operator is part of.

    Raises
    ------
    NotSupported
        Where experts have different numbers of rows, each of which would have to be shared by itself.
    """
    found, alike = _experts_beside(graph, operator)
    if not alike:
        what = "experts of unequal popularity (workload.expert_popularity)"
        raise NotSupported(
            f"chips that share {what}, but for columns of each (plan.tensor, without plan.expert and plan.context); "
            "plan.expert_load and plan.expert_routing say it of plans"
        )
    return found


def _experts_beside(graph: Graph, operator: Operator) -> tuple[Gemm, bool]:
    """The first product of the experts of an operator's layer, and whether all experts have as many rows."""
    found = graph.beside(operator, Role.EXPERT_COLUMN)
    assert isinstance(found, Gemm)
    places = found.block, found.place.layer
    beside = [o for o in graph.operators() if o.role is Role.EXPERT_COLUMN and (o.block, o.place.layer) == places]
    forward = [o for o in beside if o.place.step is Pass.FORWARD]
    idle = (found.stored or found.batch) > found.batch and found.m > 1
    return found, len(forward) == 1 and not idle


CHUNK = "several tokens behind earlier ones (workload.context in prefill, workload.sequence in decode)"
"""What plans refuse that are for whole prompts, or for one token of each sequence."""


def summed(operator: Operator) -> bool:
    """Tell whether tensor-parallel chips each have a part of the operator's sums."""
    return operator.place.step is Pass.FORWARD and operator.role in (Role.ROW_PARALLEL, Role.COMBINE)


class _Sharing:
    """One transform in the making."""

    def __init__(self, graph: Graph, split: Split, messages: bool, key: str) -> None:
        self.graph, self.split, self.messages, self.key = graph, split, messages, key
        self.operators: dict[str, Operator] = {o.name: o for o in graph.operators()}
        self.made = Dataflow()
        self.context = split.context if graph.phase is not Phase.DECODE else 1
        spread, sharing = split.tensor, split.sharing
        if spread % sharing:
            raise LoomError(
                f"{key}.expert_tensor: {sharing} does not divide {key}.tensor, {spread}: chips that share an expert "
                "are chips that share all products"
            )
        self.apart = spread // sharing
        """Parts into which tokens of tensor-parallel chips are cut before they go to experts."""
        self.all_rows = split.expert == self.apart == split.context == 1
        """Every chip has all rows of every expert, and columns of it: so they need not have as many."""

    def run(self) -> Graph:
        last: dict[str, str] = {}
        for operator in self.graph.operators():
            before, changed, after = self._change(operator)
            for message in before:
                self._add(message)
            self.made.add(changed)
            entry = before[0].name if before else operator.name
            for origin, elements in self.graph.dataflow.inputs(operator.name):
                was, now = self.operators[origin], self.made[origin]
                part = -(-elements * now.output_elements // (was.output_elements or 1))
                self.made.connect(last[origin], entry, part)
            for earlier, later in pairwise([*before, changed]):
                self.made.connect(earlier.name, later.name, earlier.output_elements)
            at = operator.name
            for message in after:
                self._add(message)
                self.made.connect(at, message.name, message.elements)
                at = message.name
            last[operator.name] = at
        resting = tuple(self._change(operator)[1] for operator in self.graph.resting)
        return replace(self.graph, dataflow=self.made, resting=resting)

    def _add(self, message: Collective) -> None:
        self.made.add(message)

    # one operator

    def _change(self, operator: Operator) -> tuple[list[Collective], Operator, list[Collective]]:
        """Messages before it, its part, messages after it."""
        if isinstance(operator, Attention):
            return self._attention(operator)
        changed: Operator
        if isinstance(operator, Gemm):
            changed = self._gemm(operator)
        else:
            assert isinstance(operator, Vector)
            if is_optimizer(operator):
                return [], self._optimizer(operator), []
            changed = self._vector(operator)
        if not self.messages:
            return [], changed, []
        before, after = self._messages(operator, changed)
        return before, changed, after

    def _gemm(self, gemm: Gemm) -> Gemm:
        role, t = gemm.role, self.split.tensor
        rows, columns, sums = SIZES[gemm.place.step]
        tokens = self._tokens(gemm, getattr(gemm, rows))
        if role in EXPERTS:
            return self._expert_gemm(gemm, rows, columns if role is Role.EXPERT_COLUMN else sums)
        changes: dict[str, Any] = {rows: tokens}
        if role is Role.HEAD:
            changes[columns] = -(-getattr(gemm, columns) // t)
        elif role in COLUMNS:
            changes[columns] = self._columns(gemm, columns)
        elif role in ROWS:
            changes[sums] = self._even(gemm, getattr(gemm, sums), t, "rows", "tensor")
        elif role is Role.HEADWISE:
            changes["batch"] = self._even(gemm, gemm.batch, t, "heads", "tensor")
        elif role not in WHOLE and t > 1:
            raise NotSupported(f"tensor parallelism of {gemm.name} ({gemm.kind}) in {self.graph.name}")
        return replace(gemm, unbiased=gemm.unbiased // t, **changes)

    def _columns(self, gemm: Gemm, columns: str) -> int:
        """Columns of a chip; key-value heads fewer than the chips are repeated."""
        t, whole = self.split.tensor, int(getattr(gemm, columns))
        if gemm.role is Role.QKV:
            heads = self._heads(gemm)
            if heads is not None and heads.kv_heads % t and t % heads.kv_heads == 0 and heads.heads % t == 0:
                one = heads.head_dim + heads.v_head_dim
                return (whole - heads.kv_heads * one) // t + one  # with a gate beside queries, where there is one
        return self._even(gemm, whole, t, "columns", "tensor")

    def _heads(self, operator: Operator) -> Attention | None:
        """Attention of the layer that an operator is part of."""
        found = self.graph.beside(operator, Role.ATTENTION)
        return found if isinstance(found, Attention) else None

    def _expert_gemm(self, gemm: Gemm, rows: str, cut: str) -> Gemm:
        batch, m, stored = self._experts(gemm, (gemm.batch, getattr(gemm, rows), gemm.stored or gemm.batch))
        each = self._even(gemm, getattr(gemm, cut), self.split.sharing, "columns of experts", "expert_tensor")
        changes: dict[str, Any] = {"batch": batch, rows: m, cut: each}
        if (batch, m) != (gemm.batch, getattr(gemm, rows)):
            changes["short"] = 0  # of other chips some may have fewer, and all wait for those that have not
        changed = replace(gemm, **changes)
        return changed if gemm.stored is None else replace(changed, stored=stored)

    def _first(self, operator: Operator) -> Gemm:
        """The first product of the experts of an operator's layer; others may have other rows where chips have all."""
        if self.all_rows:
            return _experts_beside(self.graph, operator)[0]
        return first_expert(self.graph, operator)

    def _experts(self, operator: Operator, own: tuple[int, int, int]) -> tuple[int, int, int]:
        """Experts that a chip computes, rows of each, and experts that it stores; ``own`` are those of the operator."""
        if self.all_rows and not _experts_beside(self.graph, operator)[1]:
            return own
        whole = first_expert(self.graph, operator)
        assert whole.chosen is not None
        stored = self._even(whole, whole.stored or whole.batch, self.split.expert, "experts", "expert")
        stored += self.split.expert_copies
        total = self._routed(whole) * self.split.expert
        active = min(stored * self.split.expert, total)
        return -(-active // self.split.expert), ceil(total * self.split.expert_load / active), stored

    def _routed(self, operator: Operator) -> int:
        """Rows that a chip sends to experts: its tokens, each as often as experts are chosen for it."""
        whole = self._first(operator)
        return -(-self.graph.tokens // (self.context * self.apart)) * (whole.chosen or 1)

    def _attention(self, attention: Attention) -> tuple[list[Collective], Operator, list[Collective]]:
        t, split = self.split.tensor, self.split
        heads = self._even(attention, attention.heads, t, "heads", "tensor")
        kv_heads = attention.kv_heads
        if kv_heads == 1 or (kv_heads % t and t % kv_heads == 0):
            kv_heads = max(kv_heads // t, 1)
        else:
            kv_heads = self._even(attention, kv_heads, t, "key-value heads", "tensor")
        changed = replace(attention, heads=heads, kv_heads=kv_heads)
        if split.context == 1:
            return [], changed, []
        if attention.role is Role.CROSS_ATTENTION:
            raise LoomError(f"{self.key}.context: chips do not share sequences of an encoder and a decoder")
        if attention.follows:
            raise LoomError(f"{self.key}.context: chips do not share keys of {CHUNK}")
        if self.graph.phase is Phase.DECODE:
            merged = changed.batch * heads * (changed.v_head_dim + 2)  # with the largest score and the sum of each
            changed = replace(changed, kv_len=-(-changed.kv_len // split.context))
            return [], changed, [self._collective(attention, "all_reduce", "context", merged)] * self.messages
        labels = {"name": changed.name, "block": changed.block, "repeat": changed.repeat, "place": changed.place}
        self._even(attention, attention.q_len, split.context, "tokens", "context")
        fields = {**changed.shape, **labels, "precision": changed.precision}
        shared = SharedAttention(**fields, sinks=attention.sinks, ranks=split.context, scheme=split.scheme)
        return [], shared, []

    def _vector(self, vector: Vector) -> Vector:
        """A function of the forward pass, its backward, or the sum of an operator's gradients."""
        t, role = self.split.tensor, vector.role
        if role in RESIDUAL:
            return self._residual(vector)
        if role in EXPERTS:
            return self._expert_vector(vector)
        forward = self.operators.get(vector.place.forward or vector.name)
        if isinstance(forward, Gemm):  # a sum of its gradients
            return replace(vector, rows=self._tokens(vector, vector.rows), cols=self._gemm(forward).n)
        if role in (Role.ROUTE, Role.COMBINE) and self.apart > 1:
            return replace(vector, rows=-(-self._tokens(vector, vector.rows) // self.apart))
        if role in CUT:
            return self._cut_vector(vector)
        if role in (Role.QUERY_NORM, Role.KEY_NORM):  # a row for every head
            rows = self._tokens(vector, vector.rows)
            heads = self._heads(vector)
            if role is Role.KEY_NORM and heads is not None and t % heads.kv_heads == 0:
                return replace(vector, rows=rows // min(t, heads.kv_heads))
            return replace(vector, rows=self._even(vector, rows, t, "rows", "tensor"))
        if role is Role.POSITION_BIAS:  # a column for every head
            cols = self._even(vector, vector.cols, t, "heads", "tensor")
            return replace(vector, cols=cols, weights=vector.weights // t)
        if role is Role.SCORE_BIAS:
            return replace(vector, rows=self._even(vector, vector.rows, t, "rows", "tensor"))
        if role is Role.LOSS:
            return replace(vector, rows=self._tokens(vector, vector.rows), cols=-(-vector.cols // t))
        if role is Role.EMBEDDING and vector.cols == self._model_width():
            return self._residual(vector)
        if role in REPEATED:
            table = -(-vector.weights // t) if role is Role.TABLE else vector.weights
            return replace(vector, rows=self._tokens(vector, vector.rows), weights=table)
        raise NotSupported(f"sharing {vector.name} ({vector.kind}) in {self.graph.name}")

    def _optimizer(self, vector: Vector) -> Vector:
        """The update of the parameters that the chip's part of a block has."""
        block = vector.forward_block
        parameters = sum(o.parameters for o in self.made.operators() if o.block == block)
        cols = gcd(parameters, vector.cols)
        return replace(vector, rows=parameters // cols, cols=cols)

    def _cut_vector(self, vector: Vector) -> Vector:
        t, heads, role = self.split.tensor, self._heads(vector), vector.role
        rows = self._tokens(vector, vector.rows)
        if role is not Role.ACTIVATION and heads is not None:
            if role is Role.LATENT_CACHE:  # every chip has all of it
                return replace(vector, rows=rows)
            if role is Role.LATENT_ROPE:  # all of the one key, and the queries of a chip's heads
                return replace(vector, rows=rows, cols=(heads.heads // t + 1) * (vector.cols // (heads.heads + 1)))
            if heads.kv_heads % t and t % heads.kv_heads == 0:
                whole = heads.heads + heads.kv_heads if role is Role.ROPE else heads.kv_heads
                part = heads.heads // t + 1 if role is Role.ROPE else 1
                return replace(vector, rows=rows, cols=vector.cols // whole * part)
        return replace(vector, rows=rows, cols=self._even(vector, vector.cols, t, "columns", "tensor"))

    def _expert_vector(self, vector: Vector) -> Vector:
        batch, rows, _ = self._experts(vector, (1, vector.rows, 1))
        cols = vector.cols
        if vector.role is not Role.EXPERT_ROW:
            cols = self._even(vector, cols, self.split.sharing, "columns of experts", "expert_tensor")
        return replace(vector, rows=batch * rows, cols=cols)

    def _model_width(self) -> int:
        """Columns of the residual stream: of the first norm of a layer."""
        vectors = (o for o in self.operators.values() if isinstance(o, Vector))
        return next((o.cols for o in vectors if o.place.section is not Section.EMBEDDING), 0)

    def _residual(self, vector: Vector) -> Vector:
        """Norms and residual sums: a row of the model's width for every token."""
        rows = self._tokens(vector, vector.rows)
        return replace(vector, rows=-(-rows // self.split.tensor) if self.split.sequence else rows)

    # messages

    def _messages(self, operator: Operator, changed: Operator) -> tuple[list[Collective], list[Collective]]:
        role, step, t = operator.role, operator.place.step, self.split.tensor
        before: list[Collective] = []
        after: list[Collective] = []
        forward, returned = step is Pass.FORWARD, step is Pass.INPUT_GRADIENT
        late = {Role.SHARED_ROW, Role.SHARED_COLUMN} if self.apart == 1 else set()  # summed with the experts' results
        if t > 1 and role not in late and ((role in ROWS and forward) or (role in COLUMNS and returned)):
            after += self._sum(operator, changed.output_elements)
        if role is Role.HEAD and forward and t > 1 and self.graph.phase is not Phase.TRAINING:
            after.append(self._collective(operator, "all_gather", "tensor", changed.output_elements * t))
        if role in EXPERTS:
            before, after = self._exchange(operator)
        elif t > 1 and ((role is Role.COMBINE and forward) or (role is Role.ROUTER and returned)):
            after += self._after_experts(operator)
        elif role is Role.TABLE and forward and t > 1:  # the table of a vocabulary is cut, too
            kind = "reduce_scatter" if self.split.sequence else "all_reduce"
            after.append(self._collective(operator, kind, "tensor", changed.output_elements))
        return before, after

    def _exchange(self, operator: Operator) -> tuple[list[Collective], list[Collective]]:
        """Tokens go to their experts before the first product and come back after the last; gradients the other way."""
        if self.split.expert == 1:
            return [], []
        hidden = self._first(operator).k
        size = ceil(self._routed(operator) * hidden * self.split.expert_load)
        message = self._collective(operator, "all_to_all", "expert", size)
        role, step = operator.role, operator.place.step
        if (role, step) in ((Role.EXPERT_COLUMN, Pass.FORWARD), (Role.EXPERT_ROW, Pass.INPUT_GRADIENT)):
            return [message], []
        if (role, step) in ((Role.EXPERT_ROW, Pass.FORWARD), (Role.EXPERT_COLUMN, Pass.INPUT_GRADIENT)):
            return [], [message]
        return [], []

    def _after_experts(self, operator: Operator) -> list[Collective]:
        """Sums over the chips that share an expert, then every tensor-parallel chip gets the others' tokens."""
        elements = -(-self.graph.tokens // (self.context * self.apart)) * self._first(operator).k
        if self.apart == 1:
            return self._sum(operator, elements)
        found = []
        if self.split.sharing > 1:
            found.append(self._collective(operator, "all_reduce", "expert_tensor", elements))
        if not self.split.sequence:
            found.append(self._collective(operator, "all_gather", "tensor", elements * self.apart))
        return found

    def _sum(self, operator: Operator, elements: int) -> list[Collective]:
        if not self.split.sequence:
            return [self._collective(operator, "all_reduce", "tensor", elements)]
        # The norm or sum that comes between works on a chip's tokens; it is the same bytes wherever it is gathered.
        return [self._collective(operator, o, "tensor", elements) for o in ("reduce_scatter", "all_gather")]

    def _collective(self, operator: Operator, operation: str, dimension: str, elements: int) -> Collective:
        return Collective(
            name=f"{operator.name}.{operation}",
            block=operator.block,
            repeat=operator.repeat,
            precision=operator.precision,
            place=replace(operator.place, role=Role.MESSAGE),
            operation=operation,
            dimension=dimension,
            elements=elements,
        )

    # sizes

    def _tokens(self, operator: Operator, rows: int) -> int:
        """Rows that are tokens are shared by context parallelism; those of one a sequence are not."""
        if self.context == 1 or rows < self.graph.tokens:
            return rows
        return self._even(operator, rows, self.context, "tokens", "context")

    def _even(self, operator: Operator, size: int, parts: int, what: str, degree: str) -> int:
        if size % parts:
            near = [n for n in (*range(parts, 0, -1), *range(parts, 2 * parts)) if size % n == 0]
            ways = " or ".join(str(n) for n in sorted({near[0], near[-1]}))
            raise LoomError(
                f"{self.graph.name}: {operator.name}: {parts} chips cannot share {size} {what} evenly, {ways} can "
                f"({self.key}.{degree})"
            )
        return size // parts
