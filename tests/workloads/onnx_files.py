"""ONNX files of one layer each, written node by node, in sizes of the caller's choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DATA = Path(__file__).parent / "onnx"


class OnnxWriter:
    """Nodes and weights of a file; methods return the name of what they make."""

    def __init__(self, opset: int = 17, dtype: int = TensorProto.FLOAT) -> None:
        self.opset, self.dtype = opset, dtype
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int | str], dtype: int | None = None) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, self.dtype if dtype is None else dtype, list(shape)))
        return name

    def weight(self, name: str, *shape: int, value: float | None = None) -> str:
        values = np.zeros(shape, np.float32) if value is None else np.full(shape, value, np.float32)
        kind = helper.tensor_dtype_to_np_dtype(self.dtype)
        self.weights.append(numpy_helper.from_array(values.astype(kind), name))
        return name

    def numbers(self, name: str, values: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        made = [f"{name}_out"] + [f"{name}_out{n}" for n in range(1, outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), made, name=name, **attributes))
        return made[0]

    def linear(self, name: str, x: str, k: int, n: int) -> str:
        """A product as PyTorch exports that of a tensor of three dimensions: MatMul and Add."""
        return self.node("Add", self.weight(f"{name}.bias", n), self.node("MatMul", x, self.weight(name, k, n)))

    def model(self, *outputs: str) -> onnx.ModelProto:
        made = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "main", self.inputs, made, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def save(self, path: Path, *outputs: str) -> str:
        onnx.save(self.model(*outputs), path)
        return str(path)


def layer_norm(file: OnnxWriter, name: str, x: str, width: int, primitive: bool) -> str:
    gamma, beta = file.weight(f"{name}.gamma", width), file.weight(f"{name}.beta", width)
    if not primitive:
        return file.node("LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-5)
    centred = file.node("Sub", x, file.node("ReduceMean", x, axes=[-1]))
    squares = file.node("Pow", centred, file.weight(f"{name}.two", value=2.0))
    added = file.node("Add", file.node("ReduceMean", squares, axes=[-1]), file.weight(f"{name}.eps", value=1e-5))
    scaled = file.node("Div", centred, file.node("Sqrt", added))
    return file.node("Add", file.node("Mul", scaled, gamma), beta)


def rms_norm(file: OnnxWriter, name: str, x: str, width: int) -> str:
    squares = file.node("Pow", x, file.weight(f"{name}.two", value=2.0))
    added = file.node("Add", file.node("ReduceMean", squares, axes=[-1]), file.weight(f"{name}.eps", value=1e-6))
    inverse = file.node("Reciprocal", file.node("Sqrt", added))
    return file.node("Mul", file.weight(f"{name}.gamma", width), file.node("Mul", x, inverse))


def gelu(file: OnnxWriter, x: str, form: str) -> str:
    half, one = file.weight(f"{x}.half", value=0.5), file.weight(f"{x}.one", value=1.0)
    if form == "tanh":
        cube = file.node("Pow", x, file.weight(f"{x}.three", value=3.0))
        inner = file.node("Add", x, file.node("Mul", cube, file.weight(f"{x}.c", value=0.044715)))
        angle = file.node("Mul", inner, file.weight(f"{x}.r", value=math.sqrt(2 / math.pi)))
        return file.node("Mul", file.node("Mul", x, half), file.node("Add", file.node("Tanh", angle), one))
    scaled = file.node("Div", x, file.weight(f"{x}.root", value=math.sqrt(2)))
    return file.node("Mul", file.node("Mul", x, file.node("Add", file.node("Erf", scaled), one)), half)


def attention(
    file: OnnxWriter, x: str, tokens: tuple[int, int], heads: int, width: int, *, causal: bool, kv_heads: int = 0
) -> str:
    """From the normed residual to the output projection; heads that share keys are repeated, as exporters do."""
    batch, length = tokens
    kv_heads, hidden = kv_heads or heads, heads * width

    def split(name: str, count: int, turned: Sequence[int]) -> str:
        made = file.linear(name, x, hidden, count * width)
        shape = file.numbers(f"{name}.shape", [batch, length, count, width])
        return file.node("Transpose", file.node("Reshape", made, shape), perm=list(turned))

    def repeated(name: str, of: str) -> str:
        if kv_heads == heads:
            return of
        wide = file.node("Unsqueeze", of, file.numbers(f"{name}.axis", [2]))
        shape = [batch, kv_heads, heads // kv_heads, length, width]
        wide = file.node("Expand", wide, file.numbers(f"{name}.wide", shape))
        return file.node("Reshape", wide, file.numbers(f"{name}.heads", [batch, heads, length, width]))

    query = split("query", heads, (0, 2, 1, 3))
    key = file.node("Transpose", repeated("key", split("key", kv_heads, (0, 2, 1, 3))), perm=[0, 1, 3, 2])
    value = repeated("value", split("value", kv_heads, (0, 2, 1, 3)))
    scores = file.node("Div", file.node("MatMul", query, key), file.weight("scale", value=math.sqrt(width)))
    if causal:
        mask = np.where(np.tri(length, dtype=bool), 0, np.finfo(np.float32).min).astype(np.float32)
        file.weights.append(numpy_helper.from_array(mask[None, None], "mask"))
        scores = file.node("Add", scores, "mask")
    mixed = file.node("MatMul", file.node("Softmax", scores, axis=-1), value)
    flat = file.numbers("flat", [batch, length, hidden])
    joined = file.node("Reshape", file.node("Transpose", mixed, perm=[0, 2, 1, 3]), flat)
    return file.linear("output", joined, hidden, hidden)


def gpt2_layer(tokens: tuple[int, int], heads: int, width: int, inner: int, *, primitive: bool = True) -> OnnxWriter:
    """Pre-norm layer with causal attention and a GELU with a tanh."""
    hidden, file = heads * width, OnnxWriter()
    x = file.input("x", [*tokens, hidden])
    normed = layer_norm(file, "ln_1", x, hidden, primitive)
    x = file.node("Add", x, attention(file, normed, tokens, heads, width, causal=True))
    widened = file.linear("up", layer_norm(file, "ln_2", x, hidden, primitive), hidden, inner)
    file.node("Add", x, file.linear("down", gelu(file, widened, "tanh"), inner, hidden))
    return file


def bert_layer(tokens: tuple[int, int], heads: int, width: int, inner: int) -> OnnxWriter:
    """Post-norm layer of an encoder with a GELU with an error function."""
    hidden, file = heads * width, OnnxWriter()
    x = file.input("x", [*tokens, hidden])
    x = file.node("Add", x, attention(file, x, tokens, heads, width, causal=False))
    x = layer_norm(file, "ln_1", x, hidden, False)
    widened = gelu(file, file.linear("up", x, hidden, inner), "erf")
    x = file.node("Add", x, file.linear("down", widened, inner, hidden))
    layer_norm(file, "ln_2", x, hidden, False)
    return file


def bottleneck(batch: int, size: int, channels: int, inner: int, stride: int) -> OnnxWriter:
    """A block of ResNet-50: 1x1, 3x3, 1x1, a normalisation behind each, and a shortcut."""
    file = OnnxWriter()
    x = file.input("x", [batch, channels, size, size])

    def convolved(name: str, of: str, shape: tuple[int, int, int], step: int = 1) -> str:
        outs, ins, kernel = shape
        made = file.node(
            "Conv", of, file.weight(name, outs, ins, kernel, kernel), strides=[step] * 2, pads=[kernel // 2] * 4
        )
        parts = [file.weight(f"{name}.{part}", outs) for part in ("gamma", "beta", "mean", "variance")]
        return file.node("BatchNormalization", made, *parts)

    y = file.node("Relu", convolved("a", x, (inner, channels, 1)))
    y = file.node("Relu", convolved("b", y, (inner, inner, 3), stride))
    y = convolved("c", y, (4 * inner, inner, 1))
    shortcut = convolved("d", x, (4 * inner, channels, 1), stride)
    file.node("Relu", file.node("Add", y, shortcut))
    return file
