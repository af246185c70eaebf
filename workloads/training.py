"""From a forward graph to one training step: backward of every block in reverse order, then the optimizer.

Matrix work: a `Gemm` of the forward pass is followed by two of the same size (gradient of its input, gradient of its
weights; of an image's patches the latter alone), and attention by the five products of its fused backward, which
computes the scores again: 2.5 times its forward work where keys and values are equally wide. The optimizer is Adam's
with an fp32 state.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from msgspec.structs import replace

from siliconloom.arch.datatype import DataType
from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.operators import Attention, Gemm, Operator, Vector
from siliconloom.workloads.roles import Pass, Place, Role

Block = tuple[str, int, list[Operator]]

# Operands read and results written by the backward of a function; (2, 1) is "input and gradient in, gradient out".
_OPERANDS = {
    VectorFunction.GATED_GELU: (3, 2),  # gate, up and the gradient in; their two gradients out
    VectorFunction.GATED_SILU: (3, 2),
    VectorFunction.ROPE: (1, 1),  # turns the gradient back
    VectorFunction.MULTIPLY: (1, 1),
    VectorFunction.SOFTMAX: (1, 1),
}
_INSTEAD = {
    VectorFunction.GATHER: VectorFunction.ADD,  # adds the gradient into rows of the table
    VectorFunction.SOFTMAX: VectorFunction.ADD,  # the loss: probabilities minus the label
    VectorFunction.TOP_K: VectorFunction.MULTIPLY,
}


def training_graph(forward: Dataflow, blocks: list[Block], hidden: int) -> Dataflow:
    """One training step.

    Gradients, like the operands, are at the precision of their forward operator. Where a value is used more than
    once, ``<name>.gradient`` sums what flows back; an `ADD` or a `COMBINE` passes its gradient on as it is. The sums of
    a bias gradient are part of the weight gradient.

    Parameters
    ----------
    forward, blocks
        Graph of a forward pass over all tokens, and its blocks in program order.
    hidden
        Width of the model; the optimizer's matrices are as wide where that divides a block's parameters, else as
        wide as the greatest common divisor.
    """
    graph = Dataflow()
    for operator in forward.operators():
        graph.add(operator)
    for source, target, elements in forward.edges():
        graph.connect(source, target, elements)
    step = _Step(forward, graph)
    for block in reversed(blocks):
        step.add_backward(block)
    for block in blocks:
        step.add_optimizer(block, hidden)
    return graph


class _Step:
    """Adds the backward and optimizer operators.

    ``gradients[u]`` lists the makers of u's gradient and the elements that each contributes;
    ``weight_gradients[u]`` the makers of the gradient of u's parameters.
    """

    def __init__(self, forward: Dataflow, graph: Dataflow) -> None:
        self.forward, self.graph = forward, graph
        self.gradients: dict[str, list[tuple[str, int]]] = {}
        self.weight_gradients: dict[str, list[str]] = {}

    def add_backward(self, block: Block) -> None:
        """Backward of all operators of a block, last first, then the sums at values that enter the block."""
        name, repeat, operators = block
        common = {"block": f"{name}.backward", "repeat": repeat}
        for operator in reversed(operators):
            place = replace(operator.place, forward=operator.name, forward_block=name)
            self._sum(operator, f"{operator.name}.gradient", common, place)
            makers = self._differentiate(operator, {**common, "precision": operator.precision}, place)
            for source, elements in self._operands(operator):
                self.gradients.setdefault(source, []).extend((maker, elements) for maker in makers)
        inside = {operator.name for operator in operators}
        entering = [u for u in self.forward if u not in inside and inside.intersection(self.forward.successors(u))]
        for index, source in enumerate(entering):
            entry = f"{name}.entry.gradient" if index == 0 else f"{name}.entry_{index}.gradient"
            maker = self.forward[source]
            place = Place(role=Role.ENTRY, section=operators[0].place.section, forward=source, forward_block=name)
            self._sum(maker, entry, common, place)

    def add_optimizer(self, block: Block, hidden: int) -> None:
        """Adam on a block's parameters: reads weight, gradient and two moments, writes weight and moments."""
        name, repeat, operators = block
        parameters = sum(operator.parameters for operator in operators)
        if not parameters:
            return
        cols = gcd(parameters, hidden)
        optimizer = Vector(
            name=f"{name}.optimizer",
            block=f"{name}.optimizer",
            repeat=repeat,
            precision=DataType.FP32,
            place=Place(section=operators[0].place.section, step=Pass.OPTIMIZER, forward_block=name),
            function=VectorFunction.OPTIMIZER,
            rows=parameters // cols,
            cols=cols,
            inputs=4,
            outputs=3,
        )
        self._add(optimizer)
        for operator in operators:
            for maker in self.weight_gradients.get(operator.name, []):
                elements = self.graph[maker].output_elements
                self.graph.connect(maker, optimizer.name, elements)

    def _differentiate(self, operator: Operator, common: dict[str, Any], place: Place) -> list[str]:
        """Add the backward of one operator; returns the makers of the gradient of its operands."""
        if isinstance(operator, Gemm):
            return self._gemm(operator, common, place)
        if isinstance(operator, Attention):
            return self._attention(operator, common, place)
        assert isinstance(operator, Vector)
        if operator.function in (VectorFunction.ADD, VectorFunction.COMBINE):
            return [maker for maker, _ in self.gradients.get(operator.name, [])]
        return self._vector(operator, common, place)

    def _gemm(self, gemm: Gemm, common: dict[str, Any], place: Place) -> list[str]:
        """Gradients of its input, where an operator makes that, and of its weights.

        Of experts that are ``short`` of a row the sums of weights' gradients are one shorter, in an operator of theirs.
        """
        shared = {"weight": False, **common}
        sizes: dict[str, Any] = {"m": gemm.m, "n": gemm.k, "k": gemm.n, "batch": gemm.batch}
        operands = self._operands(gemm)
        at = replace(place, step=Pass.INPUT_GRADIENT)
        of_input = Gemm(name=f"{gemm.name}.input_gradient", place=at, short=gemm.short, **sizes, **shared)
        if operands:
            self._add(of_input, gemm.name)
        at, name = replace(place, step=Pass.WEIGHT_GRADIENT), f"{gemm.name}.weight_gradient"
        parts = [(name, gemm.batch - gemm.short, gemm.m), (f"{name}_fewer", gemm.short, gemm.m - 1)]
        for each, batch, rows in parts:
            if batch and rows:
                self._add(
                    Gemm(name=each, m=gemm.k, n=gemm.n, k=rows, batch=batch, place=at, **shared),
                    gemm.name,
                    stored=operands,
                )
                self.weight_gradients.setdefault(gemm.name, []).append(each)
        return [of_input.name] if operands else []

    def _attention(self, attention: Attention, common: dict[str, Any], place: Place) -> list[str]:
        """Fused backward (FlashAttention-2, arXiv:2307.08691, algorithm 2): S, dP, dV, dQ and dK.

        In terms of `Attention`: one of the forward's shape computes S and dV; one with queries and keys as wide as
        values (dO and V) and values twice as wide as keys computes dP, dQ and dK.
        """
        shape = {**attention.shape, **common, "place": replace(place, step=Pass.VALUES_GRADIENT)}
        values = Attention(name=f"{attention.name}.values_gradient", **shape)
        shape.update(head_dim=attention.v_head_dim, v_head_dim=2 * attention.head_dim)
        shape["place"] = replace(place, step=Pass.KEYS_GRADIENT)
        keys = Attention(name=f"{attention.name}.keys_gradient", **shape)
        stored = self._operands(attention)
        self._add(values, attention.name, stored=stored)
        self._add(keys, attention.name, stored=[*stored, (values.name, values.output_elements)])
        if attention.parameters:  # of scores that belong to no key: the sums of what the softmax gave them
            self.weight_gradients.setdefault(attention.name, []).append(keys.name)
        return [keys.name]

    def _vector(self, vector: Vector, common: dict[str, Any], place: Place) -> list[str]:
        inputs, outputs = _OPERANDS.get(vector.function, (2, 1))
        backward = Vector(
            name=f"{vector.name}.backward",
            function=_INSTEAD.get(vector.function, vector.function),
            rows=vector.rows,
            cols=vector.cols,
            inputs=inputs,
            outputs=outputs,
            place=replace(place, step=Pass.BACKWARD),
            **common,
        )
        if vector.function is VectorFunction.SOFTMAX:  # the loss starts from its own result
            self._add(backward, vector.name, stored=[(vector.name, vector.output_elements)])
        else:
            self._add(backward, vector.name, stored=self._operands(vector) if inputs > 1 else [])
        if vector.weights:
            self.weight_gradients.setdefault(vector.tied or vector.name, []).append(backward.name)
        return [backward.name]

    def _sum(self, operator: Operator, name: str, common: dict[str, Any], place: Place) -> None:
        """Add the sum of an operator's gradients where they overlap; parts that do not need none."""
        parts = self.gradients.get(operator.name, [])
        total = sum(elements for _, elements in parts)
        if len(parts) < 2 or total <= operator.output_elements:
            return
        if isinstance(operator, Gemm):
            rows, cols = operator.rows, operator.n
        else:
            assert isinstance(operator, Vector)
            rows, cols = operator.rows, operator.cols
        inputs = -(-total // operator.output_elements)
        add = Vector(
            name=name,
            function=VectorFunction.ADD,
            rows=rows,
            cols=cols,
            inputs=inputs,
            precision=operator.precision,
            place=replace(place, step=Pass.GRADIENT_SUM),
            **common,
        )
        self._add(add, operator.name)
        self.gradients[operator.name] = [(add.name, add.output_elements)]

    def _operands(self, operator: Operator) -> list[tuple[str, int]]:
        return self.forward.inputs(operator.name)

    def _add(self, operator: Operator, of: str | None = None, stored: list[tuple[str, int]] | None = None) -> None:
        """Add an operator that reads the gradient of the forward operator ``of`` and ``stored`` results."""
        self.graph.add(operator)
        for source, elements in (self.gradients.get(of, []) if of else []) + (stored or []):
            self.graph.connect(source, operator.name, elements)
