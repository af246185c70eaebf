"""From the nodes of an ONNX file to operators: one row of `OPERATORS` for each kind of node that means something."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from siliconloom.arch.datatype import DataType
from siliconloom.arch.vector import VectorFunction
from siliconloom.models.onnx import MOST_SIZE, OnnxNode
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.onnx.attention import Mask, last_axis
from siliconloom.workloads.onnx.attention_node import heads_of, pairs_of
from siliconloom.workloads.onnx.net import OnnxNet
from siliconloom.workloads.onnx.pieces import Piece, apart, piece_of
from siliconloom.workloads.onnx.products import convolution_shape, product_shape
from siliconloom.workloads.operators import Attention, Gemm, Operator, Vector
from siliconloom.workloads.roles import Place, Role

MOVING = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Tile", "DepthToSpace", "SpaceToDepth")
CHANNELS_KEPT = ("Slice", "Split", "Concat", "Pad")
LAYOUT = frozenset((*MOVING, *CHANNELS_KEPT, "Identity", "Dropout", "Cast"))
"""Nodes that only move values, or change their format: free here, and looked through."""
COMPARING = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Where", "And", "Or", "Xor", "Not", "Sign")
COUNTING = ("Abs", "Mod", "Max", "Min", "CumSum", "CumProd", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum")
BITS = ("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "BitCast")
PLACES = ("Range", "ConstantOfShape", "EyeLike", "OneHot", "TopK", "Trilu", "ReverseSequence", "CastLike")
TAKEN = ("GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND", "TensorScatter")
TEXT = ("StringConcat", "StringNormalizer", "RegexFullMatch")
INDICES = frozenset((*COMPARING, *COUNTING, *BITS, *PLACES, *TAKEN, *TEXT))
"""Nodes that take no time where all of their numbers are whole: they find places, lengths and masks.

Anything else that works on whole numbers is work, such as a product of quantised values, and is refused.
"""
FORMATS = {each.value: each for each in (DataType.FP32, DataType.FP16, DataType.BF16)}
FORMATS |= {each.value: each for each in (DataType.FP8_E4M3, DataType.FP8_E5M2)}
LONGEST_NAME = 80
Part = tuple[str, int]
"""An operator, and elements of its result."""


class OnnxOperators:
    """Builds operators node by node.

    Parameters
    ----------
    net
        Nodes, with what belongs together fused.
    precision
        Format of all operators; each one's own where it is ``None``.
    """

    def __init__(self, net: OnnxNet, precision: DataType | None) -> None:
        self.net, self.precision = net, precision
        self.dataflow = Dataflow()
        self.notes: dict[str, None] = {}
        self._parts: dict[str, tuple[Part, ...]] = {}
        """Who makes a tensor; nobody makes an input of the model."""
        self._channels: set[str] = set()
        """Tensors whose columns are their second axis: what convolutions make."""
        self._tables: dict[str, str] = {}
        """Operators that read rows of weights of the file, and those weights."""
        self._stored: dict[str, str] = {}
        """Weights of the file, and the operators that store them."""
        self._readers: dict[str, list[tuple[str, Piece]]] = {}
        """Weights of the file, and the products that read them, or pieces of them."""

    def build(self) -> Dataflow:
        """All of them.

        Raises
        ------
        LoomError
            For a node that is no operator here.
        """
        for node in self.net.nodes:
            if node.kind in OPERATORS:
                OPERATORS[node.kind](self, node)
            elif node.kind in LAYOUT:
                self._pass(node)
            elif any(self.net.tensor(name).format for name in (*node.inputs, *node.outputs) if name):
                raise self.net.model.unsupported(node, f"the ONNX operator {node.kind}")
            else:
                self._whole(node)
        self._tie()
        return self.dataflow

    def _tie(self) -> None:
        """Let tables that a product stores, or another table's operator, be stored there."""
        for name, root in self._tables.items():
            operator, stored = self.dataflow[name], self._stored.setdefault(root, name)
            if stored != name and isinstance(operator, Vector):
                self.dataflow.add(replace(operator, tied=stored))

    def _whole(self, node: OnnxNode) -> None:
        """Pass by a node all of whose numbers are whole, and refuse it where it is no arithmetic of indices."""
        if node.kind not in INDICES and node.kind not in OPERATORS:
            raise self.net.model.unsupported(node, f"the ONNX operator {node.kind} of whole numbers")
        table = node.kind in ("Gather", *TAKEN)
        if node.kind in COMPARING or (table and not self.net.constant(node.input(0))):
            return
        for name in node.inputs[:1] if table else node.inputs:
            narrow = self.net.tensor(name).narrow if name else ""
            if narrow:  # quantised values, or a quantised table
                raise self.net.model.unsupported(node, f"the ONNX operator {node.kind} of numbers in {narrow}")

    # what operators have in common

    def _common(self, node: OnnxNode, role: Role = Role.NONE, name: str | None = None) -> dict[str, Any]:
        return {
            "name": self._name(node.name if name is None else name),
            "block": "",
            "precision": self.precision or self._format(node),
            "place": Place(role=role),
        }

    def _name(self, name: str) -> str:
        """A node's name as an operator may have it, and no other one has."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", ".", name).strip("._-")[-LONGEST_NAME:].lstrip("._-") or "node"
        found, number = plain, 1
        while found in self.dataflow:
            number += 1
            found = f"{plain}_{number}"
        return found

    def _format(self, node: OnnxNode) -> DataType:
        for name in (*node.outputs, *node.inputs):
            label = self.net.tensor(name).format if name else ""
            if label:
                if label not in FORMATS:
                    raise self.net.model.unsupported(node, f"numbers in {label}")
                return FORMATS[label]
        raise self.net.model.unsupported(node, f"the ONNX operator {node.kind} of whole numbers")

    def _shape(self, name: str) -> tuple[int, int]:
        """Rows and columns of a tensor."""
        shape = self.net.shape(name)
        axis = 1 if name in self._channels else len(shape) - 1
        cols = shape[axis] if shape else 1
        return self.net.tensor(name).elements // max(cols, 1), cols

    def _add(self, node: OnnxNode, operator: Operator, operands: Iterable[str], **elements: int) -> None:
        """Put an operator behind the makers of its operands."""
        self._sound(node, operator)
        self.dataflow.add(operator)
        for name in operands:
            for maker, count in self._parts.get(name, ()):
                self.dataflow.connect(maker, operator.name, elements.get(name, count))
        self._parts[node.output] = ((operator.name, operator.output_elements),)

    def _sound(self, node: OnnxNode, operator: Operator) -> None:
        sizes = [size for size in operator.shape.values() if isinstance(size, int)]
        if any(not isinstance(size, bool) and size > MOST_SIZE**2 for size in sizes):
            raise self.net.model.error(node, "it is too large")
        if operator.output_elements < 1 or operator.input_elements < 1:
            raise self.net.model.error(node, "its result, or an operand, has no elements")

    def _pass(self, node: OnnxNode) -> None:
        """Look through a node that moves values: its results are made by whoever makes its operands."""
        results, constants = self.net.others(node)
        if node.kind == "Concat":
            for name in constants:
                if self.net.roots(name):
                    self._table(node, name)
                    results.append(name)
        for output in node.outputs:
            if not output:
                continue
            most, parts = self.net.tensor(output).elements, dict[str, int]()
            for name in results if node.kind == "Concat" else results[:1]:
                for maker, count in self._parts.get(name, ()):
                    parts[maker] = min(parts.get(maker, 0) + count, most)
            self._parts[output] = tuple(parts.items())
            if node.kind in CHANNELS_KEPT and results and results[0] in self._channels:
                self._channels.add(output)

    def _vector(
        self, node: OnnxNode, function: VectorFunction, operands: list[str], *weights: str, **options: Any
    ) -> None:
        """Add a function of whole tensors; ``weights`` are constants that it has as parameters."""
        if any(name in self._channels for name in operands) and len(self.net.shape(node.output)) > 2:
            self._channels.add(node.output)
        rows, cols = self._shape(node.output)
        shape = {"rows": rows, "cols": cols, "inputs": max(len(operands), 1), **options}
        stored = sum(self._own(name, node) for name in weights)
        made = Vector(function=function, weights=stored, **shape, **self._common(node))
        self._add(node, made, operands)

    def _own(self, name: str, node: OnnxNode) -> int:
        """Parameters of a constant, where it is made of weights of the file and has more than one number."""
        roots = self.net.roots(name) if name else ()
        return self.net.tensor(name).elements if roots and self.net.tensor(name).elements > 1 else 0

    def _table(self, node: OnnxNode, name: str) -> None:
        """Add what reads a constant as it is: learned positions, a class token."""
        if name in self._parts:
            return
        elements, (rows, cols) = self.net.tensor(name).elements, self._shape(name)
        label = next(iter(self.net.roots(name)), name)
        stored = sum(self.net.tensor(root).elements for root in self.net.roots(name))
        gather = VectorFunction.GATHER
        common = self._common(node, name=label)
        made = Vector(function=gather, rows=rows, cols=cols, weights=stored or elements, **common)
        self._sound(node, made)
        self.dataflow.add(made)
        self._parts[name] = ((made.name, made.output_elements),)

    # kinds of nodes

    def matmul(self, node: OnnxNode) -> None:
        """A product; of weights on either side, or of two results."""
        first, second = node.inputs[:2]
        if self.net.constant(first):
            turned = [self.net.shape(name)[:-2] + self.net.shape(name)[:-3:-1] for name in (second, first)]
            sizes = product_shape(turned[0], turned[1], weight=True)
            moving, stored = [second], first
        else:
            sizes = product_shape(self.net.shape(first), self.net.shape(second), self.net.constant(second))
            moving, stored = [first, second], second
        self._gemm(node, sizes, moving, stored, node.input(2))

    def gemm(self, node: OnnxNode) -> None:
        """The ONNX operator Gemm: a product of matrices that may be transposed, and a bias."""
        first, second, bias = node.input(0), node.input(1), node.input(2)
        shapes = [self.net.shape(name) for name in (first, second)]
        left, right = (
            shape[::-1] if node.attributes.get(key) else shape
            for shape, key in zip(shapes, ("transA", "transB"), strict=True)
        )
        if self.net.constant(first) and not self.net.constant(second):
            sizes, moving, stored = product_shape(right[::-1], left[::-1], weight=True), [second], first
            columns = (sizes["n"], 1)
        else:
            sizes = product_shape(left, right, self.net.constant(second))
            moving, stored = [first, second], second
            columns = (1, sizes["n"])
        shape = (1, 1, *self.net.shape(bias))[-2:] if bias else (1, 1)
        if shape not in ((1, 1), columns) or (bias and not self.net.constant(bias)):
            raise self.net.model.unsupported(node, "a Gemm whose third operand is no bias of its columns")
        self._gemm(node, sizes, moving, stored, bias)

    def convolution(self, node: OnnxNode) -> None:
        """A convolution of constant weights, as a product of patches."""
        if not self.net.constant(node.input(1)):
            raise self.net.model.unsupported(node, "convolutions whose weights are results")
        if int(node.attributes.get("group", 1)) < 1:
            raise self.net.model.error(node, "it has no group")
        sizes = convolution_shape(self.net, node)
        patches = sizes["batch"] * sizes["m"] * sizes["k"]
        self._channels.add(node.output)
        self._gemm(node, sizes, [node.input(0)], node.input(1), node.input(2), **{node.input(0): patches})

    def _gemm(
        self, node: OnnxNode, sizes: dict[str, Any], moving: list[str], stored: str, bias: str, **elements: int
    ) -> None:
        common = self._common(node)
        kept = bool(bias) and bool(self.net.roots(bias))
        unbiased = sizes["n"] - 1 if kept and self.net.tensor(bias).elements == 1 else 0  # one number for all columns
        made = Gemm(**sizes, bias=kept, unbiased=unbiased, **common)
        if sizes["weight"]:
            for root in self.net.roots(stored):
                self._share(root, made.name, piece_of(self.net, stored, root))
        self._add(node, made, [name for name in moving if not self.net.constant(name)], **elements)

    def _share(self, root: str, name: str, piece: Piece) -> None:
        """Note who stores a weight, or a piece of it, and whether another product stores some of that, too."""
        self._stored.setdefault(root, name)
        readers = self._readers.setdefault(root, [])
        other = next((each for each, own in readers if not apart(own, piece)), None)
        if other is not None:
            shared = "weights that several products share count once for each of them"
            self.notes[f"{shared}, as those of {other} and {name} do"] = None
        readers.append((name, piece))

    def attention(self, node: OnnxNode) -> None:
        """Attention that was found in parts."""
        shape = dict(node.attributes)
        self._attend(node, shape.pop("mask"), shape)

    def attention_node(self, node: OnnxNode) -> None:
        """ONNX's own operator of attention."""
        if any(node.inputs[4:]) or any(node.outputs[1:]) or node.attributes.get("softcap", 0.0):
            raise self.net.model.unsupported(node, "an Attention node with a cache, further results or softcap")
        first, second, third = heads_of(self.net, node)
        (batch, heads, queries, width), (_, shared, keys, _), (_, _, _, wide) = first, second, third
        if second != (batch, shared, keys, width) or third != (batch, shared, keys, wide):
            raise self.net.model.error(node, "its keys and values do not fit its queries")
        found = pairs_of(self.net, node, (batch, heads, queries, keys))
        sizes = {"batch": batch, "heads": heads, "kv_heads": shared, "q_len": queries, "kv_len": keys}
        self._attend(node, found, {**sizes, "head_dim": width, "v_head_dim": wide})

    def _attend(self, node: OnnxNode, mask: Mask, shape: dict[str, Any]) -> None:
        if not mask.known:
            self.notes["attention under a mask of another form computes all pairs"] = None
        if shape["heads"] % max(shape["kv_heads"], 1):
            raise self.net.model.error(node, "its key-value heads do not divide its heads")
        if not all(shape.values()):
            raise self.net.model.error(node, "its result, or an operand, has no elements")
        shape = {**shape, "kv_len": mask.keys or shape["kv_len"]}
        common = self._common(node, Role.ATTENTION)
        self._add(node, Attention(**shape, causal=mask.causal, window=mask.window, **common), node.inputs[:3])

    def softmax(self, node: OnnxNode) -> None:
        """A softmax of rows of whatever axis."""
        shape = self.net.shape(node.input(0))
        if last_axis(self.net, node):
            self._vector(node, VectorFunction.SOFTMAX, [node.input(0)])
            return
        axis = int(node.attributes.get("axis", -1))
        cols = shape[axis]
        rows = self.net.tensor(node.input(0)).elements // max(cols, 1)
        self._vector(node, VectorFunction.SOFTMAX, [node.input(0)], rows=rows, cols=cols)

    def norm(self, node: OnnxNode) -> None:
        """A norm of rows, which may span several axes."""
        name, function = node.input(0), NORMS[node.kind]
        axis = int(node.attributes.get("axis", -1))
        elements, cols = self.net.tensor(name).elements, 1
        for size in self.net.shape(name)[axis:]:
            cols *= size
        epsilon = float(node.attributes.get("epsilon", 1e-5))
        weights = [each for each in node.inputs[1:3] if each]
        shape = {"rows": elements // max(cols, 1), "cols": cols, "epsilon": epsilon}
        self._vector(node, function, [name], *weights, **shape)

    def activation(self, node: OnnxNode) -> None:
        """A function of every element."""
        self._vector(node, ACTIVATIONS[node.kind], [name for name in node.inputs if not self.net.constant(name)])

    def clip(self, node: OnnxNode) -> None:
        """A ReLU, whatever it is bounded by."""
        low = node.attributes.get("min") if self.net.model.opsets[""] < 11 else self.net.scalar(node.input(1))
        if low != 0:
            raise self.net.model.unsupported(node, "the ONNX operator Clip with another lower bound than 0")
        self.notes["a ReLU with an upper bound is timed as one without"] = None
        self._vector(node, VectorFunction.RELU, [node.input(0)])

    def arithmetic(self, node: OnnxNode) -> None:
        """Sums and products of tensors, or of one and a constant."""
        results, constants = self.net.others(node)
        if not any(self.net.tensor(name).format for name in (*results, node.output)):
            self._whole(node)
            return
        if node.kind == "Div" and (not constants or node.input(0) == constants[0]):
            raise self.net.model.unsupported(node, "the ONNX operator Div by a result")
        if node.kind == "Pow" and self.net.scalar(node.input(1)) != 2:
            raise self.net.model.unsupported(node, "the ONNX operator Pow with another exponent than 2")
        if node.kind == "Pow":
            results, constants = [results[0]] * 2, []
        function = VectorFunction.ADD if node.kind in ("Add", "Sub", "Sum") else VectorFunction.MULTIPLY
        weights = []
        for name in constants:
            elements = self.net.tensor(name).elements
            if elements == 1 or not self.net.roots(name):
                continue  # numbers that are no weights: angles, scales
            if self._is_vector(name, node.output, results):
                weights.append(name)
            else:
                self._table(node, name)
                results.append(name)
        self._vector(node, function, results, *weights)

    def _is_vector(self, name: str, output: str, results: list[str]) -> bool:
        """Whether a constant has a number for each column."""
        long = [axis for axis, size in enumerate(self.net.shape(name)[::-1]) if size > 1]
        rank = len(self.net.shape(output))
        channels = any(each in self._channels for each in results)
        return long == [rank - 2 if channels else 0]

    def negate(self, node: OnnxNode) -> None:
        """A product with minus one."""
        self._vector(node, VectorFunction.MULTIPLY, [node.input(0)])

    def batch_norm(self, node: OnnxNode) -> None:
        """A factor and a summand of every channel."""
        name = self._name(node.name)
        self._vector(node, VectorFunction.MULTIPLY, [node.input(0)], node.input(1))
        shape = {key: value for key, value in self.dataflow[name].shape.items() if key in ("rows", "cols")}
        common = self._common(node, name=f"{name}.shift")
        weights = self._own(node.input(2), node)
        before = self._parts[node.output]
        self._parts[name] = before
        self._add(node, Vector(function=VectorFunction.ADD, weights=weights, **shape, **common), [name])

    def rotary(self, node: OnnxNode) -> None:
        """Turns queries or keys; its angles are a table."""
        shape = self.net.shape(node.input(0))
        heads = shape[1] if len(shape) == 4 else 1
        cols = shape[-1] * heads
        rows = self.net.tensor(node.input(0)).elements // max(cols, 1)
        self._vector(node, VectorFunction.ROPE, [node.input(0)], rows=rows, cols=cols)

    def gather(self, node: OnnxNode) -> None:
        """Rows of a table; or, by constant indices, a part of a result."""
        data, indices = node.input(0), node.input(1)
        if not self.net.tensor(node.output).format:
            self._whole(node)
            return
        if not self.net.constant(data):
            if not self.net.constant(indices):
                raise self.net.model.unsupported(node, "a Gather of a result by indices that depend on the inputs")
            self._pass(node)
            return
        rank = len(self.net.shape(data))
        if int(node.attributes.get("axis", 0)) % max(rank, 1) or rank < 2:
            raise self.net.model.unsupported(node, "a Gather of columns of a table")
        self._gather(node, data)

    def _gather(self, node: OnnxNode, data: str) -> None:
        cols = self.net.tensor(data).elements // max(self.net.shape(data)[0], 1)
        rows = self.net.tensor(node.output).elements // max(cols, 1)
        roots = self.net.roots(data)
        common, weights = self._common(node), self.net.tensor(data).elements
        if len(roots) == 1:
            self._tables[common["name"]] = roots[0]
        made = Vector(function=VectorFunction.GATHER, rows=rows, cols=cols, weights=weights, **common)
        self._add(node, made, [])

    def pool(self, node: OnnxNode) -> None:
        """A mean or a maximum of what lies under a window, as a sum of so many tensors."""
        self._channels.add(node.output)
        if node.kind.startswith("Global"):
            area = self.net.tensor(node.input(0)).elements // max(self.net.tensor(node.output).elements, 1)
        else:
            area = 1
            for size in node.attributes["kernel_shape"]:
                area *= int(size)
        if "Max" in node.kind:
            if any(node.outputs[1:]):
                raise self.net.model.unsupported(node, "the places of maxima")
            self.notes["a maximum of several numbers is timed as their sum"] = None
        self._vector(node, VectorFunction.ADD, [node.input(0)], inputs=area)

    def mean(self, node: OnnxNode) -> None:
        """A mean over axes, as a sum of so many tensors."""
        name = node.input(0)
        area = self.net.tensor(name).elements // max(self.net.tensor(node.output).elements, 1)
        rows, cols = self._shape(node.output)
        if name in self._channels:
            cols = self.net.shape(name)[1]
            rows = self.net.tensor(node.output).elements // max(cols, 1)
        self._vector(node, VectorFunction.ADD, [name], inputs=area, rows=rows, cols=cols)

    def argmax(self, node: OnnxNode) -> None:
        """The place of the largest element of a row."""
        if not last_axis(self.net, node):
            raise self.net.model.unsupported(node, "an ArgMax along another axis than the last")
        rows, cols = self._shape(node.input(0))
        self._vector(node, VectorFunction.ARGMAX, [node.input(0)], rows=rows, cols=cols)


NORMS = {"LayerNormalization": VectorFunction.LAYER_NORM, "RMSNormalization": VectorFunction.RMS_NORM}
ACTIVATIONS = {
    "Relu": VectorFunction.RELU,
    "Gelu": VectorFunction.GELU,
    "Silu": VectorFunction.SILU,
    "Swish": VectorFunction.SILU,
    "QuickGelu": VectorFunction.SILU,
    "Tanh": VectorFunction.TANH,
    "GatedGelu": VectorFunction.GATED_GELU,
    "GatedSilu": VectorFunction.GATED_SILU,
}
POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
OPERATORS: dict[str, Callable[[OnnxOperators, OnnxNode], None]] = {
    "MatMul": OnnxOperators.matmul,
    "Gemm": OnnxOperators.gemm,
    "Conv": OnnxOperators.convolution,
    "FusedAttention": OnnxOperators.attention,
    "Attention": OnnxOperators.attention_node,
    "Softmax": OnnxOperators.softmax,
    **dict.fromkeys(NORMS, OnnxOperators.norm),
    **dict.fromkeys(ACTIVATIONS, OnnxOperators.activation),
    "Clip": OnnxOperators.clip,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Sum", "Pow"), OnnxOperators.arithmetic),
    "Neg": OnnxOperators.negate,
    "BatchNormalization": OnnxOperators.batch_norm,
    "Rotary": OnnxOperators.rotary,
    "RotaryEmbedding": OnnxOperators.rotary,
    "Gather": OnnxOperators.gather,
    **dict.fromkeys(POOLS, OnnxOperators.pool),
    "ReduceMean": OnnxOperators.mean,
    "ArgMax": OnnxOperators.argmax,
}
"""What becomes of each kind of node."""

__all__ = ["LAYOUT", "OPERATORS", "OnnxOperators"]
